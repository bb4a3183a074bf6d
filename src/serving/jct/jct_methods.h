/* Compression methods that kvdim-jct measures, with the input files and kept dimensions of each. */
#ifndef KVD_SERVING_JCT_JCT_METHODS_H
#define KVD_SERVING_JCT_JCT_METHODS_H

#include "methods/points.h"
#include "model/checkpoint/checkpoint.h"
#include "serving/jct/jct_options.h"

typedef struct {
    /* method with its parameters, such as "zack,p=0.5", or with 4-bit weights "zack@w4,p=0.5" */
    char label[256];
    char name[80];   /* method without parameters, "zack" or "zack@w4" */
    int weight_bits; /* bits of the weights: 4, or 0 for 16 */
    const kvd_point *point;
    /* smallest and largest number of dimensions that a head keeps, and the coefficient of variation
     * of this number over heads */
    double width_min, width_max, width_cv;
} kvd_jct_method;

typedef struct {
    const kvd_config *config;
    const kvd_model_info *info;
    const char *model_path;
    kvd_method_files files;
    /* made: true if the rotation matrices in files.spectrum[0] are random; drawn: true if the
     * model's weights are random */
    bool made, drawn;
    kvd_point *point[KVD_JCT_METHODS];
    size_t n_points[KVD_JCT_METHODS];
    kvd_jct_method *item;
    size_t n;
} kvd_jct_methods;

/* Returns true if the run needs a file of singular values (--spread). The file is needed if
 * rotations are random and heads may keep different numbers of dimensions. */
bool kvd_jct_wants_spread(const kvd_jct_options *cfg);

/* Fills *m with the compression methods to measure, and reads their rotation matrices and other
 * input files. The caller must call kvd_jct_methods_release, also after a failure. */
int kvd_jct_methods_load(kvd_jct_methods *m, kvd_jct_options *cfg, const kvd_config *config,
                         const kvd_model_info *info, kvd_err *err);
/* Warns about input files that no method reads, and about kept dimensions that were chosen for
 * rotation matrices other than those in use. */
int kvd_jct_methods_warn(kvd_jct_methods *m, const kvd_jct_options *cfg, const char *program,
                         kvd_err *err);
void kvd_jct_methods_release(kvd_jct_methods *m);

/* Prepares method i for running prompts of up to `prompt` tokens. The caller closes *plan. */
int kvd_jct_method_plan(kvd_jct_methods *m, size_t i, const kvd_checkpoint *weights, bool gpu,
                        kvd_dtype type, size_t prompt, uint64_t seed, kvd_plan *plan, kvd_err *err);

#endif
