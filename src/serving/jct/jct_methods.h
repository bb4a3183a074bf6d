/*
 * Compression methods that kvdim-jct measures: their input files, their settings (kept dimensions
 * per head), and the label that identifies each in results.
 */
#ifndef KVD_SERVING_JCT_JCT_METHODS_H
#define KVD_SERVING_JCT_JCT_METHODS_H

#include "formats/fisher.h"
#include "methods/points.h"
#include "model/checkpoint/checkpoint.h"
#include "serving/jct/jct_options.h"

typedef struct {
    /*
     * Label of the method in results, such as "zack,p=0.5". If the kept dimensions of the heads
     * come from a kvdim/rates file, the label ends with the fraction p that is removed.
     */
    char label[256];
    const kvd_point *point;
    /*
     * Smallest and largest number of kept dimensions of a head, and coefficient of variation (CV)
     * of these numbers. Each head counts twice, once for Q and K and once for V. NaN if the method
     * keeps all dimensions.
     */
    double width_min, width_max, width_cv;
} kvd_jct_method;

typedef struct {
    const kvd_config *config;
    const kvd_model_info *info;
    const char *model_path; /* path or name of the model in messages */
    kvd_spectrum spectrum[KVD_JCT_FILES];
    kvd_rates rates[KVD_JCT_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    /* True if the file of Fisher information (gradients) is loaded. */
    bool weighted;
    /*
     * calibrated: the file `calibration` (recorded Q, K and V) is open. made: the rotations in
     * spectrum[0] are random and were not read from a file. drawn: the model has random weights,
     * and methods draw their matrices at random too.
     */
    bool calibrated, made, drawn;
    kvd_point *point[KVD_JCT_METHODS];
    size_t n_points[KVD_JCT_METHODS];
    kvd_jct_method *item;
    size_t n;
} kvd_jct_methods;

/*
 * Returns true if methods get random rotations instead of those of a spectrum file, and keep
 * unequal numbers of dimensions in different heads. These numbers are computed from singular values
 * in the file cfg->spread, which must then be set.
 */
bool kvd_jct_wants_spread(const kvd_jct_options *cfg);

/*
 * Reads the input files of all methods, which must be of this model, and computes the settings
 * (kept dimensions of all heads) of every method. The caller must call kvd_jct_methods_release
 * after a failure too.
 */
int kvd_jct_methods_load(kvd_jct_methods *m, kvd_jct_options *cfg, const kvd_config *config,
                         const kvd_model_info *info, kvd_err *err);
/*
 * Warns on stderr about input files that no method reads, and about a kvdim/rates file (kept
 * dimensions of each head) that was made for other rotations than those of the spectrum file.
 */
int kvd_jct_methods_warn(kvd_jct_methods *m, const kvd_jct_options *cfg, const char *program,
                         kvd_err *err);
void kvd_jct_methods_release(kvd_jct_methods *m);

/*
 * Fills *plan with method i in the form that engines take (matrices, kept dimensions, bits), for
 * prompts of at most `prompt` tokens. The caller must close it with kvd_plan_close.
 */
int kvd_jct_method_plan(kvd_jct_methods *m, size_t i, kvd_dtype type, size_t prompt, uint64_t seed,
                        kvd_plan *plan, kvd_err *err);

#endif
