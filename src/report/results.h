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
    /* A kvdim/tasks file, whose results are in the member `accuracy`. */
    KVD_RESULT_TASKS,
    KVD_RESULT_KERNELS,
    KVD_RESULT_TOKENS,
    KVD_RESULT_SERVING,
    KVD_RESULT_JCT,
    /*
     * An activations, moments, attention or fisher file. The report lists it under provenance and
     * does not show its data.
     */
    KVD_RESULT_INPUT
} kvd_result_kind;

/* An attribute of the HDF5 group /provenance (or of an input file) as text. */
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
    char hash[KVD_HASH_TEXT]; /* hash of the bytes of the file `path`; "" for KVD_RESULT_INPUT */
    char schema[32];
    kvd_result_kind kind;
    /*
     * Name in tables and legends: the label, with further properties if other results have the same
     * label.
     */
    char *name;
    kvd_facts provenance;
    /* Provenance of each input file, [n_inputs]. */
    kvd_facts *input;
    size_t n_inputs;
    bool has_model;
    kvd_model_info model;
    /*
     * Contents of the file. Only one of the members from here on is filled, the one that belongs to
     * `kind`.
     */
    /* Singular values; the rotations (R and right) are not read and are NULL. */
    kvd_spectrum spectrum;
    kvd_similarity similarity;
    kvd_rates rates;
    /*
     * Parameters that kvdim-fit --regression proposed, from a kvdim/rates file; NULL if there are
     * none.
     */
    kvd_rows *proposals;
    /* True if the regression was fitted to measurements of this model. */
    bool proposals_measured;
    kvd_error_table errors;
    kvd_accuracy_result accuracy;
    /* Label and content hash of the evaluated texts of an accuracy file; NULL if not recorded. */
    char *corpus_label, *corpus_hash;
    /* Tokens and sequence length of the evaluated texts; 0 if not recorded. */
    size_t corpus_tokens, corpus_seq_len;
    kvd_kernels kernels;
    kvd_tokens tokens;
    kvd_rows *serving, *jct;
    /*
     * Jobs of a kvdim/jct file that were not run, with reasons, one per line; NULL if not recorded.
     */
    char *skipped;
    /*
     * Number of planned measurements of a jct or kernels sweep, and of those in the file; 0 if not
     * recorded.
     */
    int64_t points, points_done;
    /* Methods of a serving file that sustain no request rate, one per line. */
    char *no_rate;
} kvd_result;

typedef struct {
    kvd_result *item;
    size_t n;
} kvd_results;

/*
 * Adds a result file, or all .h5 files of a directory in the order of names. Fails for an unknown
 * schema, and for a path or a content that was added before, because its values would count twice.
 * Activations, moments and attention files are accepted only from a directory.
 */
int kvd_results_add(kvd_results *r, const char *path, kvd_err *err);

/*
 * Returns true if the model has random weights. Its times are valid, but its singular values and
 * accuracies are not.
 */
bool kvd_result_random_weights(const kvd_result *r);

/*
 * Fills *some with the valid results of r: all times, but singular values and accuracies only of
 * trained models. *some borrows from r; the caller frees some->item.
 */
int kvd_results_that_count(const kvd_results *r, kvd_results *some, kvd_err *err);

/*
 * Sets `name` of every result. With several models, labels in similarity files also get the model's
 * name. Two trained models of one name get the first digits of their hashes added to it. The caller
 * must have added all results.
 */
int kvd_results_name(kvd_results *r, kvd_err *err);
void kvd_results_release(kvd_results *r);

/* Returns the value of the attribute `name`, or "" if the list does not have it. */
const char *kvd_fact_get(const kvd_facts *f, const char *name);

/* Replaces characters that gnuplot would misread: commas, quotes and control characters. */
void kvd_series_clean(char *name);

/*
 * Returns true for random token ids (kvdim-collect --random), with or without a model name in
 * front.
 */
bool kvd_label_random(const char *label);

#endif
