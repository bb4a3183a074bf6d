/* Device functions of decode attention: barriers, copies of pages, products, and softmax state. */
#ifndef KVD_KERNELS_CUDA_DECODE_TILE_CUH
#define KVD_KERNELS_CUDA_DECODE_TILE_CUH

#include "kernels/cuda/mma.cuh"
#include "kernels/layout.h"

static_assert(KVD_PAGE_TOKENS == 64, "the unrolled loops below are for 64 tokens");

static __device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Loads 16 bytes in program order. Do not replace it by __ldg, which may move before
 * griddepcontrol.wait. */
static __device__ __forceinline__ int4 load_now4(const void *at)
{
    int4 x;
    asm volatile("ld.relaxed.gpu.global.v4.s32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at)
                 : "memory");
    return x;
}

/* Loads a number in program order: the compiler does not move a volatile load. */
static __device__ __forceinline__ int32_t load_now(const int32_t *at)
{
    int32_t x;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}

static __device__ __forceinline__ void pipe_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

static __device__ __forceinline__ void pipe_arrive(uint32_t bar)
{
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(bar)
                 : "memory");
}

/* Returns 1 if the barrier has completed its phase of the given parity, otherwise 0. */
static __device__ __forceinline__ uint32_t pipe_try(uint32_t bar, uint32_t parity)
{
    uint32_t done;
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
#else
    asm volatile(
        "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(bar), "r"(parity)
        : "memory");
#endif
    return done;
}

static __device__ __forceinline__ void pipe_wait(uint32_t bar, uint32_t parity)
{
    while (!pipe_try(bar, parity))
        ;
}

/* Part of a page that a lane copies, in groups of 8 tokens: start in the source page, start in the
 * destination page, length. */
typedef struct {
    int from, to, groups;
} piece_groups;

/* Arrival count of the mbarrier that completes when copy_tokens has copied a page. */
enum { TOKENS_ARRIVALS = 33 };

/* Copies a page to shared memory token by token. token[i] is the index in the pool of token 8 * i +
 * lane % 8, or -1 if the page has no such token. */
static __device__ __forceinline__ void copy_tokens(uint32_t to, const char *from,
                                                   const int32_t (&token)[KVD_PAGE_TOKENS / 8],
                                                   size_t page_bytes, int k_bytes, int v_bytes,
                                                   uint32_t full, int lane)
{
    __syncwarp();
#pragma unroll
    for (int i = 0; i < KVD_PAGE_TOKENS / 8; i++) {
        const int t = max(token[i], 0), bytes = token[i] < 0 ? 0 : 16;
        const char *const page = from + (size_t)(t / KVD_PAGE_TOKENS) * page_bytes;
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const int start = part ? k_bytes : 0, each = (part ? v_bytes : k_bytes) / 8;
            const char *const row = page + start + t % KVD_PAGE_TOKENS / 8 * each + t % 8 * 16;
            const uint32_t place = to + (uint32_t)(start + i * each + lane % 8 * 16);
            for (int block = lane / 8 * 128; block < each; block += 512)
                kvd_copy_16(place + (uint32_t)block, row + block, bytes);
        }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full) : "memory");
    if (lane == 0)
        pipe_arrive(full);
}

/* Number of arrivals after which the barrier of a copied page is complete. */
#if __CUDA_ARCH__ >= 900
enum { FULL_ARRIVALS = 1 };

static __device__ __forceinline__ void bulk_copy(uint32_t to, const char *from, int bytes,
                                                 uint32_t full, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(full), "l"(policy)
                 : "memory");
}

/* Copies pages 0 .. now - 1 to shared memory. Each page is divided among `pieces` adjacent
 * lanes. */
