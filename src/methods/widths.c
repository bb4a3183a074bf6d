#include "methods/widths.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"

static double weight(double s, bool energy)
{
    return energy ? s * s : s;
}

/* Returns the sum of the singular values or, if `energy`, of their squares, added from the smallest
 * on. */
static double total(const double *sigma, size_t d, bool energy)
{
    double sum = 0;
    for (size_t j = d; j-- > 0;)
        sum += weight(sigma[j], energy);
    return sum;
}

int kvd_keep(const double *sigma, size_t d, double r, bool energy)
{
    const double all = total(sigma, d, energy);
    double tail = 0;
    size_t j = d - 1;
    if (!(all > 0))
        return 1;
    for (; j > 0; j--) {
        tail += weight(sigma[j], energy);
        if (tail / all > r)
            break;
    }
    return (int)(j + 1);
}

static int check_pair(const kvd_spectrum *s, kvd_pair pair, kvd_err *err)
{
    const kvd_pair_spectrum *x = &s->pair[pair];
    if (!x->present)
        return kvd_fail(err, "the spectrum has no pair '%s'", kvd_pair_name[pair]);
    if (x->n_h != s->model.n_kv_heads)
        return kvd_fail(
            err,
            "pair '%s' has %d rotations per layer for %d KV heads: widths need pairing 'shared', "
            "this spectrum is '%s'",
            kvd_pair_name[pair], x->n_h, s->model.n_kv_heads, kvd_pairing_name[s->pairing]);
    return 0;
}

int kvd_widths_eq6(const kvd_spectrum *s, const kvd_pair pair[2], double r, bool energy,
                   kvd_widths *w, kvd_err *err)
{
    const size_t d = (size_t)s->model.d_head;
    if (check_pair(s, pair[0], err) || check_pair(s, pair[1], err) ||
        kvd_widths_alloc(w, s->n_layers, s->model.n_kv_heads, s->model.d_head, err))
        return -1;
    const size_t heads = (size_t)s->n_layers * (size_t)s->model.n_kv_heads;
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < heads; i++)
            w->kept[side][i] = kvd_keep(s->pair[pair[side]].sigma + i * d, d, r, energy);
    return 0;
}

int kvd_rate_table(const kvd_spectrum *s, const kvd_pair pair[2], bool energy, double **table_r,
                   double **table_p, size_t *n, kvd_err *err)
{
    const size_t d = (size_t)s->model.d_head;
    const size_t heads = (size_t)s->n_layers * (size_t)s->model.n_kv_heads;
    double *breaks = NULL, *rates = NULL, *ps = NULL;
    int status = -1;
    if (check_pair(s, pair[0], err) || check_pair(s, pair[1], err))
        return -1;
    const size_t most = 2 * heads * (d - 1);
    breaks = malloc((most + 1) * sizeof *breaks);
    rates = malloc((most + 1) * sizeof *rates);
    ps = malloc((most + 1) * sizeof *ps);
    if (!breaks || !rates || !ps) {
        kvd_no_memory(err, "the table of removal rates", 3 * (most + 1) * sizeof *breaks);
        goto done;
    }
    size_t m = 0;
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < heads; i++) {
            const double *sigma = s->pair[pair[side]].sigma + i * d, all = total(sigma, d, energy);
            double tail = 0;
            for (size_t j = d - 1; j > 0; j--) {
                tail += weight(sigma[j], energy);
                breaks[m++] = all > 0 ? tail / all : 0;
            }
        }
    kvd_sort(breaks, m);

    /* Counts removed dimensions as integers and then divides, so that rounding errors do not add
     * up. */
    size_t gone = 0, rows = 0;
    while (gone < m && breaks[gone] <= 0)
        gone++;
    const double stored = 2.0 * (double)d * (double)heads;
    rates[rows] = 0;
    ps[rows++] = 1 - (stored - (double)gone) / stored;
    while (gone < m) {
        const double r = breaks[gone];
        while (gone < m && breaks[gone] == r)
            gone++;
        /* Rounding errors can make the removal rate 1, which is outside its range. */
        if (r >= 1)
            break;
        rates[rows] = r;
        ps[rows++] = 1 - (stored - (double)gone) / stored;
    }
    *table_r = rates;
    *table_p = ps;
    *n = rows;
    rates = ps = NULL;
    status = 0;
done:
    free(breaks);
    free(rates);
    free(ps);
    return status;
}

