/* Text generation on the GPU with methods that quantise on the CPU. Also sums the attention
 * probabilities of tokens, by which method zipcache ranks tokens. */
#include <stdlib.h>

#include "methods/bits/bits.h"
#include "methods/cuda/cache_rows.h"
#include "methods/cuda/host_codes.h"

static const char what[] = "codes on the CPU";

/* Attention probability that each token received in one iteration, summed over queries. */
struct kvd_host_received {
    kvd_gpu_method *method; /* borrowed */
    /* sum: one layer's sums, in device memory. host: sums of all layers, in pinned memory
     * [n_layers][room]. */
    float *sum, *host;
    /* Number of sums in one layer, one per token and KV head. of_steps: for prompts. room: for
     * prompts and decode steps together. */
    size_t of_steps, room;
    size_t newest; /* tokens of a decode step that may not be quantised yet */
    kvd_device_memory memory;
};

kvd_host_received *kvd_host_received_new(kvd_gpu_method *m, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_bits_method *const bits = m->plan->bits;
    const size_t slices = c->batch->max_slices, rows = c->batch->max_tokens + 8 * slices,
                 heads = (size_t)c->share->n_heads, kv = (size_t)c->share->n_kv_heads;
    kvd_host_received *const x = calloc(1, sizeof *x);
    if (!x) {
        kvd_no_memory(err, what, sizeof *x);
        return NULL;
    }
    x->method = m;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        size_t window = 0, block = 1;
        if (bits->window)
            bits->window(&m->plan->bits_values, (kvd_side)side, &window, &block);
        x->newest = window + block > x->newest ? window + block : x->newest;
    }
    x->of_steps = kv * rows;
    x->room = x->of_steps + slices * kv * x->newest;
    kvd_device_memory *const d = &x->memory;
    x->sum = kvd_device_new(d, x->room * sizeof *x->sum, what, err);
    x->host =
        kvd_device_pinned(d, (size_t)c->config->n_layers * x->room * sizeof *x->host, what, err);
    m->lse = kvd_device_new(d, heads * rows * sizeof *m->lse, what, err);
    m->lse_steps = kvd_device_new(d, slices * heads * sizeof *m->lse, what, err);
    if (!d->status)
        return x;
    kvd_host_received_free(x);
    return NULL;
}

void kvd_host_received_free(kvd_host_received *x)
{
    if (x)
        kvd_device_release(&x->memory);
    free(x);
}

/* Queues the computation of the sums of attention probabilities of prompts or of decode steps, and
 * their copy to the host. */
static int queue(const kvd_host_received *x, const kvd_paged_rows *r, bool prompts, kvd_err *err)
{
    const kvd_gpu_method *const m = x->method;
    const kvd_paged_cache *const c = m->cache;
    const kvd_step_batch *const b = c->batch;
    /* If c->whole is set, prompts attend to K and V that are not projected. */
    const bool whole = prompts && c->whole;
    const kvd_attn_map *const map = whole ? &c->whole[r->layer].map : &c->layer[r->layer].map;
    const size_t first = prompts ? r->steps : 0, n = prompts ? r->prompts : r->steps,
                 at = prompts ? 0 : x->of_steps,
                 sums = (size_t)map->n_kv_heads * (prompts ? b->n_q8 : n * x->newest);
    const kvd_cache_received a = {.map = *map,
                                  .prompts = prompts,
                                  .n = (int32_t)n,
                                  .max_pages = (int32_t)c->pages->max_pages,
                                  .kv_len = kvd_paged_lens_of(map, &b->device) + first,
                                  .page_table = kvd_paged_pages_of(c, map)->device +
                                                first * c->pages->max_pages,
                                  .q = prompts ? c->q_prompts : c->q_steps,
                                  .q_start = b->device.q_start + first,
                                  .n_q8 = (int32_t)b->n_q8,
                                  .pool = whole ? c->whole_pool : kvd_paged_cache_pool(c, r->layer),
                                  .lse = prompts ? m->lse : m->lse_steps,
                                  .block = (int32_t)kvd_plan_block(m->plan),
                                  .newest = (int32_t)x->newest,
                                  .sum = x->sum + at};
    return n ? kvd_status(kvd_cuda_check(kvd_cache_receive(&a, r->stream), what, err) ||
                          kvd_queue_get(x->host + (size_t)r->layer * x->room + at, a.sum,
                                        sums * sizeof *a.sum, r->stream, what, err))
             : 0;
}

int kvd_host_received_attended(const kvd_host_received *x, const kvd_paged_rows *r, kvd_err *err)
{
    return kvd_status(queue(x, r, true, err) || queue(x, r, false, err));
}

void kvd_host_received_add(const kvd_host_received *x, int layer, size_t slice, bool prompt,
                           size_t first, size_t n, double *mass)
{
    const kvd_paged_cache *const c = x->method->cache;
    const kvd_step_batch *const b = c->batch;
    const size_t heads = (size_t)c->config->n_kv_heads, window = (size_t)c->layer[layer].map.window,
                 seen = window && n > window ? n - window : 0,
                 recent = n > x->newest ? n - x->newest : 0,
                 summed = prompt          ? kvd_gpu_first_held(x->method, window, n)
                          : seen > recent ? seen
                                          : recent;
    const float *const of_prompts = x->host + (size_t)layer * x->room, *const of_steps =
                                                                           of_prompts + x->of_steps;
    for (size_t t = summed > first ? summed : first; t < n; t++)
        for (size_t g = 0; g < heads; g++)
            mass[(t - first) * heads + g] +=
                (double)(prompt ? of_prompts[g * b->n_q8 + (size_t)b->host.q_start[slice] + t]
                                : of_steps[(slice * heads + g) * x->newest + t % x->newest]);
}

