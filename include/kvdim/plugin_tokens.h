/*
 * Plugins that drop tokens: they choose, per KV head, the entries (K and V of one token) that stay
 * in the cache and that a decode step reads. Read kvdim/plugin.h first.
 *
 * The prompt attends to itself uncompressed; then `prompt` chooses the entries that stay. Every
 * later token is a step: its entry is appended, it attends to the stored entries, then `step`
 * chooses the entries that stay. A dropped entry never returns. If `step` is NULL, no entry is
 * dropped after the prompt.
 *
 * In a layer whose attention window is shorter than the sequence, no function of the method is
 * called.
 */
#ifndef KVDIM_PLUGIN_TOKENS_H
#define KVDIM_PLUGIN_TOKENS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Q, K and V of one prompt at one KV head. */
typedef struct kvdim_prompt {
    uint32_t struct_size;
    int32_t layer, kv_head;
    int32_t group;      /* number of query heads that read this KV head */
    size_t n;           /* number of tokens of the prompt */
    size_t n_expected;  /* tokens of prompt and generation together if known, else n */
    size_t d;           /* dimensions of a head */
    const float *k, *v; /* keys after RoPE, and values, [n][d]: tokens are `stride` numbers apart */
    size_t stride;
    const float *q; /* queries after RoPE, [n][group][d]: tokens are `q_stride` numbers apart */
    size_t q_stride;
    /* From here to the end of kvdim_prompt, fields are unset without KVDIM_NEEDS_PROBABILITIES. */
    /* [n] attention probabilities each token received from the prompt, summed over query heads */
    const double *mass;
    const double *own; /* [n] part of `mass` that each token received from itself. */
    /* Number of last tokens whose attention is in `recent`, set by the function `window`. */
    size_t window;
    /* [group][n] attention probabilities each token received from the last `window` tokens */
    const double *recent;
} kvdim_prompt;

/* One token after the prompt (a decode step) at one KV head. */
typedef struct kvdim_step {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n;                 /* number of tokens in the cache, this token included */
    const uint32_t *position; /* position of each cached token in the sequence, [n], rising */
    const float *prob;        /* attention probabilities of this step, [group][n] */
    const float *score;       /* attention scores q.k of this step after scaling, [group][n] */
    size_t now;               /* position in the sequence of the newest token */
    /* Number of tokens of the prompt, and expected number of tokens of the whole sequence. */
    size_t n_prompt, n_expected;
} kvdim_step;

/* Stored keys of one KV head and the queries of a decode step, before the step's attention. */
typedef struct kvdim_read {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n, d; /* Tokens in the cache, and dimensions of a key. */
    /* [n], rising: position of each cached token in the sequence; the newest is last. */
    const uint32_t *position;
    const float *k; /* keys, [n][d] */
    const float *q; /* queries, [group][d]: rows are `q_stride` numbers apart */
    size_t q_stride;
} kvdim_read;

/*
 * `self` is the pointer that `open` stored or, if `open` is NULL, the parameter values, const
 * double [n_keys].
 *
 * `state`: the method's zeroed memory for one KV head of one sequence, NULL if state_bytes is NULL.
 * kvdim keeps it until the sequence's last step and never uses it in two threads at once. `prompt`
 * is not called for a sequence without a prompt.
 *
 * `kept` holds 0 .. n-1 on entry, and *n_kept is n. `prompt` and `step` write to `kept` the rising
 * indices of the cached tokens that stay, at least one, and their number to *n_kept.
 */
typedef struct kvdim_tokens_method {
    kvdim_method method;
    /* Bits per cached token in addition to K and V, such as scores and positions. */
    double entry_bits;
    /*
     * Checks the parameter values `value` [n_keys] against the model, and stores a pointer of the
     * method in *self. `open` and `close` may be NULL.
     */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Returns the bytes of the memory `state` for up to n cached tokens of a KV head, at most 1
     * GiB. If this function is NULL, there is no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * Returns the number of last prompt tokens whose attention kvdim_prompt.recent holds. If this
     * function is NULL, the number is 0.
     */
    size_t (*window)(const double *value);
    int (*prompt)(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error);
    int (*step)(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error);
    /*
     * Like `prompt` and `step`, but for all KV heads of a layer, which can share a budget; arrays
     * are [n_heads]. A method defines at most one of `prompt` and `prompt_heads`, and of `step` and
     * `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error);
    int (*step_heads)(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error);
    /*
     * Chooses the cached tokens that a decode step reads: writes their rising indices to `read` and
     * their number to *n_read. Other tokens stay in the cache. NULL: a step reads all. Required
     * without `prompt` and `prompt_heads`.
     */
    int (*select)(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error);
    /*
     * Returns the bits that `select` needs in addition to K and V of n tokens of d numbers. They
     * count as stored, and as read by every step. If this function is NULL, the number is 0.
     */
    double (*select_bits)(const void *self, const void *state, size_t n, size_t d);
} kvdim_tokens_method;

#ifdef __cplusplus
}
#endif
#endif
