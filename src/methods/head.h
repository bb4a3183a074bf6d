/* State of one KV head while a sequence runs through a compressed cache. */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "common/memory.h"
#include "methods/account.h"
#include "methods/prompts.h"

/* One KV head of one layer and sequence, with its cached tokens in order of position. */
typedef struct {
    /* Memory of the arrays in this structure. of_prompt has the arrays that are needed only during
     * the prompt, pool has the others. */
    kvd_pool pool, of_prompt;
    const kvd_plan *p;
    /* K and V of the batch's prompts if a method merges them across layers, otherwise NULL. */
    const kvd_prompts *prompts;
    /* Precision level (KVD_LEVEL_*) of each prompt token, or NULL if no method ranks tokens across
     * layers. */
    const uint8_t *ranked;
    size_t sequence;
    /* Number of tokens of the sequence (n) and of its prompt (n0). */
    size_t n, n0;
    /* Method that selects tokens, or NULL. */
    const kvd_tokens_method *tokens;
    /* most: largest number of cached tokens. leaving: number of tokens that a sliding window drops
     * at a time. */
    size_t most, leaving;
    int g;
    const kvd_attention_in *in;
    size_t first, base, end;
    /* [end][n_kv_heads * d_head] K and V of all heads, from position 0 on. */
    const float *all_heads[KVD_N_SIDES];
    const float *input;
    size_t d;
    /* Dimensions of K and of V that are stored at high precision. */
    size_t width[KVD_N_SIDES];
    size_t low[KVD_N_SIDES];
    size_t group;
    /* Projection matrices of the head. NULL if K and V keep all dimensions. */
    const kvd_dims_head *dims;
    const float *cosine, *sine;
    kvd_scores scoring;
    /* True if keys, or their latent vectors, are stored before RoPE. */
    bool before_rope;
    /* Number of KV heads that share a latent vector. */
    size_t heads;
    /* Number of dimensions of a key that attention multiplies with the query. */
    size_t read;

    size_t room, step_room;
    /* [room][width] Projected K and V of the new tokens, from position `base` on. */
    float *cut[KVD_N_SIDES];
    /* [group][step_room] Projected queries and projected attention outputs of the new tokens after
     * the prompt. */
    float *q_cut, *o_cut;

    size_t m;
    /* [most] Position of each cached token in the sequence. */
    uint32_t *position;
    uint8_t *level; /* [most] KVD_LEVEL_* of each cached token */
    /* [most][width] K and V of the cached tokens as attention reads them, after decoding. */
    float *x[KVD_N_SIDES];
    /* [most][read] Cached keys after RoPE. Used only if keys are stored before RoPE
     * (before_rope). */
    float *k_read;
    /* [most] Sum of the attention probabilities that each cached token received. */
    double *mass;
    double *seen;
    /* [most] Bits of each cached token: `payload` for the elements of K or V, `side` for scales. */
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES];
    /* Number of oldest cached tokens that are quantised: one number for K, one for V. */
    size_t coded[KVD_N_SIDES];
    /* Number of positions at the start of the sequence whose K and V are never quantised. */
    size_t exact;
    uint32_t *stream[KVD_N_SIDES];
    /* [d] Mask of the n_keep key channels that the first `pruned` cached tokens store. Later tokens
     * store all channels. */
    uint8_t *keep;
    size_t n_keep, pruned;
    /* [d][n_basis] Orthonormal bases computed from the prompt's K and V, or NULL. */
    float *basis[KVD_N_SIDES];
    size_t n_basis[KVD_N_SIDES];
    /* [K, V] Number of projected dimensions that a token at low precision stores. */
    size_t n_basis_low[KVD_N_SIDES];
    /* [d] Factors that scale key channels before quantisation, if `balanced` is true. */
    float *balance;
    bool balanced;
    /* Bits that the cached tokens take. held_payload: for elements of K and V. held_side: for
     * scales, tables and indices. */
    double held_payload, held_side;
    void *state;

    float *score, *prob;
    /* [KVD_ATTEND_ROWS][n0] Attention scores of a block of queries with all n0 prompt tokens. */
    float *block;
    /* [most] For each cached token: the precision level KVD_LEVEL_* that a method has just chosen.
     * While a decode step computes attention, the array instead has 1 for each token that the step
     * reads, and 0 for the others. */
    uint8_t *decision;
    size_t *kept;
    /* [5 + group][n0] Statistics of each of the n0 prompt tokens, such as the attention probability
     * that it received. */
    double *statistics;
    kvd_stepwise_account *account;
    /* Clock time (kvd_clock_s) in seconds at which the latest timed part (kvd_stepwise_part)
     * ended. */
    double last;
} kvd_head;

