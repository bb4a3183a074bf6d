/*
 * Products of a few rows with a weight matrix that is read once. They take most of the time of a
 * decode step with few requests. Types are bf16 with float32 sums.
 *
 * The product is bound by the bytes of the matrix. The matrix is streamed through shared memory; on
 * Hopper the first pieces are loaded before the preceding kernels end (programmatic dependent
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
    KVD_FEW_STORE,  /* y [n][out] bf16 */
    KVD_FEW_ADD,    /* y [n][out] float32 += product (residual stream) */
    KVD_FEW_PUT,    /* y [n][out] float32 = product */
    KVD_FEW_SWIGLU, /* y [n][out] bf16 = silu(gate) * up; w has 2 out rows */
    /* y [n][out] float32 = product with the norm of the residual (logits) */
    KVD_FEW_LOGITS
} kvd_few_kind;

typedef struct {
    kvd_few_kind kind;
    size_t n, in, out; /* n: rows; in: columns of w, a multiple of 8; out: columns of y */
    /*
     * weight matrix, device bf16 [out][in], aligned to 16 bytes; no kernel of the stream writes it
     */
    const void *w;
    /*
     * input rows x, device bf16 [n][in], aligned to 16 bytes; NULL means x is computed from
     * `residual` and `gain`
     */
    const void *x;
    /*
     * device float32 [n][in] and [in]: if x is NULL, the input rows are the RMS norm of `residual`
     * times `gain`
     */
    const float *residual, *gain;
    double eps;
    /* Stage that is recorded in *bad if a row of the residual is not finite. */
    unsigned stage;
    kvd_gpu_bad *bad;
    void *y;
    /*
     * Device memory that receives the GPU's time (%globaltimer) when the preceding kernels have
     * ended; NULL: the time is not wanted.
     */
    unsigned long long *began;
} kvd_few_rows;

/*
 * Returns true if kvd_few_rows_run supports a product of n rows with `in` columns: up to
 * KVD_FEW_ROWS rows that fit into shared memory of the current device. KVD_FEW_ADD and KVD_FEW_PUT
 * may take several launches.
 */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
