/* GPU code that projects K and V on the leading columns of rotation matrices. These matrices are
 * computed from each prompt (method strawman, online=1) or read from a file (explicit=1). */
#include <stdlib.h>

#include "methods/dims/cuda/strawman_parts.h"
#include "model/checkpoint/cuda/random.h"

static const char what[] = "decompositions of prompts";

typedef kvd_strawman strawman;

/* Adds X^T X of `count` matrices X [rows][d] to `to` [count][d][d] or, if `first` is set, stores it
 * there. */
static int add_gram(const strawman *s, const void *x, int ld, int stride, size_t rows, int count,
                    bool first, float *to, kvd_err *err)
{
    const int d = s->method.cache->config->d_head;
    const float one = 1, kept = first ? 0 : 1;
    return kvd_cublas_check(
        s->w->lib->cublasGemmStridedBatchedEx(s->w->blas, CUBLAS_OP_N, CUBLAS_OP_T, d, d, (int)rows,
                                              &one, x, CUDA_R_16BF, ld, stride, x, CUDA_R_16BF, ld,
                                              stride, &kept, to, CUDA_R_32F, d, (long long)d * d,
                                              count, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        what, err);
}

/* Returns how many of a request's `tokens` tokens a layer stores: with a sliding window, at most
 * the window. */
static size_t held_of(const strawman *s, int layer, size_t tokens)
{
    const size_t window = (size_t)s->method.cache->layer[layer].map.window;
    return window && window < tokens ? window : tokens;
}

static int make_grams(const strawman *s, size_t start, size_t tokens, int layer,
                      cudaStream_t stream, kvd_err *err)
{
    const kvd_gpu_share *const share = s->method.cache->share;
    const int d = s->method.cache->config->d_head, kv = share->n_kv_heads,
              group = share->n_heads / kv;
    const size_t each = (size_t)kv * (size_t)d * (size_t)d, n = held_of(s, layer, tokens);
    const uint16_t *const x = s->rows + (start + tokens - n) * (size_t)s->n * (size_t)d;
    if (!s->outputs)
        return add_gram(s, x, s->n * d, d, n, s->n, true, s->gram, err);
    const uint16_t *const q = s->queries + start * (size_t)share->n_heads * (size_t)d;
    if (add_gram(s, x, s->n * d, d, n, kv, true, s->gram, err) ||
        kvd_queue_copy(s->gram + each, s->outputs + (size_t)layer * each, each * sizeof *s->gram,
                       stream, what, err) ||
        add_gram(s, x + (size_t)kv * (size_t)d, s->n * d, d, n, kv, false, s->gram + each, err))
        return -1;
    for (int j = 0; j < group; j++)
        if (add_gram(s, q + (size_t)j * (size_t)d, share->n_heads * d, group * d, tokens, kv, false,
                     s->gram, err))
            return -1;
    return 0;
}

/* Computes the eigenvectors of the second moments of a prompt's K and V in one layer. If the prompt
 * has fewer tokens than dimensions, adds other orthonormal vectors. */
static int decompose(const strawman *s, size_t prompt, size_t tokens, int layer,
                     cudaStream_t stream, kvd_err *err)
{
    const kvd_gpu_share *const share = s->method.cache->share;
    const int d = s->method.cache->config->d_head, n = (int)held_of(s, layer, tokens),
              queries = (int)tokens * (share->n_heads / share->n_kv_heads);
    const size_t at =
        (prompt * (size_t)s->method.cache->config->n_layers + (size_t)layer) * (size_t)s->n;
    const kvd_latent_rows rows = {s->outputs ? n + queries : n,
                                  s->outputs ? n + s->method.cache->config->d_model : n};
    return kvd_status(
        kvd_latent_solver_run(&s->solver, s->gram, s->host_info + at, stream, err) ||
        kvd_cuda_check(kvd_latent_complete(s->gram, s->solver.value, s->basis + layer * s->n, s->n,
                                           d, rows, stream),
                       what, err));
}

/* Projects K or V of each head: multiplies x [tokens][n][d] by the projections, array `a`
 * [n][d][wide]. */
static int rotate(const strawman *s, const uint16_t *x, size_t tokens, const uint16_t *a,
                  uint16_t *to, kvd_err *err)
{
    const int d = s->method.cache->config->d_head, r = s->wide;
    const float one = 1, zero = 0;
    /* cuBLAS is column-major, so it computes the transposes: to^T [r][tokens] = A^T x^T. */
    return kvd_cublas_check(s->w->lib->cublasGemmStridedBatchedEx(
                                s->w->blas, CUBLAS_OP_N, CUBLAS_OP_N, r, (int)tokens, d, &one, a,
                                CUDA_R_16BF, r, (long long)d * r, x, CUDA_R_16BF, s->n * d, d,
                                &zero, to, CUDA_R_16BF, s->n * r, r, s->n, CUBLAS_COMPUTE_32F,
                                CUBLAS_GEMM_DEFAULT),
                            what, err);
}

static uint16_t *matrix_of(const strawman *s, int layer, size_t slice)
{
    return s->matrix + (size_t)s->method.cache->batch->host.slot[slice] * s->store.matrix_slot +
           s->layer_at[layer];
}

/* Returns the projections of prompt i in a layer, padded with zeros to the largest rank. Returns
 * NULL if all projections have equal ranks. */
static uint16_t *padded_of(const strawman *s, int layer, size_t i)
{
    const size_t d = (size_t)s->method.cache->config->d_head;
    return s->padded
               ? s->padded + (s->shared ? (size_t)layer : i) * (size_t)s->n * d * (size_t)s->wide
               : NULL;
}

static int compress(strawman *s, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_step_batch *const b = c->batch;
    const size_t d = (size_t)c->config->d_head, first = r->steps;
    for (size_t i = 0; !s->shared && i < r->prompts; i++) {
        const size_t start = (size_t)b->host.start[first + i],
                     tokens = (size_t)b->host.q_len[first + i];
        if (make_grams(s, start, tokens, r->layer, r->stream, err) ||
            decompose(s, i, tokens, r->layer, r->stream, err) ||
            kvd_cuda_check(kvd_latent_leading(s->gram, s->basis + r->layer * s->n, s->n, (int32_t)d,
                                              s->wide, matrix_of(s, r->layer, first + i),
                                              padded_of(s, r->layer, i), r->stream),
                           what, err))
            return -1;
    }
    if (kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, r->stream, err))
        return -1;
    for (size_t i = 0; i < r->prompts; i++) {
        const size_t start = (size_t)b->host.start[first + i],
                     tokens = (size_t)b->host.q_len[first + i];
        const uint16_t *const a =
            s->padded ? padded_of(s, r->layer, i) : matrix_of(s, r->layer, first + i);
        if (rotate(s, s->rows + start * (size_t)s->n * d, tokens, a,
                   s->cut + start * (size_t)s->n * (size_t)s->wide, err))
            return -1;
    }
    return 0;
}

