/* Runs an attention hook that computes on the CPU within a forward pass on the GPU. */
#ifndef KVD_MODEL_PASS_CUDA_HOST_HOOK_H
#define KVD_MODEL_PASS_CUDA_HOST_HOOK_H

#include "model/pass/attention.h"
#include "model/pass/cuda/attention.h"

/* GPU attention hook that calls the CPU hook `inner`; callers pass its member `hook` to a forward
 * pass and use no other member */
typedef struct {
    kvd_gpu_attention hook;
    kvd_attention *inner;
    /* copies in host memory of Q, K, V and the attention output, for max_tokens tokens; q_pre and
     * k_pre are Q and K before RoPE */
    float *q, *k, *v, *q_pre, *k_pre, *out;
    float *input; /* NULL unless `inner` set wants_input */
    float *sinks; /* [n_heads] */
    /* host buffer for Q, K, V or the attention output in bf16; NULL if the pass is in float32 */
    void *narrow;
} kvd_host_hook;

/* Sets up the GPU attention hook *h, which calls the CPU hook `inner`. Call kvd_host_hook_release
 * even on failure. */
int kvd_host_hook_init(kvd_host_hook *h, const kvd_config *c, const kvd_gpu_share *share,
                       kvd_dtype pass, size_t max_tokens, kvd_attention *inner, kvd_err *err);
void kvd_host_hook_release(kvd_host_hook *h);

#endif
