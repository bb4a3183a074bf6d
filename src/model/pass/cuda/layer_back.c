#include "model/pass/cuda/layer_back.h"

#include "model/pass/cuda/attention.h"
#include "model/pass/cuda/blocks_back.h"

static const char what[] = "backward pass";

int kvd_back_check(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                   unsigned stage, kvd_err *err)
{
    return kvd_cuda_check(kvd_gpu_check(x, n, width, stage, w->w.bad, w->w.stream), what, err);
}

static cudaDataType cuda_type(kvd_dtype type)
{
    return type == KVD_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

/* Computes `from` [n][in] W^T. Writes the product to `to` [n][out] or, if `add`, adds it to
 * `to`. */
static int forward_product(const kvd_gpu_backward *w, const void *from, const void *matrix,
                           size_t n, size_t in, size_t out, void *to, kvd_dtype to_type, int add,
                           kvd_err *err)
{
    const cudaDataType type = cuda_type(w->w.weights.type);
    const float one = 1, beta = add ? 1 : 0;
    return kvd_cublas_check(w->w.lib->cublasGemmEx(w->w.blas, CUBLAS_OP_T, CUBLAS_OP_N, (int)out,
                                                   (int)n, (int)in, &one, matrix, type, (int)in,
                                                   from, type, (int)in, &beta, to,
                                                   cuda_type(to_type), (int)out, CUBLAS_COMPUTE_32F,
                                                   CUBLAS_GEMM_DEFAULT),
                            what, err);
}

int kvd_back_product(const kvd_gpu_backward *w, const void *dy, const void *matrix, size_t n,
                     size_t in, size_t out, float *dx, int add, kvd_err *err)
{
    const cudaDataType type = cuda_type(w->w.weights.type);
    const float one = 1, beta = add ? 1 : 0;
    return kvd_cublas_check(
        w->w.lib->cublasGemmEx(w->w.blas, CUBLAS_OP_N, CUBLAS_OP_N, (int)in, (int)n, (int)out, &one,
                               matrix, type, (int)in, dy, type, (int)out, &beta, dx, CUDA_R_32F,
                               (int)in, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        what, err);
}

const void *kvd_back_narrow(const kvd_gpu_backward *w, const float *x, size_t n, size_t width,
                            kvd_err *err)
{
    const kvd_dtype type = w->w.weights.type;
    if (type == KVD_F32)
        return x;
    return kvd_cuda_check(kvd_gpu_convert(KVD_F32, x, type, w->narrowed, n * width, w->w.stream),
                          what, err)
               ? NULL
               : w->narrowed;
}

/* Adds the vector `bias` to each row of x. Then writes the rows to y, normalised by norm number
 * `which` of the layer, or unchanged if `which` is -1. */
static int norm(const kvd_gpu_backward *w, float *x, const float *bias, const kvd_gpu_layer *l,
                int which, size_t n, void *y, kvd_dtype type, kvd_err *err)
{
    const kvd_config *c = &w->w.config;
    const float *gain = which < 0 ? NULL : l->norm[which],
                *add = which < 0 ? NULL : l->norm_bias[which];
    return kvd_cuda_check(kvd_gpu_norm(c->norm, type, x, bias, gain, add, c->norm_eps, n, w->d, y,
                                       w->w.stage, w->w.bad, w->w.stream),
                          what, err);
}

int kvd_back_norm(const kvd_gpu_backward *w, const float *x, const float *gain, size_t n,
                  const float *dy, float *dx, int add, kvd_err *err)
{
    const kvd_config *c = &w->w.config;
    return kvd_cuda_check(
        kvd_gpu_norm_back(c->norm, x, gain, c->norm_eps, n, w->d, dy, dx, add, w->w.stream), what,
        err);
}

static size_t width_gate_up(const kvd_gpu_backward *w)
{
    return w->w.config.activation == KVD_SWIGLU ? 2 * w->ffn : w->ffn;
}

static int gate_up(const kvd_gpu_backward *w, const kvd_gpu_layer *l, const void *in, size_t n,
                   kvd_err *err)
{
    return forward_product(w, in, l->gate_up, n, w->d, width_gate_up(w), w->w.wide,
                           w->w.weights.type, 0, err);
}

/* Turns dy, the gradient of the feed-forward block's output, into d_in, the gradient of the block's
 * input. */
static int feed_forward_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n,
                             const float *dy, float *d_in, int add, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const void *const narrowed = kvd_back_narrow(w, dy, n, w->d, err);
    return kvd_status(
        !narrowed || kvd_back_product(w, narrowed, l->down, n, w->ffn, w->d, w->d_ffn, 0, err) ||
        kvd_cuda_check(kvd_gpu_activate_back(g->config.activation, g->weights.type, g->wide,
                                             l->bias_gate_up, n, w->ffn, w->d_ffn, g->stream),
                       what, err) ||
        kvd_back_product(w, g->wide, l->gate_up, n, w->d, width_gate_up(w), d_in, add, err));
}

static int output_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const void *const narrowed = kvd_back_narrow(w, w->dx, n, w->d, err);
    return kvd_status(!narrowed ||
                      kvd_back_product(w, narrowed, l->o, n, w->width_q, w->d, w->d_o, 0, err));
}

