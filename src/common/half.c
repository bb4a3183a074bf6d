#include "common/half.h"

#include <assert.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

const char *kvd_dtype_name(kvd_dtype t)
{
    static const char *const names[] = {"f32", "f16", "bf16"};
    return names[t];
}

size_t kvd_dtype_bytes(kvd_dtype t)
{
    return t == KVD_F32 ? 4 : 2;
}

static uint32_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = h >> 10 & 0x1f,
                   mantissa = h & 0x3ff;
    if (exponent == 0x1f)
        return float_of(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent == 0) {
        /* A subnormal float16 is mantissa * 2^-24, which float32 represents exactly. */
        const float magnitude = (float)mantissa * 0x1p-24f;
        return float_of(sign | bits_of(magnitude));
    }
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

static uint16_t f32_to_f16(float x)
{
    const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x1ffu));
    /* Rounds numbers of at least 65520, which float16 cannot hold, to infinity. */
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) {
        /* Rounds to a multiple of 2^-24, the spacing of float32 numbers near 0.5. */
        const float shifted = float_of(a) + 0.5f;
        return (uint16_t)(sign | (bits_of(shifted) - 0x3f000000u));
    }
    const uint32_t rounded = a + 0xfffu + (a >> 13 & 1);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

static void f16_to_f32_plain(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = f16_to_f32(src[i]);
}

static void f32_to_f16_plain(const float *src, uint16_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_to_f16(src[i]);
}

static inline uint32_t bf16_bits_to_f32(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : u;
}

static inline uint16_t f32_bits_to_bf16(uint32_t u)
{
    const uint32_t rounded = (u + 0x7fffu + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? u >> 16 | 0x40u : rounded);
}

static void bf16_to_f32_plain(const uint16_t *src, float *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = float_of(bf16_bits_to_f32(src[i]));
}

static void f32_to_bf16_plain(const float *src, uint16_t *dst, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = f32_bits_to_bf16(bits_of(src[i]));
}

#if defined(__x86_64__)

/* Returns a mask of the NaN elements of u. Compilers do not vectorise this test. */
__attribute__((target("avx2"))) static __m256i is_nan(__m256i u)
{
    return _mm256_cmpgt_epi32(_mm256_and_si256(u, _mm256_set1_epi32(0x7fffffff)),
                              _mm256_set1_epi32(0x7f800000));
}

__attribute__((target("avx2"))) static void bf16_to_f32_avx2(const uint16_t *src, float *dst,
                                                             size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(src + i)));
        const __m256i u = _mm256_slli_epi32(h, 16);
        const __m256i quiet = _mm256_and_si256(is_nan(u), _mm256_set1_epi32(0x400000));
        _mm256_storeu_si256((__m256i *)(dst + i), _mm256_or_si256(u, quiet));
    }
    bf16_to_f32_plain(src + i, dst + i, n - i);
}

__attribute__((target("avx2"))) static __m256i round_to_bf16(__m256i u)
{
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan(u));
}

__attribute__((target("avx2"))) static void f32_to_bf16_avx2(const float *src, uint16_t *dst,
                                                             size_t n)
{
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i low = round_to_bf16(_mm256_loadu_si256((const __m256i *)(src + i)));
        const __m256i high = round_to_bf16(_mm256_loadu_si256((const __m256i *)(src + i + 8)));
        /* Packing mixes the order of 64-bit parts; the permutation restores it. */
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(dst + i), packed);
    }
    f32_to_bf16_plain(src + i, dst + i, n - i);
}

__attribute__((target("avx2,f16c"))) static void f16_to_f32_f16c(const uint16_t *src, float *dst,
                                                                 size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(src + i))));
    f16_to_f32_plain(src + i, dst + i, n - i);
}

