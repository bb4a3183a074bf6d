/*
 * Methods of the tokens axis. A method decides which cached tokens of a KV head are kept, lowered
 * (stored with fewer bits or dimensions) or dropped. It decides at the end of the prompt and after
 * every decode step, from the attention of the query heads: per KV head, or for all KV heads of a
 * layer together, so that they can share one budget. Each method has its own file; the table of all
 * methods is in method.c.
 */
#ifndef KVD_METHODS_TOKENS_TOKENS_H
#define KVD_METHODS_TOKENS_TOKENS_H

#include "common/half.h"
#include "methods/axis.h"
#include "methods/tokens/eviction.h"

/*
 * Attention statistics of a prompt for one KV head, the input of `prompt`. A row belongs to one
 * prompt token as a query; its probabilities are those of exact attention.
 */
typedef struct {
    int layer, kv_head, group; /* group: number of query heads of the KV head */
    size_t n;                  /* number of tokens of the prompt */
    /*
     * Number of tokens of the whole sequence (prompt and continuation) if it is known, as in
     * teacher forcing, else n.
     */
    size_t n_expected;
    /*
     * [n] Sum of the attention probabilities that a token received, over all rows (prompt tokens as
     * queries) and query heads.
     */
    const double *mass;
    /* [n] The part of that sum (`mass`) that a token received from its own query. */
    const double *own;
    /* Number of last prompt rows that `recent` covers, from the method's `window`. */
    size_t window;
    const double *recent; /* [group][n] probability a token received in the last `window` rows */
    /*
     * [n] Number of (row, query head) combinations in `recent` in which the token's probability is
     * below the mean probability of that row.
     */
    const double *below;
    /* [n] For row t, the log of its softmax denominator, averaged over the query heads. */
    const double *log_denominator;
    /*
     * [n] Like `mass`, for the softmax of the scores that `regularise` returns. Only for methods
     * with `regularise`.
     */
    const double *score_mass;
    size_t d;
    /*
     * Keys and values of the prompt, keys after RoPE: n tokens of d = d_head floats, consecutive
     * tokens `ld` floats apart.
     */
    const float *k, *v;
    size_t ld;
    /*
     * Queries of the prompt after RoPE: n tokens of `group` query heads of d floats, consecutive
     * tokens `ldq` floats apart.
     */
    const float *q;
    size_t ldq;
    /* [n] Levels that `rank` chose for the tokens of this KV head. Only for methods with `rank`. */
    const uint8_t *ranked;
} kvd_prompt_attention;

/*
 * Q and K of one prompt in one layer. A method that has `observe` reads them in a first pass over
 * the prompts, before anything is compressed.
 */
typedef struct {
    int layer;
    size_t n; /* number of tokens of the prompt */
    /*
     * Queries [rows][n_heads][d_head] and keys [rows][n_kv_heads][d_head] after RoPE. `rows` is the
     * number of tokens n, or 2 n if the method's `repeats` is set (the prompt, then a copy of it).
     */
    const float *q, *k;
    size_t window; /* sliding attention window of the layer, as in kvd_attention_in */
} kvd_observed_prompt;

/*
 * Numbers about one prompt in all layers, recorded by a first pass over the prompts; the input of
 * `rank`.
 */
typedef struct {
    int n_layers;
    size_t n;
    /*
     * [n_layers][n] For prompt token t, the log of the sum over query heads of its softmax
     * denominators.
     */
    const double *log_denominator;
    /* [n_layers][observed] numbers that `observe` wrote, if the method has it. */
    const double *observed;
} kvd_prompt_layers;

/*
 * Attention of one decode step to one KV head, the input of `step`. The newest of the n entries
 * (cached tokens) is the last; its query attended to all n entries.
 */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position; /* [n] positions of the cached tokens in the sequence, rising */
    /* [group][n] attention probabilities that the step's query heads give to the cached tokens. */
    const float *prob;
    const float *score;        /* [group][n] attention scores q.k / sqrt(d_head) of the step */
    size_t now;                /* position of the newest cached token in the sequence */
    size_t prompt, n_expected; /* number of tokens of the prompt, and of the whole sequence */
} kvd_step_attention;

