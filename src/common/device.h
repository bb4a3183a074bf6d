/* Finds out whether a CUDA GPU can be used, and selects the device for the option --device. */
#ifndef KVD_COMMON_DEVICE_H
#define KVD_COMMON_DEVICE_H

#include "common/options.h"
#include "common/run.h"

/* Reason for error messages why this build cannot use CUDA. */
#define KVD_LEFT_OUT "was left out of this build (CUDA=0, or make found no nvcc)"

/*
 * Returns 0 if a CUDA device can be used, and stores the device's name, such as "NVIDIA H200", in
 * `name`. Otherwise returns -1. The error message says whether the build has no CUDA or the
 * machine has no device.
 */
int kvd_cuda_here(char *name, size_t size, kvd_err *err);

/* Writes the version of the NVIDIA kernel driver to `text`, such as "580.95.05", or "unknown". */
void kvd_cuda_driver(char *text, size_t size);

/*
 * Replaces the value `auto` of the option --device in *opt by `cuda` if a CUDA device can be used,
 * else by `cpu`. The value `cuda` without a device is an error. `name` receives the device's name,
 * "" for the CPU.
 */
int kvd_device_resolve(kvd_common_options *opt, char *name, size_t size, kvd_err *err);

/* Returns the number of CUDA devices that can be used, 0 in a build without CUDA. */
int kvd_cuda_count(void);

/*
 * Records the GPU's name ("" for none) and its driver version in *run, which writes them to
 * /provenance.
 */
void kvd_device_note(const char *name, kvd_run *run);

#endif