static int add_attention(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    return forward_product(w, w->w.narrow, l->o, n, w->width_q, w->d, w->w.x, KVD_F32, 1, err);
}

/* Backward pass of y = x1 + ffn(norm(x1)), with x1 = x + W_O o and attention output o. Turns w->dx
 * from the gradient of y into that of x1, and writes the gradient of o to w->d_o. */
static int behind_before(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    return kvd_status(
        add_attention(w, l, n, err) ||
        norm(w, w->w.x, l->bias_o, l, 1, n, w->y, w->w.weights.type, err) ||
        gate_up(w, l, w->y, n, err) || feed_forward_back(w, l, n, w->dx, w->dy, 0, err) ||
        kvd_back_norm(w, w->w.x, l->norm[1], n, w->dy, w->dx, 1, err) || output_back(w, l, n, err));
}

/* Backward pass of y = x + W_O o + ffn(norm(x)), with attention output o. Turns w->dx from the
 * gradient of y into that of x, except for the path through o. Writes the gradient of o to
 * w->d_o. */
static int behind_parallel(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n,
                           kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const int which = g->config.shared_norm ? 0 : 1;
    return output_back(w, l, n, err) || gate_up(w, l, g->second ? g->second : g->normed, n, err) ||
                   feed_forward_back(w, l, n, w->dx, w->dy, 0, err) ||
                   kvd_back_norm(w, g->x, l->norm[which], n, w->dy, w->dx, 1, err)
               ? -1
               : 0;
}

/* Backward pass of the layer y = norm2(s + ffn(s)), with s = norm1(x + W_O o). Turns w->dx from the
 * gradient of y into the gradient of x for constant o. Writes the gradient of the attention output
 * o to w->d_o. */
static int behind_after(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const kvd_dtype type = g->weights.type;
    float *const s = w->between;
    if (add_attention(w, l, n, err) || norm(w, g->x, l->bias_o, l, 0, n, s, KVD_F32, err) ||
        norm(w, s, NULL, l, -1, n, w->y, type, err) || gate_up(w, l, w->y, n, err) ||
        kvd_cuda_check(kvd_gpu_activate(g->config.activation, type, g->wide, l->bias_gate_up, n,
                                        w->ffn, w->d_ffn, g->stream),
                       what, err) ||
        forward_product(w, w->d_ffn, l->down, n, w->ffn, w->d, s, KVD_F32, 1, err) ||
        (l->bias_down && norm(w, s, l->bias_down, l, -1, n, NULL, type, err)))
        return -1;
    return kvd_status(kvd_back_norm(w, s, l->norm[1], n, w->dx, w->dy, 0, err) ||
                      feed_forward_back(w, l, n, w->dy, w->dy, 1, err) ||
                      kvd_back_norm(w, g->x, l->norm[0], n, w->dy, w->dx, 0, err) ||
                      output_back(w, l, n, err));
}

