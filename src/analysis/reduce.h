/* Reduction of calibration data (ZDC paper, section 4.1): dropping random sequences, and
 * k-means. */
#ifndef KVD_ANALYSIS_REDUCE_H
#define KVD_ANALYSIS_REDUCE_H

#include <stddef.h>

#include "analysis/pairs.h"
#include "common/err.h"

/* Largest number of iterations of k-means. A cluster that becomes empty gets the vector farthest
 * from its centroid. */

enum { KVD_KMEANS_ITERATIONS = 100 };
/* K-means ends when the sum of squared distances falls by less than this fraction. */
#define KVD_KMEANS_FALL 1e-4

typedef struct {
    size_t n_iterations;
    /* [n_iterations] sum of squared distances before each update of the centroids */
    double objective[KVD_KMEANS_ITERATIONS];
    double last;   /* sum of squared distances to the final centroids */
    double energy; /* sum over rows of |x|^2 */
} kvd_kmeans_trace;

/* Divides the rows of X [n][d] into k clusters by k-means. start [k]: indices of the rows that are
 * the initial centroids. Writes the clusters' means to centroid [k][d] and their sizes to count
 * [k]. */
int kvd_kmeans(const float *X, size_t n, size_t d, size_t k, const size_t *start, double *centroid,
               size_t *count, kvd_kmeans_trace *trace, kvd_err *err);

typedef struct {
    double prune;     /* fraction of the sequences to drop, in [0, 1) */
    size_t centroids; /* number of centroids per tensor and head; 0 means no clustering */
    /* centroids are multiplied by the square root of their cluster's size */
    bool weighted;
    uint64_t seed;
} kvd_reduction;

/* Result of dropping random sequences of the input files: token ranges that remain, and numbers of
 * dropped sequences and tokens. */
typedef struct {
    kvd_span *span;
    size_t n_sequences, n_tokens; /* number of dropped sequences, and of their tokens */
} kvd_pruned;

/* Drops round(prune * sequences) random sequences of each input file. *out owns the remaining
 * ranges of tokens. Fails if no tokens remain. */
int kvd_prune(kvd_source *source, size_t n_sources, double prune, uint64_t seed, kvd_pruned *out,
              kvd_err *err);
void kvd_pruned_release(kvd_pruned *p);

/* Number of k-means runs, their iterations, squared errors and seconds, summed over heads and
 * layers. */
typedef struct {
    size_t n, n_iterations;
    double residual, energy; /* sums over rows of |x - centroid|^2 and of |x|^2 */
    double read_s, kmeans_s;
} kvd_reduced;

/* Replaces the vectors of all files, in one layer, by r->centroids cluster means per head. Fails if
 * there are too few tokens. */
int kvd_reduce_layer(const kvd_source *source, size_t n_sources, const bool need[KVD_N_X],
                     int layer, const kvd_reduction *r, kvd_layer_rows *out, kvd_reduced *sum,
                     kvd_err *err);
void kvd_layer_rows_release(kvd_layer_rows *r);

#endif
