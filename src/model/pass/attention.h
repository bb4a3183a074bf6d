/*
 * Interface of attention on the CPU: the forward pass gives Q, K and V to a hook, which computes
 * dense attention or uses a KV cache.
 */
#ifndef KVD_MODEL_PASS_ATTENTION_H
#define KVD_MODEL_PASS_ATTENTION_H

#include <stddef.h>

#include "common/err.h"
#include "model/checkpoint/config.h"

/* Input of attention for one layer of one batch. Row i of each array belongs to token i. */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    /*
     * [n_sequences + 1] First token of each sequence. Sequence s has the tokens offset[s] ..
     * offset[s + 1] - 1.
     */
    const size_t *offset;
    size_t first_sequence; /* index in the corpus of the batch's first sequence */
    size_t n_tokens;
    const float *q; /* after RoPE: [n_tokens][n_heads][d_head] */
    const float *k; /* after RoPE: [n_tokens][n_kv_heads][d_head] */
    const float *v; /* [n_tokens][n_kv_heads][d_head] */
    /* Q and K before RoPE. NULL if the hook does not set wants_pre. */
    const float *q_pre;
    const float *k_pre;
    /*
     * Input of the QKV projections, [n_tokens][d_model]. NULL if the hook does not set wants_input.
     */
    const float *input;
    /* Position of the first token of each sequence in its text, or NULL if sequences are whole. */
    const size_t *start;
    /* Length of the whole text to which each sequence belongs, or NULL if sequences are whole. */
    const size_t *whole;
    /*
     * Sliding window: position t attends to t - window + 1 .. t. If window is 0, it attends to 0 ..
     * t.
     */
    size_t window;
    /* Logits of the attention sinks, [n_heads], or NULL. */
    const float *sinks;
} kvd_attention_in;

kvd_scores kvd_attention_scores(const kvd_attention_in *in, size_t head);

typedef struct kvd_attention kvd_attention;
struct kvd_attention {
    /*
     * Writes causal attention, before the output projection, to out [n_tokens][n_heads][d_head].
     * Returns 0, or -1 with *err.
     */
    int (*run)(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err);
    int wants_pre;
    int wants_input;
};

/*
 * Callback that receives the attention probabilities of one head and sequence. Row i of prob [n][n]
 * belongs to query i.
 */
typedef int (*kvd_probabilities)(void *ctx, const kvd_attention_in *in, size_t sequence, int head,
                                 const float *prob, size_t n, kvd_err *err);

/* Number of queries in a block of exact attention on the CPU. */
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

/*
 * Computes attention of one head of one sequence; tokens are ldq, ldk, ldv and ldo floats apart.
 *   q [n][d_qk], k [n][d_qk], v [n][d_v], out [n][d_v]
 *   window  as in kvd_attention_in
 *   scores  [n][n] scratch; on return the probabilities, 0 for unseen keys
 * Between kvd_blas_serial and kvd_blas_restore it runs on the calling thread, else on all.
 */
void kvd_attend_head(size_t n, size_t window, size_t d_qk, size_t d_v, const float *q, size_t ldq,
                     const float *k, size_t ldk, const float *v, size_t ldv, kvd_scores score,
                     float *scores, float *out, size_t ldo);

/*
 * Computes queries first .. first + rows - 1 of kvd_attend_head on the calling thread; q and out
 * point to the first query. scores [rows][first + rows] is scratch.
 */
void kvd_attend_rows(size_t first, size_t rows, size_t window, size_t d_qk, size_t d_v,
                     const float *q, size_t ldq, const float *k, size_t ldk, const float *v,
                     size_t ldv, kvd_scores score, float *scores, float *out, size_t ldo);

/*
 * Hook that surrounds another hook, `inner`: calls `record` with Q, K and V before it, and `output`
 * with its result after it. `record` and `output` may be NULL.
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
