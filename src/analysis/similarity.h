/*
 * Similarity of rotations: the measures of ZACK, section 4, and measures that ignore column signs
 * (Z-7, docs/readings.md).
 */
#ifndef KVD_ANALYSIS_SIMILARITY_H
#define KVD_ANALYSIS_SIMILARITY_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "formats/similarity.h"

/* Returns the mean absolute entry of R [d][d] (AABS in ZACK). */
double kvd_mean_abs(const double *R, size_t d);
/* Returns the mean absolute entry of A - B (AABS(SUB) in ZACK). */
double kvd_delta(const double *A, const double *B, size_t d);
/*
 * Returns kvd_delta after changing the sign of each column of B whose scalar product with that of A
 * is negative.
 */
double kvd_delta_aligned(const double *A, const double *B, size_t d);

/*
 * Fills overlap [d] with || A_m^T B_m ||_F^2 / m for m = 1 .. d, where A_m and B_m are the first m
 * columns of A and B. For random A and B this is m / d on average.
 */
int kvd_overlap(const double *A, const double *B, size_t d, double *overlap, kvd_err *err);

/*
 * Fills energy [d] with sum_{j < m} || X_B a_j ||^2 / || X_B ||^2, m = 1 .. d, where a_j are
 * columns of A and X_B^T X_B = R_B diag(sigma_B^2) R_B^T. The result is 1 if || X_B || is 0.
 */
int kvd_energy_kept(const double *A, const double *R_B, const double *sigma_B, size_t d,
                    double *energy, kvd_err *err);

/* Fills R [d][d] with a random orthogonal matrix, uniformly distributed (Haar). */
int kvd_random_basis(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err);

/* Returns d / 2 rounded down, but at least 1. */
size_t kvd_half(size_t d);

/*
 * Fails if files differ in model, pairing, layers or RoPE, or if two files have equal labels but
 * different hashes of their texts.
 */
int kvd_comparable(const kvd_spectrum *s, const char *const *path, size_t n_files, kvd_err *err);

/* Compares the rotations of all files and a random one. Refuses KVD_PAIR_BQK and KVD_PAIR_BVW. */
int kvd_compare(const kvd_spectrum *s, size_t n_files, kvd_pair pair, uint64_t seed,
                kvd_comparison *out, kvd_err *err);
void kvd_comparison_release(kvd_comparison *c);

#endif