/*
 * Cached tokens (entries) of one KV head and the levels (high, low or dropped) chosen for them, the
 * input of `merge`.
 */
typedef struct {
    size_t n;
    /* [n] level of every cached token; KVD_LEVEL_DROPPED for tokens to merge. */
    const uint8_t *level;
    const float *k; /* [n][d_k] keys as attention reads them */
    const float *v; /* [n][d_v] values as the cache stores them */
    size_t d_k, d_v;
} kvd_merge_choice;

/* Queries of one decode step and the stored keys of a KV head, the input of `select`. */
typedef struct {
    int layer, kv_head, group; /* group: number of query heads of the KV head */
    size_t n, d;               /* number of entries (cached tokens); number of floats of a key */
    /* [n] positions of the cached tokens in the sequence, rising; the newest is the last. */
    const uint32_t *position;
    const float *k; /* [n][d] keys as attention reads them */
    /* [group][d] queries of the step, consecutive query heads ldq floats apart. */
    const float *q;
    size_t ldq;
    kvd_dtype type; /* type in which the cache stores a number */
} kvd_read_choice;

/* Keys of a prompt in one layer, the input of `rebuild`. */
typedef struct {
    int kv_head;
    size_t n, n_kv_heads, d; /* number of prompt tokens, of KV heads, and of dimensions of a head */
    const float *k_pre;      /* [n][n_kv_heads * d] keys of all KV heads of the layer before RoPE */
    const float *k;          /* [n][d] keys of this KV head after RoPE, as the cache stores them */
    kvd_dtype type;          /* type in which the cache stores a number */
} kvd_prompt_keys;

/*
 * Size in bits of the smaller form to which `rebuild` reduces the keys of a prompt: bits for each
 * token, and bits once per KV head.
 */
