/* Quality of next-token predictions against the text and the uncompressed model. */
#ifndef KVD_EVALUATE_QUALITY_H
#define KVD_EVALUATE_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/stats.h"
#include "model/pass/attention.h"

/* Sums over the predictions of one sequence. */
typedef struct {
    double n;    /* predicted tokens */
    double nll;  /* -log p(next token), nats */
    double top1; /* predictions whose top token is the next token */
    /* KL divergence from the uncompressed model, nats. */
    double kl;
    /* Predictions with the uncompressed model's top token. */
    double agree;
} kvd_quality;

/*
 * Adds n predictions to *q. logits, reference (uncompressed; NULL: no kl, agree): [n][vocab];
 * target [n]: next tokens. The first of equal logits is the largest. Fails, naming the row, for
 * non-finite logits or targets >= vocab.
 */
int kvd_quality_add(kvd_quality *q, const float *logits, const float *reference,
                    const uint32_t *target, size_t n, size_t vocab, kvd_err *err);

typedef struct {
    /* KL divergence from the uncompressed model, in nats. */
    float kl;
    /* p(next token) minus the uncompressed model's */
    float p_change;
} kvd_prediction_change;

/* Also writes each prediction's change to each [n], or NULL; requires `reference`. */
int kvd_quality_add_each(kvd_quality *q, const float *logits, const float *reference,
                         const uint32_t *target, size_t n, size_t vocab,
                         kvd_prediction_change *each, kvd_err *err);

/* Distribution of changes, as llama-perplexity --kl-divergence, with interpolated quantiles. */
typedef struct {
    /* KL divergence (nats): median, quantiles, maximum. p_change: mean. */
    double kl_median, kl_p90, kl_p99, kl_p999, kl_max, p_change;
} kvd_change_summary;

/* Summarises n >= 1 changes. */
int kvd_quality_changes(const kvd_prediction_change *each, size_t n, kvd_change_summary *out,
                        kvd_err *err);

/*
 * Means over sequences, 95 % intervals from 2000 bootstrap resamples. perplexity: exp(mean nll).
 * top1_share: top-1 accuracy / uncompressed, only by kvd_quality_compare... Undefined values are
 * NaN.
 */
typedef struct {
    kvd_interval nll, perplexity, top1, kl, agree, top1_share;
} kvd_quality_summary;

int kvd_quality_summarise(const kvd_quality *per_sequence, size_t n, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);
int kvd_quality_compare(const kvd_quality *per_sequence, const kvd_quality *reference, size_t n,
                        uint64_t seed, kvd_quality_summary *out, kvd_err *err);

/*
 * Texts have equal weight: means over texts, resamples per text. Text i: sequences first[i] ..
 * first[i + 1] - 1, not empty.
 */
int kvd_quality_compare_texts(const kvd_quality *per_sequence, const kvd_quality *reference,
                              const size_t *first, size_t n_texts, uint64_t seed,
                              kvd_quality_summary *out, kvd_err *err);

/*
 * Errors of attention outputs (ZDC, section 4.2). An output: a head's vector for a token, before
 * W_O (D-25 in docs/readings.md).
 */

typedef struct {
    float *out; /* [n_layers][max_tokens][n_heads * d_head] */
    size_t max_tokens, width;
    /* Index in `out` of the batch's first token. */
    size_t first;
    int n_layers;
} kvd_kept_attention;

int kvd_kept_attention_init(kvd_kept_attention *k, const kvd_config *c, size_t max_tokens,
                            kvd_err *err);
void kvd_kept_attention_release(kvd_kept_attention *k);
/* Stores the outputs of a layer. ctx: a kvd_kept_attention. */
int kvd_kept_attention_save(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* Sums over batches, [n_layers][n_heads]; outputs u uncompressed, v compressed. */
typedef struct {
    const kvd_kept_attention *kept; /* outputs u, borrowed */
    int n_layers, n_heads, d_head;
    /* Sum of |v - u|^2, outputs u (uncompressed), v (compressed). */
    double *diff2;
    /* Sum of |u|^2 over uncompressed outputs u. */
    double *norm2;
    /* Sum of |v - u| / |u| over uncompressed outputs u != 0. */
    double *relative;
    /* Number of uncompressed outputs u != 0. */
    double *n;
    /* Number of uncompressed outputs u = 0. */
    double *n_zero;
} kvd_attention_error;

int kvd_attention_error_init(kvd_attention_error *e, const kvd_kept_attention *kept,
                             const kvd_config *c, kvd_err *err);
void kvd_attention_error_release(kvd_attention_error *e);
/* Adds a layer's error. ctx: a kvd_attention_error. */
int kvd_attention_error_add(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* Adds n tokens without error in any layer. */
void kvd_attention_error_add_none(kvd_attention_error *e, const kvd_kept_attention *u, size_t n);

/*
 * _norm: ||v - u|| / ||u|| of one head. _zdc: ZDC's error D, mean of |v - u| / |u| over u != 0. NaN
 * if all u are 0.
 */
double kvd_attention_error_norm(const kvd_attention_error *e, int layer, int head);
double kvd_attention_error_zdc(const kvd_attention_error *e, int layer, int head);
/* Means over layers and heads. *n_zero: outputs u = 0, not part of *zdc. */
void kvd_attention_error_mean(const kvd_attention_error *e, double *norm, double *zdc,
                              double *n_zero);

#endif
