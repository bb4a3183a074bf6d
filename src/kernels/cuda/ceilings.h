/*
 * Measures peak rates of the GPU: bytes, exponentials and tensor-core FLOP. The functions use the
 * current device and the default stream, and wait. They return 0, or -1 with *err filled. Data are
 * random, because zeros draw less power and allow higher clocks. Nothing else should run on the GPU
 * at the same time.
 */
#ifndef KVD_KERNELS_CUDA_CEILINGS_H
#define KVD_KERNELS_CUDA_CEILINGS_H

#include <stddef.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    double rate;         /* median rate in units per second */
    double best;         /* rate of the fastest launch */
    double median_us;    /* time of one launch */
    double sm_clock_mhz; /* mean over all launches; NaN if it could not be read */
    int launches;
} kvd_ceiling;

/*
 * Measures bytes read plus bytes written, per second. `bytes` is the size of one buffer, a multiple
 * of 16; 0 selects 4 GiB.
 */
int kvd_ceiling_copy(size_t bytes, kvd_ceiling *out, kvd_err *err);

/*
 * Measures bytes read per second. `bytes` is a multiple of 16 well above the size of L2; 0 selects
 * 8 GiB.
 */
int kvd_ceiling_read(size_t bytes, kvd_ceiling *out, kvd_err *err);

/* Measures exponentials per second by ex2.approx.ftz.f32 on all SMs. */
int kvd_ceiling_ex2(kvd_ceiling *out, kvd_err *err);

/*
 * Measures FLOP per second of a bf16 GEMM n x n x n with float32 sums in cuBLAS, 2 n^3 FLOP per
 * product. The result is the better of row-major times row-major and row-major times transposed.
 * `n` 0 selects 8192.
 */
int kvd_ceiling_gemm(int n, kvd_ceiling *out, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