typedef struct {
    double token, prompt;
} kvd_rebuilt_bits;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    kvd_method_info info; /* must be the first member */
    /*
     * `lowers`: some cached tokens get KVD_LEVEL_LOW. `only_lowers`: in addition, the method drops
     * no token.
     */
    bool lowers, only_lowers;
    /*
     * Bits stored per cached token in addition to K and V, for the method's scores and positions.
     */
    double entry_bits;
    /*
     * Description for the CUDA engine of a method that drops cached tokens; NULL if the engine
     * cannot run the method.
     */
    const kvd_tokens_eviction *eviction;
    /*
     * Returns the number of last prompt rows that kvd_prompt_attention.recent covers. NULL means 0
     * rows.
     */
    size_t (*window)(const kvd_parameter_values *v);
    /*
     * Returns an attention score after noise and temperature are applied, as Keyformer does. The
     * softmax of these scores gives score_mass. NULL: the method has no such scores.
     */
    double (*regularise)(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress);
    /*
     * Prepares the method and stores its private data in *self. On failure it releases what it
     * allocated, and `close` is not called.
     */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Returns the size in bytes of the method's state (for example one running sum per cached
     * token) of one KV head of one sequence with at most n tokens. The cache allocates the state
     * and sets it to 0. NULL: the method has no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * `observe` and `observed` are for methods that rank tokens by other numbers than softmax
     * denominators. `observed` returns the number of doubles that `observe` writes about one layer
     * of a prompt of n tokens. `observe` may be called by several threads at once. If `repeats` is
     * true, the first pass runs every prompt followed by a second copy of itself.
     */
    bool repeats;
    size_t (*observed)(const void *self, size_t n);
    int (*observe)(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err);
    /*
     * Chooses the level (high, low or dropped) of every token of one prompt in all layers, before
     * the prompt is compressed. Writes level [n_layers][n] or, if the method has `observe`,
     * [n_layers][n_kv_heads][n]; `prompt` then reads these levels in kvd_prompt_attention.ranked.
     * NULL: there is no first pass over the prompts.
     */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /*
     * Writes level [n], the level of every token of the prompt for one KV head, and fills the
     * head's state. On entry all levels are KVD_LEVEL_HIGH.
     */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err);
    /*
     * Writes level [n], the levels of a KV head's cached tokens after a decode step. On entry
     * `level` holds the current levels, KVD_LEVEL_HIGH for the newest token. A level never rises.
     * If tokens are dropped, the cache calls `forget`, which removes their numbers from the state:
     * the n tokens whose old indices are `kept` stay.
     */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err);
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
    /*
     * Do the work of `prompt` and `step` for all n_heads KV heads of a layer in one call: state, p,
     * a and level have one element per KV head. KV heads may keep different numbers of cached
     * tokens. A method has exactly one of `prompt` and `prompt_heads`, or has `select`; it has at
     * most one of `step` and `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err);
    int (*step_heads)(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err);
    /*
     * Merges dropped tokens of a KV head into kept ones, after the prompt and, if `merges_steps` is
     * true, after every step that drops tokens. On entry into [n] is n everywhere and weight [n] is
     * 1. To merge a dropped token i, `merge` sets into[i] to the index of a kept token. K and V of
     * a kept token become the mean, with weights `weight`, of its own and of all tokens merged into
     * it; its position stays. NULL: dropped tokens are lost.
     */
    bool merges_steps;
    int (*merge)(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err);
    /*
     * At the end of a prompt, replaces the keys of a KV head by keys rebuilt from a smaller form.
     * Writes the rebuilt keys, before RoPE, to k [n][d]; sets exact [n] to 1 for tokens whose
     * original key stays; and writes the size of the smaller form to *bits. Also fills the state if
     * the method has state_bytes. The method needs `select` and keys before RoPE. NULL: keys stay
     * as they are.
     */
    int (*rebuild)(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err);
    /*
     * Chooses which cached tokens of a KV head a decode step reads, before its attention. On entry
     * read [n] is 1; `select` sets it to 0 for tokens that the step does not read. These stay in
     * the cache. A method with `select` may also drop tokens of the prompt, and fill its state at
     * the end of the prompt and after every step. NULL: every step reads all tokens.
     */
    int (*select)(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err);
    /*
     * Returns the number of bits of side information that `select` needs about n cached tokens of a
     * KV head, whose keys have d numbers of number_bits bits each. This information is stored in
     * the cache, and every step reads it.
     */
    double (*select_bits)(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits);
};

extern const kvd_tokens_method kvd_tokens_h2o, kvd_tokens_keyformer, kvd_tokens_scissorhands,
    kvd_tokens_snapkv, kvd_tokens_leankv, kvd_tokens_importance, kvd_tokens_lower,
    kvd_tokens_streaming, kvd_tokens_tova, kvd_tokens_pyramidkv, kvd_tokens_adakv,
    kvd_tokens_expectedattention, kvd_tokens_knorm, kvd_tokens_keydiff, kvd_tokens_quest,
    kvd_tokens_d2o, kvd_tokens_cake, kvd_tokens_kvzip, kvd_tokens_kvmerger, kvd_tokens_prefixkv,
    kvd_tokens_windowkv, kvd_tokens_kvcrush, kvd_tokens_ems, kvd_tokens_elasticcache,
    kvd_tokens_taskkv, kvd_tokens_a2ats, kvd_tokens_mpcache, kvd_tokens_alisa, kvd_tokens_shadowkv;

/* Returns the fraction of tokens that method importance keeps at the high level in a layer. */
double kvd_tokens_important(const kvd_parameter_values *v, int layer, int n_layers);
/*
 * Returns the value of the parameter `layers` of method importance: the number of consecutive
 * layers that use the same set of important tokens.
 */
int kvd_tokens_layers(const kvd_parameter_values *v);

/*
 * Converts a budget parameter to a number of tokens: a value below 1 is a fraction of `of` tokens,
 * rounded down; any other value is a number of tokens.
 */
size_t kvd_tokens_budget(double value, size_t of);

