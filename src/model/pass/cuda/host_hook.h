/*
 * Runs an attention hook of the CPU (model/pass/attention.h) in a forward pass on the device.
 * Copies Q, K and V to the host, and the output to the device.
 */
#ifndef KVD_MODEL_PASS_CUDA_HOST_HOOK_H
#define KVD_MODEL_PASS_CUDA_HOST_HOOK_H

#include "model/pass/attention.h"
#include "model/pass/cuda/attention.h"

/* Callers may use only the first member, the hook for the forward pass on the device. */
typedef struct {
    kvd_gpu_attention hook;
    kvd_attention *inner;
    /* Host buffers for max_tokens tokens each. */
    float *q, *k, *v, *q_pre, *k_pre, *out;
    float *input; /* NULL unless `inner` set wants_input */
    float *sinks; /* [n_heads] */
    /* Host buffer for conversion from and to bf16; NULL in a float32 pass. */
    void *narrow;
} kvd_host_hook;

/*
 * Makes *h a hook that calls the CPU hook `inner`, which is borrowed. The GPU must hold all heads.
 * *h must be zeroed before; the caller must call kvd_host_hook_release after a failure too. `pass`
 * is the element type of the forward pass, to which the output is rounded. The hook waits for the
 * device in every layer. Returns 0, or -1 with *err.
 */
int kvd_host_hook_init(kvd_host_hook *h, const kvd_config *c, const kvd_gpu_share *share,
                       kvd_dtype pass, size_t max_tokens, kvd_attention *inner, kvd_err *err);
void kvd_host_hook_release(kvd_host_hook *h);

#endif
