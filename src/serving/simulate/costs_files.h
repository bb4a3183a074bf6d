/*
 * Reads several files of measured times as one: kvdim-serve --costs A.h5 --costs B.h5.
 *
 * All files must have the same model, machine, number of GPUs and dtype. The size of the cache, the
 * use of CUDA graphs and the timing of phases must also agree. All times of a method come from one
 * file.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_FILES_H
#define KVD_SERVING_SIMULATE_COSTS_FILES_H

#include "formats/model_info.h"
#include "serving/simulate/costs.h"

typedef struct kvd_costs_files kvd_costs_files;

/*
 * Opens complete files of kvdim-jct, measured on `gpus` GPUs; -1 means any number. Paths are
 * borrowed. Fails if the files differ in a value that they must have in common, or if a file has no
 * timed iteration.
 */
kvd_costs_files *kvd_costs_files_open(const char *const *path, size_t n, int gpus, kvd_err *err);
void kvd_costs_files_free(kvd_costs_files *f);

const kvd_model_info *kvd_costs_files_model(const kvd_costs_files *f);

/*
 * Returns the *n labels of all methods of the files, each once. Valid until kvd_costs_files_free.
 */
const char *const *kvd_costs_files_methods(const kvd_costs_files *f, size_t *n);

/*
 * Returns the path of the file that has measured times of the method. If no file or several files
 * have them, returns NULL and fills *err.
 */
const char *kvd_costs_files_of(const kvd_costs_files *f, const char *method, kvd_err *err);

/*
 * Returns a sentence that names two of the files, if these were made by different revisions of
 * kvdim or under different versions of the GPU driver; else "". The text is valid until
 * kvd_costs_files_free.
 */
const char *kvd_costs_files_apart(const kvd_costs_files *f);

#endif
