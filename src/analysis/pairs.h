/*
 * Builds the matrices whose singular values are computed, from recorded activations or from second
 * moments. The argument `pair` of the functions below names a set of matrices that share one
 * rotation, such as Q and K (qk), or V and W_O (vw). docs/readings.md (Z-1 and F-1) says why.
 */
#ifndef KVD_ANALYSIS_PAIRS_H
#define KVD_ANALYSIS_PAIRS_H

#include "formats/activations.h"
#include "formats/moments.h"
#include "formats/spectrum.h"

/*
 * Returns the number of rows of the matrix that is decomposed for one head, given the number of
 * tokens. `pair` names the matrices whose rows are stacked in it:
 *
 *   qk (Q and K)      one row per query head of the group and one of K, for each token
 *   q (Q alone)       one row per query head of the group, for each token
 *   k or v alone      one row for each token
 *   vw (V and W_O)    one row for each token, and d_model rows for the W_O of each query head
 *   wv (W_V)          d_model rows
 *
 * For bqk (Q and K) and bvw (V and W_O) a product of two factors is decomposed, not stacked rows.
 * For them the function returns the number of elements of the product: query rows times key rows,
 * or tokens times rows of W_O.
 */
size_t kvd_pair_rows(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing, size_t n_tokens);

/* Range of tokens in a file of recorded activations: first .. first + n - 1. */
typedef struct {
    size_t first, n;
} kvd_span;

/*
 * Rows of one layer that replace recorded activations, such as centroids of clusters: one set of
 * rows per tensor (Q, K, V, ...) and head. The sets may have different lengths.
 */
typedef struct {
    size_t d_head;
    int n_heads[KVD_N_X];  /* number of heads of each tensor; 0 means that the tensor is absent */
    float **rows[KVD_N_X]; /* one array [n_rows][d_head] per tensor and head: rows[tensor][head] */
    size_t *n_rows[KVD_N_X];
} kvd_layer_rows;

/*
 * Rows of Q, K and V from which singular values are computed. If `rows` is NULL, they are recorded
 * tokens in the activations file `dump`. Otherwise they are the vectors in `rows`, such as
 * centroids, and `dump` supplies only the weight matrices.
 */
typedef struct {
    kvd_activations *dump;
    /* Number of rows per tensor and head. If `rows` is set, the largest number of any head. */
    size_t n_tokens;
    /*
     * Ranges of the recorded tokens to use, [n_spans], with n_tokens tokens in all. NULL means the
     * first n_tokens tokens.
     */
    const kvd_span *span;
    size_t n_spans;
    const kvd_layer_rows *rows;
} kvd_source;

/* Callback that receives n rows [n][d_head] of a matrix; a failure stops the reading. */
typedef int (*kvd_row_sink)(void *ctx, const float *rows, size_t n, kvd_err *err);

/*
 * Reads the rows of the matrix that is decomposed for head h, and calls `sink` with blocks of them:
 * [n][d_head], float32, contiguous. `pair` names the matrices that supply the rows. For Q and K
 * (qk) these are the queries of the query heads that read one KV head, and then the keys of that KV
 * head. If `before_rope` is set, Q and K are taken before RoPE, and the file of activations must
 * hold them.
 *
 * kvd_pair_stack_weights passes the rows of weight matrices: W_O if `pair` is vw (V and W_O), or
 * W_V if it is wv. It is separate so that the rows of several files of one model are stacked with
 * the weights only once. Both functions refuse the balanced projections bqk and bvw, for which no
 * rows are stacked.
 */
int kvd_pair_stack(const kvd_source *from, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                   bool before_rope, kvd_row_sink sink, void *ctx, kvd_err *err);
int kvd_pair_stack_weights(kvd_activations *a, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                           kvd_row_sink sink, void *ctx, kvd_err *err);

/*
 * Sets need[x] to true for every tensor x (Q, K, V, ...) whose rows are needed for the rotations in
 * `wanted`. For example, wanted[KVD_PAIR_QK] needs Q and K.
 */
void kvd_pair_tensors(const bool wanted[KVD_N_PAIRS], bool before_rope, bool need[KVD_N_X]);

/* Calls `sink` with the rows of one tensor (Q, K, V, ...) of one head, block by block. */
int kvd_source_rows(const kvd_source *from, kvd_x x, int layer, int head, kvd_row_sink sink,
                    void *ctx, kvd_err *err);