/* Copies K and V of the prompts' tokens and, if the projections depend on queries, Q. */
static int gather(const strawman *s, const kvd_paged_rows *r, const kvd_latent_slices *at,
                  kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const int d = c->config->d_head;
    return kvd_status(
        kvd_cuda_check(kvd_latent_gather(at, s->store.head + r->layer * c->share->n_kv_heads,
                                         c->share->n_kv_heads, d, kvd_paged_cache_pool(c, r->layer),
                                         (size_t)c->layer[r->layer].map.page_elements, s->rows,
                                         r->stream),
                       what, err) ||
        (s->queries &&
         kvd_cuda_check(kvd_latent_gather_queries(at, c->batch->device.q_start + r->steps,
                                                  (int32_t)c->batch->n_q8, c->share->n_heads, d,
                                                  c->q_prompts, s->queries, r->stream),
                        what, err)));
}

/* Projects K and V after attention, because prompts attend to unprojected K and V. */
static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    strawman *const s = (strawman *)m;
    const kvd_paged_cache *const c = m->cache;
    if (!r->prompts)
        return 0;
    const bool two = s->levels.low && !c->layer[r->layer].map.window;
    const kvd_latent_slices at = kvd_latent_store_slices(&s->store, r->layer, true, r->prompts);
    kvd_latent_put_args put = {.s = at,
                               .latent = s->cut,
                               .ld_latent = (size_t)s->n * (size_t)s->wide,
                               .d_head = c->config->d_head};
    kvd_latent_store_describe(&s->store, r->layer, &put);
    return kvd_status(
        gather(s, r, &at, err) || (two && kvd_strawman_levels_choose(s, r, err)) ||
        compress(s, r, err) || (two && kvd_strawman_levels_narrow(s, r, err)) ||
        kvd_cuda_check(kvd_latent_put(&put, r->stream), "append of what is cut", err) ||
        kvd_clock_end(c->clock, KVD_PHASE_ROTATE, r->stream, err));
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const strawman *const s = (const strawman *)m;
    if (!r->steps)
        return 0;
    const kvd_latent_restore_args a =
        kvd_latent_store_restored(&s->store, r->layer, false, r->steps);
    return kvd_status(
        kvd_cuda_check(kvd_latent_cut(&a, kvd_latent_store_pool(&s->store, r->layer), r->stream),
                       "rotation of a step", err) ||
        kvd_clock_end(m->cache->clock, KVD_PHASE_ROTATE, r->stream, err) ||
        kvd_cuda_check(kvd_latent_restore(&a, r->stream), "decompression", err) ||
        kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err));
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    strawman *const s = (strawman *)m;
    s->prompts = it->n_slices - it->n_steps;
    return s->levels.low ? kvd_strawman_levels_begin(s, it, err) : 0;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    strawman *const s = (strawman *)m;
    const size_t layers = (size_t)m->cache->config->n_layers, each = layers * (size_t)s->n;
    for (size_t i = 0; !s->shared && i < s->prompts * each; i++)
        if (s->host_info[i])
            return kvd_fail(err, "layer %zu, request %u: eigenvalues did not converge, info %d",
                            i % each / (size_t)s->n, it->slice[it->n_steps + i / each].request,
                            s->host_info[i]);
    if (s->levels.low)
        kvd_strawman_levels_ended(s, it);
    kvd_latent_store_note(&s->store, it);
    return 0;
}

