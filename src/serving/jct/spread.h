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

/*
 * Singular values of the heads of a measured model. A kvd_pair is a set of matrices that share one
 * rotation, such as qk (Q and K) or vw (V and W_O).
 */
typedef struct {
    /*
     * Number of singular values of a head for each kvd_pair, 0 if the file does not have the pair;
     * number of heads, equal for all pairs.
     */
    size_t d[KVD_N_PAIRS], n_heads;
    /*
     * Singular values for each kvd_pair (set of matrices such as Q and K), decreasing:
     * [n_heads][KVD_SPREAD_DIMS]. Only the first d[pair] of each head are used.
     */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/*
 * Reads singular values from a CSV file with the heading "pair,dim,NAME...". A line has the name of
 * a set of matrices ("qk", "vw", ..), a dimension (from 0) and the singular value of each head in
 * this dimension. experiments/kernels/make_widths.py writes such files. Fails on values that
 * increase, are negative or not finite, or begin with 0.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations and singular values for the set of matrices `pair` (such as Q and K) to *b,
 * whose model, pairing and n_layers the caller has set. All heads get one rotation, drawn by
 * `seed`. In balanced projections, which have two matrices per head, a second one is the right
 * matrix. The heads, layer by layer, get the singular values of the measured heads in random order,
 * each equally often. If the measured heads have another number of dimensions, their singular
 * values are interpolated linearly. If s is NULL, all singular values are 1.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
