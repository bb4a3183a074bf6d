/* Makes random rotations with another model's singular values, to measure times only. */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/* singular values of the heads of a measured model, by decomposed matrices */
typedef struct {
    /* number of singular values per head, or 0, and number of heads */
    size_t d[KVD_N_PAIRS], n_heads;
    /* singular values [n_heads][KVD_SPREAD_DIMS], falling */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/* Reads a CSV file "pair,dim,NAME...", one column per head, falling. */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations of matrices `pair` (such as Q and K) to *b, equal for all heads.
 *
 * Singular values are those of measured heads in random order, or 1 if s is NULL.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
