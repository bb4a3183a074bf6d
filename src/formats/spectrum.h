/*
 * kvdim/spectrum files: singular values and rotation matrices of every layer and head.
 *
 * A pair is a set of matrices that share one rotation R:
 *
 *   qk        K and the queries that read it, after RoPE
 *   vw        V and the output projection W_O
 *   q, k, v   Q, K or V alone
 *   wv        W_V, the weights that produce V
 *
 * Other pairs have a "balanced" projection: two matrices per head instead of R. The left one is
 * applied to Q or V, the right one to K or W_O.
 *
 *   bqk, bvw  minimise the error of the product Q K^T or V W_O
 *   fqk, fvw  minimise the error of the model's loss (kvdim-sensitivity, from Fisher information);
 *             half of a squared singular value is a loss in nats per token
 */
#ifndef KVD_FORMATS_SPECTRUM_H
#define KVD_FORMATS_SPECTRUM_H

#include <stdbool.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_spectrum;

typedef enum {
    KVD_PAIR_QK,
    KVD_PAIR_VW,
    KVD_PAIR_Q,
    KVD_PAIR_K,
    KVD_PAIR_V,
    KVD_PAIR_WV,
    KVD_PAIR_BQK,
    KVD_PAIR_BVW,
    KVD_PAIR_FQK,
    KVD_PAIR_FVW,
    KVD_N_PAIRS
} kvd_pair;
/*
 * Names of the sets of matrices that share a rotation: "qk" "vw" "q" "k" "v" "wv" "bqk" "bvw" "fqk"
 * "fvw".
 */
extern const char *const kvd_pair_name[KVD_N_PAIRS];
/* Returns the index (kvd_pair) of the set of matrices with this name, or -1. */
int kvd_pair_find(const char *name);
/*
 * Reads the attributes pair_qk and pair_v of a file: which rotations it uses for Q and K, and for
 * V. Fails on an unknown name, and on a name for V in pair_qk or for Q and K in pair_v.
 */
int kvd_pair_attributes(kvd_h5 *f, kvd_pair pair[2], kvd_err *err);
/*
 * Returns true for bqk, bvw, fqk and fvw, which have a left and a right matrix instead of one
 * orthogonal rotation.
 */
bool kvd_pair_balanced(kvd_pair pair);
/*
 * Returns true for fqk (Q and K) and fvw (V and W_O), which kvdim-sensitivity computes from
 * gradients. Their squared singular values are losses in nats per token, so all heads can be
 * compared.
 */
bool kvd_pair_fisher(kvd_pair pair);

typedef enum { KVD_SHARED, KVD_PER_QUERY } kvd_pairing;
/*
 * Names of the values of the option --pairing: "shared" has one rotation per KV head, "per-query"
 * one per query head.
 */
extern const char *const kvd_pairing_name[2];

typedef struct {
    bool present;
    /*
     * Number of rows of the matrix that was decomposed; sigma / sqrt(n_rows) does not grow with the
     * number of tokens. bqk and bvw decompose a product, Q K^T or V W_O, whose sigma grow with both
     * dimensions of the product. For them n_rows is the number of elements of the product.
     */
    size_t n_rows;
    int n_h;       /* number of heads that have a rotation: n_kv_heads or n_heads */
    double *sigma; /* singular values, falling: [n_layers][n_h][d_head] */
    /* Rotations [n_layers][n_h][d_head][d_head], or the left matrices of balanced projections. */
    double *R;
    /* Right matrices of balanced projections, shaped like R; NULL for rotations. */
    double *right;
    /*
     * Number of heads that --method gram decomposed by tsqr (QR of the rows) instead, because their
     * Gram matrix was too ill-conditioned.
     */
    size_t by_tsqr;
    /* True if cuSOLVER computed the eigenvalues. It did not for the heads counted in by_tsqr. */
    bool on_gpu;
} kvd_pair_spectrum;

/*
 * How calibration tokens were selected and clustered before the decomposition (analysis/reduce.h),
 * and the seconds of each step.
 */
typedef struct {
    /* Fraction of each text's sequences that was left out; 0 means none. */
    double prune;
    /* Numbers of sequences and tokens that were left out. */
    size_t sequences_dropped, tokens_dropped;
    /*
     * Number of K-means centroids per tensor and head that replaced the vectors of the tokens; 0 if
     * the vectors themselves were used.
     */
    size_t centroids;
    /* K-means centroids are weighted by the square root of the number of their token vectors. */
    bool weighted;
    /* Iterations of K-means, mean over tensors, layers and heads. */
    double kmeans_iterations;
    /*
     * Relative error of K-means: sum of |x - c|^2 / sum of |x|^2 over the vectors x of all tokens
     * and their centroids c, for all tensors, layers and heads.
     */
    double kmeans_residual;
    double seconds_collect; /* seconds for recording the input files */
    /*
     * Seconds for reading the vectors x of the tokens and for summing the products x^T x (Gram
     * matrices).
     */
    double seconds_rows;
    double seconds_kmeans, seconds_decompose;
} kvd_calibration;

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    /* How the singular values were computed: "svd", "tsqr" (QR of the rows) or "gram". */
    char method[8];
    /* Form of Q and K: "after" or "before" RoPE; "none" if the model has no RoPE. */
    char rope[8];
    kvd_pairing pairing;
    /* Number of calibration tokens, without sequences left out, and length of a sequence. */
    size_t n_tokens, seq_len;
    int first_layer, n_layers;
    kvd_calibration calibration;
    kvd_pair_spectrum pair[KVD_N_PAIRS];
} kvd_spectrum;

