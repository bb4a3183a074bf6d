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
    /* benchmark scores; they are loaded into the member `accuracy` of kvd_result */
    KVD_RESULT_TASKS,
    KVD_RESULT_KERNELS,
    KVD_RESULT_TOKENS,
    KVD_RESULT_SERVING,
    KVD_RESULT_JCT,
    KVD_RESULT_INPUT /* an activations, moments, attention or fisher file */
} kvd_result_kind;

/* an attribute of the group /provenance in a result file, such as the program or the start time */
typedef struct {
    char *name, *value;
} kvd_fact;

typedef struct {
    kvd_fact *fact;
    size_t n;
} kvd_facts;

enum { KVD_LABEL = 360 };

typedef struct {
    char *path;
    char hash[KVD_HASH_TEXT]; /* hash of the bytes of the file; "" for KVD_RESULT_INPUT */
    char schema[32];
    kvd_result_kind kind;
    /* name of the file in tables and legends: its label, made longer if another file has the same
     * label */
    char *name;
    kvd_facts provenance;
    /* [n_inputs] provenance of each file from which this result was computed */
    kvd_facts *input;
    size_t n_inputs;
    bool has_model;
    kvd_model_info model;
    /* contents of a spectrum file (singular values), except its rotation matrices */
    kvd_spectrum spectrum;
    kvd_similarity similarity;
    kvd_rates rates;
    kvd_rows *proposals; /* parameters that kvdim-fit --regression proposed, or NULL */
    /* false if the proposed compression parameters are based only on measurements of other
     * models */
    bool proposals_measured;
    kvd_error_table errors;
    kvd_accuracy_result accuracy;
    /* label and content hash of the evaluated texts; NULL if the file does not record them */
    char *corpus_label, *corpus_hash;
    /* number of tokens of the evaluated texts, and number of tokens per sequence; 0 if not
     * recorded */
    size_t corpus_tokens, corpus_seq_len;
    kvd_kernels kernels;
    kvd_tokens tokens;
    kvd_rows *serving, *jct;
    char *skipped; /* jobs that were not run, with reasons, one per line; NULL if not recorded */
    /* number of planned measurements, and number of measurements in the file; 0 if not recorded */
    int64_t points, points_done;
    char *no_rate; /* methods of a serving file that sustain no request rate, one per line */
} kvd_result;

typedef struct {
    kvd_result *item;
    size_t n;
} kvd_results;

/* Adds a result file, or all .h5 files of a folder. Fails if a file has an unknown schema or was
 * already added. */
int kvd_results_add(kvd_results *r, const char *path, kvd_err *err);

/* Returns the number of result files of one kind. */
size_t kvd_results_count(const kvd_results *r, kvd_result_kind kind);

/* Returns true if the model in result file *r had random weights: its times are valid, its
 * accuracies are not. */
bool kvd_result_random_weights(const kvd_result *r);

/* Fills *some with the results that are valid: all timing results, and all other results of models
 * with trained weights. The caller frees some->item. */
int kvd_results_that_count(const kvd_results *r, kvd_results *some, kvd_err *err);

/* Sets the `name` of each result to a text that no other result has, as short as possible. Call it
 * after all files were added. */
int kvd_results_name(kvd_results *r, kvd_err *err);
/* If files use a label such as "mean of 2 tasks" for different tasks, appends the names of the
 * tasks to the label. Searches the files of *r and *also. */
int kvd_results_name_means(kvd_results *r, kvd_results *also, kvd_err *err);
void kvd_results_release(kvd_results *r);

/* Returns the value of attribute `name` of a file's provenance, or "" if it is missing. */
const char *kvd_fact_get(const kvd_facts *f, const char *name);

/* Replaces commas, quotes and control characters in a name, because gnuplot would misread them. */
void kvd_series_clean(char *name);

/* Returns true if `label` names random token ids (kvdim-collect --random) instead of a text. */
bool kvd_label_random(const char *label);

#endif
