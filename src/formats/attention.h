/*
 * kvdim/attention: statistics of attention scores and probabilities, in memory that does not grow
 * with the number of tokens.
 *
 * Per layer and head: histograms of scores, of probabilities and of mass received; softmax
 * denominators; norms of V; the number of tokens that hold most of a request's mass. Values per
 * token are kept only for the first requests. Files of one model and one seq_len can be added.
 *
 * A request is a sequence. A score is q . k / sqrt(d_head); every (query, key) pair that the mask
 * lets through has one, a token with itself included. The mass of a token is the sum of its column
 * of probabilities: the attention that it receives.
 */
#ifndef KVD_FORMATS_ATTENTION_H
#define KVD_FORMATS_ATTENTION_H

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_attention;

/*
 * Histogram bins. The first bin holds values below the lowest edge, the last bin values at or above
 * the highest edge. A value on an edge belongs to the bin above it. A quantile is known to the
 * width of its bin: 1/8 for scores, a factor of 10^(1/20) = 1.12 for the others.
 */
enum {
    KVD_SCORE_LIMIT = 128, /* edges from -128 to 128 */
    KVD_SCORE_PER_UNIT = 8,
    KVD_SCORE_BINS = 2 * KVD_SCORE_LIMIT * KVD_SCORE_PER_UNIT + 2,
    KVD_LOG_PER_DECADE = 20,
    KVD_PROBABILITY_DECADES = 20, /* edges from 1e-20 to 1: a probability of 1 is in the last bin */
    KVD_PROBABILITY_BINS = KVD_PROBABILITY_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_NORM_DECADES = 6, /* edges from 1e-6 to 1e6 */
    KVD_NORM_BINS = 2 * KVD_NORM_DECADES * KVD_LOG_PER_DECADE + 2,
    KVD_N_CRITICAL_LEVELS = 3,
    KVD_N_QUANTILES = 9
};

/*
 * Return the index of the histogram bin that holds a score, or log10 of a probability or norm. The
 * argument must not be NaN (assert).
 */
size_t kvd_score_bin(double score);
size_t kvd_probability_bin(double log10_p);
size_t kvd_norm_bin(double log10_norm);

extern const double kvd_critical_level[KVD_N_CRITICAL_LEVELS]; /* 0.9, 0.95, 0.99 */
/* quantiles that are written next to the histograms */
extern const double kvd_attention_quantile[KVD_N_QUANTILES];