int kvd_table_r_for(const double *table_r, const double *table_p, size_t n, double p, double *r,
                    kvd_err *err)
{
    const double least = p - 1e-12;
    if (!(table_p[n - 1] >= least))
        return kvd_fail(err,
                        "no removal rate reaches p = %g: the largest attainable is %.6g, where one "
                        "dimension of every head is kept",
                        p, table_p[n - 1]);
    size_t lo = 0, hi = n - 1;
    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;
        if (table_p[mid] >= least)
            hi = mid;
        else
            lo = mid + 1;
    }
    *r = table_r[lo];
    return 0;
}

/* Adds to the error message *err the matrices (Q and K, or V) that it concerns. Adds nothing if
 * `side` is KVD_BOTH_SIDES. Returns -1. */
static int in_side(const kvd_pair pair[2], int side, kvd_err *err)
{
    return side < 0 ? -1 : kvd_in(err, "pair '%s'", kvd_pair_name[pair[side]]);
}

int kvd_widths_for_p(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                     bool energy, double *r, kvd_widths *w, kvd_err *err)
{
    const kvd_pair used[2] = {pair[side < 0 ? 0 : side], pair[side < 0 ? 1 : side]};
    double *table_r = NULL, *table_p = NULL, rate;
    size_t n;
    const int status = kvd_rate_table(s, used, energy, &table_r, &table_p, &n, err) ||
                       kvd_table_r_for(table_r, table_p, n, wanted_p, &rate, err) ||
                       kvd_widths_eq6(s, used, rate, energy, w, err);
    free(table_r);
    free(table_p);
    if (status)
        return in_side(pair, side, err);
    for (int i = 0; side >= 0 && i < w->n_layers * w->n_kv_heads; i++)
        w->kept[1 - side][i] = w->d_head;
    if (r)
        *r = rate;
    return 0;
}

/* Edge of the lower convex hull of a head's error as a function of its kept dimensions. Along the
 * edge, each of `dims` removed dimensions costs `slope` nats. */
typedef struct {
    double slope;
    /* Index of the head in an array [2][n_layers][n_kv_heads]. The first half of the array is for Q
     * and K, the second half for V. */
    size_t head;
    int32_t dims;
    /* Index of this edge on the convex hull of one head's error curve, counted from the most kept
     * dimensions. */
    int order;
} edge;

static int compare_edges(const void *a, const void *b)
{
    const edge *x = a, *y = b;
    if (x->slope != y->slope)
        return x->slope < y->slope ? -1 : 1;
    if (x->head != y->head)
        return x->head < y->head ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

/* Writes the edges of the lower convex hull of the points (width[i], error[i]). Returns the number
 * of edges. */
static size_t hull_edges(const int32_t *width, const double *error, size_t n, size_t head,
                         size_t *hull, edge *out)
{
    size_t m = 0;
    for (size_t i = n; i-- > 0;) {
        while (m >= 2) {
            const size_t a = hull[m - 2], b = hull[m - 1];
            /* A point b on or above the line from a to i is not on the hull. */
            const double via = (error[b] - error[a]) * (double)(width[a] - width[i]);
            const double direct = (error[i] - error[a]) * (double)(width[a] - width[b]);
            if (via < direct)
                break;
            m--;
        }
        hull[m++] = i;
    }
    for (size_t k = 1; k < m; k++) {
        const int32_t dims = width[hull[k - 1]] - width[hull[k]];
        out[k - 1] =
            (edge){(error[hull[k]] - error[hull[k - 1]]) / (double)dims, head, dims, (int)k};
    }
    return m - 1;
}

int kvd_table_matches(const kvd_error_table *t, const char *table_path, const kvd_spectrum *s,
                      const char *spectrum_path, kvd_err *err)
{
    char hash[KVD_BASES_HASH];
    if (!t->bases_hash[0])
        return 0;
    if (kvd_spectrum_bases_hash(s, t->pair, hash, err))
        return -1;
    if (strcmp(hash, t->bases_hash))
        return kvd_fail(
            err,
            "'%s' was measured with other bases of %s and %s than '%s' holds: run --scan-errors "
            "again with these",
            table_path, kvd_pair_name[t->pair[0]], kvd_pair_name[t->pair[1]], spectrum_path);
    return 0;
}

static int by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                    kvd_err *err)
{
    const size_t heads = (size_t)t->n_layers * (size_t)t->n_kv_heads, n = t->n_widths,
                 n_sides = side < 0 ? 2 : 1;
    const double stored = (double)(n_sides * heads) * (double)t->d_head;
    const double most = 1 - (double)t->width[0] / (double)t->d_head;
    if (wanted_p > most + 1e-12)
        return kvd_fail(
            err, "p = %g is not attainable: the table's smallest width is %d of %d, p = %.6g",
            wanted_p, (int)t->width[0], t->d_head, most);

    edge *edges = malloc(2 * heads * n * sizeof *edges);
    size_t *hull = malloc(n * sizeof *hull);
    int status = -1;
    if (!edges || !hull) {
        kvd_no_memory(err, "the hulls of the error curves", 2 * heads * n * sizeof *edges);
        goto done;
    }
    if (kvd_widths_alloc(w, t->n_layers, t->n_kv_heads, t->d_head, err))
        goto done;
    size_t m = 0;
    for (size_t h = 0; h < 2 * heads; h++) {
        w->kept[h / heads][h % heads] = t->d_head;
        if (side < 0 || h / heads == (size_t)side)
            m += hull_edges(t->width, t->error + h * n, n, h, hull, edges + m);
    }
    qsort(edges, m, sizeof *edges, compare_edges);

    /* Removes dimensions in rising order of the error that their removal adds. */
    double left = ceil(wanted_p * stored - 1e-9);
    for (size_t i = 0; i < m && left > 0; i++) {
        const int32_t cut = (double)edges[i].dims <= left ? edges[i].dims : (int32_t)left;
        w->kept[edges[i].head / heads][edges[i].head % heads] -= cut;
        left -= (double)cut;
    }
    status = 0;
done:
    free(hull);
    free(edges);
    return status;
}

