/* Computes the attention of decode steps to K and V that are stored as indices of quantisation
 * levels (method kvquant). */
#include "methods/bits/cuda/packed_decode.cuh"
#include "methods/bits/cuda/packed_levels.cuh"

namespace
{

enum { TURNS = 3 * 256 };

template <int B, int N> struct levels_page : code_reader<N> {
    static constexpr int D = 16 * N;
    static constexpr bool ZEROS = true;
    typedef words_ahead<B, N, true> words;
    const char *table;
    /* [3][N / 2][32] RoPE cosines and sines in shared memory. Element [i][u][lane] rotates 4
     * channel pairs by 8 i + lane / 4 positions. */
    const uint4 *turn;
    const uint4 *tile; /* shared-memory tile of mma operands for outliers */
    uint32_t places;
    uint32_t *query; /* queries in shared memory, [2 N][32] float16, divided by a power of two */
    /* Ranges of key channels, in shared memory: half the width of every range, then the middle of
     * every range. */
    uint2 *range;
    float *lowest;
    uint32_t quick_token[QUICK];
    float level;
    float level_0[2];
    uint32_t column;
    float unit[2]; /* powers of two that divided query heads 2 c and 2 c + 1, c = lane % 4 */

    __device__ levels_page(const packed_params &p, char *shared, char *scratch)
        : code_reader<N>(p, shared, scratch)
    {
        const int lane = (int)threadIdx.x % 32;
        table = shared;
        turn = reinterpret_cast<const uint4 *>(shared + table_bytes<B>());
        tile = reinterpret_cast<const uint4 *>(scratch) + lane;
        places = (uint32_t)__cvta_generic_to_shared(scratch);
        query = reinterpret_cast<uint32_t *>(scratch + 2 * PASS);
        range = reinterpret_cast<uint2 *>(scratch + 2 * PASS + 256 * N);
        lowest = reinterpret_cast<float *>(scratch + 2 * PASS + 320 * N);
#pragma unroll
        for (int k = 0; k < QUICK; k++)
            quick_token[k] = value_token(min((lane + 32 * k) / max(p.a.form.v_apart, 1), 63));
        column = (uint32_t)(B == 2 ? lane % 16 * 8 : lane * 4);
        level = level_of_lane<B>(p.a.level, lane);
        if (p.a.before_rope)
            copy_by_all(shared + table_bytes<B>(), p.a.turn, TURNS * N);
    }

    __device__ __forceinline__ void ready(const packed_params &p, char *shared, char *scratch)
    {
#pragma unroll 4
        for (int i = (int)threadIdx.x % 32; i < PASS / 8; i += 32)
            reinterpret_cast<uint4 *>(scratch)[i] = make_uint4(0, 0, 0, 0);
        fill_table<B>(level, shared);
        level_0[0] = as_half(__shfl_sync(~0u, level, 0));
        level_0[1] = as_half(__shfl_sync(~0u, level, 16));
        if (!p.a.before_rope)
            for (int i = (int)threadIdx.x; i < TURNS * N / 16; i += (int)blockDim.x)
                reinterpret_cast<uint4 *>(shared + table_bytes<B>())[i] =
                    make_uint4(0x3c003c00u, 0, 0x3c003c00u, 0);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
    }

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        const uint16_t *const from = query_of(p, at.b, at.g, lane);
        const float4 *const ranges = reinterpret_cast<const float4 *>(
            p.a.range + 2 * (size_t)(at.g / p.shares) * (size_t)p.a.range_width);
        float most = 0;
        uint32_t w[2 * N];
        float4 r[N / 4];
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            r[i] = __ldg(ranges + lane + 32 * i);
        if (at.page == 0 && p.a.n_sink)
            prefetch_sinks<D>(p, at, lane);
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            w[i] = lane / 4 < p.a.map.group ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
            most = fmaxf(most, fmaxf(fabsf(bf16_of(w[i], 0)), fabsf(bf16_of(w[i], 1))));
        }
        const float mine = unit_of(most), over = 1 / mine;
        of_columns(mine, unit, lane);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            query[32 * i + lane] = f16_pair(bf16_of(w[i], 0) * over, bf16_of(w[i], 1) * over);
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            const uint2 one = make_uint2(f16_pair(r[i].y, r[i].w), f16_pair(r[i].x, r[i].z));
            range[lane + 32 * i] = one;
            reinterpret_cast<float2 *>(lowest)[lane + 32 * i] =
                make_float2(fmaf(half_of(one.x, 0), level_0[0], half_of(one.y, 0)),
                            fmaf(half_of(one.x, 1), level_0[0], half_of(one.y, 1)));
        }
        __syncwarp();
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &at,
                                                const char *codes, uint32_t stage, int lane)
    {
        const int turned = p.a.before_rope ? 4 * D : 0, row = D / 8;
        copy_ahead(stage, codes + p.parts.k_side, p.newest_at - turned, lane);
        if (turned && lane < 2 * row)
            copy_16(stage + (uint32_t)(p.newest_at - turned + 16 * lane),
                    (lane < row ? p.a.cosine : p.a.sine) +
                        (size_t)(KVD_PAGE_TOKENS * at.page) * (D / 2) + 4 * (lane % row));
    }

    __device__ __forceinline__ void undo_rope(const packed_params &p, const char *stage, int u,
                                              uint32_t (&low)[2], uint32_t (&high)[2], int lane)
    {
        const float *const cosine = reinterpret_cast<const float *>(stage + p.newest_at - 4 * D);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t x = query[32 * (2 * u + h) + lane],
                           y = query[32 * (2 * (u + N / 2) + h) + lane];
            uint32_t c = 0x3c003c00u, si = 0;
            if (p.a.before_rope) {
                const float2 *const to =
                    reinterpret_cast<const float2 *>(cosine) + 8 * u + 4 * h + lane % 4;
                c = f16_pair(to->x, to->y);
                si = f16_pair(to[D / 4].x, to[D / 4].y);
            }
            low[h] = times_plus(y, si, times(x, c));
            high[h] = times_plus(x, minus(si), times(y, c));
        }
    }

    __device__ __forceinline__ uint32_t key_entry(uint32_t one) const
    {
        return entry_of(key_place<N>(one >> 16), half_of(one, 0), lowest[(one >> 16) % D]);
    }

    /* Packs two numbers into a word. Upper half: index of channel 0 of token t in a tile of V.
     * Lower half: byte offset of the token's scale. */
    static __device__ __forceinline__ uint32_t value_token(int t)
    {
        return value_place_of_token((uint32_t)t) << 16 |
               (uint32_t)(64 * (t / 16) + 2 * kvd_packed_scale(t));
    }

    __device__ __forceinline__ uint32_t value_entry(const char *stage, uint32_t token,
                                                    uint32_t one) const
    {
        const uint16_t *const side = reinterpret_cast<const uint16_t *>(stage + (token & 0xffff));
        return entry_of(value_place_of_dim(one >> 16) + (token >> 16), half_of(one, 0),
                        fmaf(half_of(side[0], 0), level_0[1], half_of(side[4], 0)));
    }

    __device__ __forceinline__ void multiply_keys(const packed_params &p, const char *stage, int u,
                                                  const uint32_t (&w_low)[B],
                                                  const uint32_t (&w_high)[B], float (&sum)[4][4],
                                                  int lane)
    {
        uint32_t q_low[2], q_high[2];
        undo_rope(p, stage, u, q_low, q_high, lane);
        const uint2 *const ranges = range + lane % 4 + 8 * u;
        const uint2 low[2] = {ranges[0], ranges[4]}, high[2] = {ranges[4 * N], ranges[4 * N + 4]};
        const uint4 step = turn[2 * (N / 2) * 32 + u * 32 + lane % 4],
                    t[2] = {turn[u * 32 + lane], turn[(N / 2 + u) * 32 + lane]};
        uint32_t x_middle[4], y_middle[4];
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const uint32_t c = r / 2 ? t[r % 2].z : t[r % 2].x,
                           si = r / 2 ? t[r % 2].w : t[r % 2].y, a = low[r / 2].y,
                           b = high[r / 2].y;
            x_middle[r] = times_plus(b, minus(si), times(a, c));
            y_middle[r] = times_plus(a, si, times(b, c));
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t x[4], y[4];
            look_up<B>(table, column, w_low, m, x);
            look_up<B>(table, column, w_high, m, y);
            const uint4 e = tile[32 * (2 * m + u % 2)], f = tile[32 * (2 * m + 8 + u % 2)];
            const uint32_t x_more[4] = {e.x, e.z, e.y, e.w}, y_more[4] = {f.x, f.z, f.y, f.w};
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint32_t c = r / 2 ? t[r % 2].z : t[r % 2].x,
                               si = r / 2 ? t[r % 2].w : t[r % 2].y;
                const uint32_t a = times_plus(x[r], low[r / 2].x, x_more[r]),
                               b = times_plus(y[r], high[r / 2].x, y_more[r]);
                x[r] = times_plus(b, minus(si), times_plus(a, c, x_middle[r]));
                y[r] = times_plus(a, si, times_plus(b, c, y_middle[r]));
            }
            if (m)
                turn_on(step, q_low, q_high);
            mma_pure<false>(sum[m], x, q_low[0], q_low[1]);
            mma_pure<false>(sum[m], y, q_high[0], q_high[1]);
        }
    }

    static __device__ __forceinline__ int skipped(const packed_params &p, const cursor &at)
    {
        return min(max(p.a.n_sink - (int)KVD_PAGE_TOKENS * at.page, 0), (int)KVD_PAGE_TOKENS);
    }

    /* Adds the page's first n tokens, which are stored as float16, to the softmax state. Skips
     * tokens outside the sliding window. */
    static __device__ __forceinline__ void others(const packed_params &p, const cursor &at, int n,
                                                  state<N> &st, int lane)
    {
        const int first = KVD_PAGE_TOKENS * at.page;
#pragma unroll 1
        for (int t = max(first, first_seen(p.a, at.m)); t < first + n; t++) {
            const uint16_t *const v = in_sink(p.a, at.b, at.g, t) + D;
            add_token(st, sum_of_head(sink_score<D>(p, at, t, lane)) * p.scale_log2, lane,
                      [&](int i) { return half_of(v[i], 0); });
        }
    }

    static __device__ __forceinline__ const uint32_t *key_list(const packed_params &p,
                                                               const char *stage)
    {
        return reinterpret_cast<const uint32_t *>(
            stage + (p.n_listed ? p.parts.k_list - p.parts.k_side : 0));
    }

    static __device__ __forceinline__ int key_outliers(const packed_params &p, const char *stage)
    {
        return p.a.form.k_apart ? min((int)key_list(p, stage)[0], p.a.form.k_apart) : 0;
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &,
                                           const char *stage, words &w, const char *codes,
                                           float (&s)[4][4], int lane)
    {
        const int n = key_outliers(p, stage);
        const uint32_t *const list = key_list(p, stage), *const all =
                                                             reinterpret_cast<const uint32_t *>(
                                                                 codes + p.parts.k_list);
        const auto number = [&](int k) {
            return key_entry(k < p.n_listed ? list[4 + k] : all[4 + k]);
        };
        const few_outliers quick = few_of(places, n, lane, [&](int k) {
            return key_entry(list[4 + min(lane + 32 * k, p.n_listed - 1)]);
        });
        float sum[4][4] = {};
#pragma unroll
        for (int u = 0; u < N / 2; u++) {
            if (u % 2 == 0) {
                quick.put_all(u / 2, false);
                put_many(places, n, u / 2, false, lane, number);
                __syncwarp();
            }
            multiply_keys(p, stage, u, w.w[2 * u % words::AHEAD], w.w[(2 * u + 1) % words::AHEAD],
                          sum, lane);
            if (u % 2) {
                __syncwarp();
                quick.put_all(u / 2, true);
                put_many(places, n, u / 2, true, lane, number);
                __syncwarp();
            }
            w.taken(0, 2 * u, codes, codes + p.parts.v);
            w.taken(0, 2 * u + 1, codes, codes + p.parts.v);
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            s[i / 4][i % 4] = sum[i / 4][i % 4] * (p.scale_log2 * unit[i % 2]);
    }

    __device__ __forceinline__ void multiply_values(int pass, const uint32_t (&w_0)[B],
                                                    const uint32_t (&w_1)[B],
                                                    const uint32_t (&scaled)[8],
                                                    const uint32_t (&prob)[8], float (&o_0)[4],
                                                    float (&o_1)[4]) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t x[4], y[4];
            look_up<B>(table, column + ROW / 2, w_0, k, x);
            look_up<B>(table, column + ROW / 2, w_1, k, y);
            const uint4 e = tile[32 * (pass % 2 * 8 + k)], f = tile[32 * (pass % 2 * 8 + 4 + k)];
            const uint32_t x_more[4] = {e.x, e.y, e.z, e.w}, y_more[4] = {f.x, f.y, f.z, f.w};
            mma_pure<false>(o_0, x, scaled[2 * k], scaled[2 * k + 1]);
            mma_pure<false>(o_1, y, scaled[2 * k], scaled[2 * k + 1]);
            mma_pure<false>(o_0, x_more, prob[2 * k], prob[2 * k + 1]);
            mma_pure<false>(o_1, y_more, prob[2 * k], prob[2 * k + 1]);
        }
    }

    /* Adds V^T P^T (values times probabilities) of the quantised tokens of a page. */
    __device__ __forceinline__ void values(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           const char *next, const uint32_t (&prob)[8],
                                           state<N> &st, int lane)
    {
        const int coded = min(at.m - 1 - (int)KVD_PAGE_TOKENS * at.page, (int)KVD_PAGE_TOKENS),
                  apart = p.a.form.v_apart, n = coded * apart;
        const uint32_t *const list = reinterpret_cast<const uint32_t *>(
            stage + (apart ? p.parts.v_list - p.parts.k_side : 0));
        const auto number = [&](int k) {
            return value_entry(stage, value_token(k / apart), list[k]);
        };
        const few_outliers quick = few_of(places, n, lane, [&](int k) {
            return value_entry(stage, quick_token[k],
                               list[max(min(lane + 32 * k, KVD_PAGE_TOKENS * apart - 1), 0)]);
        });
        uint32_t scaled[8];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 side = *reinterpret_cast<const uint4 *>(stage + 64 * k + lane % 4 * 16);
            const uint32_t middle[4] = {lane < 4 ? side.z : 0, 0, lane < 4 ? side.w : 0, 0};
            mma_pure<false>(st.zero, middle, prob[2 * k], prob[2 * k + 1]);
            scaled[2 * k] = times(prob[2 * k], side.x);
            scaled[2 * k + 1] = times(prob[2 * k + 1], side.y);
        }
