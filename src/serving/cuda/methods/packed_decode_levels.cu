/*
 * Attention of steps on codes of levels (kvquant): what packed_decode.cu does, for
 *
 *   K = R(t) (middle + half width * level[code]) per channel, V = middle + half width * level[code] per token, outliers and first tokens apart
 *
 * R(t), RoPE of the key's position, is R(first of the page) R(t % 64): the first is put on the queries, once per page, the second comes from a
 * table of 64 positions in shared memory, in the order of the operands.
 *
 * Levels are float16, their bytes in registers, from which prmt takes four at a time. Half a page of one side at a time goes through shared
 * memory, each lane's operands where it alone reads them: there outliers find their places. Then RoPE on pairs, and the products.
 *
 * Bound by bytes as packed_decode.cu, in practice by some 3000 instructions of a warp for a page of heads of 128, and by the few warps that its shared
 * memory leaves room for: 13 % of the bound on an H200 at 4 bits.
 */
#include "serving/cuda/methods/packed_decode.cuh"

namespace
{

/* Bytes of up to 16 levels as float16: entries 4 i .. 4 i + 3 in word i. */
struct level_table {
    uint32_t low[4], high[4];
};

template <int B> __device__ void load_levels(const float *level, level_table &t)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        t.low[i] = t.high[i] = 0;
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (4 * i + k < 1 << B) {
                const uint32_t h = half_bits(level[4 * i + k]);
                t.low[i] |= (h & 0xff) << 8 * k;
                t.high[i] |= h >> 8 << 8 * k;
            }
    }
}

/* Codes of numbers 8 o .. 8 o + 7 of a lane, four bits each: the even ones in the lower half, the odd ones in the upper. */
template <int B> __device__ __forceinline__ uint32_t octet(const uint32_t (&w)[B], int o)
{
    if (B == 4)
        return w[o % B];
    uint32_t x = w[o / 2 % B] >> o % 2 * 8 & 0x00ff00ffu; /* of the plane of two bits */
    x = (x | x << 4) & 0x0f0f0f0fu;
    x = (x | x << 2) & 0x33333333u;
    if (B == 3) {
        uint32_t y = w[B - 1] >> o * 4 & 0x000f000fu;
        y = (y | y << 6) & 0x03030303u;
        y = (y | y << 3) & 0x11111111u;
        x |= y << 2;
    }
    return x;
}

/* Four entries of a byte table, by the lower three bits of the lower four digits of s, and of those by m. */
template <int B>
__device__ __forceinline__ uint32_t four_bytes(const uint32_t (&table)[4], uint32_t s, uint32_t m)
{
    const uint32_t first = __byte_perm(table[0], table[1], s);
    return B == 4 ? (first & ~m) | (__byte_perm(table[2], table[3], s) & m) : first;
}

/* Levels of an octet, numbers 2 i and 2 i + 1 in x[i]. */
template <int B>
__device__ __forceinline__ void look_up(uint32_t codes, const level_table &t, uint32_t (&x)[4])
{
    const uint32_t s = codes & 0x77777777u, h = B == 4 ? codes >> 3 & 0x11111111u : 0;
    uint32_t number[2][2]; /* of even and odd ones: first two, second two */
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const uint32_t digits = s >> 16 * e, m = B == 4 ? __byte_perm(0xff00u, 0, h >> 16 * e) : 0;
        const uint32_t low = four_bytes<B>(t.low, digits, m), high = four_bytes<B>(t.high, digits, m);
        number[e][0] = __byte_perm(low, high, 0x5140);
        number[e][1] = __byte_perm(low, high, 0x7362);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x[2 * i] = __byte_perm(number[0][i], number[1][i], 0x5410);
        x[2 * i + 1] = __byte_perm(number[0][i], number[1][i], 0x7632);
    }
}

template <int B> __device__ __forceinline__ void load_code_words(const char *from, uint32_t (&w)[B])
{
    if constexpr (B == 4) {
        const uint4 v = *reinterpret_cast<const uint4 *>(from);
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < B; i++)
            w[i] = *reinterpret_cast<const uint32_t *>(from + 4 * i);
    }
}

__device__ __forceinline__ uint32_t times_plus(uint32_t x, uint32_t y, uint32_t z)
{
    const __half2 v = __hfma2(as_halves(x), as_halves(y), as_halves(z));
    return *reinterpret_cast<const uint32_t *>(&v);
}

__device__ __forceinline__ uint32_t times(uint32_t x, uint32_t y)
{
    const __half2 v = __hmul2(as_halves(x), as_halves(y));
    return *reinterpret_cast<const uint32_t *>(&v);
}

