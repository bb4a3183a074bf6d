/* Kernels that store latent vectors, and that restore K and V from them: products with a
 * projection, on tensor cores. */
#include "methods/dims/cuda/latents.h"

#include "common/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, RUNS = THREADS / 8, RANK_PART = 192 };

/* Returns the largest r such that a projection [d_head][r] fits into shared memory. */
constexpr int rank_whole(int d_head)
{
    return d_head > KVD_WIDTH_NARROW ? 384 : 768;
}

__device__ __forceinline__ size_t latent_at(int t)
{
    return (size_t)(t % KVD_PAGE_TOKENS / 8 * 64 + t % 8 * 8);
}

__device__ __forceinline__ size_t page_of(const int32_t *table, int max_pages, int b, int t)
{
    return (size_t)__ldg(table + (size_t)b * max_pages + t / KVD_PAGE_TOKENS);
}

__device__ __forceinline__ size_t blocked(size_t t, size_t i, size_t d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

/* Returns the RoPE position of token t. If it is negative, the token's K and V must not be
 * written. */
__device__ __forceinline__ int position_of(const kvd_latent_restore_args &a, size_t page, int t)
{
    if (a.positions)
        return reinterpret_cast<const int32_t *>(
            static_cast<const uint16_t *>(a.latents) +
            page * a.latent_page)[kvd_latent_position(a.positions, (int)blockIdx.z / 2, t)];
    return a.position ? __ldg(a.position + (size_t)blockIdx.y * (a.max_pages * KVD_PAGE_TOKENS) + t)
                      : t;
}

/* Applies RoPE to keys in the accumulators of mma instructions. Each lane has elements of two
 * tokens. d_head is 16 * W16. */
template <int W16>
__device__ __forceinline__ void apply_rope(const kvd_latent_restore_args &a, float (&c)[2 * W16][4],
                                           const int (&position)[2], int lane)
{
    const int half = 8 * W16;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const size_t from = (size_t)max(position[i], 0) * half;
#pragma unroll
        for (int n = 0; n < 2 * W16; n++) {
            if (a.interleaved) {
                const float cs = __ldg(a.cosine + from + 4 * n + lane % 4),
                            sn = __ldg(a.sine + from + 4 * n + lane % 4);
                const float x = c[n][2 * i], y = c[n][2 * i + 1];
                c[n][2 * i] = x * cs - y * sn;
                c[n][2 * i + 1] = y * cs + x * sn;
            } else if (n < W16) {
                const float2 cs =
                    __ldg(reinterpret_cast<const float2 *>(a.cosine + from + 8 * n) + lane % 4);
                const float2 sn =
                    __ldg(reinterpret_cast<const float2 *>(a.sine + from + 8 * n) + lane % 4);
                const float x0 = c[n][2 * i], x1 = c[n][2 * i + 1];
                const float y0 = c[(n + W16) % (2 * W16)][2 * i],
                            y1 = c[(n + W16) % (2 * W16)][2 * i + 1];
                c[n][2 * i] = x0 * cs.x - y0 * sn.x;
                c[n][2 * i + 1] = x1 * cs.y - y1 * sn.y;
                c[(n + W16) % (2 * W16)][2 * i] = y0 * cs.x + x0 * sn.x;
                c[(n + W16) % (2 * W16)][2 * i + 1] = y1 * cs.y + x1 * sn.y;
            }
        }
    }
}

/* Returns the distance in elements between rows of the projection in shared memory. Padding avoids
 * bank conflicts. */
__host__ __device__ constexpr int pitch_of(int rank)
{
    return rank + 8;
}

enum { AHEAD = 4 /* blocks of 16 latent dimensions loaded at once */ };

/* Loads AHEAD blocks of 16 elements of latent vectors, from block k on, as operands of mma
 * instructions. Blocks from number `steps` on are set to 0. */
