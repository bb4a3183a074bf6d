/*
 * kvdim/rates files: number of kept dimensions of every layer and KV head, at several strengths of
 * compression.
 */
#ifndef KVD_FORMATS_RATES_H
#define KVD_FORMATS_RATES_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_rates;

/* Numbers of kept dimensions of all heads. kept[0] is for Q and K, kept[1] for V. */
typedef struct {
    int n_layers, n_kv_heads, d_head;
    int32_t *kept[2]; /* [n_layers][n_kv_heads] numbers of kept dimensions */
} kvd_widths;

/* Allocates numbers of kept dimensions, all 0. On success the caller releases *w. */
int kvd_widths_alloc(kvd_widths *w, int n_layers, int n_kv_heads, int d_head, kvd_err *err);
void kvd_widths_release(kvd_widths *w);
/*
 * Returns the removed fraction 1 - sum(d_qk + d_v) / (2 d_head n) of n heads. If `padded`, rounds
 * kept dimensions up to multiples of 16.
 */
double kvd_widths_p(const kvd_widths *w, int padded);
/* Returns the removed fraction of the dimensions of Q and K (side 0) or of V (side 1). */
double kvd_widths_side_p(const kvd_widths *w, int side);
typedef struct {
    int least, most;
    double mean;
} kvd_widths_range;
/*
 * Returns smallest, largest and mean number of kept dimensions of Q and K (`side` 0) or of V
 * (`side` 1).
 */
kvd_widths_range kvd_widths_range_of(const kvd_widths *w, int side);
/* Rounds a number of dimensions up to a multiple of 16, at most d_head. */
int32_t kvd_pad16(int32_t kept, int d_head);

typedef struct {
    kvd_model_info model;
    char label[64];
    /*
     * Rule that chose the kept dimensions.
     *
     * - eq6: sum of removed singular values <= r * sum of all (ZACK paper, Eq. 6)
     * - eq6-energy: squared singular values
     * - eq6-by-pair: one r for Q and K, another for V
     * - error: measured losses (kvdim/error-table)
     * - loss: losses predicted from gradients (kvdim-sensitivity)
     */
    char rule[16];
    kvd_pair pair[2]; /* rotations used for Q and K (pair[0]) and for V (pair[1]) */
    /* Hash of the rotations whose dimensions are counted; "" if the file lacks it. */
    char bases_hash[KVD_BASES_HASH];
    size_t n_points;
    /*
     * [n_points] Removal rate r of each point: removable fraction of the sum of singular values.
     * NaN if the rule has no single r.
     */
    double *removal_rate;
    double *overall_p, *overall_p16;
    kvd_widths *widths; /* [n_points] kept dimensions at each strength of compression */
    /*
     * Number of steps of the step function p(r), the removed fraction of dimensions at removal rate
     * r.
     */
    size_t n_table;
    /*
     * [n_table] Step function p(r): its value is table_p[i] if table_r[i] <= r < table_r[i + 1].
     * NULL if the rule has no single r.
     */
    double *table_r, *table_p;
} kvd_rates;

int kvd_rates_write(kvd_h5 *f, const kvd_rates *r, kvd_err *err);
/* Reads a file. Fails on kept dimensions outside 1 .. d_head and on wrong removed fractions. */
int kvd_rates_load(kvd_rates *r, const char *path, kvd_err *err);
void kvd_rates_release(kvd_rates *r);

#endif
