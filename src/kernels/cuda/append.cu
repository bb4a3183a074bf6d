/* Applies RoPE and rotation matrices to Q, K and V of new tokens, and stores the first d_qk or d_v
 * columns. A warp processes 16 tokens of one or two heads. */
#include "kernels/cuda/append.h"

extern "C" {
#include "common/half.h"
}
#include "common/cuda/launch.cuh"
#include "kernels/cuda/append_rows.cuh"

namespace
{

struct place {
    int b, start, next;
};

__device__ __forceinline__ int first_slot(const kvd_append_args &a, int b)
{
    return b < a.batch ? __ldg(a.token_start + b) / ROWS + 2 * b : INT32_MAX;
}

__device__ __forceinline__ void find(const kvd_append_args &a, int slot, place &at)
{
    if (at.b < 0) {
        int n = 0;
        for (int b = (int)threadIdx.x % 32; b < a.batch; b += 32)
            n += first_slot(a, b) <= slot;
        at.b = __reduce_add_sync(0xffffffffu, n) - 1;
        at.start = first_slot(a, at.b);
        at.next = first_slot(a, at.b + 1);
    }
    while (slot >= at.next) {
        at.b++;
        at.start = at.next;
        at.next = first_slot(a, at.b + 1);
    }
}

__device__ __forceinline__ void prefill_rows(const params &p, unit &u, int head, int g, bool is_q,
                                             bool is_v, int slot, const place &at, int r)
{
    const kvd_append_args &a = p.a;
    const int q_len = __ldg(a.q_len + at.b), old = __ldg(a.kv_len + at.b) - q_len;
    const int token0 = __ldg(a.token_start + at.b);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = (slot - at.start) * ROWS + r + 8 * i - (is_q ? 0 : old % 8);
        if (t >= 0 && t < q_len)
            u.x[i] = static_cast<const uint16_t *>(a.x) + (size_t)(token0 + t) * (size_t)p.x_pitch +
                     column_of(a, head, g, is_v);
        u.pos[i] = old + t;
        if (is_q && t - r < q_len)
            u.to[i] = static_cast<uint16_t *>(a.q) + (size_t)a.map.q_offset[head] * (size_t)a.n_q8 +
                      (size_t)(__ldg(a.q_start + at.b) + t - r) * (size_t)u.d + 8 * r;
        /* Each request's K and V are padded with zeros to a multiple of 8 tokens. */
        if (!is_q && t >= 0 && (t < q_len || (t - r >= 0 && t - r < q_len)))
            u.to[i] =
                cache_row(a, at.b, old + t, g, is_v ? KVD_PAGE_TOKENS * a.map.d_qk[g] : 0, u.d);
    }
}

