/*
 * Plugins that shorten the tokens axis: they choose which entries of a KV head stay in the cache,
 * and which of those a step reads. kvdim/plugin.h has what all plugins share.
 *
 * The first rows of a sequence are its prompt: they attend to each other uncompressed, and then
 * `prompt` chooses the entries that stay. Every row after the prompt is a step: it is appended,
 * attends to the stored entries, and then `step` chooses the entries that stay. An entry that was
 * dropped never returns. Without `step` no entry is dropped after the prompt.
 *
 * kvdim stores the kept entries in the type of the cache, or codes them if the method is combined
 * with one of the bits axis. It counts their bytes, and entry_bits for each.
 *
 * In a layer with a window that is shorter than the sequence, the window chooses the entries and no
 * function is called.
 */
#ifndef KVDIM_PLUGIN_TOKENS_H
#define KVDIM_PLUGIN_TOKENS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The prompt of one sequence at one KV head. */
typedef struct kvdim_prompt {
    uint32_t struct_size;
    int32_t layer, kv_head;
    int32_t group;      /* number of query heads of the KV head */
    size_t n;           /* number of tokens of the prompt */
    size_t n_expected;  /* tokens of the whole sequence if kvdim knows them, else n */
    size_t d;           /* d_head */
    const float *k, *v; /* [n][d] after RoPE; rows are `stride` numbers apart */
    size_t stride;
    const float *q; /* [n][group][d] after RoPE; rows are `q_stride` numbers apart */
    size_t q_stride;
    /* The rest is NULL or 0 without KVDIM_NEEDS_PROBABILITIES. */
    const double *mass; /* [n] sum of the probabilities that a token received, all rows and heads */
    const double *own;  /* [n] part of `mass` that comes from the token's own row */
    size_t window;      /* number of rows that `recent` covers, from the method's `window` */
    const double *recent; /* [group][n] sum of the probabilities of the last `window` rows */
} kvdim_prompt;

/* One step at one KV head. The newest entry is the last one; its row attended to all n entries. */
typedef struct kvdim_step {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n;                    /* number of entries */
    const uint32_t *position;    /* [n] positions in the sequence, rising */
    const float *prob;           /* [group][n] probabilities of this step */
    const float *score;          /* [group][n] scaled scores */
    size_t now;                  /* position of the newest entry */
    size_t n_prompt, n_expected; /* tokens of the prompt and of the whole sequence */
} kvdim_step;

/* Stored keys and the queries of a step, before it attends. */
typedef struct kvdim_read {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n, d;              /* number of entries; width of keys as they are read */
    const uint32_t *position; /* [n] positions in the sequence, rising; the newest is the last */
    const float *k;           /* [n][d] */
    const float *q;           /* [group][d]; rows are `q_stride` numbers apart */
    size_t q_stride;
} kvdim_read;

/*
 * `self` is the pointer that `open` stored. If `open` is NULL, it is the array of the keys' values,
 * const double [n_keys].
 *
 * `state` belongs to one KV head of one sequence, and is NULL without state_bytes. kvdim allocates
 * it, zeroed. One thread uses it at a time, from `prompt` (if the sequence has one) to the last
 * step.
 *
 * `kept` has room for n indices of entries. On entry it holds 0 .. n-1 and *n_kept is n. The
 * function writes the indices of the entries that stay, rising, at least one, and their number.
 */
typedef struct kvdim_tokens_method {
    kvdim_method method;
    double entry_bits; /* bits stored per entry in addition to K and V: scores, positions */
    /* Checks the values of the keys against the model. May be NULL; so may `close`. */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /* Returns the bytes of `state` for at most n entries, at most 1 GiB. NULL: no state. */
    size_t (*state_bytes)(const void *self, size_t n);
    /* Returns the number of rows of kvdim_prompt.recent. NULL: 0. */
    size_t (*window)(const double *value);
    int (*prompt)(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error);
    int (*step)(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error);
    /*
     * As `prompt` and `step`, for all KV heads of a layer together, so that heads can share one
     * budget: each array has one element per head. A method has `prompt` or `prompt_heads` or
     * neither, and `step` or `step_heads` or neither.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error);
    int (*step_heads)(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error);
    /*
     * Chooses the entries that a step reads, as `kept` is chosen; the others stay in the cache.
     * NULL: a step reads all entries. A method without `prompt` and `prompt_heads` must have it.
     */
    int (*select)(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error);
    /*
     * Returns the bits of side information that `select` needs about n entries of d numbers each.
     * They are stored, and read at every step. NULL: 0.
     */
    double (*select_bits)(const void *self, const void *state, size_t n, size_t d);
} kvdim_tokens_method;

#ifdef __cplusplus
}
#endif
#endif
