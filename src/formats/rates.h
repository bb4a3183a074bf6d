/*
 * kvdim/rates files: numbers of kept dimensions of every layer and KV head, for Q and K and for V,
 * at one or more strengths of compression.
 */
#ifndef KVD_FORMATS_RATES_H
#define KVD_FORMATS_RATES_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_rates;

/*
 * Numbers of kept dimensions of all heads at one strength of compression. Side 0 is for Q and K,
 * side 1 for V.
 */
typedef struct {
    int n_layers, n_kv_heads, d_head;
    /*
     * Kept dimensions of each KV head, 1 .. d_head: kept[0] of Q and K, kept[1] of V,
     * [n_layers][n_kv_heads] each.
     */
    int32_t *kept[2];
} kvd_widths;

/*
 * Allocates the numbers of kept dimensions of all heads, set to 0. On success the caller releases
 * *w.
 */
int kvd_widths_alloc(kvd_widths *w, int n_layers, int n_kv_heads, int d_head, kvd_err *err);
void kvd_widths_release(kvd_widths *w);
/*
 * Returns the removed fraction of all dimensions, overall p = 1 - sum(d_qk + d_v) / (2 d_head n).
 * d_qk and d_v are kept dimensions of a head; n is the number of KV heads of all layers. If
 * `padded`, each d counts as rounded up to a multiple of 16, at most d_head.
 */
double kvd_widths_p(const kvd_widths *w, int padded);
/*
 * Returns the removed fraction of dimensions p of Q and K alone (side 0) or of V alone (side 1).
 * Overall p is the mean of both.
 */
double kvd_widths_side_p(const kvd_widths *w, int side);
/*
 * Returns the number of kept dimensions rounded up to a multiple of 16, at most d_head. GPU kernels
 * compute with this number.
 */
int32_t kvd_pad16(int32_t kept, int d_head);

typedef struct {
    kvd_model_info model;
    char label[64]; /* name of the calibration text, for result tables */
    /*
     * Name of the rule that chose the kept dimensions of each head.
     *
     *   eq6          the removed singular values sum to at most a fraction r of all (ZACK, Eq. 6)
     *   eq6-energy   the same with squared singular values
     *   eq6-by-pair  eq6 with one r for Q and K and another r for V
     *   error        by measured losses of prediction quality (kvdim/error-table)
     *   loss         by losses predicted from gradients (kvdim-sensitivity)
     */
    char rule[16];
    /* Rotations of Q and K (pair[0], e.g. KVD_PAIR_QK) and of V (pair[1], e.g. KVD_PAIR_VW). */
    kvd_pair pair[2];
    /* Hash of the rotations for which the kept dimensions were chosen; "" if the file lacks it. */
    char bases_hash[KVD_BASES_HASH];
    size_t n_points;
    /*
     * Singular value removal rate at each of the n_points strengths of compression: the fraction r
     * of the sum of a head's singular values that may be removed. NaN if `rule` does not use one r
     * for all of Q, K and V.
     */
    double *removal_rate;
    double *overall_p, *overall_p16;
    /* Kept dimensions of all heads at each of the n_points strengths of compression. */
    kvd_widths *widths;
    /*
     * Fraction p of all dimensions that is removed, as a step function of the removal rate r: at
     * rates from table_r[i] up to table_r[i + 1] it is table_p[i].
     */
    size_t n_table;
    /*
     * Removal rates r and removed fractions p, both rising, n_table elements each. NULL if `rule`
     * does not use one r for all of Q, K and V.
     */
    double *table_r, *table_p;
} kvd_rates;

int kvd_rates_write(kvd_h5 *f, const kvd_rates *r, kvd_err *err);
/*
 * Reads a kvdim/rates file. Refuses numbers of kept dimensions outside 1 .. d_head, and a removed
 * fraction (overall_p) that does not follow from them. Also refuses a removal rate r if the rule
 * that chose the dimensions does not use one r for all of Q, K and V. On success the caller
 * releases *r.
 */
int kvd_rates_load(kvd_rates *r, const char *path, kvd_err *err);
void kvd_rates_release(kvd_rates *r);

#endif