/* Places in the half page [pieces][32 lanes][8 halves] of token t (0 .. 31) and dim i. */
__device__ __forceinline__ int key_place(int t, int i)
{
    return ((i / 8 * 32 + kvd_packed_key_lane(t, i)) * 4 + t / 8) * 2 + i % 2;
}

__device__ __forceinline__ int value_place(int t, int i)
{
    return (((i / 16 * 2 + t / 16) * 32 + kvd_packed_value_lane(t, i)) * 4 + i % 16 / 8 + t % 16 / 8 * 2) *
               2 +
           t % 2;
}

template <int B, int N> struct levels_page {
    static constexpr int UNITS = N, D = 16 * N;
    level_table level[2];
    uint32_t query[N][2]; /* bf16 */
    float unit;
    const uint4 *turn; /* shared [8][N / 2][32]: cos, sin of dims 2 c, 2 c + 1; of those + 8 */
    uint16_t *tile;    /* shared, half a page of this warp's */

    __device__ levels_page(const packed_params &p, char *shared, char *scratch)
        : turn(reinterpret_cast<const uint4 *>(shared)), tile(reinterpret_cast<uint16_t *>(scratch))
    {
        for (int i = (int)threadIdx.x; p.a.before_rope && i < 128 * N; i += (int)blockDim.x)
            reinterpret_cast<uint4 *>(shared)[i] = reinterpret_cast<const uint4 *>(p.a.turn)[i];
        load_levels<B>(p.a.level + (1 << B), level[0]);
        load_levels<B>(p.a.level + (3 << B), level[1]);
        __syncthreads();
    }

    __device__ __forceinline__ void begin(const packed_params &p, const cursor &at, int lane)
    {
        const uint16_t *const from = query_of(p, at.b, at.g, lane);
        float most = 0;
#pragma unroll
        for (int i = 0; i < 2 * N; i++) {
            uint32_t &w = query[i / 2][i % 2];
            w = lane / 4 < p.a.map.group ? *reinterpret_cast<const uint32_t *>(from + 8 * i) : 0;
            most = fmaxf(most, fmaxf(fabsf(bf16_of(w, 0)), fabsf(bf16_of(w, 1))));
        }
        unit = unit_of(most);
    }

    __device__ __forceinline__ void copy(const packed_params &p, const cursor &at, uint32_t stage, int lane)
    {
        const int turned = p.a.before_rope ? 4 * D : 0;
        copy_codes(p, at, stage, p.stage_bytes - turned, lane);
        if (turned && KVD_PAGE_TOKENS * at.page < at.keys && lane < D / 4) {
            const float *const table = lane < D / 8 ? p.a.cosine : p.a.sine;
            const float *const from =
                table + (size_t)(KVD_PAGE_TOKENS * at.page) * (D / 2) + lane % (D / 8) * 4;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                             stage + (uint32_t)(p.stage_bytes - turned + 16 * lane)),
                         "l"(from)
                         : "memory");
        }
    }

    /* Queries as A operand, turned back by the page's first position. */
    __device__ __forceinline__ void turn_back(const packed_params &p, const char *stage, uint32_t (&q)[N][2],
                                              int lane)
    {
        const float *const cosine = reinterpret_cast<const float *>(stage + p.stage_bytes - 4 * D),
                           *const sine = cosine + D / 2;
        const float over = 1 / unit; /* exact */
#pragma unroll
        for (int u = 0; u < N / 2; u++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t low = query[u][h], high = query[u + N / 2][h];
                float2 c = make_float2(1, 1), s = make_float2(0, 0);
                if (p.a.before_rope) {
                    c = *reinterpret_cast<const float2 *>(cosine + 16 * u + 8 * h + lane % 4 * 2);
                    s = *reinterpret_cast<const float2 *>(sine + 16 * u + 8 * h + lane % 4 * 2);
                }
                q[u][h] = f16_pair((bf16_of(low, 0) * c.x + bf16_of(high, 0) * s.x) * over,
                                   (bf16_of(low, 1) * c.y + bf16_of(high, 1) * s.y) * over);
                q[u + N / 2][h] = f16_pair((bf16_of(high, 0) * c.x - bf16_of(low, 0) * s.x) * over,
                                           (bf16_of(high, 1) * c.y - bf16_of(low, 1) * s.y) * over);
            }
    }

    /* First tokens of a sequence that lie in the half page, as they are. */
    __device__ __forceinline__ void put_sink(const packed_params &p, const cursor &at, int side, int first,
                                             int coded, int lane)
    {
        const int n = min(min(p.a.n_sink, coded) - first, 32), wide = p.a.map.page_elements / KVD_PAGE_TOKENS;
        if (n <= 0)
            return;
        const uint16_t *const from =
            p.a.sink + ((size_t)p.a.slot[at.b] * (size_t)p.a.n_sink + (size_t)first) * (size_t)wide +
            p.a.map.kv_offset[at.g] / KVD_PAGE_TOKENS + side * D;
        for (int k = lane; k < n * D; k += 32) {
            const int t = k / D, i = k % D;
            tile[side ? value_place(t, i) : key_place(t, i)] = from[(size_t)t * (size_t)wide + (size_t)i];
        }
        __syncwarp();
    }

    __device__ __forceinline__ void put_key_outliers(const packed_params &p, const cursor &at,
                                                     const char *stage, int half, int lane)
    {
        if (!p.a.form.k_apart)
            return;
        const uint32_t *const list = reinterpret_cast<const uint32_t *>(stage + p.parts.k_list);
        const int page = __shfl_sync(~0u, at.number, at.page % 32), n = min((int)list[0], p.a.form.k_apart);
        const uint32_t *const all =
            reinterpret_cast<const uint32_t *>(in_codes(p.a, page, at.g) + p.parts.k_list);
        for (int k = lane; k < n; k += 32) {
            const uint32_t one = k < p.n_listed ? list[4 + k] : all[4 + k];
            const int t = (int)(one >> 16) / KVD_WIDTH_MAX, i = (int)(one >> 16) % KVD_WIDTH_MAX;
            if (t / 32 == half)
                tile[key_place(t % 32, i)] = (uint16_t)one;
        }
        __syncwarp();
    }

    __device__ __forceinline__ void scores(const packed_params &p, const cursor &at, const char *stage,
                                           float (&s)[8][2], int lane)
    {
        const int first = KVD_PAGE_TOKENS * at.page, coded = at.keys - first;
        const float4 *const range =
            reinterpret_cast<const float4 *>(p.a.range + 2 * (size_t)at.g * (size_t)p.a.range_width) +
            lane % 4;
        uint4 *const mine = reinterpret_cast<uint4 *>(tile) + lane;
        uint32_t q[N][2];
        float sum[8][4] = {};
        turn_back(p, stage, q, lane);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (32 * half >= coded)
                break;
#pragma unroll
            for (int u = 0; u < N; u++) {
                uint32_t w[B], x[2][4];
                load_code_words<B>(stage + 4 * kvd_packed_words(B, u, lane), w);
                look_up<B>(octet<B>(w, 2 * half), level[0], x[0]);
                look_up<B>(octet<B>(w, 2 * half + 1), level[0], x[1]);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float4 r = __ldg(range + 8 * u + 4 * h); /* middle, half width of two dims */
                    const uint32_t middle = f16_pair(r.x, r.z), width = f16_pair(r.y, r.w);
                    mine[(2 * u + h) * 32] = make_uint4(
                        times_plus(x[0][h], width, middle), times_plus(x[0][2 + h], width, middle),
                        times_plus(x[1][h], width, middle), times_plus(x[1][2 + h], width, middle));
                }
            }
            __syncwarp();
            put_key_outliers(p, at, stage, half, lane);
            put_sink(p, at, 0, first + 32 * half, at.keys, lane);
