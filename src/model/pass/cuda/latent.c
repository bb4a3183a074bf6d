/* Multi-head latent attention of DeepSeek-V2 on the GPU: one cached latent serves all heads. */
#include "model/pass/latent.h"

#include "model/pass/cuda/layer.h"

static size_t query_width(const kvd_config *c)
{
    return (size_t)(c->d_nope + c->rope_dims);
}

kvd_gpu_latent_sizes kvd_gpu_latent_sizes_of(const kvd_config *c, kvd_dtype type)
{
    const size_t bytes = kvd_dtype_bytes(type), heads = (size_t)c->n_heads,
                 rank = (size_t)c->q_rank, products = (rank + (size_t)c->d_head) * sizeof(float),
                 values = heads * (size_t)c->d_value * bytes;
    if (!c->latent)
        return (kvd_gpu_latent_sizes){0, 0};
    return (kvd_gpu_latent_sizes){.wide = products > values ? products : values,
                                  .narrow = (heads * query_width(c) + rank) * bytes};
}

/* column-major product of each head's matrices, c [m][n] = op(a) [m][k] b [k][n] */
typedef struct {
    cublasOperation_t op;
    size_t m, n, k;
    const char *a, *b;
    char *c;
    size_t lda, ldb, ldc, stride_a, stride_b, stride_c;
} per_head;

static bool aligned(const per_head *p, size_t bytes)
{
    const size_t at = (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->c,
                 steps = p->lda | p->ldb | p->ldc | p->stride_a | p->stride_b | p->stride_c;
    return (at | steps * bytes) % 16 == 0;
}

/* Computes a product for each head: in one cuBLAS call for all heads if addresses and strides are
 * multiples of 16 bytes, else in one call per head. */
static int multiply(const kvd_gpu_worker *w, const per_head *p, kvd_gpu_phase phase, kvd_err *err)
{
    const kvd_dtype type = w->weights.type;
    const cudaDataType cuda = type == KVD_F32 ? CUDA_R_32F : CUDA_R_16BF;
    const size_t bytes = kvd_dtype_bytes(type), heads = (size_t)w->config.n_heads;
    const size_t together = aligned(p, bytes) ? heads : 1;
    const float one = 1, zero = 0;
    for (size_t h = 0; h < heads; h += together)
        if (kvd_cublas_check(
                w->lib->cublasGemmStridedBatchedEx(
                    w->blas, p->op, CUBLAS_OP_N, (int)p->m, (int)p->n, (int)p->k, &one,
                    p->a + h * p->stride_a * bytes, cuda, (int)p->lda, (long long)p->stride_a,
                    p->b + h * p->stride_b * bytes, cuda, (int)p->ldb, (long long)p->stride_b,
                    &zero, p->c + h * p->stride_c * bytes, cuda, (int)p->ldc,
                    (long long)p->stride_c, (int)together, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                kvd_gpu_phase_name(phase), err))
            return -1;
    return kvd_gpu_launched(w, cudaSuccess, phase, err);
}

static int raw_queries(kvd_gpu_worker *w, const kvd_gpu_latent *l, size_t n, unsigned stage,
                       kvd_err *err)
{
    const kvd_config *const c = &w->config;
    const kvd_dtype type = w->weights.type;
    const size_t d = (size_t)c->d_model, rank = (size_t)c->q_rank,
                 width = (size_t)c->n_heads * query_width(c);
    void *const factor = (char *)w->narrow + w->max_tokens * width * kvd_dtype_bytes(type);
    if (rank == 0)
        return kvd_gpu_product(w, w->normed, l->q, type, n, d, width, w->narrow, type, 0,
                               KVD_GPU_QKV, err);
    return kvd_status(
        kvd_gpu_product(w, w->normed, l->q_down, type, n, d, rank, w->wide, KVD_F32, 0, KVD_GPU_QKV,
                        err) ||
        kvd_gpu_launched(w,
                         kvd_gpu_norm(KVD_NORM_RMS, type, w->wide, NULL, l->norm_q_down, NULL,
                                      KVD_LATENT_EPS, n, rank, factor, stage, w->bad, w->stream),
                         KVD_GPU_NORM, err) ||
        kvd_gpu_product(w, factor, l->q, type, n, rank, width, w->narrow, type, 0, KVD_GPU_QKV,
                        err));
}

/* Multiplies the part of each query without RoPE by W_UK, the key part of the latent's up
 * projection. */
static int absorb_keys(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_config *const c = &w->config;
    const size_t heads = (size_t)c->n_heads, latent = (size_t)c->latent,
                 bytes = kvd_dtype_bytes(w->weights.type);
    const per_head p = {.op = CUBLAS_OP_N,
                        .m = latent,
                        .n = n,
                        .k = (size_t)c->d_nope,
                        .a = l->latent.up,
                        .lda = latent,
                        .stride_a = (size_t)(c->d_nope + c->d_value) * latent,
                        .b = w->narrow,
                        .ldb = heads * query_width(c),
                        .stride_b = query_width(c),
                        .c = (char *)w->qkv + (size_t)c->rope_dims * bytes,
                        .ldc = (size_t)l->n_qkv,
                        .stride_c = (size_t)c->d_head};
    return multiply(w, &p, KVD_GPU_QKV, err);
}

int kvd_gpu_latent_project(kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, unsigned stage,
                           kvd_err *err)
{
    const kvd_config *const c = &w->config;
    float *const down = (float *)w->wide + w->max_tokens * (size_t)c->q_rank;
    const kvd_gpu_latents rows = {.type = w->weights.type,
                                  .n_heads = c->n_heads,
                                  .d_head = c->d_head,
                                  .rope_dims = c->rope_dims,
                                  .d_nope = c->d_nope,
                                  .down = down,
                                  .gain = l->latent.norm,
                                  .eps = KVD_LATENT_EPS,
                                  .q_raw = w->narrow,
                                  .qkv = w->qkv};
    return kvd_status(
        raw_queries(w, &l->latent, n, stage, err) || absorb_keys(w, l, n, err) ||
        kvd_gpu_product(w, w->normed, l->latent.down, w->weights.type, n, (size_t)c->d_model,
                        (size_t)c->d_head, down, KVD_F32, 0, KVD_GPU_QKV, err) ||
        kvd_gpu_launched(w, kvd_gpu_latent_rows(&rows, n, w->stream), KVD_GPU_QKV, err));
}

int kvd_gpu_latent_values(const kvd_gpu_worker *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_config *const c = &w->config;
    const size_t heads = (size_t)c->n_heads, latent = (size_t)c->latent, d = (size_t)c->d_head,
                 value = (size_t)c->d_value, nope = (size_t)c->d_nope,
                 bytes = kvd_dtype_bytes(w->weights.type);
    const per_head p = {.op = CUBLAS_OP_T,
                        .m = value,
                        .n = n,
                        .k = latent,
                        .a = (const char *)l->latent.up + nope * latent * bytes,
                        .lda = latent,
                        .stride_a = (nope + value) * latent,
                        .b = (const char *)w->narrow + (size_t)c->rope_dims * bytes,
                        .ldb = heads * d,
                        .stride_b = d,
                        .c = w->wide,
                        .ldc = heads * value,
                        .stride_c = value};
    return multiply(w, &p, KVD_GPU_O, err);
}
