#include "collect/cuda/moments.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "common/cuda/gram.h"

struct kvd_gpu_moments {
    /* model and layers of the second moments; the arrays `gram` inside are not used */
    kvd_moments shape;
    kvd_gpu_share share;
    kvd_device_memory memory;
    /* [n_layers][this GPU's heads][d_head][d_head] in device memory: X^T X of each matrix X, such
     * as Q (one row per token); NULL if not wanted */
    double *gram[KVD_N_G];
    double *scratch;
};

static bool is_query(kvd_g g)
{
    return g == KVD_G_Q || g == KVD_G_Q_PRE || g == KVD_G_W_O;
}

static bool is_held(const kvd_moments *shape, kvd_g g)
{
    return shape->has_pre || (g != KVD_G_Q_PRE && g != KVD_G_K_PRE);
}

static int heads_of(const kvd_gpu_share *share, kvd_g g)
{
    return is_query(g) ? share->n_heads : share->n_kv_heads;
}

static int first_of(const kvd_gpu_share *share, kvd_g g)
{
    return is_query(g) ? share->first_head : share->first_kv_head;
}

static size_t layer_count(const kvd_moments *shape, const kvd_gpu_share *share, kvd_g g)
{
    const size_t d = (size_t)shape->model.d_head;
    return (size_t)heads_of(share, g) * d * d;
}

static size_t gram_bytes(const kvd_moments *shape, const kvd_gpu_share *share, kvd_g g)
{
    return (size_t)shape->n_layers * layer_count(shape, share, g) * sizeof(double);
}

