/* Interface of methods that drop cached tokens, or keep some of them at low precision. */
#ifndef KVD_METHODS_TOKENS_TOKENS_H
#define KVD_METHODS_TOKENS_TOKENS_H

#include "common/half.h"
#include "methods/axis.h"
#include "methods/tokens/eviction.h"

/* Attention of a prompt in one KV head, by which a method chooses tokens: exact statistics of
 * probabilities per token, and Q, K and V. */
typedef struct {
    int layer, kv_head, group; /* group is the number of query heads of the KV head */
    size_t n;
    /* Number of tokens of the whole sequence if known in advance, otherwise n. */
    size_t n_expected;
    /* [n] Sum of the probabilities that each token received, over queries and query heads. */
    const double *mass;
    /* [n] Probability that each token received from itself, summed over query heads. */
    const double *own;
    /* Number of last queries of the prompt in the array `recent`. */
    size_t window;
    const double *recent; /* [group][n] probabilities from the last rows */
    /* [n] Number of last queries, over query heads, with below-mean attention to the token. */
    const double *below;
    /* [n] Log of the softmax denominator of each query, mean over query heads. */
    const double *log_denominator;
    /* [n] Sum over queries of the softmax of scores that the function `regularise` returns. */
    const double *score_mass;
    size_t d;
    /* [n][d] Keys after RoPE, and values. Tokens are `ld` floats apart. */
    const float *k, *v;
    size_t ld;
    /* [n][group][d] Queries after RoPE. Tokens are `ldq` floats apart. */
    const float *q;
    size_t ldq;
    /* [n] Precision levels that the function `rank` wrote for this KV head. */
    const uint8_t *ranked;
    /* Attention sinks, beginning with this KV head's first query head. NULL: no sinks. */
    const float *sinks;
} kvd_prompt_attention;

/* Q and K of one prompt in one layer, before anything is compressed. */
typedef struct {
    /* Index of the layer among those in which the method chooses tokens. */
    int layer;
    size_t n;
    /* Queries [rows][n_heads][d_head] and keys [rows][n_kv_heads][d_head] after RoPE. rows is n, or
     * 2 n if a copy follows the prompt. */
    const float *q, *k;
    size_t window;      /* sliding window in tokens, as in kvd_attention_in */
    const float *sinks; /* [n_heads] attention sinks, or NULL */
} kvd_observed_prompt;

typedef struct {
    /* Number of layers in which the method chooses tokens. */
    int n_layers;
    size_t n;
    /* [n_layers][n] Log of the sum over query heads of softmax denominators. */
    const double *log_denominator;
    /* [n_layers][observed] Numbers that the function `observe` wrote, if the method has it. */
    const double *observed;
} kvd_prompt_layers;

/* Attention of a decode step to a KV head's n cached tokens, newest last. */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position; /* [n] sequence positions, rising */
    /* [group][n] Attention probabilities of the step's queries. */
    const float *prob;
    const float *score; /* [group][n] q.k / sqrt(d_head) */
    size_t now;         /* position of the newest token */
    /* Number of tokens of the prompt, and expected number of tokens of the whole sequence. */
    size_t prompt, n_expected;
} kvd_step_attention;

typedef struct {
    size_t n;
    /* [n] Precision of each cached token. Tokens at KVD_LEVEL_DROPPED may be merged. */
    const uint8_t *level;
    const float *k; /* [n][d_k] keys as attention reads them */
    const float *v; /* [n][d_v] values as stored */
    size_t d_k, d_v;
} kvd_merge_choice;

typedef struct {
    int layer, kv_head, group; /* group is the number of query heads of the KV head */
    size_t n, d;               /* number of cached tokens, and number of floats of a key */
    /* [n] Positions of cached tokens in the sequence, rising, with the newest token last. */
    const uint32_t *position;
    const float *k; /* [n][d] keys as attention reads them */
    /* [group][d] Queries of the step, ldq floats apart. */
    const float *q;
    size_t ldq;
    kvd_dtype type; /* data type of stored numbers */
} kvd_read_choice;

typedef struct {
    int kv_head;
    size_t n, n_kv_heads, d; /* numbers of prompt tokens, KV heads and dimensions per head */
    const float *k_pre;      /* [n][n_kv_heads * d] keys before RoPE */
    const float *k;          /* [n][d] keys of this KV head after RoPE */
    kvd_dtype type;          /* data type of stored numbers */
} kvd_prompt_keys;

