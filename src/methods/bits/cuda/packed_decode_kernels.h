/* Declarations for packed_decode*.cu only. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_DECODE_KERNELS_H
#define KVD_METHODS_BITS_CUDA_PACKED_DECODE_KERNELS_H

#include "methods/bits/cuda/packed_decode.h"

/* Warps per CTA of the kernels on floating-point codes and rotated vectors, at most WARPS_MOST. */
enum { FLOATS_WARPS = 12 };

/* Members that every kernel reads come first, so that they share few lines of constant memory. */
struct kvd_packed_decode_params {
    float scale_log2;
    int32_t width; /* dimensions of every head of Q, K, V and O */
    int32_t warps, slot_floats;
    /*
     * Bytes of shared memory. stage_bytes: copy of a page, of which the newest token starts at
     * newest_at. scratch_bytes: a warp's memory in addition to its two page copies. shared_bytes:
     * memory that all warps of the CTA use.
     */
    int32_t stage_bytes, newest_at, scratch_bytes, shared_bytes;
    /*
     * k_shift: log2 of the number of groups of 8 tokens that share a scale of keys. v_shift: log2
     * of the number of blocks of 16 dimensions that share a scale of values.
     */
    int32_t k_shift, v_shift;
    int32_t n_listed;       /* number of a page's key outliers that are copied to shared memory */
    kvd_packed_parts parts; /* all heads have the same layout */
    kvd_packed_decode_args d;
    kvd_packed_args a;
};

typedef void (*kvd_packed_decode_kernel)(kvd_packed_decode_params);

/*
 * The functions that end with _kernel return the attention kernel for a kind of codes, or NULL if
 * there is none. The functions that end with _lay_out set the sizes of that kernel's shared memory
 * and its largest number of warps.
 */
kvd_packed_decode_kernel kvd_packed_levels_kernel(const kvd_packed_args *a);
void kvd_packed_levels_lay_out(kvd_packed_decode_params *p);
kvd_packed_decode_kernel kvd_packed_turned_kernel(const kvd_packed_args *a);
void kvd_packed_turned_lay_out(kvd_packed_decode_params *p);
kvd_packed_decode_kernel kvd_packed_floats_kernel(const kvd_packed_args *a);
void kvd_packed_floats_lay_out(kvd_packed_decode_params *p);

#endif