/* Writes the projections that all requests share to the array `to`. If `padded` is not NULL, also
 * writes them there, padded with zeros to s->wide columns. */
static void fill_shared(const strawman *s, uint16_t *to, uint16_t *padded)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_dims *const widths = s->method.plan->widths;
    const size_t d = (size_t)c->config->d_head, wide = (size_t)s->wide;
    const int kv = c->share->n_kv_heads;
    for (int l = 0; l < c->config->n_layers; l++)
        for (int i = 0; i < s->n; i++) {
            const int side = i / kv, g = i % kv;
            const kvd_dims_head *const h =
                &widths->head[l * widths->n_kv_heads + c->share->first_kv_head + g];
            const size_t width = (size_t)kvd_strawman_width(s, widths, l, side, g),
                         rank = (size_t)s->store.layer[l].rank[side][g];
            uint16_t *const own = to + s->layer_at[l] + (size_t)s->store.layer[l].matrix[side][g],
                            *const gaps =
                                padded ? padded + (size_t)(l * s->n + i) * d * wide : NULL;
            for (size_t row = 0; row < d; row++) {
                const float *const from = (side ? h->a_v : h->a_k) + row * width;
                kvd_from_f32(KVD_BF16, from, own + row * rank, width);
                if (gaps)
                    kvd_from_f32(KVD_BF16, from, gaps + row * wide, width);
            }
        }
}

static int make_shared(strawman *s, kvd_err *err)
{
    const kvd_config *const c = s->method.cache->config;
    const size_t gaps = s->store.wide ? (size_t)c->n_layers * (size_t)s->n * (size_t)c->d_head *
                                            (size_t)s->wide
                                      : 0,
                 bytes = (s->each + gaps) * sizeof(uint16_t);
    uint16_t *const host = calloc(s->each + gaps, sizeof *host);
    if (!host)
        return kvd_no_memory(err, what, bytes);
    fill_shared(s, host, gaps ? host + s->each : NULL);
    s->matrix = kvd_device_from(&s->store.memory, host, bytes, what, err);
    s->padded = s->matrix && gaps ? s->matrix + s->each : NULL;
    free(host);
    return s->matrix ? 0 : -1;
}

static int make_matrices(strawman *s, size_t slots, cudaStream_t stream, kvd_err *err)
{
    const size_t n = slots * s->store.matrix_slot;
    const kvd_random_tensor some = kvd_random_tensor_of(1, what, 0.1F, 0);
    s->matrix = kvd_device_new(&s->store.memory, n * sizeof *s->matrix, what, err);
    return s->matrix ? kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &some, 0, n, s->matrix, stream),
                                      what, err)
                     : -1;
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    strawman *const s = (strawman *)m;
    if ((s->shared ? make_shared(s, err) : make_matrices(s, slots, stream, err)) ||
        (s->levels.low && kvd_strawman_levels_make_slots(s, slots, err)))
        return -1;
    for (int l = 0; l < m->cache->config->n_layers; l++)
        s->store.layer[l].up = s->matrix + s->layer_at[l];
    return kvd_latent_store_make(&s->store, pages, slots, stream, err);
}