/*
 * Adds second moments X^T X of one layer to *m: those of Q, K and V that are needed for the
 * rotations in `wanted` and, if `weights` is set, those of W_O and W_V that are needed. For
 * example, wanted[KVD_PAIR_QK] needs those of Q and K. *m holds one layer (n_layers 1), with sums
 * zeroed by kvd_moments_alloc.
 */
int kvd_pair_moments(const kvd_source *from, const bool wanted[KVD_N_PAIRS], int layer,
                     bool before_rope, bool weights, kvd_moments *m, kvd_err *err);

/*
 * Computes the Gram matrix X^T X, gram [d_head][d_head], of the matrix X that is decomposed for
 * head h. X stacks the rows of the matrices that `pair` names, such as Q and K. X^T X is a sum of
 * second moments in *m. Fails if `before_rope` is set and the moments lack Q and K before RoPE.
 */
int kvd_pair_gram(const kvd_moments *m, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                  bool before_rope, double *gram, kvd_err *err);

/*
 * Computes the two Gram matrices Cl and Cr, [d_head][d_head], from which kvd_balanced computes a
 * balanced projection of Q and K (bqk) or of V and W_O (bvw):
 *
 *   bqk: Cl = sum over the query heads of the group of Q^T Q, Cr = K^T K
 *   bvw: Cl = V^T V, Cr = sum over the group of W_O^h W_O^hT
 */
void kvd_balanced_grams(const kvd_moments *m, kvd_pair pair, int layer, int kv_head, double *cl,
                        double *cr);

/*
 * Computes a balanced projection (a left and a right matrix) from the Gram matrices Cl and Cr of
 * both factors of a product. With the SVD Cl^{1/2} Cr^{1/2} = U S V^T, left = Cl^{-1/2} U and
 * right = Cl^{1/2} U. The rank-m map A B^T = left[:, :m] right[:, :m]^T minimises || Cl^{1/2} (I -
 * A B^T) Cr^{1/2} ||_F. At full rank left right^T = I.
 *
 * Directions that Cl lacks (eigenvalues below d * eps of the largest) get zeros, which loses
 * nothing. The entry of largest magnitude in each column of `left` is positive. Writes S to sigma
 * [d], and left [d][d] and right [d][d].
 */
int kvd_balanced(const double *cl, const double *cr, size_t d, double *sigma, double *left,
                 double *right, kvd_err *err);

/*
 * Computes singular values and rotations for all layers and heads from the second moments *m.
 * wanted[p] selects a set p of matrices that share one rotation, such as KVD_PAIR_QK (Q and K).
 * Heads run in parallel on all threads. Layer i of the moments is stored as layer first + i of *s,
 * which must have room for every wanted set (kvd_spectrum_alloc). Errors name the set, layer and
 * head.
 */
int kvd_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS], bool before_rope,
                          int first, kvd_spectrum *s, kvd_err *err);

/*
 * Computes singular values and rotations of one layer from the rows of the matrices that `pair`
 * names, such as Q and K. Rows of all n_sources inputs are stacked; the weight matrices are those
 * of the first input. If `tsqr` is true, the rows are streamed through a QR decomposition.
 * Otherwise LAPACK's dgesdd needs the rows of one head in memory twice, as float64. Refuses the
 * balanced projections bqk and bvw, for which no rows are stacked.
 */
int kvd_decompose_rows(const kvd_source *source, size_t n_sources, kvd_pair pair, bool tsqr,
                       bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

/*
 * Smallest ratio of the smallest to the largest singular value of a head that a Gram matrix
 * resolves accurately enough (kvd_decompose_blurred).
 */
#define KVD_GRAM_LIMIT 1.25e-4

/*
 * Decomposes some heads of one layer again, from the rows of the matrices that `pair` names (such
 * as Q and K), by a streaming QR decomposition. These are the heads whose smallest singular value
 * is below KVD_GRAM_LIMIT times the largest: a Gram matrix in float64 gives such a value to about
 * 1e-9 relative at best. Counts these heads in s->pair[pair].by_tsqr. Call it after
 * kvd_decompose_moments with the moments of the same tokens.
 */
int kvd_decompose_blurred(const kvd_source *source, size_t n_sources, kvd_pair pair,
                          bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

#endif
