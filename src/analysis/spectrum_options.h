#ifndef KVD_ANALYSIS_SPECTRUM_OPTIONS_H
#define KVD_ANALYSIS_SPECTRUM_OPTIONS_H

#include "analysis/pairs.h"
#include "analysis/reduce.h"
#include "common/options.h"

enum { KVD_SPECTRUM_INPUTS = 4096 };

typedef enum { KVD_BY_SVD, KVD_BY_TSQR, KVD_BY_GRAM } kvd_decomposition;
/* Values of --method in the order of kvd_decomposition, ending with NULL. */
extern const char *const kvd_decomposition_name[4];

typedef struct {
    kvd_common_options common;
    const char *input[KVD_SPECTRUM_INPUTS];
    size_t n_inputs;
    bool wanted[KVD_N_PAIRS];
    kvd_pairing pairing;
    kvd_decomposition method;
    bool method_given, before_rope, no_bases;
    /* Number of tokens to use; 0 means all tokens. */
    size_t tokens;
    kvd_reduction reduction;
    const char *label;
} kvd_spectrum_options;

/* Reads argv into *cfg, which must be zeroed. Wrong usage ends the program with status 2. */
void kvd_spectrum_parse(int argc, char **argv, kvd_spectrum_options *cfg);

/* Prints a table or, with --json, a JSON object. `gpu` is the name of the GPU in use, or "". */
int kvd_spectrum_print(const char *program, const kvd_spectrum_options *cfg, bool from_moments,
                       const char *gpu, const kvd_spectrum *s, kvd_err *err);

typedef struct {
    /* True if the input files hold second moments, not recorded activations. */
    bool moments;
    /* Header for the sum of all inputs. It holds sums X^T X only if `moments` is true. */
    kvd_moments sum;
    kvd_activations *dump;
    /* Files of recorded activations, and the number of tokens to use of each, [n_sources]. */
    kvd_source *source;
    size_t n_dumps, n_sources;
} kvd_sources;

/*
 * Opens all inputs and adds up second moments. If tokens > 0, uses the first `tokens` recorded
 * tokens, file after file; a file of second moments must then be of exactly this number of tokens.
 * Fails, naming the files, if models, layers or kinds of files differ, or if two files contain the
 * same texts. The paths are borrowed.
 */
int kvd_sources_open(kvd_sources *in, const char *const *path, size_t n, size_t tokens,
                     kvd_err *err);
/* Closes the files of *in, which may be zeroed. */
void kvd_sources_close(kvd_sources *in);

#endif
