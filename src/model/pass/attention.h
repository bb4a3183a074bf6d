/*
 * The attention hook: the interface through which the forward pass gives Q, K and V to attention.
 * Exact ("dense") attention, the hook that records Q, K and V, and every KV cache implement it.
 */
#ifndef KVD_MODEL_PASS_ATTENTION_H
#define KVD_MODEL_PASS_ATTENTION_H

#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/*
 * The input of attention for one layer of one batch. Row i of each array belongs to token i of the
 * batch. Sequences follow one another without padding.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /*
     * Sequence s consists of tokens offset[s] .. offset[s + 1] - 1. The last element,
     * offset[n_sequences], is n_tokens.
     */
    const size_t *offset;
    size_t first_sequence; /* index in the corpus of sequence 0 of the batch */
    size_t n_tokens;
    const float *q; /* Q after RoPE: [n_tokens][n_heads][d_head] */
    const float *k; /* K after RoPE: [n_tokens][n_kv_heads][d_head] */
    const float *v; /* [n_tokens][n_kv_heads][d_head] */
    /*
     * Q and K before RoPE, in the shapes of q and k. They are NULL unless the hook has set
     * wants_pre. In models without RoPE, q_pre and k_pre point to q and k.
     */
    const float *q_pre;
    const float *k_pre;
    /*
     * Input of the projections to Q, K and V: [n_tokens][d_model]. NULL unless the hook set
     * wants_input.
     */
    const float *input;
    /*
     * Position within its sequence of the first token of each sequence in this batch:
     * [n_sequences]. NULL if the batch has all tokens of every sequence.
     */
    const size_t *start;
    /*
     * Length in tokens of each complete sequence, later batches included: [n_sequences]. NULL if
     * the batch has all tokens of every sequence.
     */
    const size_t *whole;
    /*
     * Position t attends to positions t - window + 1 .. t. If window is 0, it attends to all
     * positions up to t.
     */
    size_t window;
    /* Logits of the attention sinks: [n_heads], or NULL. */
    const float *sinks;
} kvd_attention_in;

kvd_scores kvd_attention_scores(const kvd_attention_in *in, size_t head);

typedef struct kvd_attention kvd_attention;
struct kvd_attention {
    /*
     * Writes the output of every head, before the output projection, to out
     * [n_tokens][n_heads][d_head]. Attention is causal within a sequence and limited to the sliding
     * window. Returns 0, or -1 with *err.
     */
    int (*run)(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err);
    int wants_pre;
    int wants_input;
};

/*
 * Callback that receives the attention probabilities of one head of one sequence; row i of prob
 * [n][n] belongs to query i.
 */
typedef int (*kvd_probabilities)(void *ctx, const kvd_attention_in *in, size_t sequence, int head,
                                 const float *prob, size_t n, kvd_err *err);

/*
 * Exact attention on the CPU, in blocks of KVD_ATTEND_ROWS queries of one head. The order of sums
 * does not depend on the number of threads.
 */
enum { KVD_ATTEND_ROWS = 128 };

typedef struct {
    kvd_attention hook;
    /*
     * Callback that receives attention probabilities, or NULL. It is called on one thread, sequence
     * by sequence, with heads in ascending order.
     */
    kvd_probabilities probabilities;
    void *ctx;
    float *scratch;
    size_t scratch_n;
} kvd_dense_attention;

void kvd_dense_attention_init(kvd_dense_attention *a);
void kvd_dense_attention_release(kvd_dense_attention *a);

/*
 * Computes attention of one head of one sequence of n tokens. Consecutive tokens are ldq, ldk, ldv
 * and ldo floats apart.
 *   q [n][d_qk], k [n][d_qk], v [n][d_v], out [n][d_v]
 *   window  sliding window, as in kvd_attention_in
 *   scores  [n][n] scratch; on return the probabilities, 0 where a query does not see a key
 * If called between kvd_blas_serial and kvd_blas_restore (blocks.h), it runs on the calling thread,
 * otherwise on all threads.
 */
void kvd_attend_head(size_t n, size_t window, size_t d_qk, size_t d_v, const float *q, size_t ldq,
                     const float *k, size_t ldk, const float *v, size_t ldv, kvd_scores score,
                     float *scores, float *out, size_t ldo);

/*
 * Computes the part of kvd_attend_head for the queries of tokens first .. first + rows - 1, on the
 * calling thread. The arguments q and out point to the first of these tokens, k and v to token 0.
 * scores [rows][first + rows] is scratch.
 */
void kvd_attend_rows(size_t first, size_t rows, size_t window, size_t d_qk, size_t d_v,
                     const float *q, size_t ldq, const float *k, size_t ldk, const float *v,
                     size_t ldv, kvd_scores score, float *scores, float *out, size_t ldo);

/*
 * Attention hook that records the input and output of another hook, `inner`. For every layer it
 * calls `record` with Q, K and V, then the hook `inner`, then `output` with the attention output of
 * `inner`. `output` may be NULL. hook.wants_pre and hook.wants_input are initialised from `inner`.
 * The caller sets wants_pre to 1 if `record` reads Q and K before RoPE, and wants_input to 1 if it
 * reads the input of the projections. The first error ends the run.
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
