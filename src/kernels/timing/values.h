/*
 * Test data from a counter-based generator: an element depends on seed, tensor, request, head,
 * token and dim alone.
 *
 * A value is the sum of the 8 bytes of a 64-bit hash, minus its mean, over its standard deviation:
 * nearly normal, mean 0, variance 1, the same bits on host and device.
 *
 * `sharp` data have outliers: every 16th dim of Q and K is 4 times as large, one K vector in 61 is
 * 8 times as large. Scores then have a standard deviation of about 4, or 33 for those keys.
 */
#ifndef KVD_KERNELS_TIMING_VALUES_H
#define KVD_KERNELS_TIMING_VALUES_H

#include <stdint.h>

#ifdef __CUDACC__
#define KVD_ANYWHERE __host__ __device__
#else
#define KVD_ANYWHERE
#endif

typedef enum { KVD_OPERAND_Q, KVD_OPERAND_K, KVD_OPERAND_V } kvd_operand;

/* Returns the splitmix64 finaliser of z. */
KVD_ANYWHERE static inline uint64_t kvd_value_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/*
 * Returns the hash key from which the elements of Q, K or V of one head and request are computed.
 * `head`: query head for Q, KV head for K and V.
 */
KVD_ANYWHERE static inline uint64_t kvd_value_key(uint64_t seed, int tensor, uint32_t request,
                                                  uint32_t head)
{
    const uint64_t key = kvd_value_mix(seed + 0x9e3779b97f4a7c15u * (uint64_t)(tensor + 1));
    return kvd_value_mix(key ^ ((uint64_t)request << 32 | head));
}

/*
 * Returns one pseudo-random element of Q, K or V, computed from its indices. `token` is the index
 * of the key or the position of the query. `dim` is below 256.
 */
KVD_ANYWHERE static inline float kvd_value(uint64_t key, int tensor, int sharp, uint32_t token,
                                           uint32_t dim)
{
    const uint64_t x = kvd_value_mix(key + 0x9e3779b97f4a7c15u * ((uint64_t)token << 8 | dim));
    const uint64_t pairs = (x & 0x00ff00ff00ff00ffu) + (x >> 8 & 0x00ff00ff00ff00ffu);
    const int sum = (int)(pairs * 0x0001000100010001u >> 48) - 1020;
    float v = (float)sum * (1 / 209.0229f);
    if (sharp && tensor != KVD_OPERAND_V) {
        if (dim % 16 == 5)
            v *= 4;
        if (tensor == KVD_OPERAND_K && kvd_value_mix(key ^ token) % 61 == 0)
            v *= 8;
    }
    return v;
}

#endif
