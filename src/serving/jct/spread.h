/* Random rotations with another model's singular values, to measure times only. */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/* Singular values of a measured model's heads, by kvd_pair. */
typedef struct {
    /* Singular values per head; 0 if the file has none. */
    size_t d[KVD_N_PAIRS], n_heads;
    /* Singular values, decreasing, [n_heads][KVD_SPREAD_DIMS]. */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/*
 * Reads a CSV file of singular values, "pair,dim,NAME...", one column per head
 * (experiments/kernels/make_widths.py). The values must decrease.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations and singular values of `pair` to *b. All heads get one rotation, drawn by
 * `seed`.
 *
 * Heads get the singular values of measured heads in random order, interpolated. If s is NULL, all
 * values are 1.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
