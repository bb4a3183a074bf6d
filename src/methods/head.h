/*
 * What stepwise.c is made of: one KV head of one layer of one sequence, its rows and its entries. Private to src/methods.
 */
#ifndef KVD_METHODS_HEAD_H
#define KVD_METHODS_HEAD_H

#include "methods/stepwise.h"

/* Entries stand in the order of their positions; the coded ones of a side are the first ones. */
typedef struct {
    const kvd_plan *p;
    const kvd_prompts *prompts; /* of a layers method         */
    const uint8_t *ranked;      /* of a tokens method that ranks in all layers */
    size_t sequence;            /* of the prompts                              */
    size_t n, n0;               /* rows of the whole sequence, of the prompt   */
    int g;
    /* Rows in hand: positions base .. end-1 are rows first, first + 1, ... of the batch. */
    const kvd_attention_in *in;
    size_t first, base, end;
    const float
        *all_heads[KVD_N_SIDES]; /* [end][n_kv_heads * d_head] from position 0 on, for codes of all heads */
    size_t d, width[KVD_N_SIDES], low[KVD_N_SIDES], group;
    const kvd_dims_head *dims;
    const float *cosine, *sine;
    float scale;
    /* Keys are stored before RoPE, whole or as latents: then what a read finds is rebuilt, turned and kept beside. */
    bool turned;
    size_t heads; /* KV heads that share a latent */
    size_t read;  /* width of keys that are read  */

    /* of rows in hand, at most `room`, and at most step_room behind the prompt */
    size_t room, step_room;
    float *cut[KVD_N_SIDES]; /* [room][width], from position base on             */
    float *q_cut, *o_cut;    /* [group][step_room][width of keys or values], from kvd_head_step_base on */

    /* entries */
    size_t m;
    uint32_t *position;
    uint8_t *level;
    float *x[KVD_N_SIDES]; /* [n][width] what is stored, decoded */
    float *k_read;         /* [n][read] of keys that are turned    */
    double *mass, *seen;
    double *payload[KVD_N_SIDES], *side[KVD_N_SIDES]; /* [n] bits */
    size_t coded[KVD_N_SIDES];
    uint8_t *keep; /* [d] channels of the keys of the first `pruned` entries that stay, n_keep of them */
    size_t n_keep, pruned;
    float *basis
        [KVD_N_SIDES]; /* [d][n_basis], then a row's n_basis numbers, of a method that projects; NULL before it has */
    size_t n_basis;
    float *balance; /* [d] factors of the channels of keys */
    bool balanced;
    double held_payload, held_side;
    void *state;

    float *score, *prob; /* [group][n] */
    float *block;        /* [KVD_ATTEND_ROWS][n] */
    uint8_t *decision;   /* [n] */
    size_t *kept;        /* [n] */
    double *statistics;  /* [(4 + group) n0] */
    kvd_stepwise_account *account;
    double last; /* clock at the end of the part before */
} kvd_head;

/* ---- head.c: sizes, memory, rows ------------------------------------------------------------------- */

/* Widths from plan and g, which stand in *h. */
void kvd_head_describe(kvd_head *h, const kvd_config *c, int layer);
/* n, n0, room and step_room stand in *h. */
int kvd_head_allocate(kvd_head *h, kvd_err *err);
/* Gives back what only the prompt has use for. */
void kvd_head_end_prompt(kvd_head *h);
void kvd_head_release(kvd_head *h);

/* First of the rows in hand that is a step. */
size_t kvd_head_step_base(const kvd_head *h);

/* Row t of the sequence: of query head j of the group; of this KV head in k, which is as the attention door's. */
const float *kvd_head_query(const kvd_head *h, size_t j, size_t t);
const float *kvd_head_key(const kvd_head *h, const float *k, size_t t);
/* First position that row t sees. */
size_t kvd_head_seen_from(const kvd_head *h, size_t t);

/* y [n][m] = x a, a [d][m], or the first m columns of x where there is no matrix; rows of x stand ldx apart. */
void kvd_head_project(size_t n, size_t d, size_t m, const float *x, size_t ldx, const float *a, float *y);
/* Fills cut and q_cut with the rows in hand. */
void kvd_head_project_rows(kvd_head *h);

/* ---- stepwise.c: rows in hand -------------------------------------------------------------------------- */

/* The prompt, when it begins there, and the steps behind it; out as kvd_attention's. */
int kvd_head_take(kvd_head *h, float *out, kvd_err *err);

/* ---- entries.c: what is stored ------------------------------------------------------------------------ */

/* Row t becomes the last entry, whole. */
void kvd_head_append(kvd_head *h, size_t t);
/* Codes what the rule of the method says must be coded by now; a prompt in one piece. */
int kvd_head_code_ready(kvd_head *h, bool prompt, kvd_err *err);
/* Lowers and drops what decision [m] says; an entry that is coded is coded again from what was read. */
int kvd_head_decide(kvd_head *h, kvd_err *err);
/* Prunes channels of the keys that stay, but for the newest ones. A mask of d bits says which. */
int kvd_head_prune(kvd_head *h, kvd_err *err);
/* Projects the entries on bases of their own, and with them what is appended from now on. */
int kvd_head_cut(kvd_head *h, kvd_err *err);
/* Factors of channels from the prompt, for bits methods that balance. */
void kvd_head_balance(kvd_head *h);

#endif
