/* Computes the attention of decode steps to a uniformly quantised KV cache (methods kivi and
 * comet). */
#include "methods/bits/cuda/packed_decode.cuh"

namespace
{

enum { WIDEST = 8 };

/* Unpacking a tile of B-bit numbers leaves its rows 8 .. 15 multiplied by 2^n. Returns n. */
template <int B> __device__ constexpr int twos()
{
    return B == 8 ? 0 : B == 4 ? 4 : 2;
}

template <int B>
__device__ __forceinline__ void tile_of(const uint32_t (&w)[B], int m, uint32_t (&a)[4])
{
    if (B == 8) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[r] = w[2 * m % B + r / 2] >> r % 2 * 8 & 0x00ff00ffu;
    } else if (B == 4) {
#pragma unroll
        for (int r = 0; r < 4; r++)
            a[r] = w[m % B] >> r / 2 * 8 & 0x000f000fu << r % 2 * 4;
    } else {
#pragma unroll
        for (int r = 0; r < 4; r++) {
            a[r] = w[m / 2] >> (m % 2 * 8 + r / 2 * 4) & 0x00030003u << r % 2 * 2;
            if (B == 3)
                a[r] |= shifted(w[B - 1], 4 * m + r - 2 - r % 2 * 2) & 0x00040004u << r % 2 * 2;
        }
    }
}

/* Decodes pages of uniformly quantised B-bit numbers. FINE: 16 numbers of a key channel share a
 * scale. CHANNELS: V has a scale per channel. ANY: KV heads have different numbers of
 * dimensions. */
template <int B, int N, bool FINE, bool CHANNELS, bool ANY> struct even_page : code_reader<N> {
    using code_reader<N>::code_reader;
    /* Number of adjacent tiles of 16 tokens that share scales. */
    static constexpr int SHARE = FINE ? 1 : 2;
    static constexpr bool ZEROS = !CHANNELS, NEWEST = false, UNEVEN = ANY;
    /* CODE: the float16 number with bit pattern 1. ROWS: factor by which unpacked codes are too
     * large in rows 8 .. 15 of a tile. */
    static constexpr float CODE = 1.0f / (1 << 24), ROWS = 1 << twos<B>();
    typedef words_ahead<B, N, false> words;
    queries<N> q;

    static __device__ constexpr float code_factor(int r)
    {
        return r % 2 ? CODE * ROWS : CODE;
    }

    static __device__ constexpr float factor(int r)
    {
        return CHANNELS ? 1 : code_factor(r);
    }

    static __device__ constexpr float middle()
    {
        return (1 << B) / 2 - 1;
    }

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        load_queries(p, p.d.q, at.b, at.g, lane, q, k_units<even_page>(at));
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &at,
                                                const char *codes, uint32_t stage, int lane)
    {
        const kvd_packed_parts &parts = parts_of<even_page>(p, at);
        copy_ahead(stage, codes + parts.k_side, ANY ? parts.v_list - parts.k_side : p.newest_at,
                   lane);
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           float (&s)[4][4], int lane)
    {
        const int shift = p.k_shift - 1, units = k_units<even_page>(at);
        const char *const v_codes = codes + parts_of<even_page>(p, at).v;
        const bool mine = lane / 4 < 4 >> shift;
        const bool symmetric = CHANNELS && p.a.form.symmetric;
        const char *const zeros =
            stage + lane % 4 * 16 + (mine ? lane / 4 * 64 * units : 0) + (symmetric ? 0 : 8);
        const char *side[4 / SHARE];
        float sum[4][4] = {}, zero[4] = {};
#pragma unroll
        for (int i = 0; i < 4 / SHARE; i++)
            side[i] = stage + lane % 4 * 16 + (SHARE * i >> shift) * 64 * units;
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t a[4][4], scaled[2] = {};
#pragma unroll
            for (int m = 0; m < 4; m++)
                tile_of<B>(w.w[u % words::AHEAD], m, a[m]);
            w.taken(0, u, codes, v_codes, units, v_units<even_page>(at));
            if (u >= units)
                continue;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                if (m % SHARE == 0) {
                    const uint2 scale = *reinterpret_cast<const uint2 *>(side[m / SHARE] + 64 * u);
                    scaled[0] = times(q.half[u][0], scale.x);
                    scaled[1] = times(q.half[u][1], scale.y);
                }
                mma_pure<false>(sum[m], a[m], scaled[0], scaled[1]);
            }
            const uint2 z = *reinterpret_cast<const uint2 *>(zeros + 64 * u);
            const uint32_t rows[4] = {z.x, 0, z.y, 0};
            mma_pure<false>(zero, rows, q.half[u][0], q.half[u][1]);
        }
        const float unit[2] = {p.scale_log2 * q.unit[0], p.scale_log2 * q.unit[1]};
