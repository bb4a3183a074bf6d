/* KV cache on the GPU, called as an attention hook. Results equal those of the cache on the CPU
 * (methods/cache.h), except for rounding. Prompt tokens attend to uncompressed K and V. */
#ifndef KVD_METHODS_CUDA_CACHE_H
#define KVD_METHODS_CUDA_CACHE_H

#include "methods/cache.h"
#include "model/pass/cuda/attention.h"

/* Device memory that several caches share. Only one of these caches may run at a time. */
typedef struct kvd_gpu_caches kvd_gpu_caches;
kvd_gpu_caches *kvd_gpu_caches_new(const kvd_config *c, const kvd_gpu_share *share, kvd_dtype pass,
                                   size_t max_tokens, size_t max_len, kvd_err *err);
/* Frees *c, device memory that several caches share. The caller must free these caches first. */
void kvd_gpu_caches_free(kvd_gpu_caches *c);

typedef struct kvd_gpu_cache kvd_gpu_cache;

/* Creates a cache for the compression methods of `plan`, in the memory shared by the caches of
 * `with`. `plan` must be open; `plan` and `with` must outlive the cache. */
kvd_gpu_cache *kvd_gpu_cache_new(kvd_gpu_caches *with, const kvd_plan *plan, kvd_err *err);
void kvd_gpu_cache_free(kvd_gpu_cache *c);
kvd_gpu_attention *kvd_gpu_cache_hook(kvd_gpu_cache *c);
/* Sets the prompts of the next batch; *prompts must stay valid until the batch ends. Required if
 * kvd_plan_first_pass returns true for the plan. */
void kvd_gpu_cache_set_prompts(kvd_gpu_cache *c, const kvd_prompts *prompts);
/* Adds the counters of bits and tokens to *sum, and sets the counters to 0. */
void kvd_gpu_cache_take_account(kvd_gpu_cache *c, kvd_cache_account *sum);
/* Returns the name of the attention code, such as "sm_90a kernel (3 layers), f32 (1)". */
const char *kvd_gpu_cache_engine(const kvd_gpu_cache *c);

#endif
