/*
 * State of one KV head while a sequence runs through its compressed cache: the incoming rows, the
 * cached tokens ("entries": one K and one V vector each), and the functions that append, code and
 * drop them. Shared by head.c, entries.c, stepwise.c and sequence_cache.c.
 */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "methods/account.h"
#include "methods/prompts.h"

/*
 * State of one KV head of one layer of one sequence. Its cached tokens ("entries") are sorted by
 * position. The first coded[0] keys and coded[1] values are quantised; the later ones are stored
 * uncoded. One call processes the tokens at positions base .. end-1 of the sequence, which are rows
 * first, first + 1, ... of the batch.
 */
typedef struct {
    const kvd_plan *p;
    /*
     * Prompts of the batch from the first pass, with layers already merged. NULL unless the plan
     * has a method that merges layers.
     */
    const kvd_prompts *prompts;
    /*
     * Precision levels (KVD_LEVEL_*) of the prompt's tokens, chosen by a method that ranks tokens
     * over all layers. NULL: the plan has no such method.
     */
    const uint8_t *ranked;
    /* Index of this sequence in `prompts`. */
    size_t sequence;
    /* Number of tokens of the whole sequence (n) and of its prompt (n0). */
    size_t n, n0;
    /*
     * Method that chooses which tokens to keep. NULL if the plan has none, or if the layer's
     * attention window is shorter than the sequence, so that the window alone removes tokens.
     */
    const kvd_tokens_method *tokens;
    /*
     * `most` is the largest number of cached tokens at any time. `leaving` is the number of tokens
     * that are removed together once they leave the attention window, because they are coded as one
     * block.
     */
    size_t most, leaving;
    int g; /* index of the KV head */
    /* Q, K and V of the batch of this call. */
    const kvd_attention_in *in;
    size_t first, base, end;
    /*
     * K and V of all KV heads from position 0 on, each [end][n_kv_heads * d_head]. Used only by
     * quantisers that code all heads together.
     */
    const float *all_heads[KVD_N_SIDES];
    /* Inputs of the layer, [end][d_model]. NULL: no method of the plan needs them. */
    const float *input;
    /* Head dimension d_head. */
    size_t d;
    /* Number of stored dimensions of K and of V, for tokens at the high precision level. */
    size_t width[KVD_N_SIDES];
    /* Number of stored dimensions of K and of V, for tokens at the low precision level. */
    size_t low[KVD_N_SIDES];
    size_t group; /* number of query heads that read this KV head */
    /* Projection matrices of this head; NULL: K and V keep all dimensions. */
    const kvd_dims_head *dims;
    const float *cosine, *sine;
    kvd_scores scoring;
    /*
     * True if keys are stored before RoPE, as they are or as latents. Array k_read then holds the
     * same keys after RoPE.
     */
    bool before_rope;
    size_t heads; /* number of KV heads that share one latent vector */
    /*
     * Number of dimensions of a key when attention reads it. The arrays q_cut and k_read have this
     * dimension.
     */
    size_t read;

    /*
     * Number of tokens of one call for which the arrays below have room: cut for `room` tokens,
     * q_cut and o_cut for the at most step_room tokens that come after the prompt.
     */
    size_t room, step_room;
    /* Projected K and V of the tokens of this call, [room][width], from position `base` on. */
    float *cut[KVD_N_SIDES];
    /*
     * Arrays of the tokens after the prompt, from position kvd_head_step_base on. q_cut: projected
     * queries, [group][step_room][read], where `read` is the number of dimensions of a key. o_cut:
     * attention outputs before the projection back, [group][step_room][width of V].
     */
    float *q_cut, *o_cut;

    /*
     * Number of cached tokens (entries), which is the used length of the arrays of length `most`
     * below.
     */
    size_t m;
    /* Position of each cached token in the sequence, [most]. */
    uint32_t *position;
    uint8_t *level; /* precision level (KVD_LEVEL_*) of each cached token, [most] */
    /* K and V of the cached tokens as a read decodes them, [most][width]. */
    float *x[KVD_N_SIDES];
    /*
     * Keys of the cached tokens after RoPE, [most][read]; `read` is the number of dimensions of a
     * key when attention reads it. Empty unless before_rope is set.
     */
    float *k_read;
    /* Sum of the attention probabilities that each cached token has received, [most]. */
    double *mass;
    /*
     * Number of attention probabilities that were added into `mass` of each cached token,
     * [most].
     */
    double *seen;
    /*
     * Stored bits of K and of V of each cached token, [most]: `payload` counts numbers and codes,
     * `side` counts scales, tables and indices.
     */
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES];
    /* Number of cached tokens, the oldest ones, whose K and whose V are quantised. */
    size_t coded[KVD_N_SIDES];
    /* State of the entropy coder of K and of V between two blocks (kvd_bits_block.state). */
    uint32_t stream[KVD_N_SIDES];
    /*
     * Mask [d] of the n_keep key channels that pruning leaves. It applies to the first `pruned`
     * cached tokens; later tokens have all channels.
     */
    uint8_t *keep;
    size_t n_keep, pruned;
    /*
     * Orthonormal basis for K and for V, computed from the prompt, [d][n_basis], followed by
     * scratch for n_basis numbers. NULL: the method does not project by a basis of the prompt.
     */
    float *basis[KVD_N_SIDES];
    size_t n_basis;
    /*
     * Factors [d] by which key channels are scaled before coding. Used only if `balanced` is
     * true.
     */
    float *balance;
    bool balanced;
    /*
     * Stored bits of this head, summed over all cached tokens. held_payload: bits of numbers and
     * codes. held_side: bits of scales, tables and indices, including those stored once per head.
     */
    double held_payload, held_side;
    /* Private state of the token-choosing method for this head. */
    void *state;

    /* Attention scores and probabilities of one step, [group][most]. */
    float *score, *prob;
    /* Attention scores of one block of prompt rows, [KVD_ATTEND_ROWS][n0]. */
    float *block;
    /*
     * New precision level of each cached token, chosen by the method, [most]. While a step attends,
     * it holds 1 for each cached token that the step reads and 0 for the others.
     */
    uint8_t *decision;
    /* Indices of the cached tokens that remain after dropping, [most]. */
    size_t *kept;
    /*
     * Statistics of the prompt's attention, [5 + group][n0]: 5 numbers per prompt token (struct
     * statistics in stepwise.c), then one per prompt token for each of the `group` query heads.
     */
    double *statistics;
    kvd_stepwise_account *account;
    /*
     * Time in seconds when the last measured part of the work (projection, attention, ...)
     * ended.
     */
    double last;
} kvd_head;

