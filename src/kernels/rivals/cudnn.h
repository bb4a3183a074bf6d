/*
 * cuDNN's fused attention, with which kvdim is compared: one d_qk and one d_v per call, prefill and
 * decode, bf16 and fp16.
 *
 *   O = softmax(scale Q K^T + mask) V
 *
 * libcudnn.so.9 is loaded when a plan is opened. If it is missing, or if kvdim was built without
 * CUDA or cuDNN's headers, kvd_cudnn_open fails and says why.
 *
 * Every (graph, engine, knobs) that cuDNN's heuristics return is a candidate. Without a mask,
 * cuDNN's one-operation graph is tried too. A decode step is also described as n_kv_heads heads,
 * each with its query heads as query rows; the data are in the same places in memory. A new plan
 * uses the first candidate that cuDNN accepts; kvd_cudnn_tune times all candidates.
 *
 * Functions with an argument `err` return 0, or -1 with *err filled. A plan may be used by one
 * thread at a time, on the device that was current when it was opened.
 */
#ifndef KVD_KERNELS_RIVALS_CUDNN_H
#define KVD_KERNELS_RIVALS_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct kvd_cudnn_plan kvd_cudnn_plan;

/*
 * Strides in elements: element (b, h, t, i) is at b * batch + h * head + t * token + i. A stride
 * must be a multiple of 8 unless the tensor has size 1 in that dimension. Addresses must be
 * multiples of 16 bytes.
 */
typedef struct {
    int64_t batch, head, token;
} kvd_cudnn_stride;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 */
    int batch, n_heads, n_kv_heads;
    int d_qk, d_v;     /* multiples of 8 within 8 .. 256 */
    int q_len, kv_len; /* lengths of every request, or the largest lengths if ragged */
    /*
     * 1: query t attends to keys up to position kv_len - q_len + t. 0: every query attends to all
     * keys.
     */
    int causal;
    /*
     * 1: each run reads the lengths of the requests from the device. 0: all requests have q_len and
     * kv_len.
     */
    int ragged;
    float scale; /* factor of scores, 1/sqrt(d_head) of the uncompressed head */
    /*
     * Strides of q and o, whose shape is [batch][n_heads][q_len][d], and of k and v,
     * [batch][n_kv_heads][kv_len][d].
     */
    kvd_cudnn_stride q, k, v, o;
} kvd_cudnn_shape;

typedef struct {
    const void *q, *k, *v;
    void *o; /* output; if ragged, rows from q_len on are unspecified */
    /* kvd_cudnn_workspace() bytes, aligned to 256 bytes; may be NULL if the size is 0. */
    void *workspace;
    /* [batch] Lengths 1 .. shape.q_len, read only if ragged and shape.q_len is above 1. */
    const int32_t *q_len;
    /* [batch] Lengths 1 .. shape.kv_len, read only if ragged. */
    const int32_t *kv_len;
} kvd_cudnn_io;

/* Sets the strides to the packed layout [batch][head][token][dim]. */
void kvd_cudnn_packed(kvd_cudnn_shape *shape);

/* Stores cuDNN's version, such as 91900 for 9.19.0. Fails if cuDNN is not available. */
int kvd_cudnn_version(int *version, kvd_err *err);

/*
 * Opens a plan, which the caller must close. Takes from 10 ms to several seconds, because cuDNN may
 * compile. Fails if cuDNN is missing or does not support the shape, or if a number is out of range.
 */
int kvd_cudnn_open(const kvd_cudnn_shape *shape, kvd_cudnn_plan **plan, kvd_err *err);
void kvd_cudnn_close(kvd_cudnn_plan *plan); /* `plan` may be NULL */

/* Returns the bytes that a run of the chosen candidate needs. */
size_t kvd_cudnn_workspace(const kvd_cudnn_plan *plan);

/*
 * Describes the chosen candidate, such as "9.19.0 composite heads engine 5 knobs 18=0 24=33". Valid
 * until the plan is closed.
 */
const char *kvd_cudnn_name(const kvd_cudnn_plan *plan);

/*
 * Launches attention on the stream, a cudaStream_t, without waiting. On failure *err holds cuDNN's
 * status.
 */
int kvd_cudnn_run(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/*
 * Times every candidate on the caller's data with cold caches and chooses the fastest. cuDNN's
 * first choice is kept unless another candidate is at least 2 % faster.
 *
 * io->workspace is not used. Candidates that cuDNN does not accept, or that need more memory than
 * is free, are skipped. Waits for the stream. If no candidate could be timed, fails and keeps the
 * earlier choice.
 */
int kvd_cudnn_tune(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/*
 * kvd_cudnn_count returns the number of candidates (cuDNN engines) for the plan.
 * kvd_cudnn_candidate returns the name of candidate i without the version. *us is the time that
 * kvd_cudnn_tune measured: NaN if not yet measured, negative if cuDNN refused the candidate.
 * kvd_cudnn_choose fails if cuDNN refuses candidate i.
 */
int kvd_cudnn_count(const kvd_cudnn_plan *plan);
const char *kvd_cudnn_candidate(const kvd_cudnn_plan *plan, int i, double *us);
int kvd_cudnn_choose(kvd_cudnn_plan *plan, int i, kvd_err *err);

#endif
