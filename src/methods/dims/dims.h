/*
 * The dims axis: the subspace of Q-K and of V that is kept, per layer and KV head.
 *
 *
 *   q' = q A_q,  k' = k A_k      [d_head][d_qk]   scores = q' . k' / sqrt(d_head)
 *   v' = v A_v                   [d_head][d_v]    out = (P v') B_v,  B_v [d_v][d_head]
 *
 * With an orthogonal R cut to R_p: A_q = A_k = R_p, A_v = R_p, B_v = R_p^T, which is what folding R
 * into W_V and W_O computes (ZACK Eq. 2-4; FDC section 4). Biorthogonal projections ("balanced")
 * have different matrices for the two sides.
 */
#ifndef KVD_METHODS_DIMS_DIMS_H
#define KVD_METHODS_DIMS_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/rates.h"
#include "methods/axis.h"

/*
 * Projections of one KV head. If one matrix serves Q and K, a_k equals a_q, so that it is stored
 * and counted once. For a side whose matrices are NULL nothing is projected, and the width is
 * d_head.
 */
typedef struct {
    int d_qk, d_v;
    /*
     * Projections of Q and K, [d_head][d_qk] row-major. With `rebuild` a_k is [heads d_head][d_qk]
     * and a_q is NULL.
     */
    float *a_q, *a_k;
    /*
     * Matrix [d_qk][d_head] that rebuilds a key from its stored latent k', with `rebuild`; else
     * NULL.
     */
    float *b_k;
    float *a_v; /* projection of V, [d_head][d_v]; with `rebuild` [heads d_head][d_v] */
    float *b_v; /* [d_v][d_head] projection of the attention output back to full width */
} kvd_dims_head;

typedef struct kvd_dims {
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    /*
     * True if keys are stored as latents, from which they are rebuilt before RoPE (Palu): k' =
     * k_pre A_k, read as RoPE(k' B_k), where k_pre holds the rows of `heads` adjacent KV heads side
     * by side. These heads share k' and v', and each counts its part of the bytes.
     */
    bool rebuild;
    int heads;
    kvd_dims_head *head; /* [n_layers][n_kv_heads] */
} kvd_dims;

/*
 * Method that makes its own projections when the plan is opened, from calibration rows or from its
 * own file instead of a spectrum file. *d is zeroed before; the caller releases it with
 * kvd_dims_release.
 */
typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Returns true if the method, with these parameters, needs squared gradients; NULL: never. */
    bool (*reads_fisher)(const kvd_parameter_values *v);
    /*
     * Returns true if random matrices (setup.drawn) take their widths from the singular values of
     * the pairs `sigma` [keys, values] of setup.spectrum. NULL: never.
     */
    bool (*reads_sigma)(const kvd_parameter_values *v);
    kvd_pair sigma[KVD_N_SIDES];
    int (*make)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d,
                kvd_err *err);
} kvd_dims_maker;
extern const kvd_dims_maker kvd_dims_palu, kvd_dims_projected;

/*
 * A method that reduces the dims of every KV head of every sequence at the end of its prompt, from
 * the prompt itself. Either it prunes channels of the keys: pruned numbers are not stored and read
 * as 0. Or it projects: every row of K and V, those of the prompt and all later ones, is stored as
 * x A and read as (x A) A^T, with one A for K and one for V. Tokens methods drop entries before
 * that; bits methods code what pruning leaves.
 */
typedef struct {
    int layer, kv_head;
    size_t group, d; /* number of query heads of the KV head; number of channels */
    size_t n_q, ldq; /* rows of the prompt; elements from one row to the next */
    const float *q;  /* [n_q][group][d] after RoPE, rows ldq apart */
    size_t n_k;      /* number of entries */
    const float *k;  /* [n_k][d] after RoPE */
} kvd_channels_in;
typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * Writes 1 for kept and 0 for pruned channels to keep [d]. Writes to *newest the number of
     * newest prompt tokens that keep all channels. Thread-safe. NULL: the method projects instead.
     */
    int (*prune)(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err);
    /*
     * For methods that project: `width` returns the number of columns of the projection A for heads
     * of d dims; `project` writes A [d][width] for the prompt's rows x [n][d] of K or V.
     * Thread-safe.
     */
    size_t (*width)(const kvd_parameter_values *v, size_t d);
    int (*project)(size_t n, size_t d, size_t width, const float *x, float *a, kvd_err *err);
} kvd_channels_method;
extern const kvd_channels_method kvd_channels_think, kvd_channels_strawman;

/* Method that cuts its projections from the bases of a spectrum file (projections.c). */
typedef struct {
    kvd_method_info info; /* must be the first member */
    kvd_pair pair[2];     /* Q-K pair and V pair that the spectrum must have */
    bool one_p;           /* true: every head gets the same width, whatever the spectrum says */
    bool biorthogonal;    /* true: left and right matrices instead of one orthogonal R */
} kvd_dims_method;

extern const kvd_dims_method kvd_dims_zack, kvd_dims_fdc, kvd_dims_uniform, kvd_dims_balanced,
    kvd_dims_fisher, kvd_dims_matryoshka;

/*
 * Cuts the method's projections from the spectrum to the widths w, and writes them to *d. Fails if
 * the spectrum lacks a pair, has a rotation per query head, is before RoPE or covers other layers,
 * or if a matrix is not finite.
 */
int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s,
                   const kvd_widths *w, kvd_err *err);
void kvd_dims_release(kvd_dims *d);

/*
 * Makes projections in which only one side (0: Q-K, 1: V) of one head is cut, to a width of 1 ..
 * d_head. Otherwise works as kvd_dims_build.
 */
int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                 int kv_head, int side, int width, kvd_err *err);

/* Returns true if some head has projection matrices for a side (0: Q-K, 1: V). */
bool kvd_dims_cuts(const kvd_dims *d, int side);

/* Removes the projections of one side of every head (0: Q-K, 1: V), so that it has full width. */
void kvd_dims_leave(kvd_dims *d, int side);
/*
 * Removes the projections of the first `first` and the last `last` layers, which then have full
 * width.
 */
void kvd_dims_leave_layers(kvd_dims *d, int first, int last);

/*
 * Fails unless *d has the number of layers, KV heads and head dimensions of the model. Also fails
 * for a model with latent attention, whose keys and values are the same row.
 */
int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err);

/* Copies the kept widths of all heads to *w, which must be allocated for the same shape. */
void kvd_dims_widths(const kvd_dims *d, kvd_widths *w);

/*
 * Sets every head to the same width, round((1 - p) d_head), at least 1. Returns -1 if p is not in
 * [0, 1).
 */
int kvd_widths_uniform(kvd_widths *w, double p);

/* GPU code of methods palu and strawman; NULL if the program is linked without it. */
extern const struct kvd_gpu_kind kvd_gpu_palu KVD_IF_LINKED, kvd_gpu_strawman KVD_IF_LINKED;

#endif
