/* Reads several files of measured times as one (kvdim-serve --costs).
 *
 * All files must agree in model and machine. A method's times come from one file. */
#ifndef KVD_SERVING_SIMULATE_COSTS_FILES_H
#define KVD_SERVING_SIMULATE_COSTS_FILES_H

#include "formats/model_info.h"
#include "serving/simulate/costs.h"

typedef struct kvd_costs_files kvd_costs_files;

/* Opens files of iteration times measured on `gpus` GPUs (-1: any number). Borrows paths. Fails if
 * they differ in model, machine or options such as --dtype. */
kvd_costs_files *kvd_costs_files_open(const char *const *path, size_t n, int gpus, kvd_err *err);
void kvd_costs_files_free(kvd_costs_files *f);

const kvd_model_info *kvd_costs_files_model(const kvd_costs_files *f);

/* Returns the *n methods of all files, valid until kvd_costs_files_free. */
const char *const *kvd_costs_files_methods(const kvd_costs_files *f, size_t *n);

/* Returns the file with a method's times. If none or several have, fails. */
const char *kvd_costs_files_of(const kvd_costs_files *f, const char *method, kvd_err *err);

/* Returns a sentence about differing revisions or drivers, or "". */
const char *kvd_costs_files_apart(const kvd_costs_files *f);

#endif
