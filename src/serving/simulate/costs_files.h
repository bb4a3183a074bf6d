/*
 * Reads several files of times measured by kvdim-jct as one (kvdim-serve --costs A.h5 --costs
 * B.h5).
 *
 * Model, machine and settings of all files must agree. All times of a method come from one file.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_FILES_H
#define KVD_SERVING_SIMULATE_COSTS_FILES_H

#include "formats/model_info.h"
#include "serving/simulate/costs.h"

typedef struct kvd_costs_files kvd_costs_files;

/*
 * Opens complete files measured on `gpus` GPUs (-1: any). Borrows paths. Fails if files disagree or
 * have no timed iteration.
 */
kvd_costs_files *kvd_costs_files_open(const char *const *path, size_t n, int gpus, kvd_err *err);
void kvd_costs_files_free(kvd_costs_files *f);

const kvd_model_info *kvd_costs_files_model(const kvd_costs_files *f);

/* Returns the *n labels of the methods of all files, valid until kvd_costs_files_free. */
const char *const *kvd_costs_files_methods(const kvd_costs_files *f, size_t *n);

/*
 * Returns the path of the file that has the times of a method. If none or several have, returns
 * NULL and fills *err.
 */
const char *kvd_costs_files_of(const kvd_costs_files *f, const char *method, kvd_err *err);

/* Returns a sentence about files of different revisions or GPU drivers, or "" if there are none. */
const char *kvd_costs_files_apart(const kvd_costs_files *f);

#endif
