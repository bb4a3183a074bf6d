/*
 * The gradient of exact attention on the device (kvd_attend_back is the CPU version). Sums are
 * float32. With KVD_BF16 the inputs of products are rounded to bf16, including probabilities and
 * gradients of scores.
 */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_BACK_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_BACK_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"

/*
 * Input and output of kvd_gpu_attend_back. Rows of arrays are tokens; the heads of a token follow
 * one another.
 */
typedef struct {
    /* window is the sliding window in tokens; 0: none. */
    size_t n_sequences, longest, window;
    /* Host array: first token of each sequence, then the number of tokens n. */
    const size_t *offset;
    int n_heads, n_kv_heads, d_head;
    kvd_dtype type;
    const void *q, *k, *v; /* of `type`; tokens are ld elements apart */
    size_t ld;
    /* Gradient of the output of attention: [n][n_heads * d_head] of `type`. */
    const void *d_o;
    /*
     * Gradients of q (overwritten), and of k and v (added to what is there). Tokens are ld_d
     * elements apart.
     */
    float *dq, *dk, *dv;
    size_t ld_d;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas;
} kvd_gpu_attention_back_in;

/*
 * Returns the bytes of scratch for sequences of up to max_len tokens: about 256 MiB at most, or the
 * scores, probabilities and gradients of one query of one head if these are larger.
 */
size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads);

int kvd_gpu_attend_back(const kvd_gpu_attention_back_in *in, void *scratch, kvd_err *err);

#endif
