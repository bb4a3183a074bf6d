/* The methods of a sweep: their files, points and plans, each with the name that rows print. */
#ifndef KVD_SERVING_JCT_METHODS_H
#define KVD_SERVING_JCT_METHODS_H

#include "analysis/points.h"
#include "formats/fisher.h"
#include "model/checkpoint.h"
#include "serving/jct_options.h"

typedef struct {
    char label[256]; /* "zack,p=0.5"; of a point of a rates file with its p */
    const kvd_method *method;
    const kvd_point *point;
    const kvd_spectrum *spectrum; /* NULL: none */
    double width_min, width_max,
        width_cv; /* of what the dims axis keeps, over heads and both sides; NaN without it */
} kvd_jct_method;

typedef struct {
    const kvd_config *config;
    kvd_spectrum spectrum[KVD_JCT_FILES];
    kvd_rates rates[KVD_JCT_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    bool weighted; /* fisher is there */
    bool calibrated, made,
        drawn; /* made: spectrum[0] has random rotations; drawn: makers draw their matrices too */
    kvd_point_source source[KVD_JCT_METHODS];
    kvd_point *point[KVD_JCT_METHODS];
    size_t n_points[KVD_JCT_METHODS];
    kvd_jct_method *item;
    size_t n;
} kvd_jct_methods;

/* Whether methods get random rotations in place of a spectrum's and take widths from singular values: those of cfg->spread, which must be set. */
bool kvd_jct_wants_spread(const kvd_jct_options *cfg);

/* Reads the files, which must be of that model, and finds the points of every method. Release after a failure too. */
int kvd_jct_methods_load(kvd_jct_methods *m, const kvd_jct_options *cfg, const kvd_config *config,
                         const kvd_model_info *info, kvd_err *err);
/* A file that is given is read by some method, or it is said on stderr. */
void kvd_jct_say_unused(const kvd_jct_methods *m, const kvd_jct_options *cfg, const char *program);
void kvd_jct_methods_release(kvd_jct_methods *m);

/* Opens the plan of one of them; prompts have at most that many tokens. kvd_plan_close gives back what it has. */
int kvd_jct_method_plan(kvd_jct_methods *m, size_t i, kvd_dtype type, size_t prompt, uint64_t seed,
                        kvd_plan *plan, kvd_err *err);

#endif
