/* Methods that reduce dimensions: each KV head stores K and V multiplied by projections.
 *
 * Scores are (q A_q) . (k A_k) / sqrt(d_head), with A [d_head][d_qk]. The output is (P v A_v) B_v,
 * with attention probabilities P, A_v [d_head][d_v] and B_v [d_v][d_head]. */
#ifndef KVD_METHODS_DIMS_DIMS_H
#define KVD_METHODS_DIMS_DIMS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/rates.h"
#include "methods/axis.h"

/* Projections of one KV head. NULL is the identity matrix. a_q and a_k may be the same
 * array. */
typedef struct {
    int d_qk, d_v;
    /* [d_head][d_qk] Projections of Q (a_q) and of K (a_k). If kvd_dims.rebuild is set, KV heads
     * share a_k, which is [heads * d_head][d_qk]. */
    float *a_q, *a_k;
    /* [d_qk][d_head] Matrix that turns latent vectors back into keys if kvd_dims.rebuild is set,
     * otherwise NULL. */
    float *b_k;
    /* [d_head][d_v] Projection of V. If kvd_dims.rebuild is set, KV heads share it, and it is
     * [heads * d_head][d_v]. */
    float *a_v;
    /* [d_v][d_head] Matrix that projects the attention output back to d_head dimensions. */
    float *b_v;
} kvd_dims_head;

typedef struct kvd_dims {
    char method[32];
    kvd_pair pair[2];
    int n_layers, n_kv_heads, d_head;
    /* True if `heads` KV heads share latent vectors, from which keys are rebuilt before RoPE. */
    bool rebuild;
    int heads;
    /* [n_layers][n_kv_heads] Projections of all KV heads. */
    kvd_dims_head *head;
} kvd_dims;

/* Method that makes its own projections, from a calibration text or a file. `make` gets a zeroed
 * *d, which the caller releases with kvd_dims_release. */
typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Returns true if the method needs squared gradients (--fisher). NULL: never. */
    bool (*reads_fisher)(const kvd_parameter_values *v);
    /* Returns true if random projections, used in timing runs, get their ranks from singular values
     * in a file. NULL: never. */
    bool (*reads_sigma)(const kvd_parameter_values *v);
    kvd_pair sigma[KVD_N_SIDES];
    /* Fails if the method cannot run on the model or with the given files. Does no calibration.
     * NULL: never fails. */
    int (*fits)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_err *err);
    int (*make)(const kvd_parameter_values *v, const kvd_method_setup *s, kvd_dims *d,
                kvd_err *err);
} kvd_dims_maker;
extern const kvd_dims_maker kvd_dims_palu, kvd_dims_projected;

/* Queries of the prompt and cached keys of one KV head, for kvd_channels_method.prune. */
typedef struct {
    int layer, kv_head;
    /* Number of query heads per KV head, and number of channels (dimensions) of a key. */
    size_t group, d;
    /* Number of prompt tokens, and number of floats between the queries of successive tokens. */
    size_t n_q, ldq;
    /* [n_q][group][d] Queries after RoPE. */
    const float *q;
    size_t n_k;
    /* [n_k][d] Keys of cached tokens after RoPE. */
    const float *k;
} kvd_channels_in;
/* K or V of a prompt in one KV head, from which kvd_channels_method.project computes a
 * projection. */
