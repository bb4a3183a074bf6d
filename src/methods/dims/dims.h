/*
 * The dims axis: methods that choose the subspaces of Q-K and V that each KV head keeps. P are
 * attention probabilities.
 *
 *     q' = q A_q,  k' = k A_k   [d_head][d_qk]   scores = q' . k' / sqrt(d_head)
 *     v' = v A_v   [d_head][d_v]   out = (P v') B_v,  B_v [d_v][d_head]
 *
 * With kept columns R_p of an orthogonal rotation R, A_q = A_k = A_v = R_p and B_v = R_p^T (ZACK
 * Eq. 2-4; FDC section 4). Q-K and V have separate rotations. Biorthogonal projections (balanced)
 * have different matrices.
 */
#ifndef KVD_METHODS_DIMS_DIMS_H
#define KVD_METHODS_DIMS_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/rates.h"
#include "methods/axis.h"

/*
 * Projections of one KV head. If Q and K share a matrix, a_k must equal a_q, so that it is stored
 * and counted once. NULL: Q-K or V keeps d_head dimensions.
 */
typedef struct {
    int d_qk, d_v;
    /*
     * [d_head][d_qk] row-major. With kvd_dims.rebuild, a_q is NULL and a_k is [heads *
     * d_head][d_qk].
     */
    float *a_q, *a_k;
    /* [d_qk][d_head] Rebuilds a key from k' if kvd_dims.rebuild; else NULL. */
    float *b_k;
    /* Projection of V, [d_head][d_v]; with kvd_dims.rebuild, [heads * d_head][d_v]. */
    float *a_v;
    /* [d_v][d_head] Projects the attention output back. */
    float *b_v;
} kvd_dims_head;

typedef struct kvd_dims {
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    /*
     * True if keys are rebuilt before RoPE (Palu): k' = k_pre A_k is stored and read as RoPE(k'
     * B_k). `heads` adjacent KV heads share k' and v' and divide their bytes.
     */
    bool rebuild;
    int heads;
    /* [n_layers][n_kv_heads] */
    kvd_dims_head *head;
} kvd_dims;

/*
 * Method that makes projections from calibration text or its own file, without a spectrum file.
 * `make` receives a zeroed *d, to be released with kvd_dims_release.
 */
typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Returns true if the method needs squared gradients (--fisher). NULL: never. */
    bool (*reads_fisher)(const kvd_parameter_values *v);
    /*
     * Returns true if random projections (setup.drawn) get widths from singular values of pairs
     * `sigma` (keys, values) in setup.spectrum. NULL: never.
     */
    bool (*reads_sigma)(const kvd_parameter_values *v);
    kvd_pair sigma[KVD_N_SIDES];
    int (*make)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d,
                kvd_err *err);
} kvd_dims_maker;
extern const kvd_dims_maker kvd_dims_palu, kvd_dims_projected;

