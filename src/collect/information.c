/* Sums squared gradients of the loss with respect to W_K, W_V, K and V: the empirical Fisher
 * information. */
#include "collect/sums.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>

#include "common/linalg.h"
#include "common/threads.h"

enum { TILE = 32 }; /* rows of W_K or W_V whose gradient a thread computes at a time */

struct kvd_information {
    kvd_fisher *f;
    kvd_backward *backward;
    size_t d, width, d_model, n_sequences, threads;
    /* two arrays [n_layers][n_kv_heads d_head][d_model]: sums of squared gradients of the loss with
     * respect to W_K, and to W_V */
    double *weight[KVD_F_SIDES];
    float *tile;      /* [threads][TILE][d_model] gradient of TILE rows of a weight matrix */
    double *products; /* scratch memory of kvd_gram_add */
    /* [n_kv_heads][max_tokens][d_head] squared gradients of the loss with respect to K or V of each
     * token; NULL if only sums over tokens are wanted */
    float *rows;
    size_t first_token;
    int (*give_up)(void *ctx, kvd_err *err);
    void *ctx;
};

static void add_tokens(const kvd_information *s, const kvd_gradients *g, const float *x,
                       double *sum)
{
#pragma omp parallel for schedule(static)
    for (size_t j = 0; j < s->width; j += 16)
        for (size_t t = 0; t < g->n_tokens; t++)
            for (size_t i = j; i < j + 16 && i < s->width; i++)
                sum[i] += (double)x[t * s->width + i] * (double)x[t * s->width + i];
}

static int put_rows(kvd_information *s, const kvd_gradients *g, int side, int layer, kvd_err *err)
{
    const float *const x = side ? g->v : g->k_pre;
    if (s->first_token >= s->f->n_rows)
        return 0;
    const size_t left = s->f->n_rows - s->first_token, n = g->n_tokens < left ? g->n_tokens : left;
    for (size_t i = 0; i < n * s->width; i++) {
        const size_t t = i / s->width, h = i % s->width / s->d, j = i % s->d;
        s->rows[(h * n + t) * s->d + j] = x[i] * x[i];
    }
    return kvd_fisher_put_rows(s->f, side, layer, s->first_token, n, s->rows, err);
}

/* Adds each sequence's squared gradient of weights W [width][d_model] to `sum`. The gradient of a
 * sequence is x^T times W's input, where x is the gradient with respect to W's output. */
static void add_weights(const kvd_information *s, const kvd_gradients *g, const float *x,
                        double *sum)
{
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic)
    for (size_t first = 0; first < s->width; first += TILE) {
        const size_t m = s->width - first < TILE ? s->width - first : TILE;
        float *const tile = s->tile + kvd_thread_index() * TILE * s->d_model;
        for (size_t q = 0; q < g->n_sequences; q++) {
            const size_t at = g->offset[q], n = g->offset[q + 1] - at;
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (blasint)m, (blasint)s->d_model,
                        (blasint)n, 1.0F, x + at * s->width + first, (blasint)s->width,
                        g->in + at * s->d_model, (blasint)s->d_model, 0.0F, tile,
                        (blasint)s->d_model);
            for (size_t i = 0; i < m * s->d_model; i++)
                sum[first * s->d_model + i] += (double)tile[i] * (double)tile[i];
        }
    }
    kvd_blas_restore(saved);
}