static size_t scratch_bytes(const kvd_moments *shape, const kvd_gpu_share *share)
{
    size_t most = 0;
    for (int heads = 1; heads <= 2 * share->n_heads + 3 * share->n_kv_heads; heads++) {
        const size_t bytes = kvd_gram_scratch_bytes(heads, shape->model.d_head);
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t kvd_gpu_moments_bytes(const kvd_moments *shape, const kvd_gpu_share *share)
{
    size_t n = scratch_bytes(shape, share);
    for (int g = 0; g < KVD_N_G; g++)
        n += is_held(shape, (kvd_g)g) ? gram_bytes(shape, share, (kvd_g)g) : 0;
    return n;
}

kvd_gpu_moments *kvd_gpu_moments_new(const kvd_moments *shape, const kvd_gpu_share *share,
                                     kvd_err *err)
{
    if (shape->model.d_head > KVD_GRAM_MAX_D) {
        kvd_fail(err,
                 "second moments on the GPU: heads of %d dimensions, %d at most; use --device cpu",
                 shape->model.d_head, (int)KVD_GRAM_MAX_D);
        return NULL;
    }
    kvd_gpu_moments *m = kvd_new(1, sizeof *m, "second moments", err);
    if (!m)
        return NULL;
    m->shape = *shape;
    m->share = *share;
    bool failed = !(m->scratch = kvd_device_new(&m->memory, scratch_bytes(shape, share),
                                                "second moments", err));
    for (int g = 0; g < KVD_N_G && !failed; g++) {
        const size_t bytes = gram_bytes(shape, share, (kvd_g)g);
        if (is_held(shape, (kvd_g)g))
            failed = !(m->gram[g] = kvd_device_new(&m->memory, bytes, "second moments", err)) ||
                     kvd_device_zero(m->gram[g], bytes, "second moments", err);
    }
    if (failed) {
        kvd_gpu_moments_free(m);
        return NULL;
    }
    return m;
}

void kvd_gpu_moments_free(kvd_gpu_moments *m)
{
    if (!m)
        return;
    kvd_device_release(&m->memory);
    free(m);
}

static double *layer_at(const kvd_gpu_moments *m, kvd_g g, int layer)
{
    return m->gram[g] + (size_t)layer * layer_count(&m->shape, &m->share, g);
}

static int add(kvd_gpu_moments *m, kvd_gram_args *a, cudaStream_t stream, kvd_err *err)
{
    a->d = m->shape.model.d_head;
    a->scratch = m->scratch;
    return kvd_cuda_check(kvd_gram_add_rows(a, stream), "second moments", err);
}

int kvd_gpu_moments_add(kvd_gpu_moments *m, const kvd_gpu_attention_in *in, kvd_err *err)
{
    const int layer = in->layer - m->shape.first_layer;
    if (layer < 0 || layer >= m->shape.n_layers)
        return 0;
    assert(in->type == KVD_F32 || in->type == KVD_BF16);
    const void *from[] = {in->q, in->k, in->v, in->q_pre, in->k_pre};
    kvd_gram_args a = {.bf16 = in->type == KVD_BF16, .n_rows = in->n_tokens};
    for (int g = KVD_G_Q; g <= KVD_G_K_PRE; g++)
        if (m->gram[g])
            a.part[a.n_parts++] = (kvd_gram_part){.x = from[g],
                                                  .head_stride = (size_t)m->shape.model.d_head,
                                                  .row_stride = g <= KVD_G_V ? in->ld : in->ld_pre,
                                                  .dim_stride = 1,
                                                  .n_heads = heads_of(&m->share, (kvd_g)g),
                                                  .G = layer_at(m, (kvd_g)g, layer)};
    return add(m, &a, in->stream, err);
}

int kvd_gpu_moments_weights(kvd_gpu_moments *m, const kvd_gpu_weights *w, int layer,
                            cudaStream_t stream, kvd_err *err)
{
    const int at = layer - m->shape.first_layer;
    assert(at >= 0 && at < m->shape.n_layers);
    const size_t d = (size_t)m->shape.model.d_head, width = (size_t)m->shape.model.d_model;
    const size_t heads = (size_t)m->share.n_heads, kv_heads = (size_t)m->share.n_kv_heads;
    const size_t v_at = (heads + kv_heads) * d * width * kvd_dtype_bytes(w->type);
    for (kvd_g g = KVD_G_W_O; g <= KVD_G_W_V; g++) {
        kvd_gram_args a = {.bf16 = w->type == KVD_BF16, .n_rows = width, .n_parts = 1};
        a.part[0] = g == KVD_G_W_O ? (kvd_gram_part){.x = w->layer[layer].o,
                                                     .head_stride = d,
                                                     .row_stride = heads * d,
                                                     .dim_stride = 1}
                                   : (kvd_gram_part){.x = (const char *)w->layer[layer].qkv + v_at,
                                                     .head_stride = d * width,
                                                     .row_stride = 1,
                                                     .dim_stride = width};
        a.part[0].n_heads = heads_of(&m->share, g);
        a.part[0].G = layer_at(m, g, at);
        const size_t bytes = layer_count(&m->shape, &m->share, g) * sizeof(double);
        if (kvd_cuda_check(cudaMemsetAsync(a.part[0].G, 0, bytes, stream), "second moments", err) ||
            add(m, &a, stream, err))
            return -1;
    }
    return 0;
}

/* Copies the second moments of this GPU's heads to `host` if to_host is true, else from `host` to
 * the GPU. The array `host` has the moments of all heads. */
static int copy(kvd_gpu_moments *m, kvd_g g, double *host, bool to_host, cudaStream_t stream,
                kvd_err *err)
{
    const size_t d = (size_t)m->shape.model.d_head;
    const size_t width = layer_count(&m->shape, &m->share, g) * sizeof(double);
    const size_t pitch = (size_t)kvd_moments_heads(&m->shape, g) * d * d * sizeof(double);
    double *const at = host + (size_t)first_of(&m->share, g) * d * d;
    const size_t rows = (size_t)m->shape.n_layers;
    return kvd_cuda_check(to_host ? cudaMemcpy2DAsync(at, pitch, m->gram[g], width, width, rows,
                                                      cudaMemcpyDeviceToHost, stream)
                                  : cudaMemcpy2DAsync(m->gram[g], width, at, pitch, width, rows,
                                                      cudaMemcpyHostToDevice, stream),
                          "second moments", err);
}

/* Fails if a diagonal element is not finite, which means that a summed value was not finite. */
static int check(const kvd_gpu_moments *m, const kvd_moments *sums, kvd_g g, kvd_err *err)
{
    const size_t d = (size_t)m->shape.model.d_head;
    for (int l = 0; l < m->shape.n_layers; l++)
        for (int h = first_of(&m->share, g); h < first_of(&m->share, g) + heads_of(&m->share, g);
             h++) {
            const double *G = kvd_moments_at(sums, g, l, h);
            for (size_t i = 0; i < d; i++)
                if (!isfinite(G[i * d + i]))
                    return kvd_fail(err, "layer %d head %d: %s: dim %zu is not finite",
                                    m->shape.first_layer + l, h, kvd_g_name[g], i);
        }
    return 0;
}

int kvd_gpu_moments_get(kvd_gpu_moments *m, kvd_moments *sums, cudaStream_t stream, kvd_err *err)
{
    for (int g = 0; g < KVD_N_G; g++) {
        const size_t n = (size_t)m->shape.n_layers * (size_t)heads_of(&m->share, (kvd_g)g);
        if (m->gram[g] &&
            (kvd_cuda_check(kvd_gram_mirror(m->gram[g], n, m->shape.model.d_head, stream),
                            "second moments", err) ||
             copy(m, (kvd_g)g, sums->gram[g], true, stream, err)))
            return -1;
    }
    if (kvd_cuda_check(cudaStreamSynchronize(stream), "second moments", err))
        return -1;
    for (int g = 0; g < KVD_N_G; g++)
        if (m->gram[g] && check(m, sums, (kvd_g)g, err))
            return -1;
    return 0;
}

int kvd_gpu_moments_set(kvd_gpu_moments *m, const kvd_moments *sums, cudaStream_t stream,
                        kvd_err *err)
{
    for (int g = 0; g < KVD_N_G; g++)
        if (m->gram[g] && copy(m, (kvd_g)g, sums->gram[g], false, stream, err))
            return -1;
    return kvd_cuda_check(cudaStreamSynchronize(stream), "second moments", err);
}
