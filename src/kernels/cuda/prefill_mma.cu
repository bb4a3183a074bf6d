/* Causal prefill attention for sm_80 and later, by mma.sync, ldmatrix and cp.async. */
#include "common/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/prefill.h"

extern "C" {
#include "common/half.h"
}

namespace
{

enum { WORKER_THREADS = 128, PASS_ROWS = 128, WIDE_PASS_ROWS = 64, KEYS = KVD_PAGE_TOKENS };

struct params {
    kvd_prefill_args a;
    float scale_log2; /* 1/sqrt(d_head) times log2(e) */
    /* Number of buffers for K and V in shared memory, bytes of shared memory for Q, and bytes per
     * buffer. */
    int32_t stages, q_bytes, stage_bytes;
    int32_t worker_bytes;
};

__device__ __forceinline__ void worker_barrier(int worker)
{
    asm volatile("bar.sync %0, %1;" ::"r"(worker + 1), "r"((int)WORKER_THREADS) : "memory");
}

/* Returns threadIdx.x, read again at each call. A variable would occupy a register, of which none
 * is free. */
__device__ __forceinline__ int thread_now()
{
    int t;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
    return t;
}

struct job {
    const uint16_t *q;
    const uint16_t *pool; /* K of the KV head in page 0 of the pool */
    const int32_t *pages;
    uint16_t *o; /* output of row 0 of the tile, column 0 of the head */
    float *lse;
    int32_t d_qk, d_v, kv_len, n_rows;
    int32_t pos;
    int32_t page_elements, o_pitch, stages, stage_bytes;
    int32_t window; /* sliding window in tokens, set only if WINDOW is true */
    uint32_t q_smem, kv_smem;
    float scale, scale_log2;
    const float *sink; /* logit of the head's attention sink, or NULL */
    int32_t live;
    unsigned long long begin, end; /* start and end of the tiles in ns; 0 if there were none */
};

/* Starts copying a page of 64 keys and values to shared memory. Groups of 8 keys after the
 * request's last key become zero. */
__device__ __forceinline__ void fetch_block(const job &w, int tid, int page, int block, uint32_t to)
{
    const int d_qk = w.d_qk, d_v = w.d_v;
    const uint16_t *from = w.pool + (size_t)page * (size_t)w.page_elements;
    const int groups = (w.kv_len - block * KEYS + 7) / 8;
    const int pieces = 8 * (d_qk + d_v);
    if (groups >= 8) {
#pragma unroll 4
        for (int i = tid; i < pieces; i += WORKER_THREADS)
            kvd_copy_16(to + (uint32_t)(16 * i), from + 8 * i, 16);
    } else {
#pragma unroll 1
        for (int i = tid; i < pieces; i += WORKER_THREADS) {
            const bool there = i < 8 * d_qk ? i < groups * d_qk : i - 8 * d_qk < groups * d_v;
            kvd_copy_16(to + (uint32_t)(16 * i), there ? from + 8 * i : from, there ? 16 : 0);
        }
    }
}

/* Adds P V of 64 keys to the output o. `v_at` is the address in shared memory from which this lane
 * reads V. */
template <bool BF, int ROWS16, int N16, int TILES>
__device__ __forceinline__ void add_values(uint32_t v_at, const float (&s)[ROWS16][8][4],
                                           float (&o)[ROWS16][TILES][4])
{
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t weight[ROWS16][4];
#pragma unroll
        for (int t = 0; t < ROWS16; t++) {
            weight[t][0] = pack<BF>(s[t][2 * k][0], s[t][2 * k][1]);
            weight[t][1] = pack<BF>(s[t][2 * k][2], s[t][2 * k][3]);
            weight[t][2] = pack<BF>(s[t][2 * k + 1][0], s[t][2 * k + 1][1]);
            weight[t][3] = pack<BF>(s[t][2 * k + 1][2], s[t][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < N16; n++) {
            uint32_t b[4];
            ldmatrix_trans(v_at + (uint32_t)(k * 512 * N16 + n * 256), b);
#pragma unroll
            for (int t = 0; t < ROWS16; t++) {
                mma_in_order<BF>(o[t][2 * n], weight[t], b[0], b[1]);
                mma_in_order<BF>(o[t][2 * n + 1], weight[t], b[2], b[3]);
            }
        }
    }
}

template <bool BF, int ROWS16, int TILES>
__device__ __forceinline__ void
add_values_any(uint32_t v_at, int d_v, const float (&s)[ROWS16][8][4], float (&o)[ROWS16][TILES][4])
{
    const auto step = [&](int k, int n) {
        uint32_t b[4];
        ldmatrix_trans(v_at + (uint32_t)(k * 32 * d_v + n * 256), b);
#pragma unroll
        for (int t = 0; t < ROWS16; t++) {
            const uint32_t weight[4] = {pack<BF>(s[t][2 * k][0], s[t][2 * k][1]),
                                        pack<BF>(s[t][2 * k][2], s[t][2 * k][3]),
                                        pack<BF>(s[t][2 * k + 1][0], s[t][2 * k + 1][1]),
                                        pack<BF>(s[t][2 * k + 1][2], s[t][2 * k + 1][3])};
            mma_in_order<BF>(o[t][2 * n], weight, b[0], b[1]);
            mma_in_order<BF>(o[t][2 * n + 1], weight, b[2], b[3]);
        }
    };
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < TILES / 2; n += 4) {
            if (16 * (n + 4) <= d_v) {
#pragma unroll
                for (int e = 0; e < 4; e++)
                    step(k, n + e);
            } else {
#pragma unroll
                for (int e = 0; e < 3; e++)
                    if (16 * (n + e) < d_v)
                        step(k, n + e);
            }
        }
}

template <bool BF, bool WINDOW, int ROWS16, int D_V>
__device__ __forceinline__ void pass(const job &w, int row0)
{
    const int tid = (int)threadIdx.x % WORKER_THREADS;
    const int d_qk = w.d_qk, n_rows = min(w.n_rows - row0, 64 * ROWS16);
    const int n_blocks = (w.pos + row0 + n_rows - 1) / KEYS + 1;
    const int first_block = WINDOW ? max(0, w.pos + row0 - w.window + 1) / KEYS : 0;
    /* If FULL, scores and outputs fill the registers, so other values are read or computed again at
     * each use. */
    constexpr bool FULL = ROWS16 == 2 && D_V == 128;
    const int kept_d_v = w.d_v, kept_pos = w.pos + row0;
    const float kept_scale = w.scale_log2;
    const auto thread = [] { return FULL ? thread_now() : (int)threadIdx.x; };
    const auto warp_row = [&] { return 16 * ROWS16 * (thread() % WORKER_THREADS / 32); };
    const auto pass_pos = [&] { return FULL ? w.pos + row0 : kept_pos; };

    /* Waits until all warps have read the previous query rows, because the next rows overwrite
     * these in shared memory. */
    worker_barrier(thread() / WORKER_THREADS);
    {
        const uint16_t *from = w.q + (size_t)row0 * (size_t)d_qk;
        const int pieces = 8 * ROWS16 * d_qk, there = (n_rows + 7) / 8 * d_qk;
#pragma unroll 2
        for (int i = tid; i < pieces; i += WORKER_THREADS)
            kvd_copy_16(w.q_smem + (uint32_t)(16 * i), i < there ? from + 8 * i : from,
                        i < there ? 16 : 0);
    }
    fetch_block(w, tid, __ldg(w.pages + first_block), first_block,
                w.kv_smem + (uint32_t)(w.stages > 1 ? first_block % 2 * w.stage_bytes : 0));

    float o[ROWS16][D_V / 8][4], m[ROWS16][2], l[ROWS16][2];
#pragma unroll
    for (int t = 0; t < ROWS16; t++) {
#pragma unroll
        for (int n = 0; n < D_V / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                o[t][n][e] = 0;
        /* With a window, a whole key block may be masked, and -inf minus -inf would be NaN. */
        m[t][0] = m[t][1] = WINDOW ? -1e30f : -INFINITY;
        l[t][0] = l[t][1] = 0;
    }
#pragma unroll 1
    for (int block = first_block; block < n_blocks; block++) {
        const bool more = block + 1 < n_blocks;
        const int next_page = more ? __ldg(w.pages + block + 1) : 0, stages = w.stages;
        kvd_copies_done();
        worker_barrier(thread() / WORKER_THREADS);
        if (more && stages > 1)
            fetch_block(w, tid, next_page, block + 1,
                        w.kv_smem + (uint32_t)((block + 1) % 2 * w.stage_bytes));
        const uint32_t stage = w.kv_smem + (uint32_t)(stages > 1 ? block % 2 * w.stage_bytes : 0);
        if (warp_row() < n_rows && block * KEYS <= pass_pos() + warp_row() + 16 * ROWS16 - 1 &&
            (!WINDOW || block * KEYS + KEYS - 1 > pass_pos() + warp_row() - w.window)) {
            float s[ROWS16][8][4];
#pragma unroll
            for (int t = 0; t < ROWS16; t++)
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[t][n][e] = 0;
            const int lane = thread() % 32, matrix = lane / 8;
            uint32_t q_step = w.q_smem + (uint32_t)((warp_row() / 8 + matrix % 2) * d_qk * 16 +
                                                    matrix / 2 * 128 + lane % 8 * 16);
            uint32_t k_step =
                stage + (uint32_t)(matrix / 2 * d_qk * 16 + matrix % 2 * 128 + lane % 8 * 16);
#pragma unroll(FULL ? 2 : 4)
            for (int k = 0; k < d_qk / 16; k++, q_step += 256, k_step += 256) {
                uint32_t a[ROWS16][4];
#pragma unroll
                for (int t = 0; t < ROWS16; t++)
                    ldmatrix(q_step + (uint32_t)(t * 32 * d_qk), a[t]);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    uint32_t b[4];
                    ldmatrix(k_step + (uint32_t)(n * 32 * d_qk), b);
#pragma unroll
                    for (int t = 0; t < ROWS16; t++) {
                        mma_in_order<BF>(s[t][2 * n], a[t], b[0], b[1]);
                        mma_in_order<BF>(s[t][2 * n + 1], a[t], b[2], b[3]);
                    }
                }
            }
            const int past = block * KEYS - pass_pos() - warp_row();
            if (past + KEYS - 1 > 0) {
                const int ahead = past + thread() % 4 * 2 - thread() % 32 / 4;
#pragma unroll
                for (int t = 0; t < ROWS16; t++)
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (ahead > 16 * t + e / 2 * 8 - 8 * n - e % 2)
                                s[t][n][e] = -INFINITY;
            }
            if (WINDOW && past + w.window <= 16 * ROWS16 - 1) {
                const int behind = past + w.window + thread() % 4 * 2 - thread() % 32 / 4;
#pragma unroll
                for (int t = 0; t < ROWS16; t++)
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int e = 0; e < 4; e++)
                            if (behind <= 16 * t + e / 2 * 8 - 8 * n - e % 2)
                                s[t][n][e] = -INFINITY;
            }
            const float scale_log2 = FULL ? w.scale_log2 : kept_scale;
            float top[ROWS16][2];
            /* True if the largest score of a row rises by more than 8 in log2 units. Only then are
             * the outputs rescaled. */
            bool grown = false;
#pragma unroll
            for (int t = 0; t < ROWS16; t++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float x = s[t][0][2 * i];
#pragma unroll
                    for (int n = 0; n < 8; n++)
                        x = fmaxf(x, fmaxf(s[t][n][2 * i], s[t][n][2 * i + 1]));
                    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
                    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
                    top[t][i] = x;
                    grown |= !((x - m[t][i]) * scale_log2 <= 8.0f);
                }
            if (__any_sync(0xffffffffu, grown)) {
#pragma unroll
                for (int t = 0; t < ROWS16; t++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float x = fmaxf(m[t][i], top[t][i]);
                        const float shrink = kvd_exp2((m[t][i] - x) * scale_log2);
                        m[t][i] = x;
                        l[t][i] *= shrink;
#pragma unroll
                        for (int n = 0; n < D_V / 8; n++) {
                            o[t][n][2 * i] *= shrink;
                            o[t][n][2 * i + 1] *= shrink;
                        }
                    }
            }
#pragma unroll
            for (int t = 0; t < ROWS16; t++)
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float base = -m[t][i] * scale_log2;
#pragma unroll
                    for (int n = 0; n < 8; n++)
#pragma unroll
                        for (int e = 2 * i; e < 2 * i + 2; e++) {
                            s[t][n][e] = kvd_exp2(fmaf(s[t][n][e], scale_log2, base));
                            l[t][i] += s[t][n][e];
                        }
                }
            const int d_v = FULL ? w.d_v : kept_d_v;
            const uint32_t v_at =
                stage + (uint32_t)(KEYS * d_qk * 2 + thread() % 16 / 8 * d_v * 16 +
                                   thread() % 32 / 16 * 128 + thread() % 8 * 16);
            if constexpr (D_V > KVD_WIDTH_NARROW)
                add_values_any<BF>(v_at, d_v, s, o);
            else if (d_v == D_V)
                add_values<BF, ROWS16, D_V / 16>(v_at, s, o);
            else
                add_values<BF, ROWS16, D_V / 16 - 1>(v_at, s, o);
        }
        if (more && stages == 1) {
            worker_barrier(thread() / WORKER_THREADS);
            fetch_block(w, tid, next_page, block + 1, w.kv_smem);
        }
    }
    if (warp_row() >= n_rows)
        return;
    const int c = thread() % 4, d_v = FULL ? w.d_v : kept_d_v;
