/*
 * Products of at most 8 bf16 rows with a weight matrix that is read once; sums are float32. These
 * products take most of the time of a decode step with few requests.
 *
 * On Hopper the first tiles are loaded before the preceding kernels end (programmatic dependent
 * launch). Norm, activation and the addition to the residual stream are part of the launch. Launch
 * functions follow the conventions of model/pass/cuda/blocks.h.
 */
#ifndef KVD_ENGINE_CUDA_FEW_ROWS_H
#define KVD_ENGINE_CUDA_FEW_ROWS_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_FEW_ROWS = 8 };

typedef enum {
    /* y = x W^T as bf16 */
    KVD_FEW_STORE,
    /* y += x W^T in float32, where y is the residual stream */
    KVD_FEW_ADD,
    /* y = x W^T in float32 */
    KVD_FEW_PUT,
    /*
     * y = silu(x G^T) * (x U^T) in bf16. The matrix holds `out` rows of the gate matrix G, then
     * `out` rows of the up matrix U.
     */
    KVD_FEW_SWIGLU,
    /* y = x W^T in float32, where x is the RMS norm of the residual stream and y the logits */
    KVD_FEW_LOGITS
} kvd_few_kind;

typedef struct {
    kvd_few_kind kind;
    /* y is [n][out], and w has `in` columns, a multiple of 8. */
    size_t n, in, out;
    /*
     * Weights, bf16 [out][in], aligned to 16 bytes, in device memory. No kernel on the stream may
     * write them.
     */
    const void *w;
    /*
     * Input, bf16 [n][in], aligned to 16 bytes, in device memory. If NULL, `residual` and `gain`
     * are used.
     */
    const void *x;
    /*
     * If x is NULL, the input is the RMS norm of `residual` [n][in] times `gain` [in], both float32
     * in device memory.
     */
    const float *residual, *gain;
    double eps;
    /* Stage number that is recorded in *bad if a row of the residual is not finite. */
    unsigned stage;
    kvd_gpu_bad *bad;
    void *y;
    /*
     * Device memory that receives the GPU's time (%globaltimer, in ns) when the preceding kernels
     * have ended. May be NULL.
     */
    unsigned long long *began;
} kvd_few_rows;

/*
 * Returns true if kvd_few_rows_run supports n rows of `in` columns on the current device: n is at
 * most KVD_FEW_ROWS, and the rows fit into shared memory. KVD_FEW_ADD and KVD_FEW_PUT may divide
 * the columns among several launches.
 */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
