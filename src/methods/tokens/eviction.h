/* Describes to the CUDA engine how a method drops cached tokens (called entries here). */
#ifndef KVD_METHODS_TOKENS_EVICTION_H
#define KVD_METHODS_TOKENS_EVICTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct kvd_parameter_values;

/*
 * Number of tokens that a request may keep in each KV head of one layer. After the prompt, the
 * `keep_new` newest tokens stay, and of the older tokens the `keep_old` with the largest scores. If
 * a head has more than `limit` entries after a step, the entries with the smallest scores are
 * dropped: `drop` entries, or more if more are needed to reach `limit`. The `recent` newest entries
 * are never dropped.
 */
typedef struct {
    int32_t keep_new, keep_old;
    int32_t limit, recent;
    int32_t drop; /* number of entries that are dropped at once; 0: one */
    /*
     * These members are for kvd_evict_rule.fixed. `at`: if entries are ordered by age, the index of
     * the entry that a step drops. If `share` is above 0, `limit` is this fraction of the tokens so
     * far, rounded up. `place`, which the engine sets, is the index in the pages of the entry that
     * the next step drops; -1: none.
     */
    int32_t at, place;
    double share;
    /*
     * `prompt` is the number of prompt tokens. `steps` is the number of decode steps over which the
     * temperature rises from tau0 to tau1 of kvd_evict_rule.
     */
    int32_t prompt, steps;
    /*
     * Number of the `keep_old` tokens that every KV head chooses by its own scores. The n_kv_heads
     * * (keep_old - keep_own) other tokens of the layer are chosen by their scores from all KV
     * heads of the layer together.
     */
    int32_t keep_own;
} kvd_evict_budget;

/* Score by which the tokens of a KV head are ranked. The tokens with the largest scores stay. */
typedef enum {
    KVD_EVICT_ATTENTION, /* sum of the attention probabilities received */
    /*
     * Tokens have no scores. The first kvd_evict_budget.limit - recent tokens always stay. In a
     * step, the newest token replaces the oldest of the last `recent` tokens.
     */
    KVD_EVICT_FIRST,
    KVD_EVICT_SHORT_KEYS, /* minus the L2 norm of the key; at the end of prompts only */
    /*
     * Minus (key / |key|) . m, where m is the mean of all keys of the prompt, each divided by its
     * norm. At the end of prompts only.
     */
    KVD_EVICT_ODD_KEYS,
    /*
     * Logarithm of the expected attention probability times the length |v| of the value
     * (expectedattention.c). At the end of prompts only.
     */
    KVD_EVICT_EXPECTED,
    /*
     * Mean plus `gamma` times the variance of the probabilities that the last `window` rows of the
     * prompt give to the token (cake.c). At the end of prompts only.
     */
    KVD_EVICT_SPREAD,
    /*
     * Minus the number of queries that gave the token less than the mean probability. Only the last
     * `window` queries count, whether they are prompt tokens or decode steps (scissorhands.c).
     */
    KVD_EVICT_PIVOTAL,
    /*
     * The larger of two scores of the token: the mean probability that it receives from the last
     * `window` queries, and the mean over all queries that can attend to it. Each score is divided
     * by its mean over the tokens. The result is summed over `smooth` neighbours (ems.c). At the
     * end of prompts only.
     */
    KVD_EVICT_IMPORTANT,
    /*
     * Largest probability that the token receives from the tokens of a copy of the prompt. The
     * model reads this copy after the prompt (kvzip.c). The KV heads of all layers share their
     * budgets. At the end of prompts only.
     */
    KVD_EVICT_REPEATED
} kvd_evict_ranking;

/* Rules by which dropped tokens are merged into kept tokens of their KV head. */
typedef enum {
    KVD_MERGE_NONE,
    /*
     * A dropped token is merged into the token with the most similar key (largest cosine u), if u
     * reaches a running mean of such cosines. In the mean, the dropped token has the weight exp(u),
     * and the kept token has the weight e = 2.718... Merges after prompts and steps (d2o.c).
     */
    KVD_MERGE_LIKE,
    /*
     * A dropped token is merged into the token with the most similar key (largest cosine), outside
     * the last `window` tokens, if the cosine reaches `cosine`. The scores are the weights. Only
     * the `most` * keep_old dropped tokens with the largest scores are merged (ems.c).
     */
    KVD_MERGE_IMPORTANT,
    /*
     * Every dropped token is merged into the kept token nearest by position. The first `sink`
     * tokens and the last token receive no dropped tokens (elasticcache.c).
     */
    KVD_MERGE_NEAREST,
    /*
     * Consecutive tokens form a run if the cosines of neighbouring keys exceed `cosine`. Each run
     * is merged into its token with the largest score. The weights fall with the distance of keys.
     * The `keep_old` tokens with the largest scores and the `keep_new` newest tokens are never in a
     * run. KV heads may keep different numbers of tokens (kvmerger.c).
     */
    KVD_MERGE_RUNS
} kvd_merge_kind;

