/*
 * Methods that reduce dimensions: they choose the subspaces of Q-K and V that each KV head keeps.
 * P: attention probabilities.
 *
 *     q' = q A_q,  k' = k A_k   [d_head][d_qk]   scores = q' . k' / sqrt(d_head)
 *     v' = v A_v   [d_head][d_v]   out = (P v') B_v,  B_v [d_v][d_head]
 *
 * Kept columns R_p of a rotation R: A_q = A_k = A_v = R_p, B_v = R_p^T (ZACK Eq. 2-4; FDC section
 * 4), with separate R for Q-K and V. Biorthogonal projections (balanced) have different matrices.
 */
#ifndef KVD_METHODS_DIMS_DIMS_H
#define KVD_METHODS_DIMS_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/rates.h"
#include "methods/axis.h"

/*
 * Projections of one KV head. If Q and K share a matrix, a_k must equal a_q, which is then counted
 * once. NULL: all d_head dimensions are kept.
 */
typedef struct {
    int d_qk, d_v;
    /*
     * Projections of Q and K, [d_head][d_qk]. With kvd_dims.rebuild, a_q is NULL and a_k is [heads
     * * d_head][d_qk].
     */
    float *a_q, *a_k;
    /* [d_qk][d_head] Matrix that rebuilds keys if kvd_dims.rebuild is set, otherwise NULL. */
    float *b_k;
    /* Projection of V, [d_head][d_v] or, with kvd_dims.rebuild, [heads * d_head][d_v]. */
    float *a_v;
    /* [d_v][d_head] Matrix that projects the attention output back to d_head dimensions. */
    float *b_v;
} kvd_dims_head;

typedef struct kvd_dims {
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    /*
     * True if keys are rebuilt before RoPE (Palu): k' = k_pre A_k is stored and read as RoPE(k'
     * B_k). `heads` adjacent KV heads then share k'.
     */
    bool rebuild;
    int heads;
    /* [n_layers][n_kv_heads] Projections of all KV heads. */
    kvd_dims_head *head;
} kvd_dims;

/*
 * Method that makes its own projections, from a calibration text or a file. `make` gets a zeroed
 * *d, which the caller releases with kvd_dims_release.
 */
typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Returns true if the method needs squared gradients (--fisher). NULL: never. */
    bool (*reads_fisher)(const kvd_parameter_values *v);
    /*
     * Returns true if random projections (setup.drawn) have as many kept dimensions as the singular
     * values of matrices `sigma` in setup.spectrum require. NULL: never.
     */
    bool (*reads_sigma)(const kvd_parameter_values *v);
    kvd_pair sigma[KVD_N_SIDES];
    int (*make)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d,
                kvd_err *err);
} kvd_dims_maker;
extern const kvd_dims_maker kvd_dims_palu, kvd_dims_projected;

/* Input of kvd_channels_method.prune: queries of the prompt and cached keys of one KV head. */
typedef struct {
    int layer, kv_head;
    /* Number of query heads per KV head, and number of channels (dimensions) of a key. */
    size_t group, d;
    /*
     * Number of prompt tokens, and number of floats from one token's queries to the next token's.
     */
    size_t n_q, ldq;
    /* Queries after RoPE, [n_q][group][d]. */
    const float *q;
    size_t n_k;
    /* Keys of cached tokens after RoPE, [n_k][d]. */
    const float *k;
} kvd_channels_in;
/* Input of kvd_channels_method.project: rows of one KV head. */
typedef struct {
    /* Keys or values of the n cached prompt tokens, [n][d]. */
    size_t n, d;
    const float *x;
    /*
     * More rows, only if `stacks` is set. For keys: queries of n_q tokens, ldq floats apart,
     * [group][d]. For values: moment [d][d] of the rows of W_O. Otherwise 0 and NULL.
     */
    size_t n_q, group, ldq;
    const float *q;
    const double *moment;
} kvd_channels_rows;
typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * Sets keep[i] to 1 to store key channel i, 0 to prune it. *newest is the number of newest
     * tokens that keep all channels. Thread-safe. NULL if the method projects.
     */
    int (*prune)(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err);
    /*
     * Both functions are NULL if the method prunes. `width` returns the number of columns of A; if
     * NULL, kvd_plan.widths has the number. `project` (thread-safe) computes A [d][width] from
     * prompt rows of K or V; if NULL, `shared` is set. Rows are stored as x A, with fewer columns
     * at low precision (KVD_LEVEL_LOW), and read as (x A) A^T.
     */
    size_t (*width)(const kvd_parameter_values *v, size_t d);
    int (*project)(const kvd_channels_rows *x, size_t width, float *a, kvd_err *err);
    /* True if the method decomposes queries together with keys, and W_O together with values. */
    bool stacks;
    /* True if all requests share the projection A (kvd_plan.widths). */
    bool shared;
} kvd_channels_method;
/*
 * `think` and `strawman` are methods. `online` and `explicit` are added to another method, such as
 * zack, by its parameters online=1 and explicit=1.
 */
