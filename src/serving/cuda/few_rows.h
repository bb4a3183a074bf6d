/*
 * Products of a few rows with a matrix that is read once: what a step of a few requests spends its time on. bf16, sums in float32.
 *
 * Bound by the bytes of the matrix. It is streamed through shared memory, and the first pieces are on their way before the kernels in front
 * have ended (on Hopper, programmatic dependent launch); norm, activation and the addition to the residual stream are done by the same
 * launch. Launchers as in model/cuda/blocks.h.
 */
#ifndef KVD_SERVING_CUDA_FEW_ROWS_H
#define KVD_SERVING_CUDA_FEW_ROWS_H

#include "model/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_FEW_ROWS = 8 /* at most */ };

typedef enum {
    KVD_FEW_STORE,  /* y [n][out] bf16                                            */
    KVD_FEW_ADD,    /* y [n][out] float32 += , the residual stream                */
    KVD_FEW_PUT,    /* y [n][out] float32 =                                       */
    KVD_FEW_SWIGLU, /* y [n][out] bf16 = silu(gate) * up; w has 2 out rows        */
    KVD_FEW_LOGITS  /* y [n][out] float32, behind a norm                          */
} kvd_few_kind;

typedef struct {
    kvd_few_kind kind;
    size_t n, in, out; /* rows, columns of w, columns of y; in a multiple of 8                          */
    const void *w;     /* device bf16 [out][in], aligned to 16; nothing on the stream writes it         */
    const void *x;     /* device bf16 [n][in], aligned to 16; or NULL, then                             */
    const float *residual, *gain; /* device float32 [n][in], [in]: x is the RMS norm of residual          */
    double eps;
    unsigned stage; /* rows of the residual that are not finite go to *bad as this stage             */
    kvd_gpu_bad *bad;
    void *y;
    unsigned long long *began; /* device: %globaltimer when the kernels before had ended; or NULL       */
} kvd_few_rows;

/* Whether a product goes: up to KVD_FEW_ROWS rows that fit shared memory of the current device; KVD_FEW_ADD and _PUT in several launches. */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
