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

/* Q, K and V of one sequence's prompt at one KV head. */
typedef struct kvdim_prompt {
    uint32_t struct_size;
    int32_t layer, kv_head;
    int32_t group;      /* number of query heads that read this KV head */
    size_t n;           /* number of tokens of the prompt */
    size_t n_expected;  /* number of tokens of the whole sequence if kvdim knows it, else n */
    size_t d;           /* dimensions of a head */
    const float *k, *v; /* keys after RoPE, and values, [n][d]: rows are `stride` numbers apart */
    size_t stride;
    const float *q; /* queries after RoPE, [n][group][d]: rows are `q_stride` numbers apart */
    size_t q_stride;
    /*
     * The fields from here to the end of the structure are NULL or 0 unless the method sets
     * KVDIM_NEEDS_PROBABILITIES.
     */
    /*
     * Sum of the attention probabilities that each token received from all rows and query heads,
     * [n].
     */
    const double *mass;
    /* Part of `mass` that comes from the query rows of the token itself, [n]. */
    const double *own;
    /*
     * Number of tokens at the end of the prompt whose queries the field `recent` sums. It is the
     * number that the method's function `window` returned.
     */
    size_t window;
    /*
     * Sum of the attention probabilities that each token received from the last `window` rows,
     * [group][n].
     */
    const double *recent;
} kvdim_prompt;

/*
 * One token after the prompt (a step) at one KV head. The cache has n entries; the newest of them
 * belongs to this token, which has attended to all n.
 */
typedef struct kvdim_step {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n;                 /* number of entries (tokens) in the cache of this KV head */
    const uint32_t *position; /* position of each entry's token in the sequence, [n], rising */
    const float *prob;        /* attention probabilities of this step, [group][n] */
    const float *score;       /* attention scores q.k of this step after scaling, [group][n] */
    size_t now;               /* position of the newest entry in the sequence */
    /* Number of tokens of the prompt, and expected number of tokens of the whole sequence. */
    size_t n_prompt, n_expected;
} kvdim_step;

/* Stored keys of one KV head and the queries of a step, before the step's attention is computed. */
typedef struct kvdim_read {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n, d; /* number of entries n, and dimensions d of a key as it is read */
    /* Position of each entry's token in the sequence, [n], rising; the newest is last. */
    const uint32_t *position;
    const float *k; /* keys, [n][d]: n tokens of d numbers */
    const float *q; /* queries of the step, [group][d]: rows are `q_stride` numbers apart */
    size_t q_stride;
} kvdim_read;

/*
 * Method of the tokens axis. The argument `self` of its functions is the pointer that `open`
 * stored. If `open` is NULL, `self` is the array of the values of the method's parameters, const
 * double [n_keys].
 *
 * `state` is memory of the method for one KV head of one sequence, zeroed when kvdim allocates it;
 * NULL without state_bytes. One thread uses it at a time, from `prompt` (if the sequence has one)
 * to the last step.
 *
 * `kept` has room for n indices of entries. On entry it holds 0 .. n-1 and *n_kept is n. `prompt`
 * and `step` write to it the indices of the entries that stay in the cache, rising, at least one,
 * and store their number in *n_kept.
 */
typedef struct kvdim_tokens_method {
    kvdim_method method;
    /*
     * Bits that the method stores per entry in addition to K and V, such as importance scores and
     * positions.
     */
    double entry_bits;
    /*
     * Checks `value`, the values of the method's parameters, against the model and stores *self.
     * `open` and `close` may be NULL.
     */
    int (*open)(const double *value, const kvdim_model *model, void **self, char *error);
    void (*close)(void *self);
    /*
     * Returns the size in bytes of `state` (the method's memory for one KV head of one sequence)
     * for at most n entries; at most 1 GiB. NULL: no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * Returns the number of last prompt rows whose probabilities kvdim_prompt.recent sums. NULL: 0
     * rows.
     */
    size_t (*window)(const double *value);
    int (*prompt)(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error);
    int (*step)(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error);
    /*
     * Perform the tasks of `prompt` and `step` for all KV heads of a layer together, so that heads
     * can share one budget of entries. Each array has one element per head. A method defines at
     * most one of `prompt` and `prompt_heads`, and at most one of `step` and `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error);
    int (*step_heads)(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error);
    /*
     * Chooses the entries that a step reads, and writes their indices, rising, to `read` and their
     * number to *n_read. The other entries stay in the cache. NULL: a step reads all entries. A
     * method without `prompt` and `prompt_heads` must define it.
     */
    int (*select)(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error);
    /*
     * Returns the bits of side information that `select` needs about n entries of d numbers each.
     * They count as stored, and as read at every step. NULL: 0 bits.
     */
    double (*select_bits)(const void *self, const void *state, size_t n, size_t d);
} kvdim_tokens_method;

#ifdef __cplusplus
}
#endif
#endif
