/* kvdim/rates files: kept dimensions of every layer and KV head, at several overall compression
 * rates. */
#ifndef KVD_FORMATS_RATES_H
#define KVD_FORMATS_RATES_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_rates;

/* number of dimensions that each head keeps: kept[0] for Q and K, kept[1] for V */
typedef struct {
    int n_layers, n_kv_heads, d_head;
    int32_t *kept[2]; /* [n_layers][n_kv_heads] numbers of kept dimensions */
} kvd_widths;

/* Allocates the numbers of kept dimensions of all heads, all 0. The caller releases *w. */
int kvd_widths_alloc(kvd_widths *w, int n_layers, int n_kv_heads, int d_head, kvd_err *err);
void kvd_widths_release(kvd_widths *w);
/* Returns the fraction of all dimensions of K and V that is removed, over all heads. If `padded`,
 * first rounds the kept dimensions of each head up to multiples of 16. */
double kvd_widths_p(const kvd_widths *w, int padded);
/* Returns the fraction of the dimensions of Q and K (`side` 0) or V (`side` 1) that is removed. */
double kvd_widths_side_p(const kvd_widths *w, int side);
typedef struct {
    int least, most;
    double mean;
} kvd_widths_range;
/* Returns the smallest, largest and mean number of kept dimensions of Q and K (`side` 0) or V
 * (1). */
kvd_widths_range kvd_widths_range_of(const kvd_widths *w, int side);
/* Rounds `kept` up to a multiple of 16, but at most to d_head. */
int32_t kvd_pad16(int32_t kept, int d_head);

typedef struct {
    kvd_model_info model;
    char label[64];
    /* rule that chose how many dimensions each head keeps
     *
     * - eq6: removes the smallest singular values, as long as their sum is at most a share r of the
     *   sum of all (ZACK paper, Eq. 6)
     * - eq6-energy: as eq6, but with squared singular values
     * - eq6-by-pair: as eq6, with one r for Q and K and another for V
     * - error: uses the model's loss as measured with fewer dimensions
     * - loss: uses the model's loss as predicted from gradients */
    char rule[16];
    kvd_pair pair[2]; /* rotation matrices used for Q and K (pair[0]) and for V (pair[1]) */
    /* hash of the rotation matrices; "" if the file lacks it */
    char bases_hash[KVD_BASES_HASH];
    size_t n_points;
    /* [n_points] share of the sum of singular values that may be removed, at each strength of
     * compression; NaN if the dimensions were not chosen by such a share */
    double *removal_rate;
    double *overall_p, *overall_p16;
    kvd_widths *widths; /* [n_points] kept dimensions at each strength of compression */
    /* length of each of the arrays table_r and table_p */
    size_t n_table;
    /* [n_table] step function p(r): p is table_p[i] for table_r[i] <= r < table_r[i + 1]. r: share
     * of the sum of singular values that may be removed. p: fraction of dimensions removed at r.
     * NULL if the file has no such function. */
    double *table_r, *table_p;
} kvd_rates;

int kvd_rates_write(kvd_h5 *f, const kvd_rates *r, kvd_err *err);
/* Reads a file of the numbers of dimensions that heads keep. Fails if a number is outside
 * 1 .. d_head, or if the numbers contradict the overall compression that the file states. */
int kvd_rates_load(kvd_rates *r, const char *path, kvd_err *err);
void kvd_rates_release(kvd_rates *r);

#endif
