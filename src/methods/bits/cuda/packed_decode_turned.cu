/*
 * Attention of decode steps on rotated vectors (turboquant), as in packed_decode.cu, for K = norm *
 * level[code] and V = norm * level[code] per token. Queries are rotated before this kernel, and
 * outputs after it (packed_turn.cu).
 */
#include "methods/bits/cuda/packed_decode.cuh"
#include "methods/bits/cuda/packed_levels.cuh"

namespace
{

/* Reads the quantised pages of turboquant with B-bit codes and heads of 16 N dimensions. */
template <int B, int N> struct turned_page {
    static constexpr int UNITS = N, WARPS = FLOATS_WARPS;
    static constexpr bool BF = false, ZEROS = false, NEWEST = true;
    typedef words_ahead<B, N, false> words;
    const char *table; /* table of quantisation levels, in shared memory */
    uint32_t column;   /* offset of this lane's column in the table of quantisation levels */
    float level;       /* quantisation level that this lane loads into the table */
    queries<N> q;

    static __device__ constexpr float factor(int)
    {
        return 1;
    }

    static __device__ constexpr float outputs()
    {
        return 1;
    }

    __device__ turned_page(const packed_params &p, char *shared, char *)
    {
        const int lane = (int)threadIdx.x % 32;
        table = shared;
        column = (uint32_t)(B == 2 ? lane % 16 * 8 : lane * 4);
        level = level_of_lane<B>(p.a.level, lane);
    }

    __device__ __forceinline__ void ready(const packed_params &, char *shared, char *)
    {
        fill_table<B>(level, shared);
        __syncthreads();
    }

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        load_queries(p, at.b, at.g, lane, q);
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &,
                                                const char *codes, uint32_t stage, int lane)
    {
        copy_ahead(stage, codes + p.parts.k_side, p.newest_at, lane);
    }

    static __device__ constexpr int skipped(const packed_params &, const cursor &)
    {
        return 0;
    }

    static __device__ __forceinline__ void others(const packed_params &, const cursor &, int,
                                                  state<N> &, int)
    {
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &,
                                           const char *stage, words &w, const char *codes,
                                           float (&s)[4][4], int lane)
    {
        float sum[4][4] = {};
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t x[4][4];
#pragma unroll
            for (int m = 0; m < 4; m++)
                look_up<B>(table, column, w.w[u % words::AHEAD], m, x[m]);
            w.taken(0, u, codes, codes + p.parts.v);
#pragma unroll
            for (int m = 0; m < 4; m++)
                multiply<false>(sum[m], x[m], q.half[u][0], q.half[u][1]);
        }
        const uint16_t *const norm =
            reinterpret_cast<const uint16_t *>(stage + p.parts.k_norm - p.parts.k_side);
#pragma unroll
        for (int i = 0; i < 16; i++)
            s[i / 4][i % 4] = sum[i / 4][i % 4] * (p.scale_log2 * q.unit[i % 2]) *
                              half_of(norm[token_of(i / 4, i % 4, lane)], 0);
    }

    __device__ __forceinline__ void values(const packed_params &p, const cursor &,
                                           const char *stage, words &w, const char *codes,
                                           const char *next, const uint32_t (&prob)[8],
                                           state<N> &st, int lane)
    {
        uint32_t scaled[8];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint2 side = *reinterpret_cast<const uint2 *>(stage + 64 * k + lane % 4 * 16);
            scaled[2 * k] = times(prob[2 * k], side.x);
            scaled[2 * k + 1] = times(prob[2 * k + 1], side.y);
        }
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t x[4][4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                look_up<B>(table, column + ROW / 2, w.w[u % words::AHEAD], k, x[k]);
            w.taken(1, u, codes + p.parts.v, next);
#pragma unroll
            for (int k = 0; k < 4; k++)
                multiply<false>(st.o[u], x[k], scaled[2 * k], scaled[2 * k + 1]);
        }
    }
};

template <int N> kvd_packed_decode_kernel of_bits(int bits)
{
    return bits == 2   ? packed_decode_kernel<turned_page<2, N>>
           : bits == 3 ? packed_decode_kernel<turned_page<3, N>>
           : bits == 4 ? packed_decode_kernel<turned_page<4, N>>
                       : NULL;
}

} // namespace

kvd_packed_decode_kernel kvd_packed_turned_kernel(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    if (!a->level || a->before_rope || a->form.k_apart || a->form.v_apart || a->n_sink)
        return NULL;
    return d == 64 ? of_bits<4>(a->form.bits) : d == 128 ? of_bits<8>(a->form.bits) : NULL;
}

void kvd_packed_turned_lay_out(kvd_packed_decode_params *p)
{
    p->warps = FLOATS_WARPS;
    p->shared_bytes = p->a.form.bits == 3 ? table_bytes<3>() : table_bytes<4>();
}
