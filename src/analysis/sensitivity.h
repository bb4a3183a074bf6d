/*
 * Estimates the loss of predictions if dimensions of a head are removed.
 *
 * A projection removes M = I - A B^T from q' = q A B^T (scores q' k^T) or from the output o' = o A
 * B^T. The row d = q M or o M moves the logits by J d, so the KL divergence is (1/2) d F d^T with F
 * = E[g^T g], where g is the gradient of -log p(y) by q or o and y is drawn from the model. Rows
 * and gradients are assumed independent, as in K-FAC (Martens and Grosse 2015). With N rows,
 *
 *   loss per token = (1 / 2 N^2) tr(C M G M^T),   C = sum q^T q or o^T o,   G = sum g^T g
 *
 * With C^{1/2} G^{1/2} = U S V^T the best rank m leaves (1 / 2 N^2) sum_{j >= m} S_j^2
 * (kvd_balanced).
 *
 * C and G are sums over the query heads of a group, but only a head's own gradients count, so sigma
 * = S / (N sqrt(group)). Half the sum of sigma^2 of all removed directions is the loss in nats per
 * token.
 */
#ifndef KVD_ANALYSIS_SENSITIVITY_H
#define KVD_ANALYSIS_SENSITIVITY_H

#include "common/half.h"
#include "formats/spectrum.h"
#include "model/pass/backward.h"
#include "model/text/corpus.h"

typedef struct kvd_sensitivity kvd_sensitivity;

/*
 * Kinds of summed vectors: a query, the query's gradient, a head's output, the output's gradient.
 */
enum { KVD_SENSITIVITY_KINDS = 4 };

/* Returns an object whose sums of outer products are zero. The caller frees it. */
kvd_sensitivity *kvd_sensitivity_new(const kvd_config *c, kvd_err *err);
void kvd_sensitivity_free(kvd_sensitivity *s);

/*
 * Adds the outer products of one layer and batch to the sums. Serves as the function `take` of a
 * kvd_gradient_sink.
 */
int kvd_sensitivity_add(kvd_sensitivity *s, const kvd_gradients *g, kvd_err *err);

/*
 * Returns the sums of outer products in *s:
 * [n_layers][KVD_SENSITIVITY_KINDS][n_kv_heads][d_head][d_head].
 */
double *kvd_sensitivity_sums(kvd_sensitivity *s);

/*
 * Computes the projections fqk (Q and K) and fvw (V and W_O) from the sums. The caller sets model,
 * n_layers and pairing of *out.
 */
int kvd_sensitivity_bases(const kvd_sensitivity *s, size_t n_tokens, kvd_spectrum *out,
                          kvd_err *err);

/*
 * Returns the smallest number of bits per element of K and V with a predicted loss of at most
 * `loss` nats per token, by reverse water-filling (Shannon 1959; Cover and Thomas, section 10.3.3)
 * over variances sigma_i^2 / 2:
 *
 *   loss = sum_i min(theta, sigma_i^2 / 2), bits = sum_i max(0, log2(sigma_i^2 / 2 theta) / 2)
 */
double kvd_sensitivity_bits(const kvd_spectrum *s, double loss);

/* Engine that runs the backward pass on the CPU or on a GPU, and adds gradients to the sums. */

typedef struct {
    const kvd_checkpoint *checkpoint; /* owned by the caller; the CPU engine uses it until `free` */
    kvd_sensitivity *sums; /* owned by the caller; all sums must be 0 when the engine is created */
    kvd_dtype compute;     /* number type of the model: KVD_F32 or, on a GPU, also KVD_BF16 */
    uint64_t seed;         /* seed of the tokens drawn from the predictions */
    size_t max_tokens, max_len; /* largest number of tokens of a batch, and of a sequence */
    /* Called before every layer, forward and backward. A failure stops the run. */
    int (*give_up)(kvd_err *err);
} kvd_sensitivity_spec;

typedef struct kvd_sensitivity_engine kvd_sensitivity_engine;
struct kvd_sensitivity_engine {
    /* sum of -log p(y) in nats over all tokens y drawn from the model */
    double loss;
    size_t n_predicted;
    int (*run)(kvd_sensitivity_engine *e, const kvd_batch *b, kvd_err *err);
    /* Waits until the sums include every batch that was passed to `run`. */
    int (*flush)(kvd_sensitivity_engine *e, kvd_err *err);
    /* Returns a description of the engine, which is valid until `free`. */
    const char *(*describe)(const kvd_sensitivity_engine *e);
    void (*free)(kvd_sensitivity_engine *e);
};

/* Return an engine on the CPU, or on GPU 0. */
kvd_sensitivity_engine *kvd_sensitivity_engine_cpu(const kvd_sensitivity_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_sensitivity_engine *kvd_sensitivity_engine_cuda(const kvd_sensitivity_spec *s, kvd_err *err);
#endif

#endif