#pragma unroll
            for (int u = 0; u < N / 2; u++) {
                const int v = u + N / 2;
                const uint32_t a[4] = {q[u][0], 0, q[u][1], 0}, b[4] = {q[v][0], 0, q[v][1], 0};
                uint4 l[2], g[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    l[h] = mine[(2 * u + h) * 32];
                    g[h] = mine[(2 * v + h) * 32];
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    uint32_t low[2], high[2];
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        low[h] = j == 0 ? l[h].x : j == 1 ? l[h].y : j == 2 ? l[h].z : l[h].w;
                        high[h] = j == 0 ? g[h].x : j == 1 ? g[h].y : j == 2 ? g[h].z : g[h].w;
                    }
                    if (p.a.before_rope) {
                        const uint4 t = turn[((4 * half + j) * (N / 2) + u) * 32 + lane];
#pragma unroll
                        for (int h = 0; h < 2; h++) {
                            const uint32_t x = low[h], y = high[h], c = h ? t.z : t.x, si = h ? t.w : t.y;
                            low[h] = times_plus(y, si ^ 0x80008000u, times(x, c));
                            high[h] = times_plus(x, si, times(y, c));
                        }
                    }
                    multiply<false>(sum[4 * half + j], a, low[0], low[1]);
                    multiply<false>(sum[4 * half + j], b, high[0], high[1]);
                }
            }
            __syncwarp();
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            s[j][0] = sum[j][0] * (p.scale_log2 * unit);
            s[j][1] = sum[j][1] * (p.scale_log2 * unit);
        }
    }

    __device__ __forceinline__ void values(const packed_params &p, const cursor &at, const char *stage,
                                           const uint32_t (&prob)[8], state<N> &st, int lane)
    {
        const int first = KVD_PAGE_TOKENS * at.page, coded = at.values - first, apart = p.a.form.v_apart;
        const uint32_t *const list = reinterpret_cast<const uint32_t *>(stage + p.parts.v_list);
        uint4 *const mine = reinterpret_cast<uint4 *>(tile) + lane;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (32 * half >= coded)
                break;
            uint4 side[2];
#pragma unroll
            for (int k = 0; k < 2; k++)
                side[k] = *reinterpret_cast<const uint4 *>(stage + p.parts.v_side + 64 * (2 * half + k) +
                                                           lane % 4 * 16);
#pragma unroll
            for (int u = 0; u < N; u++) {
                uint32_t w[B];
                load_code_words<B>(stage + p.parts.v + 4 * kvd_packed_words(B, u, lane), w);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    uint32_t x[4];
                    look_up<B>(octet<B>(w, 2 * half + k), level[1], x);
                    mine[(2 * u + k) * 32] = make_uint4(
                        times_plus(x[0], side[k].x, side[k].z), times_plus(x[1], side[k].x, side[k].z),
                        times_plus(x[2], side[k].y, side[k].w), times_plus(x[3], side[k].y, side[k].w));
                }
            }
            __syncwarp();
            for (int k = lane; k < min(coded - 32 * half, 32) * apart; k += 32) {
                const uint32_t one = list[32 * half * apart + k];
                tile[value_place(k / apart, (int)(one >> 16))] = (uint16_t)one;
            }
            __syncwarp();
            put_sink(p, at, 1, first + 32 * half, at.values, lane);
