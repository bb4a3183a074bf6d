/*
 * cuDNN's fused attention, the uncompressed rival: one width pair per call, prefill and decode, bf16 and fp16.
 *
 *   O = softmax(scale Q K^T + mask) V,   mask: query t of a request stands at position kv_len - q_len + t
 *
 * libcudnn.so.9 is looked for when a plan is opened, so programs start without it. Where it is missing, or where kvdim
 * was built without CUDA or without cuDNN's headers, kvd_cudnn_open fails and says which. Plain C; a stream is passed
 * as void * (a cudaStream_t), so callers need no CUDA header.
 *
 * What is asked of cuDNN. Causal attention is a graph of matmul, scale, index comparison, select, softmax and matmul;
 * where no mask is needed (decode, causal = 0) its one-operation form is tried too. A decode step is asked for in two
 * ways: as n_heads heads of one query, and as n_kv_heads heads of group = n_heads / n_kv_heads queries, which are the
 * same bytes. Every (way, engine, knobs) that the heuristics name is a candidate. A fresh plan uses the first that
 * cuDNN accepts, in the order of its heuristics (mode A, then B, then fallback); kvd_cudnn_tune times all of them.
 *
 * A plan may be used by one thread at a time, on the device that was current when it was opened.
 */
#ifndef KVD_KERNELS_RIVALS_CUDNN_H
#define KVD_KERNELS_RIVALS_CUDNN_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct kvd_cudnn_plan kvd_cudnn_plan;

/* Where element (b, h, t, i) lies: b * batch + h * head + t * token + i. In elements; all but 1-wide ones must be
 * multiples of 8, and so must the addresses be of 16 bytes. */
typedef struct {
    int64_t batch, head, token;
} kvd_cudnn_stride;

typedef struct {
    int dtype; /* KVD_BF16 or KVD_F16 (common/half.h)                                          */
    int batch, n_heads, n_kv_heads;
    int d_qk, d_v;     /* multiples of 8, 8 .. 128                                                    */
    int q_len, kv_len; /* of every request; the longest of them when ragged                           */
    int causal;        /* 1: query t sees keys up to its own position; 0: all                         */
    int ragged;        /* 1: lengths per request are read from the device at each run (see _io)       */
    float scale;       /* 1/sqrt(d_head) of the uncut head                                            */
    kvd_cudnn_stride q, k, v,
        o; /* q, o [batch][n_heads][q_len][d]; k, v [batch][n_kv_heads][kv_len][d]        */
} kvd_cudnn_shape;

/* All on the device. */
typedef struct {
    const void *q, *k, *v;
    void *o;         /* out; when ragged, rows at and beyond a request's q_len are unspecified          */
    void *workspace; /* kvd_cudnn_workspace bytes, 256-byte aligned; may be NULL when that is 0         */
    const int32_t
        *q_len; /* [batch] 1 .. shape.q_len;  ragged only, and not read when shape.q_len is 1      */
    const int32_t
        *kv_len; /* [batch] 1 .. shape.kv_len; ragged only                                          */
} kvd_cudnn_io;

/* Sets q, k, v, o of *shape to the packed layout [batch][head][token][dim]. With batch = 1 that is PLAIN of
 * kernels/layout.h. */
void kvd_cudnn_packed(kvd_cudnn_shape *shape);

/*
 * Library version, as 91900 for 9.19.0. Returns 0, or -1 with *err: no CUDA in this build, no header at build time,
 * 'libcudnn.so.9' not there.
 */
int kvd_cudnn_version(int *version, kvd_err *err);

/*
 * Opens a plan for one shape. Takes some 10 ms to some s: cuDNN may compile. On success *plan is the caller's, to be
 * closed. Returns 0, or -1 with *err when cuDNN is not there, when a number is out of range, or when no engine takes
 * the shape (the message ends with cuDNN's own words).
 */
int kvd_cudnn_open(const kvd_cudnn_shape *shape, kvd_cudnn_plan **plan, kvd_err *err);
void kvd_cudnn_close(kvd_cudnn_plan *plan); /* NULL is fine */

/* Bytes that a run of the chosen candidate needs; changes when another is chosen. */
size_t kvd_cudnn_workspace(const kvd_cudnn_plan *plan);

/* What runs: "9.19.0 composite heads engine 5 knobs 18=0 24=33", valid until the plan is closed. */
const char *kvd_cudnn_name(const kvd_cudnn_plan *plan);

/*
 * Launches on the stream; the host does not wait. Returns 0, or -1 with *err: cuDNN's status.
 */
int kvd_cudnn_run(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/*
 * Times every candidate on the caller's data and chooses the fastest, or cuDNN's first where nothing is 2 % faster. The L2
 * is overwritten before each run; those within 20 % of the best after three runs are then timed in turn, nine times, and
 * their medians compared. io->workspace is not used: workspace and scratch come from cudaMalloc and are given back.
 * Candidates that cuDNN does not accept, or that need more memory than there is, are left out. Waits for the stream.
 * Returns 0, or -1 with *err when not one could be timed; what was chosen before then stays.
 */
int kvd_cudnn_tune(kvd_cudnn_plan *plan, const kvd_cudnn_io *io, void *stream, kvd_err *err);

/*
 * The candidates, for reports and tests. kvd_cudnn_candidate gives the name of candidate i of count (without the version), and in
 * *us the time that tune measured, NaN before that, negative where cuDNN refused it. kvd_cudnn_choose makes i the one that
 * runs: 0, or -1 with *err when cuDNN refuses it.
 */
int kvd_cudnn_count(const kvd_cudnn_plan *plan);
const char *kvd_cudnn_candidate(const kvd_cudnn_plan *plan, int i, double *us);
int kvd_cudnn_choose(kvd_cudnn_plan *plan, int i, kvd_err *err);

#endif
