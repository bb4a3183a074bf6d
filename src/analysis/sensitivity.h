/* Estimates how much predictions change (KL divergence) if dimensions of a head are removed.
 *
 * Projecting a query q or head output o by A B^T changes it by d = q M or o M, with M = I - A B^T.
 * The KL divergence is (1/2) d F d^T, where F is the mean of g^T g over tokens, and g is the
 * gradient dL/dq or dL/do of the loss L. With N tokens,
 *
 * loss per token = (1 / 2 N^2) tr(C M G M^T),   C = sum q^T q or o^T o,   G = sum g^T g
 *
 * With C^{1/2} G^{1/2} = U S V^T, half the sum of sigma^2 of removed directions is the loss in
 * nats; sigma = S / (N sqrt(query heads per KV head)). */
#ifndef KVD_ANALYSIS_SENSITIVITY_H
#define KVD_ANALYSIS_SENSITIVITY_H

#include "common/half.h"
#include "formats/spectrum.h"
#include "model/pass/backward.h"
#include "model/text/corpus.h"

typedef struct kvd_sensitivity kvd_sensitivity;

/* number of kinds of vector x whose x x^T are summed: queries q, gradients dL/dq of the loss L,
 * head outputs o, gradients dL/do */
enum { KVD_SENSITIVITY_KINDS = 4 };

/* Returns sums of x x^T per layer, KV head and kind of vector x (such as queries), all set to 0, or
 * NULL. The caller frees them with kvd_sensitivity_free. */
kvd_sensitivity *kvd_sensitivity_new(const kvd_config *c, kvd_err *err);
void kvd_sensitivity_free(kvd_sensitivity *s);

/* Adds one layer of a batch to the sums of x x^T, where the vectors x are queries, head outputs,
 * and the gradients of the loss with respect to both. */
int kvd_sensitivity_add(kvd_sensitivity *s, const kvd_gradients *g, kvd_err *err);

/* Returns the sums of x x^T, [n_layers][KVD_SENSITIVITY_KINDS][n_kv_heads][d_head][d_head]. Kinds
 * of x: queries q, gradients dL/dq of the loss L, head outputs o, gradients dL/do. */
double *kvd_sensitivity_sums(kvd_sensitivity *s);

/* Computes, from the sums of x x^T, projections for Q with K (fqk) and for V with W_O (fvw). The
 * caller sets out's model, n_layers and pairing. */
int kvd_sensitivity_bases(const kvd_sensitivity *s, size_t n_tokens, kvd_spectrum *out,
                          kvd_err *err);

/* Returns the fewest bits per element for a loss of at most `loss` nats per token, by reverse
 * water-filling (Cover and Thomas, section 10.3.3):
 *
 * loss = sum_i min(theta, sigma_i^2 / 2), bits = sum_i max(0, log2(sigma_i^2 / 2 theta) / 2) */
double kvd_sensitivity_bits(const kvd_spectrum *s, double loss);

/* Arguments for an engine that runs the model forward and backward. It adds x x^T to `sums`, where
 * the vectors x are queries, head outputs, and the gradients of the loss with respect to both. */

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
    /* Returns a description of the engine, valid until `free`. */
    const char *(*describe)(const kvd_sensitivity_engine *e);
    void (*free)(kvd_sensitivity_engine *e);
};

/* Return an engine that computes on the CPU, or on GPU 0. On failure return NULL. */
kvd_sensitivity_engine *kvd_sensitivity_engine_cpu(const kvd_sensitivity_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_sensitivity_engine *kvd_sensitivity_engine_cuda(const kvd_sensitivity_spec *s, kvd_err *err);
#endif

#endif
