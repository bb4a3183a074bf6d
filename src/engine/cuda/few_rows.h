/*
 * Products of at most 8 rows with a weight matrix that is read once. They take most of the time of
 * a decode step with few requests. Numbers are bf16, sums float32.
 *
 * The product is bound by the bytes of the matrix. The matrix is streamed through shared memory. On
 * Hopper the first tiles are loaded before the preceding kernels end (programmatic dependent
 * launch). Norm, activation and the addition to the residual stream are part of the same launch.
 * Launch functions follow the conventions of model/pass/cuda/blocks.h.
 */
#ifndef KVD_ENGINE_CUDA_FEW_ROWS_H
#define KVD_ENGINE_CUDA_FEW_ROWS_H

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_FEW_ROWS = 8 /* largest number of rows */ };

typedef enum {
    /* y = x W^T in bf16: one row of y per row of x, one column per row of W. */
    KVD_FEW_STORE,
    /* y += x W^T in float32, where y is the residual stream. */
    KVD_FEW_ADD,
    /* y = x W^T in float32. */
    KVD_FEW_PUT,
    /*
     * y = silu(x G^T) * (x U^T) in bf16. The weight matrix w holds the rows of the gate matrix G,
     * then those of the up matrix U, `out` rows each.
     */
    KVD_FEW_SWIGLU,
    /* y = x W^T in float32, where x is the RMS norm of the residual stream: y are the logits. */
    KVD_FEW_LOGITS
} kvd_few_kind;

typedef struct {
    kvd_few_kind kind;
    /* n: number of rows of x and y. in: columns of x and w, a multiple of 8. out: columns of y. */
    size_t n, in, out;
    /*
     * Weight matrix in device memory, bf16 [out][in], aligned to 16 bytes. No kernel on the stream
     * writes it.
     */
    const void *w;
    /*
     * Input rows x in device memory, bf16 [n][in], aligned to 16 bytes. NULL: x is computed from
     * `residual` and `gain`.
     */
    const void *x;
    /*
     * If x is NULL, the input rows are the RMS norm of `residual` [n][in] times `gain` [in], both
     * float32 in device memory.
     */
    const float *residual, *gain;
    double eps;
    /*
     * Number of the stage of the forward pass that is recorded in *bad if a row of the residual is
     * not finite.
     */
    unsigned stage;
    kvd_gpu_bad *bad;
    void *y;
    /*
     * Device memory that receives the GPU's time (%globaltimer, in nanoseconds) when the preceding
     * kernels have ended. NULL: the time is not written.
     */
    unsigned long long *began;
} kvd_few_rows;

/*
 * Returns true if kvd_few_rows_run supports a product of n rows with `in` columns. There may be up
 * to KVD_FEW_ROWS rows, which must fit into shared memory of the current device. KVD_FEW_ADD and
 * KVD_FEW_PUT may take several launches.
 */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
