/*
 * The regression of ZDC section 5, from the quality that may be lost to a setting: each of its numbers is a line in ln Q_d, fitted by
 * least squares to the Oracle's settings of one sweep or several.
 *
 * The paper says neither the model nor its features beyond "model type" and Q_d (D-8). Read here: rates are fractions of a head, g and
 * rise belong to relative depth, so a setting can be carried from model to model as it is, and sweeps of several models are pooled with equal weight
 * for every setting. The type of the model is no feature: with the handful of models that anybody sweeps, its coefficients could not be told
 * from noise. A fit to a sweep of the model itself is what the paper's per-type prediction comes to.
 */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <stdbool.h>

#include "analysis/sweep.h"

/* Two coefficients want twice as many settings. */
enum { KVD_REGRESSION_LEAST = 4 };

typedef struct {
    size_t n;                   /* settings it was fitted to                             */
    double loss_lo, loss_hi;    /* of these; beyond them it extrapolates                 */
    double at_one[KVD_N_SET];   /* the number at Q_d = 1                                 */
    double slope[KVD_N_SET];    /* per ln Q_d                                            */
    double residual[KVD_N_SET]; /* root mean square of what the lines leave              */
} kvd_regression;

/* best [n]: of kvd_sweep_oracle, of one sweep or several behind each other. Those with loss <= 0 have no logarithm and are left out. Fails on
 * fewer than KVD_REGRESSION_LEAST others, and when all have the same loss. */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, size_t n, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    bool moved[KVD_N_SET]; /* by a constraint */
} kvd_proposal;

/*
 * The setting for a loss > 0, rounded to four digits, within what a setting can be: 0 <= g, g + rise <= 1, rise >= 0 (Eq. 6, D-6), every p in 0 .. most,
 * and p_u of a pair at least its p (D-1). D-2, Q-K losing more than V, is not forced.
 */
void kvd_regression_propose(const kvd_regression *r, double loss, double most, kvd_proposal *out);

/* "zdc,g=0.25,rise=0.1,p.qk=0.4,p.v=0.2,p_u.qk=0.8,p_u.v=0.7,...": as --method takes it. */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

#endif