static double held(const kvd_gpu_method *m)
{
    const strawman *const s = (const strawman *)m;
    return s->store.held - s->levels.less;
}

/* Returns the stored bits of a request in layers without a sliding window: its projected K and V,
 * and its own projection matrices if it has any. */
static double bits(const kvd_gpu_method *m, size_t slot)
{
    const strawman *const s = (const strawman *)m;
    const size_t tokens = s->store.tokens[slot], once = s->shared || !tokens ? 0 : s->matrix_kept;
    const double kept = (double)tokens * (double)s->token_kept + (double)once;
    return 8 * sizeof *s->matrix * (kept - (s->levels.low ? kvd_strawman_levels_low(s, slot) : 0));
}

static size_t lowered(const kvd_gpu_method *m, size_t slot)
{
    const strawman *const s = (const strawman *)m;
    return s->levels.low ? kvd_strawman_levels_tokens(s, slot) : 0;
}

static void release(kvd_gpu_method *m)
{
    strawman *const s = (strawman *)m;
    kvd_latent_solver_close(&s->solver);
    kvd_latent_store_release(&s->store);
    free(s);
}

static int make_solver_arrays(strawman *s, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    kvd_device_memory *const m = &s->store.memory;
    const size_t d = (size_t)c->config->d_head, n = (size_t)s->n,
                 info =
                     c->batch->max_slices * (size_t)c->config->n_layers * n * sizeof *s->host_info,
                 padded = c->batch->max_slices * n * d * (size_t)s->wide * sizeof *s->padded;
    if (s->store.wide)
        s->padded = kvd_device_new(m, padded, what, err);
    s->gram = kvd_device_new(m, n * d * d * sizeof *s->gram, what, err);
    s->host_info = kvd_device_pinned(m, info, what, err);
    return m->status;
}

static int make_arrays(strawman *s, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    kvd_device_memory *const m = &s->store.memory;
    const size_t d = (size_t)c->config->d_head, n = (size_t)s->n, tokens = c->batch->max_tokens;
    s->rows = kvd_device_new(m, tokens * n * d * sizeof *s->rows, what, err);
    s->cut = kvd_device_new(m, tokens * n * (size_t)s->wide * sizeof *s->cut, what, err);
    return m->status;
}

/* Allocates memory for the prompts' queries, and computes W_O W_O^T of each KV head. Parameter
 * online=1 requires both. */
static int make_stacks(strawman *s, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_gpu_share *const share = c->share;
    const int d = c->config->d_head, kv = share->n_kv_heads, group = share->n_heads / kv;
    const size_t each = (size_t)kv * (size_t)d * (size_t)d, layers = (size_t)c->config->n_layers,
                 q = c->batch->max_tokens * (size_t)share->n_heads * (size_t)d;
    s->outputs = kvd_device_new(&s->store.memory, layers * each * sizeof *s->outputs, what, err);
    s->queries = kvd_device_new(&s->store.memory, q * sizeof *s->queries, what, err);
    if (s->store.memory.status)
        return -1;
    for (size_t l = 0; l < layers; l++) {
        const uint16_t *const o = s->w->weights.layer[l].o;
        for (int j = 0; j < group; j++)
            if (add_gram(s, o + (size_t)j * (size_t)d, share->n_heads * d, group * d,
                         (size_t)c->config->d_model, kv, j == 0, s->outputs + l * each, err))
                return -1;
    }
    return 0;
}

int kvd_strawman_width(const kvd_strawman *s, const kvd_dims *widths, int layer, int side, int g)
{
    const kvd_plan *const p = s->method.plan;
    const kvd_paged_cache *const c = s->method.cache;
    if (!widths)
        return (int)p->channels->width(&p->channels_values, (size_t)c->config->d_head);
    const kvd_dims_head *const h =
        &widths->head[layer * widths->n_kv_heads + c->share->first_kv_head + g];
    return side ? h->d_v : h->d_qk;
}

