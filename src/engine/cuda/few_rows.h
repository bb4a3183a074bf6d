/*
 * Products of at most 8 bf16 rows with a matrix of bf16 or 4-bit weights; sums are float32.
 *
 * On Hopper the first tiles load before preceding kernels end (programmatic dependent launch).
 * Launch conventions: model/pass/cuda/blocks.h.
 */
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
    /* y = gelu_tanh(x G^T) * (x U^T) in bf16, for gate matrix G and up matrix U */
    KVD_FEW_GEGLU_TANH,
    /* logits y = x W^T in float32 */
    KVD_FEW_LOGITS
} kvd_few_kind;

/*
 * Matrix W [rows][in] of 4-bit codes in device memory: w = step * code + zero, with a float16 step
 * and zero per 128 columns (common/quantise.h).
 *
 * Tiles of 16 rows, units of 128 columns; a gated tile has 8 gate and the same 8 up rows.
 * codes [tiles][units][2][32 lanes]: four 32-bit words per lane. A word is a lane's operand A of
 * one mma.sync m16n8k16: bits 4 r and 16 + 4 r begin the two elements of register r.
 * sides [tiles][units][16]: step in the low half, zero in the high half.
 */
typedef struct {
    void *codes, *sides;
} kvd_few_codes;

enum { KVD_FEW_UNIT = 128 };

/* Returns the bytes of `codes`; *sides receives those of `sides`. `in` is a multiple of 128. */
size_t kvd_few_codes_bytes(size_t rows, size_t in, size_t *sides);
/*
 * Quantises w, bf16 [rows][in], to codes. kvd_few_codes_restore computes w from the codes. If
 * `gated`, w is a gate matrix followed by an up matrix.
 */
cudaError_t kvd_few_codes_pack(const void *w, size_t rows, size_t in, bool gated,
                               const kvd_few_codes *to, cudaStream_t stream);
cudaError_t kvd_few_codes_restore(const kvd_few_codes *from, size_t rows, size_t in, bool gated,
                                  void *w, cudaStream_t stream);

typedef struct {
    kvd_few_kind kind;
    /* x is [n][in], y is [n][out]; `in` is a multiple of 8. */
    size_t n, in, out;
    /* Weights, bf16 [out][in], aligned to 16 bytes; no kernel on the stream writes them. */
    const void *w;
    /* 4-bit weights, used instead of `w` unless codes.codes is NULL. */
    kvd_few_codes codes;
    /* Input, bf16 [n][in], aligned to 16 bytes, or NULL. */
    const void *x;
    /* If x is NULL, the input is the RMS norm of residual [n][in] times gain [in]. */
    const float *residual, *gain;
    double eps;
    /* Number of the check that is recorded in *bad if a row is not finite. */
    unsigned stage;
    kvd_gpu_bad *bad;
    void *y;
    /* Receives the GPU time in ns when preceding kernels have ended; may be NULL. */
    unsigned long long *began;
} kvd_few_rows;

/* Returns true if kvd_few_rows_run supports n rows of `in` columns on this device. */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
