/* Method palu on the GPU: the cache stores latent vectors, from which K and V are restored for
 * attention. Layers with a sliding window store only the latent vectors of tokens in the window. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/bits/cuda/packed.h"
#include "methods/cuda/fold.h"
#include "methods/dims/cuda/palu_parts.h"
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/tokens.h"
#include "model/pass/batch.h"

static const char what[] = "latents of palu";

static int padded(int rank)
{
    return (rank + 15) / 16 * 16;
}

/* Returns true if kvd_palu_decode, which attends to latent vectors, can be used with this model and
 * these ranks. It requires RoPE angles proportional to the position. */
static bool fuses(const kvd_palu *p)
{
    const kvd_paged_cache *const c = p->method.cache;
    const kvd_config *const m = c->config;
    if (c->window || m->sinks || m->rope_local_theta > 0 ||
        fabsf(kvd_config_scores(m).scale * sqrtf((float)m->d_head) - 1) > 1e-6f)
        return false;
    if (c->attention == KVD_ATTENTION_STOCK || !c->hopper || m->d_head != KVD_PALU_D_HEAD ||
        p->dims.heads != KVD_PALU_GROUP || m->positions != KVD_POSITIONS_ROPE ||
        m->rope_layout != KVD_ROPE_HALF || m->rope_scaling == KVD_ROPE_LONGROPE ||
        m->rope_scaling == KVD_ROPE_YARN || p->w->max_len < KVD_PALU_PAGE_TOKENS)
        return false;
    for (int l = 0; l < m->n_layers; l++) {
        const kvd_palu_shape s = kvd_palu_shape_of(p, l);
        if (kvd_palu_shape_check(&s))
            return false;
        for (int g = 1; g < s.n_kv_heads / KVD_PALU_GROUP; g++)
            if (p->store.layer[l].rank[KVD_KEYS][g] != s.rank_k ||
                p->store.layer[l].rank[KVD_VALUES][g] != s.rank_v)
                return false;
    }
    return true;
}

/* Returns true if the plan quantises latent vectors by method allot or kvquant, which run on the
 * GPU. */
static bool codes_here(const kvd_plan *plan)
{
    return plan->bits == &kvd_bits_allot || plan->bits == &kvd_bits_kvquant;
}

static const char *refused_member(const kvd_plan *plan)
{
    const bool other = plan->tokens && plan->tokens->info.gpu != &kvd_gpu_evict;
    return plan->layers                                        ? plan->layers->info.name
           : other                                             ? plan->tokens->info.name
           : plan->bits && (plan->tokens || !codes_here(plan)) ? plan->bits->info.name
                                                               : NULL;
}

/* Returns true if tokens are dropped although KV heads share latent vectors, which is not
 * supported. */
static bool shares_dropped(const kvd_plan *plan)
{
    return plan->tokens && plan->dims->heads > 1;
}

static bool fits(int heads, int d)
{
    return d % 16 == 0 && heads * d <= 768;
}

static int check(const kvd_plan *plan, const kvd_paged_cache *c, bool hosted, kvd_err *err)
{
    const int d = c->config->d_head;
    const char *const member = refused_member(plan);
    if (member && !hosted)
        return kvd_fail(
            err,
            "the CUDA engine runs '%s' alone, with allot, with kvquant or with a method "
            "that drops as many tokens in every KV head, not with '%s'",
            plan->dims->method, member);
    if (shares_dropped(plan))
        return kvd_fail(err,
                        "'%s' drops other tokens in every KV head, but %d KV heads share a latent "
                        "of '%s': give heads=1",
                        plan->tokens->info.name, plan->dims->heads, plan->dims->method);
    if (!fits(plan->dims->heads, d))
        return kvd_fail(err,
                        "latents of %d heads of %d: the CUDA engine takes groups up to 768 wide",
                        plan->dims->heads, d);
    return 0;
}