static __device__ __forceinline__ void copy_pieces(uint32_t to, const char *from, int k_bytes,
                                                   int v_bytes, const piece_groups &piece, int all,
                                                   uint32_t full, uint64_t policy, int lane,
                                                   int pieces, int now)
{
    const int k_each = k_bytes / 8, v_each = v_bytes / 8, groups = piece.groups;
    if (lane < pieces * now && (lane & (pieces - 1)) == 0)
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full),
                     "r"((k_each + v_each) * all)
                     : "memory");
    __syncwarp();
    if (lane >= pieces * now || groups <= 0)
        return;
    bulk_copy(to + (uint32_t)(k_each * piece.to), from + k_each * piece.from, k_each * groups, full,
              policy);
    bulk_copy(to + (uint32_t)(k_bytes + v_each * piece.to), from + k_bytes + v_each * piece.from,
              v_each * groups, full, policy);
}

/* Copies K and V of `now` pages to shared memory, one page per lane. From each page, copies tokens
 * 8 * group .. 8 * (group + groups) - 1. */
static __device__ __forceinline__ void copy_pages(uint32_t to, const char *from, int k_bytes,
                                                  int v_bytes, int group, int groups, uint32_t full,
                                                  uint64_t policy, int lane, int now)
{
    if (lane >= now)
        return;
    const int k_part = k_bytes / 8 * groups, v_part = v_bytes / 8 * groups;
    const int k_skip = k_bytes / 8 * group, v_skip = k_bytes + v_bytes / 8 * group;
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full),
                 "r"(k_part + v_part)
                 : "memory");
    if (groups == 8) {
        bulk_copy(to, from, k_bytes + v_bytes, full, policy);
    } else {
        bulk_copy(to + (uint32_t)k_skip, from + k_skip, k_part, full, policy);
        bulk_copy(to + (uint32_t)v_skip, from + v_skip, v_part, full, policy);
    }
}
#else
enum { FULL_ARRIVALS = 33 };

static __device__ __forceinline__ void copy_groups(uint32_t to, const char *from, int k_bytes,
                                                   int v_bytes, const piece_groups &piece, int lane)
{
    for (int part = 0; part < 2; part++) {
        const int each = (part ? v_bytes : k_bytes) / 8, bytes = each * piece.groups,
                  start = part ? k_bytes : 0;
        for (int i = 16 * lane; i < bytes; i += 512)
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                             to + (uint32_t)(start + each * piece.to + i)),
                         "l"(from + start + each * piece.from + i)
                         : "memory");
    }
}

static __device__ __forceinline__ void copy_pieces(uint32_t to, const char *from, int k_bytes,
                                                   int v_bytes, const piece_groups &piece, int,
                                                   uint32_t full, uint64_t, int lane, int pieces,
                                                   int now)
{
    __syncwarp();
    for (int i = 0; i < pieces * now; i++) {
        const uint32_t full1 = __shfl_sync(~0u, full, i);
        copy_groups(__shfl_sync(~0u, to, i),
                    (const char *)__shfl_sync(~0u, (unsigned long long)from, i), k_bytes, v_bytes,
                    {__shfl_sync(~0u, piece.from, i), __shfl_sync(~0u, piece.to, i),
                     __shfl_sync(~0u, piece.groups, i)},
                    lane);
        if (i % pieces < pieces - 1)
            continue;
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full1) : "memory");
        if (lane == i)
            pipe_arrive(full1);
    }
}

static __device__ __forceinline__ void copy_pages(uint32_t to, const char *from, int k_bytes,
                                                  int v_bytes, int group, int groups, uint32_t full,
                                                  uint64_t, int lane, int now)
{
    __syncwarp();
    for (int page = 0; page < now; page++) {
        const uint32_t to1 = __shfl_sync(~0u, to, page), full1 = __shfl_sync(~0u, full, page);
        const char *from1 = (const char *)__shfl_sync(~0u, (unsigned long long)from, page);
        const int group1 = __shfl_sync(~0u, group, page);
        const int groups1 = __shfl_sync(~0u, groups, page);
        copy_groups(to1, from1, k_bytes, v_bytes, {group1, group1, groups1}, lane);
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full1) : "memory");
        if (lane == page)
            pipe_arrive(full1);
    }
}
#endif

/* Returns a cache policy for data that is read once: L2 evicts such data before other data. */
static __device__ __forceinline__ uint64_t read_once_policy()
{
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}

