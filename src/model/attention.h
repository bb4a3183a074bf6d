/*
 * The one door through which the forward pass hands out Q, K and V, and behind which dense
 * attention, the tap that records, and every KV cache stand. The forward pass knows no more
 * of them than this header.
 */
#ifndef KVD_MODEL_ATTENTION_H
#define KVD_MODEL_ATTENTION_H

#include <stddef.h>

#include "common/err.h"
#include "model/config.h"

/* One layer of one batch. Rows of all sequences stand one after another (no padding). */
typedef struct {
    const kvd_config *config;
    int layer;
    size_t n_sequences;
    const size_t *offset;  /* [n_sequences + 1]; rows offset[s] .. offset[s+1]-1 are sequence s   */
    size_t first_sequence; /* index of the batch's first sequence in the corpus                   */
    size_t n_tokens;       /* offset[n_sequences]                                                 */
    const float *q;        /* [n_tokens][n_heads][d_head]     after RoPE                          */
    const float *k;        /* [n_tokens][n_kv_heads][d_head]  after RoPE                          */
    const float *v;        /* [n_tokens][n_kv_heads][d_head]                                      */
    const float *q_pre;    /* before RoPE; NULL unless the door asked for it (wants_pre); q and k    */
    const float *k_pre;    /* themselves in a model without RoPE                                   */
    const size_t *start;   /* [n_sequences] position of the first row of each running sequence, and    */
    const size_t *whole;   /* how many tokens it will have; NULL: whole sequences (model/batch.h)      */
    size_t window;         /* of this layer: row t of a sequence sees rows t - window + 1 .. t;       */
                           /* 0: all rows up to t (kvd_config_window)                                */
} kvd_attention_in;

typedef struct kvd_attention kvd_attention;
struct kvd_attention {
    /*
     * Writes the attention output of every head, before the output projection:
     * out [n_tokens][n_heads][d_head]. Causal within a sequence, within the window, scale 1/sqrt(d_head).
     */
    int (*run)(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err);
    int wants_pre; /* 1: q_pre and k_pre are needed */
};

/* Called with the probabilities of one head of one sequence: prob [n][n], row = query. */
typedef int (*kvd_probabilities)(void *ctx, const kvd_attention_in *in, size_t sequence, int head,
                                 const float *prob, size_t n, kvd_err *err);

/*
 * Exact attention: per head one product for scores, a causal softmax, one product with V, in blocks
 * of KVD_ATTEND_ROWS queries with the keys from the first to the last that one of them sees. Blocks and heads
 * are spread over threads; the order of sums does not depend on that.
 */
enum { KVD_ATTEND_ROWS = 128 };

typedef struct {
    kvd_attention door;
    kvd_probabilities probabilities; /* NULL unless asked for; called on one thread, sequence by
                                        sequence, heads in order                                 */
    void *ctx;
    float *scratch;
    size_t scratch_n;
} kvd_dense_attention;

void kvd_dense_attention_init(kvd_dense_attention *a);
void kvd_dense_attention_release(kvd_dense_attention *a);

/*
 * The arithmetic of one head of one sequence, shared by dense attention and by the caches:
 *   q [n][d_qk] leading dimension ldq; k [n][d_qk] ldk; v [n][d_v] ldv; out [n][d_v] ldo
 *   window as in kvd_attention_in
 *   scores [n][n] scratch; on return it holds the probabilities (0 above the diagonal and before the
 *   window)
 * On the calling thread when inside a parallel region (between kvd_blas_serial and
 * kvd_blas_restore, blocks.h), else on all.
 */
void kvd_attend_head(size_t n, size_t window, size_t d_qk, size_t d_v, const float *q, size_t ldq,
                     const float *k, size_t ldk, const float *v, size_t ldv, float scale, float *scores,
                     float *out, size_t ldo);

/*
 * Rows first .. first + rows - 1 of the same, on the calling thread, without keeping the
 * probabilities: q and out point to the first of these rows, k and v to row 0 of the sequence;
 * scores [rows][first + rows] is scratch. A caller with threads of its own runs the blocks of all
 * heads side by side.
 */
void kvd_attend_rows(size_t first, size_t rows, size_t window, size_t d_qk, size_t d_v, const float *q,
                     size_t ldq, const float *k, size_t ldk, const float *v, size_t ldv, float scale,
                     float *scores, float *out, size_t ldo);

/*
 * Tap: calls `record` with Q, K, V of every layer, then lets `inner` compute; `output`, when not
 * NULL, is called with the attention output afterwards. door.wants_pre starts as inner's; set it
 * to 1 when `record` reads q_pre and k_pre. The first error ends the run.
 */
typedef struct {
    kvd_attention door;
    kvd_attention *inner;
    int (*record)(void *ctx, const kvd_attention_in *in, kvd_err *err);
    int (*output)(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);
    void *ctx;
} kvd_tap;

void kvd_tap_init(kvd_tap *t, kvd_attention *inner);

#endif
