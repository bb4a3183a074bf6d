/*
 * Reduction of calibration data as in the ZDC paper (section 4.1). In every text a random part of
 * the sequences is dropped. Then the vectors of every head of Q, K and V are replaced by the
 * centroids of their clusters.
 *
 * The ZDC paper gives every centroid equal weight (D-21 in docs/readings.md). If a centroid is
 * multiplied by the square root of the number of vectors in its cluster, it represents these
 * vectors in X^T X.
 */
#ifndef KVD_ANALYSIS_REDUCE_H
#define KVD_ANALYSIS_REDUCE_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * K-means by Lloyd's iteration (Lloyd 1982).
 *
 * A row is assigned to the centroid that is nearest in float64; of equally near ones, to the first.
 * Products in float32 only exclude centroids that cannot be nearest. Therefore the objective never
 * rises, and the result does not depend on the threads or the BLAS. A cluster that loses all its
 * rows receives the row that is farthest from its centroid.
 */

enum { KVD_KMEANS_ITERATIONS = 100 };
/* K-means ends when its sum of squared distances falls by less than this fraction. */
#define KVD_KMEANS_FALL 1e-4

typedef struct {
    size_t n_iterations;
    /* Sum of squared distances before each update of the centroids, [n_iterations]. */
    double objective[KVD_KMEANS_ITERATIONS];
    /* Sum of squared distances to the final centroids. */
    double last;
    double energy; /* sum over rows of |x|^2 */
} kvd_kmeans_trace;

/*
 * Clusters the rows X [n][d] into k clusters, 1 <= k <= n. start [k] holds the indices of the rows
 * that are the first centroids. Writes the clusters' means to centroid [k][d] and their numbers of
 * rows to count [k]. With fewer than k distinct rows, some clusters have count 0 and centroid 0.
 *
 * Fails with the message "interrupted" if the user stops the program. Uses all threads, so it must
 * not be called from several threads at once.
 */
int kvd_kmeans(const float *X, size_t n, size_t d, size_t k, const size_t *start, double *centroid,
               size_t *count, kvd_kmeans_trace *trace, kvd_err *err);

typedef struct {
    double prune; /* fraction of the sequences to drop, in [0, 1) */
    /* Number of centroids per tensor and head; 0 means no clustering. */
    size_t centroids;
    /* If true, each centroid is multiplied by the square root of its cluster's number of rows. */
    bool weighted;
    uint64_t seed;
} kvd_reduction;

/* Ranges of tokens that remain in all files, and how much was dropped. */
typedef struct {
    kvd_span *span;
    size_t n_sequences, n_tokens; /* number of dropped sequences, and of their tokens */
} kvd_pruned;

/*
 * Drops round(prune * sequences) random sequences of each file. Points `source` to the remaining
 * ranges of tokens, which *out owns. Fails, naming the file, if a file would lose all its
 * sequences.
 */
int kvd_prune(kvd_source *source, size_t n_sources, double prune, uint64_t seed, kvd_pruned *out,
              kvd_err *err);
void kvd_pruned_release(kvd_pruned *p);

/* Statistics summed over all heads and layers whose vectors were clustered by K-means. */
typedef struct {
    size_t n, n_iterations;
    double residual, energy; /* sums over rows of |x - centroid|^2 and of |x|^2 */
    double read_s, kmeans_s;
} kvd_reduced;

/*
 * Clusters the vectors of all n_sources files together, for every tensor x with need[x]. Stores at
 * most r->centroids centroids per head in *out; empty clusters have none. Fails if there are fewer
 * tokens than centroids. Adds the statistics of this clustering to *sum.
 */
int kvd_reduce_layer(const kvd_source *source, size_t n_sources, const bool need[KVD_N_X],
                     int layer, const kvd_reduction *r, kvd_layer_rows *out, kvd_reduced *sum,
                     kvd_err *err);
/* Frees the arrays of *r, which may be zeroed. */
void kvd_layer_rows_release(kvd_layer_rows *r);

#endif
