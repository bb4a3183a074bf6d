/*
 * One KV head of one layer of one sequence under a plan: its rows, its stored entries, and what
 * each step does to them. Shared by head.c, entries.c, stepwise.c and sequence_cache.c.
 */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "methods/account.h"
#include "methods/prompts.h"

/*
 * Entries are in the order of their positions; the coded entries of a side come first. A call
 * processes the rows at positions base .. end-1, which are rows first, first + 1, ... of the batch.
 */
typedef struct {
    const kvd_plan *p;
    const kvd_prompts *prompts; /* merged prompts of a layers method; NULL: none */
    const uint8_t *ranked;      /* levels from a method that ranks in all layers; NULL: none */
    size_t sequence;            /* index of the sequence in `prompts` */
    size_t n, n0;               /* number of rows of the whole sequence and of its prompt */
    /*
     * Tokens method of the plan; NULL if it has none, or if the layer has a window shorter than the
     * sequence, whose entries leave by the window alone.
     */
    const kvd_tokens_method *tokens;
    /*
     * Most entries at any time, and number of entries that leave together: entries that are coded
     * as one block.
     */
    size_t most, leaving;
    int g;                      /* KV head */
    const kvd_attention_in *in; /* the batch of this call */
    size_t first, base, end;
    /*
     * Rows of all KV heads from position 0 on, [end][n_kv_heads * d_head], for codes of all heads.
     */
    const float *all_heads[KVD_N_SIDES];
    const float *input;        /* [end][d_model] inputs of the layer; NULL: no method needs them */
    size_t d;                  /* d_head */
    size_t width[KVD_N_SIDES]; /* stored width of entries at the high level */
    size_t low[KVD_N_SIDES];   /* stored width of entries at the low level */
    size_t group;              /* number of query heads of this KV head */
    const kvd_dims_head *dims; /* projections; NULL: whole heads */
    const float *cosine, *sine;
    kvd_scores scoring;
    /* Keys are stored before RoPE, whole or as latents; k_read holds them after RoPE. */
    bool before_rope;
    size_t heads; /* number of KV heads that share a latent */
    size_t read;  /* width of keys as they are read */

    /* Buffers for at most `room` rows, of which at most step_room are after the prompt. */
    size_t room, step_room;
    float *cut[KVD_N_SIDES]; /* [room][width] projected K and V, from position base on */
    /* [group][step_room][width] projected Q, and P V', from position kvd_head_step_base on. */
    float *q_cut, *o_cut;

    /* Entries. */
    size_t m;
    uint32_t *position;                               /* [most] */
    uint8_t *level;                                   /* [most] */
    float *x[KVD_N_SIDES];                            /* [most][width] decoded numbers */
    float *k_read;                                    /* [most][read] keys, if before_rope */
    double *mass;                                     /* [most] sum of received probabilities */
    double *seen;                                     /* [most] number of probabilities in `mass` */
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES]; /* [most] bits, as in kvd_bits_count */
    size_t coded[KVD_N_SIDES];                        /* number of coded entries */
    uint32_t stream[KVD_N_SIDES];                     /* states of kvd_bits_block */
    /* Channels that the keys of the first `pruned` entries keep, [d], n_keep of them. */
    uint8_t *keep;
    size_t n_keep, pruned;
    /* Basis of a method that projects, [d][n_basis], then scratch for n_basis numbers; or NULL. */
    float *basis[KVD_N_SIDES];
    size_t n_basis;
    float *balance; /* [d] factors of the channels of keys, if `balanced` */
    bool balanced;
    double held_payload, held_side; /* sums of payload and side, and bits per head */
    void *state;                    /* state of the tokens method */

    float *score, *prob; /* [group][most] */
    float *block;        /* [KVD_ATTEND_ROWS][n0] */
    /*
     * [most] levels that a tokens method wants; while a step attends, 1 for entries that it reads
     */
    uint8_t *decision;
    size_t *kept;       /* [most] indices of the entries that stay */
    double *statistics; /* [5 + group][n0] */
    kvd_stepwise_account *account;
    double last; /* time in seconds at which the last measured part ended */
} kvd_head;

/* ---- head.c: sizes, memory, rows ------------------------------------------------------------- */

/* Sets sizes, projections and scale from h->p, h->g and h->prompts. */
void kvd_head_describe(kvd_head *h, const kvd_attention_in *in);
/* Allocates all arrays. The caller has set n, n0, room and step_room, and described the head. */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
/* Frees the arrays that only the prompt needs. */
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/* Returns the bits of what tokens methods store in addition to K and V of the entries. */
double kvd_head_entry_bits(const kvd_head *h);

/* Returns the first position of this call that is a step. */
size_t kvd_head_step_base(const kvd_head *h);

/* Returns row t of the sequence of query head j of the group. */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
/* Returns row t of the sequence of this KV head in k, an array of kvd_attention_in. */
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/* Returns the first position that row t attends to. */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/*
 * Computes y [n][m] = x a with a [d][m]; if a is NULL, copies the first m columns of x. Rows of x
 * are ldx elements apart.
 */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a,
                      float *y);
/* Fills cut and q_cut from the rows of this call. */
void kvd_head_project_rows(kvd_head *h);

/* ---- stepwise.c: the rows of a call ---------------------------------------------------------- */

/*
 * Processes the prompt if base is 0, then every step up to `end`, of n KV heads of one layer of one
 * sequence: all of them if kvd_plan_heads_together, else one. Writes the attention output as
 * kvd_attention does. The time of all heads is added to the account of the first.
 */
int kvd_heads_take(kvd_head *h, size_t n, float *out, kvd_err *err);

/* ---- entries.c: stored entries --------------------------------------------------------------- */

/* Appends row t as the last entry, at the high level and not coded. */
void kvd_head_append(kvd_head *h, size_t t);
/*
 * Removes the entries that row t and later rows no longer see in a layer with a window, in whole
 * blocks of `leaving`.
 */
void kvd_head_leave(kvd_head *h, size_t t);
/* Codes the entries that the window of the bits method no longer covers; a prompt in one block. */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/*
 * Lowers and drops entries as decision [m] says. Coded entries are coded again when lowered. If
 * `merges` is true, the tokens method may merge dropped entries into kept ones first.
 */
int kvd_head_decide(kvd_head *h, bool merges, kvd_err *err);
/* Prunes channels of all keys but the newest ones. The mask of kept channels takes d bits. */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/* Makes bases from the entries, and projects these entries and all later ones. */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/* Replaces the keys of the prompt by those that a tokens method rebuilds, before any step. */
int kvd_head_rebuild(kvd_head *h, kvd_err *err);
/* Computes the factors of channels from the prompt, for bits methods that balance. */
void kvd_head_balance(kvd_head *h);

#endif
