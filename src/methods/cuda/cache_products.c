/* Attention of one layer by float32 matrix products, with heads padded to d_head dimensions. */
#include <stdlib.h>

#include "methods/cuda/cache_parts.h"
#include "methods/cuda/cache_rows.h"
#include "model/pass/cuda/blocks.h"

static const char what[] = "cache";

static float *floats(kvd_cache_products *p, size_t n, size_t width, kvd_err *err)
{
    return kvd_device_new(&p->memory, n * width * sizeof(float), what, err);
}

int kvd_cache_products_init(kvd_cache_products *p, const kvd_config *c, const kvd_gpu_share *share,
                            kvd_dtype pass, size_t max_tokens, size_t max_len, bool latents,
                            bool prompts, kvd_err *err)
{
    const size_t d = (size_t)c->d_head, n = max_tokens;
    const size_t width_q = (size_t)share->n_heads * d, width_k = (size_t)share->n_kv_heads * d;
    if (!p->scratch) {
        p->max_len = max_len;
        p->q_cut = floats(p, n, width_q, err);
        p->o_cut = floats(p, n, width_q, err);
        p->k_cut = floats(p, n, width_k, err);
        p->v_cut = floats(p, n, width_k, err);
        if (pass != KVD_F32) {
            p->q_wide = floats(p, n, width_q, err);
            p->k_wide = floats(p, n, width_k, err);
            p->v_wide = floats(p, n, width_k, err);
        }
        p->scratch = kvd_device_new(
            &p->memory, kvd_gpu_attend_scratch(KVD_F32, max_len, share->n_heads), what, err);
    }
    if (prompts && !p->exact)
        p->exact = floats(p, n, width_q, err);
    if (p->memory.status)
        return -1;
    return latents ? kvd_cache_latents_init(&p->latents, &p->memory, c, share, n, max_len, err) : 0;
}

void kvd_cache_products_release(kvd_cache_products *p)
{
    kvd_device_release(&p->memory);
    free(p->latents.host_row);
    *p = (kvd_cache_products){0};
}

