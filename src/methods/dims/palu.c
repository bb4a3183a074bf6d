/* Method palu: groups of heads store latent vectors, from which keys are rebuilt before RoPE (Chang
 * et al. 2024, Palu, sections 3.1 to 3.3).
 *
 * The latent vector is the projection of K or V on its leading right singular vectors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "common/rng.h"
#include "methods/bits/calibration.h"
#include "methods/dims/dims.h"

enum { P, HEADS, ROWS, SEARCH };
static const kvd_parameter parameters[] = {
    {"p", 0.5, 0, 0.999, false, "fraction of the numbers removed"},
    {"heads", 4, 1, 128, true,
     "number of adjacent KV heads that share a latent, at most those of the model; 1 by default "
     "with a method that drops tokens"},
    {"rows", 8192, 64, 1 << 24, true, "number of calibration tokens read"},
    {"search", 0, 0, 3, true,
     "ranks: 0 equal, 1 proportional to root mean squares of the gradients of --fisher (as the "
     "public code), 2 to their squares, 3 by Eq. 6 over singular values"},
    {NULL, 0, 0, 0, false, NULL},
};

enum { PIECE = 256 };

typedef struct {
    size_t at, rank;
    double share;
} target;

/* Compares two matrices for qsort, by how much rounding down has reduced the rank of each matrix.
 * The smaller reduction comes first. */
static int by_rest(const void *a, const void *b)
{
    const target *const x = a, *const y = b;
    const double left = x->share - (double)x->rank, right = y->share - (double)y->rank;
    return left < right || left > right ? (left > right ? 1 : -1)
                                        : (x->at > y->at) - (x->at < y->at);
}

static size_t largest(const target *t, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = t[i].rank > t[best].rank ? i : best;
    return best;
}

/* Divides `total` ranks among n matrices in proportion to their Fisher information. */
static int share_out(const double *information, size_t n, size_t wide, size_t total, size_t *rank,
                     kvd_err *err)
{
    double sum = 0;
    size_t used = 0;
    for (size_t i = 0; i < n; i++)
        sum += information[i];
    if (!(sum > 0))
        return kvd_fail(
            err, "every squared gradient of W_K and W_V is 0: no ranks can be told from them");
    target *const t = malloc(n * sizeof *t);
    if (!t)
        return kvd_no_memory(err, "ranks", n * sizeof *t);
    for (size_t i = 0; i < n; i++) {
        const double share = (double)total * information[i] / sum;
        t[i] = (target){i, share >= (double)wide ? wide : (size_t)share, share};
        used += t[i].rank;
    }
    qsort(t, n, sizeof *t, by_rest);
    while (used < total)
        for (size_t i = 0; i < n && used < total; i++)
            if (t[i].rank < wide) {
                t[i].rank++;
                used++;
            }
    /* Raises ranks of 0 to 1, taking 1 from the matrix with the largest rank each time. */
    for (size_t i = 0; i < n; i++)
        if (t[i].rank == 0) {
            t[largest(t, n)].rank--;
            t[i].rank = 1;
        }
    for (size_t i = 0; i < n; i++)
        rank[t[i].at] = t[i].rank;
    free(t);
    return 0;
}

/* Computes singular values and right singular vectors (columns of `basis`) of the keys or values of
 * n calibration tokens, with `heads` KV heads concatenated. */
