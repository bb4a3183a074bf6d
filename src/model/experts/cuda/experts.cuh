/* Device functions that several kernels of routed experts use. */
#ifndef KVD_MODEL_EXPERTS_CUDA_EXPERTS_CUH
#define KVD_MODEL_EXPERTS_CUDA_EXPERTS_CUH

#include "common/cuda/launch.cuh"
#include "model/pass/cuda/rows.cuh"

namespace
{

/* Waits for the preceding kernel, then lets the next kernel start early. */
__device__ __forceinline__ void follow(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Returns the sum of x over the threads of the block that have lower numbers than this thread. part
 * [32] is in shared memory. */
__device__ __forceinline__ uint32_t sum_before(uint32_t x, uint32_t *part)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = x;
#pragma unroll
    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
        sum += lane >= step ? other : 0;
    }
    if (lane == 31)
        part[warp] = sum;
    __syncthreads();
    return sum - x + warp_sum(lane < warp ? part[lane] : 0u);
}

__device__ __forceinline__ kvd_gpu_expert_group load_group(const kvd_gpu_expert_group *at)
{
    const uint32_t *const word = reinterpret_cast<const uint32_t *>(at);
    return {__ldcg(word), __ldcg(word + 1), __ldcg(word + 2)};
}

/* Returns an expert's hidden unit, computed with relative error 2^-16, then rounded to bf16. */
__device__ __forceinline__ uint16_t hidden_unit(const kvd_gpu_few_experts &a, const float *bias,
                                                uint32_t unit, float gate, float up)
{
    float g = rounded<bf16>(gate) + (bias ? bias[unit] : 0.0f),
          u = rounded<bf16>(up) + (bias ? bias[a.ffn + unit] : 0.0f), bend = 1;
    if (a.limit > 0) {
        g = g > a.limit ? a.limit : g;
        u = u > a.limit ? a.limit : u;
        u = 1.0f + (u < -a.limit ? -a.limit : u);
        bend = a.alpha;
    }
    return bf16::narrow(__fdividef(g, 1.0f + __expf(-bend * g)) * u);
}

} // namespace

#endif