/* Bits of a KV head's low-rank keys: for each token, and in addition for each prompt. */
typedef struct {
    double token, prompt;
} kvd_rebuilt_bits;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    kvd_method_info info; /* must be the first member */
    /* lowers: some tokens get low precision. only_lowers: the method never drops a token. */
    bool lowers, only_lowers;
    /* True if random numbers can replace the calibration data, for timing. */
    bool drawn;
    /* Bits that the method stores per cached token in addition to K and V. */
    double entry_bits;
    /* How the CUDA engine drops this method's tokens. NULL: not supported. */
    const kvd_tokens_eviction *eviction;
    /* Returns the rule by which the CUDA engine chooses tokens to read. NULL: not supported. */
    kvd_read_rule (*read_rule)(const kvd_parameter_values *v);
    /* Returns the centroids of an open method with KVD_READ_CODES. */
    kvd_read_codes (*read_codes)(const void *self);
    /* Returns the token-scoring networks of an open method with ranking KVD_EVICT_TRAINED. */
    const struct kvd_retaining_heads *(*retaining)(const void *self);
    /* Returns the number of the prompt's last queries whose probabilities are in
     * kvd_prompt_attention.recent. NULL: 0. */
    size_t (*window)(const kvd_parameter_values *v);
    /* Adds noise to an attention score and divides it by a temperature (method keyformer), for
     * kvd_prompt_attention.score_mass. May be NULL. */
    double (*regularise)(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress);
    /* Fails for parameters that the method cannot use. May be NULL. */
    int (*check)(const kvd_parameter_values *v, kvd_err *err);
    /* Opens the method and stores its private data in *self. On failure it frees all of it, and
     * `close` is not called. NULL: the private data is a kvd_tokens_self. */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /* Returns the bytes of a KV head's state for n tokens, allocated as zeros. NULL: no state. */
    size_t (*state_bytes)(const void *self, size_t n);
    bool repeats; /* true if each prompt is followed by a copy of itself */
    /* `observe` computes the numbers of a layer by which `rank` chooses tokens, and must be
     * thread-safe. `observed` returns how many there are for a prompt of n tokens. If both are
     * NULL, `rank` uses softmax denominators. */
    size_t (*observed)(const void *self, size_t n);
    int (*observe)(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err);
    /* Chooses the precision of a prompt's tokens in all layers, in a first pass over the prompt:
     * level [n_layers][n] or, if the method has `observe`, [n_layers][n_kv_heads][n]. NULL: no
     * first pass. */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /* Writes a prompt's precision levels [n], which are KVD_LEVEL_HIGH before, and the state. */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err);
    /* Sets the precision level [n] of a KV head's tokens after a decode step. The newest token
     * begins at KVD_LEVEL_HIGH, and levels must not rise. `forget` reduces the state to the n
     * remaining tokens: kept[i] is the earlier index of token i. */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err);
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
    /* Like `prompt` and `step`, but for all n_heads KV heads of a layer at once. A method sets at
     * most one of `prompt` and `prompt_heads`, and one of `step` and `step_heads`. A method without
     * `select` must set `prompt` or `prompt_heads`. */
    int (*prompt_heads)(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err);
    int (*step_heads)(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err);
    /* `merge` chooses how dropped tokens merge into kept ones, after prompts and, if merges_steps
     * is true, after decode steps. into[i] is the index of the kept token that receives token i, or
     * n if there is none. weight[i] is the weight of token i. Before the call, into[i] is n and
     * weight[i] is 1. NULL: no merging. */
    bool merges_steps;
    int (*merge)(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err);
    /* Computes low-rank keys of a prompt. Writes approximate keys before RoPE to k [n][d], their
     * bits to *bits, and the state. If the function sets exact[i] to 1, key i stays exact. NULL:
     * all keys are exact. Methods with this function must have `select`. */
    int (*rebuild)(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err);
    /* Chooses the tokens that a step reads: read[i], at first 1, becomes 0 to skip token i. NULL:
     * all are read. */
    int (*select)(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err);
    /* Returns the bits that a decode step reads to choose among n tokens of d numbers. */
    double (*select_bits)(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits);
};

extern const kvd_tokens_method kvd_tokens_h2o, kvd_tokens_keyformer, kvd_tokens_scissorhands,
    kvd_tokens_snapkv, kvd_tokens_leankv, kvd_tokens_importance, kvd_tokens_received,
    kvd_tokens_lower, kvd_tokens_streaming, kvd_tokens_tova, kvd_tokens_pyramidkv, kvd_tokens_adakv,
    kvd_tokens_expectedattention, kvd_tokens_knorm, kvd_tokens_keydiff, kvd_tokens_quest,
    kvd_tokens_d2o, kvd_tokens_cake, kvd_tokens_kvzip, kvd_tokens_kvmerger, kvd_tokens_prefixkv,
    kvd_tokens_windowkv, kvd_tokens_kvcrush, kvd_tokens_ems, kvd_tokens_elasticcache,
    kvd_tokens_taskkv, kvd_tokens_a2ats, kvd_tokens_mpcache, kvd_tokens_alisa, kvd_tokens_shadowkv,
    kvd_tokens_locret;

/* Returns the fraction of important tokens in a layer. */
double kvd_tokens_important(const kvd_parameter_values *v, int layer, int n_layers);
/* Returns parameter `layers` of method importance: the number of consecutive layers that use the
 * important tokens of the first. 0: parameter `overlap` decides. */
