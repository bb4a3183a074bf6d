/*
 * The tokens axis: which entries of a KV head stay, and at which level. A method decides at the end
 * of the prompt and after every step, from the attention of the query heads: per KV head, or for
 * all KV heads of a layer together, so that they can share one budget. One file per method; the
 * registry is in method.c.
 */
#ifndef KVD_METHODS_TOKENS_TOKENS_H
#define KVD_METHODS_TOKENS_TOKENS_H

#include "common/half.h"
#include "methods/axis.h"
#include "methods/tokens/eviction.h"

/*
 * Attention of the prompt to one KV head. Rows are prompt tokens; probabilities are those of exact
 * attention.
 */
typedef struct {
    int layer, kv_head, group; /* group: number of query heads of the KV head */
    size_t n;                  /* number of tokens of the prompt */
    /* Number of tokens of the whole sequence if known (teacher forcing), else n. */
    size_t n_expected;
    const double *mass;   /* [n] sum of received probabilities over all rows and query heads */
    const double *own;    /* [n] the part of `mass` that comes from the token's own row */
    size_t window;        /* number of rows in `recent`, from the method's `window` */
    const double *recent; /* [group][n] sum of probabilities over the last `window` rows */
    /* [n] number of these rows, over query heads, whose probability is below the mean of the row */
    const double *below;
    const double *log_denominator; /* [n] mean over query heads of log sum exp(score) of row t */
    /* [n] sum of regularised probabilities, if the method has `regularise` */
    const double *score_mass;
    size_t d;           /* d_head */
    const float *k, *v; /* [n][d] after RoPE, rows ld apart */
    size_t ld;
    const float *q; /* [n][group][d] after RoPE, rows ldq apart */
    size_t ldq;
    const uint8_t *ranked; /* [n] levels that `rank` chose for this KV head, if the method has it */
} kvd_prompt_attention;

/* One prompt in one layer of a first pass over the prompts. */
typedef struct {
    int layer;
    size_t n; /* number of tokens of the prompt */
    /*
     * [rows][n_heads][d_head] and [rows][n_kv_heads][d_head] after RoPE; rows is n, or 2 n if the
     * method has `repeats`
     */
    const float *q, *k;
    size_t window; /* sliding window of the layer, as in kvd_attention_in */
} kvd_observed_prompt;

/* One prompt in all layers, from a first pass over the prompts. */
typedef struct {
    int n_layers;
    size_t n;
    /* [n_layers][n] log of the sum over all query heads of sum exp(score) of row t */
    const double *log_denominator;
    const double *observed; /* [n_layers] what `observe` wrote, if the method has it */
} kvd_prompt_layers;

/*
 * Attention of one step to one KV head. The newest entry is the last; its row attended to all n
 * entries.
 */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position;  /* [n] positions in the sequence, rising */
    const float *prob;         /* [group][n] probabilities of this step */
    const float *score;        /* [group][n] scaled scores */
    size_t now;                /* position of the newest entry */
    size_t prompt, n_expected; /* number of rows of the prompt and of the whole sequence */
} kvd_step_attention;

/* Entries of one KV head and their decided levels, for methods that merge dropped entries. */
typedef struct {
    size_t n;
    const uint8_t *level; /* [n] */
    const float *k;       /* [n][d_k] keys as they are read */
    const float *v;       /* [n][d_v] values as they are stored */
    size_t d_k, d_v;
} kvd_merge_choice;

/* Queries of one step and the stored keys, for methods that read only some entries. */
typedef struct {
    int layer, kv_head, group; /* group: number of query heads of the KV head */
    size_t n, d;               /* number of entries; width of keys as they are read */
    const uint32_t *position;  /* [n] positions in the sequence, rising; the newest is the last */
    const float *k;            /* [n][d] keys as they are read */
    const float *q;            /* [group][d] query heads of the step, rows ldq apart */
    size_t ldq;
    kvd_dtype type; /* type of stored numbers */
} kvd_read_choice;

