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
 * Attention statistics of the prompt for one KV head. Rows are prompt tokens; probabilities are
 * those of exact attention.
 */
typedef struct {
    int layer, kv_head, group; /* group: number of query heads of the KV head */
    size_t n;                  /* number of tokens of the prompt */
    /* Number of tokens of the whole sequence if it is known (teacher forcing), else n. */
    size_t n_expected;
    const double *mass;   /* [n] sum of received probabilities over all rows and query heads */
    const double *own;    /* [n] part of `mass` that comes from the token's own row */
    size_t window;        /* number of rows in `recent`, from the method's `window` */
    const double *recent; /* [group][n] sum of probabilities over the last `window` rows */
    /*
     * [n] number of the rows in `recent`, over query heads, whose probability is below the mean of
     * the row
     */
    const double *below;
    /* [n] mean over query heads of the log of the softmax denominator of row t */
    const double *log_denominator;
    /* [n] sum of probabilities of the regularised softmax, if the method has `regularise` */
    const double *score_mass;
    size_t d;           /* d_head */
    const float *k, *v; /* [n][d] after RoPE, rows ld apart */
    size_t ld;
    const float *q; /* [n][group][d] after RoPE, rows ldq apart */
    size_t ldq;
    /* [n] levels that `rank` chose for this KV head, if the method has `rank` */
    const uint8_t *ranked;
} kvd_prompt_attention;

/* Q and K of one prompt in one layer, in a first pass over the prompts. */
typedef struct {
    int layer;
    size_t n; /* number of tokens of the prompt */
    /*
     * Rows after RoPE, [rows][n_heads][d_head] and [rows][n_kv_heads][d_head]; rows is n, or 2 n if
     * the method has `repeats`.
     */
    const float *q, *k;
    size_t window; /* sliding window of the layer, as in kvd_attention_in */
} kvd_observed_prompt;

/* Numbers recorded for one prompt in all layers by a first pass over the prompts. */
typedef struct {
    int n_layers;
    size_t n;
    /* [n_layers][n] log of the sum, over all query heads, of the softmax denominators of row t */
    const double *log_denominator;
    const double *observed; /* [n_layers] numbers that `observe` wrote, if the method has it */
} kvd_prompt_layers;

/*
 * Attention of one step to one KV head. The newest entry is the last; its row attended to all n
 * entries.
 */
