/*
 * State of one KV head while a sequence runs through its compressed cache. Only head.c, entries.c,
 * stepwise.c and sequence_cache.c include this file.
 */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "methods/account.h"
#include "methods/prompts.h"

/*
 * State of one KV head of one layer of one sequence. Cached tokens are sorted by position. One call
 * processes the tokens at positions base .. end - 1, which are the rows of the batch from row
 * `first` on.
 */
typedef struct {
    const kvd_plan *p;
    /* Prompts of the batch whose layers were merged. NULL unless the plan merges layers. */
    const kvd_prompts *prompts;
    /*
     * Precision levels (KVD_LEVEL_*) of the prompt's tokens, if a method ranks them by scores of
     * all layers; otherwise NULL.
     */
    const uint8_t *ranked;
    /* Index of this sequence in `prompts`. */
    size_t sequence;
    /* Number of tokens of the whole sequence (n), and of its prompt (n0). */
    size_t n, n0;
    /*
     * Method that chooses which tokens to keep. NULL if there is none, or if the layer's attention
     * window is shorter than the sequence, so that the window alone removes tokens.
     */
    const kvd_tokens_method *tokens;
    /*
     * `most` is the largest number of cached tokens at any time. `leaving` is the number of tokens
     * that are removed together when they have left the attention window: the tokens of one coded
     * block.
     */
    size_t most, leaving;
    /* Index of the KV head. */
    int g;
    const kvd_attention_in *in;
    size_t first, base, end;
    /*
     * [end][n_kv_heads * d_head] K and V from position 0 on, for quantisers that code all heads
     * together.
     */
    const float *all_heads[KVD_N_SIDES];
    /* [end][d_model] Inputs of the layer, or NULL. */
    const float *input;
    size_t d;
    /* Stored dimensions of K and of V at KVD_LEVEL_HIGH. */
    size_t width[KVD_N_SIDES];
    /* Stored dimensions of K and of V at KVD_LEVEL_LOW. */
    size_t low[KVD_N_SIDES];
    /* Number of query heads of this KV head. */
    size_t group;
    /* Projection matrices of this head. NULL: K and V keep all dimensions. */
    const kvd_dims_head *dims;
    const float *cosine, *sine;
    kvd_scores scoring;
    /*
     * True if keys, or latents of keys, are stored before RoPE. k_read then holds the keys after
     * RoPE.
     */
    bool before_rope;
    /* Number of KV heads that share a latent. */
    size_t heads;
    /* Number of stored dimensions of a key that attention multiplies with the query. */
    size_t read;

    /*
     * Capacity of buffers, in tokens: `room` is that of `cut`, `step_room` that of q_cut and o_cut,
     * which hold tokens after the prompt.
     */
    size_t room, step_room;
    /* [room][width] Projected K and V of the tokens of this call, from position `base` on. */
    float *cut[KVD_N_SIDES];
    /*
     * Queries and outputs of tokens after the prompt. The first of these tokens is at position
     * kvd_head_step_base(h). q_cut [group][step_room][read] are projected queries. o_cut
     * [group][step_room][width of V] are attention outputs before the projection back.
     */
    float *q_cut, *o_cut;

    /* Number of cached tokens. Arrays described as [most] use only their first m elements. */
    size_t m;
    /* [most] position of each cached token */
    uint32_t *position;
    uint8_t *level; /* [most] KVD_LEVEL_* of each cached token */
    /* [most][width] Decoded K and V of the cached tokens. */
    float *x[KVD_N_SIDES];
    /* [most][read] Keys after RoPE. Empty unless before_rope is set. */
    float *k_read;
    /* [most] Sum of the attention probabilities that each cached token has received. */
    double *mass;
    /* [most] Number of probabilities summed in `mass`. */
    double *seen;
    /*
     * [most] Stored bits of K and of V: `payload` counts numbers and codes, `side` counts scales,
     * tables and indices.
     */
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES];
    /* Number of cached tokens, from the oldest on, whose K, and whose V, are quantised. */
    size_t coded[KVD_N_SIDES];
    /* Number of first positions that the bits method stores exactly (kvd_plan_exact). */
    size_t exact;
    /* State of the entropy coder (kvd_bits_block.state). */
    uint32_t *stream[KVD_N_SIDES];
    /*
     * [d] Mask of the n_keep key channels that are not pruned. Only in the first `pruned` cached
     * tokens have the other channels been removed; later tokens have all channels.
     */
    uint8_t *keep;
    size_t n_keep, pruned;
    /*
     * [d][n_basis] Orthonormal basis computed from the prompt, for K and for V. Scratch for n_basis
     * numbers follows. NULL: the method does not compute such a basis.
     */
    float *basis[KVD_N_SIDES];
    size_t n_basis[KVD_N_SIDES];
    /* Number of columns of the basis that a token at KVD_LEVEL_LOW stores; at most n_basis. */
    size_t n_basis_low[KVD_N_SIDES];
    /* [d] Factors by which key channels are scaled before coding, if `balanced`. */
    float *balance;
    bool balanced;
    /*
     * Stored bits summed over all cached tokens. held_payload counts numbers and codes. held_side
     * counts scales, tables and indices, including those stored once per head.
     */
    double held_payload, held_side;
    /* State of the method `tokens` for this head. */
    void *state;

    /* [group][most] Attention scores and probabilities of one decode step. */
    float *score, *prob;
    /* [KVD_ATTEND_ROWS][n0] Attention scores of one block of prompt queries. */
    float *block;
    /*
     * [most] This array has two uses. When a method assigns levels, it is the new level of each
     * cached token. During the attention of a decode step, it is 1 for each cached token that the
     * step reads, 0 for the others.
     */
    uint8_t *decision;
    /* [most] Indices of the cached tokens that remain after dropping. */
    size_t *kept;
    /* [5 + group][n0] Memory to which the arrays of struct `statistics` of stepwise.c point. */
    double *statistics;
    kvd_stepwise_account *account;
    /* Time in seconds at which the latest measured phase of the work ended. */
    double last;
} kvd_head;

