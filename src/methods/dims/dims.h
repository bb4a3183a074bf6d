/*
 * The dims axis: per layer and KV head, the subspace of Q-K and of V that is kept.
 *
 *   q' = q A_q,  k' = k A_k      [d_head][d_qk]   scores = q' . k' / sqrt(d_head)
 *   v' = v A_v                   [d_head][d_v]    out = (P v') B_v,  B_v [d_v][d_head]
 *
 * With an orthogonal R cut to R_p: A_q = A_k = R_p, A_v = R_p, B_v = R_p^T, which is what folding
 * R into W_V and W_O computes (ZACK Eq. 2-4; FDC section 4). Biorthogonal projections
 * ("balanced") use different matrices for the two sides.
 */
#ifndef KVD_METHODS_DIMS_H
#define KVD_METHODS_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/rates.h"
#include "formats/spectrum.h"

/*
 * One KV head. a_k is a_q itself when one R serves both sides, so that it is stored and counted once.
 * A side whose matrices are NULL is left as it is (its width is then d_head).
 */
typedef struct {
    int d_qk, d_v;
    float *a_q, *a_k; /* [d_head][d_qk] row-major; with `rebuild` a_k is [heads d_head][d_qk], a_q NULL */
    float *b_k; /* with `rebuild` [d_qk][d_head]: what k' is multiplied with when it is read, else NULL */
    float *a_v; /* [d_head][d_v]; with `rebuild` [heads d_head][d_v]                                  */
    float *b_v; /* [d_v][d_head]                                                                      */
} kvd_dims_head;

typedef struct {
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    /*
     * Latents, from which keys are rebuilt before RoPE (Palu): k' = k_pre A_k, read as RoPE(k' B_k), for `heads` adjacent KV
     * heads together, whose rows stand side by side; they share k' and v', and each counts its part of the bytes.
     */
    bool rebuild;
    int heads;
    kvd_dims_head *head; /* [n_layers][n_kv_heads] */
} kvd_dims;

/*
 * A method whose projections do not come from a spectrum file: it makes them itself when the plan is opened, from calibration rows.
 * *d is zeroed, and given back with kvd_dims_release.
 */
struct kvd_values;
struct kvd_parameter;
struct kvd_rate;
struct kvd_method_setup;
typedef struct {
    const char *name, *summary;
    const struct kvd_parameter *parameter;
    const struct kvd_rate *rate; /* NULL: none */
    unsigned needs;
    bool (*reads_fisher)(
        const struct kvd_values *v); /* whether it would read squared gradients; NULL: never */
    int (*make)(const struct kvd_values *v, const struct kvd_method_setup *s, kvd_dims *d, kvd_err *err);
} kvd_dims_maker;
extern const kvd_dims_maker kvd_dims_palu;

/*
 * A method that makes the dims of a prompt fewer when it has ended, for every KV head of every sequence anew. Either it prunes channels of
 * the keys: pruned numbers are not stored and read as 0. Or it projects: every row of K and V, those of the prompt and all later ones, is
 * stored as x A and read as (x A) A^T, with one A for K and one for V. Tokens have been dropped before; bits code what pruning leaves.
 */
typedef struct {
    int layer, kv_head;
    size_t group, d; /* query heads that read the KV head; channels                                 */
    size_t n_q, ldq; /* rows of the prompt; distance between them                                   */
    const float *q;  /* [n_q][group][d] after RoPE, rows ldq apart                                  */
    size_t n_k;      /* entries that stay                                                           */
    const float *k;  /* [n_k][d] after RoPE                                                         */
} kvd_channels_in;
typedef struct {
    const char *name, *summary;
    const struct kvd_parameter *parameter;
    const struct kvd_rate *rate; /* NULL: none */
    unsigned needs;
    /* keep [d]: 1 for channels that stay. *newest: tokens at the end of the prompt that stay whole. Thread-safe. NULL: it projects. */
    int (*prune)(const struct kvd_values *v, const kvd_channels_in *in, uint8_t *keep, size_t *newest,
                 kvd_err *err);
    /* Columns of A of heads of d dims, and A [d][width] of the prompt's rows x [n][d] of one side. Thread-safe. */
    size_t (*width)(const struct kvd_values *v, size_t d);
    int (*project)(size_t n, size_t d, size_t width, const float *x, float *a, kvd_err *err);
} kvd_channels_method;
extern const kvd_channels_method kvd_channels_think, kvd_channels_strawman;

/*
 * What a dims method is: its name, the pairs it takes its projections from, and how it turns
 * per-head widths into projections. One file per method; presets.c lists them.
 */
typedef struct kvd_dims_method kvd_dims_method;
struct kvd_dims_method {
    const char *name;    /* "zack"                                                        */
    const char *summary; /* one line for --help and docs                                  */
    kvd_pair pair[2];    /* Q-K pair and V pair it reads from the spectrum                */
    int one_p;           /* 1: every head gets the same width whatever the spectrum says  */
    int biorthogonal;    /* 1: left and right matrices, 0: an orthogonal R                */
    /* Cuts the bases of one head to the widths that stand in *h. */
    int (*cut)(const kvd_dims_method *m, const kvd_spectrum *s, int layer, int kv_head, kvd_dims_head *h,
               kvd_err *err);
};

extern const kvd_dims_method kvd_dims_zack, kvd_dims_fdc, kvd_dims_uniform, kvd_dims_balanced,
    kvd_dims_fisher, kvd_dims_matryoshka;

/* Cuts the method's projections to the widths. Fails when the spectrum lacks a pair, is
 * per-query, is before RoPE, covers other layers, or when a matrix is not finite. */
int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, const kvd_widths *w,
                   kvd_err *err);
void kvd_dims_release(kvd_dims *d);

/* The same with side 0 (Q-K) or 1 (V) of one head cut to a width of 1 .. d_head, and everything else whole. */
int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer, int kv_head,
                 int side, int width, kvd_err *err);

/* Leaves side 0 (Q-K) or 1 (V) of every head whole. */
void kvd_dims_leave(kvd_dims *d, int side);

/* What d must be for a model of this shape; used before a cache or an account trusts it. */
int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err);

/* The kept widths, into w (allocated for the same shape). */
void kvd_dims_widths(const kvd_dims *d, kvd_widths *w);

/* Every head at the same width round((1 - p) d_head), at least 1. -1 when p is not in [0, 1). */
int kvd_widths_uniform(kvd_widths *w, double p);

/* The two ways to cut, for the files of the methods. Orthogonal: A_q = A_k = R_p of the Q-K pair, A_v = R_p
 * and B_v = R_p^T of the V pair. Biorthogonal: A_q, A_k and A_v, B_v^T are the leading columns of the
 * left and right matrices. */
int kvd_dims_cut_orthogonal(const kvd_dims_method *m, const kvd_spectrum *s, int layer, int kv_head,
                            kvd_dims_head *h, kvd_err *err);
int kvd_dims_cut_biorthogonal(const kvd_dims_method *m, const kvd_spectrum *s, int layer, int kv_head,
                              kvd_dims_head *h, kvd_err *err);

#endif
