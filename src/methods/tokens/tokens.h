/*
 * Interface of methods that decide after the prompt and every step which cached tokens are kept,
 * lowered (fewer bits or dimensions) or dropped.
 */
#ifndef KVD_METHODS_TOKENS_TOKENS_H
#define KVD_METHODS_TOKENS_TOKENS_H

#include "common/half.h"
#include "methods/axis.h"
#include "methods/tokens/eviction.h"

/* Exact attention statistics of a prompt in one KV head. A row is a prompt token as query. */
typedef struct {
    int layer, kv_head, group; /* group is the number of query heads of the KV head */
    size_t n;
    /* Number of tokens of the whole sequence if known in advance, otherwise n. */
    size_t n_expected;
    /* Sum of the probabilities that each token received, over rows and query heads, [n]. */
    const double *mass;
    /* Part of `mass` that each token received from itself, [n]. */
    const double *own;
    /* Number of rows at the end of the prompt that the array `recent` covers. */
    size_t window;
    const double *recent; /* [group][n] probabilities from the last rows */
    /* Number of the queries of `recent` that gave each token less than the mean, [n]. */
    const double *below;
    /* Log of the softmax denominator of each row, mean over query heads, [n]. */
    const double *log_denominator;
    /* Like `mass` [n], but computed from the scores that the function `regularise` returns. */
    const double *score_mass;
    size_t d;
    /* Keys after RoPE, and values, [n][d], with `ld` floats from token to token. */
    const float *k, *v;
    size_t ld;
    /* Queries after RoPE, [n][group][d], with `ldq` floats from token to token. */
    const float *q;
    size_t ldq;
    /* Levels that the function `rank` wrote for this KV head, [n]. */
    const uint8_t *ranked;
    /* Attention sinks of the query heads from this KV head's first on. NULL: no sinks. */
    const float *sinks;
} kvd_prompt_attention;

/* Q and K of one prompt in one layer, before anything is compressed. */
typedef struct {
    /* Index among the layers in which the method chooses tokens (kvd_prompts). */
    int layer;
    size_t n;
    /*
     * After RoPE: [rows][n_heads][d_head], [rows][n_kv_heads][d_head]. There are n rows, or 2 n
     * with `repeats`.
     */
    const float *q, *k;
    size_t window;      /* sliding window in tokens, as in kvd_attention_in */
    const float *sinks; /* [n_heads] attention sinks, or NULL */
} kvd_observed_prompt;

typedef struct {
    /* Number of layers in which the method chooses tokens. */
    int n_layers;
    size_t n;
    /* Log of the sum over query heads of softmax denominators, [n_layers][n]. */
    const double *log_denominator;
    /* Numbers that the function `observe` wrote, if the method has it, [n_layers][observed]. */
    const double *observed;
} kvd_prompt_layers;

/* Attention of a decode step to a KV head's n cached tokens, newest last. */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position; /* [n] sequence positions, rising */
    /* Attention probabilities [group][n] of the step's queries. */
    const float *prob;
    const float *score; /* [group][n] q.k / sqrt(d_head) */
    size_t now;         /* position of the newest token */
    /* Number of tokens of the prompt, and expected number of tokens of the whole sequence. */
    size_t prompt, n_expected;
} kvd_step_attention;

typedef struct {
    size_t n;
    /*
     * Precision of each cached token [n]: dropped, low or high. Tokens at KVD_LEVEL_DROPPED may be
     * merged into others.
     */
    const uint8_t *level;
    const float *k; /* [n][d_k] keys as attention reads them */
    const float *v; /* [n][d_v] values as stored */
    size_t d_k, d_v;
} kvd_merge_choice;