/* Returns the KV head's part of `dims`, or NULL if `dims` is NULL. */
const kvd_dims_head *kvd_head_dims(const kvd_dims *dims, int layer, int g);
/*
 * Sets the sizes, matrices and scale of *h for the sequence of `in`. The caller must have set h->p,
 * h->g and h->prompts.
 */
void kvd_head_describe(kvd_head *h, const kvd_attention_in *in);
/*
 * Allocates all arrays of *h. The caller must have set n, n0, room and step_room, and called
 * kvd_head_describe. The caller must call kvd_head_release, after a failure too.
 */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
/* Frees the arrays that only the prompt needs. */
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/*
 * Returns the bits that methods store for this head in addition to K and V, such as scores and
 * positions.
 */
double kvd_head_entry_bits(const kvd_head *h);

/* Returns the position of the first token of this call that is not part of the prompt. */
size_t kvd_head_step_base(const kvd_head *h);

/* Returns the query of the token at position t, in the j-th query head of this KV head. */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
/*
 * Returns the vector of this KV head at position t in `k`, which is the array of all keys or of all
 * values in kvd_attention_in.
 */
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/*
 * Returns the first position that the token at position t attends to, which depends on the
 * attention window.
 */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/*
 * Computes y = x a, with x [n][d] and a [d][m]. If `a` is NULL, copies the first m columns of x.
 * Rows of x are ldx floats apart.
 */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y);
/* Fills h->cut and h->q_cut for the tokens of this call. */
void kvd_head_project_rows(kvd_head *h);

/*
 * Processes the new tokens of n KV heads of one layer of one sequence. If base is 0, the prompt is
 * processed as a whole; then every later token before position `end` is processed, one at a time. n
 * must be all KV heads if kvd_plan_heads_together(plan), else 1. `out` has the layout of
 * kvd_attention. The time of all heads is added to h[0].account.
 */
int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err);

/* Appends the token at position t uncoded, at KVD_LEVEL_HIGH. */
void kvd_head_append(kvd_head *h, size_t t);
/*
 * Removes the cached tokens that have left the attention window of the token at position t, in
 * blocks of h->leaving tokens.
 */
void kvd_head_leave(kvd_head *h, size_t t);
/*
 * Quantises the cached tokens that the method may quantise now. The method keeps a number of newest
 * tokens exact. If `prompt` is true, the tokens are coded as one block. If channels of only the
 * older keys were pruned, keys are coded as two blocks.
 */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/*
 * Lowers the precision of cached tokens, or drops them, as h->decision [m] says. If `merges` is
 * true, the method may first merge dropped tokens into kept tokens.
 */
int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err);
/*
 * Removes key channels, which the method selects, from all cached tokens except the newest ones.
 * The mask of kept channels is counted as d bits.
 */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/*
 * Computes a projection basis for K and for V from the prompt, and projects K and V of the prompt.
 * Later tokens are projected when they are appended.
 */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/*
 * Replaces the prompt's keys by approximations that the method rebuilds. Called once, before the
 * first token after the prompt.
 */
int kvd_head_rebuild(kvd_head *h, kvd_err *err);
/*
 * Computes h->balance from the prompt, for quantisers that scale each key channel by the sizes of K
 * and Q in that channel.
 */
void kvd_head_balance(kvd_head *h);

#endif
