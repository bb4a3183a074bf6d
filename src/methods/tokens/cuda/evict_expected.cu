/* Scores prompt tokens by the attention that they are expected to get from future queries (method
 * expectedattention), or by their keys alone.
 *
 * Future queries are assumed to be normally distributed. Logarithms avoid underflow. */
#include "methods/tokens/cuda/evict_rank.cuh"

namespace
{

enum { SPLITS = 8, TOGETHER = 4, THREADS = 256, WEIGH = 512, BLOCKS = KVD_WIDTH_MAX / 32 };

/* Tile sizes for kernels whose 16 x 16 threads compute blocks of 128 columns, 8 columns per thread.
 * WIDTH is the largest number of dimensions of K. */
template <int WIDTH> struct tiling {
    enum {
        SIDES = WIDTH / KVD_WIDTH_NARROW, /* blocks of 128 columns in a row */
        ROWS = 64 / SIDES,                /* rows in shared memory at once */
        PITCH = WIDTH + 4,
        SLAB = 16 / SIDES /* rows of a [d][d] matrix in shared memory at once */
    };
};

/* Returns the number of floats that a CTA writes for the mean and covariance of queries: a matrix
 * [d][d] of product sums, a vector [d] of sums, and the vector [d] that was subtracted from each
 * query. */
__host__ __device__ __forceinline__ size_t part_size(int d)
{
    return (size_t)d * (d + 2);
}

__device__ __forceinline__ float *part_of(const kvd_evict_prompts_args &a, int b, int h, int split)
{
    const int d = a.map.d_qk[0];
    return a.expected.work + (((size_t)b * a.map.n_heads + h) * SPLITS + split) * part_size(d);
}

/* Copies queries to shared memory and undoes their RoPE. All threads must call it and then
 * synchronise. */
template <int ROWS, int PITCH>
__device__ void fetch_queries(const kvd_evict_expected &e, const uint16_t *q, int d, int t,
                              int rows, float (&x)[ROWS][PITCH])
{
    for (int i = (int)threadIdx.x; i < ROWS * (d / 8); i += THREADS) {
        const int r = i % ROWS, block = i / ROWS, token = t + r;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (r < rows)
            w = *reinterpret_cast<const uint4 *>(q + token / 8 * 8 * d + block * 64 +
                                                 token % 8 * 8);
        unpack8(w, &x[r][8 * block]);
    }
    if (!e.cosine)
        return;
    __syncthreads();
    const int pairs = e.dims / 2;
    for (int i = (int)threadIdx.x; i < rows * pairs; i += THREADS) {
        const int r = i / pairs, p = i % pairs, first = e.interleaved ? 2 * p : p,
                  second = e.interleaved ? first + 1 : first + pairs;
        const size_t at = (size_t)(t + r) * e.half + p;
        const float c = e.cosine[at] / e.square, s = e.sine[at] / e.square, u = x[r][first],
                    v = x[r][second];
        x[r][first] = u * c + v * s;
        x[r][second] = v * c - u * s;
    }
}

/* Sums q q^T over part `split` of a head's queries, for the second moment [d][d]. Each CTA computes
 * 128 x 128 elements; the first CTA of a part also sums the queries. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS, 2)
    moments_kernel(const __grid_constant__ kvd_evict_prompts_args a, int first_prompt)
{
    constexpr int SIDES = tiling<WIDTH>::SIDES, ROWS = tiling<WIDTH>::ROWS;
    __shared__ __align__(16) float x[ROWS][tiling<WIDTH>::PITCH];
    __shared__ float origin[WIDTH];
    const int split = (int)blockIdx.x % SPLITS, block = (int)blockIdx.x / SPLITS,
              h = (int)blockIdx.y, b = first_prompt + (int)blockIdx.z,
              d = a.map.d_qk[h / a.map.group], n = a.q_len[b], sink = a.rule.sink;
    if (n <= sink)
        return;
    const uint16_t *const q = queries_of(a, h, b, d);
    const int each = ((n - sink + SPLITS - 1) / SPLITS + ROWS - 1) / ROWS * ROWS,
              from = sink + split * each, to = min(n, from + each);
    const int row = block / SIDES * KVD_WIDTH_NARROW + (int)threadIdx.x / 16 * 8,
              column = block % SIDES * KVD_WIDTH_NARROW + (int)threadIdx.x % 16 * 8;
    float sum = 0, product[8][8] = {};
    fetch_queries(a.expected, q, d, sink, 1, x);
    __syncthreads();
    if ((int)threadIdx.x < d)
        origin[threadIdx.x] = x[0][threadIdx.x];
    for (int t = from; t < to; t += ROWS) {
        const int rows = min(ROWS, to - t);
        __syncthreads();
        fetch_queries(a.expected, q, d, t, rows, x);
        __syncthreads();
        for (int i = (int)threadIdx.x; i < rows * d; i += THREADS)
            x[i / d][i % d] -= origin[i % d];
        __syncthreads();
        if ((int)threadIdx.x < d)
            for (int r = 0; r < rows; r++)
                sum += x[r][threadIdx.x];
        if (!a.rule.covariance || row >= d || column >= d)
            continue;
#pragma unroll 2
        for (int r = 0; r < rows; r++) {
            float u[8], v[8];
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                *reinterpret_cast<float4 *>(u + i) =
                    *reinterpret_cast<const float4 *>(&x[r][row + i]);
                *reinterpret_cast<float4 *>(v + i) =
                    *reinterpret_cast<const float4 *>(&x[r][column + i]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int j = 0; j < 8; j++)
                    product[i][j] = fmaf(u[i], v[j], product[i][j]);
        }
    }
    float *const part = part_of(a, (int)blockIdx.z, h, split);
    if (row < d && column < d)
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 8; j++)
                part[(row + i) * d + column + j] = product[i][j];
    if (block == 0 && (int)threadIdx.x < d) {
        part[d * d + (int)threadIdx.x] = sum;
        part[d * d + d + (int)threadIdx.x] = origin[threadIdx.x];
    }
}

/* Row i of R, the RoPE rotation averaged over future positions. (R x)[i] =
 * own * x[i] + other * x[partner], because RoPE mixes dimensions i and `partner`. */
struct turn {
    int partner;
    float own, other;
};

__device__ __forceinline__ turn turn_of(const kvd_evict_expected &e, int n, int i)
{
    const int pairs = e.dims / 2;
    if (!e.cosine || i >= e.dims)
        return {i, 1, 0};
    const int p = e.interleaved ? i / 2 : i % pairs;
    const bool second = e.interleaved ? i % 2 : i >= pairs;
    const float *const mean = e.future + ((size_t)n * e.half + p) * 2;
    const int other = e.interleaved ? i ^ 1 : second ? i - pairs : i + pairs;
    return {other, mean[0], second ? mean[1] : -mean[1]};
}

__global__ void __launch_bounds__(THREADS)
    combine_kernel(const __grid_constant__ kvd_evict_prompts_args a, int first_prompt)
{
    __shared__ float off[KVD_WIDTH_MAX], mean[KVD_WIDTH_MAX];
    const int h = (int)blockIdx.x, b = first_prompt + (int)blockIdx.y,
              d = a.map.d_qk[h / a.map.group], n = a.q_len[b];
    if (n <= a.rule.sink)
        return;
    const float rows = (float)(n - a.rule.sink);
    float *const sum = part_of(a, (int)blockIdx.y, h, 0), *const to = sum + part_size(d);
    for (int i = (int)threadIdx.x; i < d * d + d; i += THREADS) {
        float s = 0;
        for (int split = 0; split < SPLITS; split++)
            s += sum[(size_t)split * part_size(d) + i];
        sum[i] = s / rows;
        if (i >= d * d) {
            off[i - d * d] = s / rows;
            mean[i - d * d] = s / rows + sum[i + d];
        }
    }
    __syncthreads();
    /* The covariance is the mean of the products minus the product of the means. */
    for (int i = (int)threadIdx.x; i < d * d; i += THREADS)
        sum[i] -= off[i / d] * off[i % d];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < d * d; i += THREADS) {
        const int r = i / d, c = i % d;
        const turn u = turn_of(a.expected, n, r), v = turn_of(a.expected, n, c);
        const float *const one = sum + r * d, *const two = sum + u.partner * d;
        to[i] = u.own * (v.own * one[c] + v.other * one[v.partner]) +
                u.other * (v.own * two[c] + v.other * two[v.partner]);
    }
    for (int i = (int)threadIdx.x; i < d; i += THREADS) {
        const turn u = turn_of(a.expected, n, i);
        to[d * d + i] = u.own * mean[i] + u.other * mean[u.partner];
    }
}

