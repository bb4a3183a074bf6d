/* The command line of kvdim-eval. */
#ifndef KVD_ANALYSIS_EVAL_OPTIONS_H
#define KVD_ANALYSIS_EVAL_OPTIONS_H

#include "common/args.h"
#include "common/half.h"
#include "methods/presets.h"

enum { KVD_EVAL_TEXTS = 4096, KVD_EVAL_METHODS = 512, KVD_EVAL_FILES = 16 };

typedef struct {
    kvd_common_options common;
    const char *model;
    const char *text[KVD_EVAL_TEXTS];
    size_t n_text;
    const char *ids, *label;
    const char *field[KVD_EVAL_TEXTS]; /* one for all texts, or one for each; "" of one without fields */
    size_t n_field;
    bool text_given, no_special;
    bool by_text;                  /* texts weigh the same, tokens are of each */
    size_t tokens, seq_len, batch; /* 0: not given */
    size_t prompt;                 /* rows before the first that is scored */
    /* free-running; 0 and NULL: not wanted */
    size_t generate, needle, items;
    const char *reference, *classify, *classes, *ask;
    size_t seeds; /* of methods that draw */
    size_t weights_bits[7], n_weights_bits, weights_group;
    bool weights_group_given;
    kvd_method method[KVD_EVAL_METHODS];
    const char *method_text[KVD_EVAL_METHODS];
    size_t n_methods;
    char *own_text[KVD_EVAL_METHODS]; /* of the texts above, those that are the options' own */
    size_t n_own;
    const char *calibration, *fisher; /* NULL: none */
    const char *spectrum[KVD_EVAL_FILES], *rates[KVD_EVAL_FILES], *table;
    size_t n_spectra, n_rates;
    double target;          /* NaN: no search */
    const char *target_key; /* NULL: the usual one of each method */
    size_t sweep;           /* 0: none */
    bool points_only;       /* the target is read off the points asked for */
    bool resume;
    bool scan;
    kvd_dtype cache; /* settled by the program where cache_given is false */
    bool cache_given;
    kvd_dtype compute; /* KVD_F32 or KVD_BF16 */
} kvd_eval_options;

/* Parses argv; wrong usage ends the program with status 2. */
void kvd_eval_parse(const char *program, int argc, char **argv, kvd_eval_options *cfg);

void kvd_eval_options_release(kvd_eval_options *cfg);
/* Whether anything runs free. */
bool kvd_eval_runs_free(const kvd_eval_options *cfg);

/* Appends a method as --method does. */
int kvd_eval_add_method(kvd_eval_options *cfg, const char *text, kvd_err *err);

#endif
