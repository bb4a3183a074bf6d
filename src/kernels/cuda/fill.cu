/* Fills device memory with benchmark data of kernels/timing/values.h. */
#include "common/half.h"
#include "kernels/cuda/fill.h"
#include "kernels/cuda/mma.cuh"
#include "kernels/timing/values.h"

enum { THREADS = 256 };

__device__ static uint32_t pack2(int dtype, float x, float y)
{
    return dtype == KVD_BF16 ? pack<true>(x, y) : pack<false>(x, y);
}

/* Returns pseudo-random values for 8 dimensions of a token, beginning with dimension `first`.
 * Values are 0 at dimensions >= `width`, and everywhere if `there` is false. */
__device__ static uint4 eight(int dtype, uint64_t key, int tensor, int sharp, bool there,
                              uint32_t token, int first, int width)
{
    float x[8];
    for (int i = 0; i < 8; i++)
        x[i] = there && first + i < width
                   ? kvd_value(key, tensor, sharp, token, static_cast<uint32_t>(first + i))
                   : 0.0f;
    return make_uint4(pack2(dtype, x[0], x[1]), pack2(dtype, x[2], x[3]), pack2(dtype, x[4], x[5]),
                      pack2(dtype, x[6], x[7]));
}

__device__ static size_t thread_index()
{
    return static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
}

__device__ static size_t blocked(size_t t, int i, int d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

__global__ static void fill_q_kernel(const kvd_fill_args a, uint16_t *q)
{
    const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z),
              d = a.map.d_qk[h / a.map.group];
    const size_t i = thread_index(), t = i / (d / 8);
    const int first = static_cast<int>(i % (d / 8)) * 8, n = a.q_len[b];
    if (t >= static_cast<size_t>((n + 7) / 8 * 8))
        return;
    const uint64_t key = kvd_value_key(a.seed, KVD_OPERAND_Q, b, h);
    const uint32_t position = static_cast<uint32_t>(a.kv_len[b] - n) + static_cast<uint32_t>(t);
    uint16_t *const to =
        q + static_cast<size_t>(a.map.q_offset[h]) * a.n_q8 + blocked(a.q_start[b] + t, first, d);
    *reinterpret_cast<uint4 *>(to) =
        eight(a.dtype, key, KVD_OPERAND_Q, a.sharp, t < static_cast<size_t>(n), position, first, d);
}

__global__ static void fill_q_rows_kernel(const kvd_fill_args a, uint16_t *q)
{
    const int h = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z),
              d = a.map.d_qk[h / a.map.group];
    const int first = static_cast<int>(threadIdx.x) * 8;
    if (first >= d)
        return;
    const uint64_t key = kvd_value_key(a.seed, KVD_OPERAND_Q, b, h);
    uint16_t *const to = q + static_cast<size_t>(b) * a.map.q_pitch + a.map.q_offset[h] + first;
    *reinterpret_cast<uint4 *>(to) = eight(a.dtype, key, KVD_OPERAND_Q, a.sharp, true,
                                           static_cast<uint32_t>(a.kv_len[b] - 1), first, d);
}

/* Fills cache pages with generated K and V. blockIdx.y is g for K of KV head g, and n_kv_heads + g
 * for its V. */
__global__ static void fill_kv_kernel(const kvd_fill_args a, uint16_t *pool)
{
    const int n_kv = a.map.n_kv_heads, b = static_cast<int>(blockIdx.z);
    const bool is_v = blockIdx.y >= static_cast<unsigned>(n_kv);
    const int g = static_cast<int>(blockIdx.y) - (is_v ? n_kv : 0),
              tensor = is_v ? KVD_OPERAND_V : KVD_OPERAND_K;
    const int d = is_v ? a.map.d_v[g] : a.map.d_qk[g];
    const size_t i = thread_index(), t = i / (d / 8);
    const int first = static_cast<int>(i % (d / 8)) * 8, n = a.kv_len[b];
    if (t >= static_cast<size_t>((n + 7) / 8 * 8))
        return;
    const uint64_t key = kvd_value_key(a.seed, tensor, b, g);
    const size_t page = a.page_table[static_cast<size_t>(b) * a.max_pages + t / KVD_PAGE_TOKENS];
    uint16_t *const to = pool + page * a.map.page_elements + a.map.kv_offset[g] +
                         (is_v ? KVD_PAGE_TOKENS * a.map.d_qk[g] : 0) +
                         blocked(t % KVD_PAGE_TOKENS, first, d);
    *reinterpret_cast<uint4 *>(to) =
        eight(a.dtype, key, tensor, a.sharp, t < static_cast<size_t>(n), static_cast<uint32_t>(t),
              first, d);
}

