/*
 * The hook through which the forward pass passes Q, K and V to attention. Dense attention, the
 * capture that records Q, K and V, and every KV cache implement it. The forward pass depends only
 * on this header, not on any implementation.
 */
#ifndef KVD_MODEL_PASS_ATTENTION_H
#define KVD_MODEL_PASS_ATTENTION_H

#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/*
 * The input of attention for one layer of one batch. The rows of all sequences follow one another
 * without padding.
 */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    const size_t *offset;  /* [n_sequences + 1]; rows offset[s] .. offset[s+1]-1 are sequence s */
    size_t first_sequence; /* index of the batch's first sequence in the corpus */
    size_t n_tokens;       /* offset[n_sequences] */
    const float *q;        /* [n_tokens][n_heads][d_head]     after RoPE */
    const float *k;        /* [n_tokens][n_kv_heads][d_head]  after RoPE */
    const float *v;        /* [n_tokens][n_kv_heads][d_head] */
    /*
     * Q and K before RoPE; NULL unless the hook set wants_pre. In a model without RoPE they point
     * to q and k.
     */
    const float *q_pre;
    const float *k_pre;
    /*
     * [n_tokens][d_model] Input of the products that give Q, K and V: the residual stream after the
     * norm before these products, if the model has one. NULL unless the hook set wants_input.
     */
    const float *input;
    /*
     * [n_sequences] position in its sequence of the first row, for sequences continued from earlier
     * batches; NULL if all sequences are whole
     */
    const size_t *start;
    /*
     * [n_sequences] final length of each running sequence in tokens; NULL for whole sequences
     * (model/pass/batch.h)
     */
    const size_t *whole;
    /*
     * Sliding window of this layer: row t of a sequence sees rows t - window + 1 .. t; 0: row t
     * sees all rows up to t (kvd_config_window).
     */
    size_t window;
    const float *sinks; /* [n_heads] sink of each head in this layer; NULL: the model has none */
} kvd_attention_in;

/*
 * Returns the parameters of the attention scores (scale, cap, sink) of a query head in this layer.
 */
kvd_scores kvd_attention_scores(const kvd_attention_in *in, size_t head);

typedef struct kvd_attention kvd_attention;
struct kvd_attention {
    /*
     * Writes the attention output of every head, before the output projection, to out
     * [n_tokens][n_heads][d_head]. Attention is causal within a sequence and limited to the window;
     * kvd_config_scores gives the scale of the scores.
     */
    int (*run)(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err);
    int wants_pre;   /* 1 if the hook needs q_pre and k_pre */
    int wants_input; /* 1 if the hook needs input */
};

/*
 * Callback that receives the attention probabilities of one head of one sequence: prob [n][n], one
 * row per query.
 */
typedef int (*kvd_probabilities)(void *ctx, const kvd_attention_in *in, size_t sequence, int head,
                                 const float *prob, size_t n, kvd_err *err);

/*
 * Exact attention. For each head it computes a product for scores, a causal softmax, and a product
 * with V, in blocks of KVD_ATTEND_ROWS queries. A block reads the keys from the first to the last
 * that any of its queries sees. Blocks and heads are spread over threads; the order of sums does
 * not depend on the number of threads.
 */
enum { KVD_ATTEND_ROWS = 128 };

typedef struct {
    kvd_attention hook;
    /*
     * Optional callback that receives the attention probabilities, or NULL. It is called on one
     * thread, sequence by sequence, with heads in order.
     */
    kvd_probabilities probabilities;
    void *ctx;
    float *scratch;
    size_t scratch_n;
} kvd_dense_attention;

void kvd_dense_attention_init(kvd_dense_attention *a);
void kvd_dense_attention_release(kvd_dense_attention *a);

/*
 * Computes attention for one head of one sequence; shared by dense attention and the caches.
 *   q [n][d_qk] with leading dimension ldq; k [n][d_qk] with ldk; v [n][d_v] with ldv;
 *   out [n][d_v] with ldo
 *   window as in kvd_attention_in
 *   scores [n][n] scratch; on return it holds the probabilities (0 above the diagonal and before
 *   the window)
 * Inside a parallel region (between kvd_blas_serial and kvd_blas_restore, blocks.h) it runs on the
 * calling thread, otherwise on all threads.
 */
void kvd_attend_head(size_t n, size_t window, size_t d_qk, size_t d_v, const float *q, size_t ldq,
                     const float *k, size_t ldk, const float *v, size_t ldv, kvd_scores score,
                     float *scores, float *out, size_t ldo);

/*
 * Computes rows first .. first + rows - 1 of kvd_attend_head on the calling thread, without keeping
 * the probabilities. q and out point to the first of these rows, k and v to row 0 of the sequence;
 * scores [rows][first + rows] is scratch. A caller with its own threads can run the blocks of all
 * heads in parallel.
 */
void kvd_attend_rows(size_t first, size_t rows, size_t window, size_t d_qk, size_t d_v,
                     const float *q, size_t ldq, const float *k, size_t ldk, const float *v,
                     size_t ldv, kvd_scores score, float *scores, float *out, size_t ldo);

/*
 * A hook that records: it calls `record` with Q, K and V of every layer, then lets `inner` compute.
 * If `output` is not NULL, it is called with the attention output afterwards. hook.wants_pre and
 * hook.wants_input start with inner's values; set them to 1 if `record` reads these rows. The first
 * error ends the run.
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
