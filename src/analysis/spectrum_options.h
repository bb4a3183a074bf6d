/* Parses the command line of kvdim-spectrum. */
#ifndef KVD_ANALYSIS_SPECTRUM_OPTIONS_H
#define KVD_ANALYSIS_SPECTRUM_OPTIONS_H

#include "analysis/pairs.h"
#include "analysis/reduce.h"
#include "common/options.h"

enum { KVD_SPECTRUM_INPUTS = 4096 };

typedef enum { KVD_BY_SVD, KVD_BY_TSQR, KVD_BY_GRAM } kvd_decomposition;
/*
 * Names of the decomposition methods, in the order of kvd_decomposition; the list ends with NULL.
 */
extern const char *const kvd_decomposition_name[4];

typedef struct {
    kvd_common_options common;
    const char *input[KVD_SPECTRUM_INPUTS];
    size_t n_inputs;
    bool wanted[KVD_N_PAIRS];
    kvd_pairing pairing;
    kvd_decomposition method;
    bool method_given, before_rope, no_bases;
    size_t tokens; /* number of tokens to use (--tokens); 0 means all tokens */
    /*
     * Options that reduce the calibration data, as in the ZDC paper: fraction of sequences to drop,
     * and number of K-means centroids per head. The random seed is --seed.
     */
    kvd_reduction reduction;
    const char *label;
} kvd_spectrum_options;

/* Reads argv into *cfg, which must be zeroed. Wrong usage ends the program with status 2. */
void kvd_spectrum_parse(int argc, char **argv, kvd_spectrum_options *cfg);

/*
 * Prints the singular values in *s as a table or, with --json, as JSON. `gpu` is the name of the
 * GPU in use, or "".
 */
int kvd_spectrum_print(const char *program, const kvd_spectrum_options *cfg, bool from_moments,
                       const char *gpu, const kvd_spectrum *s, kvd_err *err);

typedef struct {
    /* True: all input files hold second moments; false: all hold recorded activations. */
    bool moments;
    /*
     * Header of all inputs together (model, label, tokens). It has sums X^T X only if the inputs
     * are files of second moments.
     */
    kvd_moments sum;
    kvd_activations *dump;
    /*
     * Files of recorded activations from which tokens are taken, and the number of tokens of each,
     * [n_sources].
     */
    kvd_source *source;
    size_t n_dumps, n_sources;
} kvd_sources;

/*
 * Opens all input files of kvdim-spectrum and adds the sums of moments files. If tokens > 0, only
 * the first `tokens` tokens of files of activations are used, in the order given. Fails if there
 * are fewer or, for moments files, if they have another number of tokens. Fails, naming the files,
 * if they are of different models, layers or kinds, or if two contain the same texts. The paths
 * are borrowed.
 */
int kvd_sources_open(kvd_sources *in, const char *const *path, size_t n, size_t tokens,
                     kvd_err *err);
/* Closes all input files. Safe on a zeroed *in. */
void kvd_sources_close(kvd_sources *in);

#endif