/* Sets the ranks of latent vectors, and the dimensions of K and V in the cache's pages. */
static int resolve(kvd_palu *p, kvd_err *err)
{
    kvd_paged_cache *const c = p->method.cache;
    const int kv = c->share->n_kv_heads, heads = p->dims.heads, d = c->config->d_head;
    for (int l = 0; l < c->config->n_layers; l++) {
        kvd_latent_layer *const to = &p->store.layer[l];
        kvd_attn_map *const map = &c->layer[l].map;
        kvd_attn_heads widths = {c->share->n_heads, kv, d, {0}, {0}, map->window};
        const float scale = map->scale;
        bool direct = !c->exact_method;
        for (int g = 0; g < kv / heads; g++) {
            to->rank[KVD_KEYS][g] = padded(kvd_palu_head(p, l, g * heads)->d_qk);
            to->rank[KVD_VALUES][g] = padded(kvd_palu_head(p, l, g * heads)->d_v);
            direct = direct && to->rank[KVD_VALUES][g] <= d;
        }
        p->layer[l].direct = direct;
        to->columns = !direct && !map->window && kvd_latent_joins(heads, d) ? heads * d : 0;
        for (int h = 0; h < kv; h++) {
            widths.d_qk[h] = d;
            widths.d_v[h] = direct ? to->rank[KVD_VALUES][h / heads] : d;
        }
        to->applies_rope = c->config->positions == KVD_POSITIONS_ROPE;
        if (kvd_attn_map_make(&widths, map))
            return kvd_fail(err, "layer %d: widths of palu that the kernels do not take", l);
        map->scale = scale;
    }
    return 0;
}

static int make_factors(kvd_palu *p, kvd_err *err)
{
    const size_t heads = (size_t)p->method.cache->share->n_heads, layers = (size_t)p->dims.n_layers,
                 d = (size_t)p->dims.d_head, group = heads / (size_t)p->dims.n_kv_heads;
    const void **const host = calloc(layers * 3 * heads, sizeof *host);
    const size_t bytes = layers * 3 * heads * sizeof *host;
    if (!host)
        return kvd_no_memory(err, what, bytes);
    for (size_t l = 0; l < layers; l++) {
        const size_t rank = (size_t)p->store.layer[l].rank[KVD_VALUES][0];
        for (size_t h = 0; h < heads; h++) {
            const void **const to = host + l * 3 * heads + h;
            to[0] = p->matrix + p->layer[l].back + h / group * rank * d;
            to[heads] = p->o + h * rank;
            to[2 * heads] = (uint16_t *)p->w->narrow + h * d;
        }
    }
    p->factor = kvd_device_from(&p->store.memory, host, bytes, what, err);
    free(host);
    return p->factor ? 0 : -1;
}

static int make_fused(kvd_palu *p, kvd_err *err)
{
    const kvd_paged_cache *const c = p->method.cache;
    size_t bytes = 0, rank = 0;
    if ((p->n_clusters = kvd_palu_decode_clusters()) < 1)
        return kvd_fail(err, "palu: the device holds no cluster of two CTAs");
    for (int l = 0; l < p->dims.n_layers; l++) {
        const kvd_palu_shape s = kvd_palu_shape_of(p, l);
        const size_t one =
            kvd_palu_decode_workspace_bytes(&s, (int)c->batch->max_slices, p->n_clusters);
        bytes = one > bytes ? one : bytes;
        rank = (size_t)s.rank_v > rank ? (size_t)s.rank_v : rank;
    }
    const size_t rows = c->batch->max_slices * (size_t)c->share->n_heads;
    p->workspace = kvd_device_new(&p->store.memory, bytes, what, err);
    p->o = kvd_device_new(&p->store.memory, rows * rank * sizeof *p->o, what, err);
    return p->store.memory.status ? -1 : make_factors(p, err);
}

static kvd_palu_decode_args fused_args(const kvd_palu *p, int layer, size_t n)
{
    const kvd_paged_cache *const c = p->method.cache;
    return (kvd_palu_decode_args){.dtype = KVD_BF16,
                                  .shape = kvd_palu_shape_of(p, layer),
                                  .batch = (int32_t)n,
                                  .max_pages = (int32_t)c->pages->max_pages,
                                  .kv_len = c->batch->device.kv_len,
                                  .page_table = c->pages->device,
                                  .q = c->q_steps,
                                  .pool = kvd_latent_store_pool(&p->store, layer),
                                  .up = p->matrix + p->layer[layer].up_pair,
                                  .rope_cos = c->cosine,
                                  .rope_sin = c->sine,
                                  .n_clusters = p->n_clusters,
                                  .workspace = p->workspace};
}

