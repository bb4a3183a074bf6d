/* Method xkv on the GPU: a group of layers stores a prompt's K and V as shared singular vectors.
 * Every decode step restores K and V from them. Layers with a sliding window restore K and V only
 * once, after the prompt, and keep them in bf16. */
#include <stdlib.h>
#include <string.h>

#include "methods/dims/cuda/latent_span.h"
#include "methods/dims/cuda/latents.h"
#include "methods/layers/cuda/merged.h"
#include "model/pass/batch.h"

static const char what[] = "decomposition of layers";

/* Group of layers whose K and V are stored together. In arrays of two elements, the first is for K,
 * the second for V. */
typedef struct {
    int first, n, n_full; /* n_full: number of layers without a sliding window */
    size_t wide;          /* elements of K or V of a token, in all layers of the group */
    size_t rank[2];       /* largest rank of K and V, rounded up to a multiple of 16 */
    uint16_t *latents;
    /* Index in a request's part of `basis` at which this layer group's singular vectors begin. */
    size_t basis_at;
} layer_group;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_gpu_worker *w;
    layer_group *group;
    int n_groups;
    int *group_of; /* [n_layers] group of each layer, or -1 */
    bool *skips;   /* [n_layers] */
    int begin;     /* first layer that steps restore, or -1 */
    /* Maxima over all layer groups: `wide`, elements of K (or V) of a token; `ranks`, rank of K
     * plus rank of V; `most_rank`, rank of K or V. */
    size_t wide, ranks, most_rank;
    /* [n_layers] Device pages with K and V of the tokens after the prompt. NULL in layers with a
     * sliding window. */
    uint16_t **own;
    kvd_latent_head *head; /* device [n_layers][n_kv_heads] */
    int32_t *run;          /* for each group, page offset of every 8 latent elements */
    uint16_t *basis;       /* device [slots][basis_slot] */
    size_t basis_slot;
    bool joint; /* true: tensor cores restore the KV heads of a layer together */
    /* Singular vectors [wide][rank] of the prompts' K and V, in row-major order, before
     * kvd_latent_join reorders them for tensor cores. NULL if `joint` is false. */
    uint16_t *rows_of_basis[2];
    /* K and V of the prompts in the current group of layers, [max_tokens][wide] each, and the
     * latent vectors computed from them, [max_tokens][ranks]. */
    uint16_t *x[2], *latent;
    kvd_latent_span span[2];
    /* CUDA stream that decomposes keys while the main stream decomposes values. */
    cudaStream_t stream_of_keys;
    cublasHandle_t blas_of_keys;
    cudaEvent_t gathered, decomposed;
    float *captured; /* pinned [n_groups][2][max_slices] */
    size_t prompts;  /* number of prompts in the iteration */
    /* [slots + 1] Number of prompt tokens of the request in each slot, in device memory and in
     * pinned host memory. The last element is 0, for the empty requests that pad a batch. */
    int32_t *prompt, *host_prompt;
    /* [max_slices] in device memory: prompt length of each decoding request, in tokens. */
    int32_t *steps;
    kvd_merged_slots slots;
    kvd_device_memory memory;
} xkv;

static xkv *of(const kvd_gpu_method *m)
{
    return (xkv *)(void *)m;
}

/* Returns the number of elements that K (or V) of one token has in one layer. */
static size_t row_of(const xkv *k)
{
    return (size_t)k->method.cache->config->n_kv_heads * (size_t)k->method.cache->config->d_head;
}

static size_t rank_of(const xkv *k, const layer_group *g, int side, size_t n)
{
    kvd_err err;
    size_t rank;
    /* This call cannot fail, because the parameters were checked before. */
    (void)kvd_xkv_rank(&k->method.plan->layers_values, (kvd_side)side, n, g->wide, &rank, &err);
    return rank;
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    return kvd_paged_cache_append(m->cache, r, of(m)->own[r->layer], m->cache->pages->device, err);
}

static bool has_window(const xkv *k, int layer)
{
    return k->method.cache->layer[layer].map.window > 0;
}

