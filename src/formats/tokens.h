/* kvdim/tokens files: importance of tokens in attention (see the papers ZDC and LeanKV). */
#ifndef KVD_FORMATS_TOKENS_H
#define KVD_FORMATS_TOKENS_H

#include "formats/attention.h"

extern const kvd_schema kvd_schema_tokens;

/* Measures by which the tokens of a layer are ranked. */
typedef enum {
    KVD_RANK_SCORE,        /* mean attention score as a query (ZDC paper, Observation 4) */
    KVD_RANK_SCORE_AS_KEY, /* mean attention score of the token as a key */
    /*
     * Logarithm of the softmax denominator of the token as a query, summed over heads (ZDC paper).
     */
    KVD_RANK_DENOMINATOR,
    /*
     * Logarithm of the softmax denominator of the token as a query, minus the logarithm of the
     * number of keys that the query sees.
     */
    KVD_RANK_DENOMINATOR_PER_KEY,
    KVD_RANK_MASS, /* attention probability that the token receives from all heads and queries */
    /*
     * Attention probability that the token receives, divided by the number of queries that see it.
     */
    KVD_RANK_MASS_PER_QUERY,
    KVD_N_RANKINGS
} kvd_ranking;
extern const char *const kvd_ranking_name[KVD_N_RANKINGS];

enum { KVD_N_CURVE = 19 };
/* quantiles, in [0, 1], of the stored distributions */
extern const double kvd_curve_level[KVD_N_CURVE];

/* Datasets of a kvdim/tokens file. docs/formats.md gives their shapes. */
typedef enum {
    KVD_T_SCORE_MIN, /* [layer] smallest attention score */
    KVD_T_SCORE_MAX,
    KVD_T_SCORE_MEAN,
    KVD_T_SCORE_SD,
    KVD_T_SCORE_CURVE,
    /* [ranking][layer][layer] fraction of unimportant (important) tokens that two layers share */
    KVD_T_UNIMPORTANT,
    KVD_T_UNIMPORTANT_SD,
    KVD_T_IMPORTANT,
    KVD_T_IMPORTANT_SD,
    KVD_T_GROUP, /* [ranking][layer] number of the group of similar, adjacent layers, from 0 */
    /* [layer] Least attention probability that a token receives. */
    KVD_T_RECEIVED_MIN,
    KVD_T_RECEIVED_MAX,
    KVD_T_RECEIVED_CURVE, /* [layer][quantile] attention probability that a token receives */
    /*
     * [layer] log10 of the ratio of the 99.9 % quantile to the 0.1 % quantile of received
     * attention.
     */
    KVD_T_RECEIVED_DECADES,
    KVD_T_VALUE_MIN,
    KVD_T_VALUE_MAX,
    KVD_T_VALUE_CURVE,
    KVD_T_VALUE_DECADES,
    /*
     * [level][layer] Smallest number of tokens that together receive 90, 95 or 99 % (level) of a
     * layer's attention, mean over requests.
     */
    KVD_T_LAYER_MEAN,
    KVD_T_LAYER_SD,
    KVD_T_LAYER_MIN,
    KVD_T_LAYER_MAX,
    KVD_T_LAYER_SHARE,
    /* Fewest tokens that receive 90, 95 or 99 % of a KV head's attention, mean over requests. */
    KVD_T_KV_MEAN,
    KVD_T_KV_SD,
    KVD_T_KV_MIN,
    KVD_T_KV_MAX,
    KVD_T_KV_SHARE,
    /* Fewest tokens that receive 90, 95 or 99 % of a query head's attention, mean over requests. */
    KVD_T_HEAD_MEAN,
    KVD_T_HEAD_SD,
    KVD_T_HEAD_MIN,
    KVD_T_HEAD_MAX,
    KVD_T_HEAD_SHARE,
    KVD_N_T
} kvd_t;

typedef struct {
    kvd_model_info model;
    char label[64], corpus_hash[40];
    size_t n_tokens, n_requests, n_kept, seq_len;
    int first_layer, n_layers;
    /* Fraction of tokens that count as important. An equal fraction counts as unimportant. */
    double share;
    /*
     * A layer joins a group if more than this fraction of its important tokens is also important in
     * the group's first layer.
     */
    double group_overlap;
    double *data[KVD_N_T];
} kvd_tokens;

int kvd_tokens_alloc(kvd_tokens *t, kvd_err *err);
void kvd_tokens_release(kvd_tokens *t);
int kvd_tokens_write(kvd_h5 *f, const kvd_tokens *t, kvd_err *err);
/* Reads a file. Fails on bad numbers, fractions outside [0, 1], counts outside 1 .. seq_len. */
int kvd_tokens_load(kvd_tokens *t, const char *path, kvd_err *err);

/* Fraction of tokens that are common to two layers whose indices differ by `distance`. */
typedef struct {
    double mean, least, most;
} kvd_token_overlap;
kvd_token_overlap kvd_tokens_at_distance(const kvd_tokens *t, kvd_t field, kvd_ranking by,
                                         int distance);

#endif
