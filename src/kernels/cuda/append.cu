/*
 * RoPE, rotation, truncation and store of Q, K and V of the new tokens, in one launch. cut() keeps
 * the first d_qk or d_v columns.
 *
 *   Q[t][h] = cut(rope(x_q[t][h]) R_qk[g])
 *   K[t][g] = cut(rope(x_k[t][g]) R_qk[g])
 *   V[t][g] = cut(x_v[t][g]), or cut(x_v[t][g] R_v[g]) if R_v is given
 *
 * The kernel is memory-bound. Per token it reads (n_heads + n_kv_heads) d_head + sum of d_v
 * elements (with R_v, n_kv_heads d_head instead of the sum) and writes q_pitch + sum of (d_qk +
 * d_v) elements, 2 bytes each. The product costs 2 d_head (q_pitch + sum of d_qk) FLOP per token,
 * which tensor cores do while the loads are in flight.
 *
 * A warp processes 16 rows of one or two heads. Lane (r, c) of the 8 x 4 lanes holds columns 32 s +
 * 8 c .. 32 s + 8 c + 7 of rows r and r + 8, as 16 bytes in memory order. mma.sync expects lane c
 * to hold columns 2c, 2c+1, 2c+8 and 2c+9 of each step of 16. A sum does not depend on the order of
 * its terms if both factors use the same order, so the columns are not moved; ldmatrix gathers the
 * rows of R in their order instead. RoPE therefore works on registers, and a lane only reads data
 * that it copied itself. The result is stored in the order of the layout: an 8 x 8 fragment is 128
 * contiguous bytes.
 *
 * Prefill: a persistent grid with two CTAs per SM. Each KV head has a number of CTAs in proportion
 * to its bytes, and each of them keeps that head's R in shared memory. A CTA processes a run of
 * items. An item is 16 rows of one unit. A unit is two query heads, K, or V. The warps take items
 * one by one, and each copies its next item while it works on the current one. K and V rows are
 * counted from the group of 8 tokens that contains the first new token, so each group of the cache
 * is written by one warp only.
 *
 * Decode: the grid is (KV head, 16 requests, some columns of R), and the units are distributed over
 * 8 warps.
 *
 * Each row's sum is computed in one fixed order, so the bits of a token do not depend on the tokens
 * with which it was appended.
 */
#include "kernels/cuda/append.h"

extern "C" {
#include "common/half.h"
}
#include "kernels/cuda/append_rows.cuh"

namespace
{

__device__ __forceinline__ unsigned long long now_ns(void)
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}

/*
 * Request that a warp works on. The rows of a request are processed 16 at a time. Each such block
 * of 16 rows has a number (its slot); the slots of request b start at token_start[b] / 16 + 2 b. A
 * request may have one slot more than it needs, because its blocks may start up to 7 tokens
 * earlier, at the first token of a group of 8.
 */
struct place {
    int b, start, next; /* request, its first slot, and the next request's first slot */
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

/*
 * Finds, for the two rows of Q, K or V that this lane processes, where they are read, their
 * positions and where they are written. `slot` is the number of the warp's block of 16 rows.
 */
__device__ __forceinline__ void prefill_rows(const params &p, unit &u, int head, int g, bool is_q,
                                             bool is_v, int slot, const place &at, int r)
{
    const kvd_append_args &a = p.a;
    const int q_len = __ldg(a.q_len + at.b), old = __ldg(a.kv_len + at.b) - q_len;
    const int token0 = __ldg(a.token_start + at.b);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        /* Token t of the request; its group of 8 begins with token t - r. */
        const int t = (slot - at.start) * ROWS + r + 8 * i - (is_q ? 0 : old % 8);
        if (t >= 0 && t < q_len)
            u.x[i] = static_cast<const uint16_t *>(a.x) + (size_t)(token0 + t) * (size_t)p.x_pitch +
                     column_of(a, head, g, is_v);
        u.pos[i] = old + t;
        if (is_q && t - r < q_len)
            u.to[i] = static_cast<uint16_t *>(a.q) + (size_t)a.map.q_offset[head] * (size_t)a.n_q8 +
                      (size_t)(__ldg(a.q_start + at.b) + t - r) * (size_t)u.d + 8 * r;
        /*
         * Rows after the last token are set to zero, unless their group of 8 began before the new
         * tokens. In that case the rows are zero already.
         */
        if (!is_q && t >= 0 && (t < q_len || (t - r >= 0 && t - r < q_len)))
            u.to[i] =
                cache_row(a, at.b, old + t, g, is_v ? KVD_PAGE_TOKENS * a.map.d_qk[g] : 0, u.d);
    }
}