template <bool BF, int SLABS, int ROPE>
__global__ void __launch_bounds__(32 * (SLABS > NARROW_SLABS ? (int)WIDE_WARPS : (int)BOUND_WARPS),
                                  ROPE == ROPE_GIVEN ? 1 : PREFILL_CTAS)
    append_prefill(const __grid_constant__ params p)
{
    constexpr int HEADS = ROPE == ROPE_GIVEN ? 1 : 2;
    constexpr bool WIDE = SLABS > NARROW_SLABS;
    extern __shared__ __align__(128) uint8_t smem[];
    __shared__ int32_t next_item;
    const kvd_append_args &a = p.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4,
              c = lane % 4;
    int g = 0;
    while ((int)blockIdx.x >= p.first_cta[g + 1])
        g++;
    const int n_ctas = p.first_cta[g + 1] - p.first_cta[g], cta = (int)blockIdx.x - p.first_cta[g];
    const int group = a.map.group, n_q = (group + HEADS - 1) / HEADS, n_units = n_q + 2;
    const long long n_items = (long long)p.slots * n_units;
    const int begin = (int)(n_items * cta / n_ctas), end = (int)(n_items * (cta + 1) / n_ctas);

    const uint32_t r_smem = (uint32_t)__cvta_generic_to_shared(smem);
    const uint32_t stages =
        r_smem + (uint32_t)(p.r_rows * p.r_pitch * ((a.r_qk != NULL) + (a.r_v != NULL))) +
        (uint32_t)(warp * 2 * STAGE_BYTES);
    const int first = WIDE ? (int)blockIdx.y * p.columns : 0;
    const auto columns = [&](int d) { return WIDE ? min(d - first, p.columns) : d; };
    if (a.r_qk)
        fetch_r(p, a.r_qk, a.map.q_offset[g * group] / group, a.map.d_qk[g], first,
                columns(a.map.d_qk[g]), r_smem);
    if (a.r_v)
        fetch_r(p, a.r_v, a.map.o_offset[g * group] / group, a.map.d_v[g], first,
                columns(a.map.d_v[g]), r_smem + (uint32_t)(a.r_qk ? p.r_rows * p.r_pitch : 0));
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (threadIdx.x == 0)
        next_item = begin + (int)blockDim.x / 32;

    place at = {-1, 0, 0};
    int slot = begin / n_units, kind = begin % n_units, last = begin;
    auto start = [&](int k, unit &u, int stage) {
        if (k < end) {
            kind += k - last;
            last = k;
            while (kind >= n_units) {
                kind -= n_units;
                slot++;
            }
            find(a, slot, at);
            const int head = choose_unit(p, u, g, kind, n_q, HEADS, r_smem);
            /* If a vector has no rotation matrix, the CTA with column 0 stores the whole vector,
             * and other CTAs skip it. */
            if (first == 0 || (u.applies_rope && first < u.d)) {
                prefill_rows(p, u, head, g, kind < n_q, kind == n_q + 1, slot, at, r);
                prefetch<HEADS, SLABS, ROPE>(p, u, lane, stages + (uint32_t)(stage * STAGE_BYTES));
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
    unit u, next;
    int item = begin + warp, odd = 0;
    start(item, next, 0);
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
#pragma unroll 1
    while (item < end) {
        int following = 0;
        if (lane == 0)
            following = atomicAdd(&next_item, 1);
        following = __shfl_sync(0xffffffffu, following, 0);
        u = next;
        start(following, next, odd ^ 1);
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        if (__any_sync(0xffffffffu, u.to[0] || u.to[1])) {
            rows<HEADS, SLABS> x;
            take<HEADS, SLABS>(u, lane, stages + (uint32_t)(odd * STAGE_BYTES), x);
            rope<BF, HEADS, SLABS, ROPE>(p, u, c, x);
            if (!u.applies_rope) {
                cut<false, HEADS, SLABS>(u, c, x);
            } else {
                finish_rows(p, x);
                if (HEADS == 2 && u.two)
                    rotate<BF, false, HEADS>(p, u, lane, first, columns(u.d), x);
                else
                    rotate<BF, false, 1>(p, u, lane, first, columns(u.d), x);
            }
        }
        item = following;
        odd ^= 1;
    }
    kvd_copies_done();
}

/* Raises *a.ended to the time in ns at which this CTA ends, unless a.ended is NULL. */
__device__ __forceinline__ void put_end(const kvd_append_args &a)
{
    if (a.ended) {
        __syncthreads();
        if (threadIdx.x == 0)
            atomicMax(a.ended, kvd_now_ns());
    }
}

template <bool BF, int SLABS, int ROPE>
__global__ void __launch_bounds__(32 * DECODE_WARPS, ROPE == ROPE_GIVEN ? 1 : 2)
    append_decode(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const kvd_append_args &a = p.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4,
              c = lane % 4;
    const int g = (int)blockIdx.x, group = a.map.group, d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    const int first = (int)blockIdx.z * p.columns;
    const uint32_t r_smem = (uint32_t)__cvta_generic_to_shared(smem);
    if (a.r_qk)
        fetch_r(p, a.r_qk, a.map.q_offset[g * group] / group, d_qk, first,
                min(d_qk - first, p.columns), r_smem);
    if (a.r_v)
        fetch_r(p, a.r_v, a.map.o_offset[g * group] / group, d_v, first,
                min(d_v - first, p.columns),
                r_smem + (uint32_t)(a.r_qk ? p.r_rows * p.r_pitch : 0));
    kvd_wait_preceding(a.began);
    bool waiting = true;
    int k = warp;
#pragma unroll 1
    do {
        unit u;
        rows<1, SLABS> x;
        bool mine = k < group + 2;
        if (mine) {
            const bool is_q = k < group;
            const int head = choose_unit(p, u, g, k, group, 1, r_smem);
            mine = first == 0 || (u.applies_rope && first < u.d);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int b = (int)blockIdx.y * ROWS + r + 8 * i;
                if (!mine || b >= a.batch)
                    continue;
                u.x[i] = static_cast<const uint16_t *>(a.x) +
                         (size_t)__ldg(a.token_start + b) * (size_t)p.x_pitch +
                         column_of(a, head, g, k == group + 1);
                u.pos[i] = a.position ? (int)__ldg(a.position + b) : __ldg(a.kv_len + b) - 1;
            }
            load<SLABS, ROPE>(p, u, lane, x);
            u.columns_8 = is_q ? 8 : 64;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int b = (int)blockIdx.y * ROWS + r + 8 * i;
                if (!u.x[i])
                    continue;
                const int place = __ldg(a.kv_len + b) - 1;
                u.zero[i] = !is_q && place % 8 == 0;
                if (is_q)
                    u.to[i] = static_cast<uint16_t *>(a.q) + (size_t)b * (size_t)a.map.q_pitch +
                              a.map.q_offset[head];
                else
                    u.to[i] =
                        cache_row(a, b, place, g, k == group + 1 ? KVD_PAGE_TOKENS * d_qk : 0, u.d);
            }
        }
        if (waiting) {
            kvd_copies_done();
            __syncthreads();
            waiting = false;
        }
        if (mine) {
            rope<BF, 1, SLABS, ROPE>(p, u, c, x);
            if (u.applies_rope)
                rotate<BF, true, 1>(p, u, lane, first, min(u.d - first, p.columns), x);
            else
                cut<true, 1, SLABS>(u, c, x);
        }
        k += DECODE_WARPS;
    } while (k < group + 2);
    put_end(a);
}

__device__ __forceinline__ void few_wait(const kvd_append_args &a)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (a.began && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0)
        *a.began = kvd_now_ns();
}