__device__ __forceinline__ void fetch(const uint32_t *from, int k, int steps,
                                      uint32_t (&x)[AHEAD][4])
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            x[i][e] = k + i < steps ? __ldg(from + (k + i) * 512 + e / 2 * 256 + e % 2 * 32) : 0;
}

/* Loads n columns of the projection [d][rank], from column `first` on, into shared memory
 * [d][pitch]. */
__device__ __forceinline__ void load_part(const uint16_t *from, int d, int rank, int first, int n,
                                          int pitch, uint16_t *to)
{
    for (int i = (int)threadIdx.x; i < d * (n / 8); i += THREADS) {
        const int row = i / (n / 8), run = i % (n / 8);
        *reinterpret_cast<uint4 *>(to + row * pitch + 8 * run) =
            __ldg(reinterpret_cast<const uint4 *>(from + (size_t)row * rank + first) + run);
    }
}

/* Starts copying at most RANK_PART columns of the projection [d][rank], from column `first` on, to
 * shared memory. */
__device__ __forceinline__ void begin_part(const uint16_t *from, int d, int rank, int first,
                                           uint16_t *to)
{
    const int runs = min(RANK_PART, rank - first) / 8;
    for (int i = (int)threadIdx.x; i < d * runs; i += THREADS) {
        const int row = i / runs, run = i % runs;
        asm volatile(
            "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                (uint32_t)__cvta_generic_to_shared(to + row * pitch_of(RANK_PART) + 8 * run)),
            "l"(from + (size_t)row * rank + first + 8 * run)
            : "memory");
    }
}

/* Ends a group of asynchronous copies (cp.async). Then waits for all groups of copies except the
 * newest LATER groups. */
template <int LATER> __device__ __forceinline__ void wait_for_part()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
}

/* Restores K or V from latent vectors. d_head is 16 * W16. If PARTS is true, the projection does
 * not fit into shared memory and is loaded in parts. */
