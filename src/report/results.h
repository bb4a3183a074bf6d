#ifndef KVD_REPORT_RESULTS_H
#define KVD_REPORT_RESULTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/run.h"
#include "formats/accuracy.h"
#include "formats/error_table.h"
#include "formats/kernels.h"
#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/rows.h"
#include "formats/similarity.h"
#include "formats/spectrum.h"
#include "formats/tokens.h"

typedef enum {
    KVD_RESULT_SPECTRUM,
    KVD_RESULT_SIMILARITY,
    KVD_RESULT_RATES,
    KVD_RESULT_ERROR_TABLE,
    KVD_RESULT_ACCURACY,
    /* A kvdim/tasks file. Its results are in the member `accuracy`. */
    KVD_RESULT_TASKS,
    KVD_RESULT_KERNELS,
    KVD_RESULT_TOKENS,
    KVD_RESULT_SERVING,
    KVD_RESULT_JCT,
    KVD_RESULT_INPUT /* an activations, moments, attention or fisher file */
} kvd_result_kind;

/* An attribute of the HDF5 group /provenance, as text. */
typedef struct {
    char *name, *value;
} kvd_fact;

typedef struct {
    kvd_fact *fact;
    size_t n;
} kvd_facts;

enum { KVD_LABEL = 200 };

typedef struct {
    char *path;
    char hash[KVD_HASH_TEXT]; /* hash of the bytes of the file; "" for KVD_RESULT_INPUT */
    char schema[32];
    kvd_result_kind kind;
    /* Name of the result in tables and legends: its label, and more if labels are equal. */
    char *name;
    kvd_facts provenance;
    /* [n_inputs] Provenance of each input file of the result. */
    kvd_facts *input;
    size_t n_inputs;
    bool has_model;
    kvd_model_info model;
    /* Contents of the file. Only the member that belongs to `kind` is filled. */
    /* Singular values of a spectrum file. Its rotations are not read. */
    kvd_spectrum spectrum;
    kvd_similarity similarity;
    kvd_rates rates;
    kvd_rows *proposals; /* parameters that kvdim-fit --regression proposed, or NULL */
    /* True if the regression was fitted to measurements of this model. */
    bool proposals_measured;
    kvd_error_table errors;
    kvd_accuracy_result accuracy;
    /*
     * Label and content hash of the evaluated texts of an accuracy file or error table; NULL if not
     * recorded.
     */
    char *corpus_label, *corpus_hash;
    /* Number of tokens of the evaluated texts, and sequence length; 0 if not recorded. */
    size_t corpus_tokens, corpus_seq_len;
    kvd_kernels kernels;
    kvd_tokens tokens;
    kvd_rows *serving, *jct;
    char *skipped; /* jobs that were not run, with reasons, one per line; NULL if not recorded */
    /*
     * Number of planned measurements of a sweep, and number of those in the file; 0 if not
     * recorded.
     */
    int64_t points, points_done;
    char *no_rate; /* methods of a serving file that sustain no request rate, one per line */
} kvd_result;

typedef struct {
    kvd_result *item;
    size_t n;
} kvd_results;

/*
 * Adds a result file, or all .h5 files of a folder. Fails on an unknown schema or a repeated file.
 */
int kvd_results_add(kvd_results *r, const char *path, kvd_err *err);

/* Returns the number of result files of one schema (`kind`). */
size_t kvd_results_count(const kvd_results *r, kvd_result_kind kind);

/*
 * Returns true if the result's model has random weights: its times are valid, singular values and
 * accuracies are not.
 */
bool kvd_result_random_weights(const kvd_result *r);

/*
 * Fills *some with the results that count: all of trained models, but only times of random weights.
 * The caller frees some->item.
 */
int kvd_results_that_count(const kvd_results *r, kvd_results *some, kvd_err *err);

/* Sets `name` of every result. Call it after all results were added. */
int kvd_results_name(kvd_results *r, kvd_err *err);
void kvd_results_release(kvd_results *r);

/* Returns the value of the attribute `name`, or "" if it is missing. */
const char *kvd_fact_get(const kvd_facts *f, const char *name);

/*
 * Replaces in a name the characters that gnuplot would misread: commas, quotes and control
 * characters.
 */
void kvd_series_clean(char *name);

/* Returns true if a label means random token ids (kvdim-collect --random). */
bool kvd_label_random(const char *label);

#endif