/* Returns the projections of KV head g in `dims`, or NULL if `dims` is NULL. */
const kvd_dims_head *kvd_head_dims(const kvd_dims *dims, int layer, int g);
/* Sets the sliding window, projection matrices and vector lengths of KV head h->g. h->p, h->n and
 * h->prompts must be set before. */
void kvd_head_describe(kvd_head *h, const kvd_attention_in *in);
/* Allocates the arrays of *h. kvd_head_release must follow, even after a failure. */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/* Returns the bits stored for all cached tokens in addition to K and V. */
double kvd_head_entry_bits(const kvd_head *h);

/* Returns the position of the first new token that is not part of the prompt. */
size_t kvd_head_step_base(const kvd_head *h);

/* Returns the query of the j-th query head at position t. */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
/* Returns this KV head's vector at position t. `k` has the keys, or the values, of all KV heads. */
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/* Returns the first position in the attention window of position t. */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/* Computes y = x a, with x [n][d] and a [d][m]. If `a` is NULL, copies the first m columns of x. */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y);
void kvd_head_project_rows(kvd_head *h);

/* Processes the new tokens of n KV heads: a prompt if base is 0, else tokens one by one. If
 * kvd_plan_heads_together(plan), n is the number of all heads, otherwise 1. */
int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err);

/* Compresses n KV heads of one sequence, from head g on, token by token, and writes their attention
 * output. Must run between kvd_blas_serial and kvd_blas_restore. `cosine` and `sine` [n][d_head /
 * 2]: NULL unless keys are stored before RoPE. `prompts`: NULL unless kvd_plan_first_pass(p) is
 * true. */
int kvd_stepwise_heads(const kvd_plan *p, const kvd_prompts *prompts, const kvd_attention_in *in,
                       size_t sequence, int g, size_t n, const float *cosine, const float *sine,
                       float *out, kvd_stepwise_account *account, kvd_err *err);

/* Appends K and V of position t to the cache without quantising them. */
void kvd_head_append(kvd_head *h, size_t t);
/* Removes cached tokens outside the attention window of position t, a block of h->leaving tokens at
 * a time. */
void kvd_head_leave(kvd_head *h, size_t t);
/* Quantises complete blocks of cached tokens, except tokens in the window of newest tokens that
 * stay unquantised. */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/* Drops cached tokens, or lowers their precision, as h->decision says. If `merges` is true and the
 * method merges tokens, first merges the dropped tokens into kept ones. */
int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err);
/* Zeroes key channels that the compression method prunes, in all cached tokens except the newest.
 * Counts the mask of pruned channels as stored bits. */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/* Computes a projection basis for the prompt's keys and one for its values, and projects the
 * prompt's keys and values. */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/* Replaces the prompt's keys by approximations that the compression method computes. Called once,
 * before the first token after the prompt. */
int kvd_head_rebuild(kvd_head *h, kvd_err *err);
/* Computes h->balance, a factor per key channel, from the largest magnitudes of the prompt's K and
 * Q in the channel. */
void kvd_head_balance(kvd_head *h);

#endif