static kvd_latent_restore_args restore_args(const xkv *k, int layer, const kvd_paged_rows *r)
{
    const kvd_paged_cache *const c = k->method.cache;
    const layer_group *const g = &k->group[k->group_of[layer]];
    const size_t table =
        kvd_batch_rope_layer(c->config, c->max_len, layer) * ((size_t)c->config->d_head / 2);
    return (kvd_latent_restore_args){.n = (int32_t)r->steps,
                                     .max_pages = (int32_t)c->pages->max_pages,
                                     .n_kv_heads = c->config->n_kv_heads,
                                     .d_head = c->config->d_head,
                                     .max_rank = (int32_t)k->most_rank,
                                     .kv_len = k->steps,
                                     .page_table = c->pages->device,
                                     .slot = c->batch->device.slot,
                                     .matrix_slot = k->basis_slot,
                                     .head = k->head + layer * c->config->n_kv_heads,
                                     .latents = g->latents,
                                     .matrix = k->basis + g->basis_at,
                                     .columns = k->joint ? (int32_t)g->wide : 0,
                                     .latent_page = KVD_PAGE_TOKENS * (g->rank[0] + g->rank[1]),
                                     .page = (size_t)c->layer[layer].map.page_elements,
                                     .cosine = c->cosine ? c->cosine + table : NULL,
                                     .sine = c->sine ? c->sine + table : NULL,
                                     .interleaved = c->config->rope_layout == KVD_ROPE_INTERLEAVED,
                                     .pages = kvd_paged_cache_pool(c, layer),
                                     .n_sms = c->n_sms};
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const xkv *const k = of(m);
    const kvd_paged_cache *const c = m->cache;
    if (!r->steps)
        return 0;
    const kvd_latent_restore_args a = restore_args(k, r->layer, r);
    const kvd_merged_args later = {.n = a.n,
                                   .max_pages = a.max_pages,
                                   .n_sms = a.n_sms,
                                   .n_kv_heads = a.n_kv_heads,
                                   .d_head = a.d_head,
                                   .kv_len = c->batch->device.kv_len,
                                   .slot = a.slot,
                                   .page_table = a.page_table,
                                   .rows = a.pages,
                                   .rows_table = a.page_table,
                                   .first = k->own[r->layer]};
    return (r->layer == k->begin &&
            kvd_cuda_check(kvd_merged_of_slots(k->prompt, a.slot, a.n, k->steps, r->stream), what,
                           err)) ||
                   kvd_cuda_check(kvd_latent_restore(&a, r->stream), what, err) ||
                   kvd_cuda_check(kvd_merged_copy_later(&later, k->steps, r->stream), what, err) ||
                   kvd_clock_end(c->clock, KVD_PHASE_RESTORE, r->stream, err)
               ? -1
               : 0;
}

/* Writes the product of matrices a [rows][sum] and b [sum][columns] to `to`. All three are
 * column-major bf16 matrices. */