typedef struct {
    int layer, kv_head, group; /* group is the number of query heads of the KV head */
    size_t n, d;               /* number of cached tokens, and number of floats of a key */
    /* Positions of cached tokens in the sequence, rising, with the newest token last, [n]. */
    const uint32_t *position;
    const float *k; /* [n][d] keys as attention reads them */
    /* Queries of the step, [group][d], ldq floats apart. */
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

/* Bits of low-rank keys in the cache: for each token, and once per KV head and prompt. */
typedef struct {
    double token, prompt;
} kvd_rebuilt_bits;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    kvd_method_info info; /* must be the first member */
    /* lowers: some tokens get KVD_LEVEL_LOW. only_lowers: some do, and none is dropped. */
    bool lowers, only_lowers;
    /* True: the method opens without calibration if setup.drawn is true (timing). */
    bool drawn;
    /* Bits that the method stores per cached token in addition to K and V. */
    double entry_bits;
    /* How the CUDA engine drops this method's tokens, or NULL if it does not support the method. */
    const kvd_tokens_eviction *eviction;
    /* Returns the rule by which the CUDA engine does `select`. NULL: it cannot run the method. */
    kvd_read_rule (*read_rule)(const kvd_parameter_values *v);
    /* Returns the centroids of a method with KVD_READ_CODES. `self` is the open method. */
    kvd_read_codes (*read_codes)(const void *self);
    /* Returns the networks of a method with KVD_EVICT_TRAINED. `self` is the open method. */
    const struct kvd_retaining_heads *(*retaining)(const void *self);
    /* Returns the number of last prompt tokens that kvd_prompt_attention.recent covers. NULL: 0. */
    size_t (*window)(const kvd_parameter_values *v);
    /* Returns an attention score with noise and temperature, for score_mass. May be NULL. */
    double (*regularise)(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress);
    /* Fails for parameters that the method cannot use. May be NULL. */
    int (*check)(const kvd_parameter_values *v, kvd_err *err);
    /*
     * Opens the method and stores its private data in *self. On failure it frees all of it, and
     * `close` is not called. NULL: the private data is a kvd_tokens_self.
     */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /* Returns the bytes of a KV head's state for n tokens, allocated as zeros. NULL: no state. */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * repeats: each prompt is followed by a copy of itself. observed returns the number of doubles
     * per layer that `observe` writes. observe (thread-safe) computes the numbers by which `rank`
     * chooses; if NULL, these are softmax denominators.
     */
    bool repeats;
    size_t (*observed)(const void *self, size_t n);
    int (*observe)(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err);
    /*
     * Chooses the precision of prompt tokens (dropped, low, high) in a first pass, before
     * compression: [n_layers][n] or, with `observe`, [n_layers][n_kv_heads][n]. `prompt` gets them
     * in kvd_prompt_attention.ranked. NULL: no first pass.
     */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /*
     * Writes the precision level [n] of a prompt's tokens (KVD_LEVEL_HIGH when called) and the
     * head's state.
     */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err);
    /*
     * Sets the precision level [n] of a KV head's tokens after a decode step. Levels must not rise,
     * and the newest token begins at KVD_LEVEL_HIGH. `forget` reduces the state to the n remaining
     * tokens, whose old indices are kept [n].
     */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err);
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
    /*
     * Like `prompt` and `step`, for all n_heads KV heads of a layer. Without `select`, exactly one
     * of `prompt` and `prompt_heads` exists, and at most one of `step` and `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err);
    int (*step_heads)(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err);
    /*
     * Merges dropped tokens after prompts and, with merges_steps, after steps. into[i] (at first n)
     * becomes the index of the kept token that receives token i, in a mean weighted by `weight` (at
     * first 1). NULL: no merging.
     */
    bool merges_steps;
    int (*merge)(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err);
    /*
     * After a prompt: writes approximate keys before RoPE to k [n][d], their bits to *bits, and the
     * state. exact[i] = 1 keeps key i. Requires `select`. May be NULL.
     */
    int (*rebuild)(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err);
    /*
     * Chooses the tokens that a step reads: read[i] (at first 1) becomes 0 to skip token i.
     * `prompt` may still drop tokens. `prompt` and `step` may fill the state. NULL: all tokens are
     * read.
     */
    int (*select)(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err);
    /* Returns the bits of side information that a decode step reads, for n tokens of d numbers. */
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
/* Returns parameter `layers` of method importance, the number of layers with equal sets. */
int kvd_tokens_layers(const kvd_parameter_values *v);

/* Returns a budget in tokens. A value below 1 is a fraction of `of`, rounded down. */
size_t kvd_tokens_budget(double value, size_t of);

