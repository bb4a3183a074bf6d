/* Random rotations with the singular values of another model's heads, to measure times only. */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/* Singular values of a measured model's heads, for each pair of matrices that share a rotation. */
typedef struct {
    /* Number of singular values per head, or 0 if the file lacks the pair. */
    size_t d[KVD_N_PAIRS], n_heads;
    /* Decreasing singular values [n_heads][KVD_SPREAD_DIMS], of which d[pair] are used. */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/*
 * Reads a CSV file "pair,dim,NAME..." of experiments/kernels/make_widths.py: one singular value per
 * head and line. Fails on values that increase, are negative or not finite, or begin with 0.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations and singular values of `pair` to *b, whose model, pairing and n_layers are
 * set. All heads share a rotation drawn by `seed`; a balanced projection draws a second one for
 * `right`.
 *
 * Heads take the singular values of measured heads in random order, interpolated to d_head. If s is
 * NULL, all values are 1.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