static int basis_of(kvd_activations *a, kvd_x x, int layer, int first, int heads, size_t n,
                    double *sigma, double *basis, kvd_err *err)
{
    const size_t d = (size_t)a->model.d_head, wide = (size_t)heads * d;
    float *const rows = malloc(3 * PIECE * wide * sizeof *rows);
    double *const gram = calloc(wide * wide + kvd_gram_scratch(wide), sizeof *gram);
    int status = rows && gram
                     ? 0
                     : kvd_no_memory(err, "second moments of a group", wide * wide * sizeof *gram);
    for (size_t at = 0; !status && at < n; at += PIECE) {
        const size_t some = n - at < PIECE ? n - at : PIECE;
        for (int h = 0; !status && h < heads; h++) {
            float *const one = rows + PIECE * wide;
            status =
                kvd_activations_rows(a, x, layer, first + h, at, some, one, one + some * d, err);
            for (size_t i = 0; !status && i < some; i++)
                memcpy(rows + i * wide + (size_t)h * d, one + i * d, d * sizeof *rows);
        }
        status = status || kvd_gram_add(gram, wide, rows, some, wide, gram + wide * wide, err);
    }
    status = status || kvd_gram_svd(gram, wide, sigma, basis, err);
    free(gram);
    free(rows);
    return status ? -1 : 0;
}

/* Returns the smallest rank that omits at most the fraction r of the sum of singular values. */
static size_t kept_at(const double *tail, size_t wide, double r)
{
    size_t k = wide;
    while (k > 1 && tail[k - 1] <= r)
        k--;
    return k;
}

static size_t total_at(const double *tail, size_t n, size_t wide, double r)
{
    size_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += kept_at(tail + i * wide, wide, r);
    return sum;
}

static kvd_x rows_of(const kvd_config *c, int side)
{
    return side == KVD_VALUES                   ? KVD_X_V
           : c->positions == KVD_POSITIONS_ROPE ? KVD_X_K_PRE
                                                : KVD_X_K;
}

/* Reads the singular values [d] of a head from the spectrum file. A timing run derives the ranks of
 * its random projections from them. */
static int drawn_sigma(const kvd_method_setup *s, size_t heads, int side, int layer, int head,
                       double *sigma, kvd_err *err)
{
    const kvd_pair pair = kvd_dims_palu.sigma[side];
    if (heads > 1)
        return kvd_fail(err,
                        "search=3 with heads=%zu needs singular values of groups: give "
                        "--calibration, or heads=1",
                        heads);
    if (!s->spectrum || !s->spectrum->pair[pair].present)
        return kvd_fail(err, "search=3 needs singular values: give --calibration or --spread");
    memcpy(sigma, kvd_spectrum_sigma(s->spectrum, pair, layer, head),
           (size_t)s->config->d_head * sizeof *sigma);
    return 0;
}

/* Chooses the ranks of n matrices, at most `most` in total. Minimises the fraction of the sum of
 * singular values that the worst matrix loses. */
static int by_singular_values(const kvd_method_setup *s, size_t heads, size_t wide, size_t n,
                              size_t most, size_t n_rows, size_t *rank, kvd_err *err)
{
    const size_t groups = (size_t)s->config->n_kv_heads / heads;
    double *const tail = malloc((n * wide + wide * wide) * sizeof *tail), *const basis =
                                                                              tail ? tail + n * wide
                                                                                   : NULL;
    if (!tail)
        return kvd_no_memory(err, "singular values of latents", n * wide * sizeof *tail);
    int status = 0;
    for (size_t i = 0; i < n && !status; i++) {
        double *const t = tail + i * wide;
        double sum = 0;
        const int layer = (int)(i / KVD_N_SIDES / groups),
                  first = (int)(i / KVD_N_SIDES % groups * heads);
        status = s->drawn ? drawn_sigma(s, heads, i % KVD_N_SIDES, layer, first, t, err)
                          : basis_of(s->calibration, rows_of(s->config, i % KVD_N_SIDES), layer,
                                     first, (int)heads, n_rows, t, basis, err);
        for (size_t j = wide; j-- > 0;)
            t[j] = sum += t[j];
        for (size_t j = wide; j-- > 0;)
            t[j] /= sum > 0 ? t[0] : 1;
    }
    double low = 0, high = 1;
    for (int i = 0; i < 60 && !status; i++) {
        const double r = (low + high) / 2;
        *(total_at(tail, n, wide, r) > most ? &low : &high) = r;
    }
    for (size_t i = 0; i < n && !status; i++)
        rank[i] = kept_at(tail + i * wide, wide, high);
    free(tail);
    return status;
}