/* Largest value of a budget parameter; other parameters have smaller limits. */
enum { KVD_BUDGET_MOST = 1 << 24 };

/* Fails if a budget is neither a fraction below 1 nor a whole number. */
int kvd_tokens_check_budgets(const kvd_method_info *m, const kvd_parameter_values *v, kvd_err *err);

/* Serves as `check` of methods whose first parameter is `budget`: fails if no token would stay. */
int kvd_tokens_check_budget(const kvd_parameter_values *v, kvd_err *err);

/* Private data of methods without `open`. */
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

/* Serves as `budget` of methods that drop tokens once and have the parameter `budget`. */
kvd_evict_budget kvd_tokens_prompt_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);

/* Function `prompt` of methods whose `rank` has already chosen the precision of all tokens. */
int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err);

/* Serve as `state_bytes` and `forget` of methods with one double per cached token. */
size_t kvd_tokens_sums_bytes(const void *self, size_t n);
void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n);

/* Serve methods whose parameters begin with the numbers of heavy and of newest tokens (h2o.c). */
int kvd_tokens_check_heavy(const kvd_parameter_values *v, kvd_err *err);
kvd_evict_budget kvd_tokens_heavy_budget(const kvd_parameter_values *v, const kvd_evict_request *r);

/* Indices of snapkv's, pyramidkv's and adakv's first parameters; KVD_WINDOW_KEYS is the next. */
enum { KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS, KVD_WINDOW_KERNEL, KVD_WINDOW_KEYS };
int kvd_tokens_check_window(const kvd_parameter_values *v, kvd_err *err);
size_t kvd_tokens_window_rows(const kvd_parameter_values *v);
void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule);
/* Serves as `budget` of methods that drop tokens once and keep the last `window` tokens. */
kvd_evict_budget kvd_tokens_window_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);
/* Returns the number of tokens before the last `window` of a prompt of n tokens. */
size_t kvd_tokens_window_old(const kvd_parameter_values *v, size_t n);
/*
 * Scores the prompt tokens before the last `window`: sums of the probabilities that they received
 * from these, over query heads and `kernel` neighbours.
 */
void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score);
/* Keeps the `budget` tokens with the largest window scores, and the last `window` tokens. */
int kvd_tokens_window_keep(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                           size_t budget, uint8_t *level, kvd_err *err);

int32_t kvd_evict_count(size_t n);
/* Returns the budget if every step drops all but `recent` newest and `old` older tokens. */
kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r);
/* Returns the budget if, after the prompt, `newest` newest and `old` older tokens stay. */
kvd_evict_budget kvd_evict_once(size_t old, size_t newest);

/* Keeps the k of n tokens with the largest scores; of equal tokens, the later. */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/* Writes the probabilities of prompt token t for tokens 0 to t to a [n]. product [n]: scratch. */
void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a);

/* Serve as `observed` and `observe`: attention that tokens received, over queries and heads. */
size_t kvd_tokens_received_doubles(const void *self, size_t n);
int kvd_tokens_observe_received(const void *self, const kvd_observed_prompt *r, double *out,
                                kvd_err *err);

double kvd_tokens_dot(const float *a, const float *b, size_t d);
/* Returns the length of a vector of d numbers, at least 1e-12. */
double kvd_tokens_length(const float *x, size_t d);

/* Returns the first index of the smallest score. n must be above 0. */
size_t kvd_tokens_least(const double *score, size_t n);

/*
 * CUDA code, or NULL if linked without. kvd_gpu_evict: methods that drop as many tokens in every KV
 * head. kvd_gpu_uneven: methods that drop different numbers of tokens. kvd_gpu_selection: methods
 * whose steps read a part of the tokens. kvd_gpu_zdc: importance.
 */
extern const struct kvd_gpu_kind kvd_gpu_evict KVD_IF_LINKED, kvd_gpu_uneven KVD_IF_LINKED,
    kvd_gpu_selection KVD_IF_LINKED, kvd_gpu_zdc KVD_IF_LINKED, kvd_gpu_zdc_received KVD_IF_LINKED,
    kvd_gpu_leankv KVD_IF_LINKED, kvd_gpu_lower KVD_IF_LINKED;

#endif
