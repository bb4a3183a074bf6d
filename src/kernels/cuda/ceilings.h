/*
 * What the card can do at most, measured in the same run as the kernels that are held against it: bytes, exponentials,
 * tensor-core FLOP. Host functions that allocate device memory, wait, and give it back; the current device, the default
 * stream. Each takes random data (zeros draw less power and clock higher) and the median of its launches.
 *
 * Nothing else should run on the card meanwhile.
 */
#ifndef KVD_KERNELS_CUDA_CEILINGS_H
#define KVD_KERNELS_CUDA_CEILINGS_H

#include <stddef.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One measured rate. */
typedef struct {
    double rate;         /* per second; of what, the function says            */
    double best;         /* of the fastest launch                             */
    double median_us;    /* of one launch                                     */
    double sm_clock_mhz; /* over all launches; NaN when it could not be read  */
    int launches;
} kvd_ceiling;

/* Copy from one buffer to another: bytes read plus bytes written, per second. bytes: of one buffer, 0 for 4 GiB; a
 * multiple of 16. Returns 0, or -1 with *err. */
int kvd_ceiling_copy(size_t bytes, kvd_ceiling *out, kvd_err *err);

/* Read one buffer with 16-byte loads: bytes per second. bytes: 0 for 8 GiB; a multiple of 16; well above the L2. */
int kvd_ceiling_read(size_t bytes, kvd_ceiling *out, kvd_err *err);

/* ex2.approx.ftz.f32 alone: exponentials per second, all SMs. */
int kvd_ceiling_ex2(kvd_ceiling *out, kvd_err *err);

/* bf16 GEMM n x n x n with float32 accumulation through cuBLAS: FLOP per second, 2 n^3 each. n: 0 for 8192; the better
 * of row-major times row-major and of row-major times transposed. */
int kvd_ceiling_gemm(int n, kvd_ceiling *out, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
