/* cuDNN's fused attention, for comparison: O = softmax(scale Q K^T + mask) V in bf16 or fp16.
 *
 * libcudnn.so.9 is loaded by kvd_cudnn_open, which fails without cuDNN. A kvd_cudnn_plan is for one
 * thread at a time, on the device that was current when it was opened. */
#ifndef KVD_KERNELS_RIVALS_CUDNN_H
#define KVD_KERNELS_RIVALS_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

#if defined(KVD_CUDA) && defined(__has_include)
#if __has_include(<cudnn_graph.h>)
#define KVD_HAVE_CUDNN 1
#endif
#endif

typedef struct kvd_cudnn_plan kvd_cudnn_plan;

/* Strides of a tensor in elements: dimension i of token t of head h of request b is at b * batch +
 * h * head + t * token + i. Strides must be multiples of 8, and addresses multiples of 16 bytes. */
typedef struct {
    int64_t batch, head, token;
} kvd_cudnn_stride;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    int batch, n_heads, n_kv_heads;
    int d_qk, d_v;     /* multiples of 8 within 8 .. 256 */
    int q_len, kv_len; /* lengths of every request, or the largest if ragged */
    /* If 1, query t attends to positions up to kv_len - q_len + t; if 0, to all keys. */
    int causal;
    /* If 1, requests have different lengths, which each run reads from device memory. If 0, all
     * requests have the same lengths. */
    int ragged;
    float scale; /* factor of scores, 1/sqrt(d_head of the uncompressed head) */
    /* Strides of the tensors q, o [batch][n_heads][q_len][d] and k, v
     * [batch][n_kv_heads][kv_len][d]. */
    kvd_cudnn_stride q, k, v, o;
} kvd_cudnn_shape;

typedef struct {
    const void *q, *k, *v;
    void *o; /* output; if ragged, rows from q_len on are unspecified */
    /* Device memory of kvd_cudnn_workspace() bytes, aligned to 256. NULL if the size is 0. */
    void *workspace;
    /* [batch] Device memory: number of queries of each request. Not read if all requests have equal
     * lengths (shape.ragged is 0) or one query (shape.q_len is 1). */
    const int32_t *q_len;
    const int32_t *kv_len; /* [batch] lengths 1 .. shape.kv_len, read only if ragged */
} kvd_cudnn_io;

/* Sets the strides of q, k, v and o to those of arrays [batch][head][token][dim] without gaps. */
void kvd_cudnn_packed(kvd_cudnn_shape *shape);

/* Sets *version to cuDNN's version, such as 91900 for 9.19.0. Fails if cuDNN is not available. */
int kvd_cudnn_version(int *version, kvd_err *err);

/* Opens cuDNN attention for a shape, which may take seconds. Fails without cuDNN. */
int kvd_cudnn_open(const kvd_cudnn_shape *shape, kvd_cudnn_plan **plan, kvd_err *err);
void kvd_cudnn_close(kvd_cudnn_plan *plan); /* `plan` may be NULL */

/* The functions below exist only where KVD_HAVE_CUDNN is defined. */

/* Returns the workspace size, in bytes, of the cuDNN engine that was chosen. */
size_t kvd_cudnn_workspace(const kvd_cudnn_plan *plan);

/* Returns the chosen engine's name, such as "9.19.0 composite heads engine 5 knobs 18=0 24=33". */
const char *kvd_cudnn_name(const kvd_cudnn_plan *plan);

/* Launches attention on `stream` (a cudaStream_t), without waiting for the result. On failure *err
 * holds cuDNN's status. */
int kvd_cudnn_run(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/* Times all of cuDNN's engines on the caller's data with cold caches, and chooses the fastest. */
int kvd_cudnn_tune(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/* Returns the number of candidate engines of cuDNN. */
int kvd_cudnn_count(const kvd_cudnn_plan *plan);
/* Returns the name of cuDNN engine i; the text belongs to *plan. *us receives the measured time of
 * the engine in microseconds: NaN if not measured, negative if the engine cannot run. */
const char *kvd_cudnn_candidate(const kvd_cudnn_plan *plan, int i, double *us);
/* Chooses engine i for the following calls of kvd_cudnn_run. */
int kvd_cudnn_choose(kvd_cudnn_plan *plan, int i, kvd_err *err);

#endif
