/*
 * Regression of section 5 of the ZDC paper. From the model and the quality that may be lost, it
 * proposes a setting of method ZDC: the fractions of important tokens and the fractions of removed
 * dimensions.
 *
 * Each number of a setting is a linear function of ln Q_d, where Q_d is the loss of quality. The
 * functions are fitted by least squares to measured settings from one or more result files, called
 * sweeps. For each loss, only the measured setting that stored the fewest bytes is used. The
 * functions of several models share one slope and differ by a constant per model.
 *
 * The paper gives neither the form nor the features of its regression, apart from "model type" and
 * Q_d (D-8 in docs/readings.md). Here the model type is the identity of the model, and every number
 * has a constant for each model. Dimensions, depth and number of heads are not features: a handful
 * of measured models could not separate their coefficients from noise. A model that was not
 * measured gets the mean constant of the measured models.
 */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <jansson.h>
#include <stdbool.h>

#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/spectrum.h"

/*
 * The six numbers of a setting of method ZDC: the fraction g of tokens that are important in the
 * first layer, the rise of that fraction up to the last layer, and four fractions of removed
 * dimensions (Eq. 5 of the ZDC paper). p is removed from important tokens, p_u from the other
 * tokens, each from Q and K (qk) and from V (v).
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
/*
 * Names of the six numbers of a ZDC setting, in the order of kvd_set: "g", "rise", "p_qk", "p_v",
 * "p_u_qk", "p_u_v".
 */
extern const char *const kvd_set_name[KVD_N_SET];

typedef struct {
    double loss;  /* loss of quality Q_d: perplexity / perplexity of the uncompressed model - 1 */
    double share; /* bytes that the cache stored / bytes of an uncompressed 16-bit cache */
    /*
     * The six numbers of the measured ZDC setting: fractions of important tokens and of removed
     * dimensions (kvd_set). The fractions of removed dimensions are computed from the dimensions
     * that were kept, not from the fractions that were requested.
     */
    double set[KVD_N_SET];
} kvd_tried;

typedef struct {
    kvd_model_info model;
    char label[64], method[64], rule[16];
    /*
     * Parameters of the method that are equal in all measured settings of the file, such as
     * "importance.overlap=0.95,importance.mean=0".
     */
    char rest[256];
    kvd_pair pair[2]; /* matrices whose dimensions the method removes: [0] Q and K, [1] V */
    size_t n;
    kvd_tried *tried; /* all ZDC settings measured in the result file, [n] */
} kvd_sweep;

/*
 * Reads the measured settings of method ZDC from a result file of schema kvdim/accuracy (a sweep).
 * Lines of other methods are ignored, unless they too store unimportant tokens with fewer
 * dimensions. Fails if the file has another schema, no such line, or no line of the uncompressed
 * model. Fails if such lines differ in more than the six numbers of kvd_set. Also fails on a file
 * of an early version, whose lines do not give the removed fractions of Q-K and of V separately.
 */
int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err);
void kvd_sweep_release(kvd_sweep *s);

/*
 * Finds the measured ZDC settings that are best in hindsight; the ZDC paper calls this choice the
 * Oracle. For every limit on the loss of quality, it is the setting with the smallest cache. No
 * other setting has fewer bytes without losing more. Writes them to best [n], by rising cache size
 * and falling loss, and returns their number. Settings that lose nothing (loss <= 0) count as loss
 * 0: the one with the smallest cache ends the list.
 */
size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best);

enum { KVD_REGRESSION_MODELS = 16 };

typedef struct {
    /*
     * Number of measured ZDC settings to which the linear functions were fitted, and number of
     * models on which these settings were measured.
     */
    size_t n, n_models;
    /*
     * Least and greatest loss of quality among the measured settings that were fitted. Outside this
     * range the regression extrapolates.
     */
    double loss_lo, loss_hi;
    /*
     * Value that the fitted linear function gives to each of the six numbers of kvd_set (such as g)
     * at the loss of quality Q_d = 1, where ln Q_d is 0. One value per model and number.
     */
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET];
    /*
     * Slope of the fitted linear function of each of the six numbers of kvd_set (such as g): its
     * change per unit of ln Q_d, where Q_d is the loss of quality. All models share it.
     */
    double slope[KVD_N_SET];
    /*
     * Root mean square of the residuals of the fit, for each of the six numbers of kvd_set (such as
     * g).
     */
    double residual[KVD_N_SET];
} kvd_regression;