template <bool BF, int SLABS, int ROPE>
__global__ void __launch_bounds__(32 * BOUND_WARPS, ROPE == ROPE_GIVEN ? 1 : PREFILL_CTAS)
    append_prefill(const __grid_constant__ params p)
{
    /*
     * Two heads processed together share the angles and the fragments of R. The general variants of
     * RoPE need the registers and process one head.
     */
    constexpr int HEADS = ROPE == ROPE_GIVEN ? 1 : 2;
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
    if (a.r_qk)
        fetch_r(p, a.r_qk, a.map.q_offset[g * group] / group, a.map.d_qk[g], 0, a.map.d_qk[g],
                r_smem);
    if (a.r_v)
        fetch_r(p, a.r_v, a.map.o_offset[g * group] / group, a.map.d_v[g], 0, a.map.d_v[g],
                r_smem + (uint32_t)(a.r_qk ? p.r_rows * p.r_pitch : 0));
    asm volatile("cp.async.commit_group;" ::: "memory");
    if (threadIdx.x == 0)
        next_item = begin + (int)blockDim.x / 32;

    /*
     * Looks up the warp's next 16 rows and starts the copy of their x while the current rows are
     * computed.
     */
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
            prefill_rows(p, u, head, g, kind < n_q, kind == n_q + 1, slot, at, r);
            prefetch<HEADS, SLABS, ROPE>(p, u, lane, stages + (uint32_t)(stage * STAGE_BYTES));
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
                    rotate<BF, false, HEADS>(p, u, lane, 0, u.d, x);
                else
                    rotate<BF, false, 1>(p, u, lane, 0, u.d, x);
            }
        }
        item = following;
        odd ^= 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

template <bool BF, int ROPE>
__global__ void __launch_bounds__(32 * DECODE_WARPS, ROPE == ROPE_GIVEN ? 1 : 2)
    append_decode(const __grid_constant__ params p)
{
    constexpr int SLABS = KVD_WIDTH_MAX / 32;
    extern __shared__ __align__(128) uint8_t smem[];
    const kvd_append_args &a = p.a;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, r = lane / 4,
              c = lane % 4;
    const int g = (int)blockIdx.x, group = a.map.group, d_qk = a.map.d_qk[g], d_v = a.map.d_v[g];
    /* First column of the rotation matrix R that this CTA computes. */
    const int first = (int)blockIdx.z * p.columns;
    const uint32_t r_smem = (uint32_t)__cvta_generic_to_shared(smem);
    if (a.r_qk)
        fetch_r(p, a.r_qk, a.map.q_offset[g * group] / group, d_qk, first,
                min(d_qk - first, p.columns), r_smem);
    if (a.r_v)
        fetch_r(p, a.r_v, a.map.o_offset[g * group] / group, d_v, first,
                min(d_v - first, p.columns),
                r_smem + (uint32_t)(a.r_qk ? p.r_rows * p.r_pitch : 0));
#if __CUDA_ARCH__ >= 900
    /*
     * Above this line the kernel reads no memory that a preceding kernel wrote. It reads only the
     * rotation matrices R, which never change.
     */
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (a.began && blockIdx.x == 0 && blockIdx.y == 0 && blockIdx.z == 0 && threadIdx.x == 0)
        *a.began = now_ns();
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
            /*
             * The CTA with the first columns computes everything: each two query heads, K, and V.
             * The others compute only what is multiplied by the rotation matrix R and has columns
             * from `first` on.
             */
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
                /* index in the cache; it differs from the position if tokens were evicted */
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
            asm volatile("cp.async.wait_all;" ::: "memory");
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
    if (a.ended) {
        __syncthreads();
        if (threadIdx.x == 0)
            atomicMax(a.ended, now_ns());
    }
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
    return a->rope_dim == 128 ? ROPE_HALF_128 : ROPE_HALF;
}

