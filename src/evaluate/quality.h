/* Quality of next-token predictions, compared with the text's own tokens and with the uncompressed
 * model's predictions. */
#ifndef KVD_EVALUATE_QUALITY_H
#define KVD_EVALUATE_QUALITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "common/stats.h"
#include "model/pass/attention.h"

/* sums of quality measures over the predictions of one sequence */
typedef struct {
    double n;    /* number of predicted tokens */
    double nll;  /* -log p(next token) in nats */
    double top1; /* number of predictions whose most probable token is the next token */
    double kl;   /* KL divergence from the uncompressed model in nats */
    /* number of predictions whose most probable token is also the most probable token of the
     * uncompressed model */
    double agree;
} kvd_quality;

typedef struct {
    float kl;       /* KL divergence from the uncompressed model, in nats */
    float p_change; /* change of p(next token) from the uncompressed model */
} kvd_prediction_change;

/* Adds the quality of n predictions to *q. logits [n][vocab]; reference [n][vocab]: logits of the
 * uncompressed model, or NULL; target [n]: right tokens.
 *
 * `each` [n], unless NULL, receives how each prediction differs from the uncompressed model's.
 * Fails if a logit is not finite. */
int kvd_quality_add(kvd_quality *q, const float *logits, const float *reference,
                    const uint32_t *target, size_t n, size_t vocab, kvd_prediction_change *each,
                    kvd_err *err);

/* how compression changes predictions, in the statistics that llama-perplexity --kl-divergence
 * prints */
typedef struct {
    /* median, percentiles and maximum of the KL divergence in nats, and mean change of the correct
     * token's probability by compression */
    double kl_median, kl_p90, kl_p99, kl_p999, kl_max, p_change;
} kvd_change_summary;

int kvd_quality_changes(const kvd_prediction_change *each, size_t n, kvd_change_summary *out,
                        kvd_err *err);

/* mean quality with 95 % bootstrap intervals. perplexity: exp(mean nll). top1_share: number of
 * correct predictions, divided by the uncompressed model's number. Undefined values are NaN. */
typedef struct {
    kvd_interval nll, perplexity, top1, kl, agree, top1_share;
} kvd_quality_summary;

int kvd_quality_compare(const kvd_quality *per_sequence, const kvd_quality *reference, size_t n,
                        uint64_t seed, kvd_quality_summary *out, kvd_err *err);

/* Computes mean quality with compression (`per_sequence`) and compares it with the uncompressed
 * model (`reference`). Each text has equal weight. `first` has n_texts + 1 elements: the index of
 * the first sequence of each text, then the number of all sequences. */
int kvd_quality_compare_texts(const kvd_quality *per_sequence, const kvd_quality *reference,
                              const size_t *first, size_t n_texts, uint64_t seed,
                              kvd_quality_summary *out, kvd_err *err);

/* attention outputs (before W_O) of the uncompressed model, kept to measure how compression changes
 * them (ZDC paper, section 4.2) */

typedef struct {
    float *out; /* [n_layers][max_tokens][n_heads * d_head] */
    size_t max_tokens, width;
    size_t first; /* index in `out` of the batch's first token */
    int n_layers;
} kvd_kept_attention;

int kvd_kept_attention_init(kvd_kept_attention *k, const kvd_config *c, size_t max_tokens,
                            kvd_err *err);
void kvd_kept_attention_release(kvd_kept_attention *k);
/* Stores the attention outputs of one layer. `ctx` points to a kvd_kept_attention. */
int kvd_kept_attention_save(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* sums, per layer and head, of differences between uncompressed attention outputs u and compressed
 * ones v */
typedef struct {
    const kvd_kept_attention *kept; /* the outputs u, borrowed */
    int n_layers, n_heads, d_head;
    double *diff2;    /* sum of |v - u|^2 */
    double *norm2;    /* sum of |u|^2 */
    double *relative; /* sum of |v - u| / |u| where u != 0 */
    double *n;        /* number of outputs with u != 0 */
    double *n_zero;   /* number of outputs with u = 0 */
} kvd_attention_error;

int kvd_attention_error_init(kvd_attention_error *e, const kvd_kept_attention *kept,
                             const kvd_config *c, kvd_err *err);
void kvd_attention_error_release(kvd_attention_error *e);
/* Compares one layer's attention outputs `out` with the uncompressed outputs. Adds the differences
 * to the sums in the kvd_attention_error that `ctx` points to. */
int kvd_attention_error_add(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err);

/* Adds n tokens with error 0 to the sums of all layers and heads. u: attention outputs of these
 * tokens, which compression does not change. */
void kvd_attention_error_add_none(kvd_attention_error *e, const kvd_kept_attention *u, size_t n);

/* Return the relative error of a head's attention outputs v, compared with the uncompressed outputs
 * u. NaN if all u are 0.
 *
 * - kvd_attention_error_norm: ||v - u|| / ||u|| over all tokens
 * - kvd_attention_error_zdc: mean of |v - u| / |u| over all elements with u != 0 */
double kvd_attention_error_norm(const kvd_attention_error *e, int layer, int head);
double kvd_attention_error_zdc(const kvd_attention_error *e, int layer, int head);
/* Writes the means over layers and heads of the errors that kvd_attention_error_norm and
 * kvd_attention_error_zdc return. *n_zero: number of uncompressed outputs that are 0 and not
 * counted in *zdc. */
void kvd_attention_error_mean(const kvd_attention_error *e, double *norm, double *zdc,
                              double *n_zero);

#endif
