/* Estimates how much predictions change (KL divergence in nats) if dimensions of a head are
 * removed.
 *
 * A projection changes a query or head output x (a row vector) by d = x M, where M = A B^T - I.
 * This change costs d F d^T / 2 nats, where F is the mean of g^T g over tokens, and g is the
 * gradient of the loss with respect to x. Averaged over N tokens:
 *
 * cost = tr(C M G M^T) / (2 N^2),   C = sum of x^T x,   G = sum of g^T g
 *
 * C and G are sums over the n query heads of a KV head. Removing singular direction i costs
 * sigma_i^2 / 2 nats, where
 *
 * sigma = S / (N sqrt(n)),   C^{1/2} G^{1/2} = U S V^T */
#ifndef KVD_ANALYSIS_SENSITIVITY_H
#define KVD_ANALYSIS_SENSITIVITY_H

#include "common/half.h"
#include "formats/spectrum.h"
#include "model/pass/backward.h"
#include "model/text/corpus.h"

typedef struct kvd_sensitivity kvd_sensitivity;

/* number of kinds of vectors: queries, gradients of the loss with respect to queries, head outputs,
 * gradients with respect to head outputs */
enum { KVD_SENSITIVITY_KINDS = 4 };

/* Creates an object for sums of x x^T per layer, KV head and kind of vector x, such as queries. All
 * sums are 0. On failure, returns NULL and fills *err. The caller frees the object with
 * kvd_sensitivity_free. */
kvd_sensitivity *kvd_sensitivity_new(const kvd_config *c, kvd_err *err);
void kvd_sensitivity_free(kvd_sensitivity *s);

/* Adds one layer of a batch to the sums of x x^T. The vectors x are queries q, head outputs o, and
 * gradients of the loss with respect to q and o. */
int kvd_sensitivity_add(kvd_sensitivity *s, const kvd_gradients *g, kvd_err *err);

/* Returns the sums of x x^T, [n_layers][KVD_SENSITIVITY_KINDS][n_kv_heads][d_head][d_head]. Kinds
 * of x: queries q, gradients dL/dq of the loss L, head outputs o, gradients dL/do. */
double *kvd_sensitivity_sums(kvd_sensitivity *s);

/* Computes projections that reduce the dimensions of each head's Q and K, and of its V and W_O.
 *
 * - s: sums of x x^T over n_tokens tokens, where x is a query, a head output or a gradient
 * - out: the caller must have set its model, n_layers and pairing */
int kvd_sensitivity_bases(const kvd_sensitivity *s, size_t n_tokens, kvd_spectrum *out,
                          kvd_err *err);

/* Returns the fewest bits per number of K and V at which quantisation loses at most `loss` nats per
 * token. This is reverse water-filling of the n singular values sigma_i (Cover and Thomas, section
 * 10.3.3), where theta is as large as `loss` allows:
 *
 * loss = sum_i min(theta, sigma_i^2 / 2)
 *
 * bits = sum_i max(0, log2(sigma_i^2 / (2 theta)) / 2) / n */
double kvd_sensitivity_bits(const kvd_spectrum *s, double loss);

/* Arguments for an engine that runs the model forward and backward, and adds x x^T to `sums`. The
 * vectors x are queries q, head outputs o, and gradients of the loss with respect to q and o. */

typedef struct {
    const kvd_checkpoint *checkpoint; /* owned by the caller; the CPU engine uses it until `free` */
    kvd_sensitivity *sums; /* owned by the caller; all sums must be 0 when the engine is created */
    kvd_dtype compute;     /* number type of the model: KVD_F32 or, on a GPU, also KVD_BF16 */
    uint64_t seed;         /* seed of the tokens drawn from the predictions */
    size_t max_tokens, max_len; /* largest number of tokens of a batch, and of a sequence */
    /* Called before every layer. A failure stops the run. */
    int (*give_up)(kvd_err *err);
} kvd_sensitivity_spec;

typedef struct kvd_sensitivity_engine kvd_sensitivity_engine;
struct kvd_sensitivity_engine {
    /* sum of -log p(y) in nats over tokens y drawn from the model */
    double loss;
    size_t n_predicted;
    int (*run)(kvd_sensitivity_engine *e, const kvd_batch *b, kvd_err *err);
    /* Waits until the sums of x x^T include every batch. */
    int (*flush)(kvd_sensitivity_engine *e, kvd_err *err);
    /* Returns a description of the engine, which is valid until the engine is freed. */
    const char *(*describe)(const kvd_sensitivity_engine *e);
    void (*free)(kvd_sensitivity_engine *e);
};

/* Return an engine that computes on the CPU, or on GPU 0. On failure return NULL. */
kvd_sensitivity_engine *kvd_sensitivity_engine_cpu(const kvd_sensitivity_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_sensitivity_engine *kvd_sensitivity_engine_cuda(const kvd_sensitivity_spec *s, kvd_err *err);
#endif

#endif