static __device__ __forceinline__ void prefetch_l2(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

template <int WARPS> static __device__ __forceinline__ void consumers_sync()
{
    asm volatile("bar.sync 1, %0;" ::"n"(32 * WARPS) : "memory");
}

/* Computes scores S [16 query heads][8 * GROUPS tokens] = Q K^T for d_qk = 16 * STEPS. */
template <bool BF, int HALVES, int GROUPS, int STEPS, int WIDTH16>
static __device__ __forceinline__ void scores(float (&s)[GROUPS][2 * HALVES],
                                              const uint32_t (&q)[WIDTH16][2 * HALVES], uint32_t k,
                                              int lane)
{
    const uint32_t at = k + (uint32_t)(lane & 15) * 16 + (uint32_t)(lane >> 4) * (256 * STEPS);
    float c[GROUPS][4] = {};
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const uint32_t a[4] = {q[i][0], HALVES == 2 ? q[i][HALVES * 2 - 2] : 0, q[i][1],
                               HALVES == 2 ? q[i][HALVES * 2 - 1] : 0};
#pragma unroll
        for (int j = 0; j < GROUPS; j += 2) {
            uint32_t b[4];
            ldmatrix(at + (uint32_t)(j * 256 * STEPS + i * 256), b);
            mma_pure<BF>(c[j], a, b[0], b[1]);
            mma_pure<BF>(c[j + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 2 * HALVES; e++)
            s[j][e] = c[j][e];
}

/* Adds values to the transposed output for d_v = 16 * TILES: O^T [d_v][8 query heads] += V^T
 * P^T. */
template <bool BF, int HALVES, int GROUPS, int TILES, int WIDTH16>
static __device__ __forceinline__ void
values(float (&o)[HALVES][WIDTH16][4], const uint32_t (&p)[HALVES][GROUPS], uint32_t v, int lane)
{
    const uint32_t at = v + (uint32_t)(lane & 15) * 16 + (uint32_t)(lane >> 4) * (256 * TILES);
#pragma unroll
    for (int k = 0; k < GROUPS / 2; k++)
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            uint32_t a[4];
            ldmatrix_trans(at + (uint32_t)(k * 512 * TILES + i * 256), a);
#pragma unroll
            for (int h = 0; h < HALVES; h++)
                mma_pure<BF>(o[h][i], a, p[h][2 * k], p[h][2 * k + 1]);
        }
}

/* Calls step(i) for all i < width / 16. Makes four calls without a branch between them, so that
 * loads of one call overlap with products of another. */
template <int WIDTH16, class F>
static __device__ __forceinline__ void each_step(int width, const F &step)
{
#pragma unroll
    for (int i = 0; i < WIDTH16; i += 4) {
        if (16 * (i + 4) <= width) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                step(i + e);
        } else {
#pragma unroll
            for (int e = 0; e < 3; e++)
                if (16 * (i + e) < width)
                    step(i + e);
        }
    }
}

/* Computes scores S = Q K^T of 8 * GROUPS tokens for a d_qk known only at run time. */
template <bool BF, int HALVES, int GROUPS, int WIDTH16>
static __device__ __forceinline__ void scores_any(float (&s)[GROUPS][2 * HALVES],
                                                  const uint32_t (&q)[WIDTH16][2 * HALVES],
                                                  uint32_t k, int d_qk, int lane)
{
    const uint32_t group = 16 * (uint32_t)d_qk;
    const uint32_t at = k + (uint32_t)(lane & 15) * 16 + (uint32_t)(lane >> 4) * group;
    float c[GROUPS][4] = {};
    each_step<WIDTH16>(d_qk, [&](int i) {
        const uint32_t a[4] = {q[i][0], HALVES == 2 ? q[i][HALVES * 2 - 2] : 0, q[i][1],
                               HALVES == 2 ? q[i][HALVES * 2 - 1] : 0};
#pragma unroll
        for (int j = 0; j < GROUPS; j += 2) {
            uint32_t b[4];
            ldmatrix(at + (uint32_t)j * group + (uint32_t)(i * 256), b);
            mma_pure<BF>(c[j], a, b[0], b[1]);
            mma_pure<BF>(c[j + 1], a, b[2], b[3]);
        }
    });
#pragma unroll
    for (int j = 0; j < GROUPS; j++)
#pragma unroll
        for (int e = 0; e < 2 * HALVES; e++)
            s[j][e] = c[j][e];
}

/* Adds values to the transposed output, O^T += V^T P^T, for a d_v known only at run time. */
template <bool BF, int HALVES, int GROUPS, int WIDTH16>
static __device__ __forceinline__ void values_any(float (&o)[HALVES][WIDTH16][4],
                                                  const uint32_t (&p)[HALVES][GROUPS], uint32_t v,
                                                  int d_v, int lane)
{
    const uint32_t group = 16 * (uint32_t)d_v;
    const uint32_t at = v + (uint32_t)(lane & 15) * 16 + (uint32_t)(lane >> 4) * group;
    each_step<WIDTH16>(d_v, [&](int i) {
#pragma unroll
        for (int k = 0; k < GROUPS / 2; k++) {
            uint32_t a[4];
            ldmatrix_trans(at + (uint32_t)(2 * k) * group + (uint32_t)(i * 256), a);
#pragma unroll
            for (int h = 0; h < HALVES; h++)
                mma_pure<BF>(o[h][i], a, p[h][2 * k], p[h][2 * k + 1]);
        }
    });
}

/* Calls CALL with width / 16 as a compile-time constant. A switch statement would be slower,
 * because it reads a jump table from memory. */
#define EACH_WIDTH(width, CALL)                                                                    \
    if ((width) <= 64) {                                                                           \
        if ((width) <= 32) {                                                                       \
            if ((width) <= 16)                                                                     \
                CALL(1);                                                                           \
            else                                                                                   \
                CALL(2);                                                                           \
        } else {                                                                                   \
            if ((width) <= 48)                                                                     \
                CALL(3);                                                                           \
            else                                                                                   \
                CALL(4);                                                                           \
        }                                                                                          \
    } else if ((width) <= 96) {                                                                    \
        if ((width) <= 80)                                                                         \
            CALL(5);                                                                               \
        else                                                                                       \
            CALL(6);                                                                               \
    } else {                                                                                       \
        if ((width) <= 112)                                                                        \
            CALL(7);                                                                               \
        else                                                                                       \
            CALL(8);                                                                               \
    }

/* The output is rescaled to a larger maximum only if a softmax weight relative to the old maximum
 * would exceed 2^LAZY. */
enum { LAZY = 8 };

/* Softmax state of a warp for its query heads: largest scores, sums of exponentials, and weighted
 * sums of V. It is divided among lanes. */
template <int HALVES, int WIDTH16> struct state {
    float max[HALVES], sum[HALVES], o[HALVES][WIDTH16][4];
};

template <int HALVES, int WIDTH16>
static __device__ __forceinline__ void clear(state<HALVES, WIDTH16> &st)
{
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        st.max[h] = -INFINITY;
        st.sum[h] = 0;
#pragma unroll
        for (int i = 0; i < WIDTH16; i++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                st.o[h][i][e] = 0;
    }
}

/* Returns the distance, in elements of Q, between adjacent query heads of a KV head. Returns 0 if
 * the KV head has only one query head. */
static __host__ __device__ __forceinline__ int q_stride(const kvd_attn_map &map, int kv_head)
{
    const int32_t *offset = map.q_offset + kv_head * map.group;
    return map.group > 1 ? offset[1] - offset[0] : 0;
}

/* Loads Q as operands of mma.sync, 16 dimensions per operand. */
template <int HALVES, int WIDTH16>
static __device__ __forceinline__ void load_q(uint32_t (&q)[WIDTH16][2 * HALVES],
                                              const uint16_t *from, int stride, int group, int d_qk,
                                              int lane)
{
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const int row = lane / 4 + 8 * h;
        const uint32_t *at = reinterpret_cast<const uint32_t *>(from + row * stride + lane % 4 * 2);
#pragma unroll
        for (int i = 0; i < WIDTH16; i++) {
            const bool there = row < group && 16 * i < d_qk;
            q[i][2 * h] = there ? at[8 * i] : 0;
            q[i][2 * h + 1] = there ? at[8 * i + 4] : 0;
        }
    }
}

