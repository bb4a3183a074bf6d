/* Runs a CPU attention hook (model/pass/attention.h) in a device forward pass. */
#ifndef KVD_MODEL_PASS_CUDA_HOST_HOOK_H
#define KVD_MODEL_PASS_CUDA_HOST_HOOK_H

#include "model/pass/attention.h"
#include "model/pass/cuda/attention.h"

/* Callers use only the first member, the hook on the device. */
typedef struct {
    kvd_gpu_attention hook;
    kvd_attention *inner;
    /* Host buffers for max_tokens tokens each. */
    float *q, *k, *v, *q_pre, *k_pre, *out;
    float *input; /* NULL unless `inner` set wants_input */
    float *sinks; /* [n_heads] */
    /* Host buffer for bf16; NULL in a float32 pass. */
    void *narrow;
} kvd_host_hook;

/* Makes *h a hook that calls the CPU hook `inner`. Call kvd_host_hook_release even on failure. */
int kvd_host_hook_init(kvd_host_hook *h, const kvd_config *c, const kvd_gpu_share *share,
                       kvd_dtype pass, size_t max_tokens, kvd_attention *inner, kvd_err *err);
void kvd_host_hook_release(kvd_host_hook *h);

#endif