static int multiply(const xkv *k, cublasHandle_t blas, size_t rows, size_t columns, size_t sum,
                    const uint16_t *a, size_t ld_a, const uint16_t *b, size_t ld_b, uint16_t *to,
                    size_t ld, kvd_err *err)
{
    const float one = 1, zero = 0;
    return kvd_cublas_check(
        k->w->lib->cublasGemmEx(blas, CUBLAS_OP_N, CUBLAS_OP_N, (int)rows, (int)columns, (int)sum,
                                &one, a, CUDA_R_16BF, (int)ld_a, b, CUDA_R_16BF, (int)ld_b, &zero,
                                to, CUDA_R_16BF, (int)ld, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        what, err);
}

/* Decomposes K or V (`side`) of `batch` prompts of equal length, beginning with prompt number
 * `first`. */
static int decompose(const xkv *k, const kvd_paged_rows *r, size_t first, size_t batch, int side,
                     kvd_err *err)
{
    const kvd_latent_span *const span = &k->span[side];
    const cudaStream_t stream = side ? r->stream : k->stream_of_keys;
    const kvd_step_batch *const b = k->method.cache->batch;
    const int index = k->group_of[r->layer];
    const layer_group *const g = &k->group[index];
    const size_t start = (size_t)b->host.start[r->steps + first],
                 n = (size_t)b->host.q_len[r->steps + first], wide = g->wide, rank = g->rank[side],
                 ld = g->rank[0] + g->rank[1];
    kvd_latent_span_rows rows = {
        .x = k->x[side] + start * wide,
        .ld = wide,
        .n = n,
        .wide = wide,
        .batch = batch,
        .width = rank_of(k, g, side, n),
        .rank = rank,
        .captured = k->captured + (((size_t)index * 2 + (size_t)side) * b->max_slices + first)};
    uint16_t *in_slot[KVD_LATENT_SPAN_BATCH];
    for (size_t i = 0; i < batch; i++) {
        in_slot[i] = k->basis + (size_t)b->host.slot[r->steps + first + i] * k->basis_slot +
                     g->basis_at + (side ? wide * g->rank[0] : 0);
        rows.basis[i] = k->joint ? k->rows_of_basis[side] + i * wide * rank : in_slot[i];
    }
    if (kvd_latent_span_run(span, &rows, stream, err))
        return -1;
    /* cuBLAS is column-major: it takes the row-major matrix x [n][wide] as [wide][n]. */
    for (size_t i = 0; i < batch; i++)
        if ((k->joint &&
             kvd_cuda_check(kvd_latent_join(rows.basis[i], wide, rank, in_slot[i], stream), what,
                            err)) ||
            multiply(k, span->blas, rank, n, wide, rows.basis[i], rank, rows.x + i * n * wide, wide,
                     k->latent + (start + i * n) * ld + (side ? g->rank[0] : 0), ld, err))
            return -1;
    return 0;
}

/* Copies this layer's K and V of prompt tokens to k->x, next to the K and V of other layers. Copies
 * K before RoPE if the compression method needs it so. */
static int gather(const xkv *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const layer_group *const g = &k->group[k->group_of[r->layer]];
    const size_t row = row_of(k), tokens = c->batch->n_tokens - r->steps,
                 keys = (size_t)(c->config->n_heads * c->config->d_head);
    for (size_t side = 0; side < 2; side++) {
        const bool pre = side == KVD_KEYS && c->hook.wants_pre;
        const size_t ld = pre ? r->ld_pre : r->ld;
        const uint16_t *const from = pre ? r->k_pre : (const uint16_t *)r->x + keys + side * row;
        if (kvd_cuda_check(cudaMemcpy2DAsync(k->x[side] + (size_t)(r->layer - g->first) * row,
                                             g->wide * sizeof *from, from + r->steps * ld,
                                             ld * sizeof *from, row * sizeof *from, tokens,
                                             cudaMemcpyDeviceToDevice, r->stream),
                           what, err))
            return -1;
    }
    return 0;
}

static int put(const xkv *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_step_batch *const b = k->method.cache->batch;
    const layer_group *const g = &k->group[k->group_of[r->layer]];
    const size_t ranks = g->rank[0] + g->rank[1], max_pages = k->method.cache->pages->max_pages;
    const kvd_latent_put_args a = {
        .s = {.n = (int32_t)r->prompts,
              .max_pages = (int32_t)max_pages,
              .most = (int32_t)(b->n_tokens - r->steps),
              .start = b->device.start + r->steps,
              .q_len = b->device.q_len + r->steps,
              .kv_len = b->device.kv_len + r->steps,
              .page_table = k->method.cache->pages->device + r->steps * max_pages},
        .d_head = k->method.cache->config->d_head,
        .latent = k->latent,
        .ld_latent = ranks,
        .run = k->run,
        .n_runs = (int32_t)(ranks / 8),
        .pool = g->latents,
        .page_elements = KVD_PAGE_TOKENS * ranks};
    return kvd_cuda_check(kvd_latent_put(&a, r->stream), what, err);
}

/* Decompresses the K and V of prompts into the bf16 cache of layers with a sliding window. */
static int restore_windows(const xkv *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const layer_group *const g = &k->group[k->group_of[r->layer]];
    const size_t pages = r->steps * c->pages->max_pages;
    for (int l = g->first; l < g->first + g->n; l++) {
        kvd_latent_restore_args a = restore_args(k, l, r);
        if (!has_window(k, l))
            continue;
        a.n = (int32_t)r->prompts;
        a.kv_len = c->batch->device.kv_len + r->steps;
        a.slot = c->batch->device.slot + r->steps;
        a.page_table = c->near->device + pages;
        a.latent_table = c->pages->device + pages;
        if (kvd_cuda_check(kvd_latent_restore(&a, r->stream), what, err))
            return -1;
    }
    return 0;
}

/* Called after the attention of each layer. Collects the prompts' K and V and, after the last layer
 * of a group, decomposes them. */
static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const xkv *const k = of(m);
    if (!r->prompts || k->group_of[r->layer] < 0)
        return 0;
    const layer_group *const g = &k->group[k->group_of[r->layer]];
    if (gather(k, r, err))
        return -1;
    if (r->layer + 1 < g->first + g->n)
        return 0;
    const int32_t *const q_len = k->method.cache->batch->host.q_len + r->steps;
    if (kvd_gpu_queue_after(k->stream_of_keys, r->stream, k->gathered, what, err))
        return -1;
    for (size_t i = 0, n; i < r->prompts; i += n) {
        n = kvd_latent_span_equal(q_len + i, r->prompts - i);
        if (decompose(k, r, i, n, KVD_KEYS, err) || decompose(k, r, i, n, KVD_VALUES, err))
            return -1;
    }
    return kvd_status(kvd_gpu_queue_after(r->stream, k->stream_of_keys, k->decomposed, what, err) ||
                      put(k, r, err) || restore_windows(k, r, err));
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    xkv *const k = of(m);
    k->prompts = it->n_slices - it->n_steps;
    if (!kvd_merged_slots_begin(&k->slots, it))
        return 0;
    for (size_t i = 0; i < k->slots.n; i++)
        k->host_prompt[i] = (int32_t)k->slots.slot[i].prompt;
    return kvd_queue_put(k->prompt, k->host_prompt, k->slots.n * sizeof *k->prompt, k->w->stream,
                         what, err);
}