static int find_ranks(const kvd_method_setup *s, int search, size_t heads, size_t wide, size_t each,
                      size_t n_rows, size_t *rank, kvd_err *err)
{
    const kvd_config *const c = s->config;
    const kvd_fisher *const f = s->fisher;
    const size_t groups = (size_t)c->n_layers * (size_t)c->n_kv_heads / heads,
                 n = groups * KVD_N_SIDES;
    for (size_t i = 0; i < n; i++)
        rank[i] = each;
    if (!search)
        return 0;
    if (search == 3)
        return by_singular_values(s, heads, wide, n, n * each, n_rows, rank, err);
    double *const information = calloc(n, sizeof *information);
    if (!information)
        return kvd_no_memory(err, "ranks", n * sizeof *information);
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++)
            information[i] +=
                (search == 1 ? f->root : f->weight)[i % KVD_N_SIDES][i / KVD_N_SIDES * heads + h];
    const int status = share_out(information, n, wide, n * each, rank, err);
    free(information);
    return status;
}

static int draw_basis(uint64_t seed, size_t wide, double *basis, kvd_err *err)
{
    double *const x = malloc((2 * wide * wide + wide) * sizeof *x);
    kvd_rng r;
    if (!x)
        return kvd_no_memory(err, "a random basis", 2 * wide * wide * sizeof *x);
    kvd_rng_seed(&r, seed, 0);
    for (size_t i = 0; i < 2 * wide * wide; i++)
        x[i] = kvd_rng_normal(&r);
    const int status = kvd_svd_right(x, 2 * wide, wide, x + 2 * wide * wide, basis, err);
    free(x);
    return status;
}

/* Copies r columns of `basis` [wide][wide], from column `from` on, to *a [wide][r]. After the last
 * column comes column 0. Copies the d rows of *a that belong to KV head h, transposed, to *b
 * [r][d]. The caller must free *a and *b. */
static int cut(const double *basis, size_t from, size_t wide, size_t d, size_t h, size_t r,
               float **a, float **b, kvd_err *err)
{
    *a = malloc(wide * r * sizeof **a);
    *b = malloc(r * d * sizeof **b);
    if (!*a || !*b)
        return kvd_no_memory(err, "projections", wide * r * sizeof **a);
    for (size_t i = 0; i < wide; i++)
        for (size_t j = 0; j < r; j++)
            (*a)[i * r + j] = (float)basis[i * wide + (from + j) % wide];
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < r; j++)
            (*b)[j * d + i] = (float)basis[(h * d + i) * wide + (from + j) % wide];
    return 0;
}

static int make_group(const kvd_method_setup *s, kvd_dims *d, int layer, int first,
                      const size_t *rank, size_t n, double *basis, kvd_err *err)
{
    const size_t width = (size_t)d->d_head, wide = (size_t)d->heads * width;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        if (!s->drawn && basis_of(s->calibration, rows_of(s->config, side), layer, first, d->heads,
                                  n, basis + wide * wide, basis, err))
            return kvd_in(err, "layer %d, KV heads from %d", layer, first);
        /* First column of `basis` to use. Heads that share one random basis start at different
         * columns. */
        const size_t r = rank[side], from = s->drawn ? (size_t)(5 * layer + 3 * first + 2 * side) *
                                                           (wide / 7 + 1) % wide
                                                     : 0;
        for (int h = 0; h < d->heads; h++) {
            kvd_dims_head *const one = &d->head[layer * d->n_kv_heads + first + h];
            *(side == KVD_KEYS ? &one->d_qk : &one->d_v) = (int)r;
            if (cut(basis, from, wide, width, (size_t)h, r,
                    side == KVD_KEYS ? &one->a_k : &one->a_v,
                    side == KVD_KEYS ? &one->b_k : &one->b_v, err))
                return -1;
        }
    }
    return 0;
}

