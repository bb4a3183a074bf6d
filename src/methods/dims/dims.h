/*
 * Methods that reduce head dimensions: which subspace of Q-K and of V each KV head keeps. Queries,
 * keys and values are multiplied by projection matrices A; the attention output, with P the
 * attention probabilities, is multiplied by B_v:
 *
 *   q' = q A_q,  k' = k A_k      [d_head][d_qk]   scores = q' . k' / sqrt(d_head)
 *   v' = v A_v                   [d_head][d_v]    out = (P v') B_v,  B_v [d_v][d_head]
 *
 * If the leading columns R_p of an orthogonal rotation R are kept, A_q = A_k = R_p, A_v = R_p and
 * B_v = R_p^T. This is what folding R into W_V and W_O computes (ZACK Eq. 2-4; FDC section 4).
 * Biorthogonal projections (method balanced) have different matrices for Q and K, and for V and
 * the output.
 */
#ifndef KVD_METHODS_DIMS_DIMS_H
#define KVD_METHODS_DIMS_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/rates.h"
#include "methods/axis.h"

/*
 * Projection matrices of one KV head. If one matrix serves Q and K, a_k equals a_q, so that it is
 * stored and counted once. A side (Q-K or V) whose matrices are NULL is not projected and keeps
 * d_head dimensions.
 */
typedef struct {
    int d_qk, d_v;
    /*
     * Projections of Q and of K, [d_head][d_qk] row-major. If kvd_dims.rebuild is true, a_k
     * projects `heads` adjacent heads together, [heads * d_head][d_qk], and a_q is NULL.
     */
    float *a_q, *a_k;
    /*
     * Matrix [d_qk][d_head] that rebuilds a key from its stored latent k' if kvd_dims.rebuild is
     * true; else NULL.
     */
    float *b_k;
    /* Projection of V, [d_head][d_v]; if kvd_dims.rebuild is true, [heads * d_head][d_v]. */
    float *a_v;
    /* Matrix [d_v][d_head] that projects the attention output back to d_head dimensions. */
    float *b_v;
} kvd_dims_head;

typedef struct kvd_dims {
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    /*
     * True if keys are stored as latent vectors, from which they are rebuilt before RoPE (Palu): k'
     * = k_pre A_k, read as RoPE(k' B_k). k_pre holds the rows of `heads` adjacent KV heads side by
     * side. These heads share k' and v', and each counts its part of the bytes.
     */
    bool rebuild;
    int heads;
    /* Projections of every layer and KV head, [n_layers][n_kv_heads]. */
    kvd_dims_head *head;
} kvd_dims;

/*
 * Method that makes its own projections when the plan is opened, from calibration rows or from its
 * own file instead of a spectrum file. `make` receives a zeroed *d; the caller releases *d with
 * kvd_dims_release.
 */
typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * Returns true if the method, with these parameters, needs squared gradients (--fisher). NULL:
     * it never does.
     */
    bool (*reads_fisher)(const kvd_parameter_values *v);
    /*
     * Returns true if, without calibration text (setup.drawn), the method takes the widths of its
     * random matrices from singular values in setup.spectrum. `sigma` names the matrices (such as
     * qk) whose singular values are used, for keys and for values. NULL: it never does.
     */
    bool (*reads_sigma)(const kvd_parameter_values *v);
    kvd_pair sigma[KVD_N_SIDES];
    int (*make)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d,
                kvd_err *err);
} kvd_dims_maker;
extern const kvd_dims_maker kvd_dims_palu, kvd_dims_projected;

/*
 * Kind of method that shortens every KV head of every sequence at the end of its prompt, by what it
 * sees in the prompt itself. It does one of two things. If it prunes, channels of the keys are not
 * stored and read as 0. If it projects, every row of K and V, of the prompt and later, is stored as
 * x A and read as (x A) A^T, with one A for K and one for V. Tokens are dropped before that; a
 * quantiser codes what pruning leaves.
 */