/* Returns the address of 8 dimensions of token t, from dimension 8 * block on, in K or, if
 * `after` > 0, in V. */
__device__ __forceinline__ const uint16_t *piece_of(const kvd_evict_prompts_args &a, int b, int g,
                                                    int after, int d, int t, int block)
{
    const int32_t page = a.page_table[(size_t)b * a.max_pages + t / KVD_PAGE_TOKENS];
    return static_cast<const uint16_t *>(a.pool) + (size_t)page * a.map.page_elements +
           a.map.kv_offset[g] + after + piece(t, block, d);
}

/* Predicts the attention logits that ROWS keys get from queries after the prompt. */
template <int WIDTH>
__global__ void __launch_bounds__(THREADS)
    logits_kernel(const __grid_constant__ kvd_evict_prompts_args a, int first_prompt)
{
    constexpr int SIDES = tiling<WIDTH>::SIDES, ROWS = tiling<WIDTH>::ROWS, EACH = ROWS / 16,
                  SLAB = tiling<WIDTH>::SLAB;
    __shared__ __align__(16) float k[ROWS][tiling<WIDTH>::PITCH], slab[SLAB][tiling<WIDTH>::PITCH];
    const int h = (int)blockIdx.y, g = h / a.map.group, b = first_prompt + (int)blockIdx.z,
              d = a.map.d_qk[g], n = a.q_len[b], first = (int)blockIdx.x * ROWS;
    if (n <= a.rule.sink || first >= n)
        return;
    const float *const matrix = part_of(a, (int)blockIdx.z, h, 1), *const mean = matrix + d * d;
    const int keys = min(ROWS, n - first), mine = (int)threadIdx.x / 16 * EACH,
              column = (int)threadIdx.x % 16 * 8;
    for (int i = (int)threadIdx.x; i < ROWS * (d / 8); i += THREADS) {
        const int r = i % ROWS, block = i / ROWS;
        uint4 w = make_uint4(0, 0, 0, 0);
        if (r < keys)
            w = *reinterpret_cast<const uint4 *>(piece_of(a, b, g, 0, d, first + r, block));
        unpack8(w, &k[r][8 * block]);
    }
    float y[EACH][SIDES][8] = {};
    for (int c0 = 0; c0 < d && a.rule.covariance; c0 += SLAB) {
        __syncthreads();
        for (int i = (int)threadIdx.x; i < SLAB * d; i += THREADS)
            slab[i / d][i % d] = matrix[c0 * d + i];
        __syncthreads();
#pragma unroll
        for (int side = 0; side < SIDES; side++) {
            const int from = column + side * KVD_WIDTH_NARROW;
            if (from >= d)
                continue;
#pragma unroll 4
            for (int c = 0; c < SLAB; c++) {
                float v[8];
#pragma unroll
                for (int j = 0; j < 8; j += 4)
                    *reinterpret_cast<float4 *>(v + j) =
                        *reinterpret_cast<const float4 *>(&slab[c][from + j]);
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        y[i][side][j] = fmaf(k[mine + i][c0 + c], v[j], y[i][side][j]);
            }
        }
    }
    __syncthreads();
    const float scale = a.map.scale;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        float linear = 0, quadratic = 0;
#pragma unroll
        for (int side = 0; side < SIDES; side++) {
            const int from = column + side * KVD_WIDTH_NARROW;
            for (int j = 0; j < 8 && from < d; j++) {
                const float key = k[mine + i][from + j];
                linear = fmaf(key, mean[from + j], linear);
                quadratic = fmaf(key, y[i][side][j], quadratic);
            }
        }
        for (int step = 1; step < 16; step *= 2) {
            linear += __shfl_xor_sync(0xffffffffu, linear, step);
            quadratic += __shfl_xor_sync(0xffffffffu, quadratic, step);
        }
        if (threadIdx.x % 16 == 0 && mine + i < keys)
            a.mass[(size_t)h * a.n_q8 + (a.q_start[b] + first + mine + i)] =
                linear * scale + quadratic * scale * scale / 2;
    }
}