template <int W16, bool PARTS>
__global__ void __launch_bounds__(THREADS, 16 * W16 > KVD_WIDTH_NARROW ? 1 : 2)
    restore(const __grid_constant__ kvd_latent_restore_args a)
{
    extern __shared__ __align__(16) uint16_t b_smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int b = (int)blockIdx.y, side = (int)blockIdx.z % 2, d = 16 * W16;
    const kvd_latent_head h = a.head[blockIdx.z / 2];
    const int rank = h.rank[side], length = __ldg(a.kv_len + b) - a.newest,
              units = (length + 15) / 16, part = PARTS ? RANK_PART : rank;
    /* seen: oldest token to which a new token attends. first_unit: first block of 16 tokens whose K
     * and V are computed from latent vectors. */
    const int seen = a.window ? max(__ldg(a.kv_len + b) - __ldg(a.q_len + b) + 1 - a.window, 0) : 0,
              first_unit = seen / KVD_PAGE_TOKENS * (KVD_PAGE_TOKENS / 16);
    /* True if this head's K or V has no projection: latent vectors are copied unchanged. */
    const bool whole = h.matrix[side] < 0;
    const bool applies_rope = side == 0 && a.cosine, zeroes = !a.newest && !a.position;
    const int pitch = pitch_of(part);
    const uint16_t *const matrix = static_cast<const uint16_t *>(a.matrix) + h.matrix[side] +
                                   (a.slot ? (size_t)__ldg(a.slot + b) * a.matrix_slot : 0);
    /* This thread block has nothing to restore. */
    if (first_unit + (int)blockIdx.x * WARPS >= units || rank == 0)
        return;
    if (!PARTS && !whole) {
        load_part(matrix, d, rank, 0, rank, pitch, b_smem);
        __syncthreads();
    }
    const int jump = WARPS * (int)gridDim.x, steps = rank / 16;
    /* Index (0 or 1) of the half of shared memory that the matrix products read. */
    int stage = 1;
    if (PARTS && !whole) {
        begin_part(matrix, d, rank, 0, b_smem);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    const uint32_t smem = (uint32_t)__cvta_generic_to_shared(b_smem) +
                          (uint32_t)(((lane / 16 * 8 + lane % 8) * pitch + lane / 8 % 2 * 8) * 2);
    for (int group = first_unit + (int)blockIdx.x * WARPS; group < units; group += jump) {
        const int u = group + warp, token = 16 * u, octet = u % 4 * 2;
        /* Unless the projection is loaded in parts, the loop has no barrier, and a warp without
         * tokens may leave it early. */
        if ((!PARTS || whole) && u >= units)
            break;
        const int last = min(token, length - 1);
        const size_t page = page_of(a.page_table, a.max_pages, b, last),
                     latents =
                         a.latent_table ? page_of(a.latent_table, a.max_pages, b, last) : page;
        const uint32_t *const from = reinterpret_cast<const uint32_t *>(
                                         static_cast<const uint16_t *>(a.latents) +
                                         latents * a.latent_page + h.latent[side] + octet * 64) +
                                     lane;
        const int width = whole ? rank : d;
        uint32_t *const to =
            reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(a.pages) + page * a.page +
                                         h.page[side] + octet * 8 * width) +
            lane;
        const int row = token + lane / 4;
        const int position[2] = {position_of(a, latents, min(row, length - 1)),
                                 position_of(a, latents, min(row + 8, length - 1))};
        const bool there[2] = {row < length && position[0] >= 0,
                               row + 8 < length && position[1] >= 0};
        if (whole) {
#pragma unroll 4
            for (int r = 0; r < rank / 8; r++) {
                const uint32_t x = __ldg(from + r * 256), y = __ldg(from + r * 256 + 32);
                if (there[0] || zeroes)
                    to[r * 32] = there[0] ? x : 0;
                if (there[1] || zeroes)
                    to[4 * width + r * 32] = there[1] ? y : 0;
            }
            continue;
        }
        float c[2 * W16][4] = {};
        uint32_t next[AHEAD][4];
        fetch(from, 0, steps, next);
        for (int first = 0; first < steps; first += AHEAD) {
            const int at = PARTS ? 16 * first / part * part : 0;
            if (PARTS && 16 * first == at) {
                __syncthreads();
                stage ^= 1;
                if (at + part < rank || group + jump < units)
                    begin_part(matrix, d, rank, at + part < rank ? at + part : 0,
                               b_smem + (stage ^ 1) * d * pitch);
                wait_for_part<1>();
                __syncthreads();
            }
            const uint32_t here = smem + (uint32_t)(((PARTS ? stage * d * pitch : 0) - at) * 2);
            uint32_t x[AHEAD][4];
#pragma unroll
            for (int i = 0; i < 4 * AHEAD; i++)
                x[i / 4][i % 4] = next[i / 4][i % 4];
            fetch(from, first + AHEAD, steps, next);
#pragma unroll
            for (int i = 0; i < AHEAD; i++)
                if (first + i < steps) {
#pragma unroll
                    for (int n = 0; n < W16; n++) {
                        uint32_t y[4];
                        ldmatrix(here + (uint32_t)((n * 16 * pitch + (first + i) * 16) * 2), y);
                        mma_in_order<true>(c[2 * n], x[i], y[0], y[1]);
                        mma_in_order<true>(c[2 * n + 1], x[i], y[2], y[3]);
                    }
                }
        }
        if (PARTS && u >= units)
            continue;
        if (a.bias || a.gain)
            kvd_latent_finish<2 * W16>(
                &c[0][0], a.bias ? a.bias + (side * a.n_kv_heads + (int)blockIdx.z / 2) * d : NULL,
                side ? NULL : a.gain, a.eps, lane);
        if (applies_rope)
            apply_rope<W16>(a, c, position, lane);
#pragma unroll
        for (int n = 0; n < 2 * W16; n++) {
            if (there[0] || zeroes)
                to[n * 32] = there[0] ? pack<true>(c[n][0], c[n][1]) : 0;
            if (there[1] || zeroes)
                to[4 * d + n * 32] = there[1] ? pack<true>(c[n][2], c[n][3]) : 0;
        }
    }
}