int kvd_tokens_layers(const kvd_parameter_values *v);

/* Returns a budget in tokens. A value below 1 is a fraction of `of`, rounded down. */
size_t kvd_tokens_budget(double value, size_t of);

/* Largest value of a budget parameter; other parameters have smaller limits. */
enum { KVD_BUDGET_MOST = 1 << 24 };

/* Fails if a budget is neither a fraction below 1 nor a whole number. */
int kvd_tokens_check_budgets(const kvd_method_info *m, const kvd_parameter_values *v, kvd_err *err);

/* Fails if no token would stay. For methods whose first parameter is `budget`. */
int kvd_tokens_check_budget(const kvd_parameter_values *v, kvd_err *err);

/* Private data of methods whose `open` is NULL. */
typedef struct {
    const kvd_parameter_values *v;
    const kvd_config *config;
    uint64_t seed;
} kvd_tokens_self;
/* Returns the parameters in `self`, a kvd_tokens_self. */
const kvd_parameter_values *kvd_tokens_values(const void *self);

/* Checks the parameters and sets *self, which the caller must release with kvd_tokens_close. */
int kvd_tokens_open(const kvd_tokens_method *m, const kvd_parameter_values *v,
                    const kvd_method_setup *s, void **self, kvd_err *err);
void kvd_tokens_close(const kvd_tokens_method *m, void *self);

/* Token budget of methods that drop tokens once and whose first parameter is `budget`. */
kvd_evict_budget kvd_tokens_prompt_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);

/* Copies the tokens' levels that kvd_tokens_method.rank chose. Can serve as member `prompt`. */
int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err);

/* Functions `state_bytes` and `forget` of methods whose state has one double per cached token. */
size_t kvd_tokens_sums_bytes(const void *self, size_t n);
void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n);

/* Check parameters and return the token budget, for methods whose first two parameters are the
 * numbers of heavy and of newest tokens. */
int kvd_tokens_check_heavy(const kvd_parameter_values *v, kvd_err *err);
kvd_evict_budget kvd_tokens_heavy_budget(const kvd_parameter_values *v, const kvd_evict_request *r);

/* Indices of the first parameters of methods snapkv, pyramidkv and adakv. */
enum { KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS, KVD_WINDOW_KERNEL, KVD_WINDOW_KEYS };
int kvd_tokens_check_window(const kvd_parameter_values *v, kvd_err *err);
size_t kvd_tokens_window_rows(const kvd_parameter_values *v);
void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule);
/* Token budget of methods that drop tokens once and keep the last `window` tokens. */
kvd_evict_budget kvd_tokens_window_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);
/* Returns how many of a prompt's n tokens are older than the window of newest tokens. */
size_t kvd_tokens_window_old(const kvd_parameter_values *v, size_t n);
/* Scores the tokens before a prompt's last `window` by attention from the last `window` queries. */
void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score);
/* Keeps the last `window` prompt tokens, and the `budget` older ones with the largest scores. */
int kvd_tokens_window_keep(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                           size_t budget, uint8_t *level, kvd_err *err);

int32_t kvd_evict_count(size_t n);
/* Returns the budget of a method that keeps the `recent` newest and `old` older tokens after the
 * prompt and after each decode step. */
kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r);
/* Returns the budget of a method that drops tokens only after the prompt, and then keeps the
 * `newest` newest and `old` older ones. */
kvd_evict_budget kvd_evict_once(size_t old, size_t newest);

/* Keeps the k of n tokens with the largest scores. On ties, later tokens stay. */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/* Writes to a [n] the probability that token t gives each token up to t. `product` is scratch
 * memory. */
void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a);

/* Members `observed` and `observe` of kvd_tokens_method: sum the attention that tokens received. */
size_t kvd_tokens_received_doubles(const void *self, size_t n);
int kvd_tokens_observe_received(const void *self, const kvd_observed_prompt *r, double *out,
                                kvd_err *err);

double kvd_tokens_dot(const float *a, const float *b, size_t d);
/* Returns the Euclidean norm of x [d], at least 1e-12. */
double kvd_tokens_length(const float *x, size_t d);

/* Returns the first index of the smallest score. n must be above 0. */
size_t kvd_tokens_least(const double *score, size_t n);

/* Descriptions of the GPU code of token methods, such as eviction and selection. Their addresses
 * are NULL if the program is linked without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_evict KVD_IF_LINKED, kvd_gpu_uneven KVD_IF_LINKED,
    kvd_gpu_selection KVD_IF_LINKED, kvd_gpu_zdc KVD_IF_LINKED, kvd_gpu_zdc_received KVD_IF_LINKED,
    kvd_gpu_leankv KVD_IF_LINKED, kvd_gpu_lower KVD_IF_LINKED;

#endif
