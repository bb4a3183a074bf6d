/* Compression methods that kvdim-jct measures, with their input files and kept dimensions. */
#ifndef KVD_SERVING_JCT_JCT_METHODS_H
#define KVD_SERVING_JCT_JCT_METHODS_H

#include "formats/fisher.h"
#include "methods/points.h"
#include "model/checkpoint/checkpoint.h"
#include "serving/jct/jct_options.h"

typedef struct {
    /* Method with parameters, such as "zack,p=0.5" or, with 4-bit weights, "zack@w4,p=0.5". */
    char label[256];
    char name[80];   /* method without parameters, "zack" or "zack@w4" */
    int weight_bits; /* bits of the weights: 4, or 0 for 16 */
    const kvd_point *point;
    /*
     * Smallest and largest number of kept dimensions of a head, and coefficient of variation over
     * heads.
     */
    double width_min, width_max, width_cv;
} kvd_jct_method;

typedef struct {
    const kvd_config *config;
    const kvd_model_info *info;
    const char *model_path;
    kvd_spectrum spectrum[KVD_JCT_FILES];
    kvd_rates rates[KVD_JCT_FILES];
    kvd_error_table table;
    kvd_activations calibration;
    kvd_fisher fisher;
    bool weighted; /* true if `fisher` (Fisher information of gradients) is loaded */
    /*
     * calibrated  the file `calibration` (recorded Q, K and V) is open
     * made        the rotations in spectrum[0] are random
     * drawn       the model and the matrices of methods are random
     */
    bool calibrated, made, drawn;
    kvd_point *point[KVD_JCT_METHODS];
    size_t n_points[KVD_JCT_METHODS];
    kvd_jct_method *item;
    size_t n;
} kvd_jct_methods;

/*
 * Returns true if a method keeps different numbers of dimensions per head and its rotations are
 * random.
 */
bool kvd_jct_wants_spread(const kvd_jct_options *cfg);

/* Reads the input files of all methods. Call kvd_jct_methods_release even after a failure. */
int kvd_jct_methods_load(kvd_jct_methods *m, kvd_jct_options *cfg, const kvd_config *config,
                         const kvd_model_info *info, kvd_err *err);
/* Warns on stderr about input files that no method reads or that were made for other rotations. */
int kvd_jct_methods_warn(kvd_jct_methods *m, const kvd_jct_options *cfg, const char *program,
                         kvd_err *err);
void kvd_jct_methods_release(kvd_jct_methods *m);

/*
 * Opens the compression of method i for prompts of up to `prompt` tokens. The caller closes *plan
 * with kvd_plan_close.
 */
int kvd_jct_method_plan(kvd_jct_methods *m, size_t i, const kvd_checkpoint *weights, bool gpu,
                        kvd_dtype type, size_t prompt, uint64_t seed, kvd_plan *plan, kvd_err *err);

#endif
