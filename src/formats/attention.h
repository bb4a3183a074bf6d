/*
 * kvdim/attention files: statistics of attention scores and probabilities. Their size does not grow
 * with the number of tokens. Files with the same model and seq_len can be added up.
 *
 * A request is one text sequence. A score is q . k / sqrt(d_head) of a query and a key that the
 * causal mask allows. The mass of a token is the attention probability that it receives from all
 * queries.
 */
#ifndef KVD_FORMATS_ATTENTION_H
#define KVD_FORMATS_ATTENTION_H

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_attention;

/*
 * Sizes of the histograms. The first and last bins hold values outside the edges. A value on an
 * edge belongs to the bin above it. Bins are 1/8 wide for scores, and a factor of 10^(1/20) for
 * probabilities and norms.
 */
enum {
    KVD_SCORE_LIMIT = 128, /* bin edges of scores go from -128 to 128 */
    KVD_SCORE_PER_UNIT = 8,
    KVD_SCORE_BINS = 2 * KVD_SCORE_LIMIT * KVD_SCORE_PER_UNIT + 2,
    KVD_LOG_PER_DECADE = 20,
    /* Bin edges of probabilities go from 1e-20 to 1; probability 1 is in the last bin. */
    KVD_PROBABILITY_DECADES = 20,
    KVD_PROBABILITY_BINS = KVD_PROBABILITY_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_NORM_DECADES = 6, /* bin edges of norms go from 1e-6 to 1e6 */
    KVD_NORM_BINS = 2 * KVD_NORM_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_N_CRITICAL_LEVELS = 3,
    KVD_N_QUANTILES = 9
};

/* Return the bin of a score, or of log10 of a probability or norm. NaN is not allowed (assert). */
size_t kvd_score_bin(double score);
size_t kvd_probability_bin(double log10_p);
size_t kvd_norm_bin(double log10_norm);

/*
 * Fractions 0.9, 0.95, 0.99 of the attention. For each fraction, the statistics count the fewest
 * tokens that together receive it.
 */
extern const double kvd_critical_level[KVD_N_CRITICAL_LEVELS];
/* Quantiles, in [0, 1], that are written next to each histogram. */
extern const double kvd_attention_quantile[KVD_N_QUANTILES];

/* Statistics in a file, over all requests. Axes not given here are in attention.c. */
typedef enum {
    /*
     * Number of tokens to which a query of each layer attends, its own token included; 0 means no
     * limit.
     */
    KVD_A_WINDOW,
    /* Number of requests that have a token at each position. */
    KVD_A_REQUESTS_AT,
    KVD_A_SCORE_HISTOGRAM,
    KVD_A_SCORE_SUM,
    KVD_A_SCORE_SQUARES,
    KVD_A_SCORE_MIN,
    KVD_A_SCORE_MAX,
    KVD_A_PROBABILITY_HISTOGRAM,
    /* ln of the softmax denominator of a query, per layer and head. */
    KVD_A_DENOMINATOR_SUM,
    KVD_A_DENOMINATOR_SQUARES,
    KVD_A_DENOMINATOR_MIN,
    KVD_A_DENOMINATOR_MAX,
    /*
     * Histogram, minimum and maximum of the mean attention probability that a token gets, where the
     * mean is over the later tokens that can attend to it.
     */
    KVD_A_RECEIVED_HISTOGRAM,
    KVD_A_RECEIVED_MIN,
    KVD_A_RECEIVED_MAX,
    /* Attention probability that each position receives: double [layer][head][position]. */
    KVD_A_RECEIVED_AT,
    KVD_A_VALUE_HISTOGRAM,
    KVD_A_VALUE_SUM,
    KVD_A_VALUE_SQUARES,
    KVD_A_VALUE_MIN,
    KVD_A_VALUE_MAX,
    /*
     * Fewest tokens that receive the fraction kvd_critical_level[level] of a head's attention:
     * uint64 [layer][head][level].
     */
    KVD_A_HEAD_COUNT,
    KVD_A_HEAD_SQUARES,
    KVD_A_HEAD_MIN,
    KVD_A_HEAD_MAX,
    /*
     * KVD_A_HEAD_COUNT divided by the number of tokens of the request: double [layer][head][level].
     */
    KVD_A_HEAD_SHARE,
    /*
     * Fewest tokens that together receive the fraction kvd_critical_level[level] of the attention
     * of a KV head, summed over its query heads: uint64 [layer][kv_head][level].
     */
    KVD_A_KV_COUNT,
    KVD_A_KV_SQUARES,
    KVD_A_KV_MIN,
    KVD_A_KV_MAX,
    KVD_A_KV_SHARE,
    /*
     * Fewest tokens that receive the fraction kvd_critical_level[level] of a layer's attention:
     * uint64 [layer][level].
     */
    KVD_A_LAYER_COUNT,
    KVD_A_LAYER_SQUARES,
    KVD_A_LAYER_MIN,
    KVD_A_LAYER_MAX,
    KVD_A_LAYER_SHARE,
    /*
     * Number of tokens of each kept request: uint64 [request]. Kept requests are the first ones of
     * the text; statistics of each of their tokens are stored.
     */
    KVD_A_KEPT_LENGTH,
    /*
     * Attention received by each token, summed over heads and queries: double
     * [request][layer][position]. Values after the request's last token are 0.
     */
    KVD_A_KEPT_MASS,
    /*
     * Logarithm of the denominator of each query's softmax, summed over heads: double
     * [request][layer][position]. Values after the request's last token are 0, as in
     * KVD_A_KEPT_QUERY_SCORE and KVD_A_KEPT_KEY_SCORE.
     */
    KVD_A_KEPT_DENOMINATOR,
    /* Mean attention score of each token as a query: double [request][layer][position]. */
    KVD_A_KEPT_QUERY_SCORE,
    /* Mean attention score of each token as a key: double [request][layer][position]. */
    KVD_A_KEPT_KEY_SCORE,
    KVD_N_A
} kvd_a;

