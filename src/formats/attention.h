/*
 * kvdim/attention files: statistics of attention scores and probabilities, in memory that does not
 * grow with the number of tokens.
 *
 * Per layer and head: histograms of scores, of probabilities and of mass received; softmax
 * denominators; norms of V; the number of tokens that receive most of a request's mass. Values of
 * single tokens are kept only for the first requests. Files of one model and one seq_len can be
 * added.
 *
 * A request is one text sequence. A score is q . k / sqrt(d_head) of one query and one key that the
 * causal mask lets the query see, its own included. The mass of a token is the attention
 * probability that it receives from all queries.
 */
#ifndef KVD_FORMATS_ATTENTION_H
#define KVD_FORMATS_ATTENTION_H

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_attention;

/*
 * Sizes of the histograms. The first bin holds values below the lowest edge, the last bin values at
 * or above the highest edge. A value on an edge belongs to the bin above the edge. A quantile is
 * known to the width of its bin: 1/8 for scores, a factor of 10^(1/20) = 1.12 for probabilities and
 * norms.
 */
enum {
    KVD_SCORE_LIMIT = 128, /* bin edges of attention scores go from -128 to 128 */
    KVD_SCORE_PER_UNIT = 8,
    KVD_SCORE_BINS = 2 * KVD_SCORE_LIMIT * KVD_SCORE_PER_UNIT + 2,
    KVD_LOG_PER_DECADE = 20,
    /* Bin edges from 1e-20 to 1; probability 1 is in the last bin. */
    KVD_PROBABILITY_DECADES = 20,
    KVD_PROBABILITY_BINS = KVD_PROBABILITY_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_NORM_DECADES = 6, /* bin edges of vector norms go from 1e-6 to 1e6 */
    KVD_NORM_BINS = 2 * KVD_NORM_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_N_CRITICAL_LEVELS = 3,
    KVD_N_QUANTILES = 9
};

/*
 * Return the index of the histogram bin that holds an attention score, log10 of a probability, or
 * log10 of a norm. The argument must not be NaN (assert).
 */
size_t kvd_score_bin(double score);
size_t kvd_probability_bin(double log10_p);
size_t kvd_norm_bin(double log10_norm);

/* Fractions of a request's attention for which critical tokens are counted: 0.9, 0.95, 0.99. */
extern const double kvd_critical_level[KVD_N_CRITICAL_LEVELS];
/* Quantiles, in [0, 1], of each distribution that are written next to its histogram. */
extern const double kvd_attention_quantile[KVD_N_QUANTILES];

/*
 * Statistics stored in a kvdim/attention file; sums are over all requests. HISTOGRAM counts values
 * per bin. SUM, SQUARES, MIN and MAX describe the same values. attention.c has the shape of each.
 */