#pragma unroll
        for (int pass = 0; pass < N / 2; pass++) {
            if (pass % 2 == 0) {
                quick.put_all(pass / 2, false);
                put_many(places, n, pass / 2, false, lane, number);
                __syncwarp();
            }
            multiply_values(pass, w.w[2 * pass % words::AHEAD], w.w[(2 * pass + 1) % words::AHEAD],
                            scaled, prob, st.o[2 * pass], st.o[2 * pass + 1]);
            if (pass % 2) {
                __syncwarp();
                quick.put_all(pass / 2, true);
                put_many(places, n, pass / 2, true, lane, number);
                __syncwarp();
            }
            w.taken(1, 2 * pass, codes + p.parts.v, next);
            w.taken(1, 2 * pass + 1, codes + p.parts.v, next);
        }
    }
};

template <int N> kvd_packed_decode_kernel of_bits(int bits)
{
    return bits == 2   ? packed_decode_kernel<levels_page<2, N>>
           : bits == 3 ? packed_decode_kernel<levels_page<3, N>>
           : bits == 4 ? packed_decode_kernel<levels_page<4, N>>
                       : NULL;
}

} // namespace

kvd_packed_decode_kernel kvd_packed_levels_kernel(const kvd_packed_args *a)
{
    const int d = a->map.d_qk[0];
    if (a->before_rope && (a->interleaved || !a->turn))
        return NULL;
    return d == 64 ? of_bits<4>(a->form.bits) : d == 128 ? of_bits<8>(a->form.bits) : NULL;
}

void kvd_packed_levels_lay_out(kvd_packed_decode_params *p)
{
    const int d = p->a.map.d_qk[0], turned = p->a.before_rope ? 4 * d : 0;
    p->n_listed = min(max(p->a.form.k_apart / 12 * 4, 32 * QUICK), p->a.form.k_apart);
    p->newest_at =
        p->parts.k_list - p->parts.k_side + (p->a.form.k_apart ? 16 + 4 * p->n_listed : 0) + turned;
    p->scratch_bytes = 2 * PASS + 24 * d;
    p->shared_bytes = (p->a.form.bits == 3 ? table_bytes<3>() : table_bytes<4>()) + TURNS * d / 16;
}