static double held(const kvd_gpu_method *m)
{
    return of(m)->slots.held;
}

/* Returns the bits of a request's prompt in one layer: the bits of its group of layers, divided by
 * the number of layers in the group. */
static double prompt_bits(const xkv *k, size_t slot, const layer_group *g)
{
    const size_t prompt = k->slots.slot[slot].prompt;
    size_t numbers = 0;
    for (int side = 0; side < 2; side++)
        numbers += (prompt + g->wide) * rank_of(k, g, side, prompt);
    return 8.0 * sizeof(uint16_t) * (double)numbers / g->n;
}

/* Returns the bits that K and V of n tokens take in one layer if they are stored uncompressed. */
static double rows_bits(const xkv *k, size_t n)
{
    return 8.0 * sizeof(uint16_t) * (double)(n * 2 * row_of(k));
}

/* Returns the storage size, in bits, of a request's K and V in layers without a sliding window. */
static double full_bits(const kvd_gpu_method *m, size_t slot)
{
    const xkv *const k = of(m);
    const struct kvd_merged_slot *const s = &k->slots.slot[slot];
    int layers = m->cache->n_full;
    double sum = 0;
    for (int i = 0; i < k->n_groups; i++) {
        const layer_group *const g = &k->group[i];
        layers -= g->n_full;
        sum += g->n_full * (prompt_bits(k, slot, g) + rows_bits(k, s->tokens - s->prompt));
    }
    return sum + layers * rows_bits(k, s->tokens);
}

/* Returns how many bits compression saves in layers with a sliding window, for a request of n
 * tokens. */
static double saved_near(const xkv *k, size_t slot, size_t n)
{
    double sum = 0;
    for (int i = 0; i < k->n_groups; i++) {
        const layer_group *const g = &k->group[i];
        sum += (g->n - g->n_full) *
               (rows_bits(k, k->slots.slot[slot].prompt) - prompt_bits(k, slot, g));
    }
    return sum * kvd_merged_near(&k->slots, slot, k->method.cache->window, n);
}

