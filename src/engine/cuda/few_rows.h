/* Products of at most 8 rows (tokens) in bf16 with a matrix of bf16 or 4-bit weights, summed in
 * float32.
 *
 * On GPUs from Hopper on, a kernel starts to load weights before preceding kernels end. */
#ifndef KVD_ENGINE_CUDA_FEW_ROWS_H
#define KVD_ENGINE_CUDA_FEW_ROWS_H

#include <stdbool.h>

#include "model/pass/cuda/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_FEW_ROWS = 8 };

typedef enum {
    /* stores y = x W^T in bf16 */
    KVD_FEW_STORE,
    /* adds x W^T to the residual stream y in float32 */
    KVD_FEW_ADD,
    /* stores y = x W^T in float32 */
    KVD_FEW_PUT,
    /* stores y = silu(x G^T) * (x U^T) in bf16, with gate matrix G and up matrix U */
    KVD_FEW_SWIGLU,
    /* stores y = gelu_tanh(x G^T) * (x U^T) in bf16, with gate matrix G and up matrix U */
    KVD_FEW_GEGLU_TANH,
    /* stores the logits y = x W^T in float32 */
    KVD_FEW_LOGITS
} kvd_few_kind;

/* Matrix W [rows][in] with 4-bit weights, on the GPU: w = step * code + zero. Step and zero are
 * float16 numbers, one each per row and 128 columns.
 *
 * codes [tiles of 16 rows][units of 128 columns][2][32 lanes]: four words per lane, in the order of
 * mma.sync m16n8k16. sides [tiles][units][16 rows]: step in the low 16 bits, zero in the high 16
 * bits. */
typedef struct {
    void *codes, *sides;
} kvd_few_codes;

enum { KVD_FEW_UNIT = 128 };

/* Returns the size in bytes of the 4-bit codes of a quantised matrix [rows][in]. *sides receives
 * the size in bytes of its quantisation steps and zero points. `in` must be a multiple of 128. */
size_t kvd_few_codes_bytes(size_t rows, size_t in, size_t *sides);
/* kvd_few_codes_pack quantises matrix w, bf16 [rows][in], to 4 bits; kvd_few_codes_restore converts
 * it back to bf16. If `gated`, w is a gate matrix above an up matrix. */
cudaError_t kvd_few_codes_pack(const void *w, size_t rows, size_t in, bool gated,
                               const kvd_few_codes *to, cudaStream_t stream);
cudaError_t kvd_few_codes_restore(const kvd_few_codes *from, size_t rows, size_t in, bool gated,
                                  void *w, cudaStream_t stream);

typedef struct {
    kvd_few_kind kind;
    /* Sizes: x is [n][in], y is [n][out]. `in` must be a multiple of 8. */
    size_t n, in, out;
    /* Weights, bf16 [out][in], aligned to 16 bytes. No queued kernel may write them, because they
     * are read before preceding kernels end. */
    const void *w;
    /* 4-bit weights. If codes.codes is not NULL, they are used instead of `w`. */
    kvd_few_codes codes;
    /* Input, bf16 [n][in], aligned to 16 bytes. If NULL, the input is `residual` after RMS
     * normalisation. */
    const void *x;
    /* If x is NULL, the input is the RMS norm of residual [n][in], multiplied by gain [in]. */
    const float *residual, *gain;
    double eps;
    /* number that is written to *bad if this check finds a NaN or infinity in the residual
     * stream */
    unsigned stage;
    kvd_gpu_bad *bad;
    void *y;
    /* receives the GPU's time in ns at which preceding kernels end; may be NULL */
    unsigned long long *began;
} kvd_few_rows;

/* Returns true if kvd_few_rows_run supports n input rows of `in` elements on this device. */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