#pragma unroll
    for (int t = 0; t < ROWS16; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = l[t][i];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int row = warp_row() + 16 * t + 8 * i + thread() % 32 / 4;
            if (row >= n_rows)
                continue;
            float most = m[t][i], shrink = 1;
            if (w.sink) {
                const float sink = *w.sink / w.scale;
                most = fmaxf(m[t][i], sink);
                shrink = kvd_exp2((m[t][i] - most) * w.scale_log2);
                sum = fmaf(sum, shrink, kvd_exp2((sink - most) * w.scale_log2));
            }
            const float inverse = shrink * __frcp_rn(sum);
            uint16_t *to = w.o + (size_t)(row0 + row) * (size_t)w.o_pitch + 2 * c;
#pragma unroll
            for (int n = 0; n < D_V / 8; n++)
                if (8 * n < d_v)
                    *reinterpret_cast<uint32_t *>(to + 8 * n) =
                        pack<BF>(o[t][n][2 * i] * inverse, o[t][n][2 * i + 1] * inverse);
            if (w.lse && c == 0)
                w.lse[row0 + row] = most * w.scale + logf(sum);
        }
}

template <bool BF, bool WINDOW, int D_V> __device__ __noinline__ void tile_of_width(const job &w)
{
    int row0 = 0;
    if constexpr (D_V > KVD_WIDTH_NARROW) {
        for (; row0 < w.n_rows; row0 += WIDE_PASS_ROWS)
            pass<BF, WINDOW, 1, D_V>(w, row0);
    } else {
        for (; w.n_rows - row0 > 64; row0 += PASS_ROWS)
            pass<BF, WINDOW, 2, D_V>(w, row0);
        if (row0 < w.n_rows)
            pass<BF, WINDOW, 1, D_V>(w, row0);
    }
}