/* Adds 8 * GROUPS tokens to the softmax state. Masks tokens whose index is below `older` or at
 * least n_tokens. */
template <bool BF, int HALVES, int GROUPS, bool WINDOW, int WIDTH16>
static __device__ __forceinline__ void
consume_unit(state<HALVES, WIDTH16> &st, const uint32_t (&q)[WIDTH16][2 * HALVES], uint32_t k,
             uint32_t v, int d_qk, int d_v, int n_tokens, int older, float scale_log2, int lane)
{
    constexpr bool WIDE = WIDTH16 > KVD_WIDTH_NARROW / 16;
    float s[GROUPS][2 * HALVES];
    if constexpr (WIDE) {
        scores_any<BF, HALVES, GROUPS>(s, q, k, d_qk, lane);
    } else {
#define CALL(n) scores<BF, HALVES, GROUPS, n>(s, q, k, lane)
        EACH_WIDTH(d_qk, CALL)
#undef CALL
    }
    if (n_tokens < 8 * GROUPS) {
        /* Fills V after the copied tokens with zeros, because softmax weight 0 times NaN is NaN. */
        for (int i = (n_tokens + 7) / 8 * 16 * d_v + 16 * lane; i < 16 * GROUPS * d_v; i += 512)
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(v + (uint32_t)i), "r"(0)
                         : "memory");
        __syncwarp();
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2 * HALVES; e++)
                if (8 * j + lane % 4 * 2 + e % 2 >= n_tokens)
                    s[j][e] = -INFINITY;
    }
    if (WINDOW && older > 0) {
#pragma unroll
        for (int j = 0; j < GROUPS; j++)
#pragma unroll
            for (int e = 0; e < 2 * HALVES; e++)
                if (8 * j + lane % 4 * 2 + e % 2 < older)
                    s[j][e] = -INFINITY;
    }

    float top[HALVES];
    bool grows = false;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        float m = fmaxf(s[0][2 * h], s[0][2 * h + 1]);