typedef struct {
    /* n: number of cached prompt tokens. d: number of dimensions of a head. x [n][d]: keys or
     * values of the tokens. */
    size_t n, d;
    const float *x;
    /* Numbers of query tokens and of query heads, and number of floats between the queries of
     * successive tokens. */
    size_t n_q, group, ldq;
    /* [n_q][group][d] Queries of the prompt, if `project` needs them for K. Otherwise NULL. */
    const float *q;
    /* [d][d] Gram matrix of a head's output weights W_O, for projecting V. NULL if the method does
     * not use it. */
    const double *moment;
} kvd_channels_rows;
typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Chooses the key channels that are stored: sets keep[i] to 1 to store channel i, or to 0 to
     * prune it. Sets *newest to the number of newest tokens that keep all channels. Must be
     * thread-safe. NULL if the method prunes no channels. */
    int (*prune)(const kvd_parameter_values *v, const kvd_channels_in *in, uint8_t *keep,
                 size_t *newest, kvd_err *err);
    /* Function that returns the number of columns of the projection. NULL if kvd_plan.widths
     * already has this number, or if the method prunes channels. */
    size_t (*width)(const kvd_parameter_values *v, size_t d);
    /* Computes the projection [d][width] from the prompt tokens *x, and writes it to `a`. Must be
     * thread-safe. NULL if all requests share one projection, or if the method prunes channels. */
    int (*project)(const kvd_channels_rows *x, size_t width, float *a, kvd_err *err);
    /* True if projections are computed from K stacked on Q, and from V together with W_O. False if
     * they are computed from K alone and V alone. */
    bool stacks;
    /* True if all requests use the same projection matrix. */
    bool shared;
} kvd_channels_method;
/* Methods `think` and `strawman`, and the implementations of parameters online=1 and explicit=1 of
 * other methods. */
extern const kvd_channels_method kvd_channels_think, kvd_channels_strawman, kvd_channels_online,
    kvd_channels_explicit;

/* Returns the second moments of W_O of each layer and KV head, in an array that the caller frees.
 * On failure returns NULL. */
double *kvd_channels_moments(const kvd_checkpoint *c, kvd_err *err);

typedef struct {
    kvd_method_info info; /* must be the first member */
    /* Matrix pairs from which the method's rotation matrices are computed. pair[0], for example
     * KVD_PAIR_QK, gives the rotations of Q and K. pair[1] gives the rotations of V. */
    kvd_pair pair[2];
    /* True if all heads keep the same number of dimensions. */
    bool one_p;
    /* True if projecting and restoring take two matrices, false if they take one rotation. */
    bool biorthogonal;
} kvd_dims_method;

extern const kvd_dims_method kvd_dims_zack, kvd_dims_fdc, kvd_dims_uniform, kvd_dims_balanced,
    kvd_dims_fisher, kvd_dims_matryoshka;

/* Makes projections from the leading columns of each KV head's rotation in `s`. `w` has the numbers
 * of columns. Fails if a rotation is missing, is not finite, or was computed per query head or
 * before RoPE. */
int kvd_dims_build(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s,
                   const kvd_widths *w, kvd_err *err);
void kvd_dims_release(kvd_dims *d);

/* Sets the projections of one KV head's Q and K (`side` 0) or V (`side` 1) to the first `width`
 * columns of their rotation. */
int kvd_dims_one(kvd_dims *d, const kvd_dims_method *m, const kvd_spectrum *s, int layer,
                 int kv_head, int side, int width, kvd_err *err);

/* Returns true if any head has projections for Q and K (`side` 0) or V (`side` 1). */
bool kvd_dims_cuts(const kvd_dims *d, int side);

/* Removes all projections of Q and K (`side` 0) or V (`side` 1) from *d. */
void kvd_dims_leave(kvd_dims *d, int side);
/* Removes the projections of the first `first` layers and the last `last` layers from *d. */
void kvd_dims_leave_layers(kvd_dims *d, int first, int last);

/* Fails if the projections do not fit the model, or if the model has latent attention. */
int kvd_dims_fits(const kvd_dims *d, const kvd_config *c, kvd_err *err);

/* Sets *w to the numbers of dimensions that the heads of *d keep. *w must have the shape of *d. */
void kvd_dims_widths(const kvd_dims *d, kvd_widths *w);

/* Makes every head keep round((1 - p) d_head) dimensions. Returns -1 for invalid p. */
int kvd_widths_uniform(kvd_widths *w, double p);

/* Descriptions of the GPU code of methods palu, strawman and think. Their addresses are NULL if the
 * program is linked without CUDA. */
extern const struct kvd_gpu_kind kvd_gpu_palu KVD_IF_LINKED, kvd_gpu_strawman KVD_IF_LINKED,
    kvd_gpu_think KVD_IF_LINKED;
/* GPU code of method palu for combinations such as `palu+kivi`, in which the CPU quantises the
 * latent vectors. */
extern const struct kvd_gpu_kind kvd_gpu_palu_hosted KVD_IF_LINKED;

#endif
