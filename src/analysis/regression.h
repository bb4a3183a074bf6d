/*
 * Regression of ZDC section 5: proposes fractions of important tokens and removed dimensions for a
 * model and a loss Q_d.
 *
 * Each parameter of kvd_set is linear in ln Q_d, fitted by least squares to the smallest cache at
 * each loss of sweeps (result files with many parameters). Models share slopes; constants are per
 * model, the mean for others. The paper names only the features "model type" and Q_d (D-8 in
 * docs/readings.md).
 */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <jansson.h>
#include <stdbool.h>

#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/spectrum.h"

/*
 * Parameters of method ZDC (Eq. 5). G: fraction of important tokens in the first layer; RISE:
 * increase up to the last. P, P_U: removed dimensions of important and other tokens.
 */
typedef enum {
    KVD_SET_G,
    KVD_SET_RISE,
    KVD_SET_P_QK,
    KVD_SET_P_V,
    KVD_SET_P_U_QK,
    KVD_SET_P_U_V,
    KVD_N_SET
} kvd_set;
/* "g", "rise", "p_qk", "p_v", "p_u_qk", "p_u_v" */
extern const char *const kvd_set_name[KVD_N_SET];

typedef struct {
    double loss;  /* perplexity / uncompressed perplexity - 1 */
    double share; /* cache bytes / bytes of a 16-bit cache */
    /* parameters; removed fractions are those of the dimensions kept */
    double set[KVD_N_SET];
} kvd_tried;

typedef struct {
    kvd_model_info model;
    char label[64], method[64], rule[16];
    /* parameters equal in all rows, such as "importance.overlap=0.95" */
    char rest[256];
    kvd_pair pair[2]; /* pair[0] is for Q and K, pair[1] for V */
    size_t n;
    kvd_tried *tried; /* [n] measured choices of parameters */
} kvd_sweep;

/*
 * Reads the ZDC rows of a kvdim/accuracy file. Fails without such rows or an uncompressed row, if
 * rows differ in other parameters than kvd_set, or on old files without removed fractions of Q-K
 * and V.
 */
int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err);
void kvd_sweep_release(kvd_sweep *s);

/*
 * Writes the measurements that no smaller cache beats in loss (ZDC's Oracle) to best [n], by rising
 * size. Returns their number. Losses below 0 count as 0.
 */
size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best);

enum { KVD_REGRESSION_MODELS = 16 };

typedef struct {
    /* fitted measurements, and models */
    size_t n, n_models;
    /* Range of the fitted losses; outside it the regression extrapolates. */
    double loss_lo, loss_hi;
    /* Fitted parameters per model at loss 1, twice the uncompressed perplexity. */
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET];
    /* Change of each parameter per unit of ln loss. */
    double slope[KVD_N_SET];
    /* Root mean square of each parameter's residuals. */
    double residual[KVD_N_SET];
} kvd_regression;

/*
 * Fits the parameters of kvd_set by linear functions of ln loss. best [n]: measurements of
 * kvd_sweep_oracle (losses <= 0 are left out); model [n]: their models.
 *
 * Fails below 2 (n_models + 1) measurements, if a model has none, or if each has one loss only.
 */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    /* true if the value was limited to its range */
    bool moved[KVD_N_SET];
} kvd_proposal;

/*
 * Proposes the parameters of kvd_set for a loss > 0; model >= n_models: not measured. Rounded to
 * four decimals and limited to
 *
 *   g >= 0, rise >= 0, g + rise <= 1, 0 <= p <= most, p_u >= p
 *
 * p, p_u: removed dimensions of important and other tokens, for Q-K and V. Q-K may lose fewer than
 * V, against the paper (D-2 in docs/readings.md).
 */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/* Returns the fitted parameter at loss 1, twice the uncompressed perplexity. */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/*
 * Writes *p as a --method: "zdc,g=0.25,rise=0.1,p.qk=0.4,p.v=0.2,p_u.qk=0.8,p_u.v=0.7,...", with
 * name and further parameters of *like.
 */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

/* Most result files that kvdim-fit --regression reads. */

enum { KVD_FIT_SWEEPS = KVD_REGRESSION_MODELS };

typedef struct {
    kvd_sweep sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps, n_tried;
    /* model of each sweep, and number of models */
    size_t model_of[KVD_FIT_SWEEPS], n_models;
    /* model of the proposals; n_models if not measured */
    size_t target;
    /* [n_best] fitted measurements of kvd_sweep_oracle */
    kvd_tried *best;
    /* model of each element of `best` */
    size_t *best_model;
    size_t n_best;
    kvd_regression fit;
    kvd_proposal *proposal; /* [n] proposed parameters per wanted loss */
    size_t n;
} kvd_fit_proposal;

/*
 * Reads result files, fits, and proposes parameters for n losses. *r receives kept dimensions: set
 * 2i for proposal i's important tokens, 2i + 1 for others; the caller sets r->model and r->label.
 *
 * Fails on files of different methods, if *s lacks the methods' matrices, or if dimensions were not
 * chosen by "eq6" (ZACK Eq. 6).
 */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/* Writes a row per proposal to /rows, and the coefficients to /regression. */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* Returns a description of the fit and its proposals, or NULL without memory. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