/* Sets the ranks of the projections in s->store, and the offset of each projection in basis
 * [n_layers][n]. */
static void describe_heads(strawman *s, kvd_latent_basis *basis)
{
    const kvd_paged_cache *const c = s->method.cache;
    const int kv = c->share->n_kv_heads, d = c->config->d_head;
    bool equal = true;
    for (int l = 0; l < c->config->n_layers; l++) {
        int at = 0;
        s->layer_at[l] = s->each;
        for (int i = 0; i < s->n; i++) {
            const int side = i / kv, g = i % kv,
                      width = kvd_strawman_width(s, s->method.plan->widths, l, side, g),
                      rank = (width + 15) / 16 * 16;
            basis[l * s->n + i] = (kvd_latent_basis){width, rank, at};
            s->store.layer[l].rank[side][g] = rank;
            s->store.layer[l].matrix[side][g] = at;
            equal = equal && rank == basis[0].rank;
            s->wide = rank > s->wide ? rank : s->wide;
            s->token_kept += c->layer[l].map.window ? 0 : (size_t)width;
            s->matrix_kept += (size_t)(d * width);
            at += d * rank;
        }
        s->each += (size_t)at;
    }
    s->store.wide = equal ? 0 : s->wide;
    s->store.matrix_slot = s->shared ? 0 : s->each;
}

static int make_basis(strawman *s, kvd_err *err)
{
    const size_t layers = (size_t)s->method.cache->config->n_layers,
                 bytes = layers * (size_t)s->n * sizeof *s->basis;
    s->layer_at = kvd_device_host(&s->store.memory, layers * sizeof *s->layer_at, what, err);
    if (!s->layer_at)
        return -1;
    kvd_latent_basis *const basis = malloc(bytes);
    if (!basis)
        return kvd_no_memory(err, what, bytes);
    describe_heads(s, basis);
    s->basis = kvd_device_from(&s->store.memory, basis, bytes, what, err);
    free(basis);
    return s->basis ? 0 : -1;
}

static int open_strawman(strawman *s, kvd_err *err)
{
    kvd_paged_cache *const c = s->method.cache;
    if (kvd_latent_store_begin(&s->store, c, 1, err))
        return -1;
    s->n = 2 * c->share->n_kv_heads;
    s->store.of_slots = true;
    s->shared = s->method.plan->channels->shared;
    if (make_basis(s, err))
        return -1;
    s->store.slot_bytes = s->method.slot_bytes = s->store.matrix_slot * sizeof *s->matrix;
    if (kvd_latent_store_init(&s->store, err) || make_arrays(s, err) ||
        (!s->shared && (kvd_latent_solver_open(&s->solver, c->config->d_head, s->n,
                                               &s->store.memory, s->w->stream, err) ||
                        make_solver_arrays(s, err))) ||
        (s->method.plan->channels->stacks && make_stacks(s, err)) ||
        (s->method.plan->widths_low && kvd_strawman_levels_make(s, err)))
        return -1;
    s->method.page_bytes = s->store.page_bytes;
    s->method.near_page_bytes = s->store.near_page_bytes;
    return 0;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *c, kvd_gpu_method **m, kvd_err *err)
{
    if (plan->tokens && (plan->tokens != &kvd_tokens_importance || !plan->widths_low))
        return kvd_fail(err, "the CUDA engine runs '%s' alone, not with '%s'",
                        plan->channels->info.name, plan->tokens->info.name);
    strawman *const s = calloc(1, sizeof *s);
    if (!s)
        return kvd_no_memory(err, what, sizeof *s);
    s->method = (kvd_gpu_method){.cache = c,
                                 .plan = plan,
                                 .one_layer = true,
                                 .anywhere = true,
                                 .whole_prompts = true,
                                 .apart = 1u << KVD_PHASE_ROTATE,
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .held = held,
                                 .lowered = lowered,
                                 .bits = bits,
                                 .appended = appended,
                                 .attended = attended,
                                 .free = release};
    s->w = c->worker;
    *m = &s->method;
    return open_strawman(s, err);
}

static bool generates(const kvd_plan *plan)
{
    return plan->channels && (!plan->tokens || plan->tokens == &kvd_tokens_importance);
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

const kvd_gpu_kind kvd_gpu_strawman = {.computes = computes,
                                       .joins_heads = kvd_gpu_heads_apart,
                                       .generates = generates,
                                       .open = open_method};
