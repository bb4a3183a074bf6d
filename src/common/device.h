/* Finds CUDA GPUs, and selects the device for --device. */
#ifndef KVD_COMMON_DEVICE_H
#define KVD_COMMON_DEVICE_H

#include <stdbool.h>

#include "common/options.h"
#include "common/run.h"

/* The reason why this build cannot use CUDA, for messages. */
#define KVD_LEFT_OUT "was left out of this build (CUDA=0, or make found no nvcc)"

/* Returns true for compute capabilities 8.x and 9.0, the SM80 and SM90 of the Makefile. */
static inline bool kvd_cuda_has_code(int major, int minor)
{
    return major == 8 || (major == 9 && minor == 0);
}

/*
 * Returns 0 and the name, such as "NVIDIA H200", if a CUDA device can be used. The message says
 * what is missing: CUDA, a device, or kernels for it.
 */
int kvd_cuda_here(char *name, size_t size, kvd_err *err);

/* Writes the driver version, such as "580.95.05", or "unknown". */
void kvd_cuda_driver(char *text, size_t size);

/*
 * Sets --device `auto` to `cuda` or `cpu`. `cuda` without a device is an error. `name`: the device,
 * "" for the CPU.
 */
int kvd_device_resolve(kvd_common_options *opt, char *name, size_t size, kvd_err *err);

/* Resolves --device in a program that cannot use a GPU: `cuda` is an error. */
int kvd_device_cpu_only(kvd_common_options *opt, kvd_err *err);

/* Returns the number of usable CUDA devices; 0 in a build without CUDA. */
int kvd_cuda_count(void);

/*
 * Records the GPU's name ("" for none) and driver version in *run, for /provenance of result files.
 */
void kvd_device_note(const char *name, kvd_run *run);

#endif
