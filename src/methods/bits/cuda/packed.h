/*
 * Caches of codes (kivi, kvquant, fp8, mxfp4, nvfp4, turboquant). Pages hold codes, scales and
 * outliers (packed_layout.h); a slot holds its newest rows in bf16. The rows of a prompt are in the
 * bf16 pages, which all layers share, until attention has read them, and are then coded. Steps
 * store their rows in the slot's ring. Results follow kvd_bits_method: the same windows, groups and
 * roundings, applied to bf16 rows.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_H
#define KVD_METHODS_BITS_CUDA_PACKED_H

#include "methods/bits/cuda/packed_codes.h"
#include "methods/cuda/paged_cache.h"

/*
 * Functions of packed_form.c, which depend on the plan only. kvd_gpu_packed_value returns a
 * parameter of the plan's bits method, or 0 if no parameter has this name.
 */
double kvd_gpu_packed_value(const kvd_plan *plan, const char *key);
/* Returns true if the bits method has levels in place of even steps (kvquant). */
bool kvd_gpu_packed_has_levels(const kvd_plan *plan);
/* Returns true if the bits method has floating-point codes (fp8, mxfp4, nvfp4). */
bool kvd_gpu_packed_has_floats(const kvd_plan *plan);
/* Returns the expected number of key outliers in a page of one head. */
double kvd_gpu_packed_outliers(const kvd_plan *plan, const kvd_config *c);
/*
 * Returns the bits of a request of m tokens in KV head g of a layer, without outliers of keys. The
 * count equals that of the bits method itself.
 */
double kvd_gpu_packed_bits(const kvd_packed_args *a, int g, size_t m);
/* Returns true if the bits method codes rotated vectors (turboquant). */
bool kvd_gpu_packed_is_turned(const kvd_plan *plan);

/* Tables of rotated vectors for the device. */
typedef struct {
    float *level, *range, *turn_rows, *turn_outputs; /* those of kvd_packed_args */
    size_t n_level, n_range, n_matrix; /* numbers of each; n_matrix of both matrices */
} kvd_packed_turned;

/*
 * Fills *t for the open plan and the form and heads of *a. On failure, too, the caller must call
 * kvd_gpu_packed_turned_free.
 */
int kvd_gpu_packed_turned_make(const kvd_plan *plan, const kvd_packed_args *a, kvd_packed_turned *t,
                               kvd_err *err);
void kvd_gpu_packed_turned_free(kvd_packed_turned *t);
/*
 * Copies the tables of the open plan's bits method to memory of the device, and sets them in the
 * arguments `layer` of all layers.
 */
int kvd_gpu_packed_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                          kvd_device_memory *memory, kvd_err *err);
/*
 * Fills the members of *a that follow from the plan and from the heads' widths `map`: the form of
 * the layer's pages and the numbers of tokens that are coded. Sets all other members to 0.
 */
void kvd_gpu_packed_describe(const kvd_plan *plan, const kvd_config *c, const kvd_attn_map *map,
                             kvd_packed_args *a);

#endif
