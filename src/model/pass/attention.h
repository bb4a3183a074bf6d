/* Interface of attention on the CPU. The forward pass calls a hook with Q, K and V; the hook
 * computes attention, densely or with a KV cache. */
#ifndef KVD_MODEL_PASS_ATTENTION_H
#define KVD_MODEL_PASS_ATTENTION_H

#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/* Input of attention for one layer of one batch. Row i of an array belongs to token i. */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /* [n_sequences + 1] Sequence s has the tokens offset[s] .. offset[s + 1] - 1. */
    const size_t *offset;
    size_t first_sequence; /* index in the corpus of the batch's first sequence */
    size_t n_tokens;
    const float *q; /* after RoPE: [n_tokens][n_heads][d_head] */
    const float *k; /* after RoPE: [n_tokens][n_kv_heads][d_head] */
    const float *v; /* [n_tokens][n_kv_heads][d_head] */
    /* Q and K before RoPE; NULL unless kvd_attention.wants_pre is set. */
    const float *q_pre;
    const float *k_pre;
    /* [n_tokens][d_model] input of the layer; NULL unless kvd_attention.wants_input is set */
    const float *input;
    /* Position of each sequence's first token in its text; NULL if sequences are whole texts. */
    const size_t *start;
    /* Number of tokens of each sequence's text; NULL if sequences are whole texts. */
    const size_t *whole;
    /* Sliding window: number of keys that a query sees, including the key of its own token; 0 means
     * all. */
    size_t window;
    /* Logits of the attention sinks, [n_heads]; NULL if the model has none. */
    const float *sinks;
} kvd_attention_in;

kvd_scores kvd_attention_scores(const kvd_attention_in *in, size_t head);

typedef struct kvd_attention kvd_attention;
struct kvd_attention {
    /* Writes causal attention, before the output projection, to out [n_tokens][n_heads][d_head]. */
    int (*run)(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err);
    int wants_pre;
    int wants_input;
};

/* Callback: receives the attention probabilities of one head in one sequence. Row i of prob [n][n]
 * belongs to query i. */
typedef int (*kvd_probabilities)(void *ctx, const kvd_attention_in *in, size_t sequence, int head,
                                 const float *prob, size_t n, kvd_err *err);

/* number of queries whose attention scores are computed at a time */
enum { KVD_ATTEND_ROWS = 128 };

typedef struct {
    kvd_attention hook;
    /* Callback that receives the attention probabilities of every head, or NULL. */
    kvd_probabilities probabilities;
    void *ctx;
    float *scratch;
    size_t scratch_n;
} kvd_dense_attention;

void kvd_dense_attention_init(kvd_dense_attention *a);
void kvd_dense_attention_release(kvd_dense_attention *a);

/* Computes attention of one head of one sequence. Uses all CPU threads unless the caller has called
 * kvd_blas_serial.
 *
 * q, k: [n][d_qk]; v, out: [n][d_v]. Their rows begin ldq, ldk, ldv and ldo floats apart. scores
 * [n][n] receives the probabilities. */
void kvd_attend_head(size_t n, size_t window, size_t d_qk, size_t d_v, const float *q, size_t ldq,
                     const float *k, size_t ldk, const float *v, size_t ldv, kvd_scores score,
                     float *scores, float *out, size_t ldo);

/* Like kvd_attend_head, but only for queries first .. first + rows - 1 and on the calling thread. q
 * and out point to query `first`, k and v to token 0. scores [rows][first + rows] is scratch
 * memory. */
void kvd_attend_rows(size_t first, size_t rows, size_t window, size_t d_qk, size_t d_v,
                     const float *q, size_t ldq, const float *k, size_t ldk, const float *v,
                     size_t ldv, kvd_scores score, float *scores, float *out, size_t ldo);

/* Attention hook that calls `record` with Q, K and V, then `inner` to compute attention, then
 * `output` with the result. `record` and `output` may be NULL. */
typedef struct {
    kvd_attention hook;
    kvd_attention *inner;
    int (*record)(void *ctx, const kvd_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);
    void *ctx;
} kvd_capture;

void kvd_capture_init(kvd_capture *t, kvd_attention *inner);

#endif