/* Keys of a prompt in one layer, for methods that store them in another form. */
typedef struct {
    int kv_head;
    size_t n, n_kv_heads, d; /* number of tokens, KV heads, dimensions of a head */
    const float *k_pre;      /* [n][n_kv_heads * d] keys of all KV heads before RoPE */
    const float *k;          /* [n][d] keys of this KV head after RoPE, as they are stored */
    kvd_dtype type;          /* type of stored numbers */
} kvd_prompt_keys;

/* Bits of keys that are rebuilt: of each token, and once per KV head. */
typedef struct {
    double token, prompt;
} kvd_rebuilt_bits;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    kvd_method_info info; /* must be the first member */
    /* lowers: some entries get KVD_LEVEL_LOW; only_lowers: and none is dropped */
    bool lowers, only_lowers;
    /* bits stored per entry in addition to K and V, for scores and positions */
    double entry_bits;
    /* Description for the GPU code of methods that drop entries; NULL: that code cannot run it. */
    const kvd_tokens_eviction *eviction;
    /* Returns the number of rows of kvd_prompt_attention.recent; NULL: 0. */
    size_t (*window)(const kvd_parameter_values *v);
    /*
     * Returns a score with noise and temperature, before its regularised softmax (Keyformer); NULL:
     * none.
     */
    double (*regularise)(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress);
    /* On failure releases what it allocated; `close` is then not called. */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Returns the bytes of the state of one KV head of one sequence with at most n entries. The
     * cache allocates the state, zeroed. NULL: there is no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * Methods that rank from other numbers than denominators: `observed` returns how many doubles
     * `observe` writes about one layer of a prompt of n tokens. `observe` is thread-safe. If
     * `repeats` is set, the first pass runs every prompt followed by itself.
     */
    bool repeats;
    size_t (*observed)(const void *self, size_t n);
    int (*observe)(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err);
    /*
     * Chooses level [n_layers][n] of one prompt in all layers, before the run, or, with `observe`,
     * level [n_layers][n_kv_heads][n]. `prompt` finds it as `ranked`. NULL: there is no first pass.
     */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /*
     * Chooses level [n] of every token of the prompt, and fills the state. On entry all levels are
     * KVD_LEVEL_HIGH.
     */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err);
    /*
     * Chooses level [n] after a step. On entry it holds the current levels, KVD_LEVEL_HIGH for the
     * newest entry; levels never rise. The cache then compacts the arrays of the state with
     * `forget`.
     */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err);
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
    /*
     * As `prompt` and `step`, for all n_heads KV heads of a layer together: state, p, a and level
     * have one element per KV head. Heads may keep different numbers of entries. A method has
     * one of `prompt` and `prompt_heads`, or has `select`, and at most one of `step` and
     * `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err);
    int (*step_heads)(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err);
    /*
     * Merges dropped entries into kept ones, after the prompt and, if `merges_steps` is set, after
     * every step that drops some.
     * On entry into [n] is n and weight [n] is 1. For a dropped entry i that is merged, writes the
     * index of a kept entry to into[i]. K and V of a kept entry become the mean of its own and of
     * all that are merged into it, with weights `weight`; it keeps its position. NULL: what is
     * dropped is lost.
     */
    bool merges_steps;
    int (*merge)(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err);
    /*
     * Rebuilds the keys of the prompt from another form, at its end: writes keys before RoPE to k
     * [n][d], 1 to exact [n] for tokens whose key stays as it is stored, and the size of the form
     * to *bits. Fills the state, which exists if the method has state_bytes. Only with `select`;
     * the method needs keys before RoPE. NULL: keys stay as they are stored.
     */
    int (*rebuild)(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err);
    /*
     * Chooses which entries a step reads, before it attends. On entry read [n] is 1; writes 0 for
     * entries that are not read, which stay in the cache. A method with `select` may also drop
     * entries of the prompt, and fill its state there and after every step. NULL: every step reads
     * all entries.
     */
    int (*select)(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err);
    /*
     * Returns the bits of side information that `select` needs about n entries whose keys have d
     * numbers of number_bits each. They are stored, and read at every step.
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

/* Returns the fraction of important tokens of a layer, for method importance. */
double kvd_tokens_important(const kvd_parameter_values *v, int layer, int n_layers);
/* Returns key `layers` of method importance. */
int kvd_tokens_layers(const kvd_parameter_values *v);

