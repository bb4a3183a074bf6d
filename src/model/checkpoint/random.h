/* Random weights that are computed when read: element i depends only on i and the tensor's key.
 *
 * The generator is Philox4x32-10 (Salmon et al., SC 2011). An element is a factor times the sum of
 * four random 16-bit integers: near normal, and equal on every machine. */
#ifndef KVD_MODEL_CHECKPOINT_RANDOM_H
#define KVD_MODEL_CHECKPOINT_RANDOM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define KVD_RANDOM_FUNCTION __host__ __device__ static __forceinline__
#else
#define KVD_RANDOM_FUNCTION static inline
#endif

#define KVD_PHILOX_M0 0xd2511f53u
#define KVD_PHILOX_M1 0xcd9e8d57u
#define KVD_PHILOX_W0 0x9e3779b9u
#define KVD_PHILOX_W1 0xbb67ae85u
enum { KVD_PHILOX_ROUNDS = 10, KVD_RANDOM_MEAN = 131070 };

/* Random generator Philox: replaces the counter x by four random words. */
KVD_RANDOM_FUNCTION void kvd_philox(uint64_t key, uint32_t x[4])
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int round = 0; round < KVD_PHILOX_ROUNDS; round++) {
        const uint64_t p = (uint64_t)x[0] * KVD_PHILOX_M0, q = (uint64_t)x[2] * KVD_PHILOX_M1;
        x[0] = (uint32_t)(q >> 32) ^ x[1] ^ k0;
        x[1] = (uint32_t)q;
        x[2] = (uint32_t)(p >> 32) ^ x[3] ^ k1;
        x[3] = (uint32_t)p;
        k0 += KVD_PHILOX_W0;
        k1 += KVD_PHILOX_W1;
    }
}

/* Returns the factor that scales a sum of four random 16-bit words to the standard deviation
 * `scale`. */
KVD_RANDOM_FUNCTION float kvd_random_unit(float scale)
{
    return scale * 2.64289979e-5f;
}

/* Adds the four 16-bit halves of the random words a and b, and subtracts the expected sum. Returns
 * the result times `unit`, as bf16 bits. */
KVD_RANDOM_FUNCTION uint32_t kvd_random_bf16(uint32_t a, uint32_t b, float unit)
{
    const int sum = (int)((a & 0xffffu) + (a >> 16) + (b & 0xffffu) + (b >> 16)) - KVD_RANDOM_MEAN;
    const float v = (float)sum * unit;
    uint32_t u;
    memcpy(&u, &v, sizeof u);
    return (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}

/* Computes elements 2 * pair and 2 * pair + 1 of a random tensor as bf16 bits. */
KVD_RANDOM_FUNCTION void kvd_random_pair(uint64_t key, float unit, uint64_t pair, uint32_t *even,
                                         uint32_t *odd)
{
    uint32_t x[4] = {(uint32_t)pair, (uint32_t)(pair >> 32), 0, 0};
    kvd_philox(key, x);
    *even = kvd_random_bf16(x[0], x[1], unit);
    *odd = kvd_random_bf16(x[2], x[3], unit);
}

typedef struct {
    uint64_t key;
    float scale;    /* standard deviation; if 0, every element is `constant` */
    float constant; /* value if scale is 0; exact in bf16 */
} kvd_random_tensor;

kvd_random_tensor kvd_random_tensor_of(uint64_t seed, const char *name, float scale,
                                       float constant);

void kvd_random_read(const kvd_random_tensor *t, size_t first, size_t n, float *out);

#endif
