/* Quality of next-token predictions, compared with the text and with the uncompressed model. */
#ifndef KVD_EVALUATE_QUALITY_H
#define KVD_EVALUATE_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/stats.h"
#include "model/pass/attention.h"

/*
 * Sums over the predictions of one sequence. All are doubles, because they are divided by each
 * other.
 */
typedef struct {
    double n;    /* number of predicted tokens */
    double nll;  /* -log p(next token), summed, in nats */
    double top1; /* number of predictions whose most probable token is the next token */
    /* KL divergence from the uncompressed model, summed, in nats. */
    double kl;
    /* Number of predictions with the same most probable token as the uncompressed model. */
    double agree;
} kvd_quality;

/*
 * Adds the quality of n predictions to *q, from logits [n][vocab] and the true next tokens target
 * [n]. `reference` [n][vocab] has the logits of the uncompressed model. If it is NULL, kl and agree
 * do not change. If several logits are equal, the first counts as the largest.
 *
 * Fails if a logit is not finite or a target is not below vocab. The message names the row.
 */
int kvd_quality_add(kvd_quality *q, const float *logits, const float *reference,
                    const uint32_t *target, size_t n, size_t vocab, kvd_err *err);

typedef struct {
    /* KL divergence from the uncompressed model, in nats. */
    float kl;
    /* probability of the true next token, minus that under the uncompressed model */
    float p_change;
} kvd_prediction_change;

/*
 * Adds n predictions to *q like kvd_quality_add, and writes the change of each prediction to each
 * [n]. `each` may be NULL; otherwise `reference` must not be NULL.
 */
int kvd_quality_add_each(kvd_quality *q, const float *logits, const float *reference,
                         const uint32_t *target, size_t n, size_t vocab,
                         kvd_prediction_change *each, kvd_err *err);

/*
 * Distribution, over single predictions, of the changes from the uncompressed model, as in
 * llama-perplexity --kl-divergence. Quantiles interpolate linearly between the sorted values.
 */
typedef struct {
    /*
     * Median, quantiles 0.9, 0.99 and 0.999, and maximum of the KL divergence in nats, and the mean
     * change of the probability of the next token (p_change).
     */
    double kl_median, kl_p90, kl_p99, kl_p999, kl_max, p_change;
} kvd_change_summary;

/* Computes the distribution of n changes. n must be at least 1. */
int kvd_quality_changes(const kvd_prediction_change *each, size_t n, kvd_change_summary *out,
                        kvd_err *err);

/*
 * Means over sequences with 95 % confidence intervals, from 2000 bootstrap resamples of the
 * sequences. perplexity is exp(mean nll). top1_share is top-1 accuracy divided by that of the
 * uncompressed model; it is set only by functions that compare with the uncompressed model
 * (kvd_quality_compare...). Values that do not exist are NaN, such as the interval of a single
 * sequence, or top1_share if the uncompressed model has no correct prediction.
 */
typedef struct {
    kvd_interval nll, perplexity, top1, kl, agree, top1_share;
} kvd_quality_summary;

int kvd_quality_summarise(const kvd_quality *per_sequence, size_t n, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);
int kvd_quality_compare(const kvd_quality *per_sequence, const kvd_quality *reference, size_t n,
                        uint64_t seed, kvd_quality_summary *out, kvd_err *err);

/*
 * Compares a compressed run with the uncompressed model. Every text has the same weight: a field is
 * computed for each text, and its mean over texts is stored. Perplexity is exp of the mean nll.
 * Bootstrap resamples draw from each text separately. Text i has the sequences first[i] .. first[i
 * + 1] - 1; no text may be empty.
 */
int kvd_quality_compare_texts(const kvd_quality *per_sequence, const kvd_quality *reference,
                              const size_t *first, size_t n_texts, uint64_t seed,
                              kvd_quality_summary *out, kvd_err *err);

/*
 * Errors of the attention outputs in a compressed run, relative to the uncompressed run (paper ZDC,
 * section 4.2). An output is the vector that one head computes for one token, before the output
 * projection W_O (D-25 in docs/readings.md).
 */

/* Attention outputs of the uncompressed model. */
typedef struct {
    float *out; /* attention outputs: [n_layers][max_tokens][n_heads * d_head] */
    size_t max_tokens, width;
    /* Index in `out` of the first token of the current batch. */
    size_t first;
    int n_layers;
} kvd_kept_attention;

int kvd_kept_attention_init(kvd_kept_attention *k, const kvd_config *c, size_t max_tokens,
                            kvd_err *err);
void kvd_kept_attention_release(kvd_kept_attention *k);
/* Attention callback that stores the outputs of a layer. `ctx` is a kvd_kept_attention. */
int kvd_kept_attention_save(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/*
 * Sums of attention errors over all batches; the arrays are [n_layers][n_heads]. u is an output of
 * the uncompressed model, v that of the compressed run.
 */
typedef struct {
    const kvd_kept_attention *kept; /* attention outputs u of the uncompressed model, borrowed */
    int n_layers, n_heads, d_head;
    /* Sum of |v - u|^2 over outputs u (uncompressed) and v (compressed). */
    double *diff2;
    /* Sum of |u|^2 over outputs u of the uncompressed model. */
    double *norm2;
    /* Sum of |v - u| / |u| over outputs u (uncompressed, not 0) and v (compressed). */
    double *relative;
    /* Number of outputs of the uncompressed model that are not 0. */
    double *n;
    /* Number of outputs of the uncompressed model that are 0 and have no relative error. */
    double *n_zero;
} kvd_attention_error;

int kvd_attention_error_init(kvd_attention_error *e, const kvd_kept_attention *kept,
                             const kvd_config *c, kvd_err *err);
void kvd_attention_error_release(kvd_attention_error *e);
/* Attention callback that adds the error of a layer. `ctx` is a kvd_attention_error. */
int kvd_attention_error_add(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/*
 * Adds n tokens without any error to *e: in all layers their attention outputs are equal to those
 * of the uncompressed model.
 */
void kvd_attention_error_add_none(kvd_attention_error *e, const kvd_kept_attention *u, size_t n);

/*
 * kvd_attention_error_norm returns ||v - u|| / ||u|| over all outputs u (uncompressed) and v
 * (compressed) of one head. kvd_attention_error_zdc returns the error D of the paper ZDC, the mean
 * of |v - u| / |u| over the elements with u != 0. If all elements of u are 0, both return NaN.
 */
double kvd_attention_error_norm(const kvd_attention_error *e, int layer, int head);
double kvd_attention_error_zdc(const kvd_attention_error *e, int layer, int head);
/*
 * Computes the means over layers and heads of kvd_attention_error_norm and kvd_attention_error_zdc.
 * *n_zero receives the number of outputs that are not part of *zdc, because they are 0 in the
 * uncompressed model.
 */
void kvd_attention_error_mean(const kvd_attention_error *e, double *norm, double *zdc,
                              double *n_zero);

#endif