__device__ __noinline__ void next_tile(const params &p, job &w, int32_t *next)
{
    const kvd_prefill_args &a = p.a;
    const bool listed = a.work.first != NULL;
    const int end = listed ? a.work.first[blockIdx.x + 1] : a.work.n_tiles;
    const int index = atomicAdd(listed ? next : a.work.next, 1);
    w.live = index < end;
    if (!w.live) {
        if (w.begin)
            w.end = now_ns();
        return;
    }
    if (!w.begin)
        w.begin = now_ns();
    const kvd_prefill_tile tile = a.work.tile[index];
    const int h = tile.head, g = h / a.map.group, b = tile.request;
    const size_t row = (size_t)a.q_start[b] + (size_t)tile.row;
    w.d_qk = a.map.d_qk[g];
    w.d_v = a.map.d_v[g];
    w.kv_len = a.kv_len[b];
    w.pos = w.kv_len - a.q_len[b] + tile.row;
    w.n_rows = tile.n_rows;
    w.q = static_cast<const uint16_t *>(a.q) + (size_t)a.map.q_offset[h] * (size_t)a.n_q8 +
          row * (size_t)w.d_qk;
    w.pool = static_cast<const uint16_t *>(a.pool) + a.map.kv_offset[g];
    w.pages = a.page_table + (size_t)b * (size_t)a.max_pages;
    w.o = static_cast<uint16_t *>(a.o) + row * (size_t)a.map.o_pitch + a.map.o_offset[h];
    w.lse = a.lse ? a.lse + (size_t)h * (size_t)a.n_q8 + row : NULL;
    w.sink = a.sinks ? a.sinks + h : NULL;
}

