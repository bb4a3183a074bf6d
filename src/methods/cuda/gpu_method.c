#include "methods/cuda/gpu_method.h"

#include <math.h>

#include "common/cuda/memory.h"
#include "methods/cuda/fold.h"
#include "methods/cuda/host_codes.h"

int kvd_gpu_queue_after(cudaStream_t later, cudaStream_t earlier, cudaEvent_t event,
                        const char *what, kvd_err *err)
{
    return kvd_cuda_check(cudaEventRecord(event, earlier), what, err) ||
                   kvd_cuda_check(cudaStreamWaitEvent(later, event, 0), what, err)
               ? -1
               : 0;
}

/* Returns true if the GPU must run method p->maker, to compute projections or to rebuild keys. */
static bool makes_more(const kvd_plan *p)
{
    return p->maker && !(p->dims && !p->dims->rebuild);
}

const char *kvd_gpu_method_name(const kvd_plan *p)
{
    return p->layers       ? p->layers->info.name
           : p->tokens     ? p->tokens->info.name
           : makes_more(p) ? p->maker->info.name
           : p->channels   ? p->channels->info.name
           : p->bits       ? p->bits->info.name
           : p->dims_low   ? "widths of a low level"
                           : NULL;
}

const kvd_gpu_kind *kvd_gpu_kind_of(const kvd_plan *p)
{
    const kvd_method_info *const member[] = {
        p->layers ? &p->layers->info : NULL, p->maker ? &p->maker->info : NULL,
        p->channels ? &p->channels->info : NULL, p->tokens ? &p->tokens->info : NULL,
        p->bits ? &p->bits->info : NULL};
    for (size_t i = 0; i < sizeof member / sizeof *member; i++) {
        const kvd_gpu_kind *const kind = member[i] ? member[i]->gpu : NULL;
        if (kind && (!kind->runs || kind->runs(p)))
            return kind;
    }
    return NULL;
}

const char *kvd_gpu_heads_joined(const kvd_plan *p)
{
    const kvd_gpu_kind *const kind = kvd_gpu_kind_of(p);
    return kind && kind->joins_heads ? kind->joins_heads(p)
           : kind && kind->joined    ? kind->joined
                                     : "it does not keep each KV head by itself";
}

const char *kvd_gpu_heads_apart(const kvd_plan *p)
{
    (void)p;
    return NULL;
}

const char *kvd_gpu_method_beside_tokens(const kvd_plan *p)
{
    return p->layers     ? p->layers->info.name
           : p->maker    ? p->maker->info.name
           : p->channels ? p->channels->info.name
           : p->dims     ? "a method of the dims axis"
           : p->bits     ? p->bits->info.name
           : p->dims_low ? "widths of a low level"
                         : NULL;
}

static const char *other_feature(const kvd_plan *p, const kvd_config *c, unsigned computes)
{
    const float scale = kvd_config_scores(c).scale * sqrtf((float)c->d_head);
    const bool rebuilds = p->dims && p->dims->rebuild,
               partial = c->rope_dims && c->rope_dims < c->d_head &&
                         c->rope_layout != KVD_ROPE_INTERLEAVED;
    return c->sinks && !(computes & KVD_GPU_SINKS) ? "attention sinks"
           : fabsf(scale - 1) > 1e-6f && !(computes & KVD_GPU_SCALE)
               ? "a scale of scores of its own"
           : rebuilds && partial ? "partial RoPE"
                                 : NULL;
}

