/*
 * The gradient of exact attention on the device (kvd_attend_back is the CPU's): scores and probabilities of a block of queries are computed
 * again, by products of all KV heads of neighbouring sequences of equal length at once. Sums are float32; with KVD_BF16 what goes
 * into a product is rounded to bf16, probabilities and gradients of scores too.
 */
#ifndef KVD_MODEL_CUDA_ATTENTION_BACK_H
#define KVD_MODEL_CUDA_ATTENTION_BACK_H

#include <stddef.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/half.h"

/* Rows are tokens, heads side by side. */
typedef struct {
    size_t n_sequences, longest, window; /* window: of this layer, 0: none                          */
    const size_t *offset;                /* host [n_sequences + 1]                                   */
    int n_heads, n_kv_heads, d_head;
    kvd_dtype type;
    const void *q, *k, *v; /* of `type`, rows ld apart: as attention took them                      */
    size_t ld;
    const void *d_o;     /* of `type` [n][n_heads * d_head]: the gradient with respect to its output     */
    float *dq, *dk, *dv; /* rows ld_d apart; dk and dv are added to                                  */
    size_t ld_d;
    cudaStream_t stream;
    const kvd_cublas *lib;
    cublasHandle_t blas; /* on that stream                                                          */
} kvd_gpu_attention_back_in;

/* Bytes of scratch for sequences of up to max_len: at most about 256 MB, or one row of scores of each KV head. */
size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads);

int kvd_gpu_attend_back(const kvd_gpu_attention_back_in *in, void *scratch, kvd_err *err);

#endif