static int plan_fused(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err)
{
    const kvd_palu_decode_args a = fused_args((const kvd_palu *)m, 0, n);
    return kvd_cuda_check(kvd_palu_decode_plan(&a, stream), "palu's plan", err);
}

static int attend_fused(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    kvd_palu *const p = (kvd_palu *)m;
    const float one = 1, zero = 0;
    const int d = p->dims.d_head, heads = m->cache->share->n_heads,
              rank = p->store.layer[r->layer].rank[KVD_VALUES][0];
    const void **const f = p->factor + (size_t)r->layer * 3 * (size_t)heads;
    const bool direct = p->layer[r->layer].direct;
    kvd_palu_decode_args a = fused_args(p, r->layer, r->steps);
    a.o = direct ? out : (void *)p->o;
    if (kvd_cuda_check(kvd_palu_decode(&a, r->stream), "attention of latents", err))
        return -1;
    if (direct)
        return 0;
    if (out != p->w->narrow)
        return kvd_fail(err, "attention of latents: rows go where none were expected");
    /* Projects each head's attention output back to d dimensions. Matrices are transposed because
     * cuBLAS is column-major. */
    return kvd_cublas_check(p->w->lib->cublasGemmBatchedEx(
                                p->w->blas, CUBLAS_OP_N, CUBLAS_OP_N, d, (int)r->steps, rank, &one,
                                f, CUDA_R_16BF, d, f + heads, CUDA_R_16BF, heads * rank, &zero,
                                (void **)(uintptr_t)(f + 2 * heads), CUDA_R_16BF, heads * d, heads,
                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                            "values of latents", err);
}

/* Computes the latent vectors of n new tokens: multiplies V, and K before RoPE, by the
 * projections. */
static int multiply(const kvd_palu *p, const kvd_paged_rows *r, size_t n, kvd_err *err)
{
    const kvd_latent_layer *const l = &p->store.layer[r->layer];
    const size_t d = (size_t)p->dims.d_head, wide = (size_t)p->dims.heads * d,
                 v_at = (size_t)(p->method.cache->share->n_heads + p->dims.n_kv_heads) * d;
    const float one = 1, zero = 0;
    uint16_t *to = p->rows;
    for (int side = 0; side < 2; side++) {
        const uint16_t *a = p->matrix + p->layer[r->layer].down[side];
        const uint16_t *const x = side ? (const uint16_t *)r->x + v_at : r->k_pre;
        for (int g = 0; g < p->dims.n_kv_heads / p->dims.heads; g++) {
            const int rank = l->rank[side][g];
            if (kvd_cublas_check(p->w->lib->cublasGemmEx(
                                     p->w->blas, CUBLAS_OP_N, CUBLAS_OP_N, rank, (int)n, (int)wide,
                                     &one, a, CUDA_R_16BF, rank, x + (size_t)g * wide, CUDA_R_16BF,
                                     (int)(side ? r->ld : r->ld_pre), &zero, to, CUDA_R_16BF,
                                     (int)l->latent_pitch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                                 what, err))
                return -1;
            a += wide * (size_t)rank;
            to += rank;
        }
    }
    return 0;
}

static int put(const kvd_palu *p, const kvd_paged_rows *r, bool prompts, kvd_err *err)
{
    const kvd_paged_cache *const c = p->method.cache;
    const kvd_step_batch *const b = c->batch;
    const size_t first = prompts ? r->steps : 0,
                 table = kvd_batch_rope_layer(c->config, c->max_len, r->layer) *
                         ((size_t)c->config->d_head / 2),
                 width = (size_t)c->share->n_heads * (size_t)c->config->d_head;
    const uint16_t *const x = (const uint16_t *)r->x + first * r->ld;
    const size_t pitch = p->folded ? r->ld : p->store.layer[r->layer].latent_pitch;
    const bool applies_rope = p->folded && p->store.layer[r->layer].applies_rope;
    kvd_latent_put_args a = {
        .s = kvd_latent_store_slices(&p->store, r->layer, prompts, prompts ? r->prompts : r->steps),
        .n_heads = prompts && c->exact_method ? 0 : c->share->n_heads,
        .d_head = c->config->d_head,
        .q = x,
        .ld_q = r->ld,
        .cosine = applies_rope ? c->cosine + table : NULL,
        .sine = applies_rope ? c->sine + table : NULL,
        .interleaved = c->config->rope_layout == KVD_ROPE_INTERLEAVED,
        .position = prompts ? NULL : b->device.step_at,
        .q_start = prompts ? b->device.q_start + r->steps : NULL,
        .n_q8 = (int32_t)b->n_q8,
        .to_q = prompts ? c->q_prompts : c->q_steps,
        .latent = p->folded ? x + width : p->rows + first * pitch,
        .ld_latent = pitch};
    kvd_latent_store_describe(&p->store, r->layer, &a);
    return kvd_cuda_check(kvd_latent_put(&a, r->stream), "append", err);
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_palu *const p = (const kvd_palu *)m;
    kvd_paged_cache *const c = m->cache;
    kvd_clock *const clock = c->clock;
    const size_t n = r->prompts ? c->batch->n_tokens : r->steps;
    if (kvd_clock_end(clock, kvd_paged_cache_behind(c), r->stream, err) ||
        (c->exact_method && r->prompts &&
         kvd_paged_cache_append(c, r, kvd_paged_cache_pool(c, r->layer),
                                kvd_paged_pages_of(c, &c->layer[r->layer].map)->device, err)))
        return -1;
    if (!p->folded &&
        (multiply(p, r, n, err) ||
         (m->codes &&
          kvd_host_codes_fetch(m->codes, r->layer, p->rows, p->store.layer[r->layer].latent_pitch,
                               p->store.layer[r->layer].latent_pitch, r->stream, err)) ||
         kvd_clock_end(clock, KVD_PHASE_ROTATE, r->stream, err)))
        return -1;
    return kvd_status((r->steps && put(p, r, false, err)) || (r->prompts && put(p, r, true, err)) ||
                      kvd_clock_end(clock, KVD_PHASE_APPEND, r->stream, err));
}

static int restore(const kvd_palu *p, const kvd_paged_rows *r, bool prompts, size_t n, kvd_err *err)
{
    const kvd_latent_restore_args a = kvd_latent_store_restored(&p->store, r->layer, prompts, n);
    return kvd_cuda_check(kvd_latent_restore(&a, r->stream), "keys from latents", err);
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_palu *const p = (const kvd_palu *)m;
    const bool rows = r->prompts ? !m->cache->exact_method : !p->fused,
               codes = p->coded && r->steps;
    if (!rows && !codes)
        return 0;
    return kvd_status((codes && kvd_latent_codes_restore(&p->codes, r, err)) ||
                      (rows && !p->fused && r->steps && restore(p, r, false, r->steps, err)) ||
                      (rows && r->prompts && restore(p, r, true, r->prompts, err)) ||
                      kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err));
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_palu *const p = (const kvd_palu *)m;
    if (!p->evict)
        return kvd_latent_codes_put(&p->codes, r, err);
    /* Methods that drop tokens do not act in layers with a sliding window. */
    return m->cache->layer[r->layer].map.window ? 0 : p->evict->attended(p->evict, r, err);
}

static size_t entries(const kvd_gpu_method *m, size_t slot, size_t before)
{
    const kvd_gpu_method *const evict = ((const kvd_palu *)m)->evict;
    return evict->entries(evict, slot, before);
}

static double bits(const kvd_gpu_method *m, size_t slot)
{
    return kvd_latent_codes_bits(&((const kvd_palu *)m)->codes, slot);
}

static double unseen(const kvd_gpu_method *m, size_t slot)
{
    return kvd_latent_codes_unseen(&((const kvd_palu *)m)->codes, slot);
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    kvd_palu *const p = (kvd_palu *)m;
    return kvd_status(kvd_latent_store_make(&p->store, pages, slots, stream, err) ||
                      (p->coded && kvd_latent_codes_make(&p->codes, pages, slots, stream, err)) ||
                      (p->evict && p->evict->make(p->evict, pages, slots, stream, err)));
}

/* Fails if prompts need uncompressed K and V, but are split or share the iteration with decode
 * steps. */
static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    kvd_gpu_method *const evict = ((kvd_palu *)m)->evict;
    for (size_t i = it->n_steps; m->cache->exact_method && i < it->n_slices; i++)
        if (it->n_steps || it->slice[i].before)
            return kvd_fail(err,
                            "request %u: %u tokens of a prompt after %u, with %zu steps: prompts "
                            "that attend uncompressed run whole and without steps",
                            it->slice[i].request, it->slice[i].n, it->slice[i].before, it->n_steps);
    return evict ? evict->begin(evict, it, err) : 0;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    kvd_palu *const p = (kvd_palu *)m;
    const size_t needed = kvd_latent_codes_lacking(&p->codes);
    kvd_latent_store_note(&p->store, it);
    if (p->coded)
        kvd_latent_codes_note(&p->codes, it);
    if (p->evict)
        return p->evict->ended(p->evict, it, err);
    return needed ? kvd_fail(err,
                             "method '%s': a page of 64 tokens has %zu outliers in the latents of "
                             "keys, there is room for %d: outliers=0 has none",
                             m->plan->bits->info.name, needed, (int)p->codes.room)
                  : 0;
}

