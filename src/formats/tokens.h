/* kvdim/tokens files: importance of tokens in attention. */
#ifndef KVD_FORMATS_TOKENS_H
#define KVD_FORMATS_TOKENS_H

#include "formats/attention.h"

extern const kvd_schema kvd_schema_tokens;

/* Measures that rank the tokens of a layer. */
typedef enum {
    KVD_RANK_SCORE,        /* mean attention score as a query (ZDC paper, Observation 4) */
    KVD_RANK_SCORE_AS_KEY, /* mean attention score of the token as a key */
    /* for the token's query: log(sum(exp(score))), summed over heads */
    KVD_RANK_DENOMINATOR,
    /* for the token's query: log(sum(exp(score))) minus the log of the number of visible keys */
    KVD_RANK_DENOMINATOR_PER_KEY,
    KVD_RANK_MASS, /* attention probability that the token receives from all heads and queries */
    /* attention probability that the token receives, divided by the number of queries that see
     * it */
    KVD_RANK_MASS_PER_QUERY,
    KVD_N_RANKINGS
} kvd_ranking;
extern const char *const kvd_ranking_name[KVD_N_RANKINGS];

enum { KVD_N_CURVE = 19 };
/* quantile levels in [0, 1] at which the quantiles of scores, received attention and norms of V are
 * stored */
extern const double kvd_curve_level[KVD_N_CURVE];

/* Datasets of a kvdim/tokens file. docs/formats.md gives their shapes. */
typedef enum {
    KVD_T_SCORE_MIN, /* [layer] smallest attention score */
    KVD_T_SCORE_MAX,
    KVD_T_SCORE_MEAN,
    KVD_T_SCORE_SD,
    KVD_T_SCORE_CURVE,
    /* [ranking][layer][layer] fraction of the lowest-ranked tokens of one layer that are also
     * lowest-ranked in the other layer */
    KVD_T_UNIMPORTANT,
    KVD_T_UNIMPORTANT_SD,
    KVD_T_IMPORTANT,
    KVD_T_IMPORTANT_SD,
    KVD_T_GROUP, /* [ranking][layer] number of the group of similar, adjacent layers, from 0 */
    /* [layer] smallest value, over tokens and heads, of the mean attention probability that a token
     * receives from later queries */
    KVD_T_RECEIVED_MIN,
    KVD_T_RECEIVED_MAX,
    KVD_T_RECEIVED_CURVE, /* [layer][quantile] attention probability that a token receives */
    /* [layer] log10 of the ratio of the 99.9 % and 0.1 % quantiles of received attention */
    KVD_T_RECEIVED_DECADES,
    KVD_T_VALUE_MIN,
    KVD_T_VALUE_MAX,
    KVD_T_VALUE_CURVE,
    KVD_T_VALUE_DECADES,
    /* [level][layer] number of a text's tokens, most attended first, that together receive 90, 95
     * or 99 % (the level) of a layer's attention; averaged over texts */
    KVD_T_LAYER_MEAN,
    KVD_T_LAYER_SD,
    KVD_T_LAYER_MIN,
    KVD_T_LAYER_MAX,
    KVD_T_LAYER_SHARE,
    /* [level][layer][kv_head] number of a text's tokens, most attended first, that together receive
     * 90, 95 or 99 % (the level) of a KV head's attention; averaged over texts */
    KVD_T_KV_MEAN,
    KVD_T_KV_SD,
    KVD_T_KV_MIN,
    KVD_T_KV_MAX,
    KVD_T_KV_SHARE,
    /* [level][layer][head] number of a text's tokens, most attended first, that together receive
     * 90, 95 or 99 % (the level) of a query head's attention; averaged over texts */
    KVD_T_HEAD_MEAN,
    KVD_T_HEAD_SD,
    KVD_T_HEAD_MIN,
    KVD_T_HEAD_MAX,
    KVD_T_HEAD_SHARE,
    KVD_N_T
} kvd_t;

typedef struct {
    kvd_model_info model;
    char label[64], corpus_hash[KVD_CORPUS_HASH_TEXT];
    size_t n_tokens, n_requests, n_kept, seq_len;
    int first_layer, n_layers;
    /* fraction of tokens that count as important */
    double share;
    /* fraction of important tokens that a layer must share with the first layer of its group */
    double group_overlap;
    double *data[KVD_N_T];
} kvd_tokens;

int kvd_tokens_alloc(kvd_tokens *t, kvd_err *err);
void kvd_tokens_release(kvd_tokens *t);
int kvd_tokens_write(kvd_h5 *f, const kvd_tokens *t, kvd_err *err);
/* Reads a file of token importance. Fails if a value is out of range, for example a share above
 * 1. */
int kvd_tokens_load(kvd_tokens *t, const char *path, kvd_err *err);

/* Share of important (or unimportant) tokens that two layers have in common: mean, minimum and
 * maximum over pairs of layers at a given distance. */
typedef struct {
    double mean, least, most;
} kvd_token_overlap;
kvd_token_overlap kvd_tokens_at_distance(const kvd_tokens *t, kvd_t field, kvd_ranking by,
                                         int distance);

#endif
