#ifndef KVD_ANALYSIS_SPECTRUM_OPTIONS_H
#define KVD_ANALYSIS_SPECTRUM_OPTIONS_H

#include "analysis/pairs.h"
#include "analysis/reduce.h"
#include "common/options.h"

enum { KVD_SPECTRUM_INPUTS = 4096 };

typedef enum { KVD_BY_SVD, KVD_BY_TSQR, KVD_BY_GRAM } kvd_decomposition;
/* values of --method, ended by NULL */
extern const char *const kvd_decomposition_name[4];

typedef struct {
    kvd_common_options common;
    const char *input[KVD_SPECTRUM_INPUTS];
    size_t n_inputs;
    bool wanted[KVD_N_PAIRS];
    kvd_pairing pairing;
    kvd_decomposition method;
    bool method_given, before_rope, no_bases;
    /* number of calibration tokens to use; 0 means all */
    size_t tokens;
    kvd_reduction reduction;
    const char *label;
} kvd_spectrum_options;

/* Reads argv into zeroed *cfg. Wrong usage exits with status 2. */
void kvd_spectrum_parse(int argc, char **argv, kvd_spectrum_options *cfg);

/* Prints a table of the matrices' singular values and effective ranks or, with --json, JSON.
 * from_moments: true if the inputs were second moments. `gpu`: name of the GPU, or "". */
int kvd_spectrum_print(const char *program, const kvd_spectrum_options *cfg, bool from_moments,
                       const char *gpu, const kvd_spectrum *s, kvd_err *err);

typedef struct {
    bool moments; /* true if the inputs hold second moments, not activations */
    /* model and total number of tokens of the input files; if the files hold second moments, also
     * the sum of these second moments */
    kvd_moments sum;
    kvd_activations *dump;
    /* [n_sources] files of activations */
    kvd_source *source;
    size_t n_dumps, n_sources;
    size_t tokens_cut; /* number of tokens of the dumps that are not used */
} kvd_sources;

/* Opens n input files, which hold activations or second moments, and adds up the second moments.
 * Fails if two files differ in model or layers, or were made from the same texts.
 *
 * - path: [n] paths, which must stay valid while *in is open
 * - tokens: number of tokens to use, counted file after file; 0 means all */
int kvd_sources_open(kvd_sources *in, const char *const *path, size_t n, size_t tokens,
                     kvd_err *err);
void kvd_sources_close(kvd_sources *in);

#endif
