/* Products of routed experts with many tokens, by the Hopper instruction wgmma.
 *
 * A tile multiplies up to 128 tokens of an expert by 256 rows of its weight matrix. Tokens and
 * weights pass through a ring of buffers in shared memory, 64 columns at a time. */
#include "kernels/cuda/sm90.cuh"
#include "model/experts/cuda/experts.cuh"

namespace
{

enum {
    THREADS = 256,
    ROWS = 256, /* rows of W in a tile, for gate and up 128 each */
    STEP = 64,  /* columns of a stage */
    STAGES = 4,
    /* Number of stages of the ring in shared memory that are loaded in advance */
    AHEAD = STAGES - 2,
    CORE = 128, /* bytes of a core matrix */
    /* Bytes between groups of 8 columns in shared memory, padded against bank conflicts */
    X_LEAD = KVD_MANY_TOKENS / 8 * CORE + 16,
    W_LEAD = ROWS / 8 * CORE + 16,
    X_BYTES = STEP / 8 * X_LEAD,
    W_BYTES = STEP / 8 * W_LEAD,
    STAGE_BYTES = X_BYTES + W_BYTES,
    SMEM_BYTES = STAGES * STAGE_BYTES
};

/* Starts a copy of 16 bytes to shared memory. If `there` is false, writes 16 zero bytes instead. */
__device__ __forceinline__ void copy16(uint32_t to, const uint16_t *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
}

/* State of one thread's loads of tokens x and weights w. UP: true for the gate and up matrices,
 * false for the down matrix. */
template <bool UP> struct loads {
    const uint16_t *x, *w;
    /* x_row, w_row: index in x or w of the first element of each row that this thread loads; item:
     * number of the output tile that needs these rows */
    uint32_t x_row[4], w_row[8], item;
    int step;

    __device__ __forceinline__ void begin(const kvd_gpu_few_experts &a, uint32_t tiles)
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, tile = item % tiles,
                       in = (uint32_t)(UP ? a.d : a.ffn), out = (uint32_t)(UP ? a.ffn : a.d);
        const kvd_gpu_expert_group g = load_group(a.group + item / tiles);
        const kvd_gpu_expert &expert = a.expert[g.expert];
        w = static_cast<const uint16_t *>(UP ? expert.gate_up : expert.down);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t pair = g.first + min(16 * warp + 4 * i + lane / 8, g.n - 1);
            x_row[i] = (UP ? a.routes.row[pair] : pair) * in;
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t r = 32 * warp + 4 * i + lane / 8;
            w_row[i] =
                in * (UP ? min(tile * (ROWS / 2) + r % (ROWS / 2), out - 1) + r / (ROWS / 2) * out
                         : min(tile * ROWS + r, out - 1));
        }
        step = 0;
    }

    __device__ __forceinline__ loads(const kvd_gpu_few_experts &a, uint32_t tiles, uint32_t items)
        : x(static_cast<const uint16_t *>(UP ? a.x : a.hidden)), w(NULL), x_row{}, w_row{},
          item(blockIdx.x), step(0)
    {
        if (item < items)
            begin(a, tiles);
    }

    /* Starts this thread's loads of the next 64 columns of x and w. */
    __device__ __forceinline__ void start(const kvd_gpu_few_experts &a, uint32_t stage,
                                          uint32_t tiles, uint32_t items, int steps)
    {
        const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, core = lane % 8,
                       column = (uint32_t)step * STEP + 8 * core;
        if (item < items) {
            const bool there = column < (uint32_t)(UP ? a.d : a.ffn);
            const uint32_t at = there ? column : 0;
            const uint32_t x_to = stage + core * X_LEAD + warp * 2 * CORE + lane / 8 * 16,
                           w_to = stage + X_BYTES + core * W_LEAD + warp * 4 * CORE + lane / 8 * 16;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                copy16(x_to + i * CORE / 2, x + x_row[i] + at, there);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                copy16(w_to + i * CORE / 2, w + w_row[i] + at, there);
            if (++step == steps) {
                item += gridDim.x;
                if (item < items)
                    begin(a, tiles);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

template <bool UP>
__device__ __forceinline__ void put(const kvd_gpu_few_experts &a, const float (&acc)[ROWS / 2],
                                    const kvd_gpu_expert_group &g, uint32_t tile)
{
    const uint32_t lane = threadIdx.x % 32, out = (uint32_t)(UP ? a.ffn : a.d),
                   first = tile * (UP ? ROWS / 2 : ROWS) + 2 * (lane % 4);
    const float *const bias = UP ? a.expert[g.expert].bias_gate_up : NULL;
#pragma unroll
    for (uint32_t high = 0; high < 2; high++) {
        /* Token of the tile whose outputs this lane has; warp i has tokens 16 i .. 16 i + 15 */
        const uint32_t token = threadIdx.x / 32 * 16 + lane / 4 + 8 * high;
        if (token >= g.n)
            continue;
        const size_t row = (size_t)(g.first + token) * out;
#pragma unroll
        for (uint32_t j = 0; j < (UP ? ROWS / 16 : ROWS / 8); j++) {
            const uint32_t at = first + 8 * j, i = 4 * j + 2 * high;
            if (at >= out)
                continue;
            if constexpr (UP)
                *reinterpret_cast<uint32_t *>(static_cast<uint16_t *>(a.hidden) + row + at) =
                    (uint32_t)hidden_unit(a, bias, at, acc[i], acc[ROWS / 4 + i]) |
                    (uint32_t)hidden_unit(a, bias, at + 1, acc[i + 1], acc[ROWS / 4 + i + 1]) << 16;
            else
                *reinterpret_cast<float2 *>(a.out + row + at) = make_float2(acc[i], acc[i + 1]);
        }
    }
}

template <bool UP>
__global__ void __launch_bounds__(THREADS, 1)
    many_kernel(const __grid_constant__ kvd_gpu_few_experts a)
{
    extern __shared__ __align__(128) char smem[];
    const uint32_t ring = kvd_smem(smem), group = threadIdx.x / 128,
                   out = (uint32_t)(UP ? a.ffn : a.d), of_tile = UP ? ROWS / 2 : ROWS,
                   tiles = (out + of_tile - 1) / of_tile;
    const int steps = ((int)(UP ? a.d : a.ffn) + STEP - 1) / STEP;
    follow();
    const uint32_t items = __ldcg(a.n_groups) * tiles;
    loads<UP> next(a, tiles, items);
    for (uint32_t s = 0; s < AHEAD; s++)
        next.start(a, ring + s * STAGE_BYTES, tiles, items, steps);
    uint32_t stage = 0;
    for (uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
        const kvd_gpu_expert_group g = load_group(a.group + item / tiles);
        float acc[ROWS / 2] = {};
        for (int step = 0; step < steps; step++) {
            asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
            fence_proxy_async();
            /* Waits until all warps have read the stage of the ring that is overwritten below. */
            __syncthreads();
            const uint32_t at = ring + stage * STAGE_BYTES;
            const uint64_t x = wgmma_desc(at + group * (KVD_MANY_TOKENS / 16 * CORE), X_LEAD, CORE),
                           w = wgmma_desc(at + X_BYTES, W_LEAD, CORE);
            hold(acc);
            wgmma_begin();
#pragma unroll
            for (int k = 0; k < STEP / 16; k++)
                wgmma_ss<true>(acc, x + (uint64_t)(k * 2 * X_LEAD / 16),
                               w + (uint64_t)(k * 2 * W_LEAD / 16), step + k);
            wgmma_commit();
            next.start(a, ring + (stage + AHEAD) % STAGES * STAGE_BYTES, tiles, items, steps);
            wgmma_wait<1>();
            stage = (stage + 1) % STAGES;
        }
        wgmma_wait<0>();
        hold(acc);
        put<UP>(a, acc, g, item % tiles);
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

template <bool UP>
cudaError_t launch(const kvd_gpu_few_experts *a, size_t most_groups, cudaStream_t stream)
{
    const size_t tiles = UP ? ceil_div(a->ffn, ROWS / 2) : ceil_div(a->d, ROWS);
    return kvd_launch_early(a->overlaps, many_kernel<UP>,
                            dim3((unsigned)smaller(most_groups * tiles, (size_t)a->sms)), THREADS,
                            SMEM_BYTES, stream, *a);
}

} // namespace

extern "C" cudaError_t kvd_gpu_many_products(const kvd_gpu_few_experts *a, size_t most_groups,
                                             cudaStream_t stream)
{
    const cudaError_t e = launch<true>(a, most_groups, stream);
    return e == cudaSuccess ? launch<false>(a, most_groups, stream) : e;
}