__device__ __forceinline__ void floats(uint4 v, float (&x)[8])
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = unpack<true>(w[i]);
        x[2 * i] = f.x;
        x[2 * i + 1] = f.y;
    }
}

__device__ __forceinline__ uint4 narrow(const float (&x)[8])
{
    return make_uint4(pack<true>(x[0], x[1]), pack<true>(x[2], x[3]), pack<true>(x[4], x[5]),
                      pack<true>(x[6], x[7]));
}

/* Applies RoPE to 16 elements of a query: 8 from element c on (low), and 8 from element c + d_head
 * / 2 on (high). */
__device__ __forceinline__ void rope_query(const kvd_latent_put_args &a, size_t position, int c,
                                           uint4 &low, uint4 &high)
{
    const int half = a.d_head / 2;
    const float *const cosine = a.cosine + position * half, *const sine = a.sine + position * half;
    float x[8], y[8];
    floats(low, x);
    floats(high, y);
    if (a.interleaved) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float cx = __ldg(cosine + c / 2 + i), sx = __ldg(sine + c / 2 + i);
            const float cy = __ldg(cosine + (c + half) / 2 + i),
                        sy = __ldg(sine + (c + half) / 2 + i);
            const float x0 = x[2 * i], y0 = y[2 * i];
            x[2 * i] = x0 * cx - x[2 * i + 1] * sx;
            x[2 * i + 1] = x[2 * i + 1] * cx + x0 * sx;
            y[2 * i] = y0 * cy - y[2 * i + 1] * sy;
            y[2 * i + 1] = y[2 * i + 1] * cy + y0 * sy;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float cs = __ldg(cosine + c + i), sn = __ldg(sine + c + i), x0 = x[i];
            x[i] = x0 * cs - y[i] * sn;
            y[i] = y[i] * cs + x0 * sn;
        }
    }
    low = narrow(x);
    high = narrow(y);
}

__device__ __forceinline__ void put_query(const kvd_latent_put_args &a, int b, int t, int q_len,
                                          int run)
{
    const int half = a.d_head / 2, head = run / (half / 8), c = run % (half / 8) * 8;
    const size_t row = (size_t)(__ldg(a.s.start + b) + t);
    uint4 low = {0, 0, 0, 0}, high = {0, 0, 0, 0};
    if (t < q_len) {
        const uint16_t *const from =
            static_cast<const uint16_t *>(a.q) + row * a.ld_q + head * a.d_head + c;
        low = __ldg(reinterpret_cast<const uint4 *>(from));
        high = __ldg(reinterpret_cast<const uint4 *>(from + half));
        if (a.cosine)
            rope_query(
                a, a.position ? __ldg(a.position + b) : (size_t)(__ldg(a.s.kv_len + b) - q_len + t),
                c, low, high);
    }
    uint16_t *to = static_cast<uint16_t *>(a.to_q);
    size_t to_high = (size_t)half;
    if (a.q_start) {
        const size_t d = (size_t)a.d_head;
        to += (size_t)head * d * a.n_q8 + blocked((size_t)(__ldg(a.q_start + b) + t), (size_t)c, d);
        to_high *= 8;
    } else if (t < q_len) {
        to += ((size_t)b * a.n_heads + head) * (size_t)a.d_head + c;
    } else {
        return;
    }
    *reinterpret_cast<uint4 *>(to) = low;
    *reinterpret_cast<uint4 *>(to + to_high) = high;
}

/* If r < a.n_runs, stores elements 8 r .. 8 r + 7 of a new token's latent vectors. Otherwise stores
 * the token's RoPE position for KV head r - a.n_runs. */