/* Arguments of kvd_channels_method.prune: prompt queries and cached keys of one KV head. */
typedef struct {
    int layer, kv_head;
    /* Query heads of the KV head; channels (dimensions) of a key. */
    size_t group, d;
    /* Prompt tokens; floats from one token's queries to the next. */
    size_t n_q, ldq;
    /* Queries of the KV head's query heads after RoPE, [n_q][group][d]. */
    const float *q;
    size_t n_k;
    /* Keys of the n_k cached tokens after RoPE, [n_k][d]. */
    const float *k;
} kvd_channels_in;
/* Rows of one KV head for kvd_channels_method.project. */
typedef struct {
    /* Keys or values of the n cached prompt tokens, [n][d]. */
    size_t n, d;
    const float *x;
    /*
     * More rows if `stacks`. Keys: queries of n_q prompt tokens, ldq floats apart, [group][d] each.
     * Values: moment [d][d], second moments of the query heads' W_O rows. Otherwise 0 and NULL.
     */
    size_t n_q, group, ldq;
    const float *q;
    const double *moment;
} kvd_channels_rows;
typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * keep[i]: 1 stores key channel i, 0 prunes it (read as 0). *newest: newest prompt tokens that
     * keep all channels. Thread-safe. NULL if the method projects.
     */
    int (*prune)(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err);
    /*
     * width: columns of A for d dimensions; NULL: as kvd_plan.widths, or the method prunes.
     * project: A [d][width] from prompt rows, separately for K and V; NULL: `shared`, or the method
     * prunes.
     * A row x is stored as x A, read as (x A) A^T; tokens at KVD_LEVEL_LOW store fewer columns.
     * Both must be thread-safe.
     */
    size_t (*width)(const kvd_parameter_values *v, size_t d);
    int (*project)(const kvd_channels_rows *x, size_t width, float *a, kvd_err *err);
    /* True if queries are decomposed with keys, and W_O with values. */
    bool stacks;
    /* True if all requests share A, the projection in kvd_plan.widths. */
    bool shared;
} kvd_channels_method;
/*
 * think and strawman are named methods. Parameters online=1 and explicit=1 add kvd_channels_online
 * and kvd_channels_explicit to another method, such as zack.
 */
extern const kvd_channels_method kvd_channels_think, kvd_channels_strawman, kvd_channels_online,
    kvd_channels_explicit;

/*
 * Returns second moments of W_O, summed over query heads: [n_layers][n_kv_heads][d_head][d_head].
 * The caller must free them. On failure returns NULL.
 */
double *kvd_channels_moments(const kvd_checkpoint *c, kvd_err *err);

typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Rotations in the spectrum file for Q-K (such as qk) and V (such as vw). */
    kvd_pair pair[2];
    /* True if every head keeps the same number of dimensions. */
    bool one_p;
    /* True if Q-K and V have two matrices each instead of one rotation R. */
    bool biorthogonal;
} kvd_dims_method;

extern const kvd_dims_method kvd_dims_zack, kvd_dims_fdc, kvd_dims_uniform, kvd_dims_balanced,
    kvd_dims_fisher, kvd_dims_matryoshka;

/*
 * Keeps the leading *w columns of each KV head's rotation. Fails if the spectrum lacks rotations of
 * Q-K or V, has them per query head or before RoPE, covers other layers, or a matrix is not finite.
 */
int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s,
                   const kvd_widths *w, kvd_err *err);
void kvd_dims_release(kvd_dims *d);

/*
 * As kvd_dims_build for one head and side (0: Q-K, 1: V), keeping `width` of 1 .. d_head
 * dimensions; all others keep d_head.
 */
int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                 int kv_head, int side, int width, kvd_err *err);

/* Returns true if any head has projections for Q-K (side 0) or V (side 1). */
bool kvd_dims_cuts(const kvd_dims *d, int side);

/* Removes all projections of Q-K (side 0) or V (side 1). */
void kvd_dims_leave(kvd_dims *d, int side);
/* Removes the projections of the first `first` and last `last` layers. */
void kvd_dims_leave_layers(kvd_dims *d, int first, int last);

/*
 * Fails if *d has another shape than the model, or the model has latent attention (key and value
 * are one vector).
 */
int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err);

/* Writes the kept dimensions of every head to *w, allocated for the same shape. */
void kvd_dims_widths(const kvd_dims *d, kvd_widths *w);

/*
 * Sets all widths to round((1 - p) d_head), at least 1; p: fraction removed. Returns -1 if p is not
 * in [0, 1).
 */
int kvd_widths_uniform(kvd_widths *w, double p);

/* CUDA implementations; NULL if the program is linked without GPU code. */
extern const struct kvd_gpu_kind kvd_gpu_palu KVD_IF_LINKED, kvd_gpu_strawman KVD_IF_LINKED,
    kvd_gpu_think KVD_IF_LINKED;

#endif
