/*
 * cuDNN's fused attention, the uncompressed implementation with which kvdim is compared: one d_qk
 * and one d_v per call, prefill and decode, bf16 and fp16.
 *
 *   O = softmax(scale Q K^T + mask) V
 *
 * Query t of a request has position kv_len - q_len + t, which the causal mask uses.
 *
 * libcudnn.so.9 is loaded when a plan is opened, so programs start without it. If the library is
 * missing, or if kvdim was built without CUDA or without cuDNN's headers, kvd_cudnn_open fails and
 * its message says which. Plain C; a stream is passed as void * (a cudaStream_t), so callers need
 * no CUDA header.
 *
 * Operation graphs. Causal attention is a graph of matmul, scale, index comparison, select, softmax
 * and matmul. If no mask is needed (decode, or causal = 0), cuDNN's one-operation form is tried
 * too. A decode step is described in two ways: as n_heads heads of one query, and as n_kv_heads
 * heads of group = n_heads / n_kv_heads queries, which have the same memory layout. Every (graph,
 * engine, knobs) that cuDNN's heuristics return is a candidate. A new plan uses the first candidate
 * that cuDNN accepts, in the order of its heuristics (mode A, then B, then fallback);
 * kvd_cudnn_tune times all candidates.
 *
 * A plan may be used by one thread at a time, on the device that was current when it was opened.
 */
#ifndef KVD_KERNELS_RIVALS_CUDNN_H
#define KVD_KERNELS_RIVALS_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct kvd_cudnn_plan kvd_cudnn_plan;

/*
 * Strides of Q, K, V or O in elements: element (b, h, t, i) is at b * batch + h * head + t * token
 * + i. A stride must be a multiple of 8 unless its dimension has size 1, and addresses must be
 * multiples of 16 bytes.
 */
typedef struct {
    int64_t batch, head, token;
} kvd_cudnn_stride;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 (common/half.h) */
    int batch, n_heads, n_kv_heads;
    int d_qk, d_v;     /* dimensions of Q and K, and of V; multiples of 8, 8 .. 128 */
    int q_len, kv_len; /* queries and keys of every request, or the largest numbers if ragged */
    int causal;        /* 1: query t attends to keys up to its own position; 0: to all keys */
    /*
     * 1: The lengths of each request are read from the device at each run (kvd_cudnn_io). 0: all
     * requests have q_len and kv_len.
     */
    int ragged;
    float scale; /* factor of scores: 1/sqrt(d_head) of the uncompressed head */
    /*
     * Strides of q and o [batch][n_heads][q_len][d] and of k and v [batch][n_kv_heads][kv_len][d].
     */
    kvd_cudnn_stride q, k, v, o;
} kvd_cudnn_shape;

/* Device buffers of one run of cuDNN attention. */
typedef struct {
    const void *q, *k, *v;
    void *o;         /* output; if ragged, rows at and after a request's q_len are unspecified */
    void *workspace; /* kvd_cudnn_workspace() bytes, 256-byte aligned; may be NULL if that is 0 */
    /*
     * [batch] queries of each request, 1 .. shape.q_len; read only if ragged and shape.q_len is
     * above 1.
     */
    const int32_t *q_len;
    /* [batch] keys of each request, 1 .. shape.kv_len; read only if ragged. */
    const int32_t *kv_len;
} kvd_cudnn_io;

/*
 * Sets the strides q, k, v and o of *shape to the packed layout [batch][head][token][dim]. If batch
 * is 1, that is PLAIN of kernels/layout.h.
 */
void kvd_cudnn_packed(kvd_cudnn_shape *shape);

/*
 * Stores cuDNN's version in *version, as 91900 for 9.19.0. Returns 0. Returns -1 and fills *err if
 * this build has no CUDA, if it was built without cuDNN's headers, or if libcudnn.so.9 is missing.
 */
int kvd_cudnn_version(int *version, kvd_err *err);

/*
 * Opens a cuDNN plan for one shape of attention. Takes from about 10 ms to several seconds, because
 * cuDNN may compile. Returns 0 and stores the plan in *plan, which the caller must close. Returns
 * -1 and fills *err if cuDNN is missing, a number is out of range, or no engine supports the shape
 * (the message ends with cuDNN's own text).
 */
int kvd_cudnn_open(const kvd_cudnn_shape *shape, kvd_cudnn_plan **plan, kvd_err *err);
void kvd_cudnn_close(kvd_cudnn_plan *plan); /* `plan` may be NULL */

/*
 * Returns the bytes of workspace that a run of the chosen candidate (engine configuration) needs.
 * The number changes when another candidate is chosen.
 */
size_t kvd_cudnn_workspace(const kvd_cudnn_plan *plan);

/*
 * Returns a description of the chosen candidate (engine configuration), such as "9.19.0 composite
 * heads engine 5 knobs 18=0 24=33". Valid until the plan is closed.
 */
const char *kvd_cudnn_name(const kvd_cudnn_plan *plan);

/*
 * Launches attention on the stream without waiting for it. Returns 0, or -1 and fills *err with
 * cuDNN's status.
 */
int kvd_cudnn_run(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/*
 * Times every candidate (engine configuration) on the caller's data and chooses the fastest. If no
 * candidate is at least 2 % faster than cuDNN's first choice, the first choice stays. The L2 cache
 * is overwritten before each run. Candidates within 20 % of the best after three runs are then
 * timed in turns, nine times, and their medians are compared. io->workspace is not used: workspace
 * and scratch memory are allocated with cudaMalloc and freed. Candidates that cuDNN does not
 * accept, or that need more memory than is free, are skipped. Waits for the stream. Returns 0.
 * Returns -1 and fills *err if no candidate could be timed; the earlier choice then remains.
 */
int kvd_cudnn_tune(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/*
 * Access to the candidates (engine configurations), for reports and tests. kvd_cudnn_count returns
 * their number. kvd_cudnn_candidate returns the name of candidate i (without the version) and
 * stores in *us the time that kvd_cudnn_tune measured: NaN if not yet measured, negative if cuDNN
 * refused the candidate. kvd_cudnn_choose makes candidate i the one that runs; it returns 0, or -1
 * and fills *err if cuDNN refuses it.
 */
int kvd_cudnn_count(const kvd_cudnn_plan *plan);
const char *kvd_cudnn_candidate(const kvd_cudnn_plan *plan, int i, double *us);
int kvd_cudnn_choose(kvd_cudnn_plan *plan, int i, kvd_err *err);

#endif
