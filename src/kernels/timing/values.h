/* Generates test data: nearly normal pseudo-random numbers, each computed from its indices alone,
 * with equal bits on host and device. */
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

/* Returns the seed for the random data of one head in one request. `head` is a query head for Q, a
 * KV head for K and V. */
KVD_ANYWHERE static inline uint64_t kvd_value_key(uint64_t seed, int tensor, uint32_t request,
                                                  uint32_t head)
{
    const uint64_t key = kvd_value_mix(seed + 0x9e3779b97f4a7c15u * (uint64_t)(tensor + 1));
    return kvd_value_mix(key ^ ((uint64_t)request << 32 | head));
}

/* Returns one pseudo-random element of Q, K or V. If `sharp`, Q and K have outliers. `token` is the
 * index of a key or the position of a query; `dim` is below 256. */
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
