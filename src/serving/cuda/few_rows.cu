/*
 * y = x W^T of up to 8 rows x. Bound by memory: out * in * 2 bytes of W; x and y are small and stay in L2.
 *
 * A CTA per SM takes tiles of 16 rows of W in turn, and its 8 warps share the columns: slabs of 64, warp w those from w on in steps of 8, so
 * that together they read runs of 1 KB. Every warp has a ring of STAGES slabs in shared memory, which it alone fills (cp.async, 16 bytes a
 * lane, pieces permuted so that the 8 rows that one ldmatrix reads lie in different banks) and which goes on over the ends of tiles: nothing
 * of the stream ever waits for a sum. W is the A operand of mma.sync m16n8k16, x the B operand: 8 rows cost what one does.
 * The warps' sums of a tile meet in shared memory, in a fixed order; two buffers and one barrier a tile.
 *
 * With a norm in front, rows of residual * gain are rounded to bf16 and the scale of a row is applied to its sums.
 */
#include "serving/cuda/few_rows.h"

#include "kernels/cuda/mma.cuh"
#include "model/cuda/rows.cuh"

namespace
{

enum {
    WARPS = 8,
    THREADS = 32 * WARPS,
    TILE = 16,
    SLAB = 64,
    SLAB_BYTES = TILE * SLAB * 2,
    STAGES = 5,
    SUM_PITCH = 20, /* of the 16 sums of a row of x: 8 rows of a fragment fall into different banks */
    SUMS = KVD_FEW_ROWS * SUM_PITCH
};

struct params {
    kvd_few_rows a;
    int n, in, out, slabs, tiles, pitch; /* pitch: bytes of a row of x in shared memory */
};

__device__ __forceinline__ unsigned long long now_ns(void)
{
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* Row of W that stands in row i of a tile; of a gate and its up half a tile each. */
template <int KIND> __device__ __forceinline__ int row_of(const params &p, int tile, int i)
{
    if (KIND == KVD_FEW_SWIGLU)
        return min(tile * (TILE / 2) + i % (TILE / 2), p.out - 1) + (i < TILE / 2 ? 0 : p.out);
    return min(tile * TILE + i, p.out - 1);
}

/* One slab of one tile into a stage. */
template <int KIND>
__device__ __forceinline__ void fetch(const params &p, int tile, int slab, uint32_t stage, int lane)
{
    const int piece = lane % 8, column = slab * SLAB + 8 * piece;
#pragma unroll
    for (int i = lane / 8; i < TILE; i += 4) {
        const uint16_t *from = static_cast<const uint16_t *>(p.a.w) +
                               (size_t)row_of<KIND>(p, tile, i) * (size_t)p.in + (column < p.in ? column : 0);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                         stage + (uint32_t)(i * 2 * SLAB + ((piece ^ i % 8) * 16))),
                     "l"(from), "r"(column < p.in ? 16 : 0)
                     : "memory");
    }
}

/* Where a warp is in its stream of slabs. */
struct place {
    int tile, slab;
    __device__ __forceinline__ void next(const params &p, int warp)
    {
        slab += WARPS;
        if (slab >= p.slabs) {
            slab = warp;
            tile += (int)gridDim.x;
        }
    }
};

/* Rows of x that lie there as bf16. */
__device__ __forceinline__ void copy_rows(const params &p, char *to)
{
    const int pieces = p.slabs * (SLAB / 8);
    for (int k = (int)threadIdx.x; k < p.n * pieces; k += THREADS) {
        const int row = k / pieces, piece = k % pieces;
        const uint4 v = 8 * piece < p.in
                            ? __ldcg(static_cast<const uint4 *>(p.a.x) + (size_t)row * (p.in / 8) + piece)
                            : make_uint4(0, 0, 0, 0);
        *reinterpret_cast<uint4 *>(to + row * p.pitch + 16 * piece) = v;
    }
}

