/* Random rotations with another model's singular values, to measure times only. */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/* Singular values of a measured model's heads, by kvd_pair. */
typedef struct {
    /* Singular values per head; 0: not in the file. */
    size_t d[KVD_N_PAIRS], n_heads;
    /* Decreasing singular values [n_heads][KVD_SPREAD_DIMS], of which d[pair] are used. */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/*
 * Reads a CSV file "pair,dim,NAME..." (experiments/kernels/make_widths.py) of singular values per
 * head, which must decrease from a positive value.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations and singular values of `pair` to *b, whose model, pairing and n_layers are
 * set. All heads share a rotation of `seed`; balanced projections have another for `right`.
 *
 * Values are of measured heads in random order, interpolated; 1 if s is NULL.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
