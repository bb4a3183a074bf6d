/*
 * The dims axis: methods that choose the subspace of Q-K and of V that each KV head keeps. A_q,
 * A_k, A_v and B_v are projection matrices, P are the attention probabilities.
 *
 *     q' = q A_q,  k' = k A_k      [d_head][d_qk]   scores = q' . k' / sqrt(d_head)
 *     v' = v A_v                   [d_head][d_v]    out = (P v') B_v,  B_v [d_v][d_head]
 *
 * If R_p are the kept columns of an orthogonal rotation R, A_q = A_k = A_v = R_p and B_v = R_p^T
 * (ZACK Eq. 2-4; FDC section 4). Q-K and V have rotations R of their own. Biorthogonal projections
 * (method balanced) have different matrices for Q and K, and for V and the output.
 */
#ifndef KVD_METHODS_DIMS_DIMS_H
#define KVD_METHODS_DIMS_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/rates.h"
#include "methods/axis.h"

/*
 * Projection matrices of one KV head. If Q and K have the same matrix, a_k must equal a_q, so that
 * kvdim stores and counts the matrix once. If the matrices of Q-K or of V are NULL, Q-K or V keeps
 * d_head dimensions.
 */
typedef struct {
    int d_qk, d_v;
    /*
     * Projections of Q and of K, [d_head][d_qk] row-major. If kvd_dims.rebuild is true, a_k is
     * [heads * d_head][d_qk] for `heads` adjacent heads together, and a_q is NULL.
     */
    float *a_q, *a_k;
    /* Matrix [d_qk][d_head] that rebuilds a key from k' if kvd_dims.rebuild is true; else NULL. */
    float *b_k;
    /* Projection of V, [d_head][d_v]; if kvd_dims.rebuild is true, [heads * d_head][d_v]. */
    float *a_v;
    /* Matrix [d_v][d_head] that projects the attention output back. */
    float *b_v;
} kvd_dims_head;

typedef struct kvd_dims {
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    /*
     * True if keys are rebuilt before RoPE (Palu): k' = k_pre A_k is stored, and read as RoPE(k'
     * B_k). k_pre are the keys of `heads` adjacent KV heads side by side, before RoPE. These heads
     * share k' and v', and the bytes of k' and v' are divided among them.
     */
    bool rebuild;
    int heads;
    /* [n_layers][n_kv_heads] */
    kvd_dims_head *head;
} kvd_dims;

/*
 * Method that makes its own projections, from calibration text or from a file of its own, without a
 * spectrum file. `make` receives a zeroed *d; the caller must release *d with kvd_dims_release.
 */
typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Returns true if the method needs squared gradients (--fisher). NULL: it never does. */
    bool (*reads_fisher)(const kvd_parameter_values *v);
    /*
     * Returns true if `sigma` is used: random projections (setup.drawn) get their widths from
     * singular values in setup.spectrum. `sigma` has the names of these pairs (such as qk), for
     * keys and for values. A NULL function counts as false.
     */
    bool (*reads_sigma)(const kvd_parameter_values *v);
    kvd_pair sigma[KVD_N_SIDES];
    int (*make)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d,
                kvd_err *err);
} kvd_dims_maker;
extern const kvd_dims_maker kvd_dims_palu, kvd_dims_projected;

/*
 * Arguments of kvd_channels_method.prune: queries of the prompt and cached keys of one KV head,
 * after tokens were dropped.
 */
