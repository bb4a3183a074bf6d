/*
 * Transposes rows [token][head][dim] of Q, K and V into blocks (slabs) [head][token][dim] of the
 * activations file's number type, on the device, and checks that the values are finite.
 * collect/cuda/dump.c launches it.
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
 * Location of the first value that is not finite after its conversion. "First" is in the order of
 * tensors (Q, K, V, ...), heads, rows (tokens) and dims.
 */
typedef struct {
    /*
     * Location of the first value that is not finite, packed as head << 48 | row << 16 | dim. If
     * all values are finite, all bits are 1 and the other fields are not set.
     */
    uint64_t found;
    uint64_t row;
    uint32_t part, head, dim;
    float value; /* value at that location before its conversion to the output type */
} kvd_slab_bad;

typedef struct {
    /* Number types of the input (KVD_F32 or KVD_BF16) and of the output (any kvd_dtype). */
    kvd_dtype from, to;
    int d, n_parts;
    size_t n_rows;
    struct {
        const void *x; /* rows of one tensor; dim i of row t of head h is x[t * ld + h * d + i] */
        size_t ld;
        int n_heads;
    } part[KVD_SLAB_PARTS];
    /*
     * Output: the transposed and converted values, [n_heads][n_rows][d], where n_heads counts the
     * heads of all tensors in `part`, one tensor after the other.
     */
    void *slabs;
    kvd_slab_bad *bad; /* output: location of the first value that is not finite */
} kvd_slab_args;

/*
 * Queues the transposition and conversion on `stream`. Rounds to nearest, ties to even, as
 * kvd_from_f32 does.
 */
cudaError_t kvd_make_slabs(const kvd_slab_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
