/*
 * kvdim/spectrum: singular values and bases per pair, layer and head.
 *
 * A pair is a set of matrices that share one rotation:
 *   qk        K and the queries that read it, after RoPE
 *   vw        V and W_O
 *   q, k, v   one tensor alone
 *   wv        the columns of W_V
 *   bqk, bvw  score-optimal ("balanced") projections: a left and a right matrix instead of R
 *   fqk, fvw  balanced projections weighted by Fisher information (kvdim-sensitivity); sigma^2 / 2
 *             is in nats per token
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
/* names of the pairs: "qk" "vw" "q" "k" "v" "wv" "bqk" "bvw" "fqk" "fvw" */
extern const char *const kvd_pair_name[KVD_N_PAIRS];
/* Returns the pair (kvd_pair) with this name, or -1. */
int kvd_pair_find(const char *name);
/* Reads the root attributes pair_qk and pair_v of a file. Each must name a pair of its side. */
int kvd_pair_attributes(kvd_h5 *f, kvd_pair pair[2], kvd_err *err);
/*
 * Returns true for bqk, bvw, fqk and fvw, which have a left and a right matrix; neither is
 * orthogonal.
 */
bool kvd_pair_balanced(kvd_pair pair);
/*
 * Returns true for fqk and fvw, which are computed from gradients (kvdim-sensitivity). Dumps and
 * moments do not hold these. sigma of all heads has one unit, so heads can be compared.
 */
bool kvd_pair_fisher(kvd_pair pair);

typedef enum { KVD_SHARED, KVD_PER_QUERY } kvd_pairing;
extern const char *const kvd_pairing_name[2]; /* "shared", "per-query" */

typedef struct {
    bool present;
    /*
     * rows of the matrix that was decomposed, for the normalised curve; for bqk and bvw the number
     * of entries of the product: rows of one factor times rows of the other
     */
    size_t n_rows;
    int n_h;       /* number of heads of this pair: n_kv_heads or n_heads */
    double *sigma; /* [n_layers][n_h][d_head], falling */
    double *R;     /* [n_layers][n_h][d_head][d_head]; for bqk, bvw the left matrix */
    double *right; /* bqk, bvw only: the right matrix, shaped like R; else NULL */
    /*
     * number of heads that --method gram decomposed by tsqr, because their Gram matrix was too
     * ill-conditioned
     */
    size_t by_tsqr;
    bool on_gpu; /* eigenvalues by cuSOLVER, except for heads of by_tsqr */
} kvd_pair_spectrum;

/*
 * Selection and clustering of rows before the decomposition (analysis/reduce.h), and seconds of
 * each step.
 */
typedef struct {
    /* share of each text's sequences that was left out; 0: none */
    double prune;
    size_t sequences_dropped, tokens_dropped; /* numbers left out */
    /* number of K-means centroids per tensor and head; 0: the rows themselves were used */
    size_t centroids;
    bool weighted; /* centroids are weighted by the square root of their number of rows */
    double kmeans_iterations; /* mean over tensors, layers and heads */
    /* sum of |row - centroid|^2 / sum of |row|^2, over all tensors, layers and heads */
    double kmeans_residual;
    double seconds_collect; /* total seconds that made the input files */
    double seconds_rows;    /* seconds for reading rows and summing their products */
    double seconds_kmeans, seconds_decompose;
} kvd_calibration;

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    char method[8]; /* "svd" | "tsqr" | "gram" */
    char rope[8];   /* Q and K "after" or "before" RoPE; "none": the model has no RoPE */
    kvd_pairing pairing;
    size_t n_tokens, seq_len; /* tokens used, without those of sequences left out */
    int first_layer, n_layers;
    kvd_calibration calibration;
    kvd_pair_spectrum pair[KVD_N_PAIRS];
} kvd_spectrum;

/*
 * Returns the number of heads of a pair: n_kv_heads if `shared`; n_heads for qk, q and vw if
 * `per-query`.
 */
int kvd_pair_heads(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing);

/* Allocates zeroed sigma and R for one pair, from model, pairing and n_layers in *s. */
int kvd_spectrum_alloc(kvd_spectrum *s, kvd_pair pair, kvd_err *err);
double *kvd_spectrum_sigma(const kvd_spectrum *s, kvd_pair pair, int layer, int h); /* [d_head] */
/* [d_head][d_head] */
double *kvd_spectrum_R(const kvd_spectrum *s, kvd_pair pair, int layer, int h);
double *kvd_spectrum_right(const kvd_spectrum *s, kvd_pair pair, int layer, int h);

/*
 * kvd_spectrum_bases_hash writes a hash of the bases (R, or left and right) of two pairs, which
 * must be present: "xxh3:" and their XXH3-128. Singular values, labels and other pairs have no
 * effect on it.
 */
enum { KVD_BASES_HASH = 40 };
int kvd_spectrum_bases_hash(const kvd_spectrum *s, const kvd_pair pair[2],
                            char hash[KVD_BASES_HASH], kvd_err *err);

/*
 * Returns the effective rank: exp of the entropy of sigma_i^2 / sum sigma^2. Roy and Vetterli
 * (2007) define it with singular values; this uses their squares. The range is 1 .. d; 0 if all
 * sigma are 0.
 */
double kvd_effective_rank(const double *sigma, size_t d);
/*
 * Returns the smallest number of leading dimensions that hold this share of the energy sum sigma^2.
 */
int kvd_energy_rank(const double *sigma, size_t d, double share);

/* Summary of the singular values of a pair over all layers and heads. */
typedef struct {
    size_t heads, n_rows;
    /* CV is the sample standard deviation (n - 1) / mean, as in ZACK Tables 6 and 7. */
    double mean_max_sigma, cv_max_sigma;
    double effective_rank, rank90, rank99; /* means over heads */
} kvd_pair_summary;
int kvd_spectrum_summarise(const kvd_spectrum *s, kvd_pair pair, kvd_pair_summary *out,
                           kvd_err *err);

/*
 * Frees the bases of every pair: R and right are then NULL, and kvd_spectrum_write leaves them out.
 */
void kvd_spectrum_drop_bases(kvd_spectrum *s);

/*
 * Writes a kvdim/spectrum file. Also writes derived values: /<pair>/effective_rank [layer][h],
 * /<pair>/mean_sigma [dim], /<pair>/mean_sigma_normalised [dim], attribute cv_max_sigma.
 */
int kvd_spectrum_write(kvd_h5 *f, const kvd_spectrum *s, kvd_err *err);
/*
 * Reads a kvdim/spectrum file. Refuses NaN, negative or rising sigma, and an R that is not
 * orthogonal to 1e-8; the message names pair, layer and head.
 */
int kvd_spectrum_load(kvd_spectrum *s, const char *path, kvd_err *err);
/*
 * Like kvd_spectrum_load, but also reads files without bases (kvdim-spectrum --no-bases); R and
 * right are then NULL.
 */
int kvd_spectrum_load_values(kvd_spectrum *s, const char *path, kvd_err *err);
void kvd_spectrum_release(kvd_spectrum *s);

#endif
