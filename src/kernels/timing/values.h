/*
 * Test and benchmark data by counting: element (tensor, request, head, token, dim) of seed s is a function of those numbers
 * alone. Gigabytes of it are made where they are needed, and any row can be made again elsewhere to be checked.
 *
 * A value is the sum of the 8 bytes of a 64-bit hash, centred and divided by its standard deviation: integers until one
 * float product, so the host and the device make the same bits. Mean 0, variance 1, within +-4.9, near normal.
 *
 * Sharp data have outliers as trained models have: every 16th dim of Q and K is 4 times as large, and so are 8 times all dims of
 * one K in 61. Scores then have a standard deviation near 4, near 33 against those keys, and softmax has few winners.
 */
#ifndef KVD_KERNELS_VALUES_H
#define KVD_KERNELS_VALUES_H

#include <stdint.h>

#ifdef __CUDACC__
#define KVD_ANYWHERE __host__ __device__
#else
#define KVD_ANYWHERE
#endif

typedef enum { KVD_TENSOR_Q, KVD_TENSOR_K, KVD_TENSOR_V } kvd_tensor;

/* The finaliser of splitmix64. */
KVD_ANYWHERE static inline uint64_t kvd_value_mix(uint64_t z)
{
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* The part of the hash that a whole matrix shares. head: query head of Q, KV head of K and V. */
KVD_ANYWHERE static inline uint64_t kvd_value_key(uint64_t seed, int tensor, uint32_t request, uint32_t head)
{
    const uint64_t key = kvd_value_mix(seed + 0x9e3779b97f4a7c15u * (uint64_t)(tensor + 1));
    return kvd_value_mix(key ^ ((uint64_t)request << 32 | head));
}

/* token counts from the first key of the request (a query stands at its position); dim < 256. */
KVD_ANYWHERE static inline float kvd_value(uint64_t key, int tensor, int sharp, uint32_t token, uint32_t dim)
{
    const uint64_t x = kvd_value_mix(key + 0x9e3779b97f4a7c15u * ((uint64_t)token << 8 | dim));
    const uint64_t pairs = (x & 0x00ff00ff00ff00ffu) + (x >> 8 & 0x00ff00ff00ff00ffu);
    const int sum = (int)(pairs * 0x0001000100010001u >> 48) - 1020;
    float v = (float)sum * (1 / 209.0229f);
    if (sharp && tensor != KVD_TENSOR_V) {
        if (dim % 16 == 5)
            v *= 4;
        if (tensor == KVD_TENSOR_K && kvd_value_mix(key ^ token) % 61 == 0)
            v *= 8;
    }
    return v;
}

#endif
