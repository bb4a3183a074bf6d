/*
 * Attention of decode steps on indices of quantisation levels (kvquant), as in packed_decode.cu,
 * for
 *
 *   K = R(t) (middle + half width * level[code]) per channel
 *   V = middle + half width * level[code] per token
 *
 * R(t) is the RoPE rotation of the key's position t, the product of R(first position of the page)
 * and R(t % 64). The first factor is applied to the queries; the second comes from a table in
 * shared memory. Every lane has a column of its own in the table of levels, so that no two lanes
 * access the same bank.
 */
#include "methods/bits/cuda/packed_decode.cuh"
#include "methods/bits/cuda/packed_levels.cuh"

namespace
{

template <int B, int N> struct levels_page {
    static constexpr int UNITS = N, D = 16 * N;
    static constexpr bool STRAIGHT = false, BF = false, RINGS_AHEAD = false;
    typedef words_ahead<B, N, true> words;
    const char *table; /* in shared memory */
    /*
     * RoPE rotations in shared memory, [8][N / 2][32]: cosines and sines of dimensions 2 c and 2 c
     * + 1, then those of dimensions 2 c + 8 and 2 c + 9.
     */
    const uint4 *turn;
    const uint4 *tile; /* tile of outliers in shared memory */
    uint32_t places;   /* shared-memory address of the tile */
    uint32_t *query;   /* queries in shared memory, [2 N][32] bf16 */
    /*
     * Ranges of key channels in shared memory, [2 N][4]: half widths of dimensions 2 c and 2 c + 1,
     * then their middles.
     */
    uint2 *range;
    float level;     /* quantisation level that this lane loads into the table */
    float lowest[2]; /* level 0 of keys and of values, as float16 */
    uint32_t column; /* offset of this lane's column in the table of quantisation levels */
    /*
     * Powers of two by which queries are divided: 1 / over for query head lane / 4, `unit` for
     * query heads 2 c and 2 c + 1.
     */
    float over, unit[2];

    static __device__ constexpr float factor(int)
    {
        return 1;
    }

    static __device__ constexpr float outputs()
    {
        return 1;
    }

    static __device__ __forceinline__ void for_rows(float (&)[4][4])
    {
    }

    __device__ levels_page(const packed_params &p, char *shared, char *scratch)
    {
        const int lane = (int)threadIdx.x % 32;
        table = shared;
        turn = reinterpret_cast<const uint4 *>(shared + table_bytes<B>());
        tile = reinterpret_cast<const uint4 *>(scratch) + lane;
        places = (uint32_t)__cvta_generic_to_shared(scratch);
        query = reinterpret_cast<uint32_t *>(scratch + 2 * TILE);
        range = reinterpret_cast<uint2 *>(scratch + 2 * TILE + 256 * N);
        column = (uint32_t)(B == 2 ? lane % 16 * 8 : lane * 4);
        level = level_of_lane<B>(p.a.level, lane);
        if (p.a.before_rope)
            copy_by_all(shared + table_bytes<B>(), p.a.turn, 2048 * N);
    }

    __device__ __forceinline__ void ready(const packed_params &p, char *shared, char *scratch)
    {
        fill_table<B>(level, shared);
        lowest[0] = as_half(__shfl_sync(~0u, level, 0));
        lowest[1] = as_half(__shfl_sync(~0u, level, 16));
        if (!p.a.before_rope)
            for (int i = (int)threadIdx.x; i < 128 * N; i += (int)blockDim.x)
                reinterpret_cast<uint4 *>(shared + table_bytes<B>())[i] =
                    make_uint4(0x3c003c00u, 0, 0x3c003c00u, 0);
        for (int i = (int)threadIdx.x % 32; i < TILE / 8; i += 32)
            reinterpret_cast<uint4 *>(scratch)[i] = make_uint4(0, 0, 0, 0);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
    }

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        const uint16_t *const from = query_of(p, at.b, at.g, lane);
        const float4 *const ranges = reinterpret_cast<const float4 *>(
            p.a.range + 2 * (size_t)at.g * (size_t)p.a.range_width);
        float most = 0;
        float4 r[N / 4];
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            r[i] = __ldg(ranges + lane + 32 * i);
        if (at.page == 0 && p.a.n_sink)
            prefetch_sinks(p, at, 128 * B * N, D, lane);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            const uint32_t w =
                lane / 4 < p.a.map.group ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
            most = fmaxf(most, fmaxf(fabsf(bf16_of(w, 0)), fabsf(bf16_of(w, 1))));
            query[32 * i + lane] = w;
        }
        const float mine = unit_of(most);
        over = 1 / mine;
        of_columns(mine, unit, lane);
#pragma unroll
        for (int i = 0; i < N / 4; i++)
            range[lane + 32 * i] = make_uint2(f16_pair(r[i].y, r[i].w), f16_pair(r[i].x, r[i].z));
        __syncwarp();
    }

    static __device__ __forceinline__ void copy(const packed_params &p, const cursor &at,
                                                const char *codes, uint32_t stage, int lane)
    {
        const int turned = p.a.before_rope ? 4 * D : 0;
        copy_ahead(stage, codes + p.parts.k_side, p.stage_bytes - turned, lane);
        if (turned && lane < D / 4)
            copy_ahead(
                stage + (uint32_t)(p.stage_bytes - turned + lane / (D / 8) * 2 * D),
                reinterpret_cast<const char *>((lane < D / 8 ? p.a.cosine : p.a.sine) +
                                               (size_t)(KVD_PAGE_TOKENS * at.page) * (D / 2)),
                2 * D, lane % (D / 8));
    }

    __device__ __forceinline__ void undo_rope(const packed_params &p, const char *stage, int u,
                                              uint32_t (&low)[2], uint32_t (&high)[2], int lane)
    {
        const float *const cosine = reinterpret_cast<const float *>(stage + p.stage_bytes - 4 * D),
                           *const sine = cosine + D / 2;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t x = query[32 * (2 * u + h) + lane],
                           y = query[32 * (2 * (u + N / 2) + h) + lane];
            float2 c = make_float2(1, 1), s = make_float2(0, 0);
            if (p.a.before_rope) {
                c = *reinterpret_cast<const float2 *>(cosine + 16 * u + 8 * h + lane % 4 * 2);
                s = *reinterpret_cast<const float2 *>(sine + 16 * u + 8 * h + lane % 4 * 2);
            }
            low[h] = f16_pair((bf16_of(x, 0) * c.x + bf16_of(y, 0) * s.x) * over,
                              (bf16_of(x, 1) * c.y + bf16_of(y, 1) * s.y) * over);
            high[h] = f16_pair((bf16_of(y, 0) * c.x - bf16_of(x, 0) * s.x) * over,
                               (bf16_of(y, 1) * c.y - bf16_of(x, 1) * s.y) * over);
        }
    }

    __device__ __forceinline__ uint32_t key_entry(int t, int i, float x) const
    {
        const uint16_t *const r = reinterpret_cast<const uint16_t *>(range + i / 2) + i % 2;
        return entry_of(key_place<N>(t, i), x, half_of(r[2], 0), half_of(r[0], 0), lowest[0]);
    }

    __device__ __forceinline__ uint32_t value_entry(const char *stage, int t, int i, float x) const
    {
        const uint16_t *const side =
            reinterpret_cast<const uint16_t *>(stage + 64 * (t / 16)) + kvd_packed_scale(t);
        return entry_of(value_place(t, i), x, half_of(side[4], 0), half_of(side[0], 0), lowest[1]);
    }

    __device__ __forceinline__ uint32_t address_of(uint32_t entry) const
    {
        return places + (entry >> 15 & 2 * (TILE - 1));
    }

    /*
     * Outliers that a lane keeps in registers. put_all writes those in the 32 dimensions with
     * number `pass` to the tile in shared memory or, with `away`, sets their elements to 0.
     */
    struct few {
        uint32_t entry[QUICK], address[QUICK];

        __device__ __forceinline__ void put_all(int pass, bool away) const
        {
#pragma unroll
            for (int k = 0; k < QUICK; k++)
                put(entry[k], address[k], pass, away);
        }
    };

    /*
     * Returns the lane's outliers among the first 32 QUICK outliers of a list of n. The function
     * number(k) returns outlier k.
     */
    template <class AT> __device__ __forceinline__ few few_of(int n, int lane, AT number) const
    {
        few f;
#pragma unroll
        for (int k = 0; k < QUICK; k++) {
            const uint32_t one = number(lane + 32 * k);
            f.entry[k] = lane + 32 * k < n ? one : 0;
            f.address[k] = address_of(one);
        }
        return f;
    }

    /*
     * Writes the outliers that are not in registers, and the float16 numbers of the page's first
     * `sinks` tokens, to the tile in shared memory. With `away`, sets their elements to 0.
     */
    template <class AT>
    __device__ __forceinline__ void put_many(const packed_params &p, const cursor &at,
                                             const char *stage, int side, int n, int sinks,
                                             int pass, bool away, int lane, AT number)
    {
#pragma unroll 1
        for (int k = 32 * QUICK + lane; k < n; k += 32) {
            const uint32_t one = number(k);
            put(one, address_of(one), pass, away);
        }
        const int wide = p.a.map.page_elements / KVD_PAGE_TOKENS,
                  i = side ? 32 * pass + lane : lane / 16 * (D / 2) + 16 * pass + lane % 16;
        const uint16_t *from = sink_row(p, at, KVD_PAGE_TOKENS * at.page) + side * D + i;
        __syncwarp(); /* the list may have outliers of the first tokens, which are overwritten */
#pragma unroll 1
        for (int t = 0; t < sinks; t++, from += wide) {
            const float x = half_of(*from, 0);
            const uint32_t one = side ? value_entry(stage, t, i, x) : key_entry(t, i, x);
            put(one, address_of(one), pass, away);
        }
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
#pragma unroll
        for (int m = 0; m < 4; m++) {
            uint32_t x[4], y[4];
            look_up<B>(table, column, w_low, m, x);
            look_up<B>(table, column, w_high, m, y);
            const uint4 apart[2] = {tile[m * 32], tile[(4 + m) * 32]},
                        t[2] = {turn[(2 * m * (N / 2) + u) * 32 + lane],
                                turn[((2 * m + 1) * (N / 2) + u) * 32 + lane]};
            const uint32_t more[2][4] = {{apart[0].x, apart[0].y, apart[0].z, apart[0].w},
                                         {apart[1].x, apart[1].y, apart[1].z, apart[1].w}};
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint32_t c = r / 2 ? t[r % 2].z : t[r % 2].x,
                               si = r / 2 ? t[r % 2].w : t[r % 2].y;
                const uint32_t a = times_plus(x[r], low[r / 2].x, plus(low[r / 2].y, more[0][r])),
                               b = times_plus(y[r], high[r / 2].x, plus(high[r / 2].y, more[1][r]));
                x[r] = times_plus(b, minus(si), times(a, c));
                y[r] = times_plus(a, si, times(b, c));
            }
            multiply<false>(sum[m], x, q_low[0], q_low[1]);
            multiply<false>(sum[m], y, q_high[0], q_high[1]);
        }
    }

    static __device__ __forceinline__ int sinks_of(const packed_params &p, const cursor &at,
                                                   int coded)
    {
        return min(p.a.n_sink - (int)KVD_PAGE_TOKENS * at.page, min(coded, (int)KVD_PAGE_TOKENS));
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

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           float (&s)[4][4], int lane)
    {
        const int n = key_outliers(p, stage),
                  sinks = sinks_of(p, at, at.keys - (int)KVD_PAGE_TOKENS * at.page);
        const uint32_t *const list = key_list(p, stage);
        const auto entry = [&](uint32_t one) {
            return key_entry((int)(one >> 23), (int)(one >> 16) % KVD_WIDTH_NARROW,
                             half_of(one, 0));
        };
        const few quick =
            few_of(n, lane, [&](int k) { return entry(list[4 + min(k, p.n_listed - 1)]); });
        float sum[4][4] = {};
        if (n <= 32 * QUICK && sinks <= 0) {
#pragma unroll
            for (int u = 0; u < N / 2; u++) {
                quick.put_all(u, false);
                __syncwarp();
                multiply_keys(p, stage, u, w.w[2 * u % words::AHEAD],
                              w.w[(2 * u + 1) % words::AHEAD], sum, lane);
                __syncwarp();
                quick.put_all(u, true);
                __syncwarp();
                w.taken(0, 2 * u, codes, codes + p.parts.v);
                w.taken(0, 2 * u + 1, codes, codes + p.parts.v);
            }
        } else {
            const uint32_t *const all = reinterpret_cast<const uint32_t *>(codes + p.parts.k_list);
            const auto number = [&](int k) {
                return entry(k < p.n_listed ? list[4 + k] : all[4 + k]);
            };
            const char *const from = codes + words::of_lane();
#pragma unroll 1
            for (int u = 0; u < N / 2; u++) {
                uint32_t w_low[B], w_high[B];
                load_words<B>(from + 128 * B * u, w_low);
                load_words<B>(from + 128 * B * (u + N / 2), w_high);
                quick.put_all(u, false);
                put_many(p, at, stage, 0, n, sinks, u, false, lane, number);
                __syncwarp();
                multiply_keys(p, stage, u, w_low, w_high, sum, lane);
                __syncwarp();
                quick.put_all(u, true);
                put_many(p, at, stage, 0, n, sinks, u, true, lane, number);
                __syncwarp();
            }
            w.begin(1, codes + p.parts.v);
        }
#pragma unroll
        for (int i = 0; i < 16; i++)
            s[i / 4][i % 4] = sum[i / 4][i % 4] * (p.scale_log2 * unit[i % 2]);
    }

    __device__ __forceinline__ void
    multiply_values(const uint32_t (&w_0)[B], const uint32_t (&w_1)[B], const uint32_t (&scaled)[8],
                    const uint32_t (&prob)[8], float (&o_0)[4], float (&o_1)[4])
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t x[4], y[4];
            look_up<B>(table, column + ROW / 2, w_0, k, x);
            look_up<B>(table, column + ROW / 2, w_1, k, y);
            const uint4 e = tile[k * 32], f = tile[(4 + k) * 32];
            const uint32_t x_more[4] = {e.x, e.y, e.z, e.w}, y_more[4] = {f.x, f.y, f.z, f.w};
            multiply<false>(o_0, x, scaled[2 * k], scaled[2 * k + 1]);
            multiply<false>(o_1, y, scaled[2 * k], scaled[2 * k + 1]);
            multiply<false>(o_0, x_more, prob[2 * k], prob[2 * k + 1]);
            multiply<false>(o_1, y_more, prob[2 * k], prob[2 * k + 1]);
        }
    }

    /*
     * Adds V^T P^T (values times probabilities) for the quantised tokens. Outliers and float16
     * first tokens are added as differences from the decoded number of code 0.
     */
    __device__ __forceinline__ void values(const packed_params &p, const cursor &at,
                                           const char *stage, words &w, const char *codes,
                                           const char *next, const uint32_t (&prob)[8],
                                           state<N> &st, int lane)
    {
        const int coded = min(at.values - (int)KVD_PAGE_TOKENS * at.page, (int)KVD_PAGE_TOKENS),
                  sinks = sinks_of(p, at, coded), apart = p.a.form.v_apart, n = coded * apart;
        const uint32_t *const list = reinterpret_cast<const uint32_t *>(
            stage + (apart ? p.parts.v_list - p.parts.k_side : 0));
        const float each = apart ? 1.0f / (float)apart : 0;
        const auto number = [&](int k) {
            const int t = (int)(((float)k + 0.5f) * each);
            return value_entry(stage, t, (int)(list[k] >> 16), half_of(list[k], 0));
        };
        const int last = max(KVD_PAGE_TOKENS * apart - 1, 0);
        const few quick = few_of(n, lane, [&](int k) { return number(min(k, last)); });
        uint32_t scaled[8];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint4 side = *reinterpret_cast<const uint4 *>(stage + 64 * k + lane % 4 * 16);
            const uint32_t middle[4] = {lane < 4 ? side.z : 0, 0, lane < 4 ? side.w : 0, 0};
            multiply<false>(st.zero, middle, prob[2 * k], prob[2 * k + 1]);
            scaled[2 * k] = times(prob[2 * k], side.x);
            scaled[2 * k + 1] = times(prob[2 * k + 1], side.y);
        }
        if (n <= 32 * QUICK && sinks <= 0) {
#pragma unroll
            for (int pass = 0; pass < N / 2; pass++) {
                quick.put_all(pass, false);
                __syncwarp();
                multiply_values(w.w[2 * pass % words::AHEAD], w.w[(2 * pass + 1) % words::AHEAD],
                                scaled, prob, st.o[2 * pass], st.o[2 * pass + 1]);
                __syncwarp();
                quick.put_all(pass, true);
                __syncwarp();
                w.taken(1, 2 * pass, codes + p.parts.v, next);
                w.taken(1, 2 * pass + 1, codes + p.parts.v, next);
            }
        } else {
            const char *const from = codes + p.parts.v + words::of_lane();
#pragma unroll 1
            for (int pass = 0; pass < N / 2; pass++) {
                uint32_t w_0[B], w_1[B];
                float o[2][4] = {};
                load_words<B>(from + 256 * B * pass, w_0);
                load_words<B>(from + 256 * B * pass + 128 * B, w_1);
                quick.put_all(pass, false);
                put_many(p, at, stage, 1, n, sinks, pass, false, lane, number);
                __syncwarp();
                multiply_values(w_0, w_1, scaled, prob, o[0], o[1]);
                __syncwarp();
                quick.put_all(pass, true);
                put_many(p, at, stage, 1, n, sinks, pass, true, lane, number);
                __syncwarp();
#pragma unroll
                for (int u = 0; u < N; u++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        st.o[u][i] += u / 2 == pass ? o[u % 2][i] : 0;
            }
            w.begin(0, next);
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
    /* A third of the page's room for outliers is almost always enough. */
    p->n_listed = min(max(p->a.form.k_apart / 12 * 4, 32 * QUICK), p->a.form.k_apart);
    p->stage_bytes =
        p->parts.k_list - p->parts.k_side + (p->a.form.k_apart ? 16 + 4 * p->n_listed : 0) + turned;
    p->scratch_bytes = 2 * TILE + 20 * d;
    p->shared_bytes = (p->a.form.bits == 3 ? table_bytes<3>() : table_bytes<4>()) + 128 * d;
}