#pragma unroll
        for (int j = 1; j < GROUPS; j++)
            m = fmaxf(m, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
        m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
        top[h] = fmaxf(m, __shfl_xor_sync(~0u, m, 2));
        grows = grows || !((top[h] - st.max[h]) * scale_log2 <= LAZY);
    }
    if (__any_sync(~0u, grows)) {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const float m = fmaxf(st.max[h], top[h]);
            const float shrink = kvd_exp2((st.max[h] - m) * scale_log2);
            st.max[h] = m;
            st.sum[h] *= shrink;
            /* The factor `shrink` of query head h is in lane 4 h. */
            const float f0 = __shfl_sync(~0u, shrink, lane % 4 * 8),
                        f1 = __shfl_sync(~0u, shrink, lane % 4 * 8 + 4);
#pragma unroll
            for (int i = 0; i < WIDTH16; i++) {
                st.o[h][i][0] *= f0;
                st.o[h][i][1] *= f1;
                st.o[h][i][2] *= f0;
                st.o[h][i][3] *= f1;
            }
        }
    }

    uint32_t packed[HALVES][GROUPS];
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const float shift = st.max[h] * scale_log2;
        float sum0 = 0, sum1 = 0;
#pragma unroll
        for (int j = 0; j < GROUPS; j++) {
            const float p0 = kvd_exp2(fmaf(s[j][2 * h], scale_log2, -shift));
            const float p1 = kvd_exp2(fmaf(s[j][2 * h + 1], scale_log2, -shift));
            sum0 += p0;
            sum1 += p1;
            packed[h][j] = pack<BF>(p0, p1);
        }
        st.sum[h] += sum0 + sum1;
    }
    if constexpr (WIDE) {
        values_any<BF, HALVES, GROUPS>(st.o, packed, v, d_v, lane);
    } else {
#define CALL(n) values<BF, HALVES, GROUPS, n>(st.o, packed, v, lane)
        EACH_WIDTH(d_v, CALL)
#undef CALL
    }
}

#endif
