/*
 * Methods of the tokens axis. A method decides which cached tokens of a KV head are kept unchanged,
 * lowered (stored with fewer bits or dimensions) or dropped. It decides at the end of the prompt
 * and after every decode step.
 */
#ifndef KVD_METHODS_TOKENS_TOKENS_H
#define KVD_METHODS_TOKENS_TOKENS_H

#include "common/half.h"
#include "methods/axis.h"
#include "methods/tokens/eviction.h"

/* Exact attention statistics of a prompt for one KV head. A row is one prompt token as a query. */
typedef struct {
    int layer, kv_head, group; /* group: query heads of the KV head */
    size_t n;
    /*
     * Number of tokens of the whole sequence if the caller knows it in advance, as in an evaluation
     * of given text; otherwise n.
     */
    size_t n_expected;
    /*
     * [n] Sum of the attention probabilities that a token received, over all rows and query heads.
     */
    const double *mass;
    /* [n] Part of `mass` that a token received from itself as a query. */
    const double *own;
    /* Number of rows at the end of the prompt that `recent` covers. */
    size_t window;
    const double *recent; /* [group][n] sum of probabilities from the last `window` rows */
    /*
     * [n] For each token, the number of queries that gave the token less than the mean probability.
     * Queries are counted over all query heads, for the tokens that `recent` covers.
     */
    const double *below;
    /* [n] Log of the softmax denominator of row t, averaged over the query heads. */
    const double *log_denominator;
    /*
     * [n] Like `mass`, but computed from the scores as changed by the method's function
     * `regularise`.
     */
    const double *score_mass;
    size_t d;
    /* Keys after RoPE, and values: n tokens of d = d_head floats, `ld` floats apart. */
    const float *k, *v;
    size_t ld;
    /*
     * Queries after RoPE: n tokens of `group` query heads of d floats, tokens `ldq` floats apart.
     */
    const float *q;
    size_t ldq;
    /* [n] Levels that the method's function `rank` wrote for this KV head. */
    const uint8_t *ranked;
} kvd_prompt_attention;

/* Q and K of one prompt in one layer, before anything is compressed. */
typedef struct {
    int layer;
    size_t n;
    /*
     * Queries [rows][n_heads][d_head] and keys [rows][n_kv_heads][d_head] after RoPE. `rows` is n,
     * or 2 n if the method's `repeats` is set (the prompt, then a copy of it).
     */
    const float *q, *k;
    size_t window; /* attention window, as in kvd_attention_in */
} kvd_observed_prompt;

typedef struct {
    int n_layers;
    size_t n;
    /*
     * [n_layers][n] Logarithm of the sum over query heads of the softmax denominators of token t.
     */
    const double *log_denominator;
    /* [n_layers][observed] Numbers that the method's function `observe` wrote, if it has one. */
    const double *observed;
} kvd_prompt_layers;

/*
 * Attention of one decode step to the n cached tokens of one KV head. The newest token is the last.
 */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position; /* [n] positions in the sequence, rising */
    /* [group][n] attention probabilities of the step */
    const float *prob;
    const float *score; /* [group][n] attention scores q.k / sqrt(d_head) */
    size_t now;         /* position in the sequence of the newest token */
    /* Number of tokens of the prompt, and of the whole sequence. */
    size_t prompt, n_expected;
} kvd_step_attention;

typedef struct {
    size_t n;
    /* [n] Level of every cached token. Tokens with KVD_LEVEL_DROPPED may be merged into others. */
    const uint8_t *level;
    const float *k; /* [n][d_k] keys as attention reads them */
    const float *v; /* [n][d_v] values as the cache stores them */
    size_t d_k, d_v;
} kvd_merge_choice;

