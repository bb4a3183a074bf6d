/* The result files a report is made of, read into one list. */
#ifndef KVD_REPORT_RESULTS_H
#define KVD_REPORT_RESULTS_H

#include <stdbool.h>
#include <stddef.h>

#include "formats/error_table.h"
#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/rows.h"
#include "formats/spectrum.h"

typedef enum {
    KVD_RESULT_SPECTRUM,
    KVD_RESULT_SIMILARITY,
    KVD_RESULT_RATES,
    KVD_RESULT_ERROR_TABLE,
    KVD_RESULT_ACCURACY,
    KVD_RESULT_INPUT /* activations, moments: listed under provenance, nothing to show */
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

/* One pair of a similarity file; arrays are over the compared files, then over m = 1 .. d_head. */
typedef struct {
    kvd_pair pair;
    double *epsilon, *delta, *delta_aligned; /* [n_others]         means over layers and heads */
    double *overlap, *energy;                /* [n_others][d_head] means over layers and heads */
    double *energy_own;                      /* [n_others][d_head] kept by the basis of B itself */
} kvd_similarity_pair;

typedef struct {
    char reference[KVD_LABEL]; /* labels; after kvd_results_name with the model in front when there are several */
    size_t reference_tokens;
    size_t n_others, d_head, n_pairs;
    char (*other)[KVD_LABEL]; /* [n_others] */
    size_t *other_tokens; /* [n_others]                              */
    kvd_similarity_pair *pair;
} kvd_similarity;

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
    kvd_error_table errors;
    kvd_rows *rows;
} kvd_result;

typedef struct {
    kvd_result *item;
    size_t n;
} kvd_results;

/*
 * Adds a file, or every *.h5 of a directory in the order of their names. A file of another schema is an
 * error that names it; activations and moments are accepted from a directory only. A path that was added
 * before is an error.
 */
int kvd_results_add(kvd_results *r, const char *path, kvd_err *err);

/* Gives every result its name. Call when all are there. */
int kvd_results_name(kvd_results *r, kvd_err *err);
void kvd_results_release(kvd_results *r);

/* The value of a fact, or "" */
const char *kvd_fact_get(const kvd_facts *f, const char *name);

/* True when the calibration text was random token ids (the label that kvdim-collect --random gives),
 * with or without a model in front. */
bool kvd_label_random(const char *label);

#endif