int kvd_widths_by_error(const kvd_error_table *t, int side, double wanted_p, kvd_widths *w,
                        kvd_err *err)
{
    return by_error(t, side, wanted_p, w, err) ? in_side(t->pair, side, err) : 0;
}

static int by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                   double *loss, kvd_widths *w, kvd_err *err)
{
    const size_t d = (size_t)s->model.d_head, n_sides = side < 0 ? 2 : 1,
                 heads = (size_t)s->n_layers * (size_t)s->model.n_kv_heads,
                 most = n_sides * heads * (d - 1);
    const double stored = (double)(n_sides * heads) * (double)d;
    if (!kvd_pair_fisher(pair[0]) || !kvd_pair_fisher(pair[1]))
        return kvd_fail(
            err,
            "ranks=loss compares the singular values of all heads, but those of %s and %s have no "
            "common unit: it requires pairs fqk and fvw",
            kvd_pair_name[pair[0]], kvd_pair_name[pair[1]]);
    const double gone = ceil(wanted_p * stored - 1e-9);
    if (gone > (double)most)
        return kvd_fail(err,
                        "p = %g is not attainable: one dimension of every head is kept, p = %.6g",
                        wanted_p, (double)most / stored);
    if (check_pair(s, pair[0], err) || check_pair(s, pair[1], err) ||
        kvd_widths_alloc(w, s->n_layers, s->model.n_kv_heads, s->model.d_head, err))
        return -1;
    kvd_ranked *const all = malloc((most ? most : 1) * sizeof *all);
    if (!all)
        return kvd_no_memory(err, "singular values", (unsigned long long)most * sizeof *all);
    size_t m = 0;
    for (size_t h = 0; h < 2 * heads; h++) {
        const double *const sigma = s->pair[pair[h / heads]].sigma + h % heads * d;
        w->kept[h / heads][h % heads] = (int32_t)d;
        for (size_t j = 1; (side < 0 || h / heads == (size_t)side) && j < d; j++)
            all[m++] = (kvd_ranked){sigma[j], h};
    }
    qsort(all, m, sizeof *all, kvd_by_rising_value);
    double sum = 0;
    for (size_t i = 0; (double)i < gone; i++) {
        w->kept[all[i].index / heads][all[i].index % heads]--;
        sum += all[i].value * all[i].value;
    }
    free(all);
    if (loss)
        *loss = sum / 2;
    return 0;
}

int kvd_widths_by_loss(const kvd_spectrum *s, const kvd_pair pair[2], int side, double wanted_p,
                       double *loss, kvd_widths *w, kvd_err *err)
{
    return by_loss(s, pair, side, wanted_p, loss, w, err) ? in_side(pair, side, err) : 0;
}
