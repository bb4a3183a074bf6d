/*
 * Reduction of calibration data as in the ZDC paper (section 4.1). In every text a random part of
 * the sequences is dropped. Then the token vectors of every head of Q, K and V are replaced by the
 * centroids of their clusters. Each file of activations is one text, which the ZDC paper calls a
 * topic. W_O is not changed.
 *
 * The ZDC paper gives every centroid equal weight, however many vectors it replaces (D-21 in
 * docs/readings.md). If a centroid is multiplied by the square root of their number, it represents
 * them in X^T X.
 */
#ifndef KVD_ANALYSIS_REDUCE_H
#define KVD_ANALYSIS_REDUCE_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * K-means by Lloyd's iteration (Lloyd 1982). Rows are assigned to the nearest centroid, and
 * centroids become the means of their rows, until an iteration hardly lowers the objective sum |x -
 * c(x)|^2.
 *
 * A row is assigned to the centroid that is nearest in float64; of several equally near centroids,
 * to the first. Products in float32 exclude the centroids that cannot be nearest, given a bound of
 * their rounding error; the distances to the remaining ones are computed in float64. Therefore the
 * objective never rises, and the result does not depend on the number or order of threads or on the
 * BLAS. A cluster that loses all its rows receives the row that is farthest from its centroid.
 */

enum { KVD_KMEANS_ITERATIONS = 100 };
/*
 * Smallest relative fall of the K-means objective (sum of squared distances). Iterations end when
 * it falls by a smaller fraction of itself, or after KVD_KMEANS_ITERATIONS.
 */
#define KVD_KMEANS_FALL 1e-4

typedef struct {
    size_t n_iterations;
    /*
     * K-means objective (sum of squared distances) before each update of the centroids,
     * [n_iterations].
     */
    double objective[KVD_KMEANS_ITERATIONS];
    /* K-means objective with the final centroids: sum over rows of |x - mean of its cluster|^2. */
    double last;
    double energy; /* sum over rows of |x|^2, without subtracting centroids */
} kvd_kmeans_trace;

/*
 * Clusters the rows X [n][d] into k clusters, 1 <= k <= n. Writes the clusters' means to centroid
 * [k][d] and their numbers of rows to count [k]. The first centroids are the rows start [k]. If
 * there are fewer than k distinct rows, some clusters have count 0 and centroid 0. Fails if memory
 * runs out or, with the message "interrupted", if the user stops the program. Uses all threads, so
 * it must not be called from several threads at once.
 */
int kvd_kmeans(const float *X, size_t n, size_t d, size_t k, const size_t *start, double *centroid,
               size_t *count, kvd_kmeans_trace *trace, kvd_err *err);

typedef struct {
    double prune; /* fraction of the sequences of every text that is dropped, in [0, 1) */
    /* Number of centroids per tensor and head. 0 means no clustering: all rows are used. */
    size_t centroids;
    /* True: each centroid is multiplied by the square root of the number of rows in its cluster. */
    bool weighted;
    uint64_t seed;
} kvd_reduction;

/*
 * Result of dropping sequences from files of recorded activations: the ranges of tokens that remain
 * in all files, and how much was dropped.
 */
typedef struct {
    kvd_span *span;
    size_t n_sequences, n_tokens; /* numbers of dropped sequences and tokens */
} kvd_pruned;

/*
 * Drops round(prune * sequences) sequences of each of the n_sources files of recorded activations,
 * chosen at random from `seed`. Stores the ranges of the remaining tokens in the elements of
 * `source`; *out owns these ranges. Fails, naming the file, if a file would lose all its sequences.
 */
int kvd_prune(kvd_source *source, size_t n_sources, double prune, uint64_t seed, kvd_pruned *out,
              kvd_err *err);
void kvd_pruned_release(kvd_pruned *p);

/*
 * Statistics of K-means, summed over all clusterings so far. One clustering is that of the token
 * vectors of one head of Q, K or V in one layer.
 */
typedef struct {
    size_t n, n_iterations;
    double residual, energy; /* sums over rows of |x - centroid|^2 and of |x|^2 */
    double read_s, kmeans_s; /* seconds spent reading rows and clustering them */
} kvd_reduced;

/*
 * Replaces the token vectors of one layer by centroids: clusters the vectors of all n_sources files
 * together and stores the centroids in *out, for the tensors x (Q, K, V, ...) with need[x]. *out
 * has at most r->centroids rows per tensor and head; clusters without vectors are left out. Fails
 * if there are fewer tokens than centroids. Adds its statistics to *sum.
 */
int kvd_reduce_layer(const kvd_source *source, size_t n_sources, const bool need[KVD_N_X],
                     int layer, const kvd_reduction *r, kvd_layer_rows *out, kvd_reduced *sum,
                     kvd_err *err);
/* Frees the rows of *r. Safe on a zeroed *r. */
void kvd_layer_rows_release(kvd_layer_rows *r);

#endif
