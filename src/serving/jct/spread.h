/*
 * Makes random rotations with singular values of another model. They serve only to measure times.
 */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/*
 * Singular values of the heads of a measured model, for each set of matrices that was decomposed
 * together (kvd_pair, such as Q and K).
 */
typedef struct {
    /* Number of singular values per head, 0 if the file has none, and number of heads. */
    size_t d[KVD_N_PAIRS], n_heads;
    /* [n_heads][KVD_SPREAD_DIMS] Singular values, decreasing. */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/*
 * Reads a CSV file of singular values, "pair,dim,NAME...", one column per head
 * (experiments/kernels/make_widths.py). The values must decrease.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations and singular values of matrices `pair` (such as Q and K) to *b. All heads
 * get one rotation, drawn by `seed`.
 *
 * Heads get the singular values of the measured heads, taken in random order and interpolated to
 * the number of dimensions. If s is NULL, all values are 1.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
