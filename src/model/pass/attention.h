/*
 * The attention hook: the interface through which the forward pass gives Q, K and V to attention.
 * Exact ("dense") attention, the hook that records Q, K and V, and every KV cache implement it. The
 * forward pass depends only on this header, not on any implementation.
 */
#ifndef KVD_MODEL_PASS_ATTENTION_H
#define KVD_MODEL_PASS_ATTENTION_H

#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/*
 * The input of attention for one layer of one batch. Row i of each array belongs to token i of the
 * batch. The tokens of all sequences follow one another without padding.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /*
     * First token of each sequence, and n_tokens at the end: sequence s is tokens offset[s] ..
     * offset[s+1]-1, s < n_sequences.
     */
    const size_t *offset;
    size_t first_sequence; /* index of the batch's first sequence in the corpus */
    size_t n_tokens;       /* number of tokens of the batch: offset[n_sequences] */
    const float *q;        /* queries after RoPE: [n_tokens][n_heads][d_head] */
    const float *k;        /* keys after RoPE: [n_tokens][n_kv_heads][d_head] */
    const float *v;        /* values: [n_tokens][n_kv_heads][d_head] */
    /*
     * Queries and keys before RoPE, in the shapes of q and k; NULL unless the hook set wants_pre.
     * In a model without RoPE they point to q and k.
     */
    const float *q_pre;
    const float *k_pre;
    /*
     * Input of the projections to Q, K and V: [n_tokens][d_model]. It is the residual stream, after
     * the norm before these projections if the model has one. NULL unless the hook set wants_input.
     */
    const float *input;
    /*
     * Position of the first token that each of the n_sequences sequences has in this batch, if
     * earlier batches had the tokens before it. NULL if the batch has all tokens of every sequence.
     */
    const size_t *start;
    /*
     * Length in tokens that each of the n_sequences sequences will have after the last batch with
     * tokens of it (model/pass/batch.h). NULL if the batch has all tokens of every sequence.
     */
    const size_t *whole;
    /*
     * Sliding window of this layer in tokens: position t sees positions t - window + 1 .. t. If
     * window is 0, position t sees all positions up to t.
     */
    size_t window;
    /*
     * Logit of the attention sink of each of the n_heads query heads; NULL if the model has no
     * sinks.
     */
    const float *sinks;
} kvd_attention_in;

/*
 * Returns the parameters of the attention scores (scale, softcap, sink) of query head `head` in
 * this layer.
 */
kvd_scores kvd_attention_scores(const kvd_attention_in *in, size_t head);

typedef struct kvd_attention kvd_attention;
struct kvd_attention {
    /*
     * Writes the attention output of every head, before the output projection, to out
     * [n_tokens][n_heads][d_head]. Attention is causal within a sequence and limited to the sliding
     * window; kvd_attention_scores gives scale, softcap and sink. Returns 0, or -1 with *err.
     */
    int (*run)(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err);
    int wants_pre;   /* 1 if `run` reads in->q_pre and in->k_pre */
    int wants_input; /* 1 if `run` reads in->input */
};

/*
 * Callback that receives the attention probabilities of one head of one sequence of n tokens: prob
 * [n][n], row i being the probabilities of query i.
 */
typedef int (*kvd_probabilities)(void *ctx, const kvd_attention_in *in, size_t sequence, int head,
                                 const float *prob, size_t n, kvd_err *err);

/*
 * Exact attention on the CPU. For each head it multiplies Q and K, computes a causal softmax, and
 * multiplies by V, in blocks of KVD_ATTEND_ROWS queries. A block reads the keys from the first to
 * the last that any of its queries sees. Blocks and heads are distributed over threads; the order
 * of sums does not depend on the number of threads.
 */
enum { KVD_ATTEND_ROWS = 128 };

typedef struct {
    kvd_attention hook;
    /*
     * Optional callback that receives the attention probabilities, or NULL. It is called on one
     * thread, sequence by sequence, with heads in ascending order.
     */
    kvd_probabilities probabilities;
    void *ctx;
    float *scratch;
    size_t scratch_n;
} kvd_dense_attention;

void kvd_dense_attention_init(kvd_dense_attention *a);
void kvd_dense_attention_release(kvd_dense_attention *a);

/*
 * Computes attention for one head of one sequence of n tokens; dense attention and the caches share
 * it. Consecutive tokens of q, k, v and out are ldq, ldk, ldv and ldo floats apart.
 *   q [n][d_qk], k [n][d_qk], v [n][d_v], out [n][d_v]
 *   window  sliding window, as in kvd_attention_in
 *   scores  [n][n] scratch; on return it holds the probabilities, 0 above the diagonal and before
 *           the window
 * Inside a parallel region (between kvd_blas_serial and kvd_blas_restore, blocks.h) it runs on the
 * calling thread, otherwise on all threads.
 */
void kvd_attend_head(size_t n, size_t window, size_t d_qk, size_t d_v, const float *q, size_t ldq,
                     const float *k, size_t ldk, const float *v, size_t ldv, kvd_scores score,
                     float *scores, float *out, size_t ldo);

/*
 * Computes attention as kvd_attend_head does, for the queries of tokens first .. first + rows - 1
 * only, on the calling thread. q and out point to the first of these tokens, k and v to token 0 of
 * the sequence; scores [rows][first + rows] is scratch. A caller with its own threads can compute
 * blocks of all heads in parallel.
 */
void kvd_attend_rows(size_t first, size_t rows, size_t window, size_t d_qk, size_t d_v,
                     const float *q, size_t ldq, const float *k, size_t ldk, const float *v,
                     size_t ldv, kvd_scores score, float *scores, float *out, size_t ldo);

/*
 * An attention hook that records: for every layer it calls `record` with Q, K and V, then lets the
 * hook `inner` compute attention, then calls `output` with the result if `output` is not NULL.
 * hook.wants_pre and hook.wants_input are initialised from `inner`; set them to 1 if `record` reads
 * in->q_pre and in->k_pre, or in->input. The first error ends the run.
 */
typedef struct {
    kvd_attention hook;
    kvd_attention *inner;
    int (*record)(void *ctx, const kvd_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);
    void *ctx;
} kvd_capture;

void kvd_capture_init(kvd_capture *t, kvd_attention *inner);

#endif