bool valid(const kvd_append_args *a)
{
    const kvd_attn_map *m = &a->map;
    if ((a->dtype != KVD_BF16 && a->dtype != KVD_F16) || a->batch < 1 || a->n_tokens < a->batch ||
        a->d_head < KVD_WIDTH_STEP || a->d_head > KVD_WIDTH_MAX || a->d_head % KVD_WIDTH_STEP ||
        a->max_pages < 1 || m->n_kv_heads < 1 || m->n_kv_heads > KVD_HEADS_MAX || m->group < 1 ||
        m->n_heads != m->n_kv_heads * m->group || m->n_heads > KVD_HEADS_MAX)
        return false;
    for (int g = 0; g < m->n_kv_heads; g++)
        if (m->d_qk[g] < KVD_WIDTH_STEP || m->d_qk[g] > a->d_head || m->d_qk[g] % KVD_WIDTH_STEP ||
            m->d_v[g] < KVD_WIDTH_STEP || m->d_v[g] > a->d_head || m->d_v[g] % KVD_WIDTH_STEP)
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
    return rope == ROPE_NONE       ? append_decode<BF, ROPE_NONE>
           : rope == ROPE_PAIRS    ? append_decode<BF, ROPE_PAIRS>
           : rope == ROPE_HALF_128 ? append_decode<BF, ROPE_HALF_128>
                                   : append_decode<BF, ROPE_GIVEN>;
}

int widest(const kvd_append_args *a)
{
    int w = 0;
    for (int g = 0; g < a->map.n_kv_heads; g++)
        w = max(w, max(a->r_qk ? (int)a->map.d_qk[g] : 0, a->r_v ? (int)a->map.d_v[g] : 0));
    return w;
}

cudaError_t launch_decode(params *p, append_kernel kernel, cudaStream_t stream)
{
    const kvd_append_args *a = &p->a;
    const int tiles = (a->batch + ROWS - 1) / ROWS, w = max(widest(a), (int)KVD_WIDTH_STEP);
    /*
     * If there are few requests, the columns of the rotation matrix R are divided among several
     * CTAs, so that more SMs share the work. If there are many requests, R is read once per 16
     * requests.
     */
    p->columns = tiles * a->map.n_kv_heads >= 96 ? 128 : tiles * a->map.n_kv_heads >= 48 ? 64 : 32;
    p->r_pitch = p->columns > 64 ? 256 : 128;
    p->r_rows = KVD_WIDTH_MAX;
    const int bytes = p->r_rows * p->r_pitch * ((a->r_qk != NULL) + (a->r_v != NULL));
    if (bytes > 48 * 1024) {
        const cudaError_t e =
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (e != cudaSuccess)
            return e;
    }
    /* On Hopper the launch overlaps the end of the preceding kernel. */
    int device = 0, major = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e != cudaSuccess)
        return e;
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)a->map.n_kv_heads, (unsigned)tiles,
                          (unsigned)((w + p->columns - 1) / p->columns));
    config.blockDim = dim3(32 * DECODE_WARPS);
    config.dynamicSmemBytes = (size_t)bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = major >= 9 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, *p);
}

/*
 * Assigns CTAs to each KV head in proportion to the bytes that the head moves: at least one, and at
 * most as many as it has items (16 rows of two query heads, K, or V).
 */
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
    while (given < n_ctas) { /* the next CTA goes to the head that gains most */
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
    int device = 0, sms = 0, room = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&room, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e != cudaSuccess)
        return e;
    p->r_pitch = widest(a) > 64 ? 256 : 128;
    p->r_rows = 32 * slabs;
    const int r_bytes = p->r_rows * p->r_pitch * ((a->r_qk != NULL) + (a->r_v != NULL));
    /* 1024 bytes are shared memory that CUDA reserves per CTA; 256 bytes are for `next_item`. */
    const int cta_room = room / PREFILL_CTAS - 1024 - 256;
    int warps = (cta_room - r_bytes) / (2 * STAGE_BYTES);
    if (warps < 1)
        warps = 1;
    /*
     * Most warps that __launch_bounds__ of the kernel allows (BOUND_WARPS). Devices before sm_90
     * have at most 164 KB of shared memory per SM and allow two warps fewer.
     */
    const int most = room > 164 * 1024 ? (int)PREFILL_WARPS : (int)PREFILL_WARPS - 2;
    if (warps > most)
        warps = most;
    const int bytes = r_bytes + warps * 2 * STAGE_BYTES;
    e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e != cudaSuccess)
        return e;
    p->slots = a->n_tokens / ROWS + 2 * a->batch;
    const int n_ctas = share_ctas(p, PREFILL_CTAS * sms, warps);
    kernel<<<(unsigned)n_ctas, (unsigned)(32 * warps), (size_t)bytes, stream>>>(*p);
    return cudaGetLastError();
}

template <bool BF> cudaError_t launch(params *p, cudaStream_t stream)
{
    if (!p->a.q_start)
        return launch_decode(p, decode_kernel<BF>(p->rope), stream);
    return p->a.d_head > 64 ? launch_prefill(p, prefill_kernel<BF, 4>(p->rope), 4, stream)
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