int kvd_gpu_behind_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, size_t n, kvd_err *err)
{
    switch (w->w.config.order) {
    case KVD_ORDER_BEFORE:
        return behind_before(w, l, n, err);
    case KVD_ORDER_PARALLEL:
        return behind_parallel(w, l, n, err);
    default:
        return behind_after(w, l, n, err);
    }
}

int kvd_gpu_attention_back(const kvd_gpu_backward *w, const kvd_batch *b, int layer, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const kvd_config *c = &g->config;
    const size_t n = b->offset[b->n_sequences], bytes = kvd_dtype_bytes(g->weights.type);
    const char *const qkv = g->qkv;
    const kvd_gpu_attention_back_in in = {.n_sequences = b->n_sequences,
                                          .longest = kvd_batch_longest(b),
                                          .window = kvd_config_window(c, layer),
                                          .offset = b->offset,
                                          .n_heads = c->n_heads,
                                          .n_kv_heads = c->n_kv_heads,
                                          .d_head = c->d_head,
                                          .type = g->weights.type,
                                          .q = qkv,
                                          .k = qkv + w->width_q * bytes,
                                          .v = qkv + (w->width_q + w->width_k) * bytes,
                                          .ld = w->width,
                                          .d_o = kvd_back_narrow(w, w->d_o, n, w->width_q, err),
                                          .dq = w->d_qkv,
                                          .dk = w->d_qkv + w->width_q,
                                          .dv = w->d_qkv + w->width_q + w->width_k,
                                          .ld_d = w->width,
                                          .stream = g->stream,
                                          .lib = g->lib,
                                          .blas = g->blas};
    return kvd_status(
        !in.d_o ||
        kvd_cuda_check(cudaMemsetAsync(w->d_qkv, 0, n * w->width * sizeof *w->d_qkv, g->stream),
                       what, err) ||
        kvd_gpu_attend_back(&in, w->scratch, err));
}

int kvd_gpu_before_back(const kvd_gpu_backward *w, const kvd_gpu_layer *l, int layer, size_t n,
                        bool last, unsigned stage, kvd_err *err)
{
    const kvd_gpu_worker *g = &w->w;
    const kvd_config *c = &g->config;
    const kvd_gpu_qkv_back_args a = {.type = g->weights.type,
                                     .n_heads = c->n_heads,
                                     .n_kv_heads = c->n_kv_heads,
                                     .d_head = c->d_head,
                                     .product = w->product,
                                     .bias = l->bias_qkv,
                                     .gain_q = l->norm_q,
                                     .gain_k = l->norm_k,
                                     .eps = c->norm_eps,
                                     .cosine = g->cosine,
                                     .sine = g->sine,
                                     .rope_row = g->rope_row,
                                     .layout = c->rope_layout,
                                     .d = w->d_qkv,
                                     .d_pre = w->d_pre,
                                     .d_raw = w->d_raw};
    if ((w->product && forward_product(w, g->normed, l->qkv, n, w->d, w->width, w->product,
                                       g->weights.type, 0, err)) ||
        kvd_cuda_check(kvd_gpu_qkv_back(&a, n, stage, g->bad, g->stream), what, err))
        return -1;
    if (last)
        return 0;
    const void *const narrowed = kvd_back_narrow(w, w->d_raw, n, w->width, err);
    if (!narrowed)
        return -1;
    const int after = c->order == KVD_ORDER_AFTER;
    if (kvd_back_product(w, narrowed, l->qkv, n, w->d, w->width, after ? w->dx : w->dy, after,
                         err) ||
        (!after && kvd_back_norm(w, w->x + (size_t)layer * g->max_tokens * w->d, l->norm[0], n,
                                 w->dy, w->dx, 1, err)))
        return -1;
    return kvd_back_check(w, w->dx, n, w->d, stage + 1, err);
}
