/*
 * kvdim/spectrum: singular values and bases per pair, layer and head.
 *
 * Pairs (DESIGN words): what shares one rotation.
 *   qk   K and the queries that read it, after RoPE     q, k, v   the single ones
 *   vw   V and W_O                                       wv        the columns of W_V
 *   bqk, bvw   the score-optimal ("balanced") projections: a left and a right matrix instead of R
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
    KVD_N_PAIRS
} kvd_pair;
extern const char *const kvd_pair_name[KVD_N_PAIRS]; /* "qk" "vw" "q" "k" "v" "wv" "bqk" "bvw" */
/* The pair of that name, or -1. */
int kvd_pair_find(const char *name);
/* "qk,vw" -> flags [KVD_N_PAIRS]; *err names an unknown one. */
int kvd_pair_list(const char *option, const char *text, bool *wanted, kvd_err *err);

typedef enum { KVD_SHARED, KVD_PER_QUERY } kvd_pairing;
extern const char *const kvd_pairing_name[2]; /* "shared", "per-query" */

typedef struct {
    bool present;
    size_t n_rows; /* rows of the matrix decomposed, for the normalised curve       */
    int n_h;       /* heads of this pair: n_kv_heads, or n_heads                    */
    double *sigma; /* [n_layers][n_h][d_head], falling                              */
    double *R;     /* [n_layers][n_h][d_head][d_head]; for bqk, bvw the left matrix */
    double *right; /* bqk, bvw only: the right matrix, same shape; else NULL        */
} kvd_pair_spectrum;

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    char method[8]; /* "svd" | "tsqr" | "gram"                      */
    char rope[8];   /* "after" | "before": which Q and K            */
    kvd_pairing pairing;
    size_t n_tokens, seq_len;
    int first_layer, n_layers;
    kvd_pair_spectrum pair[KVD_N_PAIRS];
} kvd_spectrum;

/* n_h of a pair under a pairing: per KV head when shared; per query head for qk, q, vw when per-query. */
int kvd_pair_heads(const kvd_model_info *m, kvd_pair pair, kvd_pairing pairing);

int kvd_spectrum_alloc(kvd_spectrum *s, kvd_pair pair, kvd_err *err);
double *kvd_spectrum_sigma(const kvd_spectrum *s, kvd_pair pair, int layer, int h); /* [d_head]         */
double *kvd_spectrum_R(const kvd_spectrum *s, kvd_pair pair, int layer, int h);     /* [d_head][d_head] */
double *kvd_spectrum_right(const kvd_spectrum *s, kvd_pair pair, int layer, int h);

/* Also writes what is derived: /<pair>/effective_rank [layer][h], /<pair>/mean_sigma [dim],
 * /<pair>/mean_sigma_normalised [dim], attribute cv_max_sigma. */
int kvd_spectrum_write(kvd_h5 *f, const kvd_spectrum *s, kvd_err *err);
/* Refuses NaN, negative or rising sigma, and an R that is not orthogonal to 1e-8, naming the place. */
int kvd_spectrum_load(kvd_spectrum *s, const char *path, kvd_err *err);
void kvd_spectrum_release(kvd_spectrum *s);

#endif