typedef struct {
    int layer, kv_head, group; /* group: query heads of the KV head */
    size_t n, d;               /* cached tokens, and floats of a key */
    /* [n] Positions in the sequence, rising. The newest token is the last. */
    const uint32_t *position;
    const float *k; /* [n][d] keys as attention reads them */
    /* [group][d] Queries of the step, ldq floats apart. */
    const float *q;
    size_t ldq;
    kvd_dtype type; /* data type of the numbers that the cache stores */
} kvd_read_choice;

typedef struct {
    int kv_head;
    size_t n, n_kv_heads, d; /* prompt tokens, KV heads, and dimensions of a head */
    const float *k_pre;      /* [n][n_kv_heads * d] keys of the layer before RoPE */
    const float *k;          /* [n][d] keys of this KV head after RoPE, as stored */
    kvd_dtype type;          /* data type of a stored number */
} kvd_prompt_keys;

/* Bits that the rebuilt keys (`rebuild`) take in the cache: per token, and once per KV head. */
typedef struct {
    double token, prompt;
} kvd_rebuilt_bits;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    kvd_method_info info; /* must be the first member */
    /*
     * `lowers`: the method gives KVD_LEVEL_LOW to some cached tokens. `only_lowers`: the method
     * gives KVD_LEVEL_LOW to some tokens and drops none.
     */
    bool lowers, only_lowers;
    /* Bits per cached token that the method stores in addition to K and V. */
    double entry_bits;
    /* Description of the method for the CUDA engine. NULL if the engine cannot run the method. */
    const kvd_tokens_eviction *eviction;
    /*
     * Returns the rule by which the CUDA engine chooses the tokens that the function `select`
     * chooses on the CPU. NULL if the engine cannot do it.
     */
    kvd_read_rule (*read_rule)(const kvd_parameter_values *v);
    /* Returns the centroids of an open method whose rule is KVD_READ_CODES. */
    kvd_read_codes (*read_codes)(const void *self);
    /*
     * Returns the number of last prompt rows that kvd_prompt_attention.recent covers. NULL: 0 rows.
     */
    size_t (*window)(const kvd_parameter_values *v);
    /*
     * Returns an attention score with noise added and divided by a temperature, as in Keyformer.
     * kvd_prompt_attention.score_mass uses these scores. May be NULL.
     */
    double (*regularise)(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress);
    /*
     * Stores the method's private data in *self. On failure it releases what it allocated, and
     * `close` is not called.
     */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Returns the size in bytes of the state of one KV head of one sequence of at most n tokens.
     * The cache allocates the state and sets it to 0. NULL if there is no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * `repeats` is true if the model processes every prompt followed by a copy of the prompt.
     * `observe` computes numbers by which the function `rank` chooses tokens; if `observe` is NULL,
     * `rank` uses softmax denominators. `observed` returns the number of doubles that `observe`
     * writes per layer for a prompt of n tokens. `observe` must be thread-safe.
     */
    bool repeats;
    size_t (*observed)(const void *self, size_t n);
    int (*observe)(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err);
    /*
     * Chooses the level of every token in all layers, in a first pass over the prompt before it is
     * compressed. Writes level [n_layers][n] or, if the method has `observe`,
     * [n_layers][n_kv_heads][n]. The function `prompt` finds these levels in
     * kvd_prompt_attention.ranked. NULL: there is no first pass.
     */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /*
     * Writes level [n] for one KV head, and fills the head's state. On entry all levels are
     * KVD_LEVEL_HIGH.
     */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err);
    /*
     * Called after a decode step: sets level [n], the precision level of every cached token of a KV
     * head. On entry `level` has the current levels, KVD_LEVEL_HIGH for the newest token. A level
     * must not rise. If tokens are dropped, the cache then calls `forget`. `forget` must reduce the
     * state to the n tokens that remain, whose indices in the old state are kept [n].
     */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err);
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
    /*
     * prompt_heads and step_heads do the work of `prompt` and `step` for all n_heads KV heads of a
     * layer at once. state, p, a and level have one element per KV head. A method without `select`
     * has exactly one of `prompt` and `prompt_heads`. Every method has at most one of `step` and
     * `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err);
    int (*step_heads)(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err);
    /*
     * `merge` merges dropped tokens into kept tokens. It is called after the prompt and, if
     * `merges_steps` is true, after every step that drops tokens. On entry each into[i] is n and
     * each weight[i] is 1. To merge token i, `merge` sets into[i] to the index of a kept token. K
     * and V of the kept token become the weighted mean of its own K and V and those of all tokens
     * merged into it, with the weights `weight`. The position of the kept token does not change.
     * NULL: dropped tokens are lost.
     */
    bool merges_steps;
    int (*merge)(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err);
    /*
     * Replaces the keys of a KV head, at the end of a prompt, by an approximation that is stored in
     * fewer bits. Writes the approximate keys, before RoPE, to k [n][d], and the bits that they
     * take to *bits. If token i keeps its original key, sets exact[i] to 1. Also fills the state if
     * the method has state_bytes. Requires `select` and keys before RoPE. May be NULL.
     */
    int (*rebuild)(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err);
    /*
     * Chooses which cached tokens a decode step reads. On entry each read[i] is 1; `select` sets it
     * to 0 if the step must not read token i, which stays in the cache. `prompt` may still drop
     * tokens, and `prompt` and `step` may fill the state. NULL: every step reads all tokens.
     */
    int (*select)(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err);
    /*
     * Returns the bits of side information that `select` needs about n cached tokens, each with d
     * numbers of number_bits bits. The side information is stored, and every step reads it.
     */
    double (*select_bits)(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits);
};