static size_t lacking(const kvd_gpu_method *m)
{
    return kvd_latent_codes_lacking(&((const kvd_palu *)m)->codes);
}

static double held(const kvd_gpu_method *m)
{
    const kvd_palu *const p = (const kvd_palu *)m;
    return p->evict ? p->evict->held(p->evict) + p->store.near_held : p->store.held;
}

static void release(kvd_gpu_method *m)
{
    kvd_palu *const p = (kvd_palu *)m;
    kvd_gpu_method_free(p->evict);
    kvd_latent_store_release(&p->store);
    free(p->dims.head);
    free(p);
}

static int make_rows(kvd_palu *p, kvd_err *err)
{
    for (int l = 0; l < p->dims.n_layers; l++) {
        const size_t pitch = p->store.layer[l].latent_pitch;
        p->rows_pitch = pitch > p->rows_pitch ? pitch : p->rows_pitch;
    }
    const size_t bytes = p->method.cache->batch->max_tokens * p->rows_pitch * sizeof *p->rows;
    return p->folded || (p->rows = kvd_device_new(&p->store.memory, bytes, what, err)) ? 0 : -1;
}

/* Prepares the token-dropping method, such as h2o, that is combined with palu. The layouts of KV
 * heads and of latent pages must be set before. */
static int open_evict(kvd_palu *p, kvd_err *err)
{
    kvd_gpu_method *const m = &p->method;
    if (kvd_gpu_evict.open(m->plan, m->cache, &p->evict, err))
        return -1;
    kvd_gpu_evict_latents(p->evict, &p->store);
    m->entries = entries;
    m->slot_bytes = p->evict->slot_bytes;
    m->lse = p->evict->lse;
    m->lse_steps = p->evict->lse_steps;
    return 0;
}

