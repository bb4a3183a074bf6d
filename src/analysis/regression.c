#include "analysis/regression.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"

static int least_squares(kvd_regression *r, const kvd_tried *best, size_t n, kvd_err *err)
{
    double *const a = malloc(r->n * 2 * sizeof *a), *const y = malloc(r->n * KVD_N_SET * sizeof *y);
    double c[2 * KVD_N_SET];
    int status = -1;
    if (!a || !y) {
        kvd_no_memory(err, "a regression", r->n * (2 + KVD_N_SET) * sizeof *a);
        goto done;
    }
    for (size_t i = 0, k = 0; i < n; i++) {
        if (!(best[i].loss > 0))
            continue;
        a[2 * k] = 1;
        a[2 * k + 1] = log(best[i].loss);
        memcpy(y + k++ * KVD_N_SET, best[i].set, sizeof best[i].set);
    }
    if (kvd_least_squares(a, r->n, 2, y, KVD_N_SET, c, err))
        goto done;
    for (int j = 0; j < KVD_N_SET; j++) {
        double sum = 0;
        r->at_one[j] = c[j];
        r->slope[j] = c[KVD_N_SET + j];
        for (size_t k = 0; k < r->n; k++) {
            const double left = y[k * KVD_N_SET + (size_t)j] - r->at_one[j] - r->slope[j] * a[2 * k + 1];
            sum += left * left;
        }
        r->residual[j] = sqrt(sum / (double)r->n);
    }
    status = 0;
done:
    free(a);
    free(y);
    return status;
}

int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, size_t n, kvd_err *err)
{
    *r = (kvd_regression){.loss_lo = INFINITY, .loss_hi = -INFINITY};
    for (size_t i = 0; i < n; i++)
        if (best[i].loss > 0) {
            r->loss_lo = fmin(r->loss_lo, best[i].loss);
            r->loss_hi = fmax(r->loss_hi, best[i].loss);
            r->n++;
        }
    if (r->n < KVD_REGRESSION_LEAST)
        return kvd_fail(
            err,
            "a regression wants at least %d settings that are optimal for some loss above 0, there are "
            "%zu: sweep more settings",
            (int)KVD_REGRESSION_LEAST, r->n);
    if (!(r->loss_hi > r->loss_lo))
        return kvd_fail(err, "all optimal settings lose the same %g", r->loss_lo);
    return least_squares(r, best, n, err);
}

/* Into lo .. hi, to four digits behind the point; whether that moved it by more than rounding. */
static bool put(double *x, double lo, double hi)
{
    const double wanted = *x, within = fmin(fmax(wanted, lo), hi);
    *x = nearbyint(within * 1e4) / 1e4;
    if (*x > hi)
        *x = floor(within * 1e4) / 1e4;
    return fabs(within - wanted) > 0;
}

void kvd_regression_propose(const kvd_regression *r, double loss, double most, kvd_proposal *out)
{
    double *const x = out->set;
    bool *const moved = out->moved;
    out->loss = loss;
    out->extrapolated = loss < r->loss_lo || loss > r->loss_hi;
    for (int j = 0; j < KVD_N_SET; j++)
        x[j] = r->at_one[j] + r->slope[j] * log(loss);
    moved[KVD_SET_G] = put(&x[KVD_SET_G], 0, 1);
    moved[KVD_SET_RISE] = put(&x[KVD_SET_RISE], 0, 1 - x[KVD_SET_G]);
    for (int pair = 0; pair < 2; pair++) {
        const int high = KVD_SET_P_QK + pair, low = KVD_SET_P_U_QK + pair;
        moved[high] = put(&x[high], 0, most);
        moved[low] = put(&x[low], x[high], most);
    }
}

void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size)
{
    const double *const x = p->set;
    snprintf(text, size, "%s,g=%.4g,rise=%.4g,p.qk=%.4g,p.v=%.4g,p_u.qk=%.4g,p_u.v=%.4g%s%s", like->method,
             x[KVD_SET_G], x[KVD_SET_RISE], x[KVD_SET_P_QK], x[KVD_SET_P_V], x[KVD_SET_P_U_QK],
             x[KVD_SET_P_U_V], *like->rest ? "," : "", like->rest);
}