static double bits(const kvd_gpu_method *m, size_t slot)
{
    const xkv *const k = of(m);
    return full_bits(m, slot) - saved_near(k, slot, k->slots.slot[slot].tokens);
}

/* Returns the bits that compression saves in sliding-window layers after the latest step, minus the
 * bits that it saved before the step. */
static double unseen(const kvd_gpu_method *m, size_t slot)
{
    const xkv *const k = of(m);
    const size_t n = k->slots.slot[slot].tokens;
    return n ? saved_near(k, slot, n) - saved_near(k, slot, n - 1) : 0;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    xkv *const k = of(m);
    const size_t most = m->cache->batch->max_slices;
    for (size_t i = 0; i < k->prompts; i++)
        for (size_t j = 0; j < 2 * (size_t)k->n_groups; j++)
            if (kvd_latent_span_check(k->captured[j * most + i], err))
                return kvd_in(err, "layer %d, request %u", k->group[j / 2].first,
                              it->slice[it->n_steps + i].request);
    kvd_merged_slots_end(&k->slots, m, full_bits, it);
    return 0;
}

static size_t n_merged(const kvd_gpu_method *m, size_t slot)
{
    const xkv *const k = of(m);
    size_t rows = 0;
    for (int i = 0; i < k->n_groups; i++)
        rows += 2 * k->group[i].wide / (size_t)m->cache->config->d_head;
    return rows * k->slots.slot[slot].prompt;
}

static int make_slots(xkv *k, size_t slots, cudaStream_t stream, kvd_err *err)
{
    const kvd_step_batch *const b = k->method.cache->batch;
    const size_t bytes = (slots + 1) * sizeof *k->prompt;
    if (kvd_merged_slots_make(&k->slots, slots, err) ||
        !(k->basis = kvd_merged_pool(&k->memory, slots * k->basis_slot, 0.1F, stream, err)) ||
        !(k->steps = kvd_device_new(&k->memory, b->max_slices * sizeof *k->steps, what, err)) ||
        !(k->prompt = kvd_device_new(&k->memory, bytes, what, err)) ||
        kvd_device_zero(k->prompt, bytes, what, err) ||
        !(k->host_prompt = kvd_pinned_new(bytes, what, err)))
        return -1;
    memset(k->host_prompt, 0, bytes);
    return 0;
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    xkv *const k = of(m);
    uint16_t *at =
        kvd_merged_pool(&k->memory, (pages + 1) * m->page_bytes / sizeof *at, 1, stream, err);
    if (!at)
        return -1;
    for (int i = 0; i < k->n_groups; i++) {
        layer_group *const g = &k->group[i];
        g->latents = at;
        at += (pages + 1) * KVD_PAGE_TOKENS * (g->rank[0] + g->rank[1]);
        for (int l = g->first; l < g->first + g->n; l++) {
            if (has_window(k, l))
                continue;
            k->own[l] = at;
            at += (pages + 1) * KVD_PAGE_TOKENS * 2 * row_of(k);
        }
    }
    return make_slots(k, slots, stream, err);
}

static void release(kvd_gpu_method *m)
{
    xkv *const k = of(m);
    kvd_cublas_close(k->blas_of_keys);
    if (k->gathered)
        (void)cudaEventDestroy(k->gathered);
    if (k->decomposed)
        (void)cudaEventDestroy(k->decomposed);
    if (k->stream_of_keys)
        (void)cudaStreamDestroy(k->stream_of_keys);
    (void)cudaFreeHost(k->captured);
    (void)cudaFreeHost(k->host_prompt);
    kvd_device_release(&k->memory);
    kvd_merged_slots_release(&k->slots);
    free(k->group);
    free(k->group_of);
    free(k->skips);
    free(k->own);
    free(k);
}

static int make_stream_of_keys(xkv *k, kvd_err *err)
{
    const unsigned flags = cudaEventDisableTiming;
    const cublasMath_t math =
        CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
    const kvd_cublas *const lib = k->w->lib;
    return kvd_status(
        kvd_cuda_check(cudaStreamCreateWithFlags(&k->stream_of_keys, cudaStreamNonBlocking), what,
                       err) ||
        kvd_cuda_check(cudaEventCreateWithFlags(&k->gathered, flags), what, err) ||
        kvd_cuda_check(cudaEventCreateWithFlags(&k->decomposed, flags), what, err) ||
        !(k->blas_of_keys = kvd_cublas_open(what, err)) ||
        kvd_cublas_check(lib->cublasSetStream_v2(k->blas_of_keys, k->stream_of_keys), what, err) ||
        kvd_cublas_check(lib->cublasSetMathMode(k->blas_of_keys, math), what, err));
}