/*
 * Rule that computes the scores of tokens. If the temperature tau is 0, a score is a sum of
 * attention probabilities. Otherwise the probabilities are those of a softmax over (x + noise) /
 * tau, where x are the attention scores.
 */
typedef struct {
    /*
     * Softmax temperature for the prompt (tau0) and for the last decode step (tau1); between them
     * it is interpolated linearly.
     */
    float tau0, tau1;
    uint64_t seed;
    /* Number of the model's query head that is the first one of this GPU; it selects the noise. */
    int32_t first_head;
    int32_t window; /* prompt rows whose probabilities are summed; 0: all */
    int32_t smooth; /* number of neighbouring tokens whose scores are summed; odd */
    /* A kvd_evict_ranking. */
    int32_t ranking;
    /*
     * 1: all KV heads of a layer keep the same tokens, ranked by the score summed over the heads. A
     * decode step then ranks tokens only by the probabilities of that step. Requires temperature 0.
     */
    int32_t whole_layer;
    /*
     * Number of first prompt tokens that always stay. Used with KVD_EVICT_ATTENTION and
     * KVD_EVICT_EXPECTED.
     */
    int32_t sink;
    /*
     * Fraction of the KV heads of a layer that keep all tokens. The semantic vector of a head is
     * the sum of its values, weighted by attention. The heads whose vectors are farthest from the
     * mean of the vectors keep all tokens (taskkv.c). Requires KVD_EVICT_ATTENTION and a window.
     */
    double whole_heads;
    /*
     * With KVD_EVICT_EXPECTED: number of positions after the prompt, for which queries are
     * predicted.
     */
    int32_t future;
    /* With KVD_EVICT_EXPECTED: 1 uses mean and covariance of the queries, 0 only their mean. */
    int32_t covariance;
    /* With KVD_EVICT_EXPECTED: constant that is added to the expected attention probability. */
    float epsilon;
    float gamma; /* with KVD_EVICT_SPREAD: weight of the variance */
    /*
     * Number of tokens in a window; the tokens of a window stay or are dropped together
     * (windowkv.c). 0: tokens are chosen one by one. Requires KVD_EVICT_ATTENTION.
     */
    int32_t review;
    /*
     * If review > 0: number of consecutive layers that keep the tokens chosen by the first of them.
     */
    int32_t layers;
    /*
     * Score of a window of tokens, if review > 0. 1: mean score of the better half of its tokens,
     * 0: mean score of all its tokens.
     */
    int32_t largest;
    /*
     * Used with `whole_layer` and KVD_EVICT_ATTENTION. If `anchor` is not 0, the fraction `crush`
     * of the `keep_old` tokens of a prompt is chosen to represent the tokens that are dropped. A
     * token has one bit per query head. Tokens are ordered by the number of bits that differ from a
     * reference pattern, the anchor. 1: the anchor is 0 1 0 1 ...; 2: the anchor has the more
     * frequent bit of each head (kvcrush.c).
     */
    int32_t anchor;
    double crush;
    int32_t merge; /* a kvd_merge_kind */
    /* With KVD_MERGE_LIKE: weight of the newest step's mean cosine in the running mean */
    double beta;
    /* with KVD_MERGE_IMPORTANT and KVD_MERGE_RUNS: smallest cosine of keys that are merged */
    double cosine;
    double most; /* with KVD_MERGE_IMPORTANT: merged tokens, as a multiple of keep_old */
    /* 1: a step drops the entry at kvd_evict_budget.at, without scores (elasticcache.c). */
    int32_t fixed;
} kvd_evict_rule;

