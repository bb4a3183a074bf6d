/*
 * Builds the matrices whose singular values are computed for a pair (Q and K, V and W_O, ...), from
 * activations or moments (docs/readings.md, Z-1 and F-1).
 */
#ifndef KVD_ANALYSIS_PAIRS_H
#define KVD_ANALYSIS_PAIRS_H

#include "formats/activations.h"
#include "formats/moments.h"
#include "formats/spectrum.h"

/*
 * Returns the number of rows that are stacked for one head of a pair. Each token gives a row per
 * query head of the group and a row of K, or a row of V. Pair vw adds d_model rows per W_O^h of the
 * group; pair wv has d_model rows. For bqk and bvw returns the number of entries of the product:
 * query rows times key rows, or tokens times rows of W_O.
 */
size_t kvd_pair_rows(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing, size_t n_tokens);

/* Range of tokens of a dump: first .. first + n - 1. */
typedef struct {
    size_t first, n;
} kvd_span;

/*
 * Rows of one layer that are used in place of a dump's rows, such as centroids: one set of rows per
 * tensor and head, of any length.
 */
typedef struct {
    size_t d_head;
    int n_heads[KVD_N_X];  /* number of heads; 0 means the tensor is absent */
    float **rows[KVD_N_X]; /* [n_heads]: arrays [n_rows][d_head] */
    size_t *n_rows[KVD_N_X];
} kvd_layer_rows;

/*
 * Source of the rows that are stacked for a pair: tokens of a dump or, if `rows` is set, those
 * rows. The dump then supplies the weights only.
 */
typedef struct {
    kvd_activations *dump;
    /* number of rows per tensor and head; if `rows` is set, the largest number of any head */
    size_t n_tokens;
    /*
     * Ranges of the dump's tokens that are used, [n_spans], n_tokens tokens in all. NULL means the
     * first n_tokens.
     */
    const kvd_span *span;
    size_t n_spans;
    const kvd_layer_rows *rows;
} kvd_source;

/*
 * Calls `sink` with blocks of the rows that are stacked for head h of the pair, [n][d_head],
 * float32, contiguous: the queries of the group, then keys; or values. With `before_rope` Q and K
 * are those before RoPE, which the dump must have. The rows of W_O (vw) or W_V (wv) come from the
 * second function, so that several dumps of one model stack with their weights once. Not for the
 * pairs bqk and bvw.
 */
typedef int (*kvd_row_sink)(void *ctx, const float *rows, size_t n, kvd_err *err);
int kvd_pair_stack(const kvd_source *from, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                   bool before_rope, kvd_row_sink sink, void *ctx, kvd_err *err);
int kvd_pair_stack_weights(kvd_activations *a, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                           kvd_row_sink sink, void *ctx, kvd_err *err);

/* Sets need[x] for every tensor x whose rows the wanted pairs need. */
void kvd_pair_tensors(const bool wanted[KVD_N_PAIRS], bool before_rope, bool need[KVD_N_X]);

/* Calls `sink` with the rows of one tensor and head of a source, in blocks. */
int kvd_source_rows(const kvd_source *from, kvd_x x, int layer, int head, kvd_row_sink sink,
                    void *ctx, kvd_err *err);

/*
 * Adds the second moments that the wanted pairs need, of one layer of a source, to *m. These are
 * the moments of Q, K and V and, if `weights` is set, also of W_O and W_V. *m holds one layer
 * (n_layers 1), with sums zeroed by kvd_moments_alloc.
 */
int kvd_pair_moments(const kvd_source *from, const bool wanted[KVD_N_PAIRS], int layer,
                     bool before_rope, bool weights, kvd_moments *m, kvd_err *err);

/*
 * Computes the second moment gram [d_head][d_head] of the rows that are stacked for head h of a
 * pair, from the moments of its tensors. Fails if `before_rope` is set and the moments lack Q and K
 * before RoPE.
 */
int kvd_pair_gram(const kvd_moments *m, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                  bool before_rope, double *gram, kvd_err *err);

/*
 * Computes the two matrices Cl and Cr, [d_head][d_head], of the balanced pairs:
 *
 *   bqk: Cl = sum over the group of Gram(Q), Cr = Gram(K)
 *   bvw: Cl = Gram(V), Cr = sum over the group of W_O^h W_O^hT
 */
void kvd_balanced_grams(const kvd_moments *m, kvd_pair pair, int layer, int kv_head, double *cl,
                        double *cr);

/*
 * Computes the balanced projection (a left and a right matrix) from Cl and Cr. With the SVD
 * Cl^{1/2} Cr^{1/2} = U S V^T it is left = Cl^{-1/2} U and right = Cl^{1/2} U. The rank-m map A B^T
 * = left[:, :m] right[:, :m]^T minimises || Cl^{1/2} (I - A B^T) Cr^{1/2} ||_F; at full rank left
 * right^T = I.
 *
 * Directions that Cl lacks (eigenvalues below d * eps of the largest) get zeros, which loses
 * nothing. The largest entry of each column of `left` is positive. Writes sigma [d], left [d][d]
 * and right [d][d].
 */
int kvd_balanced(const double *cl, const double *cr, size_t d, double *sigma, double *left,
                 double *right, kvd_err *err);

/*
 * Computes spectra (singular values and rotations) of whole models: every wanted pair of every
 * layer and head, from moments or from the rows of dumps.
 */

/*
 * Computes singular values and rotations from the second moments of the wanted pairs, with the
 * heads in parallel on all threads. Layer i of the moments is layer first + i of the spectrum. *s
 * must have room for every wanted pair (kvd_spectrum_alloc). Errors name pair, layer and head.
 */
int kvd_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS], bool before_rope,
                          int first, kvd_spectrum *s, kvd_err *err);

/*
 * Computes singular values and rotations of one pair of one layer from its rows. The rows of all
 * sources are stacked; the weights are those of the first source. With `tsqr` the rows are
 * streamed; otherwise dgesdd needs the rows of one head in memory twice, as float64. Not for the
 * pairs bqk and bvw.
 */
int kvd_decompose_rows(const kvd_source *source, size_t n_sources, kvd_pair pair, bool tsqr,
                       bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

/*
 * Decomposes again, from their rows by tsqr, the heads of `pair` whose smallest singular value is
 * below KVD_GRAM_LIMIT of the largest, because a Gram matrix in float64 gives such a value to about
 * 1e-9 relative at best. Counts these heads in s->pair[pair].by_tsqr. Call it after
 * kvd_decompose_moments of this layer's moments from the same dumps.
 */
#define KVD_GRAM_LIMIT 1.25e-4
int kvd_decompose_blurred(const kvd_source *source, size_t n_sources, kvd_pair pair,
                          bool before_rope, int layer, kvd_spectrum *s, kvd_err *err);

#endif