static int make_solver(xkv *k, kvd_err *err)
{
    const kvd_step_batch *const b = k->method.cache->batch;
    kvd_device_memory *const d = &k->memory;
    const size_t tokens = b->max_tokens,
                 captured = b->max_slices * (size_t)k->n_groups * 2 * sizeof *k->captured,
                 bases = KVD_LATENT_SPAN_BATCH * k->wide * k->most_rank * sizeof *k->basis;
    for (int side = 0; side < 2; side++)
        if (!(k->x[side] = kvd_device_new(d, tokens * k->wide * sizeof *k->x[0], what, err)) ||
            (k->joint && !(k->rows_of_basis[side] = kvd_device_new(d, bases, what, err))) ||
            kvd_latent_span_make(&k->span[side], k->w, tokens, k->wide, k->most_rank, d, err))
            return -1;
    if (make_stream_of_keys(k, err))
        return -1;
    k->span[KVD_KEYS].blas = k->blas_of_keys;
    k->latent = kvd_device_new(d, tokens * k->ranks * sizeof *k->latent, what, err);
    return k->latent && (k->captured = kvd_pinned_new(captured, what, err)) ? 0 : -1;
}

/* Fills the GPU's tables of the offsets at which each head's K and V, latent vectors and singular
 * vectors begin. */
