/*
 * Files of costs that are read as one: kvdim-serve --costs A.h5 --costs B.h5.
 *
 * They have to be of one model, machine and setting (number of GPUs, dtype, graphs, phases, pages of the cache), or times of
 * different things would be held against each other. The costs of a method come from one of them alone: no table is put together
 * from two sweeps.
 */
#ifndef KVD_SERVING_COSTS_FILES_H
#define KVD_SERVING_COSTS_FILES_H

#include "formats/model_info.h"
#include "serving/costs.h"

typedef struct kvd_costs_files kvd_costs_files;

/*
 * The rows of kind "iteration" on `gpus` GPUs (-1: whatever they have) of complete jct files. Paths are borrowed. Fails by the
 * names of two files that differ in what they must have in common, and when one has no such row.
 */
kvd_costs_files *kvd_costs_files_open(const char *const *path, size_t n, int gpus, kvd_err *err);
void kvd_costs_files_free(kvd_costs_files *f);

const kvd_model_info *kvd_costs_files_model(const kvd_costs_files *f);

/* Every method once, in the order of the files: [*n], valid until the free. */
const char *const *kvd_costs_files_methods(const kvd_costs_files *f, size_t *n);

/* The one file that has costs of the method; NULL when none has, or two have. */
const char *kvd_costs_files_of(const kvd_costs_files *f, const char *method, kvd_err *err);

/* Two files made by different revisions or under different drivers, in words; "" without. Valid until the free. */
const char *kvd_costs_files_apart(const kvd_costs_files *f);

#endif
