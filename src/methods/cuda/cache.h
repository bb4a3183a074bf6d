/*
 * The cache of methods/cache.h on the GPU, as an attention hook of model/pass/cuda/attention.h. It
 * gives the same counters and, except for rounding, the same numbers. For plans that run in blocks,
 * the projected keys K' = K A_k and values V' = V A_v of a sequence are rounded to the cache's data
 * type, and attention reads them: scores are (q A_q) . K', the output is (P V') B_v with P the
 * attention probabilities. Each layer is computed in one of three ways:
 *
 * kernels: in a bf16 pass with a bf16 cache, if the kernels of kernels/cuda support the heads
 * (d_head a multiple of 16 up to 128, scores without cap and sinks) and no attention window hides
 * keys. kvd_append projects and stores into pages, and the prefill kernels attend. Quality is thus
 * measured on the kernels that are timed. Numbers of dimensions that are not multiples of 16 are
 * padded with zero columns, which change no number. Matrices, Q', K', V' and P V' are bf16, sums
 * float32.
 *
 * products: in all other cases. Everything in the hook runs in float32 on cuBLAS, with matrices
 * padded to d_head, so that one call serves all heads; K' and V' are rounded to the data type of
 * the cache. Latents (kvd_dims.rebuild) run here too: after rounding, keys and values of full width
 * are computed from them, RoPE is applied to the keys, and attention reads both. If the plan has a
 * prompt, its tokens attend to unchanged K and V.
 *
 * rows: for plans that run token by token (kvd_plan_stepwise). Q, K and V are copied to the host,
 * where kvd_cache runs the plan.
 *
 * The counters use the numbers of kept dimensions without padding.
 */
#ifndef KVD_METHODS_CUDA_CACHE_H
#define KVD_METHODS_CUDA_CACHE_H

#include "methods/cache.h"
#include "model/pass/cuda/attention.h"

/*
 * Device memory shared by the caches of one forward pass on one GPU. Only one of the caches runs at
 * a time. Each buffer is allocated when the first cache needs it.
 */
typedef struct kvd_gpu_caches kvd_gpu_caches;
kvd_gpu_caches *kvd_gpu_caches_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                                   size_t max_tokens, size_t max_len, kvd_err *err);
/* Must be called after all caches that use *c are freed. */
void kvd_gpu_caches_free(kvd_gpu_caches *c);

typedef struct kvd_gpu_cache kvd_gpu_cache;

/*
 * Returns a new cache for a plan, which must be open and is borrowed. The plan's matrices are
 * copied to the device.
 */
kvd_gpu_cache *kvd_gpu_cache_new(kvd_gpu_caches *with, const kvd_plan *plan, kvd_err *err);
void kvd_gpu_cache_free(kvd_gpu_cache *c);
kvd_gpu_attention *kvd_gpu_cache_hook(kvd_gpu_cache *c);
/*
 * Sets the first-pass prompts of the next batch, as field kvd_cache.prompts does. Must be called
 * before each batch if kvd_plan_first_pass is true for the plan. `prompts` is borrowed.
 */
void kvd_gpu_cache_set_prompts(kvd_gpu_cache *c, const kvd_prompts *prompts);
/* Adds to *sum the counters of all batches since the last call. */
void kvd_gpu_cache_take_account(kvd_gpu_cache *c, kvd_cache_account *sum);
/*
 * Returns the name of the code that computes attention: "sm_90a kernel", "mma.sync kernel" or
 * "cuBLAS products, f32". If layers differ, the name counts them, such as "sm_90a kernel (3
 * layers), cuBLAS products, f32 (1)". For plans that run token by token it is "CPU, f32, row by
 * row".
 */
const char *kvd_gpu_cache_engine(const kvd_gpu_cache *c);

#endif
