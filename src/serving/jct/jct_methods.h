/*
 * Compression methods that kvdim-jct measures, with their input files and kept dimensions per head.
 */
#ifndef KVD_SERVING_JCT_JCT_METHODS_H
#define KVD_SERVING_JCT_JCT_METHODS_H

#include "formats/fisher.h"
#include "methods/points.h"
#include "model/checkpoint/checkpoint.h"
#include "serving/jct/jct_options.h"

typedef struct {
    /*
     * Method with parameters, such as "zack,p=0.5". If the kept dimensions come from a kvdim/rates
     * file, the label ends with p, the fraction of dimensions removed. If the weights have 4 bits,
     * "@w4" follows the method's name, as in "zack@w4,p=0.5".
     */
    char label[256];
    char name[80];   /* the method's name alone, such as "zack" or "zack@w4" */
    int weight_bits; /* 4, or 0 for weights of 16 bits */
    const kvd_point *point;
    /*
     * Smallest and largest number of kept dimensions of a head, and their coefficient of variation.
     * Each head counts twice, once for Q and K and once for V. NaN if the method keeps all
     * dimensions.
     */
    double width_min, width_max, width_cv;
} kvd_jct_method;

typedef struct {
    const kvd_config *config;
    const kvd_model_info *info;
    const char *model_path; /* used in messages */
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
 * Returns true if a method keeps unequal numbers of dimensions in different heads and gets random
 * rotations. The caller must then set cfg->spread, the file of singular values.
 */
bool kvd_jct_wants_spread(const kvd_jct_options *cfg);

/*
 * Reads the input files of all methods, which must be of this model. The caller must call
 * kvd_jct_methods_release after a failure too.
 */
int kvd_jct_methods_load(kvd_jct_methods *m, kvd_jct_options *cfg, const kvd_config *config,
                         const kvd_model_info *info, kvd_err *err);
/*
 * Warns on stderr about input files that no method reads. Warns also if a kvdim/rates file (kept
 * dimensions of each head) was made for other rotations than those of the spectrum file.
 */
int kvd_jct_methods_warn(kvd_jct_methods *m, const kvd_jct_options *cfg, const char *program,
                         kvd_err *err);
void kvd_jct_methods_release(kvd_jct_methods *m);

/*
 * Fills *plan with the matrices, kept dimensions and bits of method i, for prompts of at most
 * `prompt` tokens. `weights` is the checkpoint of the engine. `gpu` is true if the engine runs on a
 * GPU. A method that needs W_O decomposed then does it on the GPU, and the plan holds no
 * decomposition. The caller must call kvd_plan_close.
 */
int kvd_jct_method_plan(kvd_jct_methods *m, size_t i, const kvd_checkpoint *weights, bool gpu,
                        kvd_dtype type, size_t prompt, uint64_t seed, kvd_plan *plan, kvd_err *err);

#endif
