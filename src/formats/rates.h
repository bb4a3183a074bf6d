/*
 * kvdim/rates files: numbers of kept dimensions of every layer and KV head, for Q and K and for V,
 * at several strengths of compression.
 */
#ifndef KVD_FORMATS_RATES_H
#define KVD_FORMATS_RATES_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_rates;

/* Numbers of kept dimensions of all heads. Index 0 is for Q and K, index 1 for V. */
typedef struct {
    int n_layers, n_kv_heads, d_head;
    /* Kept dimensions of each KV head: kept[0] of Q and K, kept[1] of V, [n_layers][n_kv_heads]. */
    int32_t *kept[2];
} kvd_widths;

/* Allocates numbers of kept dimensions, all 0. On success the caller releases *w. */
int kvd_widths_alloc(kvd_widths *w, int n_layers, int n_kv_heads, int d_head, kvd_err *err);
void kvd_widths_release(kvd_widths *w);
/*
 * Returns the removed fraction of dimensions, p = 1 - sum(d_qk + d_v) / (2 d_head n), over all n =
 * n_layers * n_kv_heads KV heads. If `padded`, each d_qk and each d_v is first rounded up to a
 * multiple of 16, at most d_head.
 */
double kvd_widths_p(const kvd_widths *w, int padded);
/* Returns the removed fraction of the dimensions of Q and K (side 0) or of V (side 1). */
double kvd_widths_side_p(const kvd_widths *w, int side);
/* Rounds a number of dimensions up to a multiple of 16, at most d_head, as GPU kernels need it. */
int32_t kvd_pad16(int32_t kept, int d_head);

typedef struct {
    kvd_model_info model;
    char label[64];
    /*
     * Rule that chose the kept dimensions.
     *
     *   eq6          sum of removed singular values <= r * sum of all of them (ZACK, Eq. 6)
     *   eq6-energy   like eq6, with squared singular values
     *   eq6-by-pair  like eq6, with one r for Q and K and another for V
     *   error        by measured losses of prediction quality (kvdim/error-table)
     *   loss         by losses predicted from gradients (kvdim-sensitivity)
     */
    char rule[16];
    /*
     * Kind of rotation used for Q and K (pair[0], e.g. KVD_PAIR_QK) and for V (pair[1], e.g.
     * KVD_PAIR_VW).
     */
    kvd_pair pair[2];
    /* Hash of the rotations for which the kept dimensions were chosen; "" if the file lacks it. */
    char bases_hash[KVD_BASES_HASH];
    size_t n_points;
    /*
     * Fraction r of the sum of a head's singular values that may be removed, [n_points]. NaN if
     * `rule` does not use one r for all of Q, K and V.
     */
    double *removal_rate;
    double *overall_p, *overall_p16;
    /* Kept dimensions at each strength of compression, [n_points]. */
    kvd_widths *widths;
    /*
     * Number of steps of the step function p(r): p is the fraction of dimensions removed if
     * singular values up to the fraction r of their sum may be removed.
     */
    size_t n_table;
    /*
     * Steps of p(r), [n_table] each, rising: p(r) is table_p[i] if table_r[i] <= r < table_r[i +
     * 1]. NULL if `rule` does not use one r for all of Q, K and V.
     */
    double *table_r, *table_p;
} kvd_rates;

int kvd_rates_write(kvd_h5 *f, const kvd_rates *r, kvd_err *err);
/*
 * Reads a kvdim/rates file. Fails on numbers of kept dimensions outside 1 .. d_head, and on removed
 * fractions that contradict these numbers. On success the caller releases *r.
 */
int kvd_rates_load(kvd_rates *r, const char *path, kvd_err *err);
void kvd_rates_release(kvd_rates *r);

#endif
