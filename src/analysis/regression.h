/*
 * The regression of ZDC section 5, from the type of a model and the quality that may be lost to a setting: each of its numbers is a line in
 * ln Q_d, fitted by least squares to the Oracle's settings of one sweep or several. Lines of several models have one slope and are apart by what
 * a model adds.
 *
 * The paper says neither the form nor the features beyond "model type" and Q_d (D-8). Read here: the type of a model is which model it is, with a
 * constant of its own for every number; width, depth and heads are no features, since the handful of models that anybody sweeps could not tell
 * their coefficients from noise. Rates are fractions of a head, g and rise belong to relative depth, so that a model of which nothing was measured can
 * be given the mean of the others; a few measured settings of its own give it its constant.
 */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <stdbool.h>

#include "analysis/sweep.h"

enum { KVD_REGRESSION_MODELS = 16 };

typedef struct {
    size_t n, n_models;      /* settings it was fitted to, and of how many models     */
    double loss_lo, loss_hi; /* of all settings; beyond them it extrapolates          */
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET]; /* the number at Q_d = 1, of every model */
    double slope[KVD_N_SET];                         /* per ln Q_d                            */
    double residual[KVD_N_SET];                      /* root mean square of what the lines leave */
} kvd_regression;

/*
 * best [n]: of kvd_sweep_oracle, of one sweep or several behind each other; model [n]: whose, 0 .. n_models - 1. Those with loss <= 0 have no
 * logarithm and are left out. Fails on fewer settings than twice the coefficients of a number (n_models + 1), on a model without any, and when no model has two
 * different losses.
 */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    bool moved[KVD_N_SET]; /* by a constraint */
} kvd_proposal;

/*
 * The setting of a model (n_models or above: of one that was not measured) for a loss > 0, rounded to four digits, within what a setting can be: 0 <= g, g + rise <= 1, rise >= 0 (Eq. 6, D-6), every p in 0 .. most,
 * and p_u of a pair at least its p (D-1). D-2, Q-K losing more than V, is not forced.
 */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/* The line of a number at loss 1, of a model as above. */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/* "zdc,g=0.25,rise=0.1,p.qk=0.4,p.v=0.2,p_u.qk=0.8,p_u.v=0.7,...": as --method takes it. */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

#endif
