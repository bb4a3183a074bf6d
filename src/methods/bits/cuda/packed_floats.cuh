/* Conversion to and from small floating-point formats in software, for the GPU. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_FLOATS_CUH
#define KVD_METHODS_BITS_CUDA_PACKED_FLOATS_CUH

#include "methods/bits/cuda/packed_words.cuh"

/* Floating-point format with a sign, E exponent bits and M mantissa bits. BLOCK_OF channels share a
 * scale. */
template <int E, int M, int BLOCK_OF> struct packed_floats {
    static constexpr int EXPONENT = E, MANTISSA = M, BLOCK = BLOCK_OF, BITS = 1 + E + M,
                         BIAS = (1 << (E - 1)) - 1, LEAST = 1 - BIAS;
    static constexpr float LARGEST = E == 2 ? 6 : E == 4 ? 448 : 57344;
    static constexpr uint32_t MAGNITUDE = (1u << (E + M)) - 1;
};

typedef packed_floats<4, 3, 0> packed_e4m3;
typedef packed_floats<5, 2, 0> packed_e5m2;
typedef packed_floats<2, 1, 32> packed_mxfp4;
typedef packed_floats<2, 1, 16> packed_nvfp4;

template <class CALL> static auto with_floats(const kvd_packed_form *f, CALL call)
{
    return f->exponent == 4   ? call(packed_e4m3())
           : f->exponent == 5 ? call(packed_e5m2())
           : f->block == 32   ? call(packed_mxfp4())
                              : call(packed_nvfp4());
}

cudaError_t kvd_packed_code_floats(const kvd_packed_args *a, cudaStream_t stream);
cudaError_t kvd_packed_restore_floats(const kvd_packed_args *a, cudaStream_t stream);

/* Returns the float32 bit pattern of 2^n, for n from -126 to 127. */
static __device__ __forceinline__ constexpr uint32_t power_bits(int n)
{
    return (uint32_t)(n + 127) << 23;
}

/* Returns the bits of x in format F, rounded to nearest, ties to even. Numbers that are too large
 * become the largest one. */
template <class F> static __device__ __forceinline__ uint32_t float_code(float x)
{
    const float y = fminf(fabsf(x), F::LARGEST);
    const int exponent = max((int)(__float_as_uint(y) >> 23) - 127, F::LEAST);
    /* q is the mantissa with its leading 1, so adding q to the exponent field (in the return
     * statement) raises that field by 1. */
    const float q = rintf(y * __uint_as_float(power_bits(F::MANTISSA - exponent)));
    return (__float_as_uint(x) >> 31 << (F::BITS - 1)) |
           (((uint32_t)(exponent - F::LEAST) << F::MANTISSA) + (uint32_t)q);
}

template <class F> static __device__ __forceinline__ float float_of(uint32_t code)
{
    const float y = __uint_as_float((code & F::MAGNITUDE) << (23 - F::MANTISSA)) *
                    __uint_as_float(power_bits(127 - F::BIAS));
    return code >> (F::BITS - 1) & 1 ? -y : y;
}

template <class F> static __device__ __forceinline__ float block_scale(uint32_t byte)
{
    if (F::BLOCK == 32) /* byte 0 encodes 2^-127, a subnormal number */
        return __uint_as_float(max(byte << 23, 0x00400000u));
    return F::BLOCK == 16 ? __uint_as_float(byte << 20) * __uint_as_float(power_bits(120)) : 1;
}

/* Returns the byte that stores the scale of a block whose largest magnitude is `most`. */
template <class F> static __device__ __forceinline__ uint32_t block_byte(float most, float tensor)
{
    if (F::BLOCK == 32) {
        const int exponent = (int)(__float_as_uint(most) >> 23); /* 0 for numbers below 2^-126 */
        return most > 0 ? (uint32_t)max(exponent - 2, 0) : 127;
    }
    return float_code<packed_e4m3>(most / packed_nvfp4::LARGEST / tensor);
}

template <class F> static __device__ __forceinline__ float read_scale(uint32_t byte, float tensor)
{
    return F::BLOCK == 32 ? block_scale<F>(byte) : block_scale<F>(byte) * tensor;
}

static __device__ __forceinline__ float tensor_scale(const kvd_packed_args &a, int side, int g)
{
    return a.scale ? __ldg(a.scale + 2 * g + side) : 1;
}

#endif