template <bool BF, int ROPE>
__global__ void __launch_bounds__(32 * FEW_WARPS) append_few(const __grid_constant__ params p)
{
    __shared__ __align__(128) uint8_t smem[FEW_WARPS * FEW_R_BYTES];
    const kvd_append_args &a = p.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4,
              c = lane % 4;
    const int g = (int)blockIdx.x, k = (int)blockIdx.y * FEW_WARPS + warp,
              first = (int)blockIdx.z * FEW_COLUMNS, units = a.map.group + 2;
    const uint32_t r_smem =
        (uint32_t)__cvta_generic_to_shared(smem) + (uint32_t)(warp * FEW_R_BYTES);
    unit u;
    const int head = choose_unit(p, u, g, min(k, units - 1), a.map.group, 1, r_smem);
    u.columns_8 = k < a.map.group ? 8 : 64;
    const bool mine = k < units && (first == 0 || (u.applies_rope && first < u.d));
    if (mine && u.applies_rope)
        few_fetch_r(a, u, g, k == units - 1, first, lane, r_smem);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    if (!a.lists_ready)
        few_wait(a);
    float4 cos[4] = {}, sin[4] = {};
    if (mine && r < a.batch)
        few_find<ROPE>(p, u, r, head, g, k, c, cos, sin);
    uint32_t b[FEW_SLABS][2][4] = {};
    if (mine && u.applies_rope) {
        kvd_copies_done();
        __syncwarp();
        const int i = lane % 8;
#pragma unroll
        for (int s = 0; s < FEW_SLABS; s++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                ldmatrix_trans(r_smem +
                                   few_r_offset(32 * s + 8 * (i / 2) + i % 2 + 2 * (lane / 8), j),
                               b[s][j]);
    }
    /* Pass 1 does the work. Pass 0 accesses no memory; it runs the same code only to load it into
     * the instruction cache before the data are ready. */
#pragma unroll 1
    for (int pass = a.lists_ready ? 0 : 1; pass < 2; pass++) {
        if (pass == 1 && a.lists_ready)
            few_wait(a);
        if (mine)
            few_compute<BF, ROPE>(p, u, c, first, pass == 1, cos, sin, b);
    }
    put_end(a);
}

rope_kind choose_rope(const kvd_append_args *a)
{
    if (!a->rope_cos || a->rope_dim == 0)
        return ROPE_NONE;
    const bool aligned = ((uintptr_t)a->rope_cos | (uintptr_t)a->rope_sin) % 16 == 0;
    if (a->rope_interleaved)
        return aligned && a->rope_dim % 8 == 0 ? ROPE_PAIRS : ROPE_ANY;
    if (!aligned || a->rope_dim % 16)
        return ROPE_ANY;
    return a->rope_dim == 128 && a->d_head <= KVD_WIDTH_NARROW ? ROPE_HALF_128 : ROPE_HALF;
}

bool valid(const kvd_append_args *a)
{
    const kvd_attn_map *m = &a->map;
    if ((a->dtype != KVD_BF16 && a->dtype != KVD_F16) || a->batch < 1 || a->n_tokens < a->batch ||
        !kvd_width_fits(a->d_head, KVD_WIDTH_MAX) || a->max_pages < 1 || m->n_kv_heads < 1 ||
        m->n_kv_heads > KVD_HEADS_MAX || m->group < 1 || m->n_heads != m->n_kv_heads * m->group ||
        m->n_heads > KVD_HEADS_MAX)
        return false;
    for (int g = 0; g < m->n_kv_heads; g++)
        if (!kvd_width_fits(m->d_qk[g], a->d_head) || !kvd_width_fits(m->d_v[g], a->d_head))
            return false;
    if (!a->rope_cos != !a->rope_sin ||
        (a->rope_cos && (a->rope_dim < 0 || a->rope_dim > a->d_head || a->rope_dim % 2)))
        return false;
    if (a->q_start ? a->n_q8 < a->n_tokens || a->n_q8 % 8 : a->n_tokens != a->batch)
        return false;
    return a->token_start && a->q_len && a->kv_len && a->page_table && a->x && a->q && a->pool &&
           !(a->v_is_cut && a->r_v) &&
           ((uintptr_t)a->x | (uintptr_t)a->q | (uintptr_t)a->pool | (uintptr_t)a->r_qk |
            (uintptr_t)a->r_v) %
                   16 ==
               0;
}

typedef void (*append_kernel)(params);

template <bool BF, int SLABS> append_kernel prefill_kernel(rope_kind rope)
{
    return rope == ROPE_NONE       ? append_prefill<BF, SLABS, ROPE_NONE>
           : rope == ROPE_PAIRS    ? append_prefill<BF, SLABS, ROPE_PAIRS>
           : rope == ROPE_HALF_128 ? append_prefill<BF, 4, ROPE_HALF_128>
                                   : append_prefill<BF, SLABS, ROPE_GIVEN>;
}

template <bool BF> append_kernel decode_kernel(rope_kind rope)
{
    return rope == ROPE_NONE       ? append_decode<BF, NARROW_SLABS, ROPE_NONE>
           : rope == ROPE_PAIRS    ? append_decode<BF, NARROW_SLABS, ROPE_PAIRS>
           : rope == ROPE_HALF_128 ? append_decode<BF, NARROW_SLABS, ROPE_HALF_128>
                                   : append_decode<BF, NARROW_SLABS, ROPE_GIVEN>;
}

template <bool BF> append_kernel few_kernel(rope_kind rope)
{
    return rope == ROPE_NONE    ? append_few<BF, ROPE_NONE>
           : rope == ROPE_PAIRS ? append_few<BF, ROPE_PAIRS>
                                : append_few<BF, ROPE_HALF_128>;
}

/* Returns true if the kernel append_few supports this launch and is faster than the general decode
 * kernel. */
bool takes_few(const params *p)
{
    const int most = p->a.lists_ready ? FEW_REQUESTS : FEW_REQUESTS / 2;
    return p->a.batch <= most && p->a.d_head <= 32 * FEW_SLABS &&
           (p->rope == ROPE_NONE || p->rope == ROPE_PAIRS || p->rope == ROPE_HALF_128);
}

int widest(const kvd_append_args *a)
{
    int w = 0;
    for (int g = 0; g < a->map.n_kv_heads; g++)
        w = max(w, max(a->r_qk ? (int)a->map.d_qk[g] : 0, a->r_v ? (int)a->map.d_v[g] : 0));
    return w;
}

cudaError_t launch_early(const params &p, append_kernel kernel, dim3 grid, unsigned threads,
                         size_t bytes, cudaStream_t stream)
{
    int major = 0;
    const cudaError_t e = kvd_compute_capability(&major);
    return e == cudaSuccess ? kvd_launch_early(major >= 9, kernel, grid, threads, bytes, stream, p)
                            : e;
}

cudaError_t launch_decode(params *p, append_kernel kernel, int slabs, cudaStream_t stream)
{
    const kvd_append_args *a = &p->a;
    const int tiles = (a->batch + ROWS - 1) / ROWS, w = max(widest(a), (int)KVD_WIDTH_STEP);
    /* With few requests, each CTA takes fewer columns of the rotation matrix, so that more CTAs
     * have work. */
    p->columns = tiles * a->map.n_kv_heads >= 96 ? 128 : tiles * a->map.n_kv_heads >= 48 ? 64 : 32;
    /* Two rotation matrices of 256 x 128 elements exceed shared memory on some devices. */
    if (slabs > NARROW_SLABS && p->columns > 64)
        p->columns = 64;
    p->r_pitch = p->columns > 64 ? 256 : 128;
    p->r_rows = 32 * slabs;
    const int bytes = p->r_rows * p->r_pitch * ((a->r_qk != NULL) + (a->r_v != NULL));
    return launch_early(*p, kernel,
                        dim3((unsigned)a->map.n_kv_heads, (unsigned)tiles,
                             (unsigned)((w + p->columns - 1) / p->columns)),
                        32 * DECODE_WARPS, (size_t)bytes, stream);
}

cudaError_t launch_few(const params *p, append_kernel kernel, cudaStream_t stream)
{
    const kvd_attn_map *m = &p->a.map;
    const int w = max(widest(&p->a), (int)FEW_COLUMNS);
    return launch_early(*p, kernel,
                        dim3((unsigned)m->n_kv_heads,
                             (unsigned)((m->group + 2 + FEW_WARPS - 1) / FEW_WARPS),
                             (unsigned)(w / FEW_COLUMNS)),
                        32 * FEW_WARPS, 0, stream);
}

int share_ctas(params *p, int n_ctas, int warps)
{
    const kvd_append_args *a = &p->a;
    const int n_kv = a->map.n_kv_heads, units = (a->map.group + 1) / 2 + 2;
    const long long items = (long long)p->slots * units;
    const int most =
        (int)((items + warps - 1) / warps < n_ctas ? (items + warps - 1) / warps : n_ctas);
    long long weight[KVD_HEADS_MAX], total = 0;
    int n[KVD_HEADS_MAX], given = 0;
    for (int g = 0; g < n_kv; g++) {
        weight[g] = (a->map.group + 1) * (a->d_head + a->map.d_qk[g]) + a->map.d_v[g] +
                    (a->r_v ? a->d_head : a->map.d_v[g]);
        total += weight[g];
    }
    for (int g = 0; g < n_kv; g++) {
        const int share = (int)(n_ctas * weight[g] / total);
        n[g] = share < 1 ? 1 : share > most ? most : share;
        given += n[g];
    }
    while (given < n_ctas) {
        int best = -1;
        for (int g = 0; g < n_kv; g++)
            if (n[g] < most && (best < 0 || weight[g] * n[best] > weight[best] * n[g]))
                best = g;
        if (best < 0)
            break;
        n[best]++;
        given++;
    }
    p->first_cta[0] = 0;
    for (int g = 0; g < n_kv; g++)
        p->first_cta[g + 1] = (int16_t)(p->first_cta[g] + n[g]);
    return p->first_cta[n_kv];
}

cudaError_t launch_prefill(params *p, append_kernel kernel, int slabs, cudaStream_t stream)
{
    const kvd_append_args *a = &p->a;
    int sms = 0, room = 0;
    cudaError_t e = kvd_device_attribute(cudaDevAttrMultiProcessorCount, &sms);
    if (e == cudaSuccess)
        e = kvd_device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &room);
    if (e != cudaSuccess)
        return e;
    const bool wide = slabs > NARROW_SLABS;
    const int matrices = (a->r_qk != NULL) + (a->r_v != NULL);
    const int ctas = wide ? 1 : (int)PREFILL_CTAS;
    /* CUDA reserves 1024 bytes of the shared memory of each CTA. Another 256 bytes hold the static
     * variable next_item. */
    const int cta_room = room / ctas - 1024 - 256;
    p->columns = widest(a) > 64 ? 128 : 64;
    p->r_rows = 32 * slabs;
    if (wide && p->r_rows * 256 * matrices + 4 * 2 * STAGE_BYTES > cta_room)
        p->columns = 64;
    p->r_pitch = 2 * p->columns;
    const int r_bytes = p->r_rows * p->r_pitch * matrices;
    int warps = (cta_room - r_bytes) / (2 * STAGE_BYTES);
    if (warps < 1)
        warps = 1;
    /* Devices before sm_90 have at most 164 KB of shared memory per SM. */
    const int most = wide                ? (int)WIDE_WARPS
                     : room > 164 * 1024 ? (int)PREFILL_WARPS
                                         : (int)PREFILL_WARPS - 2;
    if (warps > most)
        warps = most;
    const int bytes = r_bytes + warps * 2 * STAGE_BYTES;
    p->slots = a->n_tokens / ROWS + 2 * a->batch;
    const int parts = wide ? max(1, (widest(a) + p->columns - 1) / p->columns) : 1;
    const int n_ctas = share_ctas(p, max(1, ctas * sms / parts), warps);
    return kvd_launch(kernel, dim3((unsigned)n_ctas, (unsigned)parts), (unsigned)(32 * warps),
                      (size_t)bytes, stream, *p);
}

