/* Proposes parameters of compression method ZDC for a wanted loss (relative rise of perplexity).
 * Each parameter is a linear function of ln(loss), which is fitted to measurements (ZDC paper,
 * section 5). */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <jansson.h>
#include <stdbool.h>

#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/spectrum.h"

/* parameters of compression method ZDC: fraction of tokens that count as important (G), rise of
 * that fraction from the first to the last layer (RISE), fractions of dimensions removed from
 * important tokens (P) and from unimportant tokens (P_U) */
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

/* Reads measurements of compression method ZDC from a result file of kvdim-eval. Fails if the
 * measurements differ in more than compression rates and the share of important tokens. */
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
    /* for each language model: compression parameters at which the regression predicts that
     * perplexity doubles (a loss of 1) */
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET];
    double slope[KVD_N_SET]; /* change of each parameter if the logarithm of the loss rises by 1 */
    double residual[KVD_N_SET]; /* root mean square of the residuals of each parameter */
} kvd_regression;

/* Fits each parameter of compression method ZDC as a linear function of ln(loss), where loss is the
 * relative rise of perplexity. Ignores measurements whose perplexity does not rise.
 *
 * - best: [n] measurements
 * - model: [n] index of the language model of each measurement */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    bool moved[KVD_N_SET]; /* true if the fitted value was limited to its range */
} kvd_proposal;

/* Proposes parameters of compression method ZDC, within their allowed ranges, for a wanted loss > 0
 * (relative rise of perplexity). At most the fraction `most` of the dimensions is removed. If model
 * >= n_models, averages over all measured language models. */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/* Returns the fitted value of compression parameter `number` at which the perplexity of one
 * language model doubles. If model >= n_models, returns the mean over all language models. */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/* Writes the proposed parameters *p to `text` in the syntax of option --method. Takes all other
 * parameters of the compression method from *like. */
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

/* Fits a regression to n_paths result files of kvdim-eval, and proposes parameters of compression
 * method ZDC for each of n losses. For each proposal, writes two entries to *r: kept dimensions of
 * important tokens, and of unimportant tokens. The caller sets r->model and r->label. */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/* Writes the proposed parameters to HDF5 group /rows, and the regression's coefficients to group
 * /regression. */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* Returns JSON with the proposed parameters of compression method ZDC, and with the regression of
 * these parameters on ln(loss). Returns NULL if memory runs out. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