/*
 * Fits each of the six numbers of kvd_set by a linear function of ln loss to n measured ZDC
 * settings. best [n] holds the settings, from kvd_sweep_oracle; those of several result files
 * follow one another. model [n] holds the index, 0 .. n_models - 1, of the model on which each
 * setting was measured. Settings with loss <= 0 have no logarithm and are left out. Fails if there
 * are fewer settings than twice the n_models + 1 coefficients of a function, if a model has no
 * setting, or if no model has two different losses.
 */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    /*
     * True for each number whose fitted value was outside its valid range and was replaced by the
     * limit of the range.
     */
    bool moved[KVD_N_SET];
} kvd_proposal;

/*
 * Proposes a ZDC setting (the six numbers of kvd_set) for a model and a loss of quality > 0.
 * `model` is the model's index; any index >= n_models means a model that was not measured.
 *
 * Each number is rounded to four decimals and limited to its valid range. g (fraction of important
 * tokens in the first layer) is at least 0. rise (its increase up to the last layer) is at least 0,
 * and g + rise is at most 1. p (fraction of dimensions removed from important tokens) is in 0 ..
 * most. p_u (that of the other tokens) is at least p, in Q-K and in V. Q-K may lose fewer
 * dimensions than V, although the ZDC paper says otherwise (D-2 in docs/readings.md).
 */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/*
 * Returns the value that the fitted linear function of `number` (one of the six numbers of a ZDC
 * setting, such as g) has at a loss of quality Q_d = 1, that is at twice the perplexity. `model` is
 * the model's index; any index >= n_models means a model that was not measured.
 */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/*
 * Writes the proposed ZDC setting *p to `text`, as an argument of --method:
 * "zdc,g=0.25,rise=0.1,p.qk=0.4,p.v=0.2,p_u.qk=0.8,p_u.v=0.7,...". The method's name and its
 * further parameters are those of the measured settings in *like.
 */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

/*
 * Implementation of kvdim-fit --regression for ZDC, a method that stores unimportant tokens with
 * fewer dimensions than important ones. Reads result files of measured ZDC settings with their
 * losses of quality (sweeps), proposes settings for wanted losses, and computes the kept dimensions
 * per head from the singular values of all heads. Private to kvdim-fit.
 */

enum { KVD_FIT_SWEEPS = KVD_REGRESSION_MODELS };

typedef struct {
    kvd_sweep sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps, n_tried;
    /*
     * Index of the model on which each sweep (result file of measured ZDC settings) was made, and
     * number of different models.
     */
    size_t model_of[KVD_FIT_SWEEPS], n_models;
    /*
     * Index of the model for which settings are proposed, among the measured models; n_models if
     * that model was not measured.
     */
    size_t target;
    /*
     * Measured ZDC settings to which the regression is fitted, [n_best]. From each result file come
     * those that stored the fewest bytes for their loss of quality (kvd_sweep_oracle). The settings
     * of the first file come first.
     */
    kvd_tried *best;
    /*
     * Index of the model on which each setting in `best` was measured, 0 .. n_models - 1, [n_best].
     */
    size_t *best_model;
    size_t n_best;
    kvd_regression fit;
    kvd_proposal *proposal; /* one proposed ZDC setting per wanted loss of quality, [n] */
    size_t n;
} kvd_fit_proposal;

/*
 * Reads n_paths result files of measured ZDC settings, fits the regression, and proposes a setting
 * for each of the n losses of quality. Computes the kept dimensions per head from the singular
 * values *s and stores them in *r. Proposal i has two sets of kept dimensions: set 2i for important
 * tokens and set 2i + 1 for the other tokens. The function also sets r->rule (how the kept
 * dimensions are chosen) and r->pair (the matrices that share a rotation). The caller sets r->model
 * and r->label.
 *
 * Fails if the result files are of different methods, or if *s lacks singular values of the
 * matrices that they used. Also fails if the measured kept dimensions were not chosen by the
 * singular values (Eq. 6 of the ZACK paper, rule "eq6").
 */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/*
 * Writes the proposed ZDC settings to the table /rows of the file, one line each, and the fitted
 * regression to /regression.
 */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* Returns the proposed ZDC settings and the fitted regression as JSON; NULL if memory runs out. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