extern const kvd_tokens_method kvd_tokens_h2o, kvd_tokens_keyformer, kvd_tokens_scissorhands,
    kvd_tokens_snapkv, kvd_tokens_leankv, kvd_tokens_importance, kvd_tokens_received,
    kvd_tokens_lower, kvd_tokens_streaming, kvd_tokens_tova, kvd_tokens_pyramidkv, kvd_tokens_adakv,
    kvd_tokens_expectedattention, kvd_tokens_knorm, kvd_tokens_keydiff, kvd_tokens_quest,
    kvd_tokens_d2o, kvd_tokens_cake, kvd_tokens_kvzip, kvd_tokens_kvmerger, kvd_tokens_prefixkv,
    kvd_tokens_windowkv, kvd_tokens_kvcrush, kvd_tokens_ems, kvd_tokens_elasticcache,
    kvd_tokens_taskkv, kvd_tokens_a2ats, kvd_tokens_mpcache, kvd_tokens_alisa, kvd_tokens_shadowkv;

/* Returns the fraction of tokens that are important in a layer, for method importance. */
double kvd_tokens_important(const kvd_parameter_values *v, int layer, int n_layers);
/* Returns the value of parameter `layers` of method importance. */
int kvd_tokens_layers(const kvd_parameter_values *v);

/*
 * Converts the value of a budget parameter to tokens. A value below 1 is a fraction of `of` tokens,
 * rounded down. A value of 1 or more is a number of tokens.
 */
size_t kvd_tokens_budget(double value, size_t of);

/* Largest value of a parameter that is a budget. Other parameters have smaller upper ends. */
enum { KVD_BUDGET_MOST = 1 << 24 };

/* Fails if a budget of the method is neither a fraction below 1 nor a whole number of tokens. */
int kvd_tokens_check_budgets(const kvd_parameter_values *v, kvd_err *err);

/*
 * Implements `open` of methods whose first parameter is `budget`. Stores `v` in *self. Fails if the
 * budget would keep no token.
 */
int kvd_tokens_open_budget(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);

/*
 * Implements `budget` of evictions that drop tokens once, after the prompt, if the first parameter
 * of the method is `budget`.
 */
kvd_evict_budget kvd_tokens_prompt_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);

