/*
 * Random rotations with realistic singular values, for measuring times of models without a
 * spectrum file. The singular values measured on the heads of another model are distributed over
 * the heads of this one. The numbers of kept dimensions, and with them times, are then as unequal
 * as those of the measured model. The quality of the model's output has no meaning.
 */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest number of dimensions of a head (d_head) */ };

/* Singular values of the heads of a measured model, for each pair of matrices (such as Q and K). */
typedef struct {
    /*
     * Number of dimensions for each pair of matrices, 0 if the file does not have the pair; number
     * of heads, equal for all pairs.
     */
    size_t d[KVD_N_PAIRS], n_heads;
    /*
     * Singular values of each pair of matrices, [n_heads][KVD_SPREAD_DIMS], decreasing. The first
     * d are used.
     */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/*
 * Reads singular values from a CSV file: a heading "pair,dim,NAME...", then a line for every pair
 * of matrices and dimension (from 0) with a singular value of each head, as
 * experiments/kernels/make_widths.py writes it. Fails on values that increase, are negative or not
 * finite, or begin with 0.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations and singular values of a pair of matrices to *b. The caller has set model,
 * pairing and n_layers of *b. One rotation, drawn by `seed`, serves all heads (another one serves
 * the right matrix of a balanced pair). The heads, layer by layer, get the singular values of the
 * measured heads in random order, each equally often. If the number of dimensions differs,
 * singular values are interpolated linearly at the same relative positions. If s is NULL, all
 * singular values are 1.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