static int open_palu(kvd_palu *p, kvd_err *err)
{
    kvd_paged_cache *const c = p->method.cache;
    const size_t bytes = (size_t)c->config->n_layers * sizeof *p->layer;
    if (kvd_latent_store_begin(&p->store, c, p->dims.heads, err) ||
        !(p->layer = kvd_device_host(&p->store.memory, bytes, what, err)) || resolve(p, err))
        return -1;
    p->folded = c->hook.wants_raw;
    c->hook.wants_pre = !p->folded;
    p->fused = fuses(p);
    p->store.one_layer = p->coded = p->method.plan->bits && !p->hosted;
    p->store.positions = p->method.plan->tokens != NULL;
    if (kvd_palu_make_matrices(p, err) || kvd_latent_store_init(&p->store, err) ||
        (p->coded && kvd_latent_codes_init(&p->codes, &p->store, p->method.plan, &p->dims, err)) ||
        kvd_palu_fold(p, err) || make_rows(p, err) || (p->fused && make_fused(p, err)) ||
        (p->hosted && kvd_latent_store_host(&p->store, &p->method, &p->dims, p->rows_pitch, err)))
        return -1;
    p->method.page_bytes = p->store.page_bytes + p->codes.page_bytes;
    p->method.near_page_bytes = p->store.near_page_bytes + p->codes.near_page_bytes;
    p->method.slot_bytes = p->codes.slot_bytes;
    if (p->method.plan->tokens && open_evict(p, err))
        return -1;
    p->method.whole_prompts = p->coded || p->method.codes || p->evict;
    p->method.bits = p->coded ? bits : NULL;
    p->method.unseen = p->coded && c->window ? unseen : NULL;
    p->method.attended = p->coded || p->evict ? attended : NULL;
    p->method.apart = p->folded ? 0 : 1u << KVD_PHASE_ROTATE;
    if (p->fused) {
        p->method.plan_steps = plan_fused;
        p->method.attend_steps = attend_fused;
        p->method.kernels = "steps on latents (palu_decode)";
    }
    return 0;
}