typedef struct {
    int layer, kv_head;
    /* Number of query heads of the KV head, and number of channels (dimensions) of a key. */
    size_t group, d;
    /*
     * Number of prompt tokens, and number of floats from one token's queries to the next token's.
     */
    size_t n_q, ldq;
    /* Queries, after RoPE, of the query heads of this KV head, [n_q][group][d]. */
    const float *q;
    size_t n_k;
    /* Keys of the n_k cached tokens after RoPE, [n_k][d]. */
    const float *k;
} kvd_channels_in;
/* Rows of one KV head from which kvd_channels_method.project computes a rotation. */
typedef struct {
    /* Keys or values of the n cached prompt tokens, [n][d]. */
    size_t n, d;
    const float *x;
    /*
     * Additional rows for the decomposition of the rows x, if the method's member `stacks` is true.
     * For keys they are queries: those of n_q prompt tokens, ldq floats apart, each with `group`
     * adjacent rows of d numbers. For values, `moment` [d][d] has the second moments of the rows of
     * W_O of the query heads. In all other cases n_q is 0 and `moment` is NULL.
     */
    size_t n_q, group, ldq;
    const float *q;
    const double *moment;
} kvd_channels_rows;
typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * Writes to keep[i] 1 if key channel i is stored, 0 if it is pruned and read as 0. A quantiser
     * codes only the stored channels. Sets *newest to the number of newest prompt tokens that keep
     * all channels. Must be thread-safe. The pointer is NULL if the method projects.
     */
    int (*prune)(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err);
    /*
     * `width` returns the number of columns of A for heads of d dimensions. If `width` is NULL,
     * kvd_plan.widths has these numbers, or the method prunes. `project` computes A [d][width] from
     * rows of the prompt. If `project` is NULL, `shared` is true, or the method prunes. A row x of
     * any token is stored as x A and read as (x A) A^T. A token at KVD_LEVEL_LOW stores fewer
     * columns. K and V have different matrices A. Both functions must be thread-safe.
     */
    size_t (*width)(const kvd_parameter_values *v, size_t d);
    int (*project)(const kvd_channels_rows *x, size_t width, float *a, kvd_err *err);
    /* True if queries are decomposed together with keys, and W_O together with values. */
    bool stacks;
    /* True if A is the projection in kvd_plan.widths, which all requests share. */
    bool shared;
} kvd_channels_method;
/*
 * think and strawman can be named as methods. kvd_channels_online and kvd_channels_explicit are
 * added to another method, such as zack, if the user gives it the parameter online=1 or explicit=1.
 */
extern const kvd_channels_method kvd_channels_think, kvd_channels_strawman, kvd_channels_online,
    kvd_channels_explicit;

/*
 * Returns the second moments of W_O of every KV head, summed over its query heads:
 * [n_layers][n_kv_heads][d_head][d_head]. The caller must free them. On failure returns NULL and
 * fills *err.
 */
double *kvd_channels_moments(const kvd_checkpoint *c, kvd_err *err);

typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Names of the rotations in the spectrum file for Q-K (such as qk) and for V (such as vw). */
    kvd_pair pair[2];
    /* True if every head keeps the same number of dimensions. */
    bool one_p;
    /*
     * True if Q-K and V have two different matrices each (A_q, A_k and A_v, B_v) instead of one
     * rotation R.
     */
    bool biorthogonal;
} kvd_dims_method;

extern const kvd_dims_method kvd_dims_zack, kvd_dims_fdc, kvd_dims_uniform, kvd_dims_balanced,
    kvd_dims_fisher, kvd_dims_matryoshka;

/*
 * Keeps, in each KV head, the leading columns of the head's rotation; *w has their number. Fails if
 * the spectrum has no rotations of Q-K or of V, if it has one rotation per query head, if its
 * rotations are for Q and K before RoPE, or if it covers other layers. Also fails if a matrix is
 * not finite.
 */
int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s,
                   const kvd_widths *w, kvd_err *err);
void kvd_dims_release(kvd_dims *d);

/*
 * Does what kvd_dims_build does for only one head and one side (0: Q-K, 1: V), of which `width`
 * dimensions (1 .. d_head) are kept. The other side and all other heads keep d_head dimensions.
 */
int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                 int kv_head, int side, int width, kvd_err *err);

/* Returns true if any head has projection matrices for Q-K (side 0) or V (side 1). */
bool kvd_dims_cuts(const kvd_dims *d, int side);

/*
 * Removes the projections of Q-K (side 0) or V (side 1) of every head, so that the head keeps all
 * dimensions of that side.
 */
void kvd_dims_leave(kvd_dims *d, int side);
/*
 * Removes the projections of the first `first` and the last `last` layers, which then keep all
 * dimensions.
 */
void kvd_dims_leave_layers(kvd_dims *d, int first, int last);

/*
 * Fails if *d does not have the shape of the model, or if the model has latent attention, in which
 * a key and its value are the same vector.
 */
int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err);

/* Writes the kept dimensions of every head to *w, which must be allocated for the same shape. */
void kvd_dims_widths(const kvd_dims *d, kvd_widths *w);

/*
 * Sets the width of every head to round((1 - p) d_head), at least 1, where p is the fraction of
 * dimensions to remove. Returns -1 if p is not in [0, 1).
 */
int kvd_widths_uniform(kvd_widths *w, double p);

/* Implementations in the CUDA engine. NULL if the program is linked without GPU code. */
extern const struct kvd_gpu_kind kvd_gpu_palu KVD_IF_LINKED, kvd_gpu_strawman KVD_IF_LINKED,
    kvd_gpu_think KVD_IF_LINKED;

#endif
