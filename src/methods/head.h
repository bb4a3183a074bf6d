/*
 * One KV head of one layer of one sequence under a plan: its rows, its stored entries, and what
 * each step does to them. Shared by head.c, entries.c, stepwise.c and sequence_cache.c.
 */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "methods/account.h"
#include "methods/prompts.h"

/*
 * State of one KV head. Its entries are in the order of their positions, and in K and in V the
 * coded entries come first. A call processes the rows at positions base .. end-1, which are rows
 * first, first + 1, ... of the batch.
 */
typedef struct {
    const kvd_plan *p;
    const kvd_prompts *prompts; /* merged prompts of a layers method; NULL: none */
    /* levels of entries that a method ranked over all layers; NULL: none */
    const uint8_t *ranked;
    size_t sequence; /* index of the sequence in `prompts` */
    size_t n, n0;    /* number of rows of the whole sequence and of its prompt */
    /*
     * Tokens method of the plan. NULL if the plan has none, or if the layer's attention window is
     * shorter than the sequence, so that the window alone removes entries.
     */
    const kvd_tokens_method *tokens;
    /*
     * `most` is the largest number of entries at any time. `leaving` is the number of entries that
     * leave the attention window together, because they are coded as one block.
     */
    size_t most, leaving;
    int g;                      /* index of the KV head */
    const kvd_attention_in *in; /* the batch of this call */
    size_t first, base, end;
    /*
     * Rows of K and V of all KV heads from position 0 on, [end][n_kv_heads * d_head], for methods
     * that code all heads together.
     */
    const float *all_heads[KVD_N_SIDES];
    const float *input;        /* [end][d_model] inputs of the layer; NULL: no method needs them */
    size_t d;                  /* d_head */
    size_t width[KVD_N_SIDES]; /* stored width of entries at the high level */
    size_t low[KVD_N_SIDES];   /* stored width of entries at the low level */
    size_t group;              /* number of query heads of this KV head */
    const kvd_dims_head *dims; /* projections; NULL: heads are not projected */
    const float *cosine, *sine;
    kvd_scores scoring;
    /*
     * True if keys are stored before RoPE, in full or as latents. Field k_read then holds the keys
     * after RoPE.
     */
    bool before_rope;
    size_t heads; /* number of KV heads that share a latent */
    size_t read;  /* width of a key when attention reads it */

    /*
     * Number of rows that the buffers hold: at most `room` in total, of which at most step_room
     * come after the prompt.
     */
    size_t room, step_room;
    float *cut[KVD_N_SIDES]; /* [room][width] projected K and V, from position base on */
    /*
     * Projected Q (q_cut) and P V' (o_cut), both [group][step_room][width], from position
     * kvd_head_step_base on.
     */
    float *q_cut, *o_cut;

    /* Number of entries in the arrays below. */
    size_t m;
    /* [most] position of each entry in the sequence */
    uint32_t *position;
    uint8_t *level;        /* [most] KVD_LEVEL_* of each entry */
    float *x[KVD_N_SIDES]; /* [most][width] decoded K and V */
    /* [most][read] keys after RoPE, if before_rope */
    float *k_read;
    /* [most] attention probability that each entry received */
    double *mass;
    /* [most] number of probabilities added into `mass` */
    double *seen;
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES]; /* [most] bits, as in kvd_bits_count */
    size_t coded[KVD_N_SIDES];                        /* number of coded entries of K and of V */
    /* states of the entropy coder of K and of V (kvd_bits_block.state) */
    uint32_t stream[KVD_N_SIDES];
    /* [d] mask of the n_keep channels that the keys of the first `pruned` entries keep. */
    uint8_t *keep;
    size_t n_keep, pruned;
    /*
     * Projection basis for K and for V of a method that projects from the prompt, [d][n_basis],
     * followed by scratch for n_basis numbers. NULL: none.
     */
    float *basis[KVD_N_SIDES];
    size_t n_basis;
    float *balance; /* [d] scale factors of the key channels, if `balanced` */
    bool balanced;
    double held_payload, held_side; /* stored bits of all entries, including bits per head */
    void *state;                    /* state of the tokens method */

    float *score, *prob; /* [group][most] attention scores and probabilities */
    float *block;        /* [KVD_ATTEND_ROWS][n0] scores of a block of prompt rows */
    /*
     * [most] levels that a tokens method has chosen. While a step attends, 1 for the entries that
     * it reads.
     */
    uint8_t *decision;
    size_t *kept;       /* [most] indices of the entries that stay */
    double *statistics; /* [5 + group][n0] statistics of the prompt's attention */
    kvd_stepwise_account *account;
    double last; /* time in seconds when the last measured kind of work ended */
} kvd_head;

/* ---- head.c: sizes, memory and rows of a KV head --------------------------------------------- */

/* Sets the sizes, projections and attention scale of the head from h->p, h->g and h->prompts. */
void kvd_head_describe(kvd_head *h, const kvd_attention_in *in);
/*
 * Allocates all arrays of the head. The caller has set n, n0, room and step_room, and called
 * kvd_head_describe.
 */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
/* Frees the arrays that only the prompt needs. */
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/*
 * Returns the number of bits that tokens methods store in addition to K and V of the head's
 * entries.
 */
double kvd_head_entry_bits(const kvd_head *h);

/* Returns the first position of this call that is a step, that is, comes after the prompt. */
size_t kvd_head_step_base(const kvd_head *h);

/* Returns Q at position t of the sequence, for the j-th query head that shares this KV head. */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
/* Returns the row at position t of this KV head in `k`, the K or V array of kvd_attention_in. */
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/* Returns the first position that the row at position t attends to. */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/*
 * Computes y [n][m] = x a with a [d][m]; if a is NULL, copies the first m columns of x. Rows of x
 * are ldx elements apart.
 */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y);
/* Fills cut and q_cut with the projected K, V and Q of the rows of this call. */
void kvd_head_project_rows(kvd_head *h);

/* ---- stepwise.c: processing of the rows of a call -------------------------------------------- */

/*
 * Processes rows of n KV heads of one layer of one sequence: the prompt if base is 0, then every
 * step up to `end`. If kvd_plan_heads_together, n is the number of all KV heads, else 1. Writes the
 * attention output as kvd_attention does. The time of all heads is added to the account of the
 * first.
 */
int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err);

/* ---- entries.c: stored entries --------------------------------------------------------------- */

/* Appends the row at position t as the last entry, at the high level and not coded. */
void kvd_head_append(kvd_head *h, size_t t);
/*
 * In a layer with an attention window, removes the entries that rows from position t on no longer
 * see, in whole blocks of `leaving` entries.
 */
void kvd_head_leave(kvd_head *h, size_t t);
/*
 * Codes the entries that have left the uncoded window of newest tokens of the bits method. A prompt
 * is coded in one block.
 */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/*
 * Lowers and drops entries as decision [m] says. Coded entries are coded again when their level is
 * lowered. If `merges` is true, the tokens method may first merge dropped entries into kept ones.
 */
int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err);
/*
 * Prunes channels of all keys but the newest ones. Storing the mask of kept channels takes d bits.
 */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/*
 * Computes projection bases from the entries of the prompt, and projects these entries and all
 * later ones.
 */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/*
 * Before any step, replaces the keys of the prompt by approximations that the tokens method
 * rebuilds.
 */
int kvd_head_rebuild(kvd_head *h, kvd_err *err);
/*
 * Computes the scale factors of key channels from the prompt, for bits methods that balance K
 * against Q.
 */
void kvd_head_balance(kvd_head *h);

#endif
