/* Declarations shared by the files packed_decode*.cu, and internal to them. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_KERNELS_H
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_KERNELS_H

#include "methods/bits/cuda/packed_decode.h"

struct kvd_packed_decode_params {
    kvd_packed_args a;
    kvd_packed_decode_args d;
    kvd_packed_parts parts; /* layout of a head's page; all heads have one number of dimensions */
    float scale_log2;
    int32_t warps, slot_floats;
    /*
     * Bytes of shared memory: `stage_bytes` for a page's copy, `scratch_bytes` for a warp in
     * addition to its two stages, `shared_bytes` for the whole CTA.
     */
    int32_t stage_bytes, scratch_bytes, shared_bytes;
    /*
     * k_shift: log2 of the number of groups of 8 tokens that share a scale of keys. v_shift: log2
     * of the number of units (16 dims) that share a scale of values.
     */
    int32_t k_shift, v_shift;
    int32_t n_listed; /* number of a page's key outliers that are copied to shared memory */
};

typedef void (*kvd_packed_decode_kernel)(kvd_packed_decode_params);

/*
 * kvd_packed_levels_kernel returns the attention kernel for codes that are indices of quantisation
 * levels, or NULL if there is none for this layout. kvd_packed_levels_lay_out sets the sizes of
 * that kernel's shared memory.
 */
kvd_packed_decode_kernel kvd_packed_levels_kernel(const kvd_packed_args *a);
void kvd_packed_levels_lay_out(kvd_packed_decode_params *p);
/*
 * kvd_packed_turned_kernel returns the attention kernel for codes of rotated vectors (turboquant),
 * or NULL if there is none for this layout. kvd_packed_turned_lay_out sets the size of that
 * kernel's shared memory.
 */
kvd_packed_decode_kernel kvd_packed_turned_kernel(const kvd_packed_args *a);
void kvd_packed_turned_lay_out(kvd_packed_decode_params *p);
/*
 * Returns the attention kernel for floating-point codes, or NULL if there is none for the heads and
 * codes of *a.
 */
kvd_packed_decode_kernel kvd_packed_floats_kernel(const kvd_packed_args *a);

#endif
