/*
 * Quality of next-token predictions, measured against the text and against the uncompressed model.
 */
#ifndef KVD_EVALUATE_QUALITY_H
#define KVD_EVALUATE_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/stats.h"
#include "model/pass/attention.h"

/*
 * Sums over the predictions of one sequence (a sequence of n tokens has n - 1). They are doubles,
 * so that the bootstrap can form ratios of them.
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
 * [n]. `reference` [n][vocab] has the logits of the uncompressed model; if it is NULL, kl and agree
 * do not change. log-sum-exp is computed in double. If several logits are equal, the first counts
 * as the largest. Fails on a logit that is not finite, naming row and column, and on a target that
 * is not below vocab, naming its row.
 */
int kvd_quality_add(kvd_quality *q, const float *logits, const float *reference,
                    const uint32_t *target, size_t n, size_t vocab, kvd_err *err);

/* Change of one prediction from that of the uncompressed model. */
typedef struct {
    /* KL divergence from the uncompressed model, in nats. */
    float kl;
    float p_change; /* probability of the next token minus that under the uncompressed model */
} kvd_prediction_change;

/*
 * Adds n predictions to *q as kvd_quality_add does. Also writes the change of prediction i from
 * that of the uncompressed model to each[i], for which `reference` must not be NULL. The array is
 * not written if the pointer `each` is NULL.
 */
int kvd_quality_add_each(kvd_quality *q, const float *logits, const float *reference,
                         const uint32_t *target, size_t n, size_t vocab,
                         kvd_prediction_change *each, kvd_err *err);

/*
 * Distribution of the changes of single predictions, as llama-perplexity --kl-divergence prints it.
 * Quantiles interpolate linearly between the sorted values.
 */
typedef struct {
    /*
     * Median, 90 %, 99 % and 99.9 % quantile and maximum of the KL divergence in nats; mean
     * p_change.
     */
    double kl_median, kl_p90, kl_p99, kl_p999, kl_max, p_change;
} kvd_change_summary;

/* Summarises the changes of n >= 1 predictions in *out. */
int kvd_quality_changes(const kvd_prediction_change *each, size_t n, kvd_change_summary *out,
                        kvd_err *err);

/*
 * Means over sequences with 95 % confidence intervals. The intervals come from a bootstrap over
 * sequences with 2000 resamples, the same for all fields. perplexity is exp(mean nll). top1_share
 * is top-1 accuracy / that of the uncompressed model, paired by sequence; only the compare
 * functions set it.
 *
 * Values that do not exist are NaN. A single sequence has no intervals. top1_share does not exist
 * if the uncompressed model has no correct prediction, and has no interval if a bootstrap resample
 * has no correct prediction of that model.
 */
typedef struct {
    kvd_interval nll, perplexity, top1, kl, agree, top1_share;
} kvd_quality_summary;

int kvd_quality_summarise(const kvd_quality *per_sequence, size_t n, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);
int kvd_quality_compare(const kvd_quality *per_sequence, const kvd_quality *reference, size_t n,
                        uint64_t seed, kvd_quality_summary *out, kvd_err *err);

/*
 * Compares a compressed run with the uncompressed model as kvd_quality_compare does, but gives
 * every text the same weight: each field is computed for every text alone, and its mean over texts
 * is stored. Perplexity is exp of that mean of nll. Bootstrap resamples draw the sequences of each
 * text separately (kvd_bootstrap_strata). Sequences first[i] .. first[i + 1] - 1 are text i; no
 * text is empty.
 */
int kvd_quality_compare_texts(const kvd_quality *per_sequence, const kvd_quality *reference,
                              const size_t *first, size_t n_texts, uint64_t seed,
                              kvd_quality_summary *out, kvd_err *err);

/*
 * Distance of the attention outputs of a compressed run from those of the uncompressed run, per
 * layer and query head (paper ZDC, section 4.2). An attention output here is that of one head,
 * before the output projection W_O mixes heads: kvdim reads the paper so (D-25 in
 * docs/readings.md). All layers are compressed, so outputs of an upper layer also contain the
 * errors of lower layers.
 */

/*
 * Attention outputs of the uncompressed model, for one or several batches. A callback of the
 * uncompressed run fills them, one of the compressed run reads them.
 */
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
/* Callback that stores the attention output of a layer. `ctx` is a kvd_kept_attention. */
int kvd_kept_attention_save(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/*
 * Sums of the errors of attention outputs of a compressed run over all batches; the arrays are
 * [n_layers][n_heads]. u is an output of the uncompressed model, v that of the compressed run.
 */
typedef struct {
    const kvd_kept_attention *kept; /* outputs u of the uncompressed model, borrowed */
    int n_layers, n_heads, d_head;
    /*
     * Sum of |v - u|^2 over the elements of each head's attention output. u is an element in the
     * uncompressed model, v the same element in the compressed run.
     */
    double *diff2;
    /* Sum of |u|^2 over the elements u of each head's output in the uncompressed model. */
    double *norm2;
    /*
     * Sum of |v - u| / |u| over the elements of each head's attention output. u is an element in
     * the uncompressed model, v the same element in the compressed run. Elements with u = 0 are
     * left out.
     */
    double *relative;
    /*
     * Number of elements of each head's attention output that are not 0 in the uncompressed model.
     */
    double *n;
    /*
     * Number of elements of each head's attention output that are 0 in the uncompressed model and
     * therefore have no relative error.
     */
    double *n_zero;
} kvd_attention_error;

int kvd_attention_error_init(kvd_attention_error *e, const kvd_kept_attention *kept,
                             const kvd_config *c, kvd_err *err);
void kvd_attention_error_release(kvd_attention_error *e);
/*
 * Callback that adds the error of the attention output of a layer. `ctx` is a kvd_attention_error.
 */
int kvd_attention_error_add(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* Adds the sums of n tokens whose compressed outputs equal the uncompressed ones, in all layers. */
void kvd_attention_error_add_none(kvd_attention_error *e, const kvd_kept_attention *u, size_t n);

/*
 * Return the error of one head's attention outputs v against uncompressed outputs u.
 * kvd_attention_error_norm is ||v - u|| / ||u||. kvd_attention_error_zdc is the measure D of the
 * paper ZDC: the mean of |v - u| / |u| over elements. NaN if u is all zero.
 */
double kvd_attention_error_norm(const kvd_attention_error *e, int layer, int head);
double kvd_attention_error_zdc(const kvd_attention_error *e, int layer, int head);
/*
 * Writes the means over layers and heads of kvd_attention_error_norm to *norm and of
 * kvd_attention_error_zdc to *zdc. *n_zero receives the number of elements that *zdc leaves out,
 * because the uncompressed attention output is 0 there.
 */
void kvd_attention_error_mean(const kvd_attention_error *e, double *norm, double *zdc,
                              double *n_zero);

#endif
