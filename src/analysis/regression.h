/*
 * Regression of ZDC section 5, which proposes a setting from the model and the quality that may be
 * lost. Each number of a setting is a line in ln Q_d, the logarithm of the loss, fitted by least
 * squares to the settings that the Oracle (the best choice in hindsight) chose in one or more
 * sweeps. The lines of several models share one slope and differ by a constant per model.
 *
 * The paper gives neither the form nor the features, apart from "model type" and Q_d (D-8). Here
 * the model type is the identity of the model, with a constant of its own for every number. Width,
 * depth and number of heads are not features, because a handful of swept models could not separate
 * their coefficients from noise. Rates are fractions of a head, and g and rise are relative to
 * depth. A model that was not measured gets the mean constant of the others; a few measured
 * settings of its own give it its own constant.
 */
#ifndef KVD_ANALYSIS_REGRESSION_H
#define KVD_ANALYSIS_REGRESSION_H

#include <jansson.h>
#include <stdbool.h>

#include "formats/model_info.h"
#include "formats/rates.h"
#include "formats/spectrum.h"

/*
 * Settings of a method with two levels of tokens (ZDC) that a sweep of kvdim-eval tried: the
 * quality lost, the share of bytes left, and the setting of every row. The regression reads them.
 */

/*
 * Numbers of a setting: the fraction of important tokens in the first layer, its growth up to the
 * last layer, and the four rates of ZDC's Eq. 5. A rate is the fraction of elements that is removed
 * from one pair at one level of tokens.
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
    double loss;           /* Q_d: perplexity / perplexity of the uncompressed model - 1 */
    double share;          /* counted bytes / bytes of an uncompressed 16-bit cache */
    double set[KVD_N_SET]; /* rates are those of the resulting widths, not those requested */
} kvd_tried;

typedef struct {
    kvd_model_info model;
    char label[64], method[64], rule[16];
    char rest
        [256]; /* settings that all rows have in common, "importance.overlap=0.95,importance.mean=0" */
    kvd_pair pair[2]; /* pairs of the dims method */
    size_t n;
    kvd_tried *tried; /* [n] */
} kvd_sweep;

/*
 * Reads the settings from a result file of schema kvdim/accuracy: its rows of methods that lower
 * tokens by importance; other rows are ignored. Fails if the file has another schema, has no such
 * row (or was written before rows held p of each pair), has no row of the uncompressed model, or
 * has rows that differ in more than the setting.
 */
int kvd_sweep_read(kvd_sweep *s, const char *path, kvd_err *err);
void kvd_sweep_release(kvd_sweep *s);

/*
 * Finds the Oracle settings, the best in hindsight: for every limit on the loss, the tried setting
 * with the smallest cache. These are the settings for which no other one has fewer bytes without
 * losing more. Writes them to best [n], by rising share and falling loss, and returns their number.
 * Settings that lose nothing (loss <= 0) count as loss 0: the cheapest of them ends the list.
 */
size_t kvd_sweep_oracle(const kvd_tried *tried, size_t n, kvd_tried *best);

enum { KVD_REGRESSION_MODELS = 16 };

typedef struct {
    /* number of settings to which the lines were fitted, and number of their models */
    size_t n, n_models;
    /*
     * Least and greatest loss of the settings to which the lines were fitted; beyond them the
     * regression extrapolates.
     */
    double loss_lo, loss_hi;
    double at_one[KVD_REGRESSION_MODELS][KVD_N_SET]; /* [model]: the number at Q_d = 1 */
    double slope[KVD_N_SET];                         /* change of each number per unit of ln Q_d */
    double residual[KVD_N_SET]; /* root mean square of the residuals of each line */
} kvd_regression;

/*
 * Fits the lines of the regression to n settings. best [n] holds settings from kvd_sweep_oracle, of
 * one sweep or of several, one after another; model [n] holds the index of each setting's model, 0
 * .. n_models - 1. Settings with loss <= 0 have no logarithm and are left out. Fails if there are
 * fewer settings than twice the n_models + 1 coefficients of a line, if a model has no setting, or
 * if no model has two different losses.
 */
int kvd_regression_fit(kvd_regression *r, const kvd_tried *best, const size_t *model, size_t n,
                       size_t n_models, kvd_err *err);

typedef struct {
    double loss;
    double set[KVD_N_SET];
    bool extrapolated;
    bool moved[KVD_N_SET]; /* true if a constraint moved the value */
} kvd_proposal;

/*
 * Proposes the setting of a model for a loss > 0 (model >= n_models: a model that was not
 * measured). Values are rounded to four decimals and moved into the valid range: 0 <= g, g + rise
 * <= 1, rise >= 0 (Eq. 6, D-6), every p in 0 .. most, and p_u of a pair at least its p (D-1). D-2,
 * that Q-K loses more than V, is not enforced.
 */
void kvd_regression_propose(const kvd_regression *r, size_t model, double loss, double most,
                            kvd_proposal *out);
/*
 * Returns the value of one number of a setting at loss 1 according to its fitted line. `model` is
 * as in kvd_regression_propose.
 */
double kvd_regression_at_one(const kvd_regression *r, size_t model, kvd_set number);

/*
 * Writes the proposed setting as an argument of --method:
 * "zdc,g=0.25,rise=0.1,p.qk=0.4,p.v=0.2,p_u.qk=0.8,p_u.v=0.7,...".
 */
void kvd_proposal_method(const kvd_sweep *like, const kvd_proposal *p, char *text, size_t size);

/*
 * kvdim-fit --regression: reads sweeps (tried settings of ZDC with their losses), proposes settings
 * for wanted losses, and computes their widths on a spectrum. Private to kvdim-fit.
 */

enum { KVD_FIT_SWEEPS = KVD_REGRESSION_MODELS };

typedef struct {
    kvd_sweep sweep[KVD_FIT_SWEEPS];
    size_t n_sweeps, n_tried;
    size_t model_of[KVD_FIT_SWEEPS], n_models; /* index of each sweep's model; number of models */
    /* Index of the spectrum's model; n_models if that model was not swept. */
    size_t target;
    kvd_tried *best;    /* [n_best] optimal settings of all sweeps, sweep after sweep */
    size_t *best_model; /* [n_best]: index of each setting's model */
    size_t n_best;
    kvd_regression fit;
    kvd_proposal *proposal; /* [n]: one proposal per wanted loss */
    size_t n;
} kvd_fit_proposal;

/*
 * Reads the sweeps, fits the regression, and proposes a setting for each of the n losses. The
 * caller sets model and label of *r; the function sets rule, pairs and points. Proposal i has the
 * widths of important tokens in point 2i and those of the other tokens in point 2i + 1. Fails on
 * sweeps of different methods, on widths by another rule than eq6, and if the spectrum lacks a
 * pair.
 */
int kvd_fit_proposal_make(kvd_fit_proposal *x, const char *const *path, size_t n_paths,
                          const double *loss, size_t n, const kvd_spectrum *s, kvd_rates *r,
                          kvd_err *err);
void kvd_fit_proposal_release(kvd_fit_proposal *x);

/* Writes the proposals to /rows, one row each, and the fitted regression to /regression. */
int kvd_fit_proposal_write(kvd_h5 *f, const kvd_fit_proposal *x, const kvd_rates *r, kvd_err *err);
void kvd_fit_proposal_print(const kvd_fit_proposal *x, const kvd_rates *r, const char *output);
/* Returns the proposals as JSON; NULL if memory runs out. */
json_t *kvd_fit_proposal_json(const kvd_fit_proposal *x, const kvd_rates *r);

#endif
