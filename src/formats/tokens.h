/*
 * kvdim/tokens files: which tokens matter, computed from kvdim/attention files.
 *
 * For every layer they have the range of attention scores, and the fraction of important (and of
 * unimportant) tokens that it shares with each other layer (plotted by ZDC in Fig. 6-8). They also
 * have the spread of attention received and of value norms, and the numbers of critical tokens of
 * layers and heads (plotted by LeanKV in Fig. 1-3).
 */
#ifndef KVD_FORMATS_TOKENS_H
#define KVD_FORMATS_TOKENS_H

#include "formats/attention.h"

extern const kvd_schema kvd_schema_tokens;

/* Measures by which the tokens of a layer are ranked by importance. */
typedef enum {
    /*
     * Mean attention score of the token as a query, over heads and the keys that it sees (ZDC
     * Observation 4).
     */
    KVD_RANK_SCORE,
    /* Mean attention score of the token as a key, over heads and the queries that see it. */
    KVD_RANK_SCORE_AS_KEY,
    /* ln of the softmax denominator of the token as a query, summed over heads (ZDC section 5). */
    KVD_RANK_DENOMINATOR,
    /*
     * ln of the softmax denominator of the token as a query, summed over heads, minus ln of the
     * number of keys that it sees. Without this term, denominators grow with the position.
     */
    KVD_RANK_DENOMINATOR_PER_KEY,
    /* Attention probability that the token receives from all heads and queries. */
    KVD_RANK_MASS,
    /*
     * Attention probability that the token receives from all heads and queries, divided by the
     * number of queries that see the token.
     */
    KVD_RANK_MASS_PER_QUERY,
    KVD_N_RANKINGS
} kvd_ranking;
extern const char *const kvd_ranking_name[KVD_N_RANKINGS];

enum { KVD_N_CURVE = 19 };
/* Quantiles, in [0, 1], that describe a distribution for plots. */
extern const double kvd_curve_level[KVD_N_CURVE];

/* Datasets of a kvdim/tokens file. tokens.c and docs/formats.md give their shapes. */
typedef enum {
    KVD_T_SCORE_MIN, /* smallest attention score of each layer: [layer] */
    KVD_T_SCORE_MAX,
    KVD_T_SCORE_MEAN,
    KVD_T_SCORE_SD,
    KVD_T_SCORE_CURVE, /* quantiles of the attention scores: [layer][quantile] */
    /*
     * Fraction of their least important tokens that two layers have in common, mean over requests:
     * [ranking measure][layer][layer].
     */
    KVD_T_UNIMPORTANT,
    /*
     * Standard deviation, over requests, of the fraction of least important tokens that two layers
     * have in common.
     */
    KVD_T_UNIMPORTANT_SD,
    KVD_T_IMPORTANT,
    KVD_T_IMPORTANT_SD,
    /*
     * Number of the group of each layer, from 0: [ranking measure][layer]. Layers of a group are
     * adjacent and have nearly the same important and unimportant tokens.
     */
    KVD_T_GROUP,
    KVD_T_RECEIVED_MIN, /* least attention that a token of each layer receives: [layer] */
    KVD_T_RECEIVED_MAX,
    /* Quantiles of the attention received by a token: [layer][quantile]. */
    KVD_T_RECEIVED_CURVE,
    /*
     * log10 of the ratio of the 99.9 % quantile to the 0.1 % quantile of attention received by a
     * token, per layer.
     */
    KVD_T_RECEIVED_DECADES,
    KVD_T_VALUE_MIN,
    KVD_T_VALUE_MAX,
    KVD_T_VALUE_CURVE,
    KVD_T_VALUE_DECADES,
    /*
     * Number of critical tokens of a layer: the fewest that together receive a given fraction
     * (`level`) of its attention. Mean over requests: [level][layer].
     */
    KVD_T_LAYER_MEAN,
    KVD_T_LAYER_SD,
    KVD_T_LAYER_MIN,
    KVD_T_LAYER_MAX,
    KVD_T_LAYER_SHARE,
    /*
     * Number of critical tokens of a KV head: the fewest that together receive a given fraction
     * (`level`) of its attention. Mean over requests: [level][layer][kv_head].
     */
    KVD_T_KV_MEAN,
    KVD_T_KV_SD,
    KVD_T_KV_MIN,
    KVD_T_KV_MAX,
    KVD_T_KV_SHARE,
    /*
     * Number of critical tokens of a head: the fewest that together receive a given fraction
     * (`level`) of its attention. Mean over requests: [level][layer][head].
     */
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
    /* Fraction of a request's tokens that counts as important, and as unimportant. */
    double share;
    /*
     * A layer joins the group of the layer below it if it shares more than this fraction of its
     * important tokens, and of its unimportant tokens, with the first layer of the group.
     */
    double group_overlap;
    double *data[KVD_N_T];
} kvd_tokens;

/* Allocates zeroed datasets for the sizes set in *t. */
int kvd_tokens_alloc(kvd_tokens *t, kvd_err *err);
void kvd_tokens_release(kvd_tokens *t);
int kvd_tokens_write(kvd_h5 *f, const kvd_tokens *t, kvd_err *err);
/*
 * Reads a kvdim/tokens file. Refuses non-finite values, fractions outside [0, 1], and token counts
 * outside 1 .. seq_len.
 */
int kvd_tokens_load(kvd_tokens *t, const char *path, kvd_err *err);

/*
 * Mean, minimum and maximum fraction of important (or unimportant) tokens that two layers have in
 * common, over all combinations of layers whose indices differ by `distance`.
 */
typedef struct {
    double mean, least, most;
} kvd_token_overlap;
kvd_token_overlap kvd_tokens_at_distance(const kvd_tokens *t, kvd_t field, kvd_ranking by,
                                         int distance);

#endif