int kvd_information_take(void *ctx, const kvd_gradients *g, kvd_err *err)
{
    kvd_information *const s = ctx;
    const int layer = g->layer - s->f->first_layer;
    if (layer >= s->f->n_layers) /* The layer is not recorded. */
        return 0;
    const float *const of_token[KVD_N_F] =
        {[KVD_F_K] = g->k, [KVD_F_K_PRE] = g->k_pre, [KVD_F_V] = g->v},
                       *const of_weight[KVD_F_SIDES] = {g->k_raw, g->v};
    for (int i = 0; i < KVD_N_F; i++)
        add_tokens(s, g, of_token[i], s->f->sum[i] + (size_t)layer * s->width);
    for (int side = 0; side < KVD_F_SIDES; side++) {
        add_weights(s, g, of_weight[side], s->weight[side] + (size_t)layer * s->width * s->d_model);
        if (s->f->moment[side] &&
            kvd_gram_add(s->f->moment[side] + (size_t)layer * s->width * s->width, s->width,
                         side ? g->v : g->k_pre, g->n_tokens, s->width, s->products, err))
            return -1;
        if (s->rows && put_rows(s, g, side, layer, err))
            return -1;
    }
    return 0;
}

static int ask(void *ctx, kvd_err *err)
{
    const kvd_information *const s = ctx;
    return s->give_up ? s->give_up(s->ctx, err) : 0;
}

void kvd_information_begin(kvd_information *s, const kvd_batch *b, size_t first_token)
{
    s->first_token = first_token;
    s->n_sequences += b->n_sequences;
}

int kvd_information_run(kvd_information *s, const kvd_batch *b, size_t first_token,
                        int (*give_up)(void *ctx, kvd_err *err), void *ctx, kvd_err *err)
{
    const kvd_gradient_sink sink = {kvd_information_take, ask, s};
    kvd_information_begin(s, b, first_token);
    s->give_up = give_up;
    s->ctx = ctx;
    return kvd_backward_run(s->backward, b, s->f->first_layer, &sink, &s->f->loss,
                            &s->f->n_predicted, err);
}

void kvd_information_flush(kvd_information *s)
{
    const size_t heads = (size_t)s->f->n_layers * (size_t)s->f->model.n_kv_heads,
                 n = s->d * s->d_model;
    for (int side = 0; side < KVD_F_SIDES; side++)
        for (size_t h = 0; h < heads; h++) {
            double square = 0, root = 0;
            for (size_t i = h * n; i < (h + 1) * n; i++) {
                square += s->weight[side][i];
                root += sqrt(s->weight[side][i] / (double)s->n_sequences);
            }
            s->f->weight[side][h] = square;
            s->f->root[side][h] = s->n_sequences ? root / (double)n : 0;
        }
}

void kvd_information_free(kvd_information *s)
{
    if (!s)
        return;
    kvd_backward_free(s->backward);
    for (int side = 0; side < KVD_F_SIDES; side++)
        free(s->weight[side]);
    free(s->tile);
    free(s->products);
    free(s->rows);
    free(s);
}

kvd_information *kvd_information_new(const kvd_checkpoint *c, size_t max_tokens, size_t max_len,
                                     kvd_fisher *f, kvd_err *err)
{
    kvd_information *const s = kvd_new(1, sizeof *s, "sums of squared gradients", err);
    if (!s)
        return NULL;
    s->f = f;
    s->d = (size_t)f->model.d_head;
    s->width = (size_t)f->model.n_kv_heads * s->d;
    s->d_model = (size_t)f->model.d_model;
    s->threads = kvd_thread_count();
    const size_t n = (size_t)f->n_layers * s->width * s->d_model;
    s->products = malloc(kvd_gram_scratch(s->width) * sizeof *s->products);
    bool good =
        s->products && (s->tile = malloc(s->threads * TILE * s->d_model * sizeof *s->tile)) != NULL;
    for (int side = 0; side < KVD_F_SIDES; side++)
        good = (s->weight[side] = calloc(n, sizeof(double))) && good;
    if (f->n_rows)
        good = (s->rows = malloc(max_tokens * s->width * sizeof *s->rows)) && good;
    if (!good)
        kvd_no_memory(err, "squared gradients of W_K and W_V", 2 * n * sizeof(double));
    if (!good || (c && !(s->backward = kvd_backward_new(c, max_tokens, max_len, err)))) {
        kvd_information_free(s);
        return NULL;
    }
    return s;
}
