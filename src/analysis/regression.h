/*
 * Regression of section 5 of the ZDC paper. For a model and a permitted loss of quality, it
 * proposes the fraction of important tokens and the fractions of removed dimensions.
 *
 * Each of the six parameters in kvd_set is a linear function of ln Q_d, where Q_d is the loss of
 * quality. The functions are fitted by least squares to result files with many choices of
 * parameters, called sweeps. For each loss, only the choice with the smallest cache is used. All
 * models share the slope of a function, but each model has a constant of its own. A model that was
 * not measured gets the mean constant.
 *
 * The paper names only the features "model type" and Q_d (D-8 in docs/readings.md).
 */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <jansson.h>
#include <stdbool.h>

#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/spectrum.h"

/*
 * The six parameters of method ZDC (Eq. 5 of the ZDC paper). G is the fraction of tokens that are
 * important in the first layer. RISE is its increase up to the last layer. P is the fraction of
 * dimensions removed from important tokens, and P_U from the other tokens.
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
    double loss;  /* perplexity / perplexity of the uncompressed model - 1 */
    double share; /* cache bytes / bytes of an uncompressed 16-bit cache */
    /*
     * Parameters; the fractions of removed dimensions are computed from the dimensions that were
     * kept.
     */
    double set[KVD_N_SET];
} kvd_tried;

typedef struct {
    kvd_model_info model;
    char label[64], method[64], rule[16];
    /* Parameters that are equal in all rows of the file, such as "importance.overlap=0.95". */
    char rest[256];
    kvd_pair pair[2]; /* pair[0] is for Q and K, pair[1] for V */
    size_t n;
    kvd_tried *tried; /* [n] measured choices of parameters */
} kvd_sweep;

/*
 * Reads the rows of method ZDC from a result file of schema kvdim/accuracy. Ignores methods that
 * store all tokens with the same dimensions. Fails if no row is left, if there is no row of the
 * uncompressed model, or if the rows differ in more parameters than kvd_set. Also fails on old
 * files that lack the removed fractions of Q-K and of V.
 */
int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err);
void kvd_sweep_release(kvd_sweep *s);

/*
 * Finds the measurements that are best in hindsight; the ZDC paper calls them the Oracle. A
 * measurement is best if every measurement with a smaller cache has a larger loss. Writes them to
 * best [n], by rising cache size and falling loss. Returns their number. Losses below 0 count as 0.
 */
size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best);

enum { KVD_REGRESSION_MODELS = 16 };

typedef struct {
    /* Number of fitted measurements, and number of models. */
    size_t n, n_models;
    /*
     * Least and greatest loss among the measurements to which the regression was fitted. Outside
     * this range the regression extrapolates.
     */
    double loss_lo, loss_hi;
    /*
     * For each model, fitted value of each parameter in kvd_set at ln loss = 0: a loss of quality
     * of 1, that is twice the perplexity of the uncompressed cache.
     */
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET];
    /* Change of each parameter in kvd_set if the logarithm of the loss of quality rises by 1. */
    double slope[KVD_N_SET];
    /* Root mean square of the residuals of each parameter in kvd_set. */
    double residual[KVD_N_SET];
} kvd_regression;

/*
 * Fits each of the six parameters in kvd_set by a linear function of ln loss. `best` [n] holds the
 * measurements that kvd_sweep_oracle selected, and `model` [n] the index of the model of each
 * measurement. Losses <= 0 have no logarithm and are left out.
 *
 * Fails if there are fewer than 2 (n_models + 1) measurements, if a model has no measurement, or if
 * every model was measured at only one loss.
 */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    /* True if the fitted value was outside its valid range and was limited to it. */
    bool moved[KVD_N_SET];
} kvd_proposal;

/*
 * Proposes the six parameters in kvd_set for a loss > 0. If `model` >= n_models, the model counts
 * as not measured.
 *
 * Each parameter is rounded to four decimals and limited to its range (`most` is the argument; p
 * and p_u, the fractions of removed dimensions of important and other tokens, exist once for Q-K
 * and once for V):
 *
 * g >= 0, rise >= 0, g + rise <= 1, 0 <= p <= most, p_u >= p.
 *
 * Q-K may lose fewer dimensions than V, although the ZDC paper says otherwise (D-2 in
 * docs/readings.md).
 */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/*
 * Returns the fitted value of parameter `number` at a loss of 1, which means that the perplexity is
 * twice that of the uncompressed cache.
 */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/*
 * Writes *p as a value of the option --method:
 * "zdc,g=0.25,rise=0.1,p.qk=0.4,p.v=0.2,p_u.qk=0.8,p_u.v=0.7,...". The method's name and its
 * further parameters are those of *like.
 */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

/* Largest number of result files that kvdim-fit --regression reads. */

enum { KVD_FIT_SWEEPS = KVD_REGRESSION_MODELS };

typedef struct {
    kvd_sweep sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps, n_tried;
    /* Index of the model of each sweep, and number of different models. */
    size_t model_of[KVD_FIT_SWEEPS], n_models;
    /*
     * Index of the model for which parameters are proposed. It is n_models if no result file was
     * measured on this model.
     */
    size_t target;
    /* Measurements to which the regression is fitted, [n_best], from kvd_sweep_oracle. */
    kvd_tried *best;
    /* index of the model on which each element of `best` was measured */
    size_t *best_model;
    size_t n_best;
    kvd_regression fit;
    kvd_proposal *proposal; /* proposed parameters for each wanted loss, [n] */
    size_t n;
} kvd_fit_proposal;

/*
 * Reads the result files, fits the regression, and proposes parameters for each of n losses. Stores
 * the kept dimensions per head in *r, two sets for each proposal i: set 2i is for important tokens,
 * and set 2i + 1 for all other tokens. Sets r->rule and r->pair. The caller sets r->model and
 * r->label.
 *
 * Fails if the files are of different methods, or if *s lacks singular values of the matrices that
 * the method projects. Fails unless the measured dimensions were chosen by rule "eq6" (Eq. 6 of the
 * ZACK paper).
 */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/*
 * Writes the proposals to the table /rows, one row each, and the coefficients of the fitted
 * regression to /regression.
 */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* Returns a description of the fit and its proposals, or NULL if memory runs out. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
