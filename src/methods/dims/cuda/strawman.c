/*
 * Method strawman in the CUDA engine (see methods/dims/strawman.c). Phase compress: Gram matrices
 * of K and V by cuBLAS, their eigenvectors by cuSOLVER. Phase rotate: products with the leading
 * eigenvectors. Phase restore: a decode step rebuilds K and V of the whole layer.
 */
#include "methods/cuda/paged_cache.h"

#include <stdlib.h>

#include "common/cuda/libraries.h"
#include "methods/dims/cuda/latent_store.h"
#include "model/checkpoint/cuda/random.h"

static const char what[] = "the strawman's decompositions";

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    /*
     * width: number of kept dimensions; rank: `width` rounded up to a multiple of 16; n: number of
     * KV heads times 2 (K and V).
     */
    int width, rank, n;
    /* Device array [slots][n_layers][n][d_head][rank] of projection matrices, those of K first. */
    uint16_t *matrix;
    /* Device array [max_tokens][n][d_head] of K and V of the prompts. */
    uint16_t *rows;
    /* Device array [max_tokens][n][rank] of K and V of the prompts after projection. */
    uint16_t *cut;
    float *gram, *value;
    const kvd_cusolver *lib;
    cusolverDnHandle_t solver;
    cusolverDnParams_t params;
    void *work, *host_work;
    size_t work_bytes, host_bytes;
    /* Status of the n eigenvalue decompositions of a layer, on the device. */
    int *info;
    /* Status of all eigenvalue decompositions, in pinned host memory, [max_slices][n_layers][n]. */
    int *host_info;
    size_t prompts; /* number of prompts in the running iteration */
} strawman;

static strawman *self_of(kvd_gpu_method *m)
{
    return (strawman *)(void *)m;
}

static int solved(cusolverStatus_t s, kvd_err *err)
{
    return s == CUSOLVER_STATUS_SUCCESS ? 0 : kvd_fail(err, "%s: cuSOLVER status %d", what, (int)s);
}

static size_t layer_elements(const strawman *s)
{
    return (size_t)s->n * (size_t)s->method.cache->config->d_head * (size_t)s->rank;
}

/* Writes the eigenvectors of X^T X of every head to s->gram. x is X [tokens][n][d] of all heads. */
static int decompose(strawman *s, const uint16_t *x, size_t tokens, size_t prompt, int layer,
                     cudaStream_t stream, kvd_err *err)
{
    const int d = s->method.cache->config->d_head, ld = s->n * d;
    const size_t at =
        (prompt * (size_t)s->method.cache->config->n_layers + (size_t)layer) * (size_t)s->n;
    const float one = 1, zero = 0;
    return kvd_cublas_check(s->w->lib->cublasGemmStridedBatchedEx(
                                s->w->blas, CUBLAS_OP_N, CUBLAS_OP_T, d, d, (int)tokens, &one, x,
                                CUDA_R_16BF, ld, d, x, CUDA_R_16BF, ld, d, &zero, s->gram,
                                CUDA_R_32F, d, (long long)d * d, s->n, CUBLAS_COMPUTE_32F,
                                CUBLAS_GEMM_DEFAULT),
                            what, err) ||
                   solved(s->lib->cusolverDnXsyevBatched(
                              s->solver, s->params, CUSOLVER_EIG_MODE_VECTOR,
                              CUBLAS_FILL_MODE_UPPER, d, CUDA_R_32F, s->gram, d, CUDA_R_32F,
                              s->value, CUDA_R_32F, s->work, s->work_bytes, s->host_work,
                              s->host_bytes, s->info, s->n),
                          err) ||
                   kvd_cuda_check(cudaMemcpyAsync(s->host_info + at, s->info,
                                                  (size_t)s->n * sizeof *s->info,
                                                  cudaMemcpyDeviceToHost, stream),
                                  what, err)
               ? -1
               : 0;
}

/*
 * Multiplies x [tokens][n][d] by the matrices `a` and writes the products to `to`
 * [tokens][n][rank].
 */
static int rotate(const strawman *s, const uint16_t *x, size_t tokens, const uint16_t *a,
                  uint16_t *to, kvd_err *err)
{
    const int d = s->method.cache->config->d_head, r = s->rank;
    const float one = 1, zero = 0;
    /* cuBLAS takes row-major matrices as their transposes: to^T [r][tokens] = A^T x^T. */
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
           (size_t)layer * layer_elements(s);
}

