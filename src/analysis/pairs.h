/*
 * Builds the matrices whose singular values are computed, from recorded activations or from their
 * second moments X^T X. A kvd_pair names a set of matrices that share one rotation, such as Q and K
 * (qk), or V and W_O (vw). Sections Z-1 and F-1 of docs/readings.md give the reasons for these
 * matrices.
 */
#ifndef KVD_ANALYSIS_PAIRS_H
#define KVD_ANALYSIS_PAIRS_H

#include "formats/activations.h"
#include "formats/moments.h"
#include "formats/spectrum.h"

/*
 * Returns the number of rows of the matrix that is decomposed for one head. The matrix stacks rows
 * of the matrices that `pair` names:
 *
 *   qk (Q and K)      one row per query head of the group and one row of K, for each token
 *   q (Q alone)       one row per query head of the group, for each token
 *   k or v alone      one row for each token
 *   vw (V and W_O)    one row for each token, and d_model rows for the W_O of each query head
 *   wv (W_V)          d_model rows
 *
 * For the balanced projections bqk and bvw a product of two matrices is decomposed. Returns the
 * number of elements of the product: query rows times key rows, or tokens times rows of W_O.
 */
size_t kvd_pair_rows(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing, size_t n_tokens);

typedef struct {
    size_t first, n;
} kvd_span;

/* Rows of one layer that replace recorded activations, such as centroids of clusters. */
typedef struct {
    size_t d_head;
    int n_heads[KVD_N_X];  /* heads of each tensor; 0 if the tensor is absent */
    float **rows[KVD_N_X]; /* rows[tensor][head] is [n_rows[tensor][head]][d_head] */
    size_t *n_rows[KVD_N_X];
} kvd_layer_rows;

/*
 * Rows of Q, K and V from which singular values are computed. If `rows` is NULL, these are the
 * tokens recorded in the file `dump`. Otherwise the rows are those in `rows`, and the file `dump`
 * supplies only weight matrices.
 */
typedef struct {
    kvd_activations *dump;
    /* Number of rows per tensor and head. If `rows` is set, the largest number of any head. */
    size_t n_tokens;
    /*
     * Ranges of recorded tokens to use, [n_spans]; together they have n_tokens tokens. NULL means
     * the first n_tokens recorded tokens.
     */
    const kvd_span *span;
    size_t n_spans;
    const kvd_layer_rows *rows;
} kvd_source;

/*
 * Callback that receives n rows of a matrix, [n][d_head], float32, contiguous. If it fails, reading
 * stops.
 */
typedef int (*kvd_row_sink)(void *ctx, const float *rows, size_t n, kvd_err *err);

/*
 * Passes the rows of the matrix that is decomposed for head h to `sink`, block by block. For
 * KVD_PAIR_QK these are the queries of the query heads that read KV head h, then the keys of h. If
 * `before_rope` is set, the file must hold Q and K before RoPE.
 *
 * kvd_pair_stack_weights passes to `sink` the rows of W_O (KVD_PAIR_VW) or W_V (KVD_PAIR_WV). If
 * rows from several files of one model go to one sink, the caller must call kvd_pair_stack_weights
 * for only one of the files. Both functions refuse the balanced projections KVD_PAIR_BQK and
 * KVD_PAIR_BVW.
 */
int kvd_pair_stack(const kvd_source *from, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                   bool before_rope, kvd_row_sink sink, void *ctx, kvd_err *err);
int kvd_pair_stack_weights(kvd_activations *a, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                           kvd_row_sink sink, void *ctx, kvd_err *err);

/* Sets need[x] for every tensor x (Q, K, V, ...) whose rows the kvd_pairs in `wanted` need. */
void kvd_pair_tensors(const bool wanted[KVD_N_PAIRS], bool before_rope, bool need[KVD_N_X]);

int kvd_source_rows(const kvd_source *from, kvd_x x, int layer, int head, kvd_row_sink sink,
                    void *ctx, kvd_err *err);

/*
 * Adds to *m the second moments X^T X of one layer, for the tensors X that the kvd_pairs in
 * `wanted` need. If `weights` is set, adds also the second moments of W_O and W_V. *m must hold one
 * layer, zeroed by kvd_moments_alloc.
 */
int kvd_pair_moments(const kvd_source *from, const bool wanted[KVD_N_PAIRS], int layer,
                     bool before_rope, bool weights, kvd_moments *m, kvd_err *err);

/*
 * Computes gram [d_head][d_head] = X^T X from second moments. X is the matrix that is decomposed
 * for head h. Fails if `before_rope` is set and *m lacks Q and K before RoPE.
 */
int kvd_pair_gram(const kvd_moments *m, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                  bool before_rope, double *gram, kvd_err *err);

/*
 * Computes the Gram matrices Cl and Cr, [d_head][d_head], from which kvd_balanced computes a
 * balanced projection. A sum is over the query heads h of the group that reads the KV head:
 *
 *   bqk: Cl = sum of Q_h^T Q_h, Cr = K^T K
 *   bvw: Cl = V^T V, Cr = sum of W_O_h W_O_h^T
 */
void kvd_balanced_grams(const kvd_moments *m, kvd_pair pair, int layer, int kv_head, double *cl,
                        double *cr);

/*
 * Computes a balanced projection from the Gram matrices Cl and Cr of the two factors of a product.
 * With the SVD Cl^{1/2} Cr^{1/2} = U S V^T, the projection is left = Cl^{-1/2} U and right =
 * Cl^{1/2} U. With A the first m columns of `left` and B the first m columns of `right`, the map A
 * B^T of rank m minimises || Cl^{1/2} (I - A B^T) Cr^{1/2} ||_F. At full rank left right^T = I.
 *
 * Eigenvectors of Cl with an eigenvalue below d * eps times the largest get zeros in `left` and
 * `right`. The entry of largest magnitude in each column of `left` is positive. Writes S to sigma
 * [d], and left [d][d] and right [d][d].
 */
int kvd_balanced(const double *cl, const double *cr, size_t d, double *sigma, double *left,
                 double *right, kvd_err *err);

/*
 * Computes singular values and rotations of all layers and heads, for every kvd_pair p with
 * wanted[p]. Layer i of *m becomes layer first + i of *s. kvd_spectrum_alloc must have given *s
 * room for every such p. Errors name the kvd_pair, layer and head.
 */
int kvd_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS], bool before_rope,
                          int first, kvd_spectrum *s, kvd_err *err);

/*
 * Computes singular values and rotations of one layer from the rows of the matrices that `pair`
 * names. The matrix of a head stacks the rows of all sources, but weight matrices only of the first
 * source.
 *
 * If `tsqr` is true, rows are streamed through a QR decomposition. Otherwise LAPACK's dgesdd needs
 * the rows of a head in memory twice, as float64. Refuses KVD_PAIR_BQK and KVD_PAIR_BVW.
 */
int kvd_decompose_rows(const kvd_source *source, size_t n_sources, kvd_pair pair, bool tsqr,
                       bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

/* Smallest ratio of the smallest to the largest singular value that a Gram matrix resolves. */
#define KVD_GRAM_LIMIT 1.25e-4

/*
 * Computes again, by a streaming QR, the singular values of the heads whose smallest singular value
 * is below KVD_GRAM_LIMIT times the largest. Counts these heads in s->pair[pair].by_tsqr. The
 * caller must first call kvd_decompose_moments with the same tokens.
 */
int kvd_decompose_blurred(const kvd_source *source, size_t n_sources, kvd_pair pair,
                          bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

#endif
