/*
 * Measures the peak rates of the GPU (bytes, exponentials, tensor-core FLOP), in the same run as
 * the kernels that are compared with them. The functions run on the host, use the current device
 * and the default stream, allocate device memory, wait for the device and free the memory. Each
 * uses random data, because zeros draw less power and allow higher clocks, and takes the median of
 * its launches.
 *
 * Nothing else should run on the GPU at the same time.
 */
#ifndef KVD_KERNELS_CUDA_CEILINGS_H
#define KVD_KERNELS_CUDA_CEILINGS_H

#include <stddef.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One measured peak rate of the GPU. */
typedef struct {
    double rate;         /* median rate, in the function's unit per second */
    double best;         /* rate of the fastest launch */
    double median_us;    /* median time of one launch */
    double sm_clock_mhz; /* mean SM clock over all launches; NaN if it could not be read */
    int launches;
} kvd_ceiling;

/*
 * Measures the rate of a copy from one buffer to another: bytes read plus bytes written, per
 * second. `bytes` is the size of one buffer, a multiple of 16; 0 selects 4 GiB. Returns 0, or -1
 * and fills *err.
 */
int kvd_ceiling_copy(size_t bytes, kvd_ceiling *out, kvd_err *err);

/*
 * Measures the rate of reading one buffer with 16-byte loads, in bytes per second. `bytes` is a
 * multiple of 16 and must be well above the size of the L2 cache; 0 selects 8 GiB. Returns 0, or -1
 * and fills *err.
 */
int kvd_ceiling_read(size_t bytes, kvd_ceiling *out, kvd_err *err);

/*
 * Measures the rate of the instruction ex2.approx.ftz.f32 alone: exponentials per second on all
 * SMs. Returns 0, or -1 and fills *err.
 */
int kvd_ceiling_ex2(kvd_ceiling *out, kvd_err *err);

/*
 * Measures the rate of a bf16 GEMM n x n x n with float32 accumulation through cuBLAS, in FLOP per
 * second, 2 n^3 per product. `n` 0 selects 8192. The result is the better of row-major times
 * row-major and row-major times transposed. Returns 0, or -1 and fills *err.
 */
int kvd_ceiling_gemm(int n, kvd_ceiling *out, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
