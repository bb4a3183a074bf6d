/* Layout of shared memory in prefill_sm90.cu, and code of the warps that copy Q, K and V into
 * it. */
#ifndef KVD_KERNELS_CUDA_PREFILL_FETCH_CUH
#define KVD_KERNELS_CUDA_PREFILL_FETCH_CUH

#include "kernels/cuda/prefill.h"

#include "common/half.h"
#include "kernels/cuda/sm90.cuh"

namespace
{

#ifdef KVD_PREFILL_WIDE
constexpr bool WIDE = true;
#else
constexpr bool WIDE = false;
#endif

enum {
    WARPGROUPS = WIDE ? KVD_PREFILL_WIDE_ROWS / 64 : KVD_PREFILL_ROWS / 64,
    THREADS = 128 * (WARPGROUPS + 1),
    /* Registers per thread: in warps that compute (REGISTERS) and in the warps that copy. */
    REGISTERS = WIDE ? 232 : 160,
    PRODUCER_REGISTERS = WIDE ? 40 : 32,
    SLOTS = WIDE ? 4 : 5,
    SLOT_BYTES = WIDE ? 80 * KVD_WIDTH_MAX * 2 : 128 * KVD_WIDTH_NARROW * 2,
    Q_BYTES = 64 * (WIDE ? KVD_WIDTH_MAX : KVD_WIDTH_NARROW) * 2,
    TILES = 3, /* number of tiles that may be announced before they are computed */
    /* Index of the first of the named barriers at which computing warpgroups wait for their
     * turn. */
    BAR_TURN = 1,
    BAR_END = BAR_TURN + WARPGROUPS,
    BAR_FETCH /* named barrier in place of __syncwarp, which racecheck does not follow */
};

/* Limit of a thread's sum of exp(score - max). Above this limit, `max` is updated. */
#define SUM_LIMIT 16384.0f

struct tile_info {
    int32_t d_qk, d_v; /* 0 if there are no more tiles */
    int32_t n_blocks;  /* key blocks from key 0 to the position of the tile's last row */
    /* With a sliding window: index of the first block of keys, and of the first key, that the tile
     * reads. */
    int32_t first_block, first_key;
    int32_t position; /* position of row 0 in its sequence */
    int32_t n_rows, kv_len8;
    int32_t kv_offset; /* first element of the KV head in a page */
    const int32_t *pages;
    long long q_first, o_first; /* index of row 0's first element in q and in o */
    long long lse;
    float sink; /* logit of the head's attention sink, times log2(e) */
};

struct shared {
    alignas(1024) unsigned char slot[SLOTS][SLOT_BYTES];
    unsigned char q[WARPGROUPS][Q_BYTES];
    unsigned long long slot_full[SLOTS], slot_empty[SLOTS];
    unsigned long long q_full[WARPGROUPS], q_empty[WARPGROUPS];
    unsigned long long tile_full[TILES], tile_empty[TILES];
    /* One barrier per computing warp. It replaces __syncwarp, which the tool racecheck does not
     * understand. */
    unsigned long long reread[4 * WARPGROUPS];
    unsigned long long begun;
    tile_info tile[TILES];
};

extern __shared__ __align__(1024) unsigned char memory[];
/* Shared memory of the CTA. This is a macro, because a pointer variable would occupy a register. */
#define SH (*(shared *)memory)

/* Returns the number of keys per block. It is so small that scores, softmax weights and outputs of
 * a thread fit into its registers. */
__host__ __device__ constexpr int block_keys(int d_v)
{
    return WIDE ? 80 : d_v <= 64 ? 128 : d_v <= 80 ? 112 : d_v <= 112 ? 96 : 80;
}

struct ring {
    int at;
    uint32_t parity;
};
template <int N> __device__ __forceinline__ void step(ring &r)
{
    if (++r.at == N) {
        r.at = 0;
        r.parity ^= 1;
    }
}

/* Waits until the next tile has been announced in shared memory. After its last read of the tile,
 * each lane must call tile_done(). */
__device__ __forceinline__ void wait_tile(const ring &tiles)
{
    mbar_wait_asleep(kvd_smem(&SH.tile_full[tiles.at]), tiles.parity);
}
__device__ __forceinline__ void tile_done(ring &tiles)
{
    mbar_arrive(kvd_smem(&SH.tile_empty[tiles.at]));
    step<TILES>(tiles);
}
/* Tells the compiler that x is equal in all lanes of a warp. */
__device__ __forceinline__ int uniform(int x)
{
    return __shfl_sync(~0u, x, 0);
}

/* Takes the tiles that this CTA computes, one by one, and announces each tile to the CTA's warps in
 * shared memory. */
__device__ void take_tiles(const kvd_prefill_args &a)
{
    const kvd_prefill_work &w = a.work;
    int i = w.first ? w.first[blockIdx.x] : 0;
    const int end = w.first ? w.first[blockIdx.x + 1] : w.n_tiles;
    ring tiles = {0, 1};
    for (;;) {
        mbar_wait_asleep(kvd_smem(&SH.tile_empty[tiles.at]), tiles.parity);
        tile_info &t = SH.tile[tiles.at];
        if (!w.first)
            i = atomicAdd(w.next, 1);
        if (i >= end) {
            t.d_v = 0;
            mbar_arrive(kvd_smem(&SH.tile_full[tiles.at]));
            return;
        }
        const kvd_prefill_tile tile = w.tile[i++];
        const int g = tile.head / a.map.group, q_row = a.q_start[tile.request] + tile.row;
        const int kv_len = a.kv_len[tile.request];
        const int position = kv_len - a.q_len[tile.request] + tile.row;
        const int d_qk = a.map.d_qk[g], d_v = a.map.d_v[g], n = block_keys(d_v);
        t.d_qk = d_qk;
        t.d_v = d_v;
        t.position = position;
        t.n_rows = tile.n_rows;
        t.n_blocks = (position + tile.n_rows + n - 1) / n;
        const int oldest = a.map.window ? max(0, position - a.map.window + 1) : 0;
        t.first_block = oldest / n;
        t.first_key = oldest / KVD_PAGE_TOKENS * KVD_PAGE_TOKENS;
        t.kv_len8 = (kv_len + 7) / 8 * 8;
        t.lse = (long long)tile.head * a.n_q8 + q_row;
        t.sink = a.sinks ? 1.44269504089f * a.sinks[tile.head] : 0;
        t.pages = a.page_table + (size_t)tile.request * (size_t)a.max_pages;
        t.q_first = (long long)a.map.q_offset[tile.head] * a.n_q8 + (long long)q_row * d_qk;
        t.o_first = (long long)q_row * a.map.o_pitch + a.map.o_offset[tile.head];
        t.kv_offset = a.map.kv_offset[g];
        if (SH.begun == 0)
            SH.begun = now_ns();
        mbar_arrive(kvd_smem(&SH.tile_full[tiles.at]));
        step<TILES>(tiles);
    }
}

__device__ void fetch_q(const kvd_prefill_args &a, int lane)
{
    ring tiles = {0, 0};
    /* Bit g: parity of the next wait on q_empty[g], the barrier of warpgroup g. */
    uint32_t parities = 7;
    for (;;) {
        wait_tile(tiles);
        const tile_info &t = SH.tile[tiles.at];
        if (t.d_v == 0)
            return;
        for (int g = 0; g < WARPGROUPS; g++) {
            const int rows = min(64, (t.n_rows - 64 * g + 7) / 8 * 8);
            if (rows <= 0)
                break;
            mbar_wait_asleep(kvd_smem(&SH.q_empty[g]), parities >> g & 1);
            parities ^= 1u << g;
            if (lane == 0) {
                const uint32_t bytes = (uint32_t)(rows * t.d_qk * 2),
                               full = kvd_smem(&SH.q_full[g]);
                mbar_arrive_expect(full, bytes);
                bulk_copy(kvd_smem(SH.q[g]), (const uint16_t *)a.q + t.q_first + 64 * g * t.d_qk,
                          bytes, full);
            }
        }
        tile_done(tiles);
    }
}

/* Copies K or V of tokens first .. end - 1 into a slot of the ring buffer. Lane i copies the i-th
 * page. */
template <bool WINDOW>
__device__ __forceinline__ void fetch_block(const kvd_prefill_args &a, const ring &slots,
                                            int offset, int d, int begin, int first, int end, int n,
                                            int page, int lane)
{
    const uint32_t full = kvd_smem(&SH.slot_full[slots.at]);
    mbar_wait(kvd_smem(&SH.slot_empty[slots.at]), slots.parity);
    if (end - begin < n || (WINDOW && begin < first)) {
        /* Zeroes rows of K or V that are not copied, because old data may be NaN, and NaN * 0 is
         * NaN. */
        if (WINDOW) {
            uint4 *zero = (uint4 *)SH.slot[slots.at];
#pragma unroll 1
            for (int i = lane; i < (first - begin) * d / 8; i += 32)
                zero[i] = make_uint4(0, 0, 0, 0);
        }
        uint4 *zero = (uint4 *)(SH.slot[slots.at] + (end - begin) * d * 2);
#pragma unroll 1
        for (int i = lane; i < (n - (end - begin)) * d / 8; i += 32)
            zero[i] = make_uint4(0, 0, 0, 0);
        fence_proxy_async();
        bar_sync(BAR_FETCH, 32);
    }
    if (lane == 0)
        mbar_arrive_expect(full, (uint32_t)((end - first) * d * 2));
    __syncwarp();
    const int from = max(first, (first / KVD_PAGE_TOKENS + lane) * KVD_PAGE_TOKENS);
    const int to = min(end, (from / KVD_PAGE_TOKENS + 1) * KVD_PAGE_TOKENS);
    if (from < to)
        bulk_copy(kvd_smem(SH.slot[slots.at]) + (uint32_t)((from - begin) * d * 2),
                  (const uint16_t *)a.pool + (long long)page * a.map.page_elements + offset +
                      from % KVD_PAGE_TOKENS * d,
                  (uint32_t)((to - from) * d * 2), full);
}

template <bool WINDOW> __device__ void fetch_kv(const kvd_prefill_args &a, int lane)
{
    ring tiles = {0, 0}, slots = {0, 1};
    for (;;) {
        wait_tile(tiles);
        const tile_info &t = SH.tile[tiles.at];
        if (t.d_v == 0)
            return;
        const int n = block_keys(t.d_v);
        /* The warp keeps 32 entries of the page table in registers: lane l has entry held + l in
         * `ids`. */
        int held = 1 << 30, ids = 0;
        for (int j = t.n_blocks - 1; j >= (WINDOW ? t.first_block : 0); j--) {
            const int begin = j * n, end = min(begin + n, t.kv_len8),
                      last = (end - 1) / KVD_PAGE_TOKENS;
            const int first = WINDOW ? max(begin, t.first_key) : begin;
            if (first / KVD_PAGE_TOKENS < held) {
                held = max(0, last - 31);
                ids = __ldg(t.pages + min(held + lane, last));
            }
            const int id = __shfl_sync(~0u, ids, (first / KVD_PAGE_TOKENS - held + lane) & 31);
            fetch_block<WINDOW>(a, slots, t.kv_offset, t.d_qk, begin, first, end, n, id, lane);
            step<SLOTS>(slots);
            fetch_block<WINDOW>(a, slots, t.kv_offset + KVD_PAGE_TOKENS * t.d_qk, t.d_v, begin,
                                first, end, n, id, lane);
            step<SLOTS>(slots);
        }
        tile_done(tiles);
    }
}
} // namespace

#endif
