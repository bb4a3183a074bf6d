#include "model/checkpoint/random.h"

#include <stdbool.h>
#include <string.h>
#include <xxhash.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

kvd_random_tensor kvd_random_tensor_of(uint64_t seed, const char *name, float scale, float constant)
{
    return (kvd_random_tensor){.key = XXH3_64bits_withSeed(name, strlen(name), seed),
                               .scale = scale,
                               .constant = constant};
}

static float float_of_bf16(uint32_t bits)
{
    float x;
    bits <<= 16;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Writes n pairs of random elements. Pair i has the elements 2 i and 2 i + 1. */
static void read_pairs_plain(uint64_t key, float unit, uint64_t first, size_t n, float *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t even, odd;
        kvd_random_pair(key, unit, first + i, &even, &odd);
        out[2 * i] = float_of_bf16(even);
        out[2 * i + 1] = float_of_bf16(odd);
    }
}

#if defined(__x86_64__)

/* Writes n pairs of random elements to `out`, with AVX2 instructions. */
__attribute__((target("avx2"))) static void read_pairs_avx2(uint64_t key, float unit,
                                                            uint64_t first, size_t n, float *out)
{
    const __m256i m = _mm256_set1_epi64x(KVD_PHILOX_M0), l = _mm256_set1_epi64x(KVD_PHILOX_M1);
    const __m256i step = _mm256_set_epi64x(3, 2, 1, 0), low = _mm256_set1_epi32(0xffff);
    const __m256i half = _mm256_set1_epi32(0x7fff), odd = _mm256_set1_epi32(1);
    __m256i k[KVD_PHILOX_ROUNDS], k1[KVD_PHILOX_ROUNDS];
    for (uint32_t r = 0; r < KVD_PHILOX_ROUNDS; r++) {
        k[r] = _mm256_set1_epi64x((uint32_t)key + r * KVD_PHILOX_W0);
        k1[r] = _mm256_set1_epi64x((uint32_t)(key >> 32) + r * KVD_PHILOX_W1);
    }
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        __m256i a = _mm256_add_epi64(_mm256_set1_epi64x((long long)(first + i)), step);
        __m256i b = _mm256_srli_epi64(a, 32), c = _mm256_setzero_si256(), d = c;
#pragma GCC unroll 10
        for (int r = 0; r < KVD_PHILOX_ROUNDS; r++) {
            const __m256i p = _mm256_mul_epu32(a, m), q = _mm256_mul_epu32(c, l);
            a = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(q, 32), b), k[r]);
            b = q;
            c = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p, 32), d), k1[r]);
            d = p;
        }
        const __m256i x = _mm256_blend_epi32(a, _mm256_slli_epi64(c, 32), 0xaa);
        const __m256i y = _mm256_blend_epi32(b, _mm256_slli_epi64(d, 32), 0xaa);
        const __m256i sum =
            _mm256_add_epi32(_mm256_add_epi32(_mm256_and_si256(x, low), _mm256_srli_epi32(x, 16)),
                             _mm256_add_epi32(_mm256_and_si256(y, low), _mm256_srli_epi32(y, 16)));
        const __m256 v = _mm256_mul_ps(
            _mm256_cvtepi32_ps(_mm256_sub_epi32(sum, _mm256_set1_epi32(KVD_RANDOM_MEAN))),
            _mm256_set1_ps(unit));
        const __m256i u = _mm256_castps_si256(v);
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(u, half),
                                                 _mm256_and_si256(_mm256_srli_epi32(u, 16), odd));
        _mm256_storeu_ps(out + 2 * i, _mm256_castsi256_ps(_mm256_andnot_si256(low, rounded)));
    }
    read_pairs_plain(key, unit, first + i, n - i, out + 2 * i);
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

#else

#define read_pairs_avx2 read_pairs_plain

static bool has_avx2(void)
{
    return false;
}

#endif

static float read_one(const kvd_random_tensor *t, uint64_t i)
{
    float pair[2];
    read_pairs_plain(t->key, kvd_random_unit(t->scale), i / 2, 1, pair);
    return pair[i % 2];
}

void kvd_random_read(const kvd_random_tensor *t, size_t first, size_t n, float *out)
{
    if (!(t->scale > 0)) {
        for (size_t i = 0; i < n; i++)
            out[i] = t->constant;
        return;
    }
    if (n > 0 && first % 2) {
        *out++ = read_one(t, first++);
        n--;
    }
    (has_avx2() ? read_pairs_avx2 : read_pairs_plain)(t->key, kvd_random_unit(t->scale), first / 2,
                                                      n / 2, out);
    if (n % 2)
        out[n - 1] = read_one(t, first + n - 1);
}