static int compress(strawman *s, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_step_batch *const b = c->batch;
    const size_t d = (size_t)c->config->d_head, first = r->steps;
    for (size_t i = 0; i < r->prompts; i++) {
        const size_t start = (size_t)b->host.start[first + i],
                     tokens = (size_t)b->host.q_len[first + i];
        if (decompose(s, s->rows + start * (size_t)s->n * d, tokens, i, r->layer, r->stream, err) ||
            kvd_cuda_check(kvd_latent_leading(s->gram, s->n, (int32_t)d, s->width, s->rank,
                                              matrix_of(s, r->layer, first + i), r->stream),
                           what, err))
            return -1;
    }
    if (kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, r->stream, err))
        return -1;
    for (size_t i = 0; i < r->prompts; i++) {
        const size_t start = (size_t)b->host.start[first + i],
                     tokens = (size_t)b->host.q_len[first + i];
        if (rotate(s, s->rows + start * (size_t)s->n * d, tokens, matrix_of(s, r->layer, first + i),
                   s->cut + start * (size_t)s->n * (size_t)s->rank, err))
            return -1;
    }
    return 0;
}

/* Prompts attend to K and V without projection, so K and V are projected after attention. */
static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    strawman *const s = self_of(m);
    const kvd_paged_cache *const c = m->cache;
    if (!r->prompts)
        return 0;
    const kvd_latent_slices at = kvd_latent_store_slices(&s->store, true, r->prompts);
    kvd_latent_put_args put = {.s = at,
                               .latent = s->cut,
                               .ld_latent = (size_t)s->n * (size_t)s->rank,
                               .d_head = c->config->d_head};
    kvd_latent_store_describe(&s->store, r->layer, &put);
    return kvd_cuda_check(kvd_latent_gather(&at, s->store.head + r->layer * c->share->n_kv_heads,
                                            c->share->n_kv_heads, c->config->d_head,
                                            kvd_paged_cache_pool(c, r->layer),
                                            (size_t)c->layer[r->layer].map.page_elements, s->rows,
                                            r->stream),
                          what, err) ||
                   compress(s, r, err) ||
                   kvd_cuda_check(kvd_latent_put(&put, r->stream), "append of what is cut", err) ||
                   kvd_clock_end(c->clock, KVD_PHASE_ROTATE, r->stream, err)
               ? -1
               : 0;
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const strawman *const s = self_of(m);
    if (!r->steps)
        return 0;
    const kvd_latent_restore_args a =
        kvd_latent_store_restored(&s->store, r->layer, false, r->steps);
    return kvd_cuda_check(kvd_latent_cut(&a, kvd_latent_store_pool(&s->store, r->layer), r->stream),
                          "rotation of a step", err) ||
                   kvd_clock_end(m->cache->clock, KVD_PHASE_ROTATE, r->stream, err) ||
                   kvd_cuda_check(kvd_latent_restore(&a, r->stream), "decompression", err) ||
                   kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err)
               ? -1
               : 0;
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    for (size_t i = it->n_steps; i < it->n_slices; i++)
        if (it->slice[i].before || !it->slice[i].emits)
            return kvd_fail(
                err,
                "request %u: %u tokens of a prompt after %u; strawman compresses a prompt in one "
                "piece",
                it->slice[i].request, it->slice[i].n, it->slice[i].before);
    self_of(m)->prompts = it->n_slices - it->n_steps;
    return 0;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    strawman *const s = self_of(m);
    const size_t layers = (size_t)m->cache->config->n_layers, each = layers * (size_t)s->n;
    for (size_t i = 0; i < s->prompts * each; i++)
        if (s->host_info[i])
            return kvd_fail(err, "layer %zu, request %u: eigenvalues did not converge, info %d",
                            i % each / (size_t)s->n, it->slice[it->n_steps + i / each].request,
                            s->host_info[i]);
    kvd_latent_store_note(&s->store, it);
    return 0;
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    strawman *const s = self_of(m);
    const size_t n = slots * s->store.matrix_slot;
    /* Random matrices let decode steps be timed for prompts that were never computed. */
    const kvd_random_tensor some = kvd_random_tensor_of(1, what, 0.1F, 0);
    if (!(s->matrix = kvd_device_new(&s->store.memory, n * sizeof *s->matrix, what, err)) ||
        kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &some, 0, n, s->matrix, stream), what, err))
        return -1;
    for (int l = 0; l < m->cache->config->n_layers; l++)
        s->store.layer[l].up = s->matrix + (size_t)l * layer_elements(s);
    return kvd_latent_store_make(&s->store, pages, slots, stream, err);
}