template <bool BF, bool WINDOW> __device__ __forceinline__ void narrow_tile(const job &w)
{
    /* The code is compiled for four ranges of d_v. Code for more ranges would not fit into the
     * instruction cache. */
    switch ((w.d_v + 16) / 32) {
    case 1:
        tile_of_width<BF, WINDOW, 32>(w);
        break;
    case 2:
        tile_of_width<BF, WINDOW, 64>(w);
        break;
    case 3:
        tile_of_width<BF, WINDOW, 96>(w);
        break;
    case 4:
        tile_of_width<BF, WINDOW, 128>(w);
        break;
    }
}

template <bool BF, bool WINDOW, bool WIDE>
__global__ void __launch_bounds__(2 * WORKER_THREADS, 1)
    prefill_mma(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ job jobs[2];
    __shared__ int32_t next;
    const int worker = (int)threadIdx.x / WORKER_THREADS;
    job &w = jobs[worker];
    const bool first = threadIdx.x % WORKER_THREADS == 0;
    if (first) {
        w.q_smem = (uint32_t)__cvta_generic_to_shared(smem) + (uint32_t)(worker * p.worker_bytes);
        w.kv_smem = w.q_smem + (uint32_t)p.q_bytes;
        w.page_elements = p.a.map.page_elements;
        w.o_pitch = p.a.map.o_pitch;
        w.stages = p.stages;
        w.stage_bytes = p.stage_bytes;
        if (WINDOW)
            w.window = p.a.map.window;
        w.scale = p.a.map.scale;
        w.scale_log2 = p.scale_log2;
        w.begin = w.end = 0;
    }
    if (threadIdx.x == 0 && p.a.work.first)
        next = p.a.work.first[blockIdx.x];
    __syncthreads();

    for (;;) {
        job &now = jobs[thread_now() / WORKER_THREADS];
        if (thread_now() % WORKER_THREADS == 0)
            next_tile(p, now, &next);
        worker_barrier(thread_now() / WORKER_THREADS);
        if (!now.live)
            break;
        if constexpr (WIDE)
            tile_of_width<BF, WINDOW, KVD_WIDTH_MAX>(now);
        else
            narrow_tile<BF, WINDOW>(now);
        worker_barrier(thread_now() / WORKER_THREADS);
    }
    if (!p.a.busy)
        return;
    __syncthreads();
    if (thread_now() == 0) {
        unsigned long long from = jobs[0].begin, to = jobs[0].end;
        if (blockDim.x > WORKER_THREADS && jobs[1].begin) {
            from = from && from < jobs[1].begin ? from : jobs[1].begin;
            to = max(to, jobs[1].end);
        }
        p.a.busy[blockIdx.x] = to - from;
    }
}

