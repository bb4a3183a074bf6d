/*
 * methods/cache.h on the device: the same cache as a door of model/cuda/attention.h, with the same account and the same
 * numbers but for rounding. Plans in blocks: K' = K A_k and V' = V A_v of a sequence are rounded to the cache's type, and attention reads
 * them: scores (q A_q) . K', output (P V') B_v. One of these computes a layer:
 *
 *   kernels   In a bf16 pass with a bf16 cache, where the kernels of kernels/cuda take the heads (d_head a multiple of 16 up to 128) and
 *             no window cuts: kvd_append projects, cuts and stores into pages, and the prefill kernels attend. What is scored
 *             is what is timed. Widths that are no multiples of 16 are filled up with zero columns, which change no number. Matrices,
 *             Q', K', V' and P V' are bf16, sums float32.
 *   products  Otherwise: everything behind the door in float32 by cuBLAS, matrices filled up to d_head, so that one call serves all
 *             heads; K' and V' are rounded to the type of the cache. Latents (kvd_dims.rebuild) likewise: after rounding, keys and values
 *             of full width are made from them, keys are turned, and attention reads those. Behind a prompt, its rows come from
 *             attention to K and V as they are.
 *
 *   rows      Plans that go row by row (kvd_plan_stepwise): Q, K and V are copied to the host, where kvd_cache does what the plan says.
 *
 * The account counts true widths.
 */
#ifndef KVD_METHODS_CUDA_CACHE_H
#define KVD_METHODS_CUDA_CACHE_H

#include "methods/cache.h"
#include "model/cuda/attention.h"

/* Device memory that the caches of one pass on one GPU share: one of them runs at a time. Allocated when the first needs it. */
typedef struct kvd_gpu_caches kvd_gpu_caches;
kvd_gpu_caches *kvd_gpu_caches_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                                   size_t max_tokens, size_t max_len, kvd_err *err);
void kvd_gpu_caches_free(kvd_gpu_caches *c); /* after its caches */

typedef struct kvd_gpu_cache kvd_gpu_cache;

/* plan: open, and borrowed; its matrices are copied to the device. */
kvd_gpu_cache *kvd_gpu_cache_new(kvd_gpu_caches *with, const kvd_plan *plan, kvd_err *err);
void kvd_gpu_cache_free(kvd_gpu_cache *c);
kvd_gpu_attention *kvd_gpu_cache_door(kvd_gpu_cache *c);
/* As kvd_cache's prompts: before a batch is run with a plan with kvd_plan_first_pass. Borrowed. */
void kvd_gpu_cache_set_prompts(kvd_gpu_cache *c, const kvd_prompts *prompts);
/* Adds what was done since the last call. */
void kvd_gpu_cache_take_account(kvd_gpu_cache *c, kvd_cache_account *sum);
/* "sm_90a kernel", "mma.sync kernel", "cuBLAS products, f32", with both "sm_90a kernel (3 layers), cuBLAS products, f32 (1)";
 * "CPU, f32, row by row". */
const char *kvd_gpu_cache_engine(const kvd_gpu_cache *c);

#endif
