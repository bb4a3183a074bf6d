/* Reads several files of measured iteration times as if they were one file (kvdim-serve --costs).
 *
 * All files must agree in model and machine. Each method must have its times in a single file. */
#ifndef KVD_SERVING_SIMULATE_COSTS_FILES_H
#define KVD_SERVING_SIMULATE_COSTS_FILES_H

#include "formats/model_info.h"
#include "serving/simulate/costs.h"

typedef struct kvd_costs_files kvd_costs_files;

/* Opens files of iteration times measured on `gpus` GPUs (-1: any number). The strings `path` must
 * stay valid. Fails if the files differ in model, machine or options such as --dtype. */
kvd_costs_files *kvd_costs_files_open(const char *const *path, size_t n, int gpus, kvd_err *err);
void kvd_costs_files_free(kvd_costs_files *f);

const kvd_model_info *kvd_costs_files_model(const kvd_costs_files *f);

/* Returns the names of the *n compression methods whose iteration times the files contain. The
 * array is valid until kvd_costs_files_free. */
const char *const *kvd_costs_files_methods(const kvd_costs_files *f, size_t *n);

/* Returns the path of the file that has the times of `method`. If no file or several files have
 * them, returns NULL and fills *err. */
const char *kvd_costs_files_of(const kvd_costs_files *f, const char *method, kvd_err *err);

/* Returns a sentence that tells which files differ in kvdim revision or GPU driver, or "" if none
 * do. */
const char *kvd_costs_files_apart(const kvd_costs_files *f);

#endif
