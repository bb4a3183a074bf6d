/* Finds CUDA GPUs, and selects the device for --device. */
#ifndef KVD_COMMON_DEVICE_H
#define KVD_COMMON_DEVICE_H

#include <stdbool.h>

#include "common/options.h"
#include "common/run.h"

/* Text for messages: the reason why this build cannot use CUDA. */
#define KVD_LEFT_OUT "was left out of this build (CUDA=0, or make found no nvcc)"

/*
 * Returns true if the kernels are compiled for GPUs of this compute capability: 8.x or 9.0, by SM80
 * and SM90 in the Makefile.
 */
static inline bool kvd_cuda_has_code(int major, int minor)
{
    return major == 8 || (major == 9 && minor == 0);
}

/*
 * Returns 0 if a CUDA device can be used, and stores its name, such as "NVIDIA H200". On failure
 * the message says whether the build has no CUDA, the machine has no device, or the kernels are not
 * compiled for it.
 */
int kvd_cuda_here(char *name, size_t size, kvd_err *err);

/* Writes the driver version, such as "580.95.05", or "unknown". */
void kvd_cuda_driver(char *text, size_t size);

/*
 * If --device is `auto`, sets it to `cuda` if a CUDA device can be used, else to `cpu`. The value
 * `cuda` without a device is an error. `name` receives the device's name, "" for the CPU.
 */
int kvd_device_resolve(kvd_common_options *opt, char *name, size_t size, kvd_err *err);

/*
 * Resolves --device in a program that cannot use a GPU: `auto` becomes `cpu`, `cuda` is an error.
 */
int kvd_device_cpu_only(kvd_common_options *opt, kvd_err *err);

/* Returns the number of CUDA devices that can be used; 0 in a build without CUDA. */
int kvd_cuda_count(void);

/*
 * Records the GPU's name ("" for none) and driver version in *run, for the group /provenance of
 * result files.
 */
void kvd_device_note(const char *name, kvd_run *run);

#endif