static bool reads_fisher(const kvd_parameter_values *v)
{
    return v->value[SEARCH] >= 1 && v->value[SEARCH] <= 2;
}

static int fits(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err)
{
    const kvd_config *const c = s->config;
    if (!s->drawn && kvd_calibration_fits(s, c->positions == KVD_POSITIONS_ROPE, err))
        return -1;
    if (v->given[HEADS] && c->n_kv_heads % (int)v->value[HEADS])
        return kvd_fail(err, "heads = %g does not divide the %d KV heads of the model",
                        v->value[HEADS], c->n_kv_heads);
    if (!reads_fisher(v))
        return 0;
    const kvd_fisher *const f = s->fisher;
    if (!f)
        return kvd_fail(err, "search=%g needs squared gradients: give --fisher", v->value[SEARCH]);
    if (f->first_layer != 0 || f->n_layers != c->n_layers)
        return kvd_fail(err, "the squared gradients are of layers %d to %d, the model has %d",
                        f->first_layer, f->first_layer + f->n_layers - 1, c->n_layers);
    return 0;
}

static int make(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d, kvd_err *err)
{
    const kvd_config *const c = s->config;
    int heads = s->drops && !v->given[HEADS]           ? 1
                : (int)v->value[HEADS] < c->n_kv_heads ? (int)v->value[HEADS]
                                                       : c->n_kv_heads;
    while (c->n_kv_heads % heads)
        heads--;
    const size_t wide = (size_t)heads * (size_t)c->d_head,
                 n = s->drawn ? 0 : kvd_calibration_tokens(s, v->value[ROWS]);
    const long each = lround((1 - v->value[P]) * (double)wide);
    const size_t groups = (size_t)c->n_layers * (size_t)(c->n_kv_heads / heads);
    /* [wide][wide] Singular vectors, then [wide] singular values. */
    double *const basis = malloc((wide * wide + wide) * sizeof *basis);
    size_t *const rank = malloc(groups * KVD_N_SIDES * sizeof *rank);
    *d = (kvd_dims){.method = "palu",
                    .n_layers = c->n_layers,
                    .n_kv_heads = c->n_kv_heads,
                    .d_head = c->d_head,
                    .rebuild = true,
                    .heads = heads,
                    .head = calloc((size_t)c->n_layers * (size_t)c->n_kv_heads, sizeof *d->head)};
    int status = basis && rank && d->head
                     ? 0
                     : kvd_no_memory(err, "projections", wide * wide * sizeof *basis);
    status = status || find_ranks(s, (int)v->value[SEARCH], (size_t)heads, wide,
                                  (size_t)(each < 1 ? 1 : each), n, rank, err);
    if (!status && s->drawn)
        status = draw_basis(s->seed, wide, basis, err);
    const size_t *of_group = rank;
    for (int l = 0; l < c->n_layers; l++)
        for (int g = 0; !status && g < c->n_kv_heads; g += heads, of_group += KVD_N_SIDES)
            status = make_group(s, d, l, g, of_group, n, basis, err);
    free(rank);
    free(basis);
    return status ? -1 : 0;
}

static bool reads_sigma(const kvd_parameter_values *v)
{
    return v->value[SEARCH] > 2;
}

const kvd_dims_maker kvd_dims_palu = {
    .info = {.name = "palu",
             .summary = "latents of groups of heads, keys rebuilt before RoPE at every step",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"p", 0.1, 0.9, false, NULL, 0, 0},
             .needs = KVD_NEEDS_ACTIVATIONS | KVD_NEEDS_PRE_ROPE,
             .gpu = &kvd_gpu_palu},
    .reads_fisher = reads_fisher,
    .reads_sigma = reads_sigma,
    .sigma = {KVD_PAIR_QK, KVD_PAIR_WV},
    .fits = fits,
    .make = make,
};
