/*
 * kvdim/spectrum: singular values and bases per pair, layer and head.
 *
 * Pairs (DESIGN words): what shares one rotation.
 *   qk   K and the queries that read it, after RoPE     q, k, v   the single ones
 *   vw   V and W_O                                       wv        the columns of W_V
 *   bqk, bvw   the score-optimal ("balanced") projections: a left and a right matrix instead of R
 *   fqk, fvw   the same form, weighed by Fisher information (kvdim-sensitivity): half of sigma^2 is nats per token
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
extern const char *const kvd_pair_name[KVD_N_PAIRS]; /* "qk" "vw" "q" "k" "v" "wv" "bqk" "bvw" "fqk" "fvw" */
/* The pair of that name, or -1. */
int kvd_pair_find(const char *name);
/* "qk,vw" -> flags [KVD_N_PAIRS]; *err names an unknown one. */
int kvd_pair_list(const char *option, const char *text, bool *wanted, kvd_err *err);
/* The pairs that the root attributes pair_qk and pair_v of a file name, each of its own side. */
int kvd_pair_attributes(kvd_h5 *f, kvd_pair pair[2], kvd_err *err);
/* bqk, bvw, fqk, fvw: a left and a right matrix, neither orthogonal. */
bool kvd_pair_balanced(kvd_pair pair);
/* fqk, fvw: from gradients, so neither dumps nor moments have what it takes, and sigma of all heads has one unit. */
bool kvd_pair_fisher(kvd_pair pair);

typedef enum { KVD_SHARED, KVD_PER_QUERY } kvd_pairing;
extern const char *const kvd_pairing_name[2]; /* "shared", "per-query" */

typedef struct {
    bool present;
    size_t n_rows; /* rows of the matrix decomposed, for the normalised curve; for bqk, bvw
                    * the entries of the product: rows of the one times rows of the other */
    int n_h;       /* heads of this pair: n_kv_heads, or n_heads                    */
    double *sigma; /* [n_layers][n_h][d_head], falling                              */
    double *R;     /* [n_layers][n_h][d_head][d_head]; for bqk, bvw the left matrix */
    double *right; /* bqk, bvw only: the right matrix, same shape; else NULL        */
    size_t
        by_tsqr; /* heads of method gram that were decomposed by tsqr: too ill-conditioned for a Gram matrix */
    bool
        on_gpu; /* eigenvalues by cuSOLVER, but for the heads of by_tsqr                                    */
} kvd_pair_spectrum;

/* What became of the rows before they were decomposed (analysis/reduce.h), and what each step took. */
typedef struct {
    double prune;                             /* share of every text's sequences left out; 0: none   */
    size_t sequences_dropped, tokens_dropped; /* that were                                           */
    size_t centroids;                         /* K-means: per tensor and head; 0: the rows themselves */
    bool weighted;                            /* each by the square root of its number of rows        */
    double kmeans_iterations;                 /* mean over tensors, layers and heads                  */
    double kmeans_residual; /* sum of |row - centroid|^2 over sum of |row|^2, over all of them         */
    double seconds_collect; /* that making the inputs took, all of them together                       */
    double seconds_rows;    /* reading rows and summing their products, before what follows            */
    double seconds_kmeans, seconds_decompose;
} kvd_calibration;

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    char method[8]; /* "svd" | "tsqr" | "gram"                      */
    char rope[8];   /* "after" | "before": which Q and K; "none": the model has no RoPE */
    kvd_pairing pairing;
    size_t n_tokens, seq_len; /* tokens used: without those of dropped sequences */
    int first_layer, n_layers;
    kvd_calibration calibration;
    kvd_pair_spectrum pair[KVD_N_PAIRS];
} kvd_spectrum;

/* n_h of a pair under a pairing: per KV head when shared; per query head for qk, q, vw when per-query. */
int kvd_pair_heads(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing);

/* Zeroed room for one pair, from model, pairing and n_layers in *s. */
int kvd_spectrum_alloc(kvd_spectrum *s, kvd_pair pair, kvd_err *err);
double *kvd_spectrum_sigma(const kvd_spectrum *s, kvd_pair pair, int layer, int h); /* [d_head]         */
double *kvd_spectrum_R(const kvd_spectrum *s, kvd_pair pair, int layer, int h);     /* [d_head][d_head] */
double *kvd_spectrum_right(const kvd_spectrum *s, kvd_pair pair, int layer, int h);

/* Two pairs that must be present: "xxh3:" and XXH3-128 of their bases as they are used (R, or left and right).
 * Singular values, labels and other pairs do not count. */
enum { KVD_BASES_HASH = 40 };
int kvd_spectrum_bases_hash(const kvd_spectrum *s, const kvd_pair pair[2], char hash[KVD_BASES_HASH],
                            kvd_err *err);

/*
 * Effective rank: exp of the entropy of sigma_i^2 / sum sigma^2, as Roy and Vetterli (2007) define it but with
 * energies in place of their singular values; 1 .. d, and 0 when all sigma are 0.
 */
double kvd_effective_rank(const double *sigma, size_t d);
/* The smallest number of leading dimensions that hold this share of the energy sum sigma^2. */
int kvd_energy_rank(const double *sigma, size_t d, double share);

/* Over all layers and heads of a pair. */
typedef struct {
    size_t heads, n_rows;
    double mean_max_sigma, cv_max_sigma; /* CV: sample standard deviation (n - 1) / mean, ZACK tables 6, 7 */
    double effective_rank, rank90, rank99; /* means over heads                                             */
} kvd_pair_summary;
int kvd_spectrum_summarise(const kvd_spectrum *s, kvd_pair pair, kvd_pair_summary *out, kvd_err *err);

/* Also writes what is derived: /<pair>/effective_rank [layer][h], /<pair>/mean_sigma [dim],
 * /<pair>/mean_sigma_normalised [dim], attribute cv_max_sigma. */
int kvd_spectrum_write(kvd_h5 *f, const kvd_spectrum *s, kvd_err *err);
/* Refuses NaN, negative or rising sigma, and an R that is not orthogonal to 1e-8, naming the place. */
int kvd_spectrum_load(kvd_spectrum *s, const char *path, kvd_err *err);
void kvd_spectrum_release(kvd_spectrum *s);

#endif
