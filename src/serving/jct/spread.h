/* Makes random rotation matrices with singular values measured on another model. Times measured
 * with them are valid, accuracies are not. */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/* singular values of the heads of a measured model, by decomposed matrices */
typedef struct {
    /* number of singular values per head, or 0 if the file lacks the pair; number of heads */
    size_t d[KVD_N_PAIRS], n_heads;
    /* [n_heads][KVD_SPREAD_DIMS] falling singular values of decomposed matrices, such as Q-K */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/* Reads singular values from a CSV file "pair,dim,NAME...", one column per head; values must fall
 * from dim to dim. */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/* Adds random rotations of matrices `pair` (such as Q and K) to *b, equal for all heads.
 *
 * Singular values are those of measured heads in random order, or 1 if s is NULL. */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