typedef struct {
    int layer, kv_head, group;
    size_t n;
    const uint32_t *position;  /* [n] positions in the sequence, rising */
    const float *prob;         /* [group][n] attention probabilities of this step */
    const float *score;        /* [group][n] scaled attention scores */
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

/* Queries of one step and the stored keys, for methods that choose which entries the step reads. */
typedef struct {
    int layer, kv_head, group; /* group: number of query heads of the KV head */
    size_t n, d;               /* number of entries; width of keys as they are read */
    const uint32_t *position;  /* [n] positions in the sequence, rising; the newest is the last */
    const float *k;            /* [n][d] keys as they are read */
    const float *q;            /* [group][d] query heads of the step, rows ldq apart */
    size_t ldq;
    kvd_dtype type; /* type of stored numbers */
} kvd_read_choice;

/* Keys of a prompt in one layer, for methods that store the keys in another form. */
typedef struct {
    int kv_head;
    size_t n, n_kv_heads, d; /* number of tokens, KV heads, dimensions of a head */
    const float *k_pre;      /* [n][n_kv_heads * d] keys of all KV heads before RoPE */
    const float *k;          /* [n][d] keys of this KV head after RoPE, as they are stored */
    kvd_dtype type;          /* type of stored numbers */
} kvd_prompt_keys;

/* Bits of keys that are stored in another form: per token, and once per KV head. */
typedef struct {
    double token, prompt;
} kvd_rebuilt_bits;

typedef struct kvd_tokens_method kvd_tokens_method;
struct kvd_tokens_method {
    kvd_method_info info; /* must be the first member */
    /*
     * `lowers` is true if some entries get KVD_LEVEL_LOW, `only_lowers` if in addition none is
     * dropped.
     */
    bool lowers, only_lowers;
    /* bits stored per entry in addition to K and V, for scores and positions */
    double entry_bits;
    /*
     * Description for the CUDA engine of a method that drops entries; NULL: the engine cannot run
     * the method.
     */
    const kvd_tokens_eviction *eviction;
    /* Returns the number of last prompt rows summed in kvd_prompt_attention.recent; NULL: 0. */
    size_t (*window)(const kvd_parameter_values *v);
    /*
     * Returns an attention score with noise and temperature applied, before the regularised softmax
     * (Keyformer); NULL: none.
     */
    double (*regularise)(const kvd_parameter_values *v, uint64_t seed, int layer, int head,
                         uint32_t token, double score, double progress);
    /*
     * Prepares the method and stores its `self` pointer in *self. On failure it releases what it
     * allocated, and `close` is not called.
     */
    int (*open)(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                kvd_err *err);
    void (*close)(void *self);
    /*
     * Returns the size in bytes of the state of one KV head of one sequence with at most n entries.
     * The cache allocates the state, zeroed. NULL: there is no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * For methods that rank tokens by other numbers than softmax denominators. `observed` returns
     * how many doubles `observe` writes about one layer of a prompt of n tokens. `observe` is
     * thread-safe. If `repeats` is set, the first pass runs every prompt followed by a second copy
     * of itself.
     */
    bool repeats;
    size_t (*observed)(const void *self, size_t n);
    int (*observe)(const void *self, const kvd_observed_prompt *r, double *out, kvd_err *err);
    /*
     * Chooses the level of every token of one prompt in all layers, before the run, and writes
     * level [n_layers][n] or, with `observe`, [n_layers][n_kv_heads][n]. `prompt` receives it as
     * `ranked`. NULL: there is no first pass.
     */
    int (*rank)(const void *self, const kvd_prompt_layers *p, uint8_t *level, kvd_err *err);
    /*
     * Chooses level [n], the level of every token of the prompt, and fills the state. On entry all
     * levels are KVD_LEVEL_HIGH.
     */
    int (*prompt)(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err);
    /*
     * Chooses level [n], the levels of the entries after a step. On entry it holds the current
     * levels, KVD_LEVEL_HIGH for the newest entry; levels never rise. The cache then compacts the
     * arrays of the state with `forget`.
     */
    int (*step)(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err);
    void (*forget)(const void *self, void *state, const size_t *kept, size_t n);
    /*
     * Work as `prompt` and `step`, for all n_heads KV heads of a layer together: state, p, a and
     * level have one element per KV head. Heads may keep different numbers of entries. A method has
     * one of `prompt` and `prompt_heads`, or has `select`, and at most one of `step` and
     * `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvd_prompt_attention *p,
                        size_t n_heads, uint8_t *const *level, kvd_err *err);
    int (*step_heads)(const void *self, void *const *state, const kvd_step_attention *a,
                      size_t n_heads, uint8_t *const *level, kvd_err *err);
    /*
     * Merges dropped entries into kept ones, after the prompt and, if `merges_steps` is set, after
     * every step that drops some. On entry into [n] is n and weight [n] is 1. For a dropped entry i
     * that is merged, writes the index of a kept entry to into[i]. K and V of a kept entry become
     * the mean, with weights `weight`, of its own and of all merged into it; it keeps its position.
     * NULL: dropped entries are lost.
     */
    bool merges_steps;
    int (*merge)(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err);
    /*
     * Rebuilds the keys of the prompt from another form, at its end. Writes keys before RoPE to k
     * [n][d], 1 to exact [n] for tokens whose key stays as it is, and the size of the form to
     * *bits. Fills the state, which exists if the method has state_bytes. Only with `select`; the
     * method needs keys before RoPE. NULL: keys stay as they are.
     */
    int (*rebuild)(const void *self, void *state, const kvd_prompt_keys *p, float *k,
                   uint8_t *exact, kvd_rebuilt_bits *bits, kvd_err *err);
    /*
     * Chooses which entries a step reads, before it attends. On entry read [n] is 1; writes 0 for
     * entries that are not read, which stay in the cache. A method with `select` may also drop
     * entries of the prompt, and fill its state at the end of the prompt and after every step.
     * NULL: every step reads all entries.
     */
    int (*select)(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err);
    /*
     * Returns the bits of side information that `select` needs about n entries whose keys have d
     * numbers of number_bits each. This information is stored, and every step reads it.
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
/*
 * Returns the value of the parameter `layers` of method importance, the number of layers that share
 * their sets of tokens.
 */
int kvd_tokens_layers(const kvd_parameter_values *v);

/*
 * Converts a budget to tokens: a value below 1 is a fraction of `of` tokens, rounded down; other
 * values are numbers of tokens.
 */
size_t kvd_tokens_budget(double value, size_t of);

/* Fails if the value of `key` is 1 or more and not a whole number of tokens. */
int kvd_tokens_check_budget(const char *key, double value, kvd_err *err);

/*
 * Implements `open` of methods whose first parameter is `budget`: checks that the budget keeps
 * something, and uses the parameter values as `self`.
 */
int kvd_tokens_open_budget(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);

/*
 * Data that `self` points to in methods that use the shape of the model in addition to their
 * parameters.
 */
typedef struct {
    const kvd_parameter_values *v;
    const kvd_config *config;
} kvd_tokens_shaped;
/*
 * Make a kvd_tokens_shaped as `self`; `close` is then free. The second function also checks the
 * budget as kvd_tokens_open_budget does.
 */
int kvd_tokens_open_shaped(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
int kvd_tokens_open_shaped_budget(const kvd_parameter_values *v, const kvd_method_setup *s,
                                  void **self, kvd_err *err);

/* Implements `prompt` of methods whose `rank` has already chosen the level of every token. */
int kvd_tokens_take_ranked(const void *self, void *state, const kvd_prompt_attention *p,
                           uint8_t *level, kvd_err *err);

/* Implement `state_bytes` and `forget` of methods whose state is one sum, a double, per entry. */
size_t kvd_tokens_sums_bytes(const void *self, size_t n);
void kvd_tokens_forget_sums(const void *self, void *state, const size_t *kept, size_t n);

/*
 * Parameters of the methods that score tokens by the last rows of the prompt (snapkv, pyramidkv,
 * adakv). The first are `budget`, `window` and `kernel`, in this order. kvd_tokens_open_window
 * implements their `open`.
 */
enum { KVD_WINDOW_BUDGET, KVD_WINDOW_ROWS, KVD_WINDOW_KERNEL, KVD_WINDOW_KEYS };
int kvd_tokens_open_window(const kvd_parameter_values *v, const kvd_method_setup *s, void **self,
                           kvd_err *err);
size_t kvd_tokens_window_rows(const kvd_parameter_values *v);
/* Sets the rule that computes the scores of snapkv, pyramidkv and adakv in the CUDA engine. */
void kvd_tokens_window_rule(const kvd_parameter_values *v, kvd_evict_rule *rule);
/*
 * Returns the number of tokens before the last `window` rows of the prompt; only these tokens have
 * scores.
 */
size_t kvd_tokens_window_old(const kvd_parameter_values *v, const kvd_prompt_attention *p);
/*
 * Writes the scores of the tokens before the last `window` rows to `score`. A score sums the
 * probabilities that the last rows give to the token and its neighbours, `kernel` tokens in all,
 * over the query heads of the KV head.
 */
void kvd_tokens_window_scores(const kvd_parameter_values *v, const kvd_prompt_attention *p,
                              double *score);

/* Converts a number of tokens to a member of kvd_evict_budget, at most INT32_MAX. */
int32_t kvd_evict_count(size_t n);
/*
 * Returns the budget of a method that drops tokens at every step: after the prompt and after every
 * step, the `recent` newest entries and `old` others stay.
 */
kvd_evict_budget kvd_evict_always(size_t old, size_t recent, const kvd_evict_request *r);
/* Returns the budget of a method that drops tokens at the end of the prompt only. */
kvd_evict_budget kvd_evict_once(size_t old, size_t newest);

/*
 * Marks all of the first n tokens as dropped, except the k with the largest scores. Of equal scores
 * the later tokens stay.
 */
int kvd_tokens_keep_top(const double *score, size_t n, size_t k, uint8_t *level, kvd_err *err);

/*
 * Writes the attention probabilities that row t of a query head gives to tokens 0 .. t to a [n].
 * product [n] is scratch.
 */
void kvd_tokens_probabilities(const kvd_config *c, const kvd_observed_prompt *r, int head, size_t t,
                              float *product, double *a);

/* Returns the index of the smallest score, the first of equals; n > 0. */
size_t kvd_tokens_least(const double *score, size_t n);

/*
 * GPU code of methods that drop entries, with equal numbers of entries in every KV head (evict) or
 * different ones (uneven), of importance and of sparsity; NULL if the program is linked without it.
 */
extern const struct kvd_gpu_kind kvd_gpu_evict KVD_IF_LINKED, kvd_gpu_uneven KVD_IF_LINKED,
    kvd_gpu_zdc KVD_IF_LINKED, kvd_gpu_leankv KVD_IF_LINKED;

#endif
