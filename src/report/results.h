/* The result files a report is made of, read into one list. */
#ifndef KVD_REPORT_RESULTS_H
#define KVD_REPORT_RESULTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/stats.h"
#include "formats/error_table.h"
#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/rows.h"
#include "formats/spectrum.h"
#include "formats/tokens.h"

typedef enum {
    KVD_RESULT_SPECTRUM,
    KVD_RESULT_SIMILARITY,
    KVD_RESULT_RATES,
    KVD_RESULT_ERROR_TABLE,
    KVD_RESULT_ACCURACY,
    KVD_RESULT_KERNELS,
    KVD_RESULT_TOKENS,
    KVD_RESULT_SERVING,
    KVD_RESULT_JCT,
    KVD_RESULT_INPUT /* activations, moments, attention, fisher: listed under provenance, nothing to show */
} kvd_result_kind;

/* One line of provenance: an attribute of /provenance (or of an input) as text. */
typedef struct {
    char *name, *value;
} kvd_fact;

typedef struct {
    kvd_fact *fact;
    size_t n;
} kvd_facts;

enum { KVD_LABEL = 200 };

/*
 * One pair of a similarity file. Matrices are [n_files][n_files], row: whose basis, column: whose data; means
 * over layers and heads. "half": the leading d_head / 2 columns.
 */
typedef struct {
    kvd_pair pair;
    double *epsilon, *delta; /* [n_files], of file 0 NaN: as the papers print them, against file 0 */
    double *delta_ratio;     /* delta / epsilon of the column's file                               */
    double *aligned_ratio;   /* the same after matching column signs                               */
    double *overlap;         /* of the leading halves                                              */
    double *energy;          /* of the column's data in the leading half of the row's basis        */
    double *random[4];       /* [n_files]: those four for a random basis, the control              */
} kvd_similarity_pair;

typedef struct {
    size_t n_files, d_head, n_pairs;
    char (*label)[KVD_LABEL]; /* [n_files], file 0 is the reference */
    size_t *n_tokens;         /* [n_files]                          */
    kvd_similarity_pair *pair;
} kvd_similarity;

/* The answer of a search for what keeps a share of top-1 accuracy: value and bytes saved where it is kept, where it is first missed, and
 * the two ends of its interval. */
typedef struct {
    char name[96], key[64]; /* key "p" for files that were made before others could be searched */
    double target, value, value_misses, value_lo, value_hi;
    double saving, saving_misses, saving_lo, saving_hi; /* NaN in such files */
    bool monotone;
    int64_t n_points;
    bool
        grid; /* read off settings that differ in more than one key: of the one that saves most; values mean nothing */
} kvd_target_result;

typedef struct {
    kvd_rows *rows;
    kvd_interval *ratio; /* [row] perplexity over that of the uncompressed model; NaN without one     */
    size_t n_layers;
    double *norm, *zdc; /* [row][n_layers] attention error, means over heads; NULL when not measured */
    kvd_target_result *target;
    size_t n_targets;
    size_t n_needles;                                                /* 0: none were hidden */
    double *needle_depth, *needle_nll, *needle_agree, *needle_exact; /* [n_needles]; [row][n_needles] */
} kvd_accuracy_result;

/* Rates that a machine reached when kernels were timed on it; 0: not measured. */
typedef struct {
    char device[KVD_LABEL];
    double copy_bytes, read_bytes, flop, exps; /* per second */
} kvd_machine_rates;

typedef struct {
    kvd_rows *rows;
    kvd_machine_rates machine[2]; /* CPU, GPU; device "" when it timed nothing */
} kvd_kernels_result;

typedef struct {
    char *path;
    char schema[32];
    kvd_result_kind kind;
    char *name; /* what it is called in tables and legends: its label, made unlike the others of its kind */
    kvd_facts provenance;
    kvd_facts *input; /* [n_inputs] */
    size_t n_inputs;
    bool has_model;
    kvd_model_info model;
    /* one of these, by kind */
    kvd_spectrum spectrum; /* without bases: R and right are NULL */
    kvd_similarity similarity;
    kvd_rates rates;
    kvd_rows *proposals;     /* of a rates file of kvdim-fit --regression; else NULL */
    bool proposals_measured; /* some sweep was of its model */
    kvd_error_table errors;
    kvd_accuracy_result accuracy;
    kvd_kernels_result kernels;
    kvd_tokens tokens;
    kvd_rows *serving, *jct;
    char *skipped; /* of a jct file: what was left out and why, a line each; NULL: it does not say */
    int64_t points, points_done;
    char *no_rate; /* of a serving file: methods without a highest rate, a line each */
} kvd_result;

typedef struct {
    kvd_result *item;
    size_t n;
} kvd_results;

/*
 * Adds a file, or every *.h5 of a directory in the order of their names. A file of another schema is an
 * error that names it; activations, moments and attention are accepted from a directory only. A path that was added
 * before is an error.
 */
int kvd_results_add(kvd_results *r, const char *path, kvd_err *err);

/* Whether it is of a model with random weights: its times count, what it says of spectra and accuracies does not. */
bool kvd_result_random_weights(const kvd_result *r);

/* *some: those of r that say something of a model's spectra or accuracies, or time something. It borrows from r; the caller
 * frees some->item. */
int kvd_results_that_count(const kvd_results *r, kvd_results *some, kvd_err *err);

/* Gives every result its name. Call when all are there. */
int kvd_results_name(kvd_results *r, kvd_err *err);
void kvd_results_release(kvd_results *r);

/* The value of a fact, or "" */
const char *kvd_fact_get(const kvd_facts *f, const char *name);

/* Makes a text fit for a legend: gnuplot cuts CSV texts at commas and quotes, and draws no control characters. */
void kvd_series_clean(char *name);

/* True when the calibration text was random token ids (the label that kvdim-collect --random gives),
 * with or without a model in front. */
bool kvd_label_random(const char *label);

#endif