/* Returns true if the CPU can quantise tokens by the plan's quantisation method. */
static bool takes(const kvd_plan *plan)
{
    const kvd_bits_method *const bits = plan->bits;
    return bits && !plan->layers && !plan->levels && !plan->channels && !plan->dims_low &&
           !(bits->info.needs & KVD_NEEDS_QUERIES) &&
           !(bits->balances && bits->balances(&plan->bits_values));
}

/* Returns true if the plan's quantisation method needs one of `inputs` (KVD_NEEDS_* flags). */
static bool needs(const kvd_plan *plan, unsigned inputs)
{
    return plan->bits->info.needs & inputs;
}

/* Returns true if the plan's quantisation method can run on the CPU and needs only K and V. */
static bool takes_rows(const kvd_plan *plan)
{
    return takes(plan) && !needs(plan, KVD_NEEDS_INPUT | KVD_NEEDS_PROBABILITIES);
}

bool kvd_host_codes_take(const kvd_plan *plan)
{
    return takes_rows(plan) && !plan->tokens;
}

bool kvd_host_codes_take_entries(const kvd_plan *plan)
{
    const kvd_tokens_method *const t = plan->tokens;
    /* Plugins are not supported: they may need each token's position in the sequence, but get its
     * index among the cached tokens. */
    const bool plugin = plan->bits && !plan->bits->info.gpu;
    return takes_rows(plan) && t && !plugin && !plan->maker && !plan->dims;
}

static size_t query_elements(const kvd_paged_cache *c)
{
    return (size_t)c->share->n_heads * (size_t)c->config->d_head;
}

static int write_pages(void *cache, int layer, const kvd_paged_rewrite *w, kvd_err *err)
{
    return kvd_paged_cache_rewrite(cache, layer, w, err);
}

/* Creates the state with which the CPU quantises rows. Each row has K of all KV heads, then V of
 * all KV heads. */
static int new_of_pages(kvd_gpu_method *m, kvd_err *err)
{
    kvd_paged_cache *const c = m->cache;
    const kvd_bits_method *const bits = m->plan->bits;
    const kvd_dims *const dims = m->plan->dims;
    const bool raw = c->hook.wants_raw, rotates = c->cosine && raw && !bits->keys_before_rope,
               undoes = c->cosine && !raw && bits->keys_before_rope && !dims;
    const size_t layers = (size_t)c->config->n_layers, heads = (size_t)c->config->n_kv_heads,
                 wide = heads * (size_t)c->config->d_head, units = bits->all_heads ? 1 : heads,
                 parts = KVD_N_SIDES * units;
    kvd_host_part *const part = malloc(layers * parts * sizeof *part);
    if (!part)
        return kvd_no_memory(err, what, layers * parts * sizeof *part);
    for (size_t i = 0; i < layers * parts; i++) {
        const kvd_side side = (kvd_side)(i / units % KVD_N_SIDES);
        const kvd_dims_head *const h = dims ? &dims->head[i / parts * heads + i % units] : NULL;
        part[i] = (kvd_host_part){.side = side,
                                  .kv_head = (int)(i % units),
                                  .at = i % parts * (wide / units),
                                  .d = !h                   ? wide / units
                                       : side == KVD_VALUES ? (size_t)h->d_v
                                                            : (size_t)h->d_qk};
    }
    const kvd_host_rows rows = {
        .width = 2 * wide,
        .input = needs(m->plan, KVD_NEEDS_INPUT) ? (size_t)c->config->d_model : 0,
        .n_parts = parts,
        .part = part,
        .write = write_pages,
        .ctx = c,
        .ld = query_elements(c) + 2 * wide,
        .before = query_elements(c),
        .rotates = rotates,
        .undoes = undoes,
        .turned = rotates || undoes,
        .dims = dims};
    const int status = kvd_host_codes_new(m, &rows, err);
    free(part);
    return status;
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    return kvd_host_codes_append(m->codes, r, err);
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    return kvd_host_codes_attended(m->codes, r, err);
}

static void release(kvd_gpu_method *m)
{
    free(m);
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    const kvd_bits_method *const bits = plan->bits;
    if (!cache->generates)
        return kvd_fail(err, "the CUDA engine does not run '%s'", bits->info.name);
    kvd_gpu_method *const k = *m = calloc(1, sizeof *k);
    if (!k)
        return kvd_no_memory(err, what, sizeof *k);
    cache->hook.wants_input = needs(plan, KVD_NEEDS_INPUT);
    *k = (kvd_gpu_method){.cache = cache,
                          .plan = plan,
                          .whole_prompts = true,
                          .kernels = what,
                          .appended = appended,
                          .attended = attended,
                          .free = release};
    return kvd_status(new_of_pages(k, err) || kvd_host_codes_add_prompts(k->codes, err));
}

static bool runs(const kvd_plan *plan)
{
    const bool cuts = plan->dims && !plan->dims->rebuild;
    return takes(plan) && !plan->tokens &&
           (cuts ? !needs(plan, KVD_NEEDS_INPUT) : !plan->maker && !plan->dims);
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return (unsigned)KVD_GPU_WINDOWS | (unsigned)KVD_GPU_SINKS | (unsigned)KVD_GPU_SCALE |
           (unsigned)KVD_GPU_WIDE;
}

const kvd_gpu_kind kvd_gpu_host_codes = {.computes = computes,
                                         .joined = "the CPU codes the heads of one GPU",
                                         .runs = runs,
                                         .generates = runs,
                                         .codes_on_host = runs,
                                         .before_rope = runs,
                                         .open = open_method};