#pragma unroll
        for (int m = 0; m < 4; m++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float z = __shfl_sync(~0u, zero[e], (m >> shift) * 4 + lane % 4) *
                                (symmetric ? -middle() * unit[e] : unit[e]);
                s[m][e] = fmaf(sum[m][e], unit[e] * (1 / code_factor(0)), z);
                s[m][2 + e] = fmaf(sum[m][2 + e], unit[e] * (1 / code_factor(1)), z);
            }
    }

    /* Adds probabilities times V to the attention output, for 16 dimensions and SHARE tiles of 16
     * tokens. */
    static __device__ __forceinline__ void add_tiles(const uint16_t *scale, bool symmetric,
                                                     int first, const uint32_t (&a)[4][4],
                                                     const uint32_t (&prob)[8],
                                                     const float (&all)[4], float (&o)[4])
    {
        float sum[4] = {};
#pragma unroll
        for (int k = first; k < first + SHARE; k++) {
            const uint32_t rows[4] = {exchanged(a[k][0]), exchanged(a[k][2]),
                                      exchanged(a[k][1] >> twos<B>()),
                                      exchanged(a[k][3] >> twos<B>())};
            mma_pure<false>(sum, rows, prob[2 * k], prob[2 * k + 1]);
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float step = half_of(scale[2 * h], 0),
                        zero = symmetric ? -middle() * step : half_of(scale[2 * h + 4], 0);
#pragma unroll
            for (int e = 0; e < 2; e++)
                o[2 * h + e] += step * (1 / CODE) * sum[2 * h + e] + zero * all[e];
        }
    }

    static __device__ __forceinline__ void add_channels(const packed_params &p, const cursor &at,
                                                        const char *stage, words &w,
                                                        const char *codes, const char *next,
                                                        const uint32_t (&prob)[8], state<N> &st,
                                                        int lane)
    {
        const int coded = at.values - KVD_PAGE_TOKENS * at.page;
        const uint32_t one = 0x3c003c00u, ones[4] = {one, one, one, one};
        const char *const side = stage + p.parts.v_side - p.parts.k_side;
        float all[4 / SHARE][4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++)
            mma_pure<false>(all[k / SHARE], ones, prob[2 * k], prob[2 * k + 1]);
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t a[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                tile_of<B>(w.w[u % words::AHEAD], k, a[k]);
            w.taken(1, u, codes + p.parts.v, next);
#pragma unroll
            for (int k = 0; k < 4; k += SHARE)
                if (16 * k < coded)
                    add_tiles(reinterpret_cast<const uint16_t *>(
                                  side + 64 * ((k >> (p.k_shift - 1)) * N + u)) +
                                  kvd_packed_scale(lane / 4),
                              p.a.form.symmetric, k, a, prob, all[k / SHARE], st.o[u]);
        }
    }

    __device__ __forceinline__ void values(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           const char *next, const uint32_t (&prob)[8],
                                           state<N> &st, int lane)
    {
        if constexpr (CHANNELS) {
            add_channels(p, at, stage, w, codes, next, prob, st, lane);
            return;
        }
        const kvd_packed_parts &parts = parts_of<even_page>(p, at);
        const char *const side = stage + parts.v_side - parts.k_side + lane % 4 * 16;
        const int units = v_units<even_page>(at), group = min(lane / 4, (units - 1) >> p.v_shift);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint2 z = *reinterpret_cast<const uint2 *>(side + group * 256 + 64 * k + 8);
            const uint32_t rows[4] = {z.x, 0, z.y, 0};
            mma_pure<false>(st.zero, rows, prob[2 * k], prob[2 * k + 1]);
        }
        uint32_t scaled[8] = {};
#pragma unroll
        for (int u = 0; u < N; u++) {
            if (u % SHARE == 0 && u < units)
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const uint2 scale =
                        *reinterpret_cast<const uint2 *>(side + (u >> p.v_shift) * 256 + 64 * k);
                    scaled[2 * k] = times(prob[2 * k], scale.x);
                    scaled[2 * k + 1] = times(prob[2 * k + 1], scale.y);
                }
            uint32_t a[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                tile_of<B>(w.w[u % words::AHEAD], k, a[k]);
            w.taken(1, u, codes + parts.v, next, units, next_units<even_page>(at));
            if (u >= units)
                continue;
#pragma unroll
            for (int k = 0; k < 4; k++)
                mma_pure<false>(st.o[u], a[k], scaled[2 * k], scaled[2 * k + 1]);
        }
    }
};

template <int N, bool FINE, bool CHANNELS, bool ANY> kvd_packed_decode_kernel of_bits(int bits)
{
    return bits == 2   ? packed_decode_kernel<even_page<2, N, FINE, CHANNELS, ANY>>
           : bits == 3 ? packed_decode_kernel<even_page<3, N, FINE, CHANNELS, ANY>>
           : bits == 4 ? packed_decode_kernel<even_page<4, N, FINE, CHANNELS, ANY>>
           : bits == 8 ? packed_decode_kernel<even_page<8, N, FINE, CHANNELS, ANY>>
                       : NULL;
}

template <int N, bool CHANNELS, bool ANY> kvd_packed_decode_kernel of_form(const kvd_packed_form *f)
{
    return f->k_group == 16 || f->v_group == 16 ? of_bits<N, true, CHANNELS, ANY>(f->bits)
                                                : of_bits<N, false, CHANNELS, ANY>(f->bits);
}

} // namespace

kvd_packed_decode_kernel kvd_packed_even_kernel(const kvd_packed_args *a, bool uneven)
{
    const kvd_packed_form *const f = &a->form;
    if (uneven)
        return f->v_channels ? NULL : of_form<WIDEST, false, true>(f);
    if (f->v_channels)
        return a->map.d_qk[0] == 64 ? of_form<4, true, false>(f) : of_form<WIDEST, true, false>(f);
    return a->map.d_qk[0] == 64 ? of_form<4, false, false>(f) : of_form<WIDEST, false, false>(f);
}
