/* State of one KV head while a sequence runs through a compressed cache. Private to src/methods. */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "common/memory.h"
#include "methods/account.h"
#include "methods/prompts.h"

/*
 * KV head of one layer of one sequence. Cached tokens are sorted by position. One call processes
 * positions base .. end-1, batch rows from `first` on.
 */
typedef struct {
    /* memory of the arrays, and of those that only the prompt needs */
    kvd_pool pool, of_prompt;
    const kvd_plan *p;
    /* prompts of the batch whose layers were merged, or NULL */
    const kvd_prompts *prompts;
    /* KVD_LEVEL_* of the prompt's tokens, if ranked over all layers; else NULL */
    const uint8_t *ranked;
    size_t sequence;
    /* tokens of the sequence (n) and of the prompt (n0) */
    size_t n, n0;
    /* Method that selects tokens. NULL: none, or the attention window alone removes tokens. */
    const kvd_tokens_method *tokens;
    /* `most`: largest number of cached tokens. `leaving`: how many leave the window together. */
    size_t most, leaving;
    int g;
    const kvd_attention_in *in;
    size_t first, base, end;
    /* [end][n_kv_heads * d_head] K and V from position 0 on, all heads */
    const float *all_heads[KVD_N_SIDES];
    const float *input;
    size_t d;
    /* Stored dimensions of K and of V at KVD_LEVEL_HIGH. */
    size_t width[KVD_N_SIDES];
    size_t low[KVD_N_SIDES];
    size_t group;
    /* Projection matrices of the head. NULL: K and V keep all dimensions. */
    const kvd_dims_head *dims;
    const float *cosine, *sine;
    kvd_scores scoring;
    /* True: keys, or their latents, are stored before RoPE; `k_read` holds rotated keys. */
    bool before_rope;
    /* number of KV heads that share a latent */
    size_t heads;
    /* dimensions of a key that attention multiplies with the query */
    size_t read;

    size_t room, step_room;
    /* [room][width] projected K and V of new tokens, from position `base` on */
    float *cut[KVD_N_SIDES];
    /*
     * Projected queries [group][step_room][read] and outputs [group][step_room][width of V], from
     * position kvd_head_step_base(h) on.
     */
    float *q_cut, *o_cut;

    size_t m;
    /* [most] position of each cached token */
    uint32_t *position;
    uint8_t *level; /* [most] KVD_LEVEL_* of each cached token */
    /* [most][width] decoded K and V of the cached tokens */
    float *x[KVD_N_SIDES];
    /* [most][read] keys after RoPE; empty unless `before_rope` */
    float *k_read;
    /* [most] sum of attention probabilities that each cached token received */
    double *mass;
    double *seen;
    /* [most] stored bits of K and V: `payload` of codes, `side` of scales and indices */
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES];
    /* number of oldest cached tokens whose K, and whose V, are quantised */
    size_t coded[KVD_N_SIDES];
    /* number of first positions stored exactly (kvd_plan_exact) */
    size_t exact;
    uint32_t *stream[KVD_N_SIDES];
    /* [d] mask of the n_keep unpruned key channels, for the first `pruned` cached tokens */
    uint8_t *keep;
    size_t n_keep, pruned;
    /* [d][n_basis] orthonormal bases of the prompt's K and V, then scratch; NULL: none */
    float *basis[KVD_N_SIDES];
    size_t n_basis[KVD_N_SIDES];
    /* basis columns that a token at KVD_LEVEL_LOW stores; at most n_basis */
    size_t n_basis_low[KVD_N_SIDES];
    /* [d] factors that scale key channels before coding, if `balanced` */
    float *balance;
    bool balanced;
    /* Bits of all cached tokens: codes (payload); scales, tables and indices (side). */
    double held_payload, held_side;
    void *state;

    float *score, *prob;
    /* [KVD_ATTEND_ROWS][n0] attention scores of one block of prompt queries */
    float *block;
    /* [most] new level of each cached token; in attention: 1 if the token is read */
    uint8_t *decision;
    size_t *kept;
    /* [5 + group][n0] memory of struct `statistics` of stepwise.c */
    double *statistics;
    kvd_stepwise_account *account;
    /* time in seconds at which the last measured phase ended */
    double last;
} kvd_head;

/* Returns the KV head's part of `dims`, or NULL if `dims` is NULL. */
const kvd_dims_head *kvd_head_dims(const kvd_dims *dims, int layer, int g);
/* Sets the sizes, matrices and scale of *h. h->p, h->g and h->prompts must be set. */
void kvd_head_describe(kvd_head *h, const kvd_attention_in *in);
/* Allocates *h by n, n0, room and step_room. kvd_head_release must follow, also on failure. */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/* Returns the bits stored for the head in addition to K and V. */
double kvd_head_entry_bits(const kvd_head *h);

/* Returns the position of the first new token after the prompt. */
size_t kvd_head_step_base(const kvd_head *h);

/* Returns the query at position t of the head's j-th query head. */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
/* Returns the head's vector at position t in `k` (all keys or values). */
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/* Returns the first position in the attention window of the token at position t. */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/* Computes y = x a, with x [n][d], a [d][m]; copies m columns if `a` is NULL. */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y);
void kvd_head_project_rows(kvd_head *h);

/*
 * Processes new tokens of n KV heads: the prompt as a whole if base is 0, later tokens one at a
 * time. n: all heads if kvd_plan_heads_together(plan), else 1. out: layout of kvd_attention.
 */
int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err);

/* Appends the token at position t uncoded, at KVD_LEVEL_HIGH. */
void kvd_head_append(kvd_head *h, size_t t);
/* Removes cached tokens outside position t's window, in blocks of h->leaving tokens. */
void kvd_head_leave(kvd_head *h, size_t t);
/* Quantises the cached tokens that the method may quantise now; a prompt's as one block. */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/* Lowers or drops tokens as h->decision [m] says. If `merges`, the method may merge them first. */
int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err);
/* Prunes key channels of all cached tokens except the newest. Counts d bits for the mask. */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/* Computes a projection basis for K and for V, and projects the prompt. */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/* Replaces the prompt's keys by rebuilt approximations, once, before the first later token. */
int kvd_head_rebuild(kvd_head *h, kvd_err *err);
/* Computes h->balance from the largest magnitudes of the prompt's K and Q in each key channel. */
void kvd_head_balance(kvd_head *h);

#endif