/* Returns the maximum (if `largest`) or else the sum of x over all threads of the CTA. of_warp is
 * scratch memory. */
__device__ float over_cta(float x, bool largest, float *of_warp)
{
    for (int step = 1; step < 32; step *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, x, step);
        x = largest ? fmaxf(x, other) : x + other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = x;
    __syncthreads();
    x = of_warp[0];
    for (int w = 1; w < WEIGH / 32; w++)
        x = largest ? fmaxf(x, of_warp[w]) : x + of_warp[w];
    return x;
}

/* Returns the sum of x over the four lanes that handle the same token. */
__device__ __forceinline__ float over_lanes(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

/* Returns |v|^2 of token 8 t8 + lane % 8, or 0 if the index of this token is n or more. */
__device__ __forceinline__ float value_square(const kvd_evict_prompts_args &a, int b, int g, int t8,
                                              int n, int lane)
{
    const int d = a.map.d_v[g], t = 8 * t8 + lane % 8;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
        if ((4 * i + lane / 8) * 8 < d && t < n) {
            const uint4 w = *reinterpret_cast<const uint4 *>(
                piece_of(a, b, g, KVD_PAGE_TOKENS * a.map.d_qk[g], d, t, 4 * i + lane / 8));
            float v[8];
            unpack8(w, v);
            for (int c = 0; c < 8; c++)
                sum = fmaf(v[c], v[c], sum);
        }
    return over_lanes(sum);
}

__global__ void __launch_bounds__(WEIGH)
    weigh_kernel(const __grid_constant__ kvd_evict_prompts_args a, int first_prompt)
{
    __shared__ float of_warp[WEIGH / 32], total[KVD_HEADS_MAX];
    const int g = (int)blockIdx.x, b = first_prompt + (int)blockIdx.y, n = a.q_len[b],
              group = a.map.group, sink = a.rule.sink, warp = (int)threadIdx.x / 32,
              lane = (int)threadIdx.x % 32;
    const size_t at = (size_t)a.q_start[b];
    float *const score = a.score + (size_t)g * a.n_q8 + at;
    const float *const z = a.mass + (size_t)(g * group) * a.n_q8 + at;
    for (int j = 0; j < group && n > sink; j++) {
        const float *const x = z + (size_t)j * a.n_q8;
        float top = -INFINITY, sum = 0;
        for (int t = sink + (int)threadIdx.x; t < n; t += WEIGH)
            top = fmaxf(top, x[t]);
        top = over_cta(top, true, of_warp);
        for (int t = sink + (int)threadIdx.x; t < n; t += WEIGH)
            sum += expf(x[t] - top);
        sum = over_cta(sum, false, of_warp);
        if (threadIdx.x == 0)
            total[j] = top + logf(sum * (float)group);
    }
    __syncthreads();
    for (int t8 = warp; 8 * t8 < n; t8 += WEIGH / 32) {
        const int t = 8 * t8 + lane % 8;
        const float square = value_square(a, b, g, t8, n, lane);
        if (lane >= 8 || t >= n)
            continue;
        if (t < sink) {
            score[t] = INFINITY;
            continue;
        }
        float most = -INFINITY, sum = 0;
        for (int j = 0; j < group; j++)
            most = fmaxf(most, z[(size_t)j * a.n_q8 + t] - total[j]);
        for (int j = 0; j < group; j++)
            sum += expf(z[(size_t)j * a.n_q8 + t] - total[j] - most);
        const float expected = most + logf(sum);
        score[t] = (a.rule.epsilon > 0 ? logf(expf(expected) + a.rule.epsilon) : expected) +
                   logf(square) / 2;
    }
}

enum { KEYS_THREADS = 512, KEYS_WARPS = KEYS_THREADS / 32 };

template <int BLOCKS> struct part {
    float x[BLOCKS][8];
};

/* Loads this lane's dimensions of the key of token 8 t8 + lane % 8, or 0 if the index of this token
 * is n or more. */
template <int BLOCKS>
__device__ __forceinline__ part<BLOCKS> load(const kvd_evict_prompts_args &a, const int32_t *page,
                                             int g, int t8, int n, int lane)
{
    const int d = a.map.d_qk[g], in_page = t8 % (KVD_PAGE_TOKENS / 8);
    const uint16_t *const keys = static_cast<const uint16_t *>(a.pool) +
                                 (size_t)page[t8 / (KVD_PAGE_TOKENS / 8)] * a.map.page_elements +
                                 a.map.kv_offset[g] + in_page * 8 * d + lane * 8;
    part<BLOCKS> p;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        uint4 w = make_uint4(0, 0, 0, 0);
        if ((4 * i + lane / 8) * 8 < d && 8 * t8 + lane % 8 < n)
            w = *reinterpret_cast<const uint4 *>(keys + i * 256);
        unpack8(w, p.x[i]);
    }
    return p;
}