static int copy_tables(xkv *k, kvd_err *err)
{
    const kvd_config *const c = k->method.cache->config;
    const size_t heads = (size_t)c->n_kv_heads, n = (size_t)c->n_layers * heads,
                 n_runs = k->ranks / 8, d = (size_t)c->d_head;
    kvd_latent_head *const head = calloc(n, sizeof *head);
    int32_t *const run = calloc(n_runs, sizeof *run);
    int status = head && run ? 0 : kvd_no_memory(err, what, n * sizeof *head);
    for (size_t i = 0; !status && i < n; i++) {
        const int layer = (int)(i / heads), h = (int)(i % heads);
        const kvd_attn_map *const map = &k->method.cache->layer[layer].map;
        for (int side = 0; k->group_of[layer] >= 0 && side < 2; side++) {
            const layer_group *const g = &k->group[k->group_of[layer]];
            const size_t row = ((size_t)(layer - g->first) * heads + (size_t)h) * d;
            head[i].latent[side] = side ? (int32_t)(KVD_PAGE_TOKENS * g->rank[0]) : 0;
            head[i].rank[side] = (int32_t)g->rank[side];
            head[i].matrix[side] =
                (int32_t)((side ? g->wide * g->rank[0] : 0) + row * (k->joint ? 8 : g->rank[side]));
            head[i].page[side] = map->kv_offset[h] + (side ? KVD_PAGE_TOKENS * map->d_qk[h] : 0);
        }
    }
    for (size_t i = 0; !status && i < n_runs; i++)
        run[i] = (int32_t)(8 * i * KVD_PAGE_TOKENS);
    status = status || !(k->head = kvd_device_new(&k->memory, n * sizeof *head, what, err)) ||
             kvd_device_put(k->head, head, n * sizeof *head, what, err) ||
             !(k->run = kvd_device_new(&k->memory, n_runs * sizeof *run, what, err)) ||
             kvd_device_put(k->run, run, n_runs * sizeof *run, what, err);
    free(head);
    free(run);
    return status ? -1 : 0;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static int describe_group(xkv *k, int first, int n, kvd_err *err)
{
    layer_group *const g = &k->group[k->n_groups];
    *g = (layer_group){
        .first = first, .n = n, .wide = (size_t)n * row_of(k), .basis_at = k->basis_slot};
    for (int side = 0; side < 2; side++) {
        if (kvd_xkv_rank(&k->method.plan->layers_values, (kvd_side)side, k->method.cache->max_len,
                         g->wide, &g->rank[side], err))
            return -1;
        g->rank[side] = (g->rank[side] + 15) / 16 * 16;
        k->most_rank = larger(k->most_rank, g->rank[side]);
    }
    const size_t ranks = g->rank[0] + g->rank[1];
    for (int l = first; l < first + n; l++) {
        k->begin = k->begin < 0 && !has_window(k, l) ? l : k->begin;
        g->n_full += !has_window(k, l);
    }
    k->basis_slot += g->wide * ranks;
    k->wide = larger(k->wide, g->wide);
    k->ranks = larger(k->ranks, ranks);
    k->method.page_bytes +=
        KVD_PAGE_TOKENS * (ranks + (size_t)g->n_full * 2 * row_of(k)) * sizeof(uint16_t);
    k->n_groups++;
    return 0;
}

static int describe(xkv *k, kvd_err *err)
{
    const kvd_config *const c = k->method.cache->config;
    const kvd_plan *const p = k->method.plan;
    const size_t layers = (size_t)c->n_layers;
    k->begin = -1;
    k->joint = !k->method.cache->window && kvd_latent_joins(c->n_kv_heads, c->d_head);
    k->group = calloc(layers, sizeof *k->group);
    k->group_of = calloc(layers, sizeof *k->group_of);
    k->skips = calloc(layers, sizeof *k->skips);
    k->own = calloc(layers, sizeof *k->own);
    if (!k->group || !k->group_of || !k->skips || !k->own)
        return kvd_no_memory(err, what, layers * sizeof *k->group);
    for (int l = 0, n; l < c->n_layers; l += n) {
        n = p->layers->group(&p->layers_values, c, l);
        for (int i = l; i < l + n; i++)
            k->group_of[i] = n > 1 ? k->n_groups : -1;
        k->skips[l] = n == 1;
        if (n > 1 && describe_group(k, l, n, err))
            return -1;
    }
    k->method.skips = k->skips;
    k->method.slot_bytes = k->basis_slot * sizeof *k->basis;
    return 0;
}

static int check(const kvd_plan *plan, const kvd_paged_cache *c, kvd_err *err)
{
    const char *const name = plan->layers->info.name;
    return c->cosine && !c->hook.wants_raw && c->config->rope_dims &&
                   c->config->rope_dims < c->config->d_head
               ? kvd_fail(
                     err,
                     "'%s' in the CUDA engine: RoPE of all %d dimensions, the model's is of %d",
                     name, c->config->d_head, c->config->rope_dims)
               : 0;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (check(plan, cache, err))
        return -1;
    xkv *const k = calloc(1, sizeof *k);
    if (!k)
        return kvd_no_memory(err, what, sizeof *k);
    k->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .skips_windows = true,
                                 .anywhere = true,
                                 .whole_prompts = true,
                                 .attended_prompts = true,
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .merged = n_merged,
                                 .held = held,
                                 .bits = bits,
                                 .unseen = unseen,
                                 .append = append,
                                 .appended = appended,
                                 .attended = attended,
                                 .attended_window = attended,
                                 .free = release};
    k->w = cache->worker;
    cache->hook.wants_pre = cache->cosine && !cache->hook.wants_raw;
    *m = &k->method;
    if (describe(k, err))
        return -1;
    if (k->most_rank > KVD_LATENT_RANK_MAX)
        return kvd_fail(err, "'%s': the CUDA engine has ranks up to %d, not %zu",
                        plan->layers->info.name, KVD_LATENT_RANK_MAX, k->most_rank);
    return copy_tables(k, err) || make_solver(k, err) ? -1 : 0;
}

static bool runs(const kvd_plan *plan)
{
    return !plan->tokens;
}

static bool before_rope(const kvd_plan *plan)
{
    (void)plan;
    return true;
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

const kvd_gpu_kind kvd_gpu_xkv = {.computes = computes,
                                  .joined = "the KV heads of a layer share a basis",
                                  .runs = runs,
                                  .generates = runs,
                                  .before_rope = before_rope,
                                  .open = open_method};
