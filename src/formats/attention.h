/* kvdim/attention files: statistics of attention scores and probabilities. The statistics in two
 * files of the same model can be added.
 *
 * A request is one text. A score is q . k / sqrt(d_head). The mass of a token is the attention
 * probability that it receives, summed over all queries. */
#ifndef KVD_FORMATS_ATTENTION_H
#define KVD_FORMATS_ATTENTION_H

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_attention;

/* Numbers of bins of the histograms. A bin is 1/8 wide for scores; a bin of probabilities or norms
 * spans a factor of 10^(1/20). The first and the last bin hold all values outside the other
 * bins. */
enum {
    KVD_SCORE_LIMIT = 128, /* bin edges of scores go from -128 to 128 */
    KVD_SCORE_PER_UNIT = 8,
    KVD_SCORE_BINS = 2 * KVD_SCORE_LIMIT * KVD_SCORE_PER_UNIT + 2,
    KVD_LOG_PER_DECADE = 20,
    /* Bin edges of the histogram of attention probabilities go from 1e-20 to 1. */
    KVD_PROBABILITY_DECADES = 20,
    KVD_PROBABILITY_BINS = KVD_PROBABILITY_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_NORM_DECADES = 6, /* bin edges of norms go from 1e-6 to 1e6 */
    KVD_NORM_BINS = 2 * KVD_NORM_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_N_CRITICAL_LEVELS = 3,
    KVD_N_QUANTILES = 9
};

/* Return the histogram bin of a score, or of the log10 of a probability or norm. NaN is not
 * allowed. */
size_t kvd_score_bin(double score);
size_t kvd_probability_bin(double log10_p);
size_t kvd_norm_bin(double log10_norm);

/* Fractions of attention: 0.9, 0.95 and 0.99. For each, a kvdim/attention file has the smallest
 * number of tokens that together receive this fraction. */
extern const double kvd_critical_level[KVD_N_CRITICAL_LEVELS];
/* quantiles, in [0, 1], that are stored next to each histogram */
extern const double kvd_attention_quantile[KVD_N_QUANTILES];

/* Indices of the statistics in a kvdim/attention file. A request is one text. */
typedef enum {
    /* [layer] number of tokens that a query sees, including its own token; 0 means no limit */
    KVD_A_WINDOW,
    /* [position] number of requests that have a token at this position */
    KVD_A_REQUESTS_AT,
    KVD_A_SCORE_HISTOGRAM,
    KVD_A_SCORE_SUM,
    KVD_A_SCORE_SQUARES,
    KVD_A_SCORE_MIN,
    KVD_A_SCORE_MAX,
    KVD_A_PROBABILITY_HISTOGRAM,
    /* natural logarithm of a query's softmax denominator, summed over queries */
    KVD_A_DENOMINATOR_SUM,
    KVD_A_DENOMINATOR_SQUARES,
    KVD_A_DENOMINATOR_MIN,
    KVD_A_DENOMINATOR_MAX,
    /* histogram of a token's mean attention probability over the queries that can see it */
    KVD_A_RECEIVED_HISTOGRAM,
    KVD_A_RECEIVED_MIN,
    KVD_A_RECEIVED_MAX,
    /* double [layer][head][position] attention probability that the token at a position receives,
     * summed over all queries of all texts */
    KVD_A_RECEIVED_AT,
    KVD_A_VALUE_HISTOGRAM,
    KVD_A_VALUE_SUM,
    KVD_A_VALUE_SQUARES,
    KVD_A_VALUE_MIN,
    KVD_A_VALUE_MAX,
    /* uint64 [layer][head][level] number of a text's tokens, most attended first, that together
     * receive 90, 95 or 99 % (the level) of a query head's attention; summed over texts */
    KVD_A_HEAD_COUNT,
    KVD_A_HEAD_SQUARES,
    KVD_A_HEAD_MIN,
    KVD_A_HEAD_MAX,
    /* double [layer][head][level] fraction of a text's tokens, most attended first, that together
     * receive 90, 95 or 99 % (the level) of a query head's attention; summed over texts */
    KVD_A_HEAD_SHARE,
    /* uint64 [layer][kv_head][level] number of a text's tokens, most attended first, that together
     * receive 90, 95 or 99 % (the level) of a KV head's attention; summed over texts */
    KVD_A_KV_COUNT,
    KVD_A_KV_SQUARES,
    KVD_A_KV_MIN,
    KVD_A_KV_MAX,
    KVD_A_KV_SHARE,
    /* uint64 [layer][level] number of a text's tokens, most attended first, that together receive
     * 90, 95 or 99 % (the level) of a layer's attention; summed over texts */
    KVD_A_LAYER_COUNT,
    KVD_A_LAYER_SQUARES,
    KVD_A_LAYER_MIN,
    KVD_A_LAYER_MAX,
    KVD_A_LAYER_SHARE,
    /* uint64 [request] number of tokens of each text (request) for which the file stores statistics
     * of every token */
    KVD_A_KEPT_LENGTH,
    /* double [request][layer][position] attention probability that the token at a position
     * receives, summed over all heads and queries */
    KVD_A_KEPT_MASS,
    /* double [request][layer][position] logarithm of the softmax denominator of the query at a
     * position; the logarithms of all heads are summed */
    KVD_A_KEPT_DENOMINATOR,
    /* double [request][layer][position] attention score (scaled q.k) of the token's query, mean
     * over heads and visible keys */
    KVD_A_KEPT_QUERY_SCORE,
    /* double [request][layer][position] attention score (scaled q.k) of the token's key, mean over
     * heads and queries that see it */
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
    char corpus_hash[KVD_CORPUS_HASH_TEXT];
    size_t n_tokens, n_requests, seq_len;
    int first_layer, n_layers;
    size_t n_kept; /* number of texts, from the first on, that have statistics per token */
    kvd_word *word;
    size_t n_words;
    size_t at[KVD_N_A]; /* index in `word` of the first value of each statistic */
} kvd_attention_stats;

/* Allocates attention statistics of the sizes in *s. Their sums begin at 0, their minima at
 * infinity. */
int kvd_attention_stats_alloc(kvd_attention_stats *s, kvd_err *err);
void kvd_attention_stats_release(kvd_attention_stats *s);

/* Returns the number of 8-byte values of a statistic. */
size_t kvd_attention_stats_count(const kvd_attention_stats *s, kvd_a field);
/* Returns the values of a statistic in one layer and head. If the statistic has no head axis,
 * `head` must be 0. */
kvd_word *kvd_attention_stats_at(const kvd_attention_stats *s, kvd_a field, int layer, int head);
/* Returns the statistic `field` of all tokens of one request in one layer. */
kvd_word *kvd_attention_stats_kept(const kvd_attention_stats *s, kvd_a field, size_t request,
                                   int layer);

/* Returns quantile q of histogram h, interpolated within a bin, or 0 if h is empty. */
double kvd_attention_stats_quantile(kvd_a field, const kvd_word *h, double q);

int kvd_attention_stats_write(kvd_h5 *f, const kvd_attention_stats *s, kvd_err *err);
/* Reads a file of attention statistics. Fails if counts of tokens contradict each other or a
 * statistic is not finite. */
int kvd_attention_stats_load(kvd_attention_stats *s, const char *path, kvd_err *err);
/* Adds another text's statistics to *sum. Model, layers and seq_len must agree. */
int kvd_attention_stats_add(kvd_attention_stats *sum, const char *sum_path,
                            const kvd_attention_stats *other, const char *other_path, kvd_err *err);

#endif
