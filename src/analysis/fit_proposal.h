/* kvdim-fit --regression: settings for wanted losses from sweeps, and the widths that they come to on a spectrum. Private to the program. */
#ifndef KVD_ANALYSIS_FIT_PROPOSAL_H
#define KVD_ANALYSIS_FIT_PROPOSAL_H

#include <jansson.h>

#include "analysis/regression.h"
#include "formats/rates.h"

enum { KVD_FIT_SWEEPS = KVD_REGRESSION_MODELS };

typedef struct {
    kvd_sweep sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps, n_tried;
    size_t model_of[KVD_FIT_SWEEPS], n_models; /* sweeps of the same model have the same number */
    size_t target;                             /* that of the spectrum's model; n_models: it was not swept */
    kvd_tried *best;    /* [n_best] optimal settings of all sweeps, sweep after sweep */
    size_t *best_model; /* [n_best] */
    size_t n_best;
    kvd_regression fit;
    kvd_proposal *proposal; /* [n] */
    size_t n;
} kvd_fit_proposal;

/*
 * Reads the sweeps, fits, and proposes for n losses. r, whose model and label are set, receives rule, pairs and points: of proposal i the widths of
 * important tokens at 2i and of the others at 2i + 1. Fails on sweeps of different methods, on widths by another rule than eq6, and where
 * the spectrum lacks a pair.
 */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths, const double *loss,
                          size_t n, const kvd_spectrum *s, kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/* /rows, a row per proposal, and /regression. */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* NULL without memory. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
