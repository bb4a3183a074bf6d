/* Parses the command line of kvdim-spectrum. */
#ifndef KVD_ANALYSIS_SPECTRUM_OPTIONS_H
#define KVD_ANALYSIS_SPECTRUM_OPTIONS_H

#include "analysis/pairs.h"
#include "analysis/reduce.h"
#include "common/options.h"

enum { KVD_SPECTRUM_INPUTS = 4096 };

typedef enum { KVD_BY_SVD, KVD_BY_TSQR, KVD_BY_GRAM } kvd_decomposition;
extern const char *const kvd_decomposition_name[4]; /* list that ends with NULL */

typedef struct {
    kvd_common_options common;
    const char *input[KVD_SPECTRUM_INPUTS];
    size_t n_inputs;
    bool wanted[KVD_N_PAIRS];
    kvd_pairing pairing;
    kvd_decomposition method;
    bool method_given, before_rope, no_bases;
    size_t tokens;           /* number of tokens to use; 0 means all */
    kvd_reduction reduction; /* pruning and K-means; their seed is --seed */
    const char *label;
} kvd_spectrum_options;

/* Reads argv into *cfg, which must be zeroed. Wrong usage ends the program with status 2. */
void kvd_spectrum_parse(int argc, char **argv, kvd_spectrum_options *cfg);

/* Prints the results of kvdim-spectrum: warnings, and a table or JSON. */

/* Prints the spectrum *s as a table or as JSON. `gpu` is the name of the GPU in use, or "". */
int kvd_spectrum_print(const char *program, const kvd_spectrum_options *cfg, bool from_moments,
                       const char *gpu, const kvd_spectrum *s, kvd_err *err);

/*
 * Opens the inputs of kvdim-spectrum: one or more files of one model that count as one set of
 * texts.
 */

typedef struct {
    bool moments; /* true: all inputs are moments; false: all are dumps */
    /*
     * Header of all inputs together (model, label, tokens). It has sums only if the inputs are
     * moments files.
     */
    kvd_moments sum;
    kvd_activations *dump;
    /* Dumps from which tokens are taken, and the number of tokens of each, [n_sources]. */
    kvd_source *source;
    size_t n_dumps, n_sources;
} kvd_sources;

/*
 * Opens all input files and adds the sums of moments files. If tokens > 0, uses only the first
 * `tokens` tokens of the dumps in the order given; fails if there are fewer or, for moments files,
 * if they have another number. Fails, naming the files, if they are of different models, layers or
 * kinds, or if two contain the same texts. The paths are borrowed.
 */
int kvd_sources_open(kvd_sources *in, const char *const *path, size_t n, size_t tokens,
                     kvd_err *err);
/* Closes all input files. Safe on a zeroed *in. */
void kvd_sources_close(kvd_sources *in);

#endif
