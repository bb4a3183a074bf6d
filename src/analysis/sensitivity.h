/*
 * Estimates the loss of the model's predictions if dimensions of a head are removed.
 *
 * Let M = I - A B^T be the part that a projection removes from q' = q A B^T (scores are q' k^T) or
 * from the output o' = o A B^T of a head. Let d be the row q M or o M that is removed, and J the
 * Jacobian of the logits with respect to q or o. Then the logits move by J d. So the KL divergence
 * is (1/2) d F d^T with the Fisher information F = E[g^T g]. Here g is the gradient of -log p(y)
 * with respect to q or o, and y is drawn from the model. Rows and gradients are assumed
 * independent, as in K-FAC (Martens and Grosse 2015). With N rows,
 *
 *   loss per token = (1 / 2 N^2) tr(C M G M^T),   C = sum q^T q or o^T o,   G = sum g^T g
 *
 * This is the form that kvd_balanced minimises: with the SVD of C^{1/2} G^{1/2} = U S V^T the best
 * rank m leaves (1 / 2 N^2) sum_{j >= m} S_j^2.
 *
 * C and G are sums over all query heads of a group. Their product combines each head's queries with
 * the gradients of every head of the group, but only a head's own gradients count. Therefore the
 * singular values are defined as sigma = S / (N sqrt(group)). Half the sum of sigma^2 of all
 * removed directions, over heads, layers, Q-K and V, is the loss in nats per token.
 */
#ifndef KVD_ANALYSIS_SENSITIVITY_H
#define KVD_ANALYSIS_SENSITIVITY_H

#include "common/half.h"
#include "formats/spectrum.h"
#include "model/pass/backward.h"
#include "model/text/corpus.h"

typedef struct kvd_sensitivity kvd_sensitivity;

/* Kinds of vectors: a query, the gradient of a query, the output of a head, and its gradient. */
enum { KVD_SENSITIVITY_KINDS = 4 };

/* Returns zeroed sums. On failure returns NULL and fills *err. */
kvd_sensitivity *kvd_sensitivity_new(const kvd_config *c, kvd_err *err);
void kvd_sensitivity_free(kvd_sensitivity *s);

/*
 * Adds the outer products of the queries, head outputs and gradients of one layer and batch. Serves
 * as the `take` callback of a kvd_gradient_sink.
 */
int kvd_sensitivity_add(kvd_sensitivity *s, const kvd_gradients *g, kvd_err *err);

/*
 * Returns the sums of outer products,
 * [n_layers][KVD_SENSITIVITY_KINDS][n_kv_heads][d_head][d_head]. Valid until kvd_sensitivity_free.
 * A GPU engine copies its sums into this array.
 */
double *kvd_sensitivity_sums(kvd_sensitivity *s);

/*
 * Computes the projections fqk (Q and K) and fvw (V and W_O) from the sums of outer products.
 * n_tokens is the number of tokens that were added in each layer. The caller sets out->model,
 * out->n_layers (all layers) and out->pairing (shared).
 */
int kvd_sensitivity_bases(const kvd_sensitivity *s, size_t n_tokens, kvd_spectrum *out,
                          kvd_err *err);

/*
 * Returns the rate-distortion function: the fewest bits per element of K and V with which the
 * predicted loss is at most `loss` > 0 nats per token. *s holds singular values sigma of fqk, fvw.
 *
 * The function is reverse water-filling (Shannon 1959; Cover and Thomas, Elements of Information
 * Theory, section 10.3.3) over Gaussian variables, one of variance sigma_i^2 / 2 for each direction
 * i of a head. theta is the limit of their error variances that gives the wanted loss:
 *
 *   loss = sum_i min(theta, sigma_i^2 / 2), bits = sum_i max(0, log2(sigma_i^2 / 2 theta) / 2)
 */
double kvd_sensitivity_bits(const kvd_spectrum *s, double loss);

/* Engine that runs the backward pass and sums its gradients, on the CPU or on a GPU. */

typedef struct {
    /* Borrowed, and needed by the CPU engine until it is freed. */
    const kvd_checkpoint *checkpoint;
    /* Borrowed. All sums must be 0 when the engine is created. */
    kvd_sensitivity *sums;
    /* Number type in which the model runs: KVD_F32 or, on a GPU, also KVD_BF16. */
    kvd_dtype compute;
    uint64_t seed;              /* seed of the tokens that are drawn from the predictions */
    size_t max_tokens, max_len; /* largest number of tokens of a batch, and of a sequence */
    /* Called before every layer, forward and backward. A failure stops the run. */
    int (*give_up)(kvd_err *err);
} kvd_sensitivity_spec;

typedef struct kvd_sensitivity_engine kvd_sensitivity_engine;
struct kvd_sensitivity_engine {
    /* Sum of the losses -log p(y) in nats, over all tokens y drawn from the model. */
    double loss;
    size_t n_predicted;
    int (*run)(kvd_sensitivity_engine *e, const kvd_batch *b, kvd_err *err);
    /* Waits until the sums include every batch that was passed to `run`. */
    int (*flush)(kvd_sensitivity_engine *e, kvd_err *err);
    /* Returns a description of the engine, which is valid until `free`. */
    const char *(*describe)(const kvd_sensitivity_engine *e);
    void (*free)(kvd_sensitivity_engine *e);
};

/*
 * Return an engine that runs on the CPU (first function) or on GPU 0 (second function). On failure
 * return NULL and fill *err.
 */
kvd_sensitivity_engine *kvd_sensitivity_engine_cpu(const kvd_sensitivity_spec *s, kvd_err *err);
#ifdef KVD_CUDA
kvd_sensitivity_engine *kvd_sensitivity_engine_cuda(const kvd_sensitivity_spec *s, kvd_err *err);
#endif

#endif
