/* Rounds projected K and V to the data type of a cache. */
#ifndef KVD_METHODS_CUDA_CACHE_ROWS_H
#define KVD_METHODS_CUDA_CACHE_ROWS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/half.h"
#include "methods/bits/packed_layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rounds x [n][width] (KVD_F32 or KVD_BF16, ld elements per token) to type `store`, but writes
 * float32. to [n][width] may be x.
 */
cudaError_t kvd_cache_round(kvd_dtype type, const void *x, size_t ld, kvd_dtype store, size_t n,
                            size_t width, float *to, cudaStream_t stream);

/*
 * Copies K and V of n tokens, each in one KV head of d dimensions, between pages and rows [n][2 d]
 * (`back`: to pages). k: device [n] addresses of K, 64 d elements before V.
 */
cudaError_t kvd_cache_move(uint16_t *const *k, size_t n, int d, uint16_t *rows, bool back,
                           cudaStream_t stream);

/* Rows of a KV head: n[0] rows of K from first[0] on, and n[1] rows of V from first[1] on. */
typedef struct {
    int32_t first[2], n[2];
    float scale[2]; /* of the tensor (kvd_scales_at), for floating-point codes */
} kvd_cache_codes;

/*
 * Replaces numbers of rows [][2 d], as kvd_cache_move copies them, by those that their codes
 * restore. list: device [n].
 * Integer codes (f->exponent is 0) of f->bits bits share a scale and zero point: of K those of
 * `group` rows in a channel, of V those of `group` channels of a row (kvd_bits_code_groups).
 * Floating-point codes are those of fp8, mxfp4 or nvfp4.
 */
cudaError_t kvd_cache_code(uint16_t *rows, int d, const kvd_cache_codes *list, size_t n,
                           const kvd_packed_form *f, int group, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