/* Rows of residual * gain, and the scale of each into scale [8]. All threads; ends with a barrier. */
__device__ __forceinline__ void norm_rows(const params &p, char *to, float *scale, float *part)
{
    const int teams = p.n <= 1 ? 1 : p.n <= 2 ? 2 : p.n <= 4 ? 4 : 8, team_size = THREADS / teams;
    const int row = (int)threadIdx.x / team_size, me = (int)threadIdx.x % team_size;
    float sum = 0;
    bool wrong = false;
    if (row < p.n)
        for (int k = 4 * me; k < p.slabs * SLAB; k += 4 * team_size) {
            float4 v = make_float4(0, 0, 0, 0), g = v;
            if (k < p.in) {
                v = __ldcg(reinterpret_cast<const float4 *>(p.a.residual + (size_t)row * p.in + k));
                g = __ldg(reinterpret_cast<const float4 *>(p.a.gain + k));
            }
            const float x[4] = {v.x, v.y, v.z, v.w};
            wrong |= any_not_finite(x);
            sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
            *reinterpret_cast<uint2 *>(to + row * p.pitch + 2 * k) =
                make_uint2(::pack<true>(v.x * g.x, v.y * g.y), ::pack<true>(v.z * g.z, v.w * g.w));
        }
    if (wrong && blockIdx.x == 0)
        report_bad(p.a.bad, p.a.stage, (size_t)row);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < teams) {
        double s = 0;
        for (int w = 0; w < WARPS / teams; w++)
            s += (double)part[(int)threadIdx.x * (WARPS / teams) + w];
        scale[threadIdx.x] = (float)(1.0 / sqrt(s / (double)p.in + p.a.eps));
    }
    __syncthreads();
}

__device__ __forceinline__ float total(const float *sums, int n, int row)
{
    float s = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++)
        s += sums[w * SUMS + n * SUM_PITCH + row];
    return s;
}

template <int KIND>
__device__ __forceinline__ void put(const params &p, int tile, const float *sums, const float *scale)
{
    constexpr int ROWS = KIND == KVD_FEW_SWIGLU ? TILE / 2 : TILE;
    const int n = (int)threadIdx.x / ROWS, i = (int)threadIdx.x % ROWS, row = tile * ROWS + i;
    if (n >= p.n || row >= p.out)
        return;
    const float by = p.a.x ? 1.0f : scale[n], s = total(sums, n, i) * by;
    const size_t at = (size_t)n * (size_t)p.out + (size_t)row;
    if (KIND == KVD_FEW_ADD) {
        float *y = static_cast<float *>(p.a.y) + at;
        *y = __ldcg(y) + s;
    } else if (KIND == KVD_FEW_LOGITS) {
        static_cast<float *>(p.a.y)[at] = s;
    } else if (KIND == KVD_FEW_SWIGLU) {
        /* Rounded where the product of its own rounds. */
        const float gate = rounded<bf16>(s), up = rounded<bf16>(total(sums, n, i + TILE / 2) * by);
        static_cast<uint16_t *>(p.a.y)[at] = bf16::narrow(gate / (1.0f + expf(-gate)) * up);
    } else {
        static_cast<uint16_t *>(p.a.y)[at] = bf16::narrow(s);
    }
}

