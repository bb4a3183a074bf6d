/*
 * Builds the matrices of a model whose singular values are computed (readings Z-1, F-1 of
 * docs/readings.md).
 */
#ifndef KVD_ANALYSIS_PAIRS_H
#define KVD_ANALYSIS_PAIRS_H

#include "formats/activations.h"
#include "formats/moments.h"
#include "formats/spectrum.h"

/*
 * Returns the number of rows of the matrix that is decomposed for one head:
 *
 * - qk: per token, one row per query head of the group and one row of K
 * - q: per token, one row per query head of the group
 * - k, v: one row per token
 * - vw: one row per token, and d_model rows of W_O per query head
 * - wv: d_model rows
 *
 * For bqk and bvw returns the number of elements of the product.
 */
size_t kvd_pair_rows(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing, size_t n_tokens);

typedef struct {
    size_t first, n;
} kvd_span;

/* Rows of one layer that replace recorded activations, such as centroids. */
typedef struct {
    size_t d_head;
    int n_heads[KVD_N_X];  /* number of heads of each tensor; 0 if the tensor is absent */
    float **rows[KVD_N_X]; /* rows[tensor][head] is [n_rows[tensor][head]][d_head] */
    size_t *n_rows[KVD_N_X];
} kvd_layer_rows;

/* Rows of Q, K and V: `rows` or, if that is NULL, the tokens recorded in the file `dump`. */
typedef struct {
    kvd_activations *dump;
    size_t n_tokens; /* largest number of rows per tensor and head */
    /* [n_spans] ranges of recorded tokens to use; NULL means the first n_tokens */
    const kvd_span *span;
    size_t n_spans;
    const kvd_layer_rows *rows;
} kvd_source;

/* Receives n contiguous float32 rows [n][d_head] of a matrix. A failure stops reading. */
typedef int (*kvd_row_sink)(void *ctx, const float *rows, size_t n, kvd_err *err);

/*
 * kvd_pair_stack passes the rows of head h's matrix to `sink`. If before_rope, the file must hold Q
 * and K before RoPE. kvd_pair_stack_weights passes W_O or W_V, for only one of several files.
 * KVD_PAIR_BQK and KVD_PAIR_BVW are refused.
 */
int kvd_pair_stack(const kvd_source *from, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                   bool before_rope, kvd_row_sink sink, void *ctx, kvd_err *err);
int kvd_pair_stack_weights(kvd_activations *a, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                           kvd_row_sink sink, void *ctx, kvd_err *err);

/*
 * Sets need[x] to true for every tensor x whose rows are needed to decompose the sets of matrices
 * in `wanted` (such as Q and K together).
 */
void kvd_pair_tensors(const bool wanted[KVD_N_PAIRS], bool before_rope, bool need[KVD_N_X]);

int kvd_source_rows(const kvd_source *from, kvd_x x, int layer, int head, kvd_row_sink sink,
                    void *ctx, kvd_err *err);

/*
 * Adds X^T X of one layer's Q, K and V as far as the sets of matrices in `wanted` need them (such
 * as Q and K together) and, if `weights`, of W_O and W_V. *m holds one layer.
 */
int kvd_pair_moments(const kvd_source *from, const bool wanted[KVD_N_PAIRS], int layer,
                     bool before_rope, bool weights, kvd_moments *m, kvd_err *err);

/*
 * Computes the Gram matrix gram [d_head][d_head] of the matrices `pair` (such as Q and K together)
 * for head h. Fails if *m lacks Q and K before RoPE but they are needed.
 */
int kvd_pair_gram(const kvd_moments *m, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                  bool before_rope, double *gram, kvd_err *err);

/*
 * Computes the Gram matrices [d_head][d_head] for kvd_balanced, summed over query heads h of the
 * group:
 *
 *   bqk: Cl = sum of Q_h^T Q_h, Cr = K^T K
 *   bvw: Cl = V^T V, Cr = sum of W_O_h W_O_h^T
 */
void kvd_balanced_grams(const kvd_moments *m, kvd_pair pair, int layer, int kv_head, double *cl,
                        double *cr);

/*
 * Computes a balanced projection from Gram matrices Cl, Cr of a product's factors. With Cl^{1/2}
 * Cr^{1/2} = U S V^T,
 *
 *   left = Cl^{-1/2} U, right = Cl^{1/2} U, left right^T = I
 *
 * and with A, B the first m columns of left and right, A B^T minimises || Cl^{1/2} (I - A B^T)
 * Cr^{1/2} ||_F at rank m. Eigenvectors of Cl with eigenvalues below d * eps times the largest get
 * zeros. The entry of largest magnitude of a column of `left` is positive. Writes S to sigma [d],
 * and left, right [d][d].
 */
int kvd_balanced(const double *cl, const double *cr, size_t d, double *sigma, double *left,
                 double *right, kvd_err *err);

/*
 * Computes singular values and rotations from second moments. Layer i of *m becomes layer first + i
 * of *s.
 */
int kvd_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS], bool before_rope,
                          int first, kvd_spectrum *s, kvd_err *err);

/*
 * Decomposes the matrices of one layer from their rows: by streaming QR if `tsqr`, otherwise by an
 * SVD that holds the rows twice in memory.
 */
int kvd_decompose_rows(const kvd_source *source, size_t n_sources, kvd_pair pair, bool tsqr,
                       bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

/* Smallest ratio of a singular value to the largest one that a Gram matrix resolves. */
#define KVD_GRAM_LIMIT 1.25e-4

/*
 * Decomposes heads with singular values below KVD_GRAM_LIMIT times the largest again, by streaming
 * QR. kvd_decompose_moments must be called before.
 */
int kvd_decompose_blurred(const kvd_source *source, size_t n_sources, kvd_pair pair,
                          bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

#endif
