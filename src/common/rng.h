/*
 * Random numbers that are the same on every machine: PCG-XSL-RR 128/64
 * (O'Neill 2014), seeded through splitmix64 so that nearby seeds differ.
 */
#ifndef KVD_COMMON_RNG_H
#define KVD_COMMON_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    __extension__ unsigned __int128 state, inc;
} kvd_rng;

/* Streams of one seed are independent: one for each purpose, so that a draw more of one leaves the others as they were. */
void kvd_rng_seed(kvd_rng *r, uint64_t seed, uint64_t stream);
uint64_t kvd_rng_u64(kvd_rng *r);
/* Uniform in [0, n), n >= 1, without bias. */
uint64_t kvd_rng_below(kvd_rng *r, uint64_t n);
/* Uniform in [0, 1). */
double kvd_rng_uniform(kvd_rng *r);
/* Standard normal. */
double kvd_rng_normal(kvd_rng *r);
/* index [n] becomes 0 .. n-1 with a uniformly drawn choice of k of them, in random order, in front. */
void kvd_rng_choose(kvd_rng *r, size_t n, size_t k, size_t *index);

#endif
