/* Interface of token methods, which drop cached tokens, keep some at low precision, or choose the
 * tokens that decode steps read. */
#ifndef KVD_METHODS_TOKENS_TOKENS_H
#define KVD_METHODS_TOKENS_TOKENS_H

#include "common/half.h"
#include "methods/axis.h"
#include "methods/tokens/eviction.h"

/* Attention of a prompt in one KV head, from which a method chooses tokens: sums of attention
 * probabilities, and Q, K and V. */
typedef struct {
    int layer, kv_head, group; /* group is the number of query heads of the KV head */
    size_t n;
    /* Number of tokens of prompt and output together if known, otherwise of the prompt alone. */
    size_t n_expected;
    /* [n] Sum of the attention probabilities that each token received, over all queries and query
     * heads of the KV head. */
    const double *mass;
    /* [n] Attention probability that each token's own query gave it, summed over query heads. */
    const double *own;
    /* Number of the prompt's last queries whose attention probabilities are in `recent`. */
    size_t window;
    const double *recent; /* [group][n] probabilities from the last rows */
    /* [n] Number of pairs (query, query head) at the prompt's end that gave each token less than
     * the mean attention. */
    const double *below;
    /* [n] Natural log of the softmax denominator of each query, averaged over query heads. */
    const double *log_denominator;
    /* For methods with a function `regularise`, which changes attention logits: [n] resulting
     * attention probability of each token, summed over queries. */
    const double *score_mass;
    size_t d;
    /* [n][d] Keys after RoPE, and values. Consecutive tokens are `ld` floats apart. */
    const float *k, *v;
    size_t ld;
    /* [n][group][d] Queries after RoPE. Consecutive tokens are `ldq` floats apart. */
    const float *q;
    size_t ldq;
    /* For methods with a function `rank`: [n] precision levels that it wrote for this KV head. */
    const uint8_t *ranked;
    /* Logits of the attention sinks of this KV head's query heads. NULL if the model has no
     * sinks. */
    const float *sinks;
} kvd_prompt_attention;

/* Uncompressed Q and K of one prompt in one layer. */
typedef struct {
    /* Index of the layer, counted over the layers in which the method chooses tokens. */
    int layer;
    size_t n;
    /* After RoPE: queries [rows][n_heads][d_head] and keys [rows][n_kv_heads][d_head]. rows is n,
     * or 2 n if a copy of the prompt follows the prompt. */
    const float *q, *k;
    size_t window;      /* sliding window in tokens, as in kvd_attention_in */
    const float *sinks; /* [n_heads] attention sinks, or NULL */
} kvd_observed_prompt;

typedef struct {
    /* Number of layers in which the method chooses tokens. */
    int n_layers;
    size_t n;
    /* [n_layers][n] Log of the softmax denominator of each token's query, with the denominators of
     * all query heads added up. */
    const double *log_denominator;
    /* [n_layers][observed] Output of the method's callback `observe`, for example token scores. */
    const double *observed;
} kvd_prompt_layers;

/* Attention of a decode step to the n cached tokens of a KV head. The newest token is the last. */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position; /* [n] sequence positions, rising */
    /* [group][n] Attention probability that each query head gives each cached token. */
    const float *prob;
    const float *score; /* [group][n] q.k / sqrt(d_head) */
    size_t now;         /* position of the newest token */
    /* prompt: number of tokens of the prompt. n_expected: number of tokens that prompt and
     * generated text are expected to have together. */
    size_t prompt, n_expected;
} kvd_step_attention;

typedef struct {
    size_t n;
    /* [n] Precision level of each cached token. A token at KVD_LEVEL_DROPPED may be merged into a
     * kept one. */
    const uint8_t *level;
    const float *k; /* [n][d_k] keys as attention reads them */
    const float *v; /* [n][d_v] values as stored */
    size_t d_k, d_v;
} kvd_merge_choice;

