/* Stacks Q, K, V, W_O or W_V of a head into matrices X, and computes X^T X, the singular values of
 * X, and its right singular vectors (rotations). */
#ifndef KVD_ANALYSIS_PAIRS_H
#define KVD_ANALYSIS_PAIRS_H

#include "formats/activations.h"
#include "formats/moments.h"
#include "formats/spectrum.h"

/* Returns how many rows the decomposed matrix of a head has:
 *
 * - qk: a row of Q per token and query head of the group, and a row of K per token
 * - q: a row per token and query head of the group
 * - k, v: a row per token
 * - vw: a row of V per token, and d_model rows of W_O per query head of the group
 * - wv: d_model rows of W_V
 *
 * For bqk (the product Q K^T) and bvw (V W_O), returns the number of elements of the product. */
size_t kvd_pair_rows(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing, size_t n_tokens);

typedef struct {
    size_t first, n;
} kvd_span;

/* Q, K and V vectors of one layer, held in memory. They may also be k-means centroids of such
 * vectors. */
typedef struct {
    size_t d_head;
    int n_heads[KVD_N_X];  /* number of heads of each tensor; 0 if the tensor is absent */
    float **rows[KVD_N_X]; /* rows[tensor][head] is [n_rows[tensor][head]][d_head] */
    size_t *n_rows[KVD_N_X];
} kvd_layer_rows;

/* Source of Q, K and V: the vectors `rows` or, if `rows` is NULL, the vectors in file `dump`. */
typedef struct {
    kvd_activations *dump;
    size_t n_tokens; /* largest number of rows per tensor and head */
    /* [n_spans] ranges of tokens to use; NULL means the first n_tokens tokens */
    const kvd_span *span;
    size_t n_spans;
    const kvd_layer_rows *rows;
} kvd_source;

/* Callback that receives n float32 vectors [n][d_head]. If it fails, no more vectors are read. */
typedef int (*kvd_row_sink)(void *ctx, const float *rows, size_t n, kvd_err *err);

/* kvd_pair_stack passes to `sink` the Q, K or V vectors of head h that `pair` names.
 * kvd_pair_stack_weights passes rows of W_O or W_V. KVD_PAIR_BQK and KVD_PAIR_BVW, which have two
 * projections instead of one rotation, are not allowed. */
int kvd_pair_stack(const kvd_source *from, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                   bool before_rope, kvd_row_sink sink, void *ctx, kvd_err *err);
int kvd_pair_stack_weights(kvd_activations *a, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                           kvd_row_sink sink, void *ctx, kvd_err *err);

/* Sets need[x] to true if a `wanted` singular value decomposition needs tensor x, such as Q, else
 * to false. before_rope: true if Q and K are decomposed before RoPE. */
void kvd_pair_tensors(const bool wanted[KVD_N_PAIRS], bool before_rope, bool need[KVD_N_X]);

int kvd_source_rows(const kvd_source *from, kvd_x x, int layer, int head, kvd_row_sink sink,
                    void *ctx, kvd_err *err);

/* Adds X^T X to *m for each matrix X of a layer, such as Q, that a `wanted` decomposition uses.
 * weights: true if the weight matrices W_O and W_V are included. */
int kvd_pair_moments(const kvd_source *from, const bool wanted[KVD_N_PAIRS], int layer,
                     bool before_rope, bool weights, kvd_moments *m, kvd_err *err);

/* Computes X^T X [d_head][d_head] for head h. X stacks the rows of all matrices that `pair` names,
 * such as Q and K. */
int kvd_pair_gram(const kvd_moments *m, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                  bool before_rope, double *gram, kvd_err *err);

/* Computes two matrices Cl and Cr of a KV head. Sums are over the query heads h that use this KV
 * head:
 *
 * Q and K (KVD_PAIR_BQK): Cl = sum of Q_h^T Q_h, Cr = K^T K
 *
 * V and W_O (KVD_PAIR_BVW): Cl = V^T V, Cr = sum of W_O_h W_O_h^T */
void kvd_balanced_grams(const kvd_moments *m, kvd_pair pair, int layer, int kv_head, double *cl,
                        double *cr);

/* Computes projections A and B [d][m], for any m, that minimise ||L (I - A B^T) R^T||_F for two
 * matrices, such as queries L and keys R. Needs only Cl = L^T L and Cr = R^T R:
 *
 * Cl^{1/2} Cr^{1/2} = U S V^T, left = Cl^{-1/2} U, right = Cl^{1/2} U
 *
 * A is the first m columns of left, and B is the first m columns of right. Eigenvalues of Cl near 0
 * count as 0. Writes S to sigma [d], and left, right [d][d]. */
int kvd_balanced(const double *cl, const double *cr, size_t d, double *sigma, double *left,
                 double *right, kvd_err *err);

/* Computes singular values and right singular vectors of each head's `wanted` matrices X, such as Q
 * stacked on K, from X^T X in *m. Stores layer i of *m as layer first + i of *s. */
int kvd_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS], bool before_rope,
                          int first, kvd_spectrum *s, kvd_err *err);

/* Decomposes the matrix that `pair` names, such as queries stacked on keys, for each head of a
 * layer. Uses streaming QR if `tsqr` is true, else an SVD. */
int kvd_decompose_rows(const kvd_source *source, size_t n_sources, kvd_pair pair, bool tsqr,
                       bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

/* smallest singular value, relative to the largest, that X^T X resolves */
#define KVD_GRAM_LIMIT 1.25e-4

/* Decomposes, by streaming QR, the heads whose smallest singular value is below KVD_GRAM_LIMIT
 * times the largest. */
int kvd_decompose_blurred(const kvd_source *source, size_t n_sources, kvd_pair pair,
                          bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

#endif
