/* Makes random calibration data for timing: random rotations (orthogonal matrices), and singular
 * values measured on another model. Accuracies that are measured with these data are
 * meaningless. */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/* singular values of a measured model, for each head and each decomposed matrix, such as V */
typedef struct {
    /* d: number of singular values per head, for each decomposed matrix, such as Q stacked on K; 0
     * if the file lacks the matrix. n_heads: number of heads. */
    size_t d[KVD_N_PAIRS], n_heads;
    /* [n_heads][KVD_SPREAD_DIMS] singular values in falling order, for each decomposed matrix, such
     * as Q stacked on K */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/* Reads singular values from a CSV file. Columns: pair (name of the decomposed matrix, such as
 * "qk"), dim, and one column per head. Fails if the singular values of a head are not in falling
 * order. */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/* Writes to *b a random decomposition of the matrices `pair`, such as Q stacked on K. All heads get
 * one random rotation (orthogonal matrix). Each head gets the singular values of a random head of
 * *s, or singular values of 1 if s is NULL. */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
