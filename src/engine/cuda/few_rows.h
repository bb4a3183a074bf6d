/* Products of at most 8 tokens in bf16 with a bf16 or 4-bit matrix, summed in float32.
 *
 * On Hopper the first loads start before preceding kernels end. */
#ifndef KVD_ENGINE_CUDA_FEW_ROWS_H
#define KVD_ENGINE_CUDA_FEW_ROWS_H

#include <stdbool.h>

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_FEW_ROWS = 8 };

typedef enum {
    /* y = x W^T, stored as bf16 */
    KVD_FEW_STORE,
    /* residual stream y += x W^T in float32 */
    KVD_FEW_ADD,
    /* y = x W^T in float32 */
    KVD_FEW_PUT,
    /* y = silu(x G^T) * (x U^T) in bf16, for gate matrix G and up matrix U */
    KVD_FEW_SWIGLU,
    /* y = gelu_tanh(x G^T) * (x U^T) in bf16 */
    KVD_FEW_GEGLU_TANH,
    /* logits y = x W^T in float32 */
    KVD_FEW_LOGITS
} kvd_few_kind;

/* Matrix W [rows][in] in 4 bits on the device: w = step * code + zero, with float16 step and zero
 * per 128 columns.
 *
 * codes [tiles of 16 rows][units of 128 columns][2][32 lanes]: four words per lane, in the order of
 * mma.sync m16n8k16. sides [tiles][units][16]: step in the low half, zero in the high half. */
typedef struct {
    void *codes, *sides;
} kvd_few_codes;

enum { KVD_FEW_UNIT = 128 };

/* Returns the bytes of 4-bit codes, in *sides those of steps and zeros. 128 must divide `in`. */
size_t kvd_few_codes_bytes(size_t rows, size_t in, size_t *sides);
/* Quantise w, bf16 [rows][in], and restore it. `gated`: gate matrix, then up matrix. */
cudaError_t kvd_few_codes_pack(const void *w, size_t rows, size_t in, bool gated,
                               const kvd_few_codes *to, cudaStream_t stream);
cudaError_t kvd_few_codes_restore(const kvd_few_codes *from, size_t rows, size_t in, bool gated,
                                  void *w, cudaStream_t stream);

typedef struct {
    kvd_few_kind kind;
    /* x is [n][in], y [n][out]; `in` is a multiple of 8 */
    size_t n, in, out;
    /* bf16 [out][in], aligned to 16 bytes; no kernel on the stream writes it */
    const void *w;
    /* 4-bit weights, used instead of `w` unless codes.codes is NULL */
    kvd_few_codes codes;
    /* input in bf16 [n][in], aligned to 16 bytes, or NULL */
    const void *x;
    /* the input, if x is NULL, is the RMS norm of residual [n][in] times gain [in] */
    const float *residual, *gain;
    double eps;
    /* number of the check, recorded in *bad if a value is not finite */
    unsigned stage;
    kvd_gpu_bad *bad;
    void *y;
    /* Receives the GPU's time in ns when preceding kernels end; may be NULL. */
    unsigned long long *began;
} kvd_few_rows;

/* Returns true if kvd_few_rows_run supports n input rows of `in` elements on this device. */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
