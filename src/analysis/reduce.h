/*
 * Reduction of calibration data (ZDC section 4.1): drops random sequences, then replaces each
 * head's vectors by cluster centroids.
 *
 * ZDC gives centroids equal weight (D-21 in docs/readings.md). Times the square root of its
 * cluster's size, a centroid represents its vectors in X^T X.
 */
#ifndef KVD_ANALYSIS_REDUCE_H
#define KVD_ANALYSIS_REDUCE_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/*
 * K-means by Lloyd's iteration (Lloyd 1982): a row joins the centroid nearest in float64, the first
 * of equals; float32 products only exclude centroids. The objective never rises, and threads and
 * BLAS have no effect. An empty cluster gets the row farthest from its centroid.
 */

enum { KVD_KMEANS_ITERATIONS = 100 };
/* K-means ends when its objective falls by less than this fraction. */
#define KVD_KMEANS_FALL 1e-4

typedef struct {
    size_t n_iterations;
    /* [n_iterations] sum of squared distances before each update of the centroids */
    double objective[KVD_KMEANS_ITERATIONS];
    /* sum of squared distances to the final centroids */
    double last;
    double energy; /* sum over rows of |x|^2 */
} kvd_kmeans_trace;

/*
 * Clusters rows X [n][d] into k clusters, 1 <= k <= n. start [k]: rows that are the first
 * centroids. centroid [k][d]: means; count [k]: rows; both 0 for empty clusters.
 *
 * Fails with "interrupted" on an interrupt. Uses all threads: call from one.
 */
int kvd_kmeans(const float *X, size_t n, size_t d, size_t k, const size_t *start, double *centroid,
               size_t *count, kvd_kmeans_trace *trace, kvd_err *err);

typedef struct {
    double prune; /* fraction of the sequences to drop, in [0, 1) */
    /* centroids per tensor and head; 0: no clustering */
    size_t centroids;
    /* true: centroids are multiplied by the square root of their cluster's rows */
    bool weighted;
    uint64_t seed;
} kvd_reduction;

/* Ranges of tokens that remain in all files, and how much was dropped. */
typedef struct {
    kvd_span *span;
    size_t n_sequences, n_tokens; /* dropped sequences, and their tokens */
} kvd_pruned;

/*
 * Drops round(prune * sequences) random sequences of each file; `source` then has the remaining
 * ranges, owned by *out. Fails, naming the file, if none would remain.
 */
int kvd_prune(kvd_source *source, size_t n_sources, double prune, uint64_t seed, kvd_pruned *out,
              kvd_err *err);
void kvd_pruned_release(kvd_pruned *p);

/* Statistics of K-means, summed over heads and layers. */
typedef struct {
    size_t n, n_iterations;
    double residual, energy; /* sums over rows of |x - centroid|^2 and of |x|^2 */
    double read_s, kmeans_s;
} kvd_reduced;

/*
 * Clusters the vectors of all files together, for tensors x with need[x], into at most r->centroids
 * non-empty clusters per head. Fails with fewer tokens than centroids. Adds statistics to *sum.
 */
int kvd_reduce_layer(const kvd_source *source, size_t n_sources, const bool need[KVD_N_X],
                     int layer, const kvd_reduction *r, kvd_layer_rows *out, kvd_reduced *sum,
                     kvd_err *err);
/* Frees the arrays of *r, which may be zeroed. */
void kvd_layer_rows_release(kvd_layer_rows *r);

#endif