template <bool BF> cudaError_t launch(params *p, cudaStream_t stream)
{
    const int d_head = p->a.d_head;
    if (!p->a.q_start && takes_few(p))
        return launch_few(p, few_kernel<BF>(p->rope), stream);
    if (!p->a.q_start)
        return d_head > KVD_WIDTH_NARROW
                   ? launch_decode(p, append_decode<BF, WIDE_SLABS, ROPE_GIVEN>, WIDE_SLABS, stream)
                   : launch_decode(p, decode_kernel<BF>(p->rope), NARROW_SLABS, stream);
    if (d_head > KVD_WIDTH_NARROW)
        return launch_prefill(p, append_prefill<BF, WIDE_SLABS, ROPE_GIVEN>, WIDE_SLABS, stream);
    return d_head > 64 ? launch_prefill(p, prefill_kernel<BF, 4>(p->rope), 4, stream)
                       : launch_prefill(p, prefill_kernel<BF, 2>(p->rope), 2, stream);
}

} // namespace

extern "C" cudaError_t kvd_append(const kvd_append_args *args, cudaStream_t stream)
{
    if (!args || !valid(args))
        return cudaErrorInvalidValue;
    params p;
    p.a = *args;
    p.zero = 0;
    p.rope = choose_rope(args);
    p.x_pitch = (args->map.n_heads + args->map.n_kv_heads) * args->d_head +
                (args->v_is_cut ? args->map.o_pitch / args->map.group
                                : args->map.n_kv_heads * args->d_head);
    return args->dtype == KVD_BF16 ? launch<true>(&p, stream) : launch<false>(&p, stream);
}
