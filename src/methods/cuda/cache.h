/*
 * The cache of methods/cache.h on the GPU, as an attention hook of model/pass/cuda/attention.h.
 * Counters are equal, and numbers are equal except for rounding.
 *
 * For plans that run in blocks, projected keys K' = K A_k and values V' = V A_v are rounded to the
 * cache's data type. Scores are (q A_q) . K', and the output is (P V') B_v. A layer is computed in
 * one of three ways:
 *
 * kernels   bf16 kernels of kernels/cuda on pages, in a bf16 pass with a bf16 cache, d_head a
 *           multiple of 16 up to 256, no cap on scores, and no sliding window shorter than the
 *           sequence. Dimensions are padded to multiples of 16; counters exclude padding.
 * products  float32 on cuBLAS in all other cases. If the plan has a prompt, its tokens attend to
 *           unchanged K and V.
 * rows      on the CPU by kvd_cache, for plans that run token by token (kvd_plan_stepwise).
 */
#ifndef KVD_METHODS_CUDA_CACHE_H
#define KVD_METHODS_CUDA_CACHE_H

#include "methods/cache.h"
#include "model/pass/cuda/attention.h"

/*
 * Device memory shared by the caches of one forward pass on one GPU. Only one of the caches may run
 * at a time.
 */
typedef struct kvd_gpu_caches kvd_gpu_caches;
kvd_gpu_caches *kvd_gpu_caches_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                                   size_t max_tokens, size_t max_len, kvd_err *err);
/* Frees `*c`. All caches that use `*c` must have been freed before. */
void kvd_gpu_caches_free(kvd_gpu_caches *c);

typedef struct kvd_gpu_cache kvd_gpu_cache;

/*
 * Creates the cache of a plan, which must be open and is borrowed. Copies the plan's matrices to
 * the device.
 */
kvd_gpu_cache *kvd_gpu_cache_new(kvd_gpu_caches *with, const kvd_plan *plan, kvd_err *err);
void kvd_gpu_cache_free(kvd_gpu_cache *c);
kvd_gpu_attention *kvd_gpu_cache_hook(kvd_gpu_cache *c);
/*
 * Sets the prompts of the next batch, as field kvd_cache.prompts does. Must be called before each
 * batch if kvd_plan_first_pass is true for the plan. `prompts` is borrowed.
 */
void kvd_gpu_cache_set_prompts(kvd_gpu_cache *c, const kvd_prompts *prompts);
/* Adds the counters of all batches since the last call of this function to `*sum`. */
void kvd_gpu_cache_take_account(kvd_gpu_cache *c, kvd_cache_account *sum);
/*
 * Returns the name of the attention code: "sm_90a kernel", "mma.sync kernel", "cuBLAS products,
 * f32", or "CPU, f32, row by row". If layers differ, the name counts them, such as "sm_90a kernel
 * (3 layers), cuBLAS products, f32 (1)".
 */
const char *kvd_gpu_cache_engine(const kvd_gpu_cache *c);

#endif
