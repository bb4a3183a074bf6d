/* Finds CUDA GPUs, and selects the device for --device. */
#ifndef KVD_COMMON_DEVICE_H
#define KVD_COMMON_DEVICE_H

#include <stdbool.h>

#include "common/options.h"
#include "common/run.h"

/* Part of error messages: why this build cannot use CUDA. */
#define KVD_LEFT_OUT "was left out of this build (CUDA=0, or make found no nvcc)"

/* Returns true for compute capabilities 8.x and 9.0, for which the kernels are compiled. */
static inline bool kvd_cuda_has_code(int major, int minor)
{
    return major == 8 || (major == 9 && minor == 0);
}

/* Stores the name of a CUDA device that can be used. If there is none, fails with a message that
 * says what is missing. */
int kvd_cuda_here(char *name, size_t size, kvd_err *err);

/* Writes the version of the NVIDIA driver, such as "580.95.05", to `text`, or "unknown". */
void kvd_cuda_driver(char *text, size_t size);

/* Replaces --device `auto` by `cuda` or `cpu`. `name` receives the GPU's name or "". */
int kvd_device_resolve(kvd_common_options *opt, char *name, size_t size, kvd_err *err);

/* Sets --device `auto` to `cpu` and refuses `cuda`. */
int kvd_device_cpu_only(kvd_common_options *opt, kvd_err *err);

/* Returns the number of usable CUDA devices, 0 in a build without CUDA. */
int kvd_cuda_count(void);

/* Records the GPU's name ("" for none) and driver version for /provenance of result files. */
void kvd_device_note(const char *name, kvd_run *run);

#endif