template <int BLOCKS>
__device__ __forceinline__ float product(const part<BLOCKS> &x, const part<BLOCKS> &y)
{
    float sum = 0;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            sum = fmaf(x.x[i][e], y.x[i][e], sum);
    return over_lanes(sum);
}

template <int BLOCKS>
__global__ void __launch_bounds__(KEYS_THREADS)
    short_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b],
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    float *const score = a.score + (size_t)g * a.n_q8 + a.q_start[b];
    for (int t8 = warp; 8 * t8 < n; t8 += KEYS_WARPS) {
        const part<BLOCKS> k = load<BLOCKS>(a, page, g, t8, n, lane);
        const float square = product(k, k);
        if (lane < 8 && 8 * t8 + lane < n)
            score[8 * t8 + lane] = -sqrtf(square);
    }
}

template <int BLOCKS>
__global__ void __launch_bounds__(KEYS_THREADS)
    odd_kernel(const __grid_constant__ kvd_evict_prompts_args a)
{
    constexpr int WIDTH = 32 * BLOCKS;
    __shared__ float of_warp[KEYS_WARPS][WIDTH], anchor[WIDTH];
    const int g = (int)blockIdx.x, b = (int)blockIdx.y, n = a.q_len[b],
              warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int32_t *const page = a.page_table + (size_t)b * a.max_pages;
    float *const score = a.score + (size_t)g * a.n_q8 + a.q_start[b];
    part<BLOCKS> sum = {};
    for (int t8 = warp; 8 * t8 < n; t8 += KEYS_WARPS) {
        const part<BLOCKS> k = load<BLOCKS>(a, page, g, t8, n, lane);
        const float over = 1 / fmaxf(sqrtf(product(k, k)), 1e-12f);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int e = 0; e < 8; e++)
                sum.x[i][e] = fmaf(k.x[i][e], over, sum.x[i][e]);
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 8; e++) {
#pragma unroll
            for (int step = 1; step < 8; step *= 2)
                sum.x[i][e] += __shfl_xor_sync(0xffffffffu, sum.x[i][e], step);
            if (lane % 8 == 0)
                of_warp[warp][(4 * i + lane / 8) * 8 + e] = sum.x[i][e];
        }
    __syncthreads();
    if (threadIdx.x < WIDTH) {
        float all = 0;
        for (int w = 0; w < KEYS_WARPS; w++)
            all += of_warp[w][threadIdx.x];
        anchor[threadIdx.x] = all / (float)n;
    }
    __syncthreads();
    part<BLOCKS> mean;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            mean.x[i][e] = anchor[(4 * i + lane / 8) * 8 + e];
    for (int t8 = warp; 8 * t8 < n; t8 += KEYS_WARPS) {
        const part<BLOCKS> k = load<BLOCKS>(a, page, g, t8, n, lane);
        const float near = product(k, mean), over = 1 / fmaxf(sqrtf(product(k, k)), 1e-12f);
        if (lane < 8 && 8 * t8 + lane < n)
            score[8 * t8 + lane] = -near * over;
    }
}