/* Shared memory: rings | x | sums, two buffers | scale, part. */
template <int KIND>
__global__ void __launch_bounds__(THREADS) few_rows_kernel(const __grid_constant__ params p)
{
    extern __shared__ __align__(128) char smem[];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    char *const x = smem + WARPS * STAGES * SLAB_BYTES;
    float *const sums = reinterpret_cast<float *>(x + p.n * p.pitch);
    float *const scale = sums + 2 * WARPS * SUMS, *const part = scale + KVD_FEW_ROWS;
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(smem) + (uint32_t)(warp * STAGES * SLAB_BYTES);

    place ahead = {(int)blockIdx.x, warp};
    if (warp >= p.slabs)
        ahead.tile = p.tiles;
    for (int s = 0; s < STAGES - 1; s++) {
        if (ahead.tile < p.tiles) {
            fetch<KIND>(p, ahead.tile, ahead.slab, ring + (uint32_t)(s * SLAB_BYTES), lane);
            ahead.next(p, warp);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
#if __CUDA_ARCH__ >= 900
    /* Only W was touched above this line. */
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    if (p.a.began && blockIdx.x == 0 && threadIdx.x == 0)
        *p.a.began = now_ns();
    if (p.a.x) {
        copy_rows(p, x);
        __syncthreads();
    } else {
        norm_rows(p, x, scale, part);
    }

    /* Addresses of this lane's rows in ldmatrix. */
    const int a_row = lane % 16, a_piece = lane / 16;
    const uint32_t a_at = ring + (uint32_t)(a_row * 2 * SLAB);
    const uint32_t x_at =
        (uint32_t)__cvta_generic_to_shared(x) + (uint32_t)(min(lane % 8, p.n - 1) * p.pitch + lane / 8 * 16);
    int stage = 0, buffer = 0;
    for (int tile = (int)blockIdx.x; tile < p.tiles; tile += (int)gridDim.x) {
        float acc[4] = {0, 0, 0, 0};
        for (int slab = warp; slab < p.slabs; slab += WARPS) {
            asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
            __syncwarp();
            /* The stage that was read last is free. */
            if (ahead.tile < p.tiles) {
                const int to = stage == 0 ? STAGES - 1 : stage - 1;
                fetch<KIND>(p, ahead.tile, ahead.slab, ring + (uint32_t)(to * SLAB_BYTES), lane);
                ahead.next(p, warp);
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
            uint32_t b[2][4];
            ldmatrix(x_at + (uint32_t)(slab * 2 * SLAB), b[0]);
            ldmatrix(x_at + (uint32_t)(slab * 2 * SLAB + SLAB), b[1]);
#pragma unroll
            for (int k = 0; k < SLAB / 16; k++) {
                uint32_t w[4];
                ldmatrix(a_at + (uint32_t)(stage * SLAB_BYTES + (((2 * k + a_piece) ^ a_row % 8) * 16)), w);
                mma<true>(acc, w, b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
            }
            stage = stage == STAGES - 1 ? 0 : stage + 1;
        }
        float *const mine = sums + (buffer * WARPS + warp) * SUMS;
#pragma unroll
        for (int e = 0; e < 4; e++)
            mine[(2 * (lane % 4) + e % 2) * SUM_PITCH + lane / 4 + e / 2 * 8] = acc[e];
        __syncthreads();
        put<KIND>(p, tile, sums + buffer * WARPS * SUMS, scale);
        buffer ^= 1;
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

size_t shared_bytes(size_t n, size_t pitch)
{
    return (size_t)(WARPS * STAGES * SLAB_BYTES) + n * pitch +
           sizeof(float) * (size_t)(2 * WARPS * SUMS + KVD_FEW_ROWS + WARPS);
}

size_t pitch_of(size_t in)
{
    return ceil_div(in, SLAB) * SLAB * 2 + 16;
}

template <int KIND>
cudaError_t launch(const params &p, int n_ctas, size_t bytes, int major, cudaStream_t stream)
{
    const cudaError_t e =
        cudaFuncSetAttribute(few_rows_kernel<KIND>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        return e;
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)n_ctas);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = major >= 9 ? 1 : 0;
    return cudaLaunchKernelEx(&config, few_rows_kernel<KIND>, p);
}

} // namespace

extern "C" int kvd_few_rows_take(size_t n, size_t in)
{
    int device = 0, most = 0;
    return n >= 1 && n <= KVD_FEW_ROWS && in >= 8 && in % 8 == 0 && in < 1 << 20 &&
           cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
           shared_bytes(n, pitch_of(in)) <= (size_t)most;
}

extern "C" cudaError_t kvd_few_rows_run(const kvd_few_rows *a, cudaStream_t stream)
{
    int device = 0, sms = 0, major = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e != cudaSuccess)
        return e;
    params p;
    p.a = *a;
    p.n = (int)a->n;
    p.in = (int)a->in;
    p.out = (int)a->out;
    p.slabs = (int)ceil_div(a->in, SLAB);
    p.tiles = (int)ceil_div(a->out, a->kind == KVD_FEW_SWIGLU ? TILE / 2 : TILE);
    p.pitch = (int)pitch_of(a->in);
    const size_t bytes = shared_bytes(a->n, (size_t)p.pitch);
    const int n_ctas = p.tiles < sms ? p.tiles : sms;
    switch (a->kind) {
    case KVD_FEW_STORE:
        return launch<KVD_FEW_STORE>(p, n_ctas, bytes, major, stream);
    case KVD_FEW_ADD:
        return launch<KVD_FEW_ADD>(p, n_ctas, bytes, major, stream);
    case KVD_FEW_SWIGLU:
        return launch<KVD_FEW_SWIGLU>(p, n_ctas, bytes, major, stream);
    default:
        return launch<KVD_FEW_LOGITS>(p, n_ctas, bytes, major, stream);
    }
}