/* ---- head.c: sizes, memory and rows of a KV head --------------------------------------------- */

/*
 * Sets the sizes, projection matrices and attention scale of *h. The caller has set h->p, h->g and
 * h->prompts.
 */
void kvd_head_describe(kvd_head *h, const kvd_attention_in *in);
/*
 * Allocates all arrays of the head. The caller must have set n, n0, room and step_room, and called
 * kvd_head_describe. On failure the caller frees with kvd_head_release.
 */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
/* Frees the arrays of *h that only the prompt needs. */
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/*
 * Returns the number of bits that token-choosing methods store for this head in addition to K and
 * V, such as scores and positions.
 */
double kvd_head_entry_bits(const kvd_head *h);

/*
 * Returns the first position of this call that comes after the prompt, and so is processed as a
 * step.
 */
size_t kvd_head_step_base(const kvd_head *h);

/*
 * Returns the query at position t of the sequence, for the j-th query head that reads this KV
 * head.
 */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
/*
 * Returns the vector of this KV head at position t in `k`, which is the K or V array of
 * kvd_attention_in.
 */
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/*
 * Returns the first position that the token at position t attends to: 0, or later with an attention
 * window.
 */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/*
 * Computes y = x a, where x has n rows of d floats and a is [d][m]. If a is NULL, copies the first
 * m columns of x. Rows of x are ldx floats apart.
 */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y);
/* Fills h->cut and h->q_cut with the projected K, V and Q of the tokens of this call. */
void kvd_head_project_rows(kvd_head *h);

/* ---- stepwise.c: processing of the tokens of a call ------------------------------------------ */

/*
 * Processes tokens of n KV heads of one layer of one sequence: the prompt if base is 0, then every
 * later token one by one up to `end`. n is the number of all KV heads if kvd_plan_heads_together
 * returns true for the plan, else 1. Writes the attention output to `out` in the layout of
 * kvd_attention. The time of all n heads is added to the counters of the first, h->account.
 */
int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err);

/* ---- entries.c: cached tokens ---------------------------------------------------------------- */

/*
 * Appends the token at position t to the cache of this head, uncoded and at the high precision
 * level.
 */
void kvd_head_append(kvd_head *h, size_t t);
/*
 * In a layer with an attention window, removes the cached tokens that positions from t on no longer
 * attend to. They are removed in whole blocks of h->leaving tokens.
 */
void kvd_head_leave(kvd_head *h, size_t t);
/*
 * Quantises the cached tokens that are older than the newest tokens which the method keeps uncoded.
 * If `prompt` is true, they are coded as one block. If only the older keys have had channels
 * removed, keys are coded as two blocks.
 */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/*
 * Lowers the precision of cached tokens and drops others, as h->decision [m] says. Quantised tokens
 * are coded again when their level is lowered. If `merges` is true, the method may first merge
 * dropped tokens into kept ones.
 */
int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err);
/*
 * Removes the key channels that the method chooses from all cached tokens but the newest ones.
 * Storing the mask of kept channels takes d bits.
 */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/*
 * Computes a projection basis for K and for V from the prompt, and projects the cached tokens of
 * the prompt. Later tokens are projected when they are appended.
 */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/*
 * Replaces the keys of the prompt by approximations that the token-choosing method rebuilds. Called
 * once, before any step.
 */
int kvd_head_rebuild(kvd_head *h, kvd_err *err);
/*
 * Computes scale factors for the key channels from the prompt, for quantisers that balance K
 * against Q.
 */
void kvd_head_balance(kvd_head *h);

#endif
