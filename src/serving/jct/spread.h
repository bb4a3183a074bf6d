/*
 * Random rotations with singular values that were measured on the heads of another model. They
 * serve to measure times: the kept dimensions are as unequal as in the measured model, but the
 * model's output has no meaning.
 */
#ifndef KVD_SERVING_JCT_SPREAD_H
#define KVD_SERVING_JCT_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* largest d_head */ };

/*
 * Singular values of the heads of a measured model. A kvd_pair is a set of matrices that share one
 * rotation, such as qk (Q and K) or vw (V and W_O).
 */
typedef struct {
    /*
     * `d` is the number of singular values of a head for each kvd_pair; it is 0 if the file does
     * not have the kvd_pair. `n_heads` is the number of heads.
     */
    size_t d[KVD_N_PAIRS], n_heads;
    /*
     * Singular values for each kvd_pair, decreasing: [n_heads][KVD_SPREAD_DIMS]. Only the first
     * d[pair] of each head are used.
     */
    double *sigma[KVD_N_PAIRS];
} kvd_spread;

/*
 * Reads a CSV file with the heading "pair,dim,NAME...", which experiments/kernels/make_widths.py
 * writes. A line has the name of a kvd_pair, a dimension (from 0) and the singular value of each
 * head. Fails on values that increase, are negative or not finite, and if the first value of a head
 * is 0.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds random rotations and singular values for the matrices `pair` to *b. The caller has set the
 * model, pairing and n_layers of *b. All heads get one rotation, drawn by `seed`. A balanced
 * projection has two matrices per head, `left` and `right`; a second random rotation is drawn for
 * `right`.
 *
 * The singular values of each head are those of a measured head in *s. The measured heads are used
 * in random order, each equally often. If the measured heads have a different number of dimensions,
 * their singular values are interpolated linearly. If s is NULL, all singular values are 1.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed,
                    kvd_err *err);

#endif