typedef union {
    uint64_t n;
    double x;
} kvd_word;

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_requests, seq_len;
    int first_layer, n_layers;
    /* Number of first requests whose tokens have statistics of their own. */
    size_t n_kept;
    /* Values of all statistics, one statistic after another. */
    kvd_word *word;
    size_t n_words;
    /* Index in the array `word` of the first value of each statistic. */
    size_t at[KVD_N_A];
} kvd_attention_stats;

/*
 * Allocates the statistics. The caller must have set model, lengths and layers in *s. Sums start at
 * 0 and minima at infinity. Maxima start at -infinity, or at 0 if they are counts.
 */
int kvd_attention_stats_alloc(kvd_attention_stats *s, kvd_err *err);
void kvd_attention_stats_release(kvd_attention_stats *s);

/* Returns the number of 8-byte values of a statistic. */
size_t kvd_attention_stats_count(const kvd_attention_stats *s, kvd_a field);
/* Returns the values of one layer and head. For statistics without a head axis, `head` is 0. */
kvd_word *kvd_attention_stats_at(const kvd_attention_stats *s, kvd_a field, int layer, int head);
/* Returns the values of all tokens of one request, for a statistic that is stored per token. */
kvd_word *kvd_attention_stats_kept(const kvd_attention_stats *s, kvd_a field, size_t request,
                                   int layer);

/*
 * Returns quantile q, in [0, 1], of histogram h; 0 for an empty histogram. `field` is the
 * statistic, which determines the edges of the bins. Interpolates linearly within a bin; for
 * probabilities and norms, interpolates their logarithm. Values outside all bins count as the
 * nearest edge.
 */
double kvd_attention_stats_quantile(kvd_a field, const kvd_word *h, double q);

int kvd_attention_stats_write(kvd_h5 *f, const kvd_attention_stats *s, kvd_err *err);
/* Reads a file. Fails on counts that contradict each other and on sums that are not finite. */
int kvd_attention_stats_load(kvd_attention_stats *s, const char *path, kvd_err *err);
/*
 * Adds the statistics of another text to *sum. Values of single tokens are appended. Fails, naming
 * both files, if model, layers or seq_len differ.
 */
int kvd_attention_stats_add(kvd_attention_stats *sum, const char *sum_path,
                            const kvd_attention_stats *other, const char *other_path, kvd_err *err);

#endif