#pragma unroll
            for (int u = 0; u < N; u++)
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const uint4 v = mine[(2 * u + k) * 32];
                    const uint32_t a[4] = {v.x, v.y, v.z, v.w};
                    multiply<false>(st.o[u], a, prob[4 * half + 2 * k], prob[4 * half + 2 * k + 1]);
                }
            __syncwarp();
        }
    }
};

/* table as levels_page's turn: of position t in 64 the turn by t, whatever the tables' own length of vectors is. */
__global__ void turn_kernel(const float *cosine, const float *sine, int half, uint4 *table)
{
    const int lane = (int)threadIdx.x, u = (int)blockIdx.x, t = 8 * (int)blockIdx.y + lane / 4;
    float c[4], s[4];
    for (int k = 0; k < 4; k++) {
        const int i = 16 * u + lane % 4 * 2 + k % 2 + k / 2 * 8;
        const double angle = atan2((double)sine[half + i], (double)cosine[half + i]);
        c[k] = (float)cos(angle * t);
        s[k] = (float)sin(angle * t);
    }
    table[((int)blockIdx.y * (int)gridDim.x + u) * 32 + lane] =
        make_uint4(f16_pair(c[0], c[1]), f16_pair(s[0], s[1]), f16_pair(c[2], c[3]), f16_pair(s[2], s[3]));
}

template <int N> kvd_packed_decode_kernel of_bits(int bits)
{
    return bits == 2   ? decode_kernel<levels_page<2, N>>
           : bits == 3 ? decode_kernel<levels_page<3, N>>
           : bits == 4 ? decode_kernel<levels_page<4, N>>
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
    /* Room is four times what is expected (serving/cuda/methods/packed.c): a third of it hardly ever is too little. */
    p->n_listed = p->a.form.k_apart / 12 * 4;
    p->stage_bytes = p->parts.k_list + (p->a.form.k_apart ? 16 + 4 * p->n_listed : 0) + turned;
    p->scratch_bytes = 64 * d;
    p->shared_bytes = turned ? 128 * d : 0;
}

size_t kvd_packed_turns_bytes(int d)
{
    return (size_t)(128 * d);
}

cudaError_t kvd_packed_turns(const float *cosine, const float *sine, int d, uint32_t *turn,
                             cudaStream_t stream)
{
    if (d % 32)
        return cudaErrorInvalidValue;
    turn_kernel<<<dim3((unsigned)d / 32, 8), 32, 0, stream>>>(cosine, sine, d / 2,
                                                              reinterpret_cast<uint4 *>(turn));
    return cudaGetLastError();
}