static int check_windows(const kvd_plan *p, const kvd_config *c, size_t max_len, unsigned computes,
                         kvd_err *err)
{
    size_t shortest = 0;
    int windows = 0;
    for (int l = 0; l < c->n_layers; l++) {
        const size_t window = kvd_paged_cache_window(c, max_len, l);
        windows += window > 0;
        shortest = window ? window : shortest;
    }
    if (windows && !(computes & KVD_GPU_WINDOWS))
        return kvd_fail(err,
                        "the model has layers with a window of %zu tokens, requests have up to "
                        "%zu: the CUDA engine's kernels of '%s' know no window",
                        shortest, max_len, kvd_gpu_method_name(p));
    /* The shortest sliding window must hold a block of tokens that are quantised together. */
    if (windows && shortest < kvd_plan_block(p))
        return kvd_fail(err,
                        "'%s' codes blocks of %zu tokens, which a window of %zu tokens does not "
                        "hold: use smaller blocks (residual, group)",
                        kvd_gpu_method_name(p), kvd_plan_block(p), shortest);
    const bool prunes = p->channels && p->channels->prune;
    return windows == c->n_layers && (p->tokens || prunes || p->layers)
               ? kvd_fail(err,
                          "all %d layers have a window of %zu tokens, requests have up to %zu: "
                          "the CUDA engine runs '%s' only if a layer has no such window",
                          windows, shortest, max_len, kvd_gpu_method_name(p))
               : 0;
}

int kvd_gpu_method_check(const kvd_gpu_kind *kind, const kvd_plan *p, const kvd_config *c,
                         size_t max_len, kvd_err *err)
{
    const unsigned computes = kind && kind->computes ? kind->computes(p) : 0;
    if (c->d_head > KVD_WIDTH_NARROW && !(computes & KVD_GPU_WIDE))
        return kvd_fail(err,
                        "heads of %d: the CUDA engine's kernels of '%s' take heads of up to %d "
                        "dimensions, without this method the engine takes up to %d",
                        c->d_head, kvd_gpu_method_name(p), KVD_WIDTH_NARROW, KVD_WIDTH_MAX);
    if (kvd_gpu_method_name(p) && c->n_heads > KVD_GROUP_MAX * c->n_kv_heads)
        return kvd_fail(err,
                        "%d query heads per KV head: the CUDA engine's kernels of '%s' take up to "
                        "%d, without this method the engine takes any number",
                        c->n_heads / c->n_kv_heads, kvd_gpu_method_name(p), KVD_GROUP_MAX);
    if (check_windows(p, c, max_len, computes, err))
        return -1;
    const char *const missing = other_feature(p, c, computes);
    return missing ? kvd_fail(err,
                              "a %s model has %s, which the CUDA engine's kernels of '%s' do not "
                              "compute",
                              c->family, missing, kvd_gpu_method_name(p))
                   : 0;
}

bool kvd_gpu_has_keys(const kvd_gpu_kind *kind, const kvd_plan *p, const kvd_config *c)
{
    /* Keys before RoPE are available for every model if the plan projects keys or rebuilds them
     * from latent vectors. With other plans, some models lack them. */
    const bool rebuilds = p->dims && p->dims->rebuild,
               cut = (p->bits || p->maker) && p->dims && !rebuilds;
    return !(kvd_plan_needs(p) & KVD_NEEDS_PRE_ROPE) || cut || rebuilds || kvd_gpu_fold_packs(c) ||
           (kind && kind->before_rope && kind->before_rope(p));
}

/* Returns the code that generates text on the GPU but quantises K and V on the CPU. The caller must
 * check that this code supports the plan. */
static const kvd_gpu_kind *host_kind(const kvd_plan *p)
{
    return p->dims && p->dims->rebuild ? &kvd_gpu_palu_hosted : &kvd_gpu_host_codes;
}

const kvd_gpu_kind *kvd_gpu_kind_of_text(const kvd_plan *p, const kvd_config *c, size_t max_len)
{
    const kvd_gpu_kind *const kind = kvd_gpu_kind_of(p), *const host = host_kind(p);
    kvd_err unused;
    const bool own = kind && kind->generates && kind->generates(p) &&
                     (!kind->fits || kind->fits(p, c)) && kvd_gpu_has_keys(kind, p, c) &&
                     !kvd_gpu_method_check(kind, p, c, max_len, &unused);
    return own || !host->runs(p) || kvd_gpu_method_check(host, p, c, max_len, &unused) ? kind
                                                                                       : host;
}