template <int BLOCKS> cudaError_t launch(const kvd_evict_prompts_args &a, cudaStream_t stream)
{
    const dim3 grid(a.map.n_kv_heads, a.batch);
    if (a.rule.ranking == KVD_EVICT_SHORT_KEYS)
        short_kernel<BLOCKS><<<grid, KEYS_THREADS, 0, stream>>>(a);
    else if (a.rule.ranking == KVD_EVICT_ODD_KEYS)
        odd_kernel<BLOCKS><<<grid, KEYS_THREADS, 0, stream>>>(a);
    else
        return cudaErrorInvalidValue;
    return cudaGetLastError();
}

template <int WIDTH>
void score_expected(const kvd_evict_prompts_args &a, int first, unsigned n, cudaStream_t stream)
{
    constexpr int SIDES = tiling<WIDTH>::SIDES, ROWS = tiling<WIDTH>::ROWS;
    const int heads = a.map.n_heads;
    moments_kernel<WIDTH><<<dim3(SPLITS * SIDES * SIDES, heads, n), THREADS, 0, stream>>>(a, first);
    combine_kernel<<<dim3(heads, n), THREADS, 0, stream>>>(a, first);
    logits_kernel<WIDTH>
        <<<dim3((a.longest + ROWS - 1) / ROWS, heads, n), THREADS, 0, stream>>>(a, first);
    weigh_kernel<<<dim3(a.map.n_kv_heads, n), WEIGH, 0, stream>>>(a, first);
}

} // namespace

