/* What packed_decode.cu and packed_decode_levels.cu share. Internal to the two. */
#ifndef KVD_SERVING_CUDA_PACKED_DECODE_LEVELS_H
#define KVD_SERVING_CUDA_PACKED_DECODE_LEVELS_H

#include "serving/cuda/methods/packed_decode.h"

struct kvd_packed_decode_params {
    kvd_packed_args a;
    kvd_packed_decode_args d;
    kvd_packed_parts parts; /* all heads have one width */
    float scale_log2;
    int32_t warps, slot_floats;
    int32_t stage_bytes, scratch_bytes,
        shared_bytes;         /* of a page, of a warp beside its two stages, of the CTA */
    int32_t k_shift, v_shift; /* log2 of groups of 8 tokens, and of units, that share scales */
    int32_t n_listed;         /* of the outliers of keys, how many go with the page */
};

typedef void (*kvd_packed_decode_kernel)(kvd_packed_decode_params);

/* The kernel of codes of levels; NULL: there is none. What its pages and warps have in shared memory. */
kvd_packed_decode_kernel kvd_packed_levels_kernel(const kvd_packed_args *a);
void kvd_packed_levels_lay_out(kvd_packed_decode_params *p);

#endif
