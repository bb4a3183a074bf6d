/*
 * KV caches that hold codes of few bits (kivi, kvquant, fp8, mxfp4, nvfp4, turboquant), in the CUDA
 * engine. Pages hold codes, scales and outliers (packed_layout.h). The newest rows of a request are
 * in bf16, in a ring of pages that belongs to its slot. The rows of a prompt are in the bf16 pages,
 * which all layers share, until attention has read them, and are then coded. Decode steps store
 * their rows in the slot's ring. Results follow kvd_bits_method: the same windows, groups and
 * roundings, applied to bf16 rows.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_H
#define KVD_METHODS_BITS_CUDA_PACKED_H

#include "methods/bits/cuda/packed_codes.h"
#include "methods/cuda/paged_cache.h"

/*
 * Returns the value of the parameter named `key` of the plan's bits method, or 0 if the method has
 * no such parameter. Like the functions below, it depends only on the plan (packed_form.c).
 */
double kvd_gpu_packed_value(const kvd_plan *plan, const char *key);
/*
 * Returns true if the codes of the bits method are indices of quantisation levels in a table
 * instead of equal steps (kvquant).
 */
bool kvd_gpu_packed_has_levels(const kvd_plan *plan);
/* Returns true if the bits method has floating-point codes (fp8, mxfp4, nvfp4). */
bool kvd_gpu_packed_has_floats(const kvd_plan *plan);
/* Returns the expected number of key outliers in a page (64 tokens) of one KV head. */
double kvd_gpu_packed_outliers(const kvd_plan *plan, const kvd_config *c);
/*
 * Returns the number of bits that a request of m tokens takes in KV head g of a layer, without
 * outliers of keys. The count equals that of the bits method on the CPU.
 */
double kvd_gpu_packed_bits(const kvd_packed_args *a, int g, size_t m);
/* Returns true if the bits method codes rotated vectors (turboquant). */
bool kvd_gpu_packed_is_turned(const kvd_plan *plan);

/* Tables for rotated vectors (turboquant) on the host, to be copied to the device. */
typedef struct {
    /* Tables of the same names in kvd_packed_args. */
    float *level, *range, *turn_rows, *turn_outputs;
    /* Number of elements of `level`, of `range`, and of turn_rows and turn_outputs each. */
    size_t n_level, n_range, n_matrix;
} kvd_packed_turned;

/*
 * Computes the tables *t of rotated vectors for the open plan and the form and heads of *a. The
 * caller must call kvd_gpu_packed_turned_free, after a failure too.
 */
int kvd_gpu_packed_turned_make(const kvd_plan *plan, const kvd_packed_args *a, kvd_packed_turned *t,
                               kvd_err *err);
void kvd_gpu_packed_turned_free(kvd_packed_turned *t);
/*
 * Copies the tables of the open plan's bits method to device memory, and sets their addresses in
 * layer [n_layers], the kernel arguments of all layers.
 */
int kvd_gpu_packed_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                          kvd_device_memory *memory, kvd_err *err);
/*
 * Fills the members of *a that follow from the plan and from the heads' widths in `map`: the layout
 * of the layer's pages and the numbers of tokens that are coded. Sets all other members to 0.
 */
void kvd_gpu_packed_describe(const kvd_plan *plan, const kvd_config *c, const kvd_attn_map *map,
                             kvd_packed_args *a);

#endif