__device__ __forceinline__ void put_latent(const kvd_latent_put_args &a, int b, int old, int t,
                                           int r)
{
    uint16_t *const page = static_cast<uint16_t *>(a.pool) +
                           page_of(a.s.page_table, a.s.max_pages, b, old + t) * a.page_elements;
    if (r >= a.n_runs) {
        reinterpret_cast<int32_t *>(page)[kvd_latent_position(a.positions, r - a.n_runs, old + t)] =
            a.position ? (int)__ldg(a.position + b) : old + t;
        return;
    }
    const size_t row = (size_t)(__ldg(a.s.start + b) + t),
                 from = row * a.ld_latent + (a.source ? __ldg(a.source + r) : 8 * r);
    *reinterpret_cast<uint4 *>(page + __ldg(a.run + r) + latent_at(old + t)) =
        __ldg(reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.latent) + from));
}

__global__ void __launch_bounds__(THREADS) put(const __grid_constant__ kvd_latent_put_args a)
{
    const int b = (int)blockIdx.y, q_len = __ldg(a.s.q_len + b),
              old = __ldg(a.s.kv_len + b) - q_len;
    const int q_runs = a.n_heads * a.d_head / 16,
              n_runs = q_runs + a.n_runs + (a.positions ? a.n_kv_heads : 0);
    for (int o = (int)blockIdx.x; 8 * o < q_len; o += (int)gridDim.x) {
        const int t = 8 * o + (int)threadIdx.x % 8;
        for (int run = (int)threadIdx.x / 8 + RUNS * (int)blockIdx.z; run < n_runs;
             run += RUNS * (int)gridDim.z) {
            if (run < q_runs)
                put_query(a, b, t, q_len, run);
            else if (t < q_len)
                put_latent(a, b, old, t, run - q_runs);
        }
    }
}

struct gather_args {
    kvd_latent_slices s;
    const kvd_latent_head *head;
    int n_kv, d;
    const uint16_t *pages;
    size_t page;
    uint16_t *rows;
};

__global__ void __launch_bounds__(THREADS) gather(const __grid_constant__ gather_args a)
{
    const int b = (int)blockIdx.y, q_len = __ldg(a.s.q_len + b),
              old = __ldg(a.s.kv_len + b) - q_len;
    const int runs = a.d / 8, all = 2 * a.n_kv * runs;
    for (int o = (int)blockIdx.x; 8 * o < q_len; o += (int)gridDim.x) {
        const int t = 8 * o + (int)threadIdx.x % 8;
        if (t >= q_len)
            continue;
        const uint16_t *const page =
            a.pages + page_of(a.s.page_table, a.s.max_pages, b, old + t) * a.page;
        uint4 *const to =
            reinterpret_cast<uint4 *>(a.rows) + (size_t)(__ldg(a.s.start + b) + t) * all;
        for (int run = (int)threadIdx.x / 8; run < all; run += RUNS) {
            const int h = run / runs, at = a.head[h % a.n_kv].page[h / a.n_kv];
            to[run] =
                *reinterpret_cast<const uint4 *>(page + at +
                                                 blocked((size_t)((old + t) % KVD_PAGE_TOKENS),
                                                         (size_t)(run % runs * 8), (size_t)a.d));
        }
    }
}

struct query_args {
    kvd_latent_slices s;
    const int32_t *q_start;
    int n_q8, n_heads, d;
    const uint16_t *q;
    uint16_t *rows;
};

