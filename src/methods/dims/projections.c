/* Methods that read a rotation matrix for each KV head from a file (--spectrum) and project Q, K
 * and V on the leading columns of the matrix. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "formats/trained.h"
#include "methods/dims/dims.h"

/* Method zack: per KV head, right singular vectors of Q stacked on K, and of V stacked on W_O. */
const kvd_dims_method kvd_dims_zack = {
    .info = {.name = "zack",
             .summary = "rotations of Q-K after RoPE and V-W_O, a width per head (ZACK)"},
    .pair = {KVD_PAIR_QK, KVD_PAIR_VW},
};

/* Method fdc: rotates V by the singular vectors of the KV head's W_V, without calibration. */
const kvd_dims_method kvd_dims_fdc = {
    .info = {.name = "fdc",
             .summary = "rotations of Q-K after RoPE and of W_V, a width per head (FDC)"},
    .pair = {KVD_PAIR_QK, KVD_PAIR_WV},
};

/* Method uniform: the rotations of method zack, with the same number of kept dimensions in all
 * heads and layers. */
const kvd_dims_method kvd_dims_uniform = {
    .info = {.name = "uniform",
             .summary = "ZACK's rotations, the same width for every head (ZACK/AC)"},
    .pair = {KVD_PAIR_QK, KVD_PAIR_VW},
    .one_p = true,
};

/* Method balanced: projections that minimise the squared error of attention scores and outputs. */
const kvd_dims_method kvd_dims_balanced = {
    .info = {.name = "balanced",
             .summary = "score-optimal projections of Q-K and V-W_O, a width per head"},
    .pair = {KVD_PAIR_BQK, KVD_PAIR_BVW},
    .biorthogonal = true,
};

/* Method fisher: projections that minimise a second-order approximation of the change of the
 * model's predictions. */
const kvd_dims_method kvd_dims_fisher = {
    .info = {.name = "fisher",
             .summary =
                 "projections weighted by the Fisher information of the predictions, a width "
                 "per head"},
    .pair = {KVD_PAIR_FQK, KVD_PAIR_FVW},
    .biorthogonal = true,
};

/* Method matryoshka: the projections from which MatryoshkaKV starts its training (Lin et al. 2024,
 * sections 3 and 4): principal components of K and V, without subtracting the mean. */
const kvd_dims_method kvd_dims_matryoshka = {
    .info = {.name = "matryoshka",
             .summary = "principal components of K after RoPE and of V, a width per head "
                        "(MatryoshkaKV untrained)"},
    .pair = {KVD_PAIR_K, KVD_PAIR_V},
};

/* Method projected: trained matrices from a file (MatryoshkaKV: Lin et al. 2024, arXiv 2410.14731;
 * CSKV: Wang et al. 2024, arXiv 2409.10593). */

static const kvd_parameter parameters[] = {
    {"p", 0, 0, 0.999, false,
     "fraction of the components of every matrix left out, the last ones: for matrices trained to "
     "be cut"},
    {NULL, 0, 0, 0, false, NULL},
};

/* Returns the first `cols` columns of x as float32, transposed if `transposed` is set. The caller
 * frees the result. On failure returns NULL. */
static float *copy(const double *x, size_t rows, size_t cols, size_t ld, bool transposed,
                   kvd_err *err)
{
    float *const y = kvd_new(rows * cols, sizeof *y, "a projection", err);
    if (!y)
        return NULL;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            const float one = (float)x[i * ld + j];
            if (!isfinite(one)) {
                kvd_fail(err, "a projection has the entry %g, which is infinite as float32",
                         x[i * ld + j]);
                free(y);
                return NULL;
            }
            y[transposed ? j * rows + i : i * cols + j] = one;
        }
    return y;
}

static int kept(int32_t rank, double p)
{
    const long n = lround((1 - p) * (double)rank);
    return n < 1 ? 1 : (int)n;
}

static int make_head(const kvd_projections *x, double p, size_t i, kvd_dims_head *h, kvd_err *err)
{
    const kvd_projections_side *const k = &x->side[KVD_KEYS], *const v = &x->side[KVD_VALUES];
    const size_t d = (size_t)x->model.d_head, rows = d * (size_t)x->heads;
    h->d_qk = kept(k->rank[i], p);
    h->d_v = kept(v->rank[i], p);
    const size_t w_k = (size_t)h->d_qk, w_v = (size_t)h->d_v;
    const double *const up = k->up + i * k->n_components * d;
    h->a_k = copy(k->down + i * rows * k->n_components, rows, w_k, k->n_components, false, err);
    if (h->a_k && x->before_rope)
        h->b_k = copy(up, w_k, d, d, false, err);
    else if (h->a_k)
        h->a_q = copy(up, w_k, d, d, true, err);
    if (!h->a_q && !h->b_k)
        return -1;
    if (h->a_q && !memcmp(h->a_q, h->a_k, d * w_k * sizeof *h->a_q)) {
        /* If the projections of Q and K are equal, both use the same array. */
        free(h->a_q);
        h->a_q = h->a_k;
    }
    h->a_v = copy(v->down + i * rows * v->n_components, rows, w_v, v->n_components, false, err);
    h->b_v = h->a_v ? copy(v->up + i * v->n_components * d, w_v, d, d, false, err) : NULL;
    return h->b_v ? 0 : -1;
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    (void)s;
    return *v->text ? 0 : kvd_fail(err, "it needs file=PATH, a file of matrices (docs/formats.md)");
}

static int make(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d, kvd_err *err)
{
    kvd_projections x;
    if (kvd_projections_load(&x, v->text, s->model, s->model_path, err))
        return -1;
    const size_t n = (size_t)x.model.n_layers * (size_t)x.model.n_kv_heads;
    *d = (kvd_dims){.method = "projected",
                    .n_layers = x.model.n_layers,
                    .n_kv_heads = x.model.n_kv_heads,
                    .d_head = x.model.d_head,
                    .rebuild = x.before_rope,
                    .heads = x.heads,
                    .head = calloc(n, sizeof *d->head)};
    int status = d->head ? 0 : kvd_no_memory(err, "projections", n * sizeof *d->head);
    for (size_t i = 0; !status && i < n; i++)
        if ((status = make_head(&x, v->value[0], i, &d->head[i], err)))
            kvd_in(err, "'%s', layer %zu, KV head %zu", v->text, i / (size_t)x.model.n_kv_heads,
                   i % (size_t)x.model.n_kv_heads);
    kvd_projections_release(&x);
    return status ? -1 : 0;
}

const kvd_dims_maker kvd_dims_projected = {
    .info = {.name = "projected",
             .summary = "matrices from a file, trained elsewhere (MatryoshkaKV, CSKV)",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"p", 0, 0.8, false, NULL, 0, 0},
             .text_key = "file",
             .text_meaning = "file of matrices; its path may not contain a comma",
             .needs = KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_palu},
    .fits = fits,
    .make = make,
};
