/*
 * Bases for timing: singular values that were measured on the heads of another model, dealt out over the heads of this one, with one random
 * rotation. Widths, and with them times, come out as unequal as those of the measured model; qualities mean nothing.
 */
#ifndef KVD_SERVING_SPREAD_H
#define KVD_SERVING_SPREAD_H

#include <stdint.h>

#include "formats/spectrum.h"

enum { KVD_SPREAD_DIMS = 1024 /* most of a head */ };

/* Singular values of measured heads. */
typedef struct {
    size_t d[KVD_N_PAIRS],
        n_heads;                /* dimensions of a pair, 0: it is not there; heads, of all pairs as many */
    double *sigma[KVD_N_PAIRS]; /* [n_heads][KVD_SPREAD_DIMS], of which d, falling */
} kvd_spread;

/*
 * CSV: a heading "pair,dim,NAME...", then a row for every pair and dimension from 0 on with a singular value of each head, as
 * experiments/kernels/make_widths.py writes it. Fails on values that rise, are negative or not finite, or begin with 0.
 */
int kvd_spread_load(kvd_spread *s, const char *path, kvd_err *err);
void kvd_spread_release(kvd_spread *s);

/*
 * Adds a pair to *b, whose model, pairing, n_layers are set. One rotation by `seed` for all heads (another one right of a balanced pair).
 * Heads, layer by layer, take the singular values of the measured ones in random order, each as often as the others; a curve of other d is read
 * at the same relative places, straight between its points. s NULL: all singular values are 1.
 */
int kvd_spread_pair(const kvd_spread *s, kvd_spectrum *b, kvd_pair pair, uint64_t seed, kvd_err *err);

#endif
