/* Plugins that drop tokens: per KV head, they choose the entries (K and V of one token) that stay,
 * and that a decode step reads. Read kvdim/plugin.h first.
 *
 * The prompt attends to itself uncompressed, then `prompt` chooses what stays. Each later token is
 * appended and attends, then `step` chooses what stays. A dropped entry never returns.
 *
 * Layers with a window shorter than the sequence are left alone. */
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
    /* The fields from here on are unset without KVDIM_NEEDS_PROBABILITIES. */
    /* [n] attention that each token received from the prompt, summed over query heads */
    const double *mass;
    const double *own; /* [n] part of `mass` that each token received from itself. */
    /* last tokens whose attention is in `recent`, set by the function `window` */
    size_t window;
    /* [group][n] attention that each token received from the last `window` tokens */
    const double *recent;
} kvdim_prompt;

/* A token after the prompt (a decode step) at one KV head. */
typedef struct kvdim_step {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n;                 /* number of tokens in the cache, this token included */
    const uint32_t *position; /* position of each cached token in the sequence, [n], rising */
    const float *prob;        /* attention probabilities of this step, [group][n] */
    const float *score;       /* attention scores q.k of this step after scaling, [group][n] */
    size_t now;               /* position in the sequence of the newest token */
    /* number of prompt tokens, and expected number of tokens of the whole sequence */
    size_t n_prompt, n_expected;
} kvdim_step;

/* Stored keys and a decode step's queries at one KV head, before its attention. */
typedef struct kvdim_read {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n, d; /* Tokens in the cache, and dimensions of a key. */
    /* [n] rising position of each cached token; the newest is last */
    const uint32_t *position;
    const float *k; /* keys, [n][d] */
    const float *q; /* queries, [group][d]: rows are `q_stride` numbers apart */
    size_t q_stride;
} kvdim_read;

/* `self` is the pointer that `open` stored or, if `open` is NULL, the parameter values, const
 * double [n_keys].
 *
 * `state`: zeroed memory for one KV head of one sequence, never used by two threads at once.
 *
 * `kept` holds 0 .. n - 1 on entry. `prompt` and `step` write the rising indices of tokens that
 * stay, at least one, and their number. */
typedef struct kvdim_tokens_method {
    kvdim_method method;
    /* bits per cached token in addition to K and V */
    double entry_bits;
    /* Checks the values [n_keys], and stores a pointer in *self. `open` and `close` may be NULL. */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /* Returns a KV head's bytes of `state` for up to n cached tokens, at most 1 GiB. NULL: none. */
    size_t (*state_bytes)(const void *self, size_t n);
    /* Returns the number of last prompt tokens whose attention kvdim_prompt.recent holds. NULL:
     * 0. */
    size_t (*window)(const double *value);
    int (*prompt)(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error);
    int (*step)(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error);
    /* Like `prompt` and `step`, but for all KV heads of a layer at once; arrays are [n_heads]. */
    int (*prompt_heads)(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error);
    int (*step_heads)(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error);
    /* Chooses the cached tokens that a decode step reads: rising indices in `read`, their number in
     * *n_read. Tokens that are not read stay stored. NULL: all are read. */
    int (*select)(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error);
    /* Returns the bits that `select` needs apart from K and V; every step reads them. NULL: 0. */
    double (*select_bits)(const void *self, const void *state, size_t n, size_t d);
} kvdim_tokens_method;

#ifdef __cplusplus
}
#endif
#endif