/* Launches the kernel. If the GPU has little shared memory, uses fewer warps per CTA or fewer
 * buffers for K and V. */
cudaError_t launch(params *p, void (*kernel)(params), bool wide, cudaStream_t stream)
{
    int room = 0, qk = 0, both = 0;
    cudaError_t e = kvd_device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, &room);
    if (e != cudaSuccess)
        return e;
    for (int g = 0; g < p->a.map.n_kv_heads; g++) {
        qk = max(qk, (int)p->a.map.d_qk[g]);
        both = max(both, p->a.map.d_qk[g] + p->a.map.d_v[g]);
    }
    room -= 2 * (int)sizeof(job) + 128;
    p->q_bytes = (wide ? (int)WIDE_PASS_ROWS : (int)PASS_ROWS) * qk * 2;
    p->stage_bytes = KEYS * both * 2;
    int workers = 2;
    for (;; workers--) {
        for (p->stages = 2; p->stages > 0; p->stages--)
            if (workers * (p->q_bytes + p->stages * p->stage_bytes) <= room)
                break;
        if (p->stages || workers == 1)
            break;
    }
    if (!p->stages)
        return cudaErrorNotSupported;
    p->worker_bytes = p->q_bytes + p->stages * p->stage_bytes;
    const int bytes = workers * p->worker_bytes;
    return kvd_launch(kernel, (unsigned)p->a.work.n_ctas, (unsigned)(workers * WORKER_THREADS),
                      (size_t)bytes, stream, *p);
}

} // namespace

