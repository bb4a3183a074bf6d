/*
 * kvdim/tokens files: which tokens matter, computed from kvdim/attention files. Ranges of attention
 * scores by layer and the overlap of important and of unimportant tokens between layers (ZDC Fig.
 * 6-8); spread of scores and of value norms, and critical tokens per layer and head (LeanKV Fig.
 * 1-3).
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
     * KVD_RANK_DENOMINATOR minus ln of the number of keys that the token sees (D-11 in
     * docs/readings.md).
     */
    KVD_RANK_DENOMINATOR_PER_KEY,
    /* Attention probability that the token receives from all heads and queries. */
    KVD_RANK_MASS,
    /* KVD_RANK_MASS divided by the number of queries that see the token. */
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
     * Fraction of the least important tokens that two layers have in common, mean over requests:
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
    /* Group of each layer with similar token sets, numbered from 0: [ranking measure][layer]. */
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
     * Number of tokens that receive the fraction `level` of a layer's attention (critical tokens),
     * mean over requests: [level][layer].
     */
    KVD_T_LAYER_MEAN,
    KVD_T_LAYER_SD,
    KVD_T_LAYER_MIN,
    KVD_T_LAYER_MAX,
    KVD_T_LAYER_SHARE,
    /*
     * Number of tokens that receive the fraction `level` of the attention of one KV head (critical
     * tokens), mean over requests: [level][layer][kv_head].
     */
    KVD_T_KV_MEAN,
    KVD_T_KV_SD,
    KVD_T_KV_MIN,
    KVD_T_KV_MAX,
    KVD_T_KV_SHARE,
    /*
     * Number of tokens that receive the fraction `level` of the attention of one head (critical
     * tokens), mean over requests: [level][layer][head].
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
     * Layers of one group have more than this fraction of their important tokens in common, and
     * more than this fraction of their unimportant tokens.
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