/*
 * Returns the number of heads that have a rotation of their own in the set of matrices `pair`. That
 * is n_kv_heads if `pairing` is shared. If `pairing` is per-query, it is n_heads for qk, q and vw,
 * because they have a matrix per query head, and n_kv_heads for the other sets.
 */
int kvd_pair_heads(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing);

/*
 * Allocates zeroed singular values and rotations of one pair of matrices (such as Q and K). The
 * sizes follow from s->model, s->n_layers and s->pairing (one rotation per KV head, or one per
 * query head).
 */
int kvd_spectrum_alloc(kvd_spectrum *s, kvd_pair pair, kvd_err *err);
/* Returns the singular values [d_head] of one head. */
double *kvd_spectrum_sigma(const kvd_spectrum *s, kvd_pair pair, int layer, int h);
/* Return the rotation, or the right matrix, of one head: [d_head][d_head]. */
double *kvd_spectrum_R(const kvd_spectrum *s, kvd_pair pair, int layer, int h);
double *kvd_spectrum_right(const kvd_spectrum *s, kvd_pair pair, int layer, int h);

/*
 * Size of the text of a hash of rotations. kvd_spectrum_bases_hash writes "xxh3:" and the XXH3-128
 * of the rotations (R, or left and right) of pair[0], for Q and K, and pair[1], for V. *s must have
 * both. Singular values, labels and other rotations have no effect on the hash.
 */
enum { KVD_BASES_HASH = 40 };
int kvd_spectrum_bases_hash(const kvd_spectrum *s, const kvd_pair pair[2],
                            char hash[KVD_BASES_HASH], kvd_err *err);

/*
 * Returns the effective rank of a head: exp of the entropy of sigma_i^2 / sum sigma^2. Roy and
 * Vetterli (2007) define it with singular values; this uses their squares. The range is 1 .. d; 0
 * if all sigma are 0.
 */
double kvd_effective_rank(const double *sigma, size_t d);
/*
 * Returns the smallest number of leading dimensions that hold the fraction `share` of the energy
 * sum sigma^2.
 */
int kvd_energy_rank(const double *sigma, size_t d, double share);

/*
 * Summary, over all layers and heads, of the singular values of one set of matrices (such as Q and
 * K).
 */
typedef struct {
    size_t heads, n_rows;
    /*
     * Mean and coefficient of variation (CV, standard deviation / mean) over heads of the largest
     * singular value of each head. The standard deviation of n values divides by n - 1. ZACK prints
     * these numbers in Tables 6 and 7.
     */
    double mean_max_sigma, cv_max_sigma;
    /*
     * Effective rank and numbers of dimensions that hold 90 % and 99 % of the energy, means over
     * heads.
     */
    double effective_rank, rank90, rank99;
} kvd_pair_summary;
int kvd_spectrum_summarise(const kvd_spectrum *s, kvd_pair pair, kvd_pair_summary *out,
                           kvd_err *err);

/*
 * Frees the rotations (and the right matrices of balanced projections) but keeps the singular
 * values. The pointers R and right are then NULL, and kvd_spectrum_write leaves the matrices out.
 */
void kvd_spectrum_drop_bases(kvd_spectrum *s);

/*
 * Writes a kvdim/spectrum file. Also writes values derived from sigma: /<pair>/effective_rank
 * [layer][h], /<pair>/mean_sigma [dim], /<pair>/mean_sigma_normalised [dim] and the attribute
 * cv_max_sigma.
 */
int kvd_spectrum_write(kvd_h5 *f, const kvd_spectrum *s, kvd_err *err);
/*
 * Reads a kvdim/spectrum file. Refuses singular values that are NaN, negative or rising, and
 * rotations R that are not orthogonal to 1e-8; the message names the matrices, layer and head.
 */
int kvd_spectrum_load(kvd_spectrum *s, const char *path, kvd_err *err);
/*
 * Like kvd_spectrum_load, but also reads files without rotations (kvdim-spectrum --no-bases). The
 * pointers R and right are then NULL.
 */
int kvd_spectrum_load_values(kvd_spectrum *s, const char *path, kvd_err *err);
void kvd_spectrum_release(kvd_spectrum *s);

#endif