__global__ void __launch_bounds__(THREADS) gather_queries(const __grid_constant__ query_args a)
{
    const int b = (int)blockIdx.y, q_len = __ldg(a.s.q_len + b), first = __ldg(a.q_start + b);
    const int runs = a.d / 8, all = a.n_heads * runs;
    const size_t d = (size_t)a.d;
    for (int o = (int)blockIdx.x; 8 * o < q_len; o += (int)gridDim.x) {
        const int t = 8 * o + (int)threadIdx.x % 8;
        if (t >= q_len)
            continue;
        uint4 *const to =
            reinterpret_cast<uint4 *>(a.rows) + (size_t)(__ldg(a.s.start + b) + t) * all;
        for (int run = (int)threadIdx.x / 8; run < all; run += RUNS) {
            const size_t head = (size_t)(run / runs);
            to[run] = *reinterpret_cast<const uint4 *>(
                a.q + head * d * (size_t)a.n_q8 +
                blocked((size_t)(first + t), (size_t)(run % runs * 8), d));
        }
    }
}

/* Multiplies K and V of each request's last token by their projections, and stores the latent
 * vectors. Sums are added in a fixed order. */
__global__ void __launch_bounds__(THREADS)
    cut(const __grid_constant__ kvd_latent_restore_args a, uint16_t *latents)
{
    enum { SHARES = 32, RUNS_AT_ONCE = THREADS / SHARES };
    __shared__ float x[KVD_WIDTH_MAX], sum[SHARES][8 * RUNS_AT_ONCE + 1];
    const int b = (int)blockIdx.x, side = (int)blockIdx.y % 2, i = (int)threadIdx.x;
    const kvd_latent_head h = a.head[blockIdx.y / 2];
    const int rank = h.rank[side], t = __ldg(a.kv_len + b) - 1;
    const size_t page = page_of(a.page_table, a.max_pages, b, t), d = (size_t)a.d_head;
    const uint4 *const m =
        reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(a.matrix) + h.matrix[side] +
                                        (size_t)__ldg(a.slot + b) * a.matrix_slot);
    if (i < a.d_head)
        x[i] = unpack<true>(static_cast<const uint16_t *>(
                                a.pages)[page * a.page + h.page[side] +
                                         blocked((size_t)(t % KVD_PAGE_TOKENS), (size_t)i, d)])
                   .x;
    __syncthreads();
    const int share = i / RUNS_AT_ONCE, column = i % RUNS_AT_ONCE;
    for (int first = 0; first < rank / 8; first += RUNS_AT_ONCE) {
        float y[8] = {};
        if (first + column < rank / 8)
#pragma unroll 4
            for (int k = share; k < a.d_head; k += SHARES) {
                float row[8];
                floats(__ldg(m + k * (rank / 8) + first + column), row);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    y[j] += x[k] * row[j];
            }
#pragma unroll
        for (int j = 0; j < 8; j++)
            sum[share][8 * column + j] = y[j];
        __syncthreads();
        const int to = 8 * first + i;
        if (i < 8 * RUNS_AT_ONCE && to < rank) {
            float all = 0;
#pragma unroll
            for (int k = 0; k < SHARES; k++)
                all += sum[k][i];
            latents[page * a.latent_page + (h.latent[side] + to / 8 * 512 + to % 8) +
                    latent_at(t)] = kvd_bf16_bits(all);
        }
        __syncthreads();
    }
}

typedef void (*restore_kernel)(kvd_latent_restore_args);

template <int W16> restore_kernel restore_of(int w16, bool parts)
{
    if constexpr (W16 > 1) {
        if (w16 < W16)
            return restore_of<W16 - 1>(w16, parts);
    }
    return parts ? restore<W16, true> : restore<W16, false>;
}

/* Returns the number of thread blocks per request: one per 8 tokens, but no more than are needed to
 * fill the GPU. */
unsigned octets(const kvd_latent_slices *s)
{
    const int n = (s->most + 7) / 8, enough = 4096 / s->n + 1;
    return (unsigned)(n < enough ? n : enough);
}
} // namespace

