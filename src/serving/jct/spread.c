#include "serving/jct/spread.h"

#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/files/csv.h"
#include "common/linalg.h"
#include "common/rng.h"

static int take_value(kvd_spread *s, kvd_pair pair, size_t head, size_t dim, const char *text,
                      kvd_err *err)
{
    double *const sigma = s->sigma[pair] + head * KVD_SPREAD_DIMS;
    if (kvd_arg_double("a singular value", text, 0, 1e300, &sigma[dim], err))
        return -1;
    if (dim ? sigma[dim] > sigma[dim - 1] : !(sigma[0] > 0))
        return kvd_fail(err, "pair '%s', head %zu: singular value %zu is %s", kvd_pair_name[pair],
                        head, dim, dim ? "larger than the one before" : "0");
    return 0;
}

static int take_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n,
                    kvd_err *err)
{
    kvd_spread *const s = ctx;
    size_t dim;
    if (kvd_csv_check_zero_bytes(field, len, n, err))
        return -1;
    if (line == 1) {
        s->n_heads = n > 2 ? n - 2 : 0;
        return n > 2 && !strcmp(field[0], "pair") && !strcmp(field[1], "dim")
                   ? 0
                   : kvd_fail(err, "the heading is not pair,dim and a name for every head");
    }
    const int pair = kvd_pair_find(field[0]);
    if (pair < 0)
        return kvd_fail(err, "no pair '%s'", field[0]);
    if (n != s->n_heads + 2)
        return kvd_fail(err, "%zu fields, the heading has %zu", n, s->n_heads + 2);
    if (kvd_arg_size("dim", field[1], 0, KVD_SPREAD_DIMS - 1, &dim, err))
        return -1;
    if (dim != s->d[pair])
        return kvd_fail(err, "pair '%s': dim %zu comes where %zu should", field[0], dim,
                        s->d[pair]);
    if (!s->sigma[pair] && !(s->sigma[pair] = calloc(s->n_heads, KVD_SPREAD_DIMS * sizeof(double))))
        return kvd_no_memory(err, "singular values", s->n_heads * KVD_SPREAD_DIMS * sizeof(double));
    for (size_t h = 0; h < s->n_heads; h++)
        if (take_value(s, (kvd_pair)pair, h, dim, field[2 + h], err))
            return -1;
    s->d[pair]++;
    return 0;
}

int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err)
{
    memset(s, 0, sizeof *s);
    if (kvd_csv_read(path, take_row, s, err))
        return -1;
    /* Fails if the file has fewer singular values for one matrix, such as Q-K, than for another
     * matrix. Values are interpolated later, which would be wrong if some were missing. */
    size_t most = 0;
    for (int p = 0; p < KVD_N_PAIRS; p++)
        most = s->d[p] > most ? s->d[p] : most;
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (s->d[p] && s->d[p] < most)
            return kvd_fail(err, "'%s': pair '%s' has %zu singular values, another has %zu", path,
                            kvd_pair_name[p], s->d[p], most);
    return 0;
}

void kvd_spread_release(kvd_spread *s)
{
    for (int p = 0; p < KVD_N_PAIRS; p++)
        free(s->sigma[p]);
    memset(s, 0, sizeof *s);
}

/* Returns singular value j of a head with d singular values, interpolated from the n values
 * `sigma`. */
static double at(const double *sigma, size_t n, size_t j, size_t d)
{
    const double x = ((double)j + 0.5) * (double)n / (double)d - 0.5;
    if (x <= 0 || n == 1)
        return sigma[0];
    const size_t i = (size_t)x < n - 1 ? (size_t)x : n - 2;
    const double share = x - (double)i < 1 ? x - (double)i : 1;
    return sigma[i] + share * (sigma[i + 1] - sigma[i]);
}

static int deal(const kvd_spread *s, kvd_pair pair, double *sigma, size_t heads, size_t d,
                uint64_t seed, kvd_err *err)
{
    size_t *const turn = malloc(s->n_heads * sizeof *turn);
    kvd_rng r;
    if (!turn)
        return kvd_no_memory(err, "an order of heads", s->n_heads * sizeof *turn);
    /* With the same seed, all matrices, such as K and V, get the same random order of heads. */
    kvd_rng_seed(&r, seed, 1);
    for (size_t h = 0; h < heads; h++) {
        if (h % s->n_heads == 0)
            kvd_rng_choose(&r, s->n_heads, s->n_heads, turn);
        for (size_t j = 0; j < d; j++)
            sigma[h * d + j] =
                at(s->sigma[pair] + turn[h % s->n_heads] * KVD_SPREAD_DIMS, s->d[pair], j, d);
    }
    free(turn);
    return 0;
}

static int random_rotation(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err)
{
    double *const x = malloc((2 * d * d + d) * sizeof *x);
    kvd_rng r;
    if (!x)
        return kvd_no_memory(err, "a random rotation", (2 * d * d + d) * sizeof *x);
    kvd_rng_seed(&r, seed, stream);
    for (size_t i = 0; i < 2 * d * d; i++)
        x[i] = kvd_rng_normal(&r);
    const int status = kvd_svd_right(x, 2 * d, d, x + 2 * d * d, R, err);
    free(x);
    return status;
}

int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err)
{
    const size_t d = (size_t)b->model.d_head;
    if (s && !s->d[pair])
        return kvd_fail(err, "no singular values of pair '%s'", kvd_pair_name[pair]);
    if (kvd_spectrum_alloc(b, pair, err))
        return -1;
    kvd_pair_spectrum *const p = &b->pair[pair];
    const size_t heads = (size_t)b->n_layers * (size_t)p->n_h;
    if (random_rotation(d, seed, 2, p->R, err) ||
        (p->right && random_rotation(d, seed, 3, p->right, err)))
        return -1;
    for (size_t h = 1; h < heads; h++) {
        memcpy(p->R + h * d * d, p->R, d * d * sizeof *p->R);
        if (p->right)
            memcpy(p->right + h * d * d, p->right, d * d * sizeof *p->right);
    }
    if (s)
        return deal(s, pair, p->sigma, heads, d, seed, err);
    for (size_t i = 0; i < heads * d; i++)
        p->sigma[i] = 1;
    return 0;
}