/*
 * Returns a budget in tokens: a value below 1 is a fraction of `of` tokens, rounded down; other
 * values are numbers of tokens.
 */
size_t kvd_tokens_budget(double value, size_t of);

/* Fails if the value of `key` is 1 or more and not a whole number of tokens. */
int kvd_tokens_check_budget(const char *key, double value, kvd_err *err);

/*
 * `open` of methods whose first key is `budget`: checks that it keeps something, and makes the
 * values of the keys the self of the method.
 */
int kvd_tokens_open_budget(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);

/* Self of methods that use the shape of the model next to the values of their keys. */
typedef struct {
    const kvd_parameter_values *v;
    const kvd_config *config;
} kvd_tokens_shaped;
/* Makes a kvd_tokens_shaped, whose `close` is free. The second also checks as open_budget does. */
int kvd_tokens_open_shaped(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
int kvd_tokens_open_shaped_budget(const kvd_parameter_values *v, const kvd_method_setup *s,
                                  void **self, kvd_err *err);

/* `prompt` of methods whose `rank` has chosen the level of every token. */
int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err);

/* `state_bytes` and `forget` of methods whose state is one sum, a double, per entry. */
size_t kvd_tokens_sums_bytes(const void *self, size_t n);
void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n);

/*
 * Keys and scores of the methods that score tokens by the last rows of the prompt (snapkv,
 * pyramidkv, adakv): the first keys are `budget`, `window` and `kernel`, in this order.
 * kvd_tokens_open_window is their `open`.
 */
enum { KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS, KVD_WINDOW_KERNEL, KVD_WINDOW_KEYS };
int kvd_tokens_open_window(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
size_t kvd_tokens_window_rows(const kvd_parameter_values *v);
/* The rule of these scores for the CUDA engine. */
void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule);
/* Returns the number of tokens of the prompt before its last rows, which have scores. */
size_t kvd_tokens_window_old(const kvd_parameter_values *v, const kvd_prompt_attention *p);
/*
 * Writes the scores of these tokens to `score`: the sum of the probabilities that the last rows
 * give to a token and its neighbours, `kernel` tokens in all, over the query heads of the KV head.
 */
void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score);

/* Returns a number of tokens as a member of kvd_evict_budget, at most INT32_MAX. */
int32_t kvd_evict_count(size_t n);
/*
 * Returns the budget of methods that drop tokens at every step: after the prompt and after every
 * step `recent` newest and `old` other entries stay.
 */
kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r);
/* Returns the budget of methods that drop tokens at the end of the prompt alone. */
kvd_evict_budget kvd_evict_once(size_t old, size_t newest);

/*
 * Drops all of the first n tokens but the k with the largest scores; of equal scores the later
 * tokens stay.
 */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/*
 * Writes the probabilities that row t of a query head gives to tokens 0 .. t to a [n]. product [n]
 * is scratch.
 */
void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a);

/* Returns the index of the smallest score, the first of equals; n > 0. */
size_t kvd_tokens_least(const double *score, size_t n);

/*
 * GPU code of methods that drop entries, with as many in every KV head or with different numbers,
 * of importance and of sparsity; else NULL.
 */
extern const struct kvd_gpu_kind kvd_gpu_evict KVD_IF_LINKED, kvd_gpu_uneven KVD_IF_LINKED,
    kvd_gpu_zdc KVD_IF_LINKED, kvd_gpu_leankv KVD_IF_LINKED;

#endif
