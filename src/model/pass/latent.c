#include "model/pass/latent.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "model/pass/blocks.h"

static size_t query_width(const kvd_config *c)
{
    return (size_t)(c->d_nope + c->rope_dims);
}

/* Returns the rows of the matrix `up` that belong to a head: first rows of W_UK, then rows of
 * W_UV. */
static const float *up_of(const kvd_config *c, const float *up, size_t head)
{
    return up + head * (size_t)(c->d_nope + c->d_value) * (size_t)c->latent;
}

static const float *up_of_values(const kvd_config *c, const float *up, size_t head)
{
    return up_of(c, up, head) + (size_t)c->d_nope * (size_t)c->latent;
}

size_t kvd_latent_scratch(const kvd_config *c)
{
    return c->latent ? (size_t)c->q_rank + (size_t)c->n_heads * query_width(c) + (size_t)c->d_head
                     : 0;
}

/* Computes queries of latent attention: dimensions that RoPE rotates, then the other dimensions
 * multiplied by W_UK. */
static void queries(const kvd_config *c, const kvd_layer_weights *w, const float *x, size_t rows,
                    float *scratch, float *q)
{
    const size_t d = (size_t)c->d_head, heads = (size_t)c->n_heads, rope = (size_t)c->rope_dims,
                 nope = (size_t)c->d_nope, rank = (size_t)c->q_rank, each = query_width(c);
    float *const raw = scratch + rows * rank;
    if (rank) {
        kvd_linear(x, w->w[KVD_PART_Q_DOWN], rows, (size_t)c->d_model, rank, scratch, 0);
        kvd_rms_norm(scratch, w->w[KVD_PART_NORM_Q_DOWN], KVD_LATENT_EPS, rows, rank, scratch);
        x = scratch;
    }
    kvd_linear(x, w->w[KVD_PART_Q], rows, rank ? rank : (size_t)c->d_model, heads * each, raw, 0);
    for (size_t i = 0; i < rows * heads; i++)
        memcpy(q + i * d, raw + i * each + nope, rope * sizeof *q);
    for (size_t h = 0; h < heads; h++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)rows, c->latent, c->d_nope,
                    1.0F, raw + h * each, (blasint)(heads * each),
                    up_of(c, w->w[KVD_PART_LATENT_UP], h), c->latent, 0.0F, q + h * d + rope,
                    (blasint)(heads * d));
}

void kvd_latent_project(const kvd_config *c, const kvd_layer_weights *w, const float *x,
                        size_t rows, float *scratch, const kvd_layer_qkv *out)
{
    const size_t d = (size_t)c->d_head, rope = (size_t)c->rope_dims, latent = (size_t)c->latent;
    queries(c, w, x, rows, scratch, out->q);
    kvd_linear(x, w->w[KVD_PART_LATENT], rows, (size_t)c->d_model, d, scratch, 0);
    for (size_t i = 0; i < rows; i++) {
        float *const k = out->k + i * d, *const v = out->v + i * d;
        memcpy(k, scratch + i * d + latent, rope * sizeof *k);
        kvd_rms_norm(scratch + i * d, w->w[KVD_PART_NORM_LATENT], KVD_LATENT_EPS, 1, latent,
                     k + rope);
        memset(v, 0, rope * sizeof *v);
        memcpy(v + rope, k + rope, latent * sizeof *v);
    }
}

void kvd_latent_values(const kvd_config *c, const kvd_layer_weights *w, const float *o, size_t rows,
                       float *values)
{
    const size_t d = (size_t)c->d_head, heads = (size_t)c->n_heads, wide = (size_t)c->d_value;
    for (size_t h = 0; h < heads; h++)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (blasint)rows, c->d_value, c->latent,
                    1.0F, o + h * d + c->rope_dims, (blasint)(heads * d),
                    up_of_values(c, w->w[KVD_PART_LATENT_UP], h), c->latent, 0.0F,
                    values + h * wide, (blasint)(heads * wide));
}

static void weights_o(const kvd_config *c, const float *up, const float *o, float *w_o)
{
    const size_t d = (size_t)c->d_head, d_model = (size_t)c->d_model, rope = (size_t)c->rope_dims,
                 wide = (size_t)c->d_value;
    for (size_t h = 0; h < (size_t)c->n_heads; h++) {
        float *const to = w_o + h * d * d_model;
        memset(to, 0, rope * d_model * sizeof *to);
        cblas_sgemm(CblasRowMajor, CblasTrans, CblasTrans, c->latent, c->d_model, c->d_value, 1.0F,
                    up_of_values(c, up, h), c->latent, o + h * wide,
                    (blasint)((size_t)c->n_heads * wide), 0.0F, to + rope * d_model, c->d_model);
    }
}

static void weights_v(const kvd_config *c, const float *down, const float *gain, float *w_v)
{
    const size_t d_model = (size_t)c->d_model, rope = (size_t)c->rope_dims;
    memset(w_v, 0, rope * d_model * sizeof *w_v);
    for (size_t j = 0; j < (size_t)c->latent; j++)
        for (size_t m = 0; m < d_model; m++)
            w_v[(rope + j) * d_model + m] = gain[j] * down[j * d_model + m];
}

int kvd_latent_weights(const kvd_config *c, const kvd_weight *part, float *w_o, float *w_v,
                       kvd_err *err)
{
    const size_t n = kvd_layer_buffer_size(part);
    float *const copy = malloc((n ? n : 1) * sizeof *copy);
    kvd_layer_weights w;
    if (!copy)
        return kvd_no_memory(err, "weights of a layer", n * sizeof *copy);
    kvd_layer_load(part, copy, &w);
    if (w_o)
        weights_o(c, w.w[KVD_PART_LATENT_UP], w.w[KVD_PART_O], w_o);
    if (w_v)
        weights_v(c, w.w[KVD_PART_LATENT], w.w[KVD_PART_NORM_LATENT], w_v);
    free(copy);
    kvd_layer_drop(part, true);
    kvd_layer_drop(part, false);
    return 0;
}

double kvd_latent_multiplications(const kvd_config *c)
{
    const double d = c->d_model, heads = c->n_heads, wide = heads * (double)query_width(c),
                 queries = c->q_rank ? c->q_rank * (d + wide) : d * wide;
    return queries + d * c->d_head + heads * c->latent * ((double)c->d_nope + c->d_value) +
           heads * c->d_value * d;
}
