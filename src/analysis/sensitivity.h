/*
 * What the predictions lose by cutting a head, to second order, from gradients alone.
 *
 * Let M = I - A B^T be what a cut takes from q' = q A B^T (scores are q' k^T) or from the output o' = o A B^T of a head. The logits move
 * by J d, with d the row q M or o M and J the Jacobian, so the KL divergence is (1/2) d F d^T with the Fisher information F = E[g^T g], g the
 * gradient of -log p(y) with respect to that row and y drawn from the model. With rows and gradients taken as independent (as K-FAC does,
 * Martens and Grosse 2015) and N rows,
 *
 *   loss per token = (1 / 2 N^2) tr(C M G M^T),   C = sum q^T q or o^T o,   G = sum g^T g
 *
 * which has the form that kvd_balanced minimises: with the SVD of C^{1/2} G^{1/2} = U S V^T the best rank m leaves (1 / 2 N^2) sum_{j >= m} S_j^2.
 * Sums over the query heads of a group count every pair of them, 1 / group of which belong together. So sigma = S / (N sqrt(group)), and
 * half the sum of sigma^2 of all directions that go, over heads, layers and both sides, is the loss in nats per token.
 */
#ifndef KVD_ANALYSIS_SENSITIVITY_H
#define KVD_ANALYSIS_SENSITIVITY_H

#include "formats/spectrum.h"
#include "model/backward.h"
#include "model/corpus.h"

typedef struct kvd_sensitivity kvd_sensitivity;

enum { KVD_SENSITIVITY_KINDS = 4 }; /* what is summed: q, its gradient, o, its gradient */

/* Room for the sums of a model. */
kvd_sensitivity *kvd_sensitivity_new(const kvd_config *c, kvd_err *err);
void kvd_sensitivity_free(kvd_sensitivity *s);

/* Adds one layer of one batch: the `take` of a kvd_gradient_sink. */
int kvd_sensitivity_add(kvd_sensitivity *s, const kvd_gradients *g, kvd_err *err);

/* The sums, C and G of both sides [n_layers][KVD_SENSITIVITY_KINDS][n_kv_heads][d_head][d_head], 0 at first: what a GPU has added up
 * (cuda/sensitivity.h) is put there. Valid until kvd_sensitivity_free. */
double *kvd_sensitivity_sums(kvd_sensitivity *s);

/* fqk and fvw of *out, whose model, n_layers (all) and pairing (shared) are set. n_tokens: rows that were added, in each layer. */
int kvd_sensitivity_bases(const kvd_sensitivity *s, size_t n_tokens, kvd_spectrum *out, kvd_err *err);

#endif
