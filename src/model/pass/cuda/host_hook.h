/*
 * An adapter that runs a CPU hook (model/pass/attention.h) in a pass on the device: a layer's rows
 * are copied to the host, and the output back.
 */
#ifndef KVD_MODEL_PASS_CUDA_HOST_HOOK_H
#define KVD_MODEL_PASS_CUDA_HOST_HOOK_H

#include "model/pass/attention.h"
#include "model/pass/cuda/attention.h"

/* Adapter for a CPU hook. Only the first member, the hook for the device pass, is public. */
typedef struct {
    kvd_gpu_attention hook;
    /* private members */
    kvd_attention *inner;
    float *q, *k, *v, *q_pre, *k_pre, *out; /* [max_tokens] rows each */
    float *sinks;                           /* [n_heads] */
    void *narrow;                           /* rows of a bf16 pass */
} kvd_host_hook;

/*
 * Creates an adapter for `inner`, which is borrowed. The share must have all heads. *h must be
 * zeroed before; call kvd_host_hook_release after a failure too. The hook's run waits for the
 * device. Rows of a bf16 pass are exact in float32; the output is rounded to bf16.
 */
int kvd_host_hook_init(kvd_host_hook *h, const kvd_config *c, const kvd_gpu_share *share,
                       kvd_dtype pass, size_t max_tokens, kvd_attention *inner, kvd_err *err);
void kvd_host_hook_release(kvd_host_hook *h);

#endif
