/*
 * Regression of section 5 of the ZDC paper. From the model and the quality that may be lost, it
 * proposes a setting of method ZDC: the fractions of important tokens and the fractions of removed
 * dimensions.
 *
 * Each number of a setting is a linear function of ln Q_d, where Q_d is the loss of quality. The
 * functions are fitted by least squares to the best measured settings of one or more sweeps (for
 * each loss, the setting that stored the fewest bytes). The functions of several models share one
 * slope and differ by a constant per model.
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
/* Names of the numbers of a setting: "g", "rise", "p_qk", "p_v", "p_u_qk", "p_u_v". */
extern const char *const kvd_set_name[KVD_N_SET];

typedef struct {
    double loss;  /* loss of quality Q_d: perplexity / perplexity of the uncompressed model - 1 */
    double share; /* bytes that the cache stored / bytes of an uncompressed 16-bit cache */
    /*
     * The six numbers of the setting. The fractions of removed dimensions are computed from the
     * dimensions that were kept, not from the fractions that were requested.
     */
    double set[KVD_N_SET];
} kvd_tried;

typedef struct {
    kvd_model_info model;
    char label[64], method[64], rule[16];
    /*
     * Parameters of the method that all settings of the sweep have in common, such as
     * "importance.overlap=0.95,importance.mean=0".
     */
    char rest[256];
    kvd_pair pair[2]; /* matrices whose dimensions the method removes: [0] Q and K, [1] V */
    size_t n;
    kvd_tried *tried; /* all measured settings of the sweep, [n] */
} kvd_sweep;

/*
 * Reads the measured settings from a result file of schema kvdim/accuracy. Only lines of methods
 * that store unimportant tokens with fewer dimensions are read. Fails if the file has another
 * schema, has no such line, has no line of the uncompressed model, or has lines that differ in more
 * than the setting. Also fails on a file of an early version, whose lines do not give the removed
 * fractions of Q-K and of V separately.
 */
int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err);
void kvd_sweep_release(kvd_sweep *s);

/*
 * Finds the Oracle's settings, the best in hindsight: for every limit on the loss, the measured
 * setting with the smallest cache. No other setting has fewer bytes without losing more. Writes
 * them to best [n], by rising cache size and falling loss, and returns their number. Settings that
 * lose nothing (loss <= 0) count as loss 0: the one with the smallest cache ends the list.
 */
size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best);

enum { KVD_REGRESSION_MODELS = 16 };

typedef struct {
    /*
     * Number of settings to which the lines were fitted, and number of models that they come from.
     */
    size_t n, n_models;
    /*
     * Least and greatest loss of the settings to which the lines were fitted. Beyond them the
     * regression extrapolates.
     */
    double loss_lo, loss_hi;
    /*
     * Value of each of the six numbers of a setting, according to the fitted line, at the loss Q_d
     * = 1 (where ln Q_d is 0), for each model.
     */
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET];
    /*
     * Slope of the fitted line of each of the six numbers of a setting: its change per unit of ln
     * Q_d, where Q_d is the loss of quality.
     */
    double slope[KVD_N_SET];
    /*
     * Root mean square of the residuals of the fitted line, for each of the six numbers of a
     * setting.
     */
    double residual[KVD_N_SET];
} kvd_regression;

/*
 * Fits the lines of the regression to n settings. best [n] holds settings from kvd_sweep_oracle,
 * of one sweep or of several sweeps one after another. model [n] holds the index of each setting's
 * model, 0 .. n_models - 1. Settings with loss <= 0 have no logarithm and are left out. Fails if
 * there are fewer settings than twice the n_models + 1 coefficients of a line, if a model has no
 * setting, or if no model has two different losses.
 */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    /* True if the valid range, not the fitted line, determined the number. */
    bool moved[KVD_N_SET];
} kvd_proposal;

/*
 * Proposes the setting of a model for a loss > 0. `model` is the model's index; any index >=
 * n_models means a model that was not measured.
 *
 * Each number is rounded to four decimals and moved into its valid range. g (fraction of important
 * tokens in the first layer) is at least 0. rise (its increase up to the last layer) is at least 0,
 * and g + rise is at most 1. p (fraction of dimensions removed from important tokens) is in 0 ..
 * most. p_u (that of the other tokens) is at least p, in Q-K and in V. Q-K may lose fewer
 * dimensions than V, although the ZDC paper says otherwise (D-2 in docs/readings.md).
 */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/*
 * Returns the value that the fitted line of one number of a setting (such as g or p_qk) has at a
 * loss of quality of 1. `model` is the model's index; any index >= n_models means a model that was
 * not measured.
 */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/*
 * Writes the proposed setting as an argument of --method:
 * "zdc,g=0.25,rise=0.1,p.qk=0.4,p.v=0.2,p_u.qk=0.8,p_u.v=0.7,...". Method name and further
 * parameters are those of the sweep `like`.
 */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

/*
 * Implementation of kvdim-fit --regression for ZDC, a method that stores unimportant tokens with
 * fewer dimensions than important ones. Reads sweeps (measured settings of ZDC with their losses),
 * proposes settings for wanted losses, and computes the kept dimensions per head from a spectrum
 * (singular values of all heads). Private to kvdim-fit.
 */

enum { KVD_FIT_SWEEPS = KVD_REGRESSION_MODELS };

typedef struct {
    kvd_sweep sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps, n_tried;
    /* Index of the model of each sweep, and number of different models. */
    size_t model_of[KVD_FIT_SWEEPS], n_models;
    /* Index of the model whose spectrum was given; n_models if no sweep measured that model. */
    size_t target;
    /*
     * Settings to which the regression is fitted, [n_best]: for each loss in a sweep, the measured
     * setting that stored the fewest bytes. Those of the first sweep come first.
     */
    kvd_tried *best;
    /* Index of the model of each setting in `best`, 0 .. n_models - 1, [n_best]. */
    size_t *best_model;
    size_t n_best;
    kvd_regression fit;
    kvd_proposal *proposal; /* one proposed setting per wanted loss, [n] */
    size_t n;
} kvd_fit_proposal;

/*
 * Reads the sweeps, fits the regression, and proposes a setting for each of the n losses. The
 * caller sets model and label of *r; the function sets its rule, its pairs of matrices and its kept
 * dimensions per head. Proposal i has two sets of kept dimensions: set 2i for important tokens and
 * set 2i + 1 for the other tokens. Fails on sweeps of different methods and if *s lacks a pair of
 * matrices. Also fails on sweeps whose kept dimensions were not chosen by the singular values (Eq.
 * 6 of the ZACK paper, rule "eq6").
 */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/*
 * Writes the proposals to the table /rows of the file, one line each, and the fitted regression to
 * /regression.
 */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* Returns the proposals as JSON; NULL if memory runs out. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
