/* Regression of the ZDC paper, section 5: ZDC's parameters are linear in ln(rise of perplexity). */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <jansson.h>
#include <stdbool.h>

#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/spectrum.h"

/* parameters of method ZDC: fraction of tokens that are important (G), its rise over layers (RISE),
 * fractions of dimensions removed from important (P) and from unimportant tokens (P_U) */
typedef enum {
    KVD_SET_G,
    KVD_SET_RISE,
    KVD_SET_P_QK,
    KVD_SET_P_V,
    KVD_SET_P_U_QK,
    KVD_SET_P_U_V,
    KVD_N_SET
} kvd_set;
extern const char *const kvd_set_name[KVD_N_SET];

typedef struct {
    double loss;           /* perplexity / perplexity of the uncompressed model - 1 */
    double share;          /* cache bytes / bytes of an uncompressed 16-bit cache */
    double set[KVD_N_SET]; /* parameters that were measured */
} kvd_tried;

typedef struct {
    kvd_model_info model;
    char label[64], method[64], rule[16];
    char rest[256];   /* parameters that are equal in all rows, such as "importance.overlap=0.95" */
    kvd_pair pair[2]; /* pair[0] is for Q and K, pair[1] for V */
    size_t n;
    kvd_tried *tried; /* [n] measured choices of parameters */
} kvd_sweep;

/* Reads measurements of method ZDC, which may differ only in the parameters listed in kvd_set. */
int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err);
void kvd_sweep_release(kvd_sweep *s);

/* Writes the Pareto-optimal measurements of loss and cache size to best [n], in order of rising
 * size. Returns their number. */
size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best);

enum { KVD_REGRESSION_MODELS = 16 };

typedef struct {
    size_t n, n_models; /* number of fitted measurements, and of models */
    /* range of the losses of the fitted measurements, beyond which the regression extrapolates */
    double loss_lo, loss_hi;
    /* each model's fitted ZDC parameters at loss 1 (a perplexity twice that of the uncompressed
     * model) */
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET];
    double slope[KVD_N_SET]; /* change of each parameter if the logarithm of the loss rises by 1 */
    double residual[KVD_N_SET]; /* root mean square of the residuals of each parameter */
} kvd_regression;

/* Fits ZDC's parameters as linear functions of ln(loss) to the measurements with loss > 0. model
 * [n]: index of each measurement's language model. */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    bool moved[KVD_N_SET]; /* true if the fitted value was limited to its range */
} kvd_proposal;

/* Proposes ZDC's parameters, limited to their ranges, for a loss > 0. Removes at most the fraction
 * `most` of dimensions. If model >= n_models (not measured), averages over the measured models. */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/* Returns ZDC parameter `number` at loss 1 (a perplexity twice that of the uncompressed model). */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/* Writes proposal *p as a value of --method. Parameters that *p does not set are those of the
 * measurements *like. */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

/* largest number of sweeps (result files of kvdim-eval) that kvdim-fit --regression reads */

enum { KVD_FIT_SWEEPS = KVD_REGRESSION_MODELS };

typedef struct {
    kvd_sweep sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps, n_tried;
    /* for each sweep (result file), the index of its language model; and the number of models */
    size_t model_of[KVD_FIT_SWEEPS], n_models;
    size_t target;   /* index of the model of the proposals; n_models if it was not measured */
    kvd_tried *best; /* [n_best] measurements to which the regression is fitted */
    /* [n_best] element i: index of the model on which best[i] was measured */
    size_t *best_model;
    size_t n_best;
    kvd_regression fit;
    kvd_proposal *proposal; /* [n] proposed parameters for each wanted loss */
    size_t n;
} kvd_fit_proposal;

/* Fits the regression to result files of kvdim-eval, and proposes ZDC's parameters for n losses.
 * Points 2i and 2i + 1 of *r hold the dimensions that proposal i keeps of important and of
 * unimportant tokens. The caller sets r->model and r->label. */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/* Writes ZDC's proposed parameters to group /rows, and the regression's coefficients to
 * /regression. */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* Returns the regression and the proposed parameters as JSON, or NULL if memory runs out. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