typedef enum {
    /* Number of keys that a query of each layer sees, itself included; 0 means all up to itself. */
    KVD_A_WINDOW,
    /* Number of requests that are long enough to have a token at each position. */
    KVD_A_REQUESTS_AT,
    /* Attention scores per layer and head. */
    KVD_A_SCORE_HISTOGRAM,
    KVD_A_SCORE_SUM,
    KVD_A_SCORE_SQUARES,
    KVD_A_SCORE_MIN,
    KVD_A_SCORE_MAX,
    /* Attention probabilities per layer and head. */
    KVD_A_PROBABILITY_HISTOGRAM,
    /*
     * ln sum_k exp(score of key k), the log of the softmax denominator of a query. The next four
     * statistics are its sum, sum of squares, minimum and maximum over all queries, per layer and
     * head.
     */
    KVD_A_DENOMINATOR_SUM,
    KVD_A_DENOMINATOR_SQUARES,
    KVD_A_DENOMINATOR_MIN,
    KVD_A_DENOMINATOR_MAX,
    /*
     * Histogram over tokens, per layer and head: mean attention probability that a token gets from
     * the later tokens that see it.
     */
    KVD_A_RECEIVED_HISTOGRAM,
    KVD_A_RECEIVED_MIN,
    KVD_A_RECEIVED_MAX,
    /*
     * Attention probability that the token at each position receives, summed over requests: double
     * [layer][head][position].
     */
    KVD_A_RECEIVED_AT,
    /* Euclidean norms of value vectors per layer and KV head. */
    KVD_A_VALUE_HISTOGRAM,
    KVD_A_VALUE_SUM,
    KVD_A_VALUE_SQUARES,
    KVD_A_VALUE_MIN,
    KVD_A_VALUE_MAX,
    /*
     * Number of critical tokens of one head: the fewest tokens of a request that together receive a
     * given fraction (`level`) of the head's attention. Summed over requests: uint64
     * [layer][head][level].
     */
    KVD_A_HEAD_COUNT,
    KVD_A_HEAD_SQUARES,
    KVD_A_HEAD_MIN,
    KVD_A_HEAD_MAX,
    /*
     * Number of critical tokens of a head / number of tokens of the request, summed over requests:
     * double [layer][head][level].
     */
    KVD_A_HEAD_SHARE,
    /*
     * Number of critical tokens of one KV head: the fewest tokens that together receive a given
     * fraction (`level`) of the attention of all its query heads. Summed over requests: uint64
     * [layer][kv_head][level].
     */
    KVD_A_KV_COUNT,
    KVD_A_KV_SQUARES,
    KVD_A_KV_MIN,
    KVD_A_KV_MAX,
    KVD_A_KV_SHARE,
    /*
     * Number of critical tokens of a layer: the fewest tokens that together receive a given
     * fraction (`level`) of the attention of all its heads. Summed over requests: uint64
     * [layer][level].
     */
    KVD_A_LAYER_COUNT,
    KVD_A_LAYER_SQUARES,
    KVD_A_LAYER_MIN,
    KVD_A_LAYER_MAX,
    KVD_A_LAYER_SHARE,
    /*
     * Length in tokens of each of the first requests, for which the file stores values token by
     * token: uint64 [request].
     */
    KVD_A_KEPT_LENGTH,
    /*
     * Attention received by each token, summed over all heads and queries: double
     * [request][layer][position]. Values at positions after the request's last token are 0.
     */
    KVD_A_KEPT_MASS,
    /*
     * ln of the softmax denominator of each query, summed over heads: double
     * [request][layer][position]. Values at positions after the request's last token are 0.
     */
    KVD_A_KEPT_DENOMINATOR,
    /*
     * Mean attention score of each token as a query, over all heads and the keys that it sees:
     * double [request][layer][position]. Values at positions after the request's last token are 0.
     */
    KVD_A_KEPT_QUERY_SCORE,
    /*
     * Mean attention score of each token as a key, over all heads and the queries that see it:
     * double [request][layer][position]. Values at positions after the request's last token are 0.
     */
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
    /* Number of first requests for which values of single tokens are stored. */
    size_t n_kept;
    /* Values of all statistics, one statistic after another, n_words in total. */
    kvd_word *word;
    size_t n_words;
    /* Index in the array `word` of the first value of each statistic. */
    size_t at[KVD_N_A];
} kvd_attention_stats;

/*
 * Allocates statistics of no tokens for the model, lengths and layers set in *s. Sums are 0, minima
 * infinity, maxima -infinity (0 for counts).
 */
int kvd_attention_stats_alloc(kvd_attention_stats *s, kvd_err *err);
void kvd_attention_stats_release(kvd_attention_stats *s);

/* Returns the number of 8-byte values of a statistic, over all of its axes. */
size_t kvd_attention_stats_count(const kvd_attention_stats *s, kvd_a field);
/*
 * Returns a pointer to the first value of a statistic for one layer and head. The caller passes
 * head 0 for statistics without a head axis.
 */
kvd_word *kvd_attention_stats_at(const kvd_attention_stats *s, kvd_a field, int layer, int head);
/*
 * Returns a pointer to the values of all tokens of one request and layer, for a statistic that is
 * stored token by token.
 */
kvd_word *kvd_attention_stats_kept(const kvd_attention_stats *s, kvd_a field, size_t request,
                                   int layer);

/*
 * Returns quantile q, in [0, 1], of a distribution from its histogram h [number of bins]; `field`
 * says which bin edges it has. Interpolates linearly within a bin, or in the logarithm if the bins
 * are logarithmic. Values outside the edges count as the nearest edge. Returns 0 for an empty
 * histogram.
 */
double kvd_attention_stats_quantile(kvd_a field, const kvd_word *h, double q);

int kvd_attention_stats_write(kvd_h5 *f, const kvd_attention_stats *s, kvd_err *err);
/* Reads a kvdim/attention file. Refuses counts that contradict each other and non-finite sums. */
int kvd_attention_stats_load(kvd_attention_stats *s, const char *path, kvd_err *err);
/*
 * Adds the statistics `other` to `sum`. Requests stored token by token are joined, those of `sum`
 * first. Corpus hash and label become those of both texts (common/files/fields.h). Fails, naming
 * both files, if model, layers or seq_len differ.
 */
int kvd_attention_stats_add(kvd_attention_stats *sum, const char *sum_path,
                            const kvd_attention_stats *other, const char *other_path, kvd_err *err);

#endif