static bool bad(const kvd_fill_args *a)
{
    return a->batch < 1 || a->batch > 65535 || a->longest < 1 ||
           (a->dtype != KVD_BF16 && a->dtype != KVD_F16);
}

static unsigned blocks(int32_t longest)
{
    const size_t n = (static_cast<size_t>(longest) + 7) / 8 * 8 * (KVD_WIDTH_MAX / 8);
    return static_cast<unsigned>((n + THREADS - 1) / THREADS);
}

extern "C" cudaError_t kvd_fill_q(const kvd_fill_args *a, void *q, cudaStream_t stream)
{
    if (bad(a) || !a->q_start)
        return cudaErrorInvalidValue;
    const dim3 grid(blocks(a->longest), a->map.n_heads, a->batch);
    fill_q_kernel<<<grid, THREADS, 0, stream>>>(*a, static_cast<uint16_t *>(q));
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_fill_q_rows(const kvd_fill_args *a, void *q, cudaStream_t stream)
{
    if (bad(a))
        return cudaErrorInvalidValue;
    const dim3 grid(1, a->map.n_heads, a->batch);
    fill_q_rows_kernel<<<grid, KVD_WIDTH_MAX / 8, 0, stream>>>(*a, static_cast<uint16_t *>(q));
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_fill_kv(const kvd_fill_args *a, void *pool, cudaStream_t stream)
{
    if (bad(a))
        return cudaErrorInvalidValue;
    const dim3 grid(blocks(a->longest), 2 * a->map.n_kv_heads, a->batch);
    fill_kv_kernel<<<grid, THREADS, 0, stream>>>(*a, static_cast<uint16_t *>(pool));
    return cudaGetLastError();
}

__global__ static void fill_strided_kernel(const kvd_fill_strided_args a, uint16_t *to)
{
    const int j = static_cast<int>(blockIdx.y), b = static_cast<int>(blockIdx.z);
    const size_t i = thread_index(), t = i / (a.padded / 8);
    const int first = static_cast<int>(i % (a.padded / 8)) * 8;
    if (t >= static_cast<size_t>(a.longest))
        return;
    const uint64_t key = kvd_value_key(a.seed, a.tensor, b, a.head[j]);
    const uint32_t position =
        static_cast<uint32_t>(a.kv_len[b] - a.len[b]) + static_cast<uint32_t>(t);
    uint16_t *const at = to + b * a.stride_batch + j * a.stride_head +
                         static_cast<int64_t>(t) * a.stride_token + first;
    *reinterpret_cast<uint4 *>(at) =
        eight(a.dtype, key, a.tensor, a.sharp, t < static_cast<size_t>(a.len[b]), position, first,
              a.width[j]);
}

extern "C" cudaError_t kvd_fill_strided(const kvd_fill_strided_args *a, void *to,
                                        cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->n_heads < 1 || a->n_heads > KVD_HEADS_MAX ||
        a->padded < 8 || a->padded % 8 || a->padded > 256 || a->longest < 1 ||
        (a->dtype != KVD_BF16 && a->dtype != KVD_F16) ||
        (a->stride_batch | a->stride_head | a->stride_token) % 8)
        return cudaErrorInvalidValue;
    const size_t n = static_cast<size_t>(a->longest) * (a->padded / 8);
    const dim3 grid(static_cast<unsigned>((n + THREADS - 1) / THREADS), a->n_heads, a->batch);
    fill_strided_kernel<<<grid, THREADS, 0, stream>>>(*a, static_cast<uint16_t *>(to));
    return cudaGetLastError();
}

/* Fills pages with generated latent vectors. blockIdx.y is 2 g for K, 2 g + 1 for V of group g. */
__global__ static void fill_latents_kernel(const kvd_fill_args a, const kvd_palu_shape shape,
                                           uint16_t *pool)
{
    const int group = static_cast<int>(blockIdx.y) / 2, b = static_cast<int>(blockIdx.z);
    const bool is_v = blockIdx.y % 2;
    const int tensor = is_v ? KVD_OPERAND_V : KVD_OPERAND_K,
              rank = is_v ? shape.rank_v : shape.rank_k;
    const size_t i = thread_index(), t = i / (rank / 8), in = t % KVD_PALU_PAGE_TOKENS;
    const int first = static_cast<int>(i % (rank / 8)) * 8, n = a.kv_len[b];
    const int groups = shape.n_kv_heads / KVD_PALU_GROUP;
    if (t >= static_cast<size_t>((n + KVD_PALU_PAGE_TOKENS - 1) / KVD_PALU_PAGE_TOKENS *
                                 KVD_PALU_PAGE_TOKENS))
        return;
    const size_t page =
        a.page_table[static_cast<size_t>(b) * a.max_pages + t / KVD_PALU_PAGE_TOKENS];
    const size_t per_group =
        static_cast<size_t>(KVD_PALU_PAGE_TOKENS) * (shape.rank_k + shape.rank_v);
    uint16_t *const to = pool + (page * groups + group) * per_group +
                         (is_v ? KVD_PALU_PAGE_TOKENS * shape.rank_k : 0) + first / 8 * 512 +
                         in / 8 * 64 + in % 8 * 8;
    *reinterpret_cast<uint4 *>(to) =
        eight(a.dtype, kvd_value_key(a.seed, tensor, b, group), tensor, a.sharp,
              t < static_cast<size_t>(n), static_cast<uint32_t>(t), first, rank);
}

extern "C" cudaError_t kvd_fill_latents(const kvd_fill_args *a, const kvd_palu_shape *shape,
                                        void *pool, cudaStream_t stream)
{
    if (bad(a) || kvd_palu_shape_check(shape))
        return cudaErrorInvalidValue;
    const size_t tokens = (static_cast<size_t>(a->longest) + 63) / 64 * 64;
    const size_t n = tokens * ((shape->rank_k > shape->rank_v ? shape->rank_k : shape->rank_v) / 8);
    const dim3 grid(static_cast<unsigned>((n + THREADS - 1) / THREADS),
                    shape->n_kv_heads / KVD_PALU_GROUP * 2, a->batch);
    fill_latents_kernel<<<grid, THREADS, 0, stream>>>(*a, *shape, static_cast<uint16_t *>(pool));
    return cudaGetLastError();
}

__global__ static void read_all_kernel(const uint4 *from, size_t n, uint32_t *sink)
{
    uint32_t sum = 0;
    for (size_t i = thread_index(); i < n; i += static_cast<size_t>(gridDim.x) * THREADS) {
        const uint4 x = from[i];
        sum += x.x ^ x.y ^ x.z ^ x.w;
    }
    /* This condition is never true. It makes the compiler believe that the loads are needed. */
    if (sum == 0x9e3779b9u)
        *sink = sum;
}

extern "C" cudaError_t kvd_l2_flush(void *buffer, size_t bytes, cudaStream_t stream)
{
    if (!buffer || bytes < sizeof(uint4))
        return cudaErrorInvalidValue;
    read_all_kernel<<<1024, THREADS, 0, stream>>>(
        static_cast<const uint4 *>(buffer), bytes / sizeof(uint4), static_cast<uint32_t *>(buffer));
    return cudaGetLastError();
}