extern "C" bool kvd_prefill_valid(const kvd_prefill_args *a)
{
    if (!a)
        return false;
    const kvd_attn_map *m = &a->map;
    if ((a->dtype != KVD_BF16 && a->dtype != KVD_F16) || a->batch < 1 || a->max_pages < 1 ||
        a->n_q8 < 8 || a->n_q8 % 8 || m->n_kv_heads < 1 || m->n_kv_heads > KVD_HEADS_MAX ||
        m->group < 1 || m->n_heads != m->n_kv_heads * m->group || m->n_heads > KVD_HEADS_MAX ||
        m->window < 0)
        return false;
    for (int g = 0; g < m->n_kv_heads; g++)
        if (!kvd_width_fits(m->d_qk[g], KVD_WIDTH_MAX) || !kvd_width_fits(m->d_v[g], KVD_WIDTH_MAX))
            return false;
    const kvd_prefill_work *w = &a->work;
    return a->q_start && a->q_len && a->kv_len && a->page_table && a->q && a->pool && a->o &&
           w->tile && w->n_tiles >= 0 && w->n_ctas >= 1 && (w->first || w->next) &&
           ((uintptr_t)a->q | (uintptr_t)a->pool | (uintptr_t)a->o) % 16 == 0;
}

extern "C" cudaError_t kvd_prefill_mma(const kvd_prefill_args *args, cudaStream_t stream)
{
    if (!kvd_prefill_valid(args))
        return cudaErrorInvalidValue;
    params p;
    p.a = *args;
    p.scale_log2 = args->map.scale * 1.44269504f;
    const bool bf = args->dtype == KVD_BF16, window = args->map.window != 0;
    if (kvd_attn_widest(&args->map) > KVD_WIDTH_NARROW)
        return launch(&p,
                      bf ? window ? prefill_mma<true, true, true> : prefill_mma<true, false, true>
                      : window ? prefill_mma<false, true, true>
                               : prefill_mma<false, false, true>,
                      true, stream);
    return launch(&p,
                  bf ? window ? prefill_mma<true, true, false> : prefill_mma<true, false, false>
                  : window ? prefill_mma<false, true, false>
                           : prefill_mma<false, false, false>,
                  false, stream);
}
