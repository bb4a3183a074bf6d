/* Computes the attention of decode steps to K and V in 8-bit or 4-bit floating-point formats
 * (methods fp8, mxfp4, nvfp4). */
#include "methods/bits/cuda/packed_decode.cuh"
#include "methods/bits/cuda/packed_floats.cuh"

namespace
{

__device__ __forceinline__ uint32_t times_bf16_pair(uint32_t x, uint32_t y)
{
    const __nv_bfloat162 z = __hmul2(*reinterpret_cast<const __nv_bfloat162 *>(&x),
                                     *reinterpret_cast<const __nv_bfloat162 *>(&y));
    return *reinterpret_cast<const uint32_t *>(&z);
}

/* Returns a word with the bfloat16 number 2^n in both halves. */
__device__ __forceinline__ constexpr uint32_t bf16_powers(int n)
{
    return (uint32_t)(n + 127) * 0x00800080u;
}

/* Converts 4-bit or 8-bit floating-point numbers to an mma operand: unchanged in bf16 if BF is
 * true, otherwise in float16 and scaled by a constant. */
template <class F, bool BF>
__device__ __forceinline__ void tile_of(const uint32_t (&w)[F::BITS], int m, uint32_t (&a)[4])
{
    constexpr int low = (BF ? 7 : 10) - F::MANTISSA;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const uint32_t word = w[F::BITS == 8 ? 2 * m % F::BITS + r / 2 : m % F::BITS];
        const int at = F::BITS == 8 ? r % 2 * 8 : r * 4;
        a[r] = (shifted(word, at - low) & F::MAGNITUDE * 0x10001u << low) |
               (shifted(word, at + F::BITS - 16) & 0x80008000u);
        if (BF)
            a[r] = times_bf16_pair(a[r], bf16_powers(127 - F::BIAS));
    }
}

template <class F> __device__ __forceinline__ uint32_t scale_pair(uint32_t bytes, int e)
{
    const uint32_t two = __byte_perm(bytes, 0, e ? 0x4342 : 0x4140);
    return F::BLOCK == 32 ? __vmaxu2(two << 7, 0x00400040u)
                          : times_bf16_pair(two << 4, bf16_powers(120));
}

/* Number of warps per CTA. If KV heads have different numbers of dimensions (ANY), threads need
 * more registers. */
template <bool ANY> constexpr int n_warps = ANY ? 8 : FLOATS_WARPS;

/* Decodes pages of 4-bit or 8-bit floating-point numbers in format F, for heads of 16 N
 * dimensions. */