/*
 * Fails with a message that names the parameter `key` if its value is 1 or more and not a whole
 * number of tokens.
 */
int kvd_tokens_check_budget(const char *key, double value, kvd_err *err);

/*
 * Implements `open` of methods whose first parameter is `budget`: fails if the budget would keep no
 * token, and stores the parameter values in *self.
 */
int kvd_tokens_open_budget(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);

/*
 * Private data (`self`) of methods that need the shape of the model in addition to their
 * parameters.
 */
typedef struct {
    const kvd_parameter_values *v;
    const kvd_config *config;
} kvd_tokens_shaped;
/*
 * Both functions implement `open`: they allocate a kvd_tokens_shaped and store it in *self; `close`
 * is then free(). The second function also checks the budget as kvd_tokens_open_budget does.
 */
int kvd_tokens_open_shaped(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
int kvd_tokens_open_shaped_budget(const kvd_parameter_values *v, const kvd_method_setup *s,
                                  void **self, kvd_err *err);

/*
 * Implements `prompt` of methods whose `rank` has already chosen the level (high, low or dropped)
 * of every token: copies those levels.
 */
int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err);

/*
 * Implement `state_bytes` and `forget` of methods whose state is one running sum, a double, per
 * cached token.
 */
size_t kvd_tokens_sums_bytes(const void *self, size_t n);
void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n);

/*
 * Indices of the parameters of snapkv, pyramidkv and adakv, which score tokens by the attention of
 * the last rows of the prompt. The first three are `budget`, `window` and `kernel`.
 * kvd_tokens_open_window implements `open` of these methods.
 */
enum { KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS, KVD_WINDOW_KERNEL, KVD_WINDOW_KEYS };
int kvd_tokens_open_window(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
size_t kvd_tokens_window_rows(const kvd_parameter_values *v);
/* Fills `rule`, by which the CUDA engine computes the scores of snapkv, pyramidkv and adakv. */
void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule);
/*
 * Returns the number of prompt tokens before the last `window` ones. Only these tokens have scores;
 * the last `window` tokens always stay.
 */
size_t kvd_tokens_window_old(const kvd_parameter_values *v, const kvd_prompt_attention *p);
/*
 * Writes to `score` the scores of the tokens before the last `window` rows of the prompt. The score
 * of a token is the sum of the probabilities that the last `window` rows give to the `kernel`
 * tokens centred on it, over the query heads of the KV head.
 */
void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score);

/* Converts a number of tokens to a member of kvd_evict_budget, at most INT32_MAX. */
int32_t kvd_evict_count(size_t n);
/*
 * Returns the budget of a method that drops tokens at every step. After the prompt and after every
 * step, the `recent` newest tokens and `old` others stay.
 */
kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r);
/*
 * Returns the budget of a method that drops tokens only once, at the end of the prompt: the
 * `newest` newest tokens and `old` others stay.
 */
kvd_evict_budget kvd_evict_once(size_t old, size_t newest);

/*
 * Sets the levels of the first n tokens to dropped, except those of the k tokens with the largest
 * scores. Among equal scores the later tokens stay.
 */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/*
 * Writes to a [n] the attention probabilities that prompt token t gives to tokens 0 .. t in one
 * query head. product [n] is scratch.
 */
void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a);

/*
 * Returns the index of the smallest of n scores, the first one among equal scores. n must be above
 * 0.
 */
size_t kvd_tokens_least(const double *score, size_t n);

/*
 * GPU code of the methods of the tokens axis. evict: methods that drop equal numbers of entries in
 * every KV head; uneven: methods with different numbers; zdc: importance; leankv: sparsity. An
 * address is NULL if the program is linked without that code.
 */
extern const struct kvd_gpu_kind kvd_gpu_evict KVD_IF_LINKED, kvd_gpu_uneven KVD_IF_LINKED,
    kvd_gpu_zdc KVD_IF_LINKED, kvd_gpu_leankv KVD_IF_LINKED;

#endif
