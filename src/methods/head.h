/*
 * State of one KV head while a sequence runs through a compressed cache. Only src/methods uses this
 * file.
 */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "common/memory.h"
#include "methods/account.h"
#include "methods/prompts.h"

/*
 * One KV head of one layer of one sequence, with its compressed cache. Cached tokens are sorted by
 * position. One call processes positions base .. end-1, batch rows from `first` on.
 */
typedef struct {
    /* Memory of all arrays, and of those arrays that only the prompt needs. */
    kvd_pool pool, of_prompt;
    const kvd_plan *p;
    /* Prompts of the batch, whose layers were merged, or NULL. */
    const kvd_prompts *prompts;
    /*
     * KVD_LEVEL_* of the prompt's tokens if a method ranked them over all layers, otherwise NULL.
     */
    const uint8_t *ranked;
    size_t sequence;
    /* Number of tokens of the sequence (n) and of its prompt (n0). */
    size_t n, n0;
    /*
     * Method that selects tokens. NULL if there is none, or if only the attention window removes
     * tokens.
     */
    const kvd_tokens_method *tokens;
    /*
     * `most`: largest number of cached tokens. `leaving`: number of tokens that leave the attention
     * window together.
     */
    size_t most, leaving;
    int g;
    const kvd_attention_in *in;
    size_t first, base, end;
    /* [end][n_kv_heads * d_head] K and V of all heads, from position 0 on. */
    const float *all_heads[KVD_N_SIDES];
    const float *input;
    size_t d;
    /* Number of dimensions of K and of V that are stored at high precision (KVD_LEVEL_HIGH). */
    size_t width[KVD_N_SIDES];
    size_t low[KVD_N_SIDES];
    size_t group;
    /* Projection matrices of the head. NULL if K and V keep all dimensions. */
    const kvd_dims_head *dims;
    const float *cosine, *sine;
    kvd_scores scoring;
    /*
     * True if keys, or their latent vectors, are stored before RoPE. `k_read` then holds the keys
     * after RoPE.
     */
    bool before_rope;
    /* Number of KV heads that share a latent vector. */
    size_t heads;
    /* Number of dimensions of a key that attention multiplies with the query. */
    size_t read;

    size_t room, step_room;
    /* [room][width] K and V of the new tokens, projected, from position `base` on. */
    float *cut[KVD_N_SIDES];
    /*
     * Projected queries [group][step_room][read] and outputs [group][step_room][width of V], from
     * position kvd_head_step_base(h) on.
     */
    float *q_cut, *o_cut;

    size_t m;
    /* [most] Position of each cached token in the sequence. */
    uint32_t *position;
    uint8_t *level; /* [most] KVD_LEVEL_* of each cached token */
    /* [most][width] K and V of the cached tokens as attention reads them, after decoding. */
    float *x[KVD_N_SIDES];
    /* [most][read] Keys of the cached tokens after RoPE; used only if `before_rope`. */
    float *k_read;
    /* [most] Sum of the attention probabilities that each cached token has received. */
    double *mass;
    double *seen;
    /*
     * [most] Bits stored for K and V of each cached token: `payload` for the quantised numbers,
     * `side` for scales and indices.
     */
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES];
    /*
     * Number of the oldest cached tokens whose K is quantised, and of those whose V is quantised.
     */
    size_t coded[KVD_N_SIDES];
    /* Number of first positions whose K and V are stored exactly (kvd_plan_exact). */
    size_t exact;
    uint32_t *stream[KVD_N_SIDES];
    /*
     * [d] Mask of the n_keep key channels that are not pruned. It applies to the first `pruned`
     * cached tokens.
     */
    uint8_t *keep;
    size_t n_keep, pruned;
    /*
     * [d][n_basis] Orthonormal bases computed from the prompt's K and V, then scratch memory. NULL
     * if there are none.
     */
    float *basis[KVD_N_SIDES];
    size_t n_basis[KVD_N_SIDES];
    /*
     * Number of basis columns that are stored for a token at low precision (KVD_LEVEL_LOW); at most
     * n_basis.
     */
    size_t n_basis_low[KVD_N_SIDES];
    /*
     * [d] Factors by which key channels are scaled before quantisation, if field `balanced` is
     * true.
     */
    float *balance;
    bool balanced;
    /*
     * Bits of all cached tokens: of codes (held_payload), and of scales, tables and indices
     * (held_side).
     */
    double held_payload, held_side;
    void *state;

    float *score, *prob;
    /* [KVD_ATTEND_ROWS][n0] Attention scores of one block of the prompt's queries. */
    float *block;
    /*
     * [most] New precision level of each cached token. During attention, 1 means that the token is
     * read.
     */
    uint8_t *decision;
    size_t *kept;
    /* [5 + group][n0] Memory of the structure `statistics` in stepwise.c. */
    double *statistics;
    kvd_stepwise_account *account;
    /* Clock reading in seconds at which the last measured phase ended. */
    double last;
} kvd_head;

/* Returns the projections of KV head g in `dims`, or NULL if `dims` is NULL. */
const kvd_dims_head *kvd_head_dims(const kvd_dims *dims, int layer, int g);
/*
 * Sets sizes, matrices and scale of the head from the input of attention. h->p, h->g and h->prompts
 * must be set.
 */
void kvd_head_describe(kvd_head *h, const kvd_attention_in *in);
/*
 * Allocates the arrays of *h for its sizes n, n0, room and step_room. kvd_head_release must follow,
 * also after a failure.
 */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/* Returns the bits stored for all cached tokens of the head in addition to K and V. */
double kvd_head_entry_bits(const kvd_head *h);

/* Returns the position of the first new token after the prompt. */
size_t kvd_head_step_base(const kvd_head *h);

/* Returns the query of the KV head's j-th query head at position t. */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
/* Returns the head's vector at position t in `k`, an array of keys or values of all heads. */
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/* Returns the first position that the token at position t sees in its attention window. */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/*
 * Computes y = x a, with x [n][d] and the projection a [d][m]. If `a` is NULL, copies the first m
 * columns of x.
 */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y);
void kvd_head_project_rows(kvd_head *h);

/*
 * Processes the new tokens of n KV heads: a whole prompt if base is 0, later tokens one at a time.
 * n is the number of all heads if kvd_plan_heads_together(plan), otherwise 1. `out` has the layout
 * of kvd_attention.
 */
int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err);

/*
 * Appends K and V of the token at position t to the cache, not quantised, at high precision
 * (KVD_LEVEL_HIGH).
 */
void kvd_head_append(kvd_head *h, size_t t);
/*
 * Removes cached tokens that are outside of the attention window of position t, in blocks of
 * h->leaving tokens.
 */
void kvd_head_leave(kvd_head *h, size_t t);
/*
 * Quantises those cached tokens that form complete blocks outside the method's window of exact
 * tokens. A prompt's tokens form one block.
 */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/*
 * Lowers the precision of cached tokens or drops them, as h->decision [m] says. If `merges`, the
 * method may merge them into others first.
 */
int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err);
/*
 * Prunes key channels of all cached tokens except the newest. Counts d bits for the mask of
 * channels.
 */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/* Computes a projection basis of the prompt's K and one of its V, and projects the prompt. */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/* Replaces the keys of the prompt by approximations, once, before the first later token. */
int kvd_head_rebuild(kvd_head *h, kvd_err *err);
/*
 * Computes h->balance, the factors of key channels, from the largest magnitudes of the prompt's K
 * and Q in each channel.
 */
void kvd_head_balance(kvd_head *h);

#endif
