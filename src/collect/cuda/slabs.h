/*
 * Transposes rows [token][head][dim] of the forward pass into slabs [head][token][dim] of the
 * file's dtype on the device, and checks that the values are finite. collect/cuda/dump.c launches
 * it.
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

/*
 * Location of the first value whose conversion is not finite, in the order of parts, heads, rows,
 * dims.
 */
typedef struct {
    uint64_t found; /* all ones: no value is bad; else the other fields are set */
    uint64_t row;
    uint32_t part, head, dim;
    float value; /* value before its conversion */
} kvd_slab_bad;

typedef struct {
    kvd_dtype from, to; /* from: KVD_F32 or KVD_BF16; to: any dtype */
    int d, n_parts;
    size_t n_rows;
    struct {
        const void *x; /* dim i of row t of head h is at [t * ld + h * d + i] */
        size_t ld;
        int n_heads;
    } part[KVD_SLAB_PARTS];
    void *slabs;       /* out [heads of all parts][n_rows][d] */
    kvd_slab_bad *bad; /* out */
} kvd_slab_args;

/*
 * Launches the conversion of rows into slabs. It rounds to nearest, ties to even, as kvd_from_f32
 * does.
 */
cudaError_t kvd_make_slabs(const kvd_slab_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