typedef struct {
    const kvd_parameter_values *v;
    const kvd_config *config;
} kvd_tokens_shaped;
/*
 * Implement `open` of methods whose private data is a kvd_tokens_shaped. `close` of such a method
 * must be free(). kvd_tokens_open_shaped_budget also checks the budget, as kvd_tokens_open_budget
 * does.
 */
int kvd_tokens_open_shaped(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
int kvd_tokens_open_shaped_budget(const kvd_parameter_values *v, const kvd_method_setup *s,
                                  void **self, kvd_err *err);

/* Implements `prompt` of methods whose function `rank` has already chosen all levels. */
int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err);

/*
 * For methods whose state is one double per cached token: kvd_tokens_sums_bytes can serve as
 * `state_bytes`, kvd_tokens_forget_sums as `forget`.
 */
size_t kvd_tokens_sums_bytes(const void *self, size_t n);
void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n);

/*
 * Indices of the parameters `budget`, `window` and `kernel`, which are the first parameters of
 * methods snapkv, pyramidkv and adakv. KVD_WINDOW_KEYS is the index of the first parameter after
 * them.
 */
enum { KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS, KVD_WINDOW_KERNEL, KVD_WINDOW_KEYS };
int kvd_tokens_open_window(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
size_t kvd_tokens_window_rows(const kvd_parameter_values *v);
void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule);
/* Implements `budget` of evictions that drop tokens once and keep the last `window` tokens. */
kvd_evict_budget kvd_tokens_window_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);
/*
 * Returns the number of prompt tokens before the last `window` ones. The last `window` ones always
 * stay.
 */
size_t kvd_tokens_window_old(const kvd_parameter_values *v, const kvd_prompt_attention *p);
/*
 * Writes a score for each token that precedes the last `window` tokens of the prompt. The score is
 * a sum of probabilities over the queries of the last `window` tokens, the query heads, and the
 * `kernel` tokens centred on the scored token.
 */
void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score);

/* Returns n, or INT32_MAX if n is larger. */
int32_t kvd_evict_count(size_t n);
/*
 * Returns the budget of a method that drops tokens at every step. The `recent` newest tokens and
 * `old` of the older tokens stay.
 */
kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r);
/*
 * Returns the budget of a method that drops tokens only at the end of the prompt. The newest tokens
 * (`newest` of them) and `old` of the older tokens stay.
 */
kvd_evict_budget kvd_evict_once(size_t old, size_t newest);

/*
 * Sets the levels of the first n tokens to dropped, except for the k tokens with the largest
 * scores. Among equal scores the later tokens stay.
 */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/*
 * Writes to a [n] the attention probabilities that prompt token t gives to tokens 0 .. t in one
 * query head. product [n] is scratch.
 */
void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a);

/* Returns the inner product of two vectors of d numbers. */
double kvd_tokens_dot(const float *a, const float *b, size_t d);
/* Returns the length of a vector of d numbers, at least 1e-12. */
double kvd_tokens_length(const float *x, size_t d);

/*
 * Returns the index of the smallest score, the first one if several are equal. n must be above 0.
 */
size_t kvd_tokens_least(const double *score, size_t n);

/*
 * Implementations in the CUDA engine. evict: methods that drop equal numbers of tokens in every KV
 * head. uneven: methods that drop different numbers. selection: methods whose steps read a part of
 * the cache. zdc: method importance. leankv: method sparsity. lower: method lower. The addresses
 * are NULL if the program is linked without GPU code.
 */
extern const struct kvd_gpu_kind kvd_gpu_evict KVD_IF_LINKED, kvd_gpu_uneven KVD_IF_LINKED,
    kvd_gpu_selection KVD_IF_LINKED, kvd_gpu_zdc KVD_IF_LINKED, kvd_gpu_zdc_received KVD_IF_LINKED,
    kvd_gpu_leankv KVD_IF_LINKED, kvd_gpu_lower KVD_IF_LINKED;

#endif
