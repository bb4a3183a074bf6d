/*
 * Transposes and converts Q, K and V from [token][head][dim] to [head][token][dim] on the device.
 */
#ifndef KVD_COLLECT_CUDA_SLABS_H
#define KVD_COLLECT_CUDA_SLABS_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "common/half.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_SLAB_PARTS = 5 };

/* First value that is not finite after conversion, by tensor, head, token, dimension. */
typedef struct {
    /*
     * head << 48 | row << 16 | dim, where a row is a token; all bits 1: all finite, other fields
     * not set
     */
    uint64_t found;
    uint64_t row;
    uint32_t part, head, dim;
    float value; /* value before the conversion */
} kvd_slab_bad;

typedef struct {
    /* number types: KVD_F32 or KVD_BF16; of the output */
    kvd_dtype from, to;
    int d, n_parts;
    size_t n_rows;
    struct {
        const void *x; /* element i of token t and head h is x[t * ld + h * d + i], i < d */
        size_t ld;
        int n_heads;
    } part[KVD_SLAB_PARTS];
    /* [n_heads][n_rows][d], heads of all n_parts tensors one after another */
    void *slabs;
    kvd_slab_bad *bad;
} kvd_slab_args;

/* Queues transposition and conversion, rounding ties to even. */
cudaError_t kvd_make_slabs(const kvd_slab_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