/* Rules by which a decode step chooses the pages or tokens that it reads. */
typedef enum {
    KVD_READ_BOUNDS, /* pages, by bounds of the products of a query with their keys (quest.c) */
    KVD_READ_RECENT, /* tokens, by the attention that the last `history` rows gave them (alisa.c) */
    /* tokens, by the products of a query with the centroids nearest to their keys (a2ats.c) */
    KVD_READ_CODES,
    /*
     * clusters of tokens at two levels; at the end of the prompt, tokens were dropped to which the
     * last queries gave little attention (mpcache.c)
     */
    KVD_READ_CLUSTERS,
    /*
     * pages of a prompt, by the products of a query with their mean keys; the keys of the prompt
     * are stored in low rank (shadowkv.c)
     */
    KVD_READ_LANDMARKS
} kvd_read_ranking;

/*
 * Describes to the CUDA engine which tokens a decode step reads. A step reads `budget` tokens
 * (below 1: a fraction of the cached ones), rounded up to whole pages of `page` tokens.
 */
typedef struct {
    double budget;
    size_t page;
    int32_t ranking; /* a kvd_read_ranking */
    /*
     * With KVD_READ_RECENT: `local` is the fraction of the budget for the newest tokens, and
     * `history` the number of recent rows whose probabilities count.
     */
    double local;
    int32_t history;
    /*
     * With KVD_READ_CODES: numbers of first and of newest tokens that are read in addition to the
     * `budget` tokens of every query head.
     */
    int32_t sink, newest;
    /*
     * With KVD_READ_CLUSTERS: `page` is the number of tokens of a small cluster, and `large`, a
     * multiple of `page`, the number of tokens of a large cluster. `first` is the fraction of the
     * large clusters whose small clusters are scored, and `alpha` is the weight of a cluster's
     * largest keys (its smallest keys have the weight 1 - alpha). A token of the prompt stays if at
     * least one of the prompt's last queries gives it a mean probability of at least `threshold`.
     * `rows` is the fraction of the queries that count as last queries.
     */
    int32_t large;
    double first, alpha, rows, threshold;
    /*
     * With KVD_READ_LANDMARKS: rank of the keys of a prompt, and numbers of pages of the prompt
     * whose keys stay exact. `outliers` pages have keys that are least similar to their mean,
     * `last` pages are the last full ones. Pages with exact keys are read in addition to the
     * `budget` tokens. `budget` is a fraction of the prompt.
     */
    int32_t rank, outliers, last;
} kvd_read_rule;

/* Centroids of keys before RoPE, for KVD_READ_CODES. Host arrays of all layers and KV heads. */
typedef struct {
    int32_t size;     /* number of centroids of a KV head */
    int32_t relative; /* RoPE position at which queries are compared with centroids */
    /*
     * [n_layers][n_kv_heads][d][d] matrices L. Keys and centroids are compared after multiplication
     * by L: the centroid c nearest to a key k is the one with the smallest |k L - c L|.
     */
    const float *factor;
    const float *moved;    /* [n_layers][n_kv_heads][size][d] centroids times L */
    const float *centroid; /* [n_layers][n_kv_heads][size][d] */
} kvd_read_codes;

typedef struct {
    size_t prompt, whole; /* number of tokens of the prompt, and of prompt and steps together */
    int layer, n_layers;
} kvd_evict_request;

typedef struct {
    /* Number of tokens of the prompt. */
    size_t n;
    int n_layers;
    /*
     * Statistics of all layers, [n_layers][each]. With KVD_EVICT_SPREAD: entropy and variance of
     * the attention (cake.c). Otherwise: scores of the tokens, summed over all query heads.
     */
    const double *x;
    /* Number of statistics of a layer: 2 with KVD_EVICT_SPREAD, else n. */
    size_t each;
} kvd_evict_layers;

typedef struct {
    /*
     * Sets the members of *rule that differ from their defaults. Before the call, the caller sets
     * `smooth` to 1, `seed` to that of the plan and all other members to 0.
     */
    void (*rule)(const struct kvd_parameter_values *v, kvd_evict_rule *rule);
    kvd_evict_budget (*budget)(const struct kvd_parameter_values *v, const kvd_evict_request *r);
    /*
     * Sets the budgets [n_layers] of a prompt from statistics of all its layers. A method with
     * `divide` must have a `budget` that returns the mean over the layers, for timing runs that
     * compute no prompt. NULL: `budget` alone gives the budgets.
     */
    int (*divide)(const struct kvd_parameter_values *v, const kvd_evict_layers *s,
                  kvd_evict_budget *budget, kvd_err *err);
    /*
     * True if ranking needs keys with all d_head dimensions. The method cannot then be combined
     * with a method that removes dimensions.
     */
    bool whole_keys;
} kvd_tokens_eviction;

#endif
