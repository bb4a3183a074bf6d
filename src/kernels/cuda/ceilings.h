/* Measures peak rates of the current GPU (memory, exponentials, matrix products) on random data.
 * Nothing else should run on the GPU. */
#ifndef KVD_KERNELS_CUDA_CEILINGS_H
#define KVD_KERNELS_CUDA_CEILINGS_H

#include <stddef.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double rate; /* median rate in units per second */
    double best; /* rate of the fastest launch */
    double median_us;
    double sm_clock_mhz; /* mean over all launches; NaN if not read */
} kvd_ceiling;

/* Measures the rate of copies: bytes read plus bytes written, per second. A copy has `bytes` bytes,
 * a multiple of 16; 0 means 4 GiB. */
int kvd_ceiling_copy(size_t bytes, kvd_ceiling *out, kvd_err *err);

/* Measures bytes read per second. `bytes` is a multiple of 16 above the L2 size; 0 means 8 GiB. */
int kvd_ceiling_read(size_t bytes, kvd_ceiling *out, kvd_err *err);

/* Measures exponentials (ex2.approx.ftz.f32) per second on all SMs. */
int kvd_ceiling_ex2(kvd_ceiling *out, kvd_err *err);

/* Measures FLOP per second of a bf16 n x n x n GEMM with float32 sums (cuBLAS). n 0 means 8192. */
int kvd_ceiling_gemm(int n, kvd_ceiling *out, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
