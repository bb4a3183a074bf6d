/*
 * kvdim/tokens files: importance of tokens, computed from kvdim/attention files. They hold the data
 * of Fig. 6-8 of the paper ZDC and Fig. 1-3 of the paper LeanKV.
 */
#ifndef KVD_FORMATS_TOKENS_H
#define KVD_FORMATS_TOKENS_H

#include "formats/attention.h"

extern const kvd_schema kvd_schema_tokens;

/* Measures by which the tokens of a layer are ranked. */
typedef enum {
    /* Mean attention score of the token as a query (ZDC Observation 4). */
    KVD_RANK_SCORE,
    /* Mean attention score of the token as a key. */
    KVD_RANK_SCORE_AS_KEY,
    /* ln of the softmax denominator of the token as a query, summed over heads (ZDC section 5). */
    KVD_RANK_DENOMINATOR,
    /*
     * KVD_RANK_DENOMINATOR minus ln of the number of keys, because denominators grow with the
     * position.
     */
    KVD_RANK_DENOMINATOR_PER_KEY,
    /* Attention probability that the token receives from all heads and queries. */
    KVD_RANK_MASS,
    /* Attention probability received, divided by the number of queries that see the token. */
    KVD_RANK_MASS_PER_QUERY,
    KVD_N_RANKINGS
} kvd_ranking;
extern const char *const kvd_ranking_name[KVD_N_RANKINGS];

enum { KVD_N_CURVE = 19 };
/* Quantiles, in [0, 1], of the stored distributions. */
extern const double kvd_curve_level[KVD_N_CURVE];

/* Datasets of a file. docs/formats.md gives their shapes. */
typedef enum {
    KVD_T_SCORE_MIN, /* smallest attention score of each layer: [layer] */
    KVD_T_SCORE_MAX,
    KVD_T_SCORE_MEAN,
    KVD_T_SCORE_SD,
    KVD_T_SCORE_CURVE,
    /*
     * Mean over requests of the fraction of unimportant tokens that two layers have in common:
     * [ranking measure][layer][layer]. KVD_T_UNIMPORTANT_SD is the standard deviation over
     * requests. KVD_T_IMPORTANT and KVD_T_IMPORTANT_SD are the same for important tokens.
     */
    KVD_T_UNIMPORTANT,
    KVD_T_UNIMPORTANT_SD,
    KVD_T_IMPORTANT,
    KVD_T_IMPORTANT_SD,
    /*
     * Number, from 0, of a layer's group: [ranking measure][layer]. Layers of a group are adjacent
     * and have similar sets of important tokens and similar sets of unimportant tokens.
     */
    KVD_T_GROUP,
    /* least attention probability that a token of each layer receives: [layer] */
    KVD_T_RECEIVED_MIN,
    KVD_T_RECEIVED_MAX,
    /* Quantiles of the attention probability that a token receives: [layer][quantile]. */
    KVD_T_RECEIVED_CURVE,
    /*
     * Spread of the received attention of each layer: [layer]. It is log10 of the ratio between the
     * 99.9 % quantile and the 0.1 % quantile.
     */
    KVD_T_RECEIVED_DECADES,
    KVD_T_VALUE_MIN,
    KVD_T_VALUE_MAX,
    KVD_T_VALUE_CURVE,
    KVD_T_VALUE_DECADES,
    /*
     * Smallest number of tokens that together receive the fraction `level` (90, 95 or 99 %) of a
     * layer's attention, mean over requests: [level][layer].
     */
    KVD_T_LAYER_MEAN,
    KVD_T_LAYER_SD,
    KVD_T_LAYER_MIN,
    KVD_T_LAYER_MAX,
    KVD_T_LAYER_SHARE,
    /*
     * Smallest number of tokens that together receive the fraction `level` (90, 95 or 99 %) of a KV
     * head's attention.
     */
    KVD_T_KV_MEAN,
    KVD_T_KV_SD,
    KVD_T_KV_MIN,
    KVD_T_KV_MAX,
    KVD_T_KV_SHARE,
    /*
     * Smallest number of tokens that together receive the fraction `level` (90, 95 or 99 %) of a
     * query head's attention.
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
    /*
     * Fraction of a request's tokens that are called important, and also the fraction called
     * unimportant.
     */
    double share;
    /*
     * A layer joins a group of layers if it has in common with the group's first layer more than
     * this fraction of its important tokens, and more than this fraction of its unimportant tokens.
     */
    double group_overlap;
    double *data[KVD_N_T];
} kvd_tokens;

int kvd_tokens_alloc(kvd_tokens *t, kvd_err *err);
void kvd_tokens_release(kvd_tokens *t);
int kvd_tokens_write(kvd_h5 *f, const kvd_tokens *t, kvd_err *err);
/*
 * Reads a file. Fails on non-finite values, fractions outside [0, 1], and token counts outside 1 ..
 * seq_len.
 */
int kvd_tokens_load(kvd_tokens *t, const char *path, kvd_err *err);

/*
 * Fraction of tokens that two layers have in common. Mean, least and greatest value over the pairs
 * of layers whose indices differ by `distance`.
 */
typedef struct {
    double mean, least, most;
} kvd_token_overlap;
kvd_token_overlap kvd_tokens_at_distance(const kvd_tokens *t, kvd_t field, kvd_ranking by,
                                         int distance);

#endif