template <class F, int N, bool ANY> struct floats_page : code_reader<N> {
    using code_reader<N>::code_reader;
    /* WARPS: warps per CTA. B: bits per number. UNITS_OF: number of blocks of 16 dimensions that
     * share a scale. */
    static constexpr int WARPS = n_warps<ANY>, B = F::BITS, UNITS_OF = F::BLOCK ? F::BLOCK / 16 : 1;
    static constexpr bool BF = F::BLOCK > 0, UNEVEN = ANY;
    /* Factor that is lost if the bits of numbers in format F are read as float16 numbers. */
    static constexpr float NUMBERS = 1 << (15 - F::BIAS);
    typedef words_ahead<B, N, false> words;
    queries<N> q;
    float keys, read; /* keys: factor of the scores; read: factor of the outputs */

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        load_queries(p, p.d.q, at.b, at.g, lane, q, k_units<floats_page>(at));
        keys = tensor_scale(p.a, 0, at.g / p.shares) * NUMBERS * p.scale_log2;
        read = tensor_scale(p.a, 1, at.g / p.shares) * (BF ? 1 : NUMBERS);
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &at,
                                                const char *codes, uint32_t stage, int lane)
    {
        const kvd_packed_parts &parts = parts_of<floats_page>(p, at);
        if (F::BLOCK)
            copy_ahead(stage, codes + parts.k_side, ANY ? parts.v_list - parts.k_side : p.newest_at,
                       lane);
    }

    __device__ __forceinline__ float outputs() const
    {
        return read;
    }

    static __device__ __forceinline__ void add_block(const char *bytes, float (&block)[4][4],
                                                     float (&sum)[4][4], int lane)
    {
        const uint2 x = *reinterpret_cast<const uint2 *>(bytes + lane / 4 * 8);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float scale = block_scale<F>((j < 4 ? x.x : x.y) >> j % 4 * 8 & 0xff);
#pragma unroll
            for (int i = j % 2 * 2; i < j % 2 * 2 + 2; i++) {
                sum[j / 2][i] = fmaf(block[j / 2][i], scale, sum[j / 2][i]);
                block[j / 2][i] = 0;
            }
        }
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           float (&s)[4][4], int lane)
    {
        const int units = k_units<floats_page>(at);
        const char *const v_codes = codes + parts_of<floats_page>(p, at).v;
        float sum[4][4] = {}, block[4][4] = {};
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t a[4][4];
#pragma unroll
            for (int m = 0; m < 4; m++)
                tile_of<F, false>(w.w[u % words::AHEAD], m, a[m]);
            w.taken(0, u, codes, v_codes, units, v_units<floats_page>(at));
            if (u >= units)
                continue;
#pragma unroll
            for (int m = 0; m < 4; m++)
                mma_pure<false>(F::BLOCK ? block[m] : sum[m], a[m], q.half[u][0], q.half[u][1]);
            if (F::BLOCK && (u % UNITS_OF + 1 == UNITS_OF || u + 1 == units))
                add_block(stage + 64 * (u / UNITS_OF), block, sum, lane);
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            s[i / 4][i % 4] = sum[i / 4][i % 4] * (keys * q.unit[i % 2]);
    }

    __device__ __forceinline__ void values(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           const char *next, const uint32_t (&prob)[8],
                                           state<N> &st, int lane)
    {
        const kvd_packed_parts &parts = parts_of<floats_page>(p, at);
        const char *const side = stage + parts.v_side - parts.k_side + lane % 4 * 16;
        const int units = v_units<floats_page>(at);
        uint32_t scaled[8];
#pragma unroll
        for (int u = 0; u < N; u++) {
            if (F::BLOCK && u % UNITS_OF == 0 && u < units) {
                const uint4 x = *reinterpret_cast<const uint4 *>(side + 64 * (u / UNITS_OF));
                const uint32_t bytes[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
                for (int j = 0; j < 8; j++)
                    scaled[j] = times_bf16_pair(prob[j], scale_pair<F>(bytes[j / 2], j % 2));
            }
            uint32_t a[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                tile_of<F, BF>(w.w[u % words::AHEAD], k, a[k]);
            w.taken(1, u, codes + parts.v, next, units, next_units<floats_page>(at));
            if (u >= units)
                continue;
#pragma unroll
            for (int k = 0; k < 4; k++)
                mma_pure<BF>(st.o[u], a[k], F::BLOCK ? scaled[2 * k] : prob[2 * k],
                             F::BLOCK ? scaled[2 * k + 1] : prob[2 * k + 1]);
        }
    }
};

} // namespace

kvd_packed_decode_kernel kvd_packed_floats_kernel(const kvd_packed_args *a, bool uneven)
{
    const int d = a->map.d_qk[0];
    return with_floats(&a->form, [=](auto f) -> kvd_packed_decode_kernel {
        return uneven    ? packed_decode_kernel<floats_page<decltype(f), 8, true>>
               : d == 64 ? packed_decode_kernel<floats_page<decltype(f), 4, false>>
                         : packed_decode_kernel<floats_page<decltype(f), 8, false>>;
    });
}

void kvd_packed_floats_lay_out(kvd_packed_decode_params *p)
{
    p->warps = p->uneven ? n_warps<true> : n_warps<false>;
}
