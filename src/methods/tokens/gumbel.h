/* Noise of method keyformer, for C and CUDA: a random number with a standard Gumbel distribution
 * for each token and query head. */
#ifndef KVD_METHODS_TOKENS_GUMBEL_H
#define KVD_METHODS_TOKENS_GUMBEL_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define KVD_ANYWHERE __host__ __device__
#else
#define KVD_ANYWHERE
#endif

KVD_ANYWHERE static inline uint64_t kvd_gumbel_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* Returns a hash of seed, layer and query head. It is the argument `head` of the functions
 * below. */
KVD_ANYWHERE static inline uint64_t kvd_gumbel_head(uint64_t seed, int layer, int head)
{
    return kvd_gumbel_mix(seed ^ kvd_gumbel_mix((uint64_t)layer << 32 | (uint64_t)head));
}

/* Returns 53 random bits b. (b + 1/2) / 2^53 is a uniform random number in (0, 1). */
KVD_ANYWHERE static inline uint64_t kvd_gumbel_bits(uint64_t head, uint32_t token)
{
    return kvd_gumbel_mix(head ^ token) >> 11;
}

static inline double kvd_gumbel(uint64_t head, uint32_t token)
{
    return -log(-log(((double)kvd_gumbel_bits(head, token) + 0.5) * 0x1p-53));
}

/* Returns a random number with a Gumbel distribution, -log(-log(u)), where u is uniform in (0, 1).
 * If u > 1/2, computes log(u) from 1 - u, because float32 is more precise near 0. */
KVD_ANYWHERE static inline float kvd_gumbelf(uint64_t head, uint32_t token)
{
    const uint64_t bits = kvd_gumbel_bits(head, token), rest = ((uint64_t)1 << 53) - 1 - bits;
    const float e = bits >> 52 ? -log1pf(-(((float)rest + 0.5f) * 0x1p-53f))
                               : -logf(((float)bits + 0.5f) * 0x1p-53f);
    return -logf(e);
}

#endif