typedef struct {
    int layer, kv_head, group; /* group is the number of query heads of the KV head */
    size_t n, d;               /* number of cached tokens, and number of floats of a key */
    /* [n] Position in the sequence of each cached token, in rising order. The last one is the
     * newest token. */
    const uint32_t *position;
    const float *k; /* [n][d] keys as attention reads them */
    /* [group][d] Queries of the decode step, one per query head, `ldq` floats apart. */
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

/* Size of one KV head's keys as a low-rank matrix: `token` bits for each token, plus `prompt` bits
 * for each prompt. */
typedef struct {
    double token, prompt;
} kvd_rebuilt_bits;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    kvd_method_info info; /* must be the first member */
    /* lowers: true if the method keeps some tokens at low precision. only_lowers: true if it also
     * never drops a token. */
    bool lowers, only_lowers;
    /* True if timing runs can replace the method's calibration data by random numbers. */
    bool drawn;
    /* Bits that the method stores per cached token and KV head in addition to K and V. */
    double entry_bits;
    /* How the CUDA engine drops tokens for this method. NULL if it cannot. */
    const kvd_tokens_eviction *eviction;
    /* Returns the rule by which the CUDA engine chooses the tokens that a decode step reads. NULL:
     * the engine cannot choose tokens for this method. */
    kvd_read_rule (*read_rule)(const kvd_parameter_values *v);
    /* Returns the centroids of keys, for methods that compare queries with centroids
     * (KVD_READ_CODES). `self` is the method's private data. */
    kvd_read_codes (*read_codes)(const void *self);
    /* Returns the token-scoring networks of methods that have trained ones (KVD_EVICT_TRAINED).
     * `self` is the method's private data. */
    const struct kvd_retaining_heads *(*retaining)(const void *self);
    /* Returns how many of the prompt's last queries have their attention probabilities in
     * kvd_prompt_attention.recent. If the function is NULL, there are none. */
    size_t (*window)(const kvd_parameter_values *v);
    /* Returns the attention logit `score` with added noise, divided by a temperature (method
     * keyformer). NULL: attention logits do not change. */
    double (*regularise)(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress);
    /* Fails if the method does not support these parameter values. May be NULL. */
    int (*check)(const kvd_parameter_values *v, kvd_err *err);
    /* Fails if the method cannot run on the model or with the given files. Does no calibration.
     * NULL: never fails. */
    int (*fits)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err);
    /* Prepares the method for a run and stores its private data in *self. If this fails, it frees
     * all memory itself, and `close` must not be called. If the function is NULL, the private data
     * is a kvd_tokens_self. */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /* Returns the bytes of a KV head's state for up to n tokens. The caller allocates the state,
     * filled with zeros. NULL: the method has no state. */
    size_t (*state_bytes)(const void *self, size_t n);
    bool repeats; /* true if each prompt is followed by a copy of itself */
    /* `observe` computes the numbers by which `rank` chooses tokens, for one layer, and must be
     * thread-safe. `observed` returns how many numbers there are for a prompt of n tokens. If both
     * are NULL, `rank` uses softmax denominators. */
    size_t (*observed)(const void *self, size_t n);
    int (*observe)(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err);
    /* For methods that process each prompt twice: chooses, after the first pass, the precision of
     * the prompt's tokens in all layers. level is [n_layers][n] or, if the method has `observe`,
     * [n_layers][n_kv_heads][n]. NULL: the prompt is processed once. */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /* Chooses the precision of each prompt token in a KV head, and initialises the method's state
     * for this head. level [n]: KVD_LEVEL_HIGH on entry, the chosen levels on return. */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err);
    /* After a decode step, sets the precision level [n] of a KV head's tokens. No level may rise;
     * the newest token has KVD_LEVEL_HIGH before the call. */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err);
    /* Reduces the state to the n tokens that remain cached. kept[i] is the previous index of token
     * i. */
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
    /* Chooses the precision of prompt tokens in all n_heads KV heads of a layer at once. A method
     * has either `prompt` or this function; only a method with `select` may have neither. */
    int (*prompt_heads)(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err);
    /* Alternative to `step`: sets precision levels in all n_heads KV heads of a layer at once. A
     * method may set only one of the two functions. */
    int (*step_heads)(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err);
    bool merges_steps; /* true if tokens also merge after decode steps, not only after prompts */
    /* Chooses for each dropped token a kept token into which it merges. NULL: no merging.
     *
     * - into: index of this kept token; initially n, which means that the token does not merge
     * - weight: weight of each token; initially 1 */
    int (*merge)(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err);
    /* Approximates the keys of a prompt in a KV head by a low-rank matrix. Writes the approximate
     * keys before RoPE to k [n][d], their numbers of bits to *bits, and the data that `select`
     * needs to *state. Sets exact[i] to 1 if key i is stored exactly instead. A method with this
     * function must have `select`. NULL: all keys are exact. */
    int (*rebuild)(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err);
    /* Chooses the tokens that a decode step reads. read[i] is 1 before the call; the function sets
     * it to 0 if token i is not read. NULL: all tokens are read. */
    int (*select)(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err);
    /* Returns the bits that a decode step reads in order to choose among n cached tokens with keys
     * of d numbers. */
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

/* Returns the fraction of tokens that are important in a layer. `v` has the parameters of method
 * `importance` or `received`. */
double kvd_tokens_important(const kvd_parameter_values *v, int layer, int n_layers);
/* Returns parameter `layers` of method importance: the number of consecutive layers that share one
 * set of important tokens. 0: parameter `overlap` decides which layers share. */
int kvd_tokens_layers(const kvd_parameter_values *v);

/* Returns a budget parameter as a number of tokens. A value below 1 is a fraction of `of` tokens,
 * rounded down. */
size_t kvd_tokens_budget(double value, size_t of);

/* Largest value of a method parameter that sets a token budget. */
enum { KVD_BUDGET_MOST = 1 << 24 };

/* Fails if a token budget among the parameters is neither a fraction below 1 nor a whole number. */
int kvd_tokens_check_budgets(const kvd_method_info *m, const kvd_parameter_values *v, kvd_err *err);

/* For methods whose first parameter is `budget`: fails if no token would stay. */
int kvd_tokens_check_budget(const kvd_parameter_values *v, kvd_err *err);