typedef struct {
    int layer, kv_head;
    /* Number of query heads that read the KV head (group), and number of channels (d). */
    size_t group, d;
    /* Number of prompt tokens (n_q), and floats from one query row to the next (ldq). */
    size_t n_q, ldq;
    /* Queries after RoPE, [n_q][group][d]; rows are ldq floats apart. */
    const float *q;
    size_t n_k; /* number of cached tokens */
    /* Keys of the cached tokens after RoPE, [n_k][d]. */
    const float *k;
} kvd_channels_in;
typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * Writes 1 for kept and 0 for pruned key channels to keep [d]. Writes to *newest how many of
     * the newest prompt tokens keep all channels. Must be thread-safe. NULL: the method projects
     * instead.
     */
    int (*prune)(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err);
    /*
     * Functions of a method that projects. `width` returns the number of columns of the projection
     * A for heads of d dimensions. `project` computes A [d][width] from the prompt's rows x [n][d]
     * of K or V. Must be thread-safe. NULL: the method prunes instead.
     */
    size_t (*width)(const kvd_parameter_values *v, size_t d);
    int (*project)(size_t n, size_t d, size_t width, const float *x, float *a, kvd_err *err);
} kvd_channels_method;
extern const kvd_channels_method kvd_channels_think, kvd_channels_strawman;

/*
 * Method whose projections are the leading columns of the rotations in a spectrum file
 * (projections.c).
 */
typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * Names of the rotations of Q-K (such as qk) and of V (such as vw) that the spectrum file must
     * have.
     */
    kvd_pair pair[2];
    /* True: every head keeps the same number of dimensions, whatever its singular values are. */
    bool one_p;
    /* True: Q-K and V each have a left and a right matrix instead of one orthogonal rotation R. */
    bool biorthogonal;
} kvd_dims_method;

extern const kvd_dims_method kvd_dims_zack, kvd_dims_fdc, kvd_dims_uniform, kvd_dims_balanced,
    kvd_dims_fisher, kvd_dims_matryoshka;

/*
 * Makes the method's projections by keeping, for each head, as many leading columns of its rotation
 * as w says, and writes them to *d. Fails if the spectrum file lacks rotations of Q-K or V, has one
 * rotation per query head, is of Q and K before RoPE or covers other layers, or if a matrix is not
 * finite.
 */
int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s,
                   const kvd_widths *w, kvd_err *err);
void kvd_dims_release(kvd_dims *d);

/*
 * Makes projections that shorten only one side (0: Q-K, 1: V) of one head, to `width` dimensions (1
 * .. d_head). All other heads keep d_head. Otherwise works as kvd_dims_build.
 */
int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                 int kv_head, int side, int width, kvd_err *err);

/* Returns true if some head has projection matrices for Q-K (side 0) or for V (side 1). */
bool kvd_dims_cuts(const kvd_dims *d, int side);

/*
 * Removes the projections of Q-K (side 0) or V (side 1) of every head, so that this side keeps
 * d_head dimensions.
 */
void kvd_dims_leave(kvd_dims *d, int side);
/*
 * Removes the projections of the first `first` and the last `last` layers, whose heads then keep
 * d_head dimensions.
 */
void kvd_dims_leave_layers(kvd_dims *d, int first, int last);

/*
 * Fails unless *d has the number of layers, KV heads and head dimensions of the model. Also fails
 * for a model with latent attention, in which a key and its value are the same vector.
 */
int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err);

/*
 * Copies the number of kept dimensions of all heads to *w, which must be allocated for the same
 * shape.
 */
void kvd_dims_widths(const kvd_dims *d, kvd_widths *w);

/*
 * Sets every head to the same number of kept dimensions, round((1 - p) d_head), at least 1. Returns
 * -1 if p is not in [0, 1).
 */
int kvd_widths_uniform(kvd_widths *w, double p);

/*
 * GPU code of methods palu and strawman. The addresses are NULL if the program is linked without
 * it.
 */
extern const struct kvd_gpu_kind kvd_gpu_palu KVD_IF_LINKED, kvd_gpu_strawman KVD_IF_LINKED;

#endif