extern "C" size_t kvd_evict_expected_bytes(int n_heads, int d_head)
{
    return (size_t)TOGETHER * SPLITS * n_heads * part_size(d_head) * sizeof(float);
}

extern "C" cudaError_t kvd_evict_score_expected(const kvd_evict_prompts_args *a,
                                                cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || a->longest < 1 || !a->mass || !a->score ||
        !a->expected.work || a->rule.ranking != KVD_EVICT_EXPECTED ||
        (a->expected.cosine && (!a->expected.sine || !a->expected.future)))
        return cudaErrorInvalidValue;
    for (int g = 1; g < a->map.n_kv_heads; g++)
        if (a->map.d_qk[g] != a->map.d_qk[0])
            return cudaErrorInvalidValue;
    for (int first = 0; first < a->batch; first += TOGETHER) {
        const int rest = a->batch - first;
        const unsigned n = (unsigned)(rest < TOGETHER ? rest : (int)TOGETHER);
        if (kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW)
            score_expected<KVD_WIDTH_MAX>(*a, first, n, stream);
        else
            score_expected<KVD_WIDTH_NARROW>(*a, first, n, stream);
    }
    return cudaGetLastError();
}

extern "C" cudaError_t kvd_evict_score_keys(const kvd_evict_prompts_args *a, cudaStream_t stream)
{
    if (a->batch < 1 || a->batch > 65535 || !a->score)
        return cudaErrorInvalidValue;
    return kvd_attn_widest(&a->map) > KVD_WIDTH_NARROW ? launch<KVD_WIDTH_MAX / 32>(*a, stream)
                                                       : launch<KVD_WIDTH_NARROW / 32>(*a, stream);
}