/* Default private data of a method that chooses tokens, used if the method's function `open` is
 * NULL. */
typedef struct {
    const kvd_parameter_values *v;
    const kvd_config *config;
    uint64_t seed;
} kvd_tokens_self;
/* Returns the parameter values in `self`, which must be a kvd_tokens_self. */
const kvd_parameter_values *kvd_tokens_values(const void *self);

/* Fails if kvd_tokens_open would fail, apart from failures of the calibration itself. */
int kvd_tokens_check(const kvd_tokens_method *m, const kvd_parameter_values *v,
                     const kvd_method_setup *s, kvd_err *err);
/* Checks the parameters and prepares the method for a run. Stores its private data in *self, which
 * the caller must release with kvd_tokens_close. */
int kvd_tokens_open(const kvd_tokens_method *m, const kvd_parameter_values *v,
                    const kvd_method_setup *s, void **self, kvd_err *err);
void kvd_tokens_close(const kvd_tokens_method *m, void *self);

/* Returns the token budget of a method that drops tokens only after the prompt. The first of the
 * parameters v must be `budget`. */
kvd_evict_budget kvd_tokens_prompt_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);

/* Copies the precision levels that kvd_tokens_method.rank wrote. For use as function `prompt` of a
 * method. */
int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err);

/* For methods whose state is one double per cached token: returns the bytes of a KV head's state
 * for n tokens. */
size_t kvd_tokens_sums_bytes(const void *self, size_t n);
/* For methods whose state is one double per cached token: reduces the state to the n tokens in
 * `kept`. */
void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n);

/* Fails if the first two parameters, numbers of tokens to keep, are both 0. */
int kvd_tokens_check_heavy(const kvd_parameter_values *v, kvd_err *err);
/* Returns the token budget of a method like h2o. Its first parameter says how many tokens with the
 * most attention stay, and its second parameter how many newest tokens. */
kvd_evict_budget kvd_tokens_heavy_budget(const kvd_parameter_values *v, const kvd_evict_request *r);

/* Indices of the first parameters, which methods snapkv, pyramidkv and adakv have in common. */
enum { KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS, KVD_WINDOW_KERNEL, KVD_WINDOW_KEYS };
int kvd_tokens_check_window(const kvd_parameter_values *v, kvd_err *err);
size_t kvd_tokens_window_rows(const kvd_parameter_values *v);
void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule);
/* Returns the token budget of a method that drops tokens only after the prompt, and always keeps
 * the prompt's last `window` tokens. */
kvd_evict_budget kvd_tokens_window_budget(const kvd_parameter_values *v,
                                          const kvd_evict_request *r);
/* Returns how many of a prompt's n tokens are older than the window of newest tokens. */
size_t kvd_tokens_window_old(const kvd_parameter_values *v, size_t n);
/* Scores the prompt tokens before the last `window` ones, by the attention that they got from the
 * last `window` queries. */
void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score);
/* Keeps the prompt's last `window` tokens, and the `budget` older tokens with the largest
 * scores. */
int kvd_tokens_window_keep(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                           size_t budget, uint8_t *level, kvd_err *err);

int32_t kvd_evict_count(size_t n);
/* Returns the budget of a method that drops tokens after the prompt and in each decode step.
 * `recent` newest tokens and `old` older tokens stay. */
kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r);
/* Returns the budget of a method that drops only prompt tokens. The prompt's last `newest` tokens
 * and `old` earlier tokens stay. */
kvd_evict_budget kvd_evict_once(size_t old, size_t newest);

/* Keeps the k of n tokens with the largest scores, and marks the others as dropped. If scores are
 * equal, later tokens stay. */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/* Writes to a [n] the attention probability that query t gives each of the tokens 0 to t. `product`
 * is scratch memory. */
void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a);

/* For methods that rank a prompt's n tokens by the attention that they received.
 * kvd_tokens_received_doubles returns how many scores there are in a layer,
 * kvd_tokens_observe_received computes them. Use them as functions `observed` and `observe` of a
 * method. */
size_t kvd_tokens_received_doubles(const void *self, size_t n);
int kvd_tokens_observe_received(const void *self, const kvd_observed_prompt *r, double *out,
                                kvd_err *err);

double kvd_tokens_dot(const float *a, const float *b, size_t d);
/* Returns the Euclidean norm of x [d], at least 1e-12. */
double kvd_tokens_length(const float *x, size_t d);

/* Returns the index of the smallest score, the first one if several are equal. n must be above
 * 0. */
size_t kvd_tokens_least(const double *score, size_t n);

/* GPU implementations of token methods. Their addresses are NULL if the program is linked without
 * CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_evict KVD_IF_LINKED, kvd_gpu_uneven KVD_IF_LINKED,
    kvd_gpu_selection KVD_IF_LINKED, kvd_gpu_zdc KVD_IF_LINKED, kvd_gpu_zdc_received KVD_IF_LINKED,
    kvd_gpu_leankv KVD_IF_LINKED, kvd_gpu_lower KVD_IF_LINKED;

#endif