__attribute__((target("avx2,f16c"))) static void f32_to_f16_f16c(const float *src, uint16_t *dst,
                                                                 size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(dst + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
    f32_to_f16_plain(src + i, dst + i, n - i);
}

static int have_f16c;

/* Asks the processor once for F16C, because cpuid is slow on virtual machines. */
__attribute__((constructor)) static void ask_f16c(void)
{
    unsigned a, b, c, d;
    __builtin_cpu_init();
    have_f16c = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static int has_f16c(void)
{
    return have_f16c;
}

static int has_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

#else

#define bf16_to_f32_avx2 bf16_to_f32_plain
#define f32_to_bf16_avx2 f32_to_bf16_plain
#define f16_to_f32_f16c  f16_to_f32_plain
#define f32_to_f16_f16c  f32_to_f16_plain

static int has_f16c(void)
{
    return 0;
}

static int has_avx2(void)
{
    return 0;
}

#endif

void kvd_to_f32(kvd_dtype t, const void *src, float *dst, size_t n)
{
    switch (t) {
    case KVD_F32:
        if (n)
            memcpy(dst, src, n * sizeof *dst);
        return;
    case KVD_F16:
        (has_f16c() ? f16_to_f32_f16c : f16_to_f32_plain)(src, dst, n);
        return;
    case KVD_BF16:
        (has_avx2() ? bf16_to_f32_avx2 : bf16_to_f32_plain)(src, dst, n);
        return;
    }
    assert(0 && "unknown dtype");
}

void kvd_from_f32(kvd_dtype t, const float *src, void *dst, size_t n)
{
    switch (t) {
    case KVD_F32:
        if (n)
            memcpy(dst, src, n * sizeof *src);
        return;
    case KVD_F16:
        (has_f16c() ? f32_to_f16_f16c : f32_to_f16_plain)(src, dst, n);
        return;
    case KVD_BF16:
        (has_avx2() ? f32_to_bf16_avx2 : f32_to_bf16_plain)(src, dst, n);
        return;
    }
    assert(0 && "unknown dtype");
}

/* Defines functions that find a NaN or infinity. `mask` selects the exponent bits. */
#define SPECIAL_LOOPS(name, attribute)                                                             \
    attribute static int special16_##name(const uint16_t *v, size_t n, uint16_t mask)              \
    {                                                                                              \
        uint16_t bad = 0;                                                                          \
        _Pragma("omp simd reduction(| : bad)") for (size_t i = 0; i < n; i++) bad =                \
            (uint16_t)(bad | ((v[i] & mask) == mask ? 0xffff : 0));                                \
        return bad != 0;                                                                           \
    }                                                                                              \
    attribute static int special32_##name(const uint32_t *v, size_t n, uint32_t mask)              \
    {                                                                                              \
        uint32_t bad = 0;                                                                          \
        _Pragma("omp simd reduction(| : bad)") for (size_t i = 0; i < n; i++) bad |=               \
            (v[i] & mask) == mask ? 0xffffffffu : 0;                                               \
        return bad != 0;                                                                           \
    }

SPECIAL_LOOPS(plain, )
#if defined(__x86_64__)
SPECIAL_LOOPS(avx2, __attribute__((target("avx2"))))
#define HAS_AVX2 __builtin_cpu_supports("avx2")
#else
#define special16_avx2 special16_plain
#define special32_avx2 special32_plain
#define HAS_AVX2       0
#endif

size_t kvd_first_nonfinite(kvd_dtype t, const void *src, size_t n)
{
    enum { BLOCK = 4096 };
    const uint16_t *half = src, mask16 = t == KVD_F16 ? 0x7c00 : 0x7f80;
    const uint32_t *whole = src, mask32 = 0x7f800000u;
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t m = n - at < BLOCK ? n - at : BLOCK;
        const int bad = t == KVD_F32
                            ? (HAS_AVX2 ? special32_avx2 : special32_plain)(whole + at, m, mask32)
                            : (HAS_AVX2 ? special16_avx2 : special16_plain)(half + at, m, mask16);
        for (size_t i = at; bad && i < at + m; i++)
            if (t == KVD_F32 ? (whole[i] & mask32) == mask32 : (half[i] & mask16) == mask16)
                return i;
    }
    return n;
}