const kvd_gpu_method *kvd_gpu_palu_evict(const kvd_gpu_method *palu)
{
    return ((const kvd_palu *)palu)->evict;
}

static bool runs(const kvd_plan *plan)
{
    return plan->dims && plan->dims->rebuild;
}

static int open_with(const kvd_plan *plan, kvd_paged_cache *c, bool hosted, kvd_gpu_method **m,
                     kvd_err *err)
{
    if (check(plan, c, hosted, err))
        return -1;
    kvd_palu *const p = calloc(1, sizeof *p);
    if (!p)
        return kvd_no_memory(err, what, sizeof *p);
    p->method = (kvd_gpu_method){.cache = c,
                                 .plan = plan,
                                 .one_layer = true,
                                 .anywhere = true,
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .held = held,
                                 .lacking = lacking,
                                 .append = append,
                                 .appended = appended,
                                 .free = release};
    p->w = c->worker;
    p->hosted = hosted;
    /* From here on, the caller's cache owns the method and frees it, even after a failure. */
    *m = &p->method;
    return kvd_status(kvd_latent_store_share(plan->dims, c->share, &p->dims, err) ||
                      open_palu(p, err));
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *c, kvd_gpu_method **m, kvd_err *err)
{
    return open_with(plan, c, false, m, err);
}

static int open_hosted(const kvd_plan *plan, kvd_paged_cache *c, kvd_gpu_method **m, kvd_err *err)
{
    return open_with(plan, c, true, m, err);
}

static bool generates(const kvd_plan *plan)
{
    return runs(plan) && !refused_member(plan) && !shares_dropped(plan) &&
           fits(plan->dims->heads, plan->dims->d_head);
}

static bool runs_hosted(const kvd_plan *plan)
{
    return runs(plan) && kvd_host_codes_take(plan) && fits(plan->dims->heads, plan->dims->d_head);
}

static unsigned computes(const kvd_plan *plan)
{
    /* Sliding windows are not supported with outliers, because the bits of outliers are not counted
     * per token. */
    const bool outliers = plan->bits && kvd_gpu_packed_value(plan, "outliers") > 0;
    return KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE | (outliers ? 0 : KVD_GPU_WINDOWS);
}

static unsigned computes_hosted(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

const kvd_gpu_kind kvd_gpu_palu = {.computes = computes,
                                   .joins_heads = kvd_gpu_heads_apart,
                                   .runs = runs,
                                   .generates = generates,
                                   .open = open_method};

const kvd_gpu_kind kvd_gpu_palu_hosted = {.computes = computes_hosted,
                                          .runs = runs_hosted,
                                          .generates = runs_hosted,
                                          .codes_on_host = runs_hosted,
                                          .open = open_hosted};
