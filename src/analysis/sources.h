/* The inputs of kvdim-spectrum: one or more files of one model that count as one set of texts. */
#ifndef KVD_ANALYSIS_SOURCES_H
#define KVD_ANALYSIS_SOURCES_H

#include "analysis/decompose.h"

typedef struct {
    bool moments;    /* all inputs are moments, else all are dumps                                   */
    kvd_moments sum; /* what they are together: model, label, tokens; with sums only when moments    */
    kvd_activations *dump;
    kvd_source *source; /* [n_sources] dumps from which tokens are taken, and how many                   */
    size_t n_dumps, n_sources;
} kvd_sources;

/*
 * Opens all, adds moments up. tokens > 0: the first that many of the dumps in the order given; fewer is an error,
 * and for moments any number but theirs. Fails naming the files when they are of different models, layers or
 * kinds, or when two hold the same texts. The paths are borrowed.
 */
int kvd_sources_open(kvd_sources *in, const char *const *path, size_t n, size_t tokens, kvd_err *err);
/* Safe when zeroed. */
void kvd_sources_close(kvd_sources *in);

#endif
