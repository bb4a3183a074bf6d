/* kvdim/spectrum files: singular values and rotations (orthogonal matrices) of every layer and
 * head.
 *
 * A kvd_pair names the matrices that share one rotation R:
 *
 * - qk: K and the queries of its heads, after RoPE
 * - vw: V and the output projection W_O
 * - q, k, v: Q, K or V alone
 * - wv: W_V, the weights that produce V
 *
 * A balanced kvd_pair has two projection matrices instead of one rotation: a left one for Q or V, a
 * right one for K or W_O.
 *
 * - bqk (for Q and K), bvw (for V and W_O): minimise the error of Q K^T or V W_O
 * - fqk (for Q and K), fvw (for V and W_O): minimise the rise of the model's loss. In nats per
 *   token, this rise is about half of the sum of the squared singular values of the removed
 *   dimensions. */
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
/* Names of jointly decomposed matrices: "qk" (queries and keys) and so on. */
extern const char *const kvd_pair_name[KVD_N_PAIRS];
/* Returns the kvd_pair with a name such as "qk" (queries and keys), or -1 if the name is
 * unknown. */
int kvd_pair_find(const char *name);
/* Reads from the attributes pair_qk and pair_v which matrices were decomposed together, for example
 * "qk" and "vw". Fails on an unknown name. */
int kvd_pair_attributes(kvd_h5 *f, kvd_pair pair[2], kvd_err *err);
/* Returns true if the two matrices of a pair, such as Q and K, are projected by two different
 * matrices. Returns false if one rotation is used for both. */
bool kvd_pair_balanced(kvd_pair pair);
/* Returns true for KVD_PAIR_FQK and KVD_PAIR_FVW, whose singular values tell how much the model's
 * loss rises when dimensions are removed. */
bool kvd_pair_fisher(kvd_pair pair);

typedef enum { KVD_SHARED, KVD_PER_QUERY } kvd_pairing;
/* Names of kvd_pairing: "shared" means one rotation per KV head, "per-query" one per query head. */
extern const char *const kvd_pairing_name[2];

typedef struct {
    bool present;
    /* number of rows of the decomposed matrix; readers of the file divide singular values by
     * sqrt(n_rows) */
    size_t n_rows;
    int n_h;       /* number of heads that have a rotation */
    double *sigma; /* singular values, falling: [n_layers][n_h][d_head] */
    double *R;     /* rotations, or left matrices: [n_layers][n_h][d_head][d_head] */
    double *right; /* right matrices, shaped like R; NULL if the kvd_pair is not balanced */
    /* number of heads that needed a QR decomposition, because X^T X was ill-conditioned */
    size_t by_tsqr;
    bool on_gpu; /* true if cuSOLVER computed the eigenvalues */
} kvd_pair_spectrum;

/* how calibration tokens were reduced before the singular value decomposition: by leaving out
 * sequences, or by k-means */
typedef struct {
    /* fraction of sequences that was left out of the calibration, the same in each text */
    double prune;
    size_t sequences_dropped, tokens_dropped;
    size_t tokens_cut; /* number of input tokens that --tokens cut off */
    /* number of K-means centroids per head that are decomposed instead of the tokens' vectors; 0:
     * the vectors themselves */
    size_t centroids;
    bool weighted; /* true if a centroid is weighted by the square root of its cluster's size */
    double kmeans_iterations; /* iterations of K-means, mean over tensors, layers and heads */
    /* sum of |x - centroid|^2 over all vectors x that K-means clusters, divided by the sum of
     * |x|^2 */
    double kmeans_residual;
    double seconds_collect; /* seconds that recording the input files took */
    /* seconds for reading tokens and summing X^T X */
    double seconds_rows;
    double seconds_kmeans, seconds_decompose;
} kvd_calibration;

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[KVD_CORPUS_HASH_TEXT];
    char method[8]; /* method of decomposition: "svd", "tsqr" (QR of the rows) or "gram" */
    /* stage at which Q and K were recorded: "after" or "before" RoPE, or "none" if the model has no
     * RoPE */
    char rope[8];
    kvd_pairing pairing;
    /* number of calibration tokens, and number of tokens per sequence */
    size_t n_tokens, seq_len;
    int first_layer, n_layers;
    kvd_calibration calibration;
    kvd_pair_spectrum pair[KVD_N_PAIRS];
} kvd_spectrum;

/* Returns the calibration text's name and hash. The strings in the result belong to *s. */
kvd_named_text kvd_spectrum_text(const kvd_spectrum *s, const char *path);

/* Returns how many heads per layer have a rotation of their own: all query heads or all KV
 * heads. */
int kvd_pair_heads(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing);

/* Allocates singular values and rotations, all 0. The caller has set s->model, s->n_layers and
 * s->pairing. */
int kvd_spectrum_alloc(kvd_spectrum *s, kvd_pair pair, kvd_err *err);
double *kvd_spectrum_sigma(const kvd_spectrum *s, kvd_pair pair, int layer, int h);
double *kvd_spectrum_R(const kvd_spectrum *s, kvd_pair pair, int layer, int h);
double *kvd_spectrum_right(const kvd_spectrum *s, kvd_pair pair, int layer, int h);

enum { KVD_BASES_HASH = 40 };
/* Writes the XXH3-128 hash of the rotations of Q and K (pair[0]) and V (pair[1]). */
int kvd_spectrum_bases_hash(const kvd_spectrum *s, const kvd_pair pair[2],
                            char hash[KVD_BASES_HASH], kvd_err *err);

/* Returns the effective rank: exp of the entropy of sigma^2 / sum(sigma^2). */
double kvd_effective_rank(const double *sigma, size_t d);
/* Returns how many dimensions hold the fraction `share` of sum(sigma^2). */
int kvd_energy_rank(const double *sigma, size_t d, double share);

typedef struct {
    size_t heads, n_rows;
    /* largest singular value of a head: its mean over heads, and its coefficient of variation */
    double mean_max_sigma, cv_max_sigma;
    /* means over heads: effective rank, dimensions that hold 90 % and 99 % of sum(sigma^2) */
    double effective_rank, rank90, rank99;
} kvd_pair_summary;
int kvd_spectrum_summarise(const kvd_spectrum *s, kvd_pair pair, kvd_pair_summary *out,
                           kvd_err *err);

/* Frees the rotation matrices (bases) in *s, but keeps the singular values. */
void kvd_spectrum_drop_bases(kvd_spectrum *s);

/* Writes singular values and rotations. Also writes the effective rank of each head, and the
 * singular values averaged over heads. */
int kvd_spectrum_write(kvd_h5 *f, const kvd_spectrum *s, kvd_err *err);
/* Reads a file of singular values and rotations. Fails if singular values rise, or rotations are
 * not orthogonal to 1e-8. */
int kvd_spectrum_load(kvd_spectrum *s, const char *path, kvd_err *err);
/* Reads a file of singular values, and rotations if the file has them. Otherwise the pointers `R`
 * and `right` become NULL. */
int kvd_spectrum_load_values(kvd_spectrum *s, const char *path, kvd_err *err);
void kvd_spectrum_release(kvd_spectrum *s);

#endif