extern const kvd_channels_method kvd_channels_think, kvd_channels_strawman, kvd_channels_online,
    kvd_channels_explicit;

/*
 * Returns second moments of W_O over query heads: [n_layers][n_kv_heads][d_head][d_head]. The
 * caller must free them. NULL on failure.
 */
double *kvd_channels_moments(const kvd_checkpoint *c, kvd_err *err);

typedef struct {
    kvd_method_info info; /* must be the first member */
    /*
     * Names of the matrices whose rotation in the spectrum file is used: for Q and K (such as qk:
     * queries and keys together), and for V.
     */
    kvd_pair pair[2];
    /* True if all heads keep the same number of dimensions. */
    bool one_p;
    /*
     * True if Q-K and V each have two matrices, one to project and one to restore, instead of one
     * rotation.
     */
    bool biorthogonal;
} kvd_dims_method;

extern const kvd_dims_method kvd_dims_zack, kvd_dims_fdc, kvd_dims_uniform, kvd_dims_balanced,
    kvd_dims_fisher, kvd_dims_matryoshka;

/*
 * Keeps as many leading columns of each KV head's rotation as `w` says. Fails if rotations are
 * missing, not finite, per query head or before RoPE, or if the spectrum lacks layers.
 */
int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s,
                   const kvd_widths *w, kvd_err *err);
void kvd_dims_release(kvd_dims *d);

/*
 * Like kvd_dims_build, but one head alone loses dimensions: it keeps `width` (1 .. d_head)
 * dimensions of Q and K (`side` 0) or of V (`side` 1).
 */
int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                 int kv_head, int side, int width, kvd_err *err);

/* Returns true if any head has projections for Q and K (`side` 0) or V (`side` 1). */
bool kvd_dims_cuts(const kvd_dims *d, int side);

/* Removes all projections of Q and K (`side` 0) or V (`side` 1) from *d. */
void kvd_dims_leave(kvd_dims *d, int side);
/* Removes the projections of the first `first` layers and the last `last` layers from *d. */
void kvd_dims_leave_layers(kvd_dims *d, int first, int last);

/*
 * Fails if the projections have another shape than the model, or if the model has latent attention.
 */
int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err);

/* Writes how many dimensions each head keeps to *w, which must have the shape of *d. */
void kvd_dims_widths(const kvd_dims *d, kvd_widths *w);

/*
 * Makes every head keep round((1 - p) d_head) dimensions, at least 1, where p is the removed
 * fraction. Returns -1 unless 0 <= p < 1.
 */
int kvd_widths_uniform(kvd_widths *w, double p);

/* CUDA implementations of these methods; NULL if the program is linked without GPU code. */
extern const struct kvd_gpu_kind kvd_gpu_palu KVD_IF_LINKED, kvd_gpu_strawman KVD_IF_LINKED,
    kvd_gpu_think KVD_IF_LINKED;

#endif
