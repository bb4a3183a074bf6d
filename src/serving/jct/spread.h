/* Makes random rotation matrices with singular values that were measured on another model. Times
 * measured with such matrices are valid, accuracies are not. */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/* singular values of all heads of a measured model, for each pair of decomposed matrices */
typedef struct {
    /* d: number of singular values per head, for each decomposed matrix, such as Q stacked on K; 0
     * if the file lacks the matrix. n_heads: number of heads. */
    size_t d[KVD_N_PAIRS], n_heads;
    /* [n_heads][KVD_SPREAD_DIMS] singular values in falling order, for each decomposed matrix, such
     * as Q stacked on K */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/* Reads singular values from a CSV file with the columns pair, dim and one column per head. Fails
 * if a head's values of a pair rise with `dim`. */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/* Adds random rotation matrices for `pair`, such as Q-K, to *b; all heads get the same rotation.
 *
 * Each head gets the singular values of a measured head, in random order of heads. If s is NULL,
 * all singular values are 1. */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
