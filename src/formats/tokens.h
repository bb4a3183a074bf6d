/*
 * kvdim/tokens: which tokens matter, computed from kvdim/attention. Ranges of scores by layer and
 * the overlap of important and of unimportant tokens between layers (ZDC Fig. 6-8); spread of
 * scores and of value norms, and critical tokens per layer and head (LeanKV Fig. 1-3).
 */
#ifndef KVD_FORMATS_TOKENS_H
#define KVD_FORMATS_TOKENS_H

#include "formats/attention.h"

extern const kvd_schema kvd_schema_tokens;

/* Measures by which the tokens of a layer are ranked. */
typedef enum {
    /* mean score over heads and the keys that the token sees (ZDC Observation 4) */
    KVD_RANK_SCORE,
    KVD_RANK_SCORE_AS_KEY, /* mean score over heads and the queries that see the token */
    /* ln of the softmax denominators of the token's row, summed over heads (ZDC section 5) */
    KVD_RANK_DENOMINATOR,
    /* KVD_RANK_DENOMINATOR minus ln of the number of keys that the row sees (D-11) */
    KVD_RANK_DENOMINATOR_PER_KEY,
    KVD_RANK_MASS,           /* mass received from all heads */
    KVD_RANK_MASS_PER_QUERY, /* KVD_RANK_MASS divided by the number of tokens that see it */
    KVD_N_RANKINGS
} kvd_ranking;
extern const char *const kvd_ranking_name[KVD_N_RANKINGS];

enum { KVD_N_CURVE = 19 };
extern const double kvd_curve_level[KVD_N_CURVE]; /* quantiles that draw a distribution */

/*
 * Datasets of a file, apart from its description. tokens.c and docs/formats.md give their shapes.
 */
typedef enum {
    KVD_T_SCORE_MIN, /* [layer] */
    KVD_T_SCORE_MAX,
    KVD_T_SCORE_MEAN,
    KVD_T_SCORE_SD,
    KVD_T_SCORE_CURVE, /* [layer][quantile] */
    /*
     * [measure][layer][layer]: share of the set that two layers have in common, mean over requests
     */
    KVD_T_UNIMPORTANT,
    /*
     * [measure][layer][layer]: standard deviation over requests of the share that two layers have
     * in common
     */
    KVD_T_UNIMPORTANT_SD,
    KVD_T_IMPORTANT,
    KVD_T_IMPORTANT_SD,
    KVD_T_GROUP,        /* [measure][layer]: number of the layer's group, from 0 */
    KVD_T_RECEIVED_MIN, /* [layer] */
    KVD_T_RECEIVED_MAX,
    KVD_T_RECEIVED_CURVE, /* [layer][quantile] */
    /* [layer]: log10 of the ratio of the 99.9 % quantile to the 0.1 % quantile */
    KVD_T_RECEIVED_DECADES,
    KVD_T_VALUE_MIN,
    KVD_T_VALUE_MAX,
    KVD_T_VALUE_CURVE,
    KVD_T_VALUE_DECADES,
    /* [level][layer]: critical tokens of a request */
    KVD_T_LAYER_MEAN,
    KVD_T_LAYER_SD,
    KVD_T_LAYER_MIN,
    KVD_T_LAYER_MAX,
    KVD_T_LAYER_SHARE,
    KVD_T_KV_MEAN, /* [level][layer][kv_head] */
    KVD_T_KV_SD,
    KVD_T_KV_MIN,
    KVD_T_KV_MAX,
    KVD_T_KV_SHARE,
    KVD_T_HEAD_MEAN, /* [level][layer][head] */
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
    double share; /* share of a request's tokens in the important and in the unimportant set */
    double group_overlap; /* overlap that both sets of a group must exceed */
    double *data[KVD_N_T];
} kvd_tokens;

/* Allocates zeroed data for the description in *t. */
int kvd_tokens_alloc(kvd_tokens *t, kvd_err *err);
void kvd_tokens_release(kvd_tokens *t);
int kvd_tokens_write(kvd_h5 *f, const kvd_tokens *t, kvd_err *err);
/*
 * Reads a file. Refuses non-finite values, overlaps and shares outside [0, 1], and counts outside 1
 * .. seq_len.
 */
int kvd_tokens_load(kvd_tokens *t, const char *path, kvd_err *err);

/*
 * Mean, minimum and maximum of data[KVD_T_UNIMPORTANT or KVD_T_IMPORTANT] over all pairs of layers
 * whose indices differ by `distance`.
 */
typedef struct {
    double mean, least, most;
} kvd_token_overlap;
kvd_token_overlap kvd_tokens_at_distance(const kvd_tokens *t, kvd_t field, kvd_ranking by,
                                         int distance);

#endif