cudaError_t kvd_latent_put(const kvd_latent_put_args *a, cudaStream_t stream)
{
    if (kvd_latent_slices_bad(&a->s) || (a->n_heads && (a->d_head % 16 || a->ld_q % 8)) ||
        a->ld_latent % 8)
        return cudaErrorInvalidValue;
    const int runs = a->n_heads * a->d_head / 16 + a->n_runs + (a->positions ? a->n_kv_heads : 0),
              each = (runs + RUNS - 1) / RUNS;
    /* In decode steps, several thread blocks share the work for one token. */
    put<<<dim3(octets(&a->s), a->s.n, (a->s.most == 1 ? each : 1)), THREADS, 0, stream>>>(*a);
    return cudaGetLastError();
}

cudaError_t kvd_latent_restore(const kvd_latent_restore_args *a, cudaStream_t stream)
{
    const int w16 = a->d_head / 16;
    if (a->columns)
        return kvd_latent_restore_joint(a, stream);
    if (a->n < 1 || a->n > 65535 || a->n_kv_heads < 1 || a->d_head % 16 || w16 < 1 ||
        w16 > KVD_WIDTH_MAX / 16 || a->max_rank > KVD_LATENT_RANK_MAX || a->n_sms < 1 ||
        a->newest < 0 || a->window < 0 || (a->window && !a->q_len))
        return cudaErrorInvalidValue;
    const bool parts = a->max_rank > rank_whole(a->d_head);
    const restore_kernel kernel = restore_of<KVD_WIDTH_MAX / 16>(w16, parts);
    const int bytes = (parts ? 2 * pitch_of(RANK_PART) : pitch_of(a->max_rank)) * a->d_head * 2;
    /* x is the number of thread blocks that share K or V of a request's KV head. */
    const int others = a->n * 2 * a->n_kv_heads, x = !parts ? (4 * a->n_sms + others - 1) / others
                                                     : 2 * a->n_sms > others ? 2 * a->n_sms / others
                                                                             : 1;
    return kvd_launch(kernel, dim3(x, a->n, 2 * a->n_kv_heads), THREADS, (size_t)bytes, stream, *a);
}

cudaError_t kvd_latent_cut(const kvd_latent_restore_args *a, void *latents, cudaStream_t stream)
{
    static_assert(THREADS >= static_cast<int>(KVD_WIDTH_MAX), "a thread per dimension");
    if (a->n < 1 || a->n_kv_heads < 1 || a->d_head > KVD_WIDTH_MAX || a->max_rank > KVD_WIDTH_MAX ||
        !a->slot)
        return cudaErrorInvalidValue;
    cut<<<dim3(a->n, (2 * a->n_kv_heads)), THREADS, 0, stream>>>(*a,
                                                                 static_cast<uint16_t *>(latents));
    return cudaGetLastError();
}

cudaError_t kvd_latent_gather(const kvd_latent_slices *s, const kvd_latent_head *head,
                              int32_t n_kv_heads, int32_t d_head, const void *pages, size_t page,
                              void *rows, cudaStream_t stream)
{
    if (kvd_latent_slices_bad(s) || d_head % 8)
        return cudaErrorInvalidValue;
    const gather_args a = {*s,
                           head,
                           n_kv_heads,
                           d_head,
                           static_cast<const uint16_t *>(pages),
                           page,
                           static_cast<uint16_t *>(rows)};
    gather<<<dim3(octets(s), s->n), THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t kvd_latent_gather_queries(const kvd_latent_slices *s, const int32_t *q_start,
                                      int32_t n_q8, int32_t n_heads, int32_t d_head, const void *q,
                                      void *rows, cudaStream_t stream)
{
    if (kvd_latent_slices_bad(s) || d_head % 8 || n_heads < 1 || !q_start)
        return cudaErrorInvalidValue;
    const query_args a = {*s,
                          q_start,
                          n_q8,
                          n_heads,
                          d_head,
                          static_cast<const uint16_t *>(q),
                          static_cast<uint16_t *>(rows)};
    gather_queries<<<dim3(octets(s), s->n), THREADS, 0, stream>>>(a);
    return cudaGetLastError();
}
