/*
 * Estimates the loss of the model's predictions if dimensions of a head are removed. The estimate
 * is of second order and needs gradients only.
 *
 * Let M = I - A B^T be the part that a projection removes from q' = q A B^T (scores are q' k^T) or
 * from the output o' = o A B^T of a head. The logits move by J d, where d is the row q M or o M and
 * J the Jacobian. So the KL divergence is (1/2) d F d^T with the Fisher information F = E[g^T g].
 * Here g is the gradient of -log p(y) with respect to that row, and y is drawn from the model. Rows
 * and gradients are taken as independent, as K-FAC does (Martens and Grosse 2015). With N rows,
 *
 *   loss per token = (1 / 2 N^2) tr(C M G M^T),   C = sum q^T q or o^T o,   G = sum g^T g
 *
 * This is the form that kvd_balanced minimises: with the SVD of C^{1/2} G^{1/2} = U S V^T the best
 * rank m leaves (1 / 2 N^2) sum_{j >= m} S_j^2.
 *
 * C and G are sums over all query heads of a group. Their product therefore combines each head's
 * queries with the gradients of every head of the group. Only a combination of a head with itself
 * counts, which is the fraction 1 / group of all combinations. Therefore the singular values are
 * defined as sigma = S / (N sqrt(group)). Half the sum of sigma^2 of all removed directions, over
 * heads, layers, Q-K and V, is the loss in nats per token.
 */
#ifndef KVD_ANALYSIS_SENSITIVITY_H
#define KVD_ANALYSIS_SENSITIVITY_H

#include "common/half.h"
#include "formats/spectrum.h"
#include "model/pass/backward.h"
#include "model/text/corpus.h"

typedef struct kvd_sensitivity kvd_sensitivity;

/*
 * The sums of outer products x^T x are of 4 kinds. x is a query, the gradient of a query, the
 * output of a head, or the gradient of a head's output.
 */
enum { KVD_SENSITIVITY_KINDS = 4 };

/* Creates zeroed sums of outer products for a model. On failure returns NULL and fills *err. */
kvd_sensitivity *kvd_sensitivity_new(const kvd_config *c, kvd_err *err);
void kvd_sensitivity_free(kvd_sensitivity *s);

/*
 * Adds the outer products of queries, head outputs and gradients of one layer, for one batch, to
 * the sums. Used as the `take` callback of a kvd_gradient_sink.
 */
int kvd_sensitivity_add(kvd_sensitivity *s, const kvd_gradients *g, kvd_err *err);

/*
 * Returns the array of the sums of outer products,
 * [n_layers][KVD_SENSITIVITY_KINDS][n_kv_heads][d_head][d_head]. The kinds are queries, gradients
 * of queries, head outputs and gradients of head outputs. The sums are 0 at first. Sums that were
 * computed on a GPU (cuda/sensitivity_cuda.c) are copied to this array. Valid until
 * kvd_sensitivity_free.
 */
double *kvd_sensitivity_sums(kvd_sensitivity *s);

/*
 * Computes projections and singular values that are weighted by Fisher information, fqk for Q and K
 * and fvw for V and W_O, from the sums. Stores them in *out. The caller sets model, n_layers (all
 * layers) and pairing (shared) of *out. n_tokens is the number of tokens that were added in each
 * layer.
 */
int kvd_sensitivity_bases(const kvd_sensitivity *s, size_t n_tokens, kvd_spectrum *out,
                          kvd_err *err);

/*
 * Returns the rate-distortion function: the fewest bits per element of K and V with which the
 * predicted loss is at most `loss` nats per token, a positive number. *s holds singular values
 * sigma weighted by Fisher information: fqk for Q and K, fvw for V and W_O. The function is reverse
 * water-filling (Shannon 1959; Cover and Thomas, Elements of Information Theory, section 10.3.3)
 * over one Gaussian component of variance sigma^2 / 2 for each direction of each head:
 *
 *   loss = sum_i min(theta, sigma_i^2 / 2), bits = sum_i max(0, log2(sigma_i^2 / 2 theta) / 2)
 *
 * Every token is coded on its own. An error of variance v in a direction costs as much as the
 * removal of a component of variance v.
 */
double kvd_sensitivity_bits(const kvd_spectrum *s, double loss);

/*
 * Interface of the engines that run the backward pass for kvdim-sensitivity and sum its gradients,
 * on the CPU (sensitivity.c) or on a GPU (cuda/sensitivity_cuda.c).
 */

typedef struct {
    /*
     * Checkpoint of the model, borrowed: needed while the engine is created, and by the CPU engine
     * until it is freed.
     */
    const kvd_checkpoint *checkpoint;
    /* Sums of outer products to which the engine adds, borrowed. They must be 0 at first. */
    kvd_sensitivity *sums;
    /* Number type in which the model runs: KVD_F32 or, on a GPU, also KVD_BF16. */
    kvd_dtype compute;
    uint64_t seed;              /* seed of the tokens that are drawn from the model's predictions */
    size_t max_tokens, max_len; /* largest number of tokens of a batch, and of a sequence */
    /*
     * Callback that is called before every layer, forward and backward. If it fails, the run
     * stops.
     */
    int (*give_up)(kvd_err *err);
} kvd_sensitivity_spec;

typedef struct kvd_sensitivity_engine kvd_sensitivity_engine;
struct kvd_sensitivity_engine {
    /*
     * Sum of the losses -log p(y) of all predicted tokens y over all batches, in nats. The tokens
     * y are drawn from the model.
     */
    double loss;
    size_t n_predicted;
    /*
     * Runs one batch forward and backward. Adds the outer products of its queries, head outputs and
     * gradients to the sums.
     */
    int (*run)(kvd_sensitivity_engine *e, const kvd_batch *b, kvd_err *err);
    /* Waits until the sums include all batches. Call it after the last batch. */
    int (*flush)(kvd_sensitivity_engine *e, kvd_err *err);
    /* Returns a description of the engine for the file's provenance; valid until free. */
    const char *(*describe)(const kvd_sensitivity_engine *e);
    void (*free)(kvd_sensitivity_engine *e);
};

/* Creates an engine that runs on the CPU. On failure returns NULL and fills *err. */
kvd_sensitivity_engine *kvd_sensitivity_engine_cpu(const kvd_sensitivity_spec *s, kvd_err *err);
#ifdef KVD_CUDA
/* Creates an engine that runs on GPU 0. On failure returns NULL and fills *err. */
kvd_sensitivity_engine *kvd_sensitivity_engine_cuda(const kvd_sensitivity_spec *s, kvd_err *err);
#endif

#endif
