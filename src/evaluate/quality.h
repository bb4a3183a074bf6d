/* Quality of next-token predictions against text and against the uncompressed model. */
#ifndef KVD_EVALUATE_QUALITY_H
#define KVD_EVALUATE_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/stats.h"
#include "model/pass/attention.h"

/*
 * Sums over the predicted tokens of one sequence (n - 1 of n). They are doubles, so that the
 * bootstrap can form ratios of them.
 */
typedef struct {
    double n;     /* number of predictions */
    double nll;   /* -log p(next token), summed, in nats */
    double top1;  /* number of predictions whose argmax is the next token */
    double kl;    /* KL(reference || this), summed, in nats */
    double agree; /* number of predictions whose argmax is that of the reference */
} kvd_quality;

/*
 * Adds the quality of n predictions to *q, from logits [n][vocab] and the true tokens target [n].
 * If reference [n][vocab] is NULL, kl and agree do not change. log-sum-exp is computed in double.
 * The argmax is the first of equal logits. Fails on a logit that is not finite, naming row and
 * column, and on a target that is not below vocab, naming its row.
 */
int kvd_quality_add(kvd_quality *q, const float *logits, const float *reference,
                    const uint32_t *target, size_t n, size_t vocab, kvd_err *err);

/* Change of one token prediction from that of the uncompressed reference. */
typedef struct {
    float kl;       /* KL(reference || this), nats */
    float p_change; /* probability of the next token, minus its probability in the reference */
} kvd_prediction_change;

/*
 * Adds predictions as kvd_quality_add does, and also stores the change of each in each [n], which
 * requires the reference. `each` may be NULL.
 */
int kvd_quality_add_each(kvd_quality *q, const float *logits, const float *reference,
                         const uint32_t *target, size_t n, size_t vocab,
                         kvd_prediction_change *each, kvd_err *err);

/*
 * Distribution of prediction changes, as llama-perplexity --kl-divergence prints it. Quantiles
 * interpolate linearly between the sorted values.
 */
typedef struct {
    /* median, quantiles and maximum of KL in nats; mean p_change */
    double kl_median, kl_p90, kl_p99, kl_p999, kl_max, p_change;
} kvd_change_summary;

/* Summarises the changes of n >= 1 predictions. */
int kvd_quality_changes(const kvd_prediction_change *each, size_t n, kvd_change_summary *out,
                        kvd_err *err);

/*
 * Summary over sequences, with 95 % intervals by bootstrap over sequences (2000 resamples, the same
 * for all columns). perplexity is exp(mean nll). top1_share, set by kvd_quality_compare, is top1 /
 * top1 of the reference, paired by sequence. Values that do not exist are NaN: the interval of a
 * single sequence, and the share if the reference has no correct prediction. The interval of the
 * share is NaN too if a resample of the reference has none.
 */
typedef struct {
    kvd_interval nll, perplexity, top1, kl, agree, top1_share;
} kvd_quality_summary;

int kvd_quality_summarise(const kvd_quality *per_sequence, size_t n, uint64_t seed,
                          kvd_quality_summary *out, kvd_err *err);
int kvd_quality_compare(const kvd_quality *per_sequence, const kvd_quality *reference, size_t n,
                        uint64_t seed, kvd_quality_summary *out, kvd_err *err);

/*
 * Compares as kvd_quality_compare does, with equal weight for every text: every column is the mean
 * over texts of the text's column, perplexity is exp of the mean nll, and resamples draw within
 * texts (kvd_bootstrap_strata). Sequences first[i] .. first[i + 1] - 1 are text i; no text is
 * empty.
 */
int kvd_quality_compare_texts(const kvd_quality *per_sequence, const kvd_quality *reference,
                              const size_t *first, size_t n_texts, uint64_t seed,
                              kvd_quality_summary *out, kvd_err *err);

/*
 * Distance of the attention outputs of a compressed run from those of the uncompressed run, per
 * layer and query head, before the output projection (ZDC 4.2; D-25: of O^h, not of O_L, which
 * mixes heads). In a compressed run every layer is compressed, so the outputs of an upper layer
 * also contain the errors of lower layers.
 */

/*
 * Attention outputs of the uncompressed run, for one batch or several. One capture fills them,
 * another reads them.
 */
typedef struct {
    float *out; /* [n_layers][max_tokens][n_heads * d_head] */
    size_t max_tokens, width;
    /* Index in `out` of the first token of the current batch. */
    size_t first;
    int n_layers;
} kvd_kept_attention;

int kvd_kept_attention_init(kvd_kept_attention *k, const kvd_config *c, size_t max_tokens,
                            kvd_err *err);
void kvd_kept_attention_release(kvd_kept_attention *k);
/* Callback for `output` of kvd_capture; ctx is a kvd_kept_attention, which it fills. */
int kvd_kept_attention_save(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/*
 * Sums of the errors of attention outputs of one run over all batches; the arrays are
 * [n_layers][n_heads]. u is an output of the uncompressed run, v that of this run.
 */
typedef struct {
    const kvd_kept_attention *kept; /* outputs u, borrowed */
    int n_layers, n_heads, d_head;
    double *diff2;    /* sum |v - u|^2 */
    double *norm2;    /* sum |u|^2 */
    double *relative; /* sum |v - u| / |u| over elements with u != 0 */
    /* number of elements with u != 0 */
    double *n;
    double *n_zero; /* number of elements with u = 0, which have no relative error */
} kvd_attention_error;

int kvd_attention_error_init(kvd_attention_error *e, const kvd_kept_attention *kept,
                             const kvd_config *c, kvd_err *err);
void kvd_attention_error_release(kvd_attention_error *e);
/* Callback for `output` of kvd_capture; ctx is a kvd_attention_error, to which it adds. */
int kvd_attention_error_add(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* Adds, in all layers, the sums of a batch of n rows whose outputs v equal u. */
void kvd_attention_error_add_none(kvd_attention_error *e, const kvd_kept_attention *u, size_t n);

/* Return ||v - u|| / ||u||, or ZDC's elementwise D, of one head; NaN if u is all zero. */
double kvd_attention_error_norm(const kvd_attention_error *e, int layer, int head);
double kvd_attention_error_zdc(const kvd_attention_error *e, int layer, int head);
/* Sets the means of both errors over layers and heads, and the number of elements left out of D. */
void kvd_attention_error_mean(const kvd_attention_error *e, double *norm, double *zdc,
                              double *n_zero);

#endif