static double held(const kvd_gpu_method *m)
{
    return ((const strawman *)(const void *)m)->store.held;
}

static void release(kvd_gpu_method *m)
{
    strawman *const s = self_of(m);
    if (s->params)
        (void)s->lib->cusolverDnDestroyParams(s->params);
    if (s->solver)
        (void)s->lib->cusolverDnDestroy(s->solver);
    (void)cudaFreeHost(s->host_info);
    free(s->host_work);
    kvd_latent_store_release(&s->store);
    free(s);
}

static int open_solver(strawman *s, kvd_err *err)
{
    const int64_t d = s->method.cache->config->d_head;
    if (!(s->lib = kvd_cusolver_load(err)))
        return -1;
    return solved(s->lib->cusolverDnCreate(&s->solver), err) ||
                   solved(s->lib->cusolverDnCreateParams(&s->params), err) ||
                   solved(s->lib->cusolverDnSetStream(s->solver, s->w->stream), err) ||
                   solved(s->lib->cusolverDnXsyevBatched_bufferSize(
                              s->solver, s->params, CUSOLVER_EIG_MODE_VECTOR,
                              CUBLAS_FILL_MODE_UPPER, d, CUDA_R_32F, NULL, d, CUDA_R_32F, NULL,
                              CUDA_R_32F, &s->work_bytes, &s->host_bytes, s->n),
                          err)
               ? -1
               : 0;
}

static int make_arrays(strawman *s, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    kvd_device_memory *const m = &s->store.memory;
    const size_t d = (size_t)c->config->d_head, n = (size_t)s->n, tokens = c->batch->max_tokens;
    const size_t info =
        c->batch->max_slices * (size_t)c->config->n_layers * n * sizeof *s->host_info;
    if (!(s->host_work = malloc(s->host_bytes ? s->host_bytes : 1)))
        return kvd_no_memory(err, what, s->host_bytes);
    return (s->rows = kvd_device_new(m, tokens * n * d * sizeof *s->rows, what, err)) &&
                   (s->cut = kvd_device_new(m, tokens * n * (size_t)s->rank * sizeof *s->cut, what,
                                            err)) &&
                   (s->gram = kvd_device_new(m, n * d * d * sizeof *s->gram, what, err)) &&
                   (s->value = kvd_device_new(m, n * d * sizeof *s->value, what, err)) &&
                   (s->info = kvd_device_new(m, n * sizeof *s->info, what, err)) &&
                   (s->work = kvd_device_new(m, s->work_bytes, what, err)) &&
                   !kvd_cuda_check(cudaMallocHost((void **)&s->host_info, info), what, err)
               ? 0
               : -1;
}

static int open_strawman(strawman *s, kvd_err *err)
{
    kvd_paged_cache *const c = s->method.cache;
    const int kv = c->share->n_kv_heads, d = c->config->d_head;
    if (kvd_latent_store_begin(&s->store, c, 1, err))
        return -1;
    s->n = 2 * kv;
    s->width = (int)s->method.plan->channels->width(&s->method.plan->channels_values, (size_t)d);
    s->rank = (s->width + 15) / 16 * 16;
    for (int l = 0; l < c->config->n_layers; l++)
        for (int side = 0; side < 2; side++)
            for (int g = 0; g < kv; g++) {
                s->store.layer[l].rank[side][g] = s->rank;
                s->store.layer[l].matrix[side][g] = (side * kv + g) * d * s->rank;
            }
    s->store.of_slots = true;
    s->store.matrix_slot = (size_t)c->config->n_layers * layer_elements(s);
    s->store.slot_bytes = s->method.slot_bytes = s->store.matrix_slot * sizeof *s->matrix;
    if (kvd_latent_store_init(&s->store, s->w->stream, err) || open_solver(s, err) ||
        make_arrays(s, err))
        return -1;
    s->method.page_bytes = s->store.page_bytes;
    return 0;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *c, kvd_gpu_method **m, kvd_err *err)
{
    if (plan->tokens)
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
                                 .appended = appended,
                                 .attended = attended,
                                 .free = release};
    s->w = c->worker;
    /* The cache releases the method, even after a failure. */
    *m = &s->method;
    return open_strawman(s, err);
}

static bool by_head(const kvd_plan *plan)
{
    return !plan->tokens;
}

const kvd_gpu_kind kvd_gpu_strawman = {.by_head = by_head, .open = open_method};
