/* Computes the attention of decode steps to rotated K and V (method turboquant). An element of K or
 * V is norm * level[code], with one norm per token. packed_turn.cu rotates queries and outputs. */
#include "methods/bits/cuda/packed_decode.cuh"
#include "methods/bits/cuda/packed_levels.cuh"

namespace
{

/* Number of warps per CTA. If signs of projected errors are stored (SKETCH), threads need more
 * registers. */
template <bool SKETCH> constexpr int n_warps = SKETCH ? 8 : FLOATS_WARPS;

/* Returns two float16 numbers, made from byte number `byte` of `low` and of `high`. Each number is
 * 1 if the byte's highest bit is 1, else -1. */
__device__ __forceinline__ uint32_t signs_of_byte(uint32_t low, uint32_t high, int byte)
{
    uint32_t x;
    /* In instruction prmt, selector 8 + i fills a byte with the highest bit of byte i. */
    asm("prmt.b32 %0, %1, %2, %3;"
        : "=r"(x)
        : "r"(low), "r"(high), "r"(0xc080u + 0x1010u * (uint32_t)byte));
    return (x & 0x80008000u) ^ 0xbc00bc00u;
}

template <int B>
__device__ __forceinline__ void signs_of(const uint32_t (&w)[B], int m, uint32_t (&x)[4])
{
#pragma unroll
    for (int r = 0; r < 4; r++)
        if constexpr (B == 4) {
            const uint32_t codes = w[m];
            x[r] = signs_of_byte(codes << 4, codes, r);
        } else if constexpr (B == 2) {
            const uint32_t codes = w[m / 2] << (r % 2 ? 0 : 4);
            x[r] = signs_of_byte(codes << 2, codes, m % 2 * 2 + r / 2);
        } else {
            const uint32_t codes = pair_of_three(w, m, r);
            x[r] = signs_of_byte(codes << 5, codes << 2, 1);
        }
}

/* Decodes pages of method turboquant with B bits per number, for heads of 16 N dimensions. */
template <int B, int N, bool SKETCH> struct turned_page : code_reader<N> {
    static constexpr int WARPS = n_warps<SKETCH>;
    typedef words_ahead<B, N, false> words;
    const char *table;
    uint32_t column;
    float level;
    queries<N> q, sketched;

    __device__ turned_page(const packed_params &p, char *shared, char *scratch)
        : code_reader<N>(p, shared, scratch)
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
        load_queries(p, p.d.q, at.b, at.g, lane, q);
        if (SKETCH)
            load_queries(p, p.d.sketched, at.b, at.g, lane, sketched);
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &,
                                                const char *codes, uint32_t stage, int lane)
    {
        copy_ahead(stage, codes + p.parts.k_side, p.newest_at, lane);
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &,
                                           const char *stage, words &w, const char *codes,
                                           float (&s)[4][4], int lane)
    {
        float sum[4][4] = {}, rest[4][4] = {};
#pragma unroll
        for (int u = 0; u < N; u++) {
            uint32_t x[4][4], sign[4][4];
#pragma unroll
            for (int m = 0; m < 4; m++) {
                look_up<B>(table, column, w.w[u % words::AHEAD], m, x[m]);
                if (SKETCH)
                    signs_of<B>(w.w[u % words::AHEAD], m, sign[m]);
            }
            w.taken(0, u, codes, codes + p.parts.v);
#pragma unroll
            for (int m = 0; m < 4; m++) {
                mma_pure<false>(sum[m], x[m], q.half[u][0], q.half[u][1]);
                if (SKETCH)
                    mma_pure<false>(rest[m], sign[m], sketched.half[u][0], sketched.half[u][1]);
            }
        }
        const uint16_t *const norm =
            reinterpret_cast<const uint16_t *>(stage + p.parts.k_norm - p.parts.k_side);
        constexpr float each = (float)(1.2533141373155003 / (16 * N)) * KVD_PACKED_NORM;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int t = token_of(i / 4, i % 4, lane);
            float x = sum[i / 4][i % 4] * q.unit[i % 2];
            if (SKETCH)
                x = fmaf(rest[i / 4][i % 4] * (each * sketched.unit[i % 2]),
                         half_of(norm[KVD_PAGE_TOKENS + t], 0), x);
            s[i / 4][i % 4] = x * p.scale_log2 * half_of(norm[t], 0);
        }
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
                mma_pure<false>(st.o[u], x[k], scaled[2 * k], scaled[2 * k + 1]);
        }
    }
};

template <int N, bool SKETCH> kvd_packed_decode_kernel of_bits(int bits)
{
    return bits == 2   ? packed_decode_kernel<turned_page<2, N, SKETCH>>
           : bits == 3 ? packed_decode_kernel<turned_page<3, N, SKETCH>>
           : bits == 4 ? packed_decode_kernel<turned_page<4, N, SKETCH>>
                       : NULL;
}

template <int N> kvd_packed_decode_kernel of_form(const kvd_packed_form *f)
{
    return f->sketch ? of_bits<N, true>(f->bits) : of_bits<N, false>(f->bits);
}

} // namespace

kvd_packed_decode_kernel kvd_packed_turned_kernel(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    if (!a->level || a->before_rope || a->form.k_apart || a->form.v_apart || a->n_sink)
        return NULL;
    return d == 64 ? of_form<4>(&a->form) : d == 128 ? of_form<8>(&a->form) : NULL;
}

void kvd_packed_turned_lay_out(kvd_packed_decode_params *p)
{
    p->warps = p->a.form.sketch ? n_warps<true> : n_warps<false>;
    p->shared_bytes = p->a.form.bits == 3 ? table_bytes<3>() : table_bytes<4>();
}
