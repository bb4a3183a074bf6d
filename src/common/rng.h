/* Random numbers that are equal on every machine: PCG-XSL-RR 128/64 (O'Neill 2014). */
#ifndef KVD_COMMON_RNG_H
#define KVD_COMMON_RNG_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    __extension__ unsigned __int128 state, inc;
} kvd_rng;

/* Sets the seed and the stream of a generator. Streams of one seed are independent. */
void kvd_rng_seed(kvd_rng *r, uint64_t seed, uint64_t stream);
uint64_t kvd_rng_u64(kvd_rng *r);
/* Returns a uniform number in [0, n), without bias. n must be at least 1. */
uint64_t kvd_rng_below(kvd_rng *r, uint64_t n);
double kvd_rng_uniform(kvd_rng *r);
double kvd_rng_normal(kvd_rng *r);
/* Draws k different random numbers of 0 .. n - 1 into index[0 .. k - 1]. The other numbers follow
 * in index[k .. n - 1]. */
void kvd_rng_choose(kvd_rng *r, size_t n, size_t k, size_t *index);

#endif
