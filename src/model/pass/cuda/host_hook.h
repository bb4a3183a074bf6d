/*
 * An adapter that runs an attention hook of the CPU (model/pass/attention.h) in a forward pass on
 * the device: Q, K and V of a layer are copied to the host, and the attention output is copied
 * back.
 */
#ifndef KVD_MODEL_PASS_CUDA_HOST_HOOK_H
#define KVD_MODEL_PASS_CUDA_HOST_HOOK_H

#include "model/pass/attention.h"
#include "model/pass/cuda/attention.h"

/*
 * Adapter for an attention hook of the CPU. Only the first member, the hook for the device's
 * forward pass, is public.
 */
typedef struct {
    kvd_gpu_attention hook;
    /* The following members are private. */
    kvd_attention *inner;
    /*
     * Host copies of Q, K and V, of Q and K before RoPE, and the attention output: max_tokens
     * tokens each.
     */
    float *q, *k, *v, *q_pre, *k_pre, *out;
    float *sinks; /* attention sink logits: [n_heads] */
    /*
     * Host buffer for Q, K, V or the attention output in bf16, on one side of the conversion from
     * or to float32; NULL in a float32 pass.
     */
    void *narrow;
} kvd_host_hook;

/*
 * Initialises an adapter for the hook `inner`, which is borrowed. The GPU must hold all heads
 * (`share`). *h must be zeroed before; the caller must call kvd_host_hook_release after a failure
 * too. `pass` is the element type of the forward pass; bf16 values are converted to float32
 * exactly, and the output is rounded to bf16. The adapter waits for the device in every layer.
 * Returns 0, or -1 with *err.
 */
int kvd_host_hook_init(kvd_host_hook *h, const kvd_config *c, const kvd_gpu_share *share,
                       kvd_dtype pass, size_t max_tokens, kvd_attention *inner, kvd_err *err);
void kvd_host_hook_release(kvd_host_hook *h);

#endif