int kvd_gpu_method_open(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                        kvd_err *err)
{
    const char *const member = kvd_gpu_method_name(plan);
    *m = NULL;
    if (plan->type != KVD_BF16)
        return kvd_fail(err, "a cache in %s, the CUDA engine has bf16", kvd_dtype_name(plan->type));
    if (plan->keep_first + plan->keep_last > 0) {
        char name[128];
        kvd_plan_name(plan, name, sizeof name);
        return kvd_fail(err, "method '%s': the CUDA engine does not run 'keep_layers'", name);
    }
    if (plan->maker == &kvd_dims_projected && !cache->generates)
        return kvd_fail(err, "the CUDA engine runs 'projected' in kvdim-tasks alone");
    if (!member)
        return 0;
    if (plan->levels)
        return kvd_fail(err, "the CUDA engine does not run '%s'", plan->levels->info.name);
    const kvd_gpu_kind *const kind = cache->generates
                                         ? kvd_gpu_kind_of_text(plan, cache->config, cache->max_len)
                                         : kvd_gpu_kind_of(plan);
    if (kvd_gpu_method_check(kind, plan, cache->config, cache->max_len, err))
        return -1;
    if (cache->share->count > 1 && !(kind && kind->shares_prompts) && kvd_gpu_heads_joined(plan))
        return kvd_fail(err, "'%s' on %d GPUs: %s", member, cache->share->count,
                        kvd_gpu_heads_joined(plan));
    return kind ? kind->open(plan, cache, m, err)
                : kvd_fail(err, "the CUDA engine does not run '%s'", member);
}

int kvd_gpu_method_make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream,
                        kvd_err *err)
{
    return kvd_status((m->make && m->make(m, pages, slots, stream, err)) ||
                      (m->codes && kvd_host_codes_make(m->codes, slots, err)) ||
                      (m->kept && kvd_host_entries_make(m->kept, slots, err)));
}

int kvd_gpu_method_begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    return kvd_status((m->begin && m->begin(m, it, err)) ||
                      (m->codes && kvd_host_codes_begin(m->codes, it, err)));
}

int kvd_gpu_method_ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    return kvd_status((m->ended && m->ended(m, it, err)) ||
                      (m->codes && kvd_host_codes_ended(m->codes, it, err)) ||
                      (m->kept && kvd_host_entries_ended(m->kept, it, err)));
}

int kvd_gpu_method_finish(kvd_gpu_method *m, kvd_err *err)
{
    return m->codes ? kvd_host_codes_finish(m->codes, err) : 0;
}

void kvd_gpu_method_drop(kvd_gpu_method *m, size_t slot)
{
    if (m->drop)
        m->drop(m, slot);
    if (m->codes)
        kvd_host_codes_drop(m->codes, slot);
    if (m->kept)
        kvd_host_entries_drop(m->kept, slot);
}

double kvd_gpu_method_held(const kvd_gpu_method *m)
{
    return m->codes  ? kvd_host_codes_held(m->codes)
           : m->kept ? kvd_host_entries_held(m->kept)
           : m->held ? m->held(m)
                     : 0;
}

double kvd_gpu_method_bits(const kvd_gpu_method *m, size_t slot)
{
    return m->codes  ? kvd_host_codes_bits(m->codes, slot)
           : m->kept ? kvd_host_entries_bits(m->kept, slot)
           : m->bits ? m->bits(m, slot)
                     : (double)NAN;
}

double kvd_gpu_method_unseen(const kvd_gpu_method *m, size_t slot)
{
    return m->codes    ? kvd_host_codes_unseen(m->codes, slot)
           : m->kept   ? kvd_host_entries_unseen(m->kept, slot)
           : m->unseen ? m->unseen(m, slot)
                       : 0;
}

size_t kvd_gpu_first_held(const kvd_gpu_method *m, size_t window, size_t n)
{
    const size_t block = kvd_plan_block(m->plan);
    return window && n > window ? (n - window) / block * block : 0;
}

void kvd_gpu_method_free(kvd_gpu_method *m)
{
    if (!m)
        return;
    kvd_host_codes_free(m->codes);
    kvd_host_entries_free(m->kept);
    m->free(m);
}

int kvd_gpu_method_add_up(const kvd_gpu_method *m, float *x, size_t n, cudaStream_t stream,
                          kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    return kvd_status(kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, stream, err) ||
                      kvd_gpu_sum_add(c->worker->sum, c->share->index, x, n, stream, err) ||
                      kvd_clock_end(c->clock, KVD_PHASE_COMM, stream, err));
}