int kvd_cache_product(const kvd_gpu_attention_in *in, const kvd_heads_product *a, kvd_err *err)
{
    const float one = 1, zero = 0;
    /* cuBLAS is column-major and computes the transpose: y^T [m][n] = matrix^T x^T. */
    return kvd_cublas_check(in->lib->cublasGemmStridedBatchedEx(
                                in->blas, CUBLAS_OP_N, CUBLAS_OP_N, a->m, (int)in->n_tokens, a->k,
                                &one, a->matrix, CUDA_R_32F, a->m, (long long)a->stride_matrix,
                                a->x, CUDA_R_32F, (int)a->ldx, (long long)a->stride_x, &zero, a->y,
                                CUDA_R_32F, (int)a->ldy, (long long)a->stride_y, a->batch,
                                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                            what, err);
}

static int project(const kvd_gpu_attention_in *in, kvd_head_rows x, int n_heads,
                   const float *matrix, float *y, kvd_err *err)
{
    const size_t d = (size_t)in->config->d_head;
    const int n_kv = in->share->n_kv_heads;
    const size_t group = (size_t)(n_heads / n_kv);
    for (size_t j = 0; j < group; j++) {
        const kvd_heads_product p = {.x = x.x + j * d,
                                     .ldx = x.ld,
                                     .stride_x = group * d,
                                     .k = (int)d,
                                     .matrix = matrix,
                                     .stride_matrix = d * d,
                                     .y = y + j * d,
                                     .ldy = (size_t)n_heads * d,
                                     .stride_y = group * d,
                                     .m = (int)d,
                                     .batch = n_kv};
        if (kvd_cache_product(in, &p, err))
            return -1;
    }
    return 0;
}

static int rounded(const kvd_gpu_attention_in *in, kvd_dtype from, const void *x, size_t ld,
                   kvd_dtype type, size_t width, float *to, kvd_err *err)
{
    return kvd_cuda_check(kvd_cache_round(from, x, ld, type, in->n_tokens, width, to, in->stream),
                          what, err);
}

/* Sets *out to x if x is float32, otherwise to a float32 copy in `wide`. */
static int widen(const kvd_gpu_attention_in *in, const void *x, size_t width, float *wide,
                 kvd_head_rows *out, kvd_err *err)
{
    *out = (kvd_head_rows){in->type == KVD_F32 ? x : wide, in->type == KVD_F32 ? in->ld : width};
    return in->type == KVD_F32 ? 0 : rounded(in, in->type, x, in->ld, KVD_F32, width, wide, err);
}

/* Projects K or V in *x with `matrix`, unless it is NULL, and rounds them to data type `type`. */
static int stored(const kvd_gpu_attention_in *in, kvd_head_rows *x, const float *matrix,
                  kvd_dtype type, float *cut, kvd_err *err)
{
    const size_t width = (size_t)in->share->n_kv_heads * (size_t)in->config->d_head;
    if (matrix && project(in, *x, in->share->n_kv_heads, matrix, cut, err))
        return -1;
    if (matrix)
        *x = (kvd_head_rows){cut, width};
    if (type != KVD_F32) {
        if (rounded(in, KVD_F32, x->x, x->ld, type, width, cut, err))
            return -1;
        *x = (kvd_head_rows){cut, width};
    }
    return 0;
}

static int put_prompts(const kvd_gpu_attention_in *in, size_t prompt, size_t width,
                       const float *exact, float *to, kvd_err *err)
{
    for (size_t s = 0; s < in->n_sequences; s++) {
        const size_t first = in->offset[s], n = in->offset[s + 1] - first,
                     rows = prompt < n ? prompt : n - 1;
        if (rows && kvd_queue_copy(to + first * width, exact + first * width,
                                   rows * width * sizeof *to, in->stream, what, err))
            return -1;
    }
    return 0;
}

static int attend_stored(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                         const kvd_cache_layer *layer, kvd_dtype type, kvd_head_rows q,
                         kvd_head_rows k, kvd_head_rows v, float *to, kvd_err *err)
{
    const size_t width_q = (size_t)in->share->n_heads * (size_t)in->config->d_head;
    const bool latents = layer->heads > 0;
    /* Matrix that maps V back to d_head dimensions. Values rebuilt from latent vectors already have
     * d_head dimensions. */
    const float *const back = latents ? NULL : layer->b_v;
    if (latents ? kvd_cache_latents_read(p, in, layer, type, &k, &v, err)
                : stored(in, &k, layer->a_k, type, p->k_cut, err) ||
                      stored(in, &v, layer->a_v, type, p->v_cut, err))
        return -1;
    if (layer->a_q) {
        if (project(in, q, in->share->n_heads, layer->a_q, p->q_cut, err))
            return -1;
        q = (kvd_head_rows){p->q_cut, width_q};
    }
    float *const attended = back ? p->o_cut : to;
    if (kvd_gpu_attend(in, KVD_F32, q.x, q.ld, k.x, k.ld, v.x, v.ld, attended, width_q, p->scratch,
                       err))
        return -1;
    return back ? project(in, (kvd_head_rows){attended, width_q}, in->share->n_heads, back, to, err)
                : 0;
}

int kvd_cache_products_run(kvd_cache_products *p, const kvd_gpu_attention_in *in,
                           const kvd_cache_layer *layer, kvd_dtype type, size_t prompt, void *out,
                           kvd_err *err)
{
    const size_t d = (size_t)in->config->d_head;
    const size_t width_q = (size_t)in->share->n_heads * d,
                 width_k = (size_t)in->share->n_kv_heads * d;
    const bool direct = in->type == KVD_F32;
    kvd_head_rows q, k, v;
    if (widen(in, in->q, width_q, p->q_wide, &q, err) ||
        widen(in, in->v, width_k, p->v_wide, &v, err))
        return -1;
    if (prompt && (widen(in, in->k, width_k, p->k_wide, &k, err) ||
                   kvd_gpu_attend(in, KVD_F32, q.x, q.ld, k.x, k.ld, v.x, v.ld, p->exact, width_q,
                                  p->scratch, err)))
        return -1;
    kvd_gpu_attention_in of_keys = *in;
    if (layer->heads) {
        of_keys.k = in->k_pre;
        of_keys.ld = in->ld_pre;
    }
    const bool back = layer->b_v && !layer->heads;
    float *const result = direct ? out : back ? p->q_wide : p->o_cut;
    if (widen(&of_keys, of_keys.k, width_k, p->k_wide, &k, err) ||
        attend_stored(p, in, layer, type, q, k, v, result, err) ||
        (prompt && put_prompts(in, prompt, width_q, p->exact, result, err)))
        return -1;
    return direct ? 0
                  : kvd_cuda_check(kvd_gpu_convert(KVD_F32, result, in->type, out,
                                                   in->n_tokens * width_q, in->stream),
                                   what, err);
}
