#include "methods/bits/calibration.h"

#include <cblas.h>
#include <stdlib.h>
#include <string.h>

int kvd_calibration_fits(const kvd_method_setup *s, bool pre, kvd_err *err)
{
    const kvd_activations *const a = s->calibration;
    if (pre && !a->has_pre)
        return kvd_fail(err, "the calibration has no K before RoPE: collect it with --rope both");
    if (a->first_layer != 0 || a->n_layers != s->config->n_layers)
        return kvd_fail(err, "the calibration holds layers %d to %d, the model has %d",
                        a->first_layer, a->first_layer + a->n_layers - 1, s->config->n_layers);
    return 0;
}

size_t kvd_calibration_tokens(const kvd_method_setup *s, double most)
{
    const size_t n = s->calibration->n_tokens;
    return n < (size_t)most ? n : (size_t)most;
}

/* Returns the number of KV heads that share one latent vector (method palu). */
static size_t heads_of(const kvd_method_setup *s)
{
    return s->dims && s->dims->rebuild ? (size_t)s->dims->heads : 1;
}

int kvd_calibration_rows_open(kvd_calibration_rows *r, const kvd_method_setup *s, bool pre,
                              size_t n, kvd_err *err)
{
    const size_t numbers = n * (size_t)s->config->d_head * heads_of(s);
    *r = (kvd_calibration_rows){.setup = s, .pre = pre, .n = n};
    r->rows = malloc(numbers * sizeof *r->rows);
    r->cut = malloc(2 * numbers * sizeof *r->cut);
    return r->rows && r->cut
               ? 0
               : kvd_no_memory(err, "calibration rows", 3 * numbers * sizeof *r->rows);
}

int kvd_calibration_rows_read(kvd_calibration_rows *r, kvd_side side, int layer, int kv_head,
                              size_t *width, kvd_err *err)
{
    const kvd_dims *const dims = r->setup->dims;
    const size_t d = (size_t)r->setup->config->d_head, heads = heads_of(r->setup), wide = heads * d;
    const kvd_x x = side == KVD_VALUES ? KVD_X_V : r->pre ? KVD_X_K_PRE : KVD_X_K;
    const kvd_dims_head *const h =
        dims ? &dims->head[layer * r->setup->config->n_kv_heads + kv_head] : NULL;
    const float *const matrix = h ? (side == KVD_KEYS ? h->a_k : h->a_v) : NULL;
    for (size_t k = 0; k < heads; k++) {
        if (kvd_activations_rows(r->setup->calibration, x, layer,
                                 kv_head - kv_head % (int)heads + (int)k, 0, r->n, r->cut,
                                 r->cut + r->n * d, err))
            return -1;
        for (size_t i = 0; i < r->n; i++)
            memcpy(r->rows + i * wide + k * d, r->cut + i * d, d * sizeof *r->rows);
    }
    *width = !h ? d : (size_t)(side == KVD_KEYS ? h->d_qk : h->d_v);
    if (matrix)
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (blasint)r->n, (blasint)*width,
                    (blasint)wide, 1, r->rows, (blasint)wide, matrix, (blasint)*width, 0, r->cut,
                    (blasint)*width);
    else
        memcpy(r->cut, r->rows, r->n * d * sizeof *r->cut);
    return 0;
}

void kvd_calibration_rows_close(kvd_calibration_rows *r)
{
    free(r->rows);
    free(r->cut);
}

size_t kvd_calibration_all_heads(const kvd_method_setup *s, kvd_x what, int layer, size_t n,
                                 size_t sink, float *scratch, float *rows, kvd_err *err)
{
    const size_t d = (size_t)s->config->d_head, wide = (size_t)s->config->n_kv_heads * d;
    size_t kept = 0;
    for (int g = 0; g < s->config->n_kv_heads; g++) {
        if (kvd_activations_rows(s->calibration, what, layer, g, 0, n, scratch, scratch + n * d,
                                 err))
            return 0;
        kept = 0;
        for (size_t i = 0; i < n; i++)
            if (i % s->calibration->seq_len >= sink)
                memcpy(rows + kept++ * wide + (size_t)g * d, scratch + i * d, d * sizeof *rows);
    }
    if (!kept)
        (void)kvd_fail(
            err, "every token of the calibration is one of the first %zu (sink) of its sequence",
            sink);
    return kept;
}

void kvd_subtract_means(float *x, size_t n, size_t d, float *mean)
{
    for (size_t j = 0; j < d; j++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++)
            sum += (double)x[i * d + j];
        mean[j] = (float)(sum / (double)n);
        for (size_t i = 0; i < n; i++)
            x[i * d + j] -= mean[j];
    }
}
