/*
 * palu: latents of groups of heads, from which keys are rebuilt before RoPE at every step (Chang et al. 2024, "Palu: Compressing
 * KV-Cache with Low-Rank Projection", sections 3.1 to 3.3).
 *
 * The paper factors W_K of a group of heads as A B, whitened by the inputs' second moments, so that ||X W - X A B|| is least. The minimum over
 * A, B of rank r is reached by projecting X W, the keys before RoPE themselves, on their leading r singular vectors; so A is the basis V_r of
 * calibration keys (behind W_K) and B its transpose. Values likewise; B of values folds into W_O. The rank is the same for every
 * group: without squared gradients there is no Fisher information to search with.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "methods/axis.h"

enum { P, HEADS, ROWS };
static const kvd_parameter parameters[] = {
    {"p", 0.5, 0, 0.999, false, "share of the numbers that is removed"},
    {"heads", 4, 1, 128, true, "adjacent KV heads that share a latent; fewer where the model has fewer"},
    {"rows", 8192, 64, 1 << 24, true, "calibration tokens that are read"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_rate rate = {"p", 0.1, 0.9, false, NULL, 0, 0};

enum { PIECE = 256 };

/* Leading singular vectors [wide][wide], columns falling, of the rows of `heads` heads side by side. */
static int basis_of(kvd_activations *a, kvd_x x, int layer, int first, int heads, size_t n, double *basis,
                    kvd_err *err)
{
    const size_t d = (size_t)a->model.d_head, wide = (size_t)heads * d;
    float *const rows = malloc(3 * PIECE * wide * sizeof *rows);
    double *const gram = calloc(wide * wide + wide + kvd_gram_scratch(wide), sizeof *gram);
    int status =
        rows && gram ? 0 : kvd_no_memory(err, "second moments of a group", wide * wide * sizeof *gram);
    for (size_t at = 0; !status && at < n; at += PIECE) {
        const size_t some = n - at < PIECE ? n - at : PIECE;
        for (int h = 0; !status && h < heads; h++) {
            float *const one = rows + PIECE * wide;
            status = kvd_activations_rows(a, x, layer, first + h, at, some, one, one + some * d, err);
            for (size_t i = 0; !status && i < some; i++)
                memcpy(rows + i * wide + (size_t)h * d, one + i * d, d * sizeof *rows);
        }
        status = status || kvd_gram_add(gram, wide, rows, some, wide, gram + wide * wide + wide, err);
    }
    status = status || kvd_gram_svd(gram, wide, gram + wide * wide, basis, err);
    free(gram);
    free(rows);
    return status ? -1 : 0;
}

/* a [wide][r] and, for head h of the group, b [r][d] = the rows of a of that head, transposed. */
static int cut(const double *basis, size_t wide, size_t d, size_t h, size_t r, float **a, float **b,
               kvd_err *err)
{
    *a = malloc(wide * r * sizeof **a);
    *b = malloc(r * d * sizeof **b);
    if (!*a || !*b)
        return kvd_no_memory(err, "projections", wide * r * sizeof **a);
    for (size_t i = 0; i < wide; i++)
        for (size_t j = 0; j < r; j++)
            (*a)[i * r + j] = (float)basis[i * wide + j];
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < r; j++)
            (*b)[j * d + i] = (float)basis[(h * d + i) * wide + j];
    return 0;
}

static int make_group(const kvd_method_setup *s, kvd_dims *d, int layer, int first, size_t r, size_t n,
                      double *basis, kvd_err *err)
{
    const size_t width = (size_t)d->d_head, wide = (size_t)d->heads * width;
    const bool rope = s->config->positions == KVD_POSITIONS_ROPE;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const kvd_x x = side == KVD_VALUES ? KVD_X_V : rope ? KVD_X_K_PRE : KVD_X_K;
        if (basis_of(s->calibration, x, layer, first, d->heads, n, basis, err))
            return kvd_in(err, "layer %d, KV heads from %d", layer, first);
        for (int h = 0; h < d->heads; h++) {
            kvd_dims_head *const one = &d->head[layer * d->n_kv_heads + first + h];
            *(side == KVD_KEYS ? &one->d_qk : &one->d_v) = (int)r;
            if (cut(basis, wide, width, (size_t)h, r, side == KVD_KEYS ? &one->a_k : &one->a_v,
                    side == KVD_KEYS ? &one->b_k : &one->b_v, err))
                return -1;
        }
    }
    return 0;
}

static int make(const kvd_values *v, const kvd_method_setup *s, kvd_dims *d, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const kvd_activations *const a = s->calibration;
    if (c->positions == KVD_POSITIONS_ROPE && !a->has_pre)
        return kvd_fail(err, "the calibration has no K before RoPE: collect it with --rope both");
    if (a->first_layer != 0 || a->n_layers != c->n_layers)
        return kvd_fail(err, "the calibration holds layers %d to %d, the model has %d", a->first_layer,
                        a->first_layer + a->n_layers - 1, c->n_layers);
    int heads = (int)v->value[HEADS] < c->n_kv_heads ? (int)v->value[HEADS] : c->n_kv_heads;
    while (c->n_kv_heads % heads)
        heads--;
    const size_t wide = (size_t)heads * (size_t)c->d_head, most = (size_t)v->value[ROWS];
    const size_t n = a->n_tokens < most ? a->n_tokens : most;
    const long rank = lround((1 - v->value[P]) * (double)wide);
    double *const basis = malloc(wide * wide * sizeof *basis);
    *d = (kvd_dims){.method = "palu",
                    .n_layers = c->n_layers,
                    .n_kv_heads = c->n_kv_heads,
                    .d_head = c->d_head,
                    .rebuild = true,
                    .heads = heads,
                    .head = calloc((size_t)c->n_layers * (size_t)c->n_kv_heads, sizeof *d->head)};
    int status = basis && d->head ? 0 : kvd_no_memory(err, "projections", wide * wide * sizeof *basis);
    for (int l = 0; l < c->n_layers; l++)
        for (int g = 0; !status && g < c->n_kv_heads; g += heads)
            status = make_group(s, d, l, g, (size_t)(rank < 1 ? 1 : rank), n, basis, err);
    free(basis);
    return status;
}

const kvd_dims_maker kvd_dims_palu = {
    .name = "palu",
    .summary = "latents of groups of heads, keys rebuilt before RoPE at every step",
    .parameter = parameters,
    .rate = &rate,
    .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE,
    .make = make};
