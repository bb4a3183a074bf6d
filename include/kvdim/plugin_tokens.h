/*
 * Plugins that drop tokens: for each KV head they choose the tokens whose K and V stay in the
 * cache, and the tokens that a decode step reads. kvdim/plugin.h has what all plugins share. An
 * entry of the cache is the K and V of one token at one KV head.
 *
 * The first tokens of a sequence are its prompt. They attend to each other uncompressed, and then
 * `prompt` chooses the entries that stay. Every token after the prompt is a step: its entry is
 * appended, it attends to the stored entries, and then `step` chooses the entries that stay. An
 * entry that was dropped never returns. Without `step` no entry is dropped after the prompt.
 *
 * kvdim stores the kept entries in the number type of the cache, or codes them if the method is
 * combined with one that codes numbers (kvdim/plugin_bits.h). It counts their bytes, and entry_bits
 * for each entry.
 *
 * In a layer whose attention window is shorter than the sequence, the window decides which entries
 * stay, and kvdim calls no function of the method.
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
     * Sum of the attention probabilities that each token received from all tokens of the prompt and
     * all query heads of the group, [n].
     */
    const double *mass;
    /*
     * Sum over query heads of the attention probability that each token gave to itself, [n]. It is
     * a part of the sum in `mass`.
     */
    const double *own;
    /*
     * Number of tokens at the end of the prompt whose attention probabilities are summed in the
     * field `recent`. It is the number that the method's function `window` returned.
     */
    size_t window;
    /*
     * Sum of the attention probabilities that each token received from the last `window` tokens of
     * the prompt, separately for each query head, [group][n].
     */
    const double *recent;
} kvdim_prompt;

/*
 * One token after the prompt (a decode step) at one KV head. The cache holds K and V of n tokens.
 * The newest of them is this token, which has attended to all n.
 */
typedef struct kvdim_step {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t n;                 /* number of tokens in the cache of this KV head */
    const uint32_t *position; /* position in the sequence of each token in the cache, [n], rising */
    const float *prob;        /* attention probabilities of this step, [group][n] */
    const float *score;       /* attention scores q.k of this step after scaling, [group][n] */
    size_t now;               /* position in the sequence of the newest token in the cache */
    /* Number of tokens of the prompt, and expected number of tokens of the whole sequence. */
    size_t n_prompt, n_expected;
} kvdim_step;

/* Stored keys of one KV head and the queries of a step, before the step's attention is computed. */
typedef struct kvdim_read {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    /* Number n of tokens in the cache, and number d of dimensions of each key in `k`. */
    size_t n, d;
    /*
     * Position in the sequence of each token in the cache, [n], rising. The newest token is last.
     */
    const uint32_t *position;
    const float *k; /* keys, [n][d]: n tokens of d numbers */
    const float *q; /* queries of the step, [group][d]: rows are `q_stride` numbers apart */
    size_t q_stride;
} kvdim_read;

/*
 * Method that chooses tokens. The argument `self` of its functions is the pointer that `open`
 * stored. If `open` is NULL, `self` is the array of the values of the method's parameters, const
 * double [n_keys].
 *
 * `state` is memory of the method for one KV head of one sequence, zeroed when kvdim allocates it;
 * it is NULL if state_bytes is NULL. One thread uses it at a time, from the call of `prompt` (if
 * the sequence has a prompt) to the last decode step.
 *
 * `kept` is a list with room for the indices of all n cache entries (an entry is the K and V of one
 * token). On entry it holds 0 .. n-1 and *n_kept is n. `prompt` and `step` write to it the indices
 * of the entries that stay in the cache, rising, at least one, and store their number in *n_kept.
 */
typedef struct kvdim_tokens_method {
    kvdim_method method;
    /*
     * Bits that the method stores for each token in the cache, in addition to K and V, such as
     * importance scores and positions.
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
     * for at most n tokens in the cache; at most 1 GiB. NULL: no state.
     */
    size_t (*state_bytes)(const void *self, size_t n);
    /*
     * Returns the number of tokens at the end of the prompt whose attention probabilities kvdim
     * sums in kvdim_prompt.recent. If this pointer is NULL, the number is 0.
     */
    size_t (*window)(const double *value);
    int (*prompt)(const void *self, void *state, const kvdim_prompt *p, uint32_t *kept,
                  size_t *n_kept, char *error);
    int (*step)(const void *self, void *state, const kvdim_step *s, uint32_t *kept, size_t *n_kept,
                char *error);
    /*
     * Perform the tasks of `prompt` and `step` for all KV heads of a layer together, so that heads
     * can share one budget of tokens. Each array has one element per head. A method defines at most
     * one of `prompt` and `prompt_heads`, and at most one of `step` and `step_heads`.
     */
    int (*prompt_heads)(const void *self, void *const *state, const kvdim_prompt *p, size_t n_heads,
                        uint32_t *const *kept, size_t *n_kept, char *error);
    int (*step_heads)(const void *self, void *const *state, const kvdim_step *s, size_t n_heads,
                      uint32_t *const *kept, size_t *n_kept, char *error);
    /*
     * Chooses the tokens in the cache that a decode step reads. Writes their indices in *r, rising,
     * to `read`, and their number to *n_read. The other tokens stay in the cache. If this pointer
     * is NULL, a step reads all tokens. A method that defines neither `prompt` nor `prompt_heads`
     * must define it.
     */
    int (*select)(const void *self, void *state, const kvdim_read *r, uint32_t *read,
                  size_t *n_read, char *error);
    /*
     * Returns the number of bits of side information that `select` needs for n tokens of d numbers
     * each. kvdim counts these bits as stored in the cache, and as read by every decode step. If
     * this pointer is NULL, the number is 0.
     */
    double (*select_bits)(const void *self, const void *state, size_t n, size_t d);
} kvdim_tokens_method;

#ifdef __cplusplus
}
#endif
#endif
