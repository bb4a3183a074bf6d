/*
 * Plugins that drop tokens: for each KV head they choose the tokens whose K and V stay in the
 * cache, and the tokens that a decode step reads. kvdim/plugin.h has what all plugins share. An
 * entry of the cache is the K and V of one token at one KV head.
 *
 * The tokens of the prompt attend to each other uncompressed, and then the function `prompt`
 * chooses the entries that stay. Every token after the prompt is a step: its entry is appended, it
 * attends to the stored entries, and then the function `step` chooses the entries that stay. A
 * dropped entry never returns. If `step` is NULL, no entry is dropped after the prompt.
 *
 * In a layer whose attention window is shorter than the sequence, kvdim calls no function of the
 * method.
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
    /*
     * The fields from here to the end of kvdim_prompt are NULL or 0 unless the method sets
     * KVDIM_NEEDS_PROBABILITIES.
     */
    /*
     * Sum of the attention probabilities that each token received from all tokens of the prompt,
     * over all query heads of the group, [n].
     */
    const double *mass;
    /* Part of `mass` that each token received from itself, [n]. */
    const double *own;
    /*
     * Number w, set by the method's function `window`: attention from the last w tokens is in
     * `recent`.
     */
    size_t window;
    /*
     * Sum of the attention probabilities that each token received from the last `window` tokens of
     * the prompt, per query head, [group][n].
     */
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
    /* Number of tokens in the cache, and number of dimensions of a key. */
    size_t n, d;
    /* Position of each cached token in the sequence, [n], rising. The newest token is last. */
    const uint32_t *position;
    const float *k; /* keys, [n][d] */
    const float *q; /* queries, [group][d]: rows are `q_stride` numbers apart */
    size_t q_stride;
} kvdim_read;

/*
 * The argument `self` of the functions is the pointer that `open` stored. If `open` is NULL, `self`
 * is the array of the values of the method's parameters, const double [n_keys].
 *
 * `state` is memory of the method for one KV head of one sequence, zeroed when kvdim allocates it.
 * `state` is NULL if the method's state_bytes is NULL. kvdim keeps it until the last decode step of
 * the sequence and never uses it in two threads at once. For a sequence without a prompt, `prompt`
 * is not called.
 *
 * `kept` has room for the indices of all n entries of the cache. On entry it holds 0 .. n-1 and
 * *n_kept is n. `prompt` and `step` write to it the indices of the entries that stay, at least one,
 * in rising order. They set *n_kept to the number of these entries.
 */
typedef struct kvdim_tokens_method {
    kvdim_method method;
    /*
     * Bits per cached token that the method stores in addition to K and V, such as scores and
     * positions.
     */
    double entry_bits;
    /*
     * Checks the parameter values `value` [n_keys] against the model and stores *self. `open` and
     * `close` may be NULL.
     */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Returns the size in bytes of `state` if the cache has at most n tokens; at most 1 GiB. If
     * this pointer is NULL, there is no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * Returns the number of last prompt tokens whose attention probabilities kvdim sums in
     * kvdim_prompt.recent. If this pointer is NULL, the number is 0.
     */
    size_t (*window)(const double *value);
    int (*prompt)(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error);
    int (*step)(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error);
    /*
     * Like `prompt` and `step`, but for all KV heads of a layer together, so that heads can share
     * one budget. Each of the arrays `state`, `p`, `s`, `kept` and `n_kept` has one element per
     * head, [n_heads]. A method defines at most one of `prompt` and `prompt_heads`, and at most one
     * of `step` and `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error);
    int (*step_heads)(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error);
    /*
     * Chooses the tokens in the cache that a decode step reads. Writes the indices of these tokens,
     * in rising order, to `read`, and their number to *n_read. The tokens that are not read stay in
     * the cache. If this pointer is NULL, a step reads all tokens. A method that defines neither
     * `prompt` nor `prompt_heads` must define `select`.
     */
    int (*select)(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error);
    /*
     * Returns the bits of the data that the method stores in addition to K and V to choose the
     * tokens in `select`, for n tokens of d numbers each. kvdim counts these bits as stored, and as
     * read by every decode step. If this pointer is NULL, the number is 0.
     */
    double (*select_bits)(const void *self, const void *state, size_t n, size_t d);
} kvdim_tokens_method;

#ifdef __cplusplus
}
#endif
#endif
