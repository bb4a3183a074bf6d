/*
 * Products of at most 8 bf16 rows with a weight matrix that is read once; sums are float32. These
 * products take most of the time of a decode step with few requests. Weights are bf16 or have 4
 * bits.
 *
 * On Hopper the first tiles are loaded before the preceding kernels end (programmatic dependent
 * launch). Norm, activation and the addition to the residual stream are part of the launch. Launch
 * functions follow the conventions of model/pass/cuda/blocks.h.
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
    /* y += x W^T in float32, where y is the residual stream */
    KVD_FEW_ADD,
    /* y = x W^T in float32 */
    KVD_FEW_PUT,
    /*
     * y = silu(x G^T) * (x U^T) in bf16. The matrix holds `out` rows of the gate matrix G, then
     * `out` rows of the up matrix U.
     */
    KVD_FEW_SWIGLU,
    /* as KVD_FEW_SWIGLU with gelu, approximated by tanh, in place of silu */
    KVD_FEW_GEGLU_TANH,
    /* y = x W^T in float32, where y are the logits */
    KVD_FEW_LOGITS
} kvd_few_kind;

/*
 * Matrix W [rows][in] of 4-bit codes: w = step * code + zero, where 128 adjacent columns of a row
 * have one step and one zero, both float16 (common/quantise.h). In device memory.
 *
 * Rows are stored in tiles of 16 and columns in units of 128; a tile of a gated matrix (gate matrix
 * followed by up matrix) has 8 rows of the gate matrix and the same rows of the up matrix. `codes`
 * [tiles][units][2][32 lanes] are four 32-bit words for each lane of a warp. A word is the lane's
 * part of the A operand of one mma.sync m16n8k16, which has four registers r of two elements each.
 * Bits 4 r .. 4 r + 3 of the word are the first element of register r, and bits 16 + 4 r .. 16 + 4
 * r + 3 the second element of register r. `sides` [tiles][units][16] has the step of a row in the
 * low half of a word and the zero in the high half.
 */
typedef struct {
    void *codes, *sides;
} kvd_few_codes;

enum { KVD_FEW_UNIT = 128 };

/* Returns the number of bytes of `codes` and of `sides` of a matrix; `in` is a multiple of 128. */
size_t kvd_few_codes_bytes(size_t rows, size_t in, size_t *sides);
/*
 * kvd_few_codes_pack quantises w, bf16 [rows][in], to the codes `to`. kvd_few_codes_restore writes
 * the values of the codes `from` to w as bf16. If `gated`, w is a gate matrix followed by an up
 * matrix of rows / 2 rows each.
 */
cudaError_t kvd_few_codes_pack(const void *w, size_t rows, size_t in, bool gated,
                               const kvd_few_codes *to, cudaStream_t stream);
cudaError_t kvd_few_codes_restore(const kvd_few_codes *from, size_t rows, size_t in, bool gated,
                                  void *w, cudaStream_t stream);

typedef struct {
    kvd_few_kind kind;
    /* Sizes: x is [n][in], y is [n][out]; `in` is a multiple of 8. */
    size_t n, in, out;
    /*
     * Weights, bf16 [out][in], aligned to 16 bytes, in device memory. No kernel on the stream may
     * write them.
     */
    const void *w;
    /*
     * Weights of 4 bits. If codes.codes is not NULL, they are used and `w` is not read. `in` must
     * then be a multiple of KVD_FEW_UNIT. The matrices of KVD_FEW_SWIGLU and KVD_FEW_GEGLU_TANH are
     * gated.
     */
    kvd_few_codes codes;
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
    /*
     * Stage (number of this check) that is recorded in *bad if a row of the residual is not finite.
     */
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
 * most KVD_FEW_ROWS, and the rows fit into shared memory. With KVD_FEW_ADD and KVD_FEW_PUT, rows
 * that do not fit are divided by columns among several launches. Codes of 4 bits fit wherever bf16
 * weights do.
 */
int kvd_few_rows_take(kvd_few_kind kind, size_t n, size_t in);
cudaError_t kvd_few_rows_run(const kvd_few_rows *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
