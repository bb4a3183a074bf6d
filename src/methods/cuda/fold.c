#include "methods/cuda/fold.h"

#include <stdlib.h>
#include <string.h>

static const char what[] = "folding V into the weights";

/* Computes the row-major matrix product c [n][m] = b a. op_a and op_b may transpose a and b. */
static int multiply(const kvd_gpu_worker *w, int m, int n, int k, const void *a, int lda,
                    const void *b, int ldb, cublasOperation_t op_a, cublasOperation_t op_b, void *c,
                    int ldc, kvd_err *err)
{
    const float one = 1, zero = 0;
    return kvd_cublas_check(w->lib->cublasGemmEx(w->blas, op_a, op_b, m, n, k, &one, a, CUDA_R_16BF,
                                                 lda, b, CUDA_R_16BF, ldb, &zero, c, CUDA_R_16BF,
                                                 ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                            what, err);
}

int kvd_gpu_fold_product(const kvd_gpu_worker *w, int rows, int r, int columns, const void *a,
                         const void *from, void *to, kvd_err *err)
{
    return multiply(w, columns, r, rows, from, columns, a, r, CUBLAS_OP_N, CUBLAS_OP_T, to, columns,
                    err);
}

bool kvd_gpu_fold_packs(const kvd_config *c)
{
    const bool whole = !c->rope_dims || c->rope_dims == c->d_head;
    return !c->bias_qkv && !c->qk_norm && (whole || c->rope_layout == KVD_ROPE_INTERLEAVED);
}

/* Replaces each KV head's weights W_V by A^T W_V [d_v][d_model], where A [d][d_v] projects V.
 * `temp` [d][d_model] is scratch memory. */
static int fold_rows(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c,
                     uint16_t *temp, kvd_err *err)
{
    const int d = w->config.d_head, model = w->config.d_model, kv = w->weights.share.n_kv_heads;
    const size_t width = (size_t)model,
                 before = (size_t)(w->weights.share.n_heads + kv) * (size_t)d;
    uint16_t *const v = (uint16_t *)l->qkv + before * width;
    const uint16_t *a = c->a_v;
    const bool packed = kvd_gpu_fold_packs(&w->config);
    size_t to = 0;
    for (int g = 0; g < kv; g++) {
        const int d_v = c->map.d_v[g];
        const size_t kept = (size_t)d_v * width, whole = (size_t)d * width;
        /* Replaces the V weights W [d][model] of KV head g by A^T W, where A [d][d_v] projects
         * V. */
        if (kvd_gpu_fold_product(w, d, d_v, model, a, v + (size_t)g * whole, temp, err) ||
            kvd_queue_copy(v + to, temp, kept * sizeof *v, w->stream, what, err) ||
            (!packed && kvd_cuda_check(cudaMemsetAsync(v + to + kept, 0, (whole - kept) * sizeof *v,
                                                       w->stream),
                                       what, err)))
            return -1;
        a += (size_t)d * (size_t)d_v;
        to += packed ? kept : whole;
    }
    l->n_qkv = (int)(before + to / width);
    return 0;
}

int kvd_gpu_fold_columns(const kvd_gpu_worker *w, kvd_gpu_layer *l, const kvd_cache_layer *c,
                         void *to, kvd_err *err)
{
    uint16_t *const temp = to;
    const int d = w->config.d_head, model = w->config.d_model, heads = w->weights.share.n_heads;
    const uint16_t *b = c->b_v, *const o = l->o;
    for (int h = 0; h < heads; h++) {
        const int g = h / c->map.group, d_v = c->map.d_v[g];
        if (h > 0 && h % c->map.group == 0)
            b += (size_t)c->map.d_v[g - 1] * (size_t)d;
        /* Computes c = B W_O^T with B [d_v][d] and W_O^T [d][model]. */
        if (multiply(w, d_v, model, d, b, d, o + (size_t)h * (size_t)d, heads * d, CUBLAS_OP_T,
                     CUBLAS_OP_N, temp + c->map.o_offset[h], c->map.o_pitch, err))
            return -1;
    }
    l->n_o = c->map.o_pitch;
    return kvd_queue_copy(l->o, temp, (size_t)model * (size_t)c->map.o_pitch * sizeof *temp,
                          w->stream, what, err);
}

/* Replaces each KV head's bias b_V by A^T b_V, followed by zeros, where A [d][d_v] projects V. */
static int fold_bias(const kvd_gpu_worker *w, const kvd_gpu_layer *l, const kvd_dims_head *head,
                     kvd_err *err)
{
    const size_t d = (size_t)w->config.d_head, kv = (size_t)w->weights.share.n_kv_heads, n = kv * d;
    float *const bias = l->bias_qkv + ((size_t)w->weights.share.n_heads + kv) * d;
    float *const x = malloc(2 * n * sizeof *x);
    if (!x)
        return kvd_no_memory(err, what, 2 * n * sizeof *x);
    int status =
        kvd_cuda_check(cudaMemcpy(x, bias, n * sizeof *x, cudaMemcpyDeviceToHost), what, err);
    for (size_t g = 0; g < kv && !status; g++) {
        const size_t m = (size_t)head[g].d_v;
        for (size_t j = 0; j < d; j++) {
            double s = j < m && !head[g].a_v ? (double)x[g * d + j] : 0;
            for (size_t i = 0; j < m && head[g].a_v && i < d; i++)
                s += (double)x[g * d + i] * (double)head[g].a_v[i * m + j];
            x[n + g * d + j] = (float)s;
        }
    }
    if (!status)
        status = kvd_device_put(bias, x + n, n * sizeof *x, what, err);
    free(x);
    return status;
}

int kvd_gpu_fold(kvd_gpu_worker *w, const kvd_dims *dims, const kvd_cache_layer *layer,
                 kvd_err *err)
{
    const size_t model = (size_t)w->config.d_model, d = (size_t)w->config.d_head;
    const size_t heads = (size_t)w->weights.share.n_heads;
    kvd_device_memory memory = {0};
    uint16_t *const temp =
        dims ? kvd_device_new(&memory, model * heads * d * sizeof *temp, what, err) : NULL;
    kvd_err second;
    int status = dims && !temp ? -1 : 0;
    for (int l = 0; dims && l < w->config.n_layers && !status; l++) {
        kvd_gpu_layer *const to = &w->weights.layer[l];
        const kvd_dims_head *const head =
            &dims->head[l * dims->n_kv_heads + w->weights.share.first_kv_head];
        if (!layer[l].a_v)
            continue;
        status = fold_rows(w, to, &layer[l], temp, err) ||
                         kvd_gpu_fold_columns(w, to, &layer[l], temp, err) ||
                         (to->bias_qkv && fold_bias(w, to, head, err))
                     ? -1
                     : 0;
    }
    if (kvd_cuda_check(cudaStreamSynchronize(w->stream), what, status ? &second : err))
        status = -1;
    kvd_device_release(&memory);
    return status;
}
