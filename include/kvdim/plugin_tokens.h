/* Interface of plugins that drop tokens. For each KV head, a plugin chooses which tokens stay in
 * the cache, and which of them a decode step reads. Read kvdim/plugin.h first.
 *
 * The prompt attends to itself uncompressed. Then the function `prompt` chooses the tokens that
 * stay. Each later token is added to the cache and attends, then the function `step` chooses. A
 * dropped token never returns.
 *
 * Layers with a sliding window shorter than the sequence are not compressed. */
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
    /* kvdim fills the fields from here on only if the method sets KVDIM_NEEDS_PROBABILITIES. */
    /* [n] Attention probabilities that each token received from all prompt tokens, summed over
     * query tokens and query heads */
    const double *mass;
    const double *own; /* [n] part of `mass` that each token received from itself. */
    /* Number of tokens at the end of the prompt; the next field, `recent`, sums the attention that
     * they give. The method's function `window` has returned this number. */
    size_t window;
    /* [group][n] For each query head and each token: sum of the attention probabilities that the
     * token received from the last `window` prompt tokens */
    const double *recent;
} kvdim_prompt;

/* Attention of one decode step at one KV head. */
typedef struct kvdim_step {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n;                 /* number of tokens in the cache, this token included */
    const uint32_t *position; /* position of each cached token in the sequence, [n], rising */
    const float *prob;        /* attention probabilities of this step, [group][n] */
    const float *score;       /* attention scores q.k of this step after scaling, [group][n] */
    size_t now;               /* position in the sequence of the newest token */
    /* Number of prompt tokens, and expected number of tokens of prompt and generation together */
    size_t n_prompt, n_expected;
} kvdim_step;

/* Cached keys and the queries of a decode step at one KV head, before the step's attention. */
typedef struct kvdim_read {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n, d; /* Tokens in the cache, and dimensions of a key. */
    /* [n] Position of each cached token in the sequence, rising; the newest token is last */
    const uint32_t *position;
    const float *k; /* keys, [n][d] */
    const float *q; /* queries, [group][d]: rows are `q_stride` numbers apart */
    size_t q_stride;
} kvdim_read;

/* A method that drops tokens. `self` is the pointer that `open` stored. If `open` is NULL, `self`
 * points to the parameter values, const double [n_keys].
 *
 * `state` is memory for one KV head of one sequence, zeroed at first. Two threads never use it at
 * the same time.
 *
 * `kept` [n] holds 0 .. n - 1 on entry. `prompt` and `step` write the rising indices of the tokens
 * that stay, at least one, to `kept`, and their number to *n_kept. */
typedef struct kvdim_tokens_method {
    kvdim_method method;
    /* Bits that the method stores per cached token, in addition to K and V */
    double entry_bits;
    /* Checks the parameter values `value` [n_keys]. Sets *self to a pointer that kvdim passes to
     * the functions below as `self`. `open` and `close` may be NULL. */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /* Returns the size of `state` in bytes, at most 1 GiB, for one KV head with up to n cached
     * tokens. If this function is NULL, there is no state. */
    size_t (*state_bytes)(const void *self, size_t n);
    /* Returns a number w. kvdim_prompt.recent then has the attention that the last w tokens of the
     * prompt give to each token. If this function is NULL, w is 0. */
    size_t (*window)(const double *value);
    int (*prompt)(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error);
    int (*step)(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error);
    /* Like `prompt` and `step`, but called once for all KV heads of a layer. Arguments that are
     * pointers to one head's data become arrays [n_heads]. */
    int (*prompt_heads)(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error);
    int (*step_heads)(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error);
    /* Chooses the cached tokens whose K and V a decode step reads: writes their rising indices to
     * `read` and their number to *n_read. Other tokens stay stored. If this function is NULL, all
     * are read. */
    int (*select)(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error);
    /* Returns the number of bits that `select` reads in a decode step to choose among n tokens of d
     * numbers. If this function is NULL, the number is 0. */
    double (*select_bits)(const void *self, const void *state, size_t n, size_t d);
} kvdim_tokens_method;

#ifdef __cplusplus
}
#endif
#endif