/* Statistics that are summed. attention.c and docs/formats.md give their shapes. */
typedef enum {
    KVD_A_WINDOW,      /* uint64 [layer]: number of keys that a query sees; 0: all earlier ones */
    KVD_A_REQUESTS_AT, /* uint64 [position]: requests that reach this position */
    KVD_A_SCORE_HISTOGRAM, /* uint64 [layer][head][bin] */
    KVD_A_SCORE_SUM,       /* double [layer][head] */
    KVD_A_SCORE_SQUARES,
    KVD_A_SCORE_MIN,
    KVD_A_SCORE_MAX,
    KVD_A_PROBABILITY_HISTOGRAM, /* uint64 [layer][head][bin] */
    /* double [layer][head]: ln sum_k exp(s_k), one value per row, summed */
    KVD_A_DENOMINATOR_SUM,
    KVD_A_DENOMINATOR_SQUARES,
    KVD_A_DENOMINATOR_MIN,
    KVD_A_DENOMINATOR_MAX,
    /*
     * uint64 [layer][head][bin]: mean probability that a token gets from the later tokens that see
     * it
     */
    KVD_A_RECEIVED_HISTOGRAM,
    KVD_A_RECEIVED_MIN, /* double [layer][head] */
    KVD_A_RECEIVED_MAX,
    KVD_A_RECEIVED_AT,     /* double [layer][head][position]: mass received, summed over requests */
    KVD_A_VALUE_HISTOGRAM, /* uint64 [layer][kv_head][bin]: Euclidean norms of V */
    KVD_A_VALUE_SUM,       /* double [layer][kv_head] */
    KVD_A_VALUE_SQUARES,
    KVD_A_VALUE_MIN,
    KVD_A_VALUE_MAX,
    /*
     * uint64 [layer][head][level]: tokens that together hold `level` of the mass, summed over
     * requests
     */
    KVD_A_HEAD_COUNT,
    KVD_A_HEAD_SQUARES,
    KVD_A_HEAD_MIN,
    KVD_A_HEAD_MAX,
    /* double [layer][head][level]: number of these tokens / length of the request, summed */
    KVD_A_HEAD_SHARE,
    /*
     * uint64 [layer][kv_head][level]: as KVD_A_HEAD_COUNT, for the mass that the heads of a KV head
     * give
     */
    KVD_A_KV_COUNT,
    KVD_A_KV_SQUARES,
    KVD_A_KV_MIN,
    KVD_A_KV_MAX,
    KVD_A_KV_SHARE,
    /* uint64 [layer][level]: as KVD_A_HEAD_COUNT, for the mass that all heads of the layer give */
    KVD_A_LAYER_COUNT,
    KVD_A_LAYER_SQUARES,
    KVD_A_LAYER_MIN,
    KVD_A_LAYER_MAX,
    KVD_A_LAYER_SHARE,
    KVD_A_KEPT_LENGTH, /* uint64 [request]: length in tokens of each request kept token by token */
    /* double [request][layer][position]: mass over all heads; 0 after the request's last token */
    KVD_A_KEPT_MASS,
    /*
     * double [request][layer][position]: ln of the softmax denominators, summed over heads; 0 after
     * the request's last token
     */
    KVD_A_KEPT_DENOMINATOR,
    /*
     * double [request][layer][position]: mean score over all heads and over the keys that the token
     * sees as a query; 0 after the request's last token
     */
    KVD_A_KEPT_QUERY_SCORE,
    /*
     * double [request][layer][position]: mean score over all heads and over the queries that see
     * the token as a key; 0 after the request's last token
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
    size_t n_kept;  /* number of requests kept token by token */
    kvd_word *word; /* [n_words]: all fields, one after the other */
    size_t n_words;
    size_t at[KVD_N_A]; /* index in `word` of each field's first word */
} kvd_attention_stats;

/*
 * Allocates empty sums for the model, lengths and layers described in *s: all 0, minima infinity,
 * maxima -infinity or 0.
 */
int kvd_attention_stats_alloc(kvd_attention_stats *s, kvd_err *err);
void kvd_attention_stats_release(kvd_attention_stats *s);

/* Returns the number of 8-byte words of a statistic (field). */
size_t kvd_attention_stats_count(const kvd_attention_stats *s, kvd_a field);
/*
 * Returns a pointer to the first word of a statistic at [layer][head]; use head 0 for statistics
 * without heads.
 */
kvd_word *kvd_attention_stats_at(const kvd_attention_stats *s, kvd_a field, int layer, int head);
/*
 * Returns a pointer to the first word at [request][layer] of a statistic that is kept token by
 * token.
 */
kvd_word *kvd_attention_stats_kept(const kvd_attention_stats *s, kvd_a field, size_t request,
                                   int layer);

/*
 * Returns quantile q, in [0, 1], of a histogram field with bins h [n]. Interpolates linearly within
 * a bin, or in its logarithm if the bins are logarithmic. Values outside the edges count as the
 * nearest edge. Returns 0 for an empty histogram.
 */
double kvd_attention_stats_quantile(kvd_a field, const kvd_word *h, double q);

int kvd_attention_stats_write(kvd_h5 *f, const kvd_attention_stats *s, kvd_err *err);
/* Reads a kvdim/attention file. Refuses counts that contradict each other and non-finite sums. */
int kvd_attention_stats_load(kvd_attention_stats *s, const char *path, kvd_err *err);
/*
 * Computes sum += other. The requests kept token by token are joined, `sum`'s first; corpus hash
 * and label become those of both (common/files/fields.h). Fails, naming both files, if model,
 * layers or seq_len differ.
 */
int kvd_attention_stats_add(kvd_attention_stats *sum, const char *sum_path,
                            const kvd_attention_stats *other, const char *other_path, kvd_err *err);

#endif
