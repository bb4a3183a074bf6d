/* Transposes and converts Q, K, V from [token][head][dim] to [head][token][dim] on the GPU. */
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

/* First element of Q, K or V that is not finite after conversion to the output's number type. */
typedef struct {
    /* head << 48 | token << 16 | dim of the first element that is not finite; all bits are 1 if all
     * elements are finite */
    uint64_t found;
    uint64_t row;
    uint32_t part, head, dim;
    float value; /* value before the conversion */
} kvd_slab_bad;

typedef struct {
    /* types of the input x and of the output */
    kvd_dtype from, to;
    int d, n_parts;
    size_t n_rows;
    struct {
        const void *x; /* element i of token t and head h is x[t * ld + h * d + i], i < d */
        size_t ld;
        int n_heads;
    } part[KVD_SLAB_PARTS];
    /* output [n_heads][n_rows][d]: the heads of part[0] (such as Q), then of part[1], and so on */
    void *slabs;
    kvd_slab_bad *bad;
} kvd_slab_args;

/* Queues the transposition of arrays such as Q to [head][token][dim], and their conversion to
 * number type args->to. Ties round to even. */
cudaError_t kvd_make_slabs(const kvd_slab_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
