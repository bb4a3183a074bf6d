/* Quantised KV caches on the GPU: pages of quantised tokens, and the newest tokens in bf16 ring
 * buffers. Functions return nonzero and fill *err on failure. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_H
#define KVD_METHODS_BITS_CUDA_PACKED_H

#include "methods/bits/cuda/packed_codes.h"
#include "methods/cuda/paged_cache.h"

/* Returns the parameter `key` of the quantisation method, or 0. */
double kvd_gpu_packed_value(const kvd_plan *plan, const char *key);
/* Returns true if the method stores indices of quantisation levels (kvquant). */
bool kvd_gpu_packed_has_levels(const kvd_plan *plan);
/* Returns true if the method stores small floating-point numbers (fp8, mxfp4 and nvfp4). */
bool kvd_gpu_packed_has_floats(const kvd_plan *plan);
/* Sets bits, exponent and block of f to those of fp8, mxfp4 or nvfp4. */
void kvd_gpu_packed_set_floats(const kvd_plan *plan, kvd_packed_form *f);
/* Returns true if the method's kernels support heads of more than KVD_WIDTH_NARROW dimensions. */
bool kvd_gpu_packed_takes_wide(const kvd_plan *plan);
/* Returns the expected number of key outliers per page (64 tokens) and KV head. */
double kvd_gpu_packed_outliers(const kvd_plan *plan, const kvd_config *c);
/* Returns the bits of tokens from .. m - 1 (of m tokens) in KV head g, without key outliers. */
double kvd_gpu_packed_bits(const kvd_packed_args *a, int g, size_t from, size_t m);
/* Returns the bits of tokens from .. m - 1 after quantisation in blocks. */
double kvd_gpu_packed_block_bits(const kvd_packed_args *a, int g, size_t from, size_t m,
                                 size_t prompt);
/* For method allot, sets the sizes in *a that depend on the bits of each dimension. `word`, unless
 * NULL, gets each dimension's first word in a page. first_kv_head is the index of this GPU's first
 * KV head in the model. */
void kvd_gpu_packed_allot(const kvd_plan *plan, int layer, int first_kv_head, kvd_packed_args *a,
                          uint16_t *word);
/* Returns true if the method is turboquant with a whole number of bits. */
bool kvd_gpu_packed_is_turned(const kvd_plan *plan);
/* Returns true if the method is turboquant with a fractional number of bits. */
bool kvd_gpu_packed_is_parted(const kvd_plan *plan);

/* Fails if an iteration has only a part of a prompt. Serves as kvd_gpu_method.begin. */
int kvd_gpu_packed_begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
/* After an iteration, sets the number of cached tokens of each of its requests (0 if the request
 * ended), and *held to the cache bytes of all requests, including those that ended. */
void kvd_gpu_packed_count(const kvd_gpu_method *m, const kvd_iteration *it, size_t slots,
                          uint32_t *tokens, double *held);
/* In layer 0, starts filling table [max_slices][max_pages], the page table of the ring buffers. */
int kvd_gpu_packed_rings(const kvd_paged_cache *c, const kvd_paged_rows *r, int32_t ring_pages,
                         int32_t *table, kvd_err *err);

/* Fills wave [KVD_WIDTH_MAX (KVD_WIDTH_MAX + 1)] with cosines and sines for a Fourier transform. */
void kvd_gpu_packed_waves(double *wave);

/* Quantisation levels and random matrices of method turboquant in host memory. */
typedef struct {
    float *level, *range, *turn_rows, *turn_outputs;
    float *sketch_rows, *sketch_back;
    /* Number of elements of `level`, of `range`, and of each rotation matrix. */
    size_t n_level, n_range, n_matrix;
} kvd_packed_turned;

/* Computes turboquant's levels and matrices. Even on failure, call kvd_gpu_packed_turned_free. */
int kvd_gpu_packed_turned_make(const kvd_plan *plan, const kvd_packed_args *a, kvd_packed_turned *t,
                               kvd_err *err);
void kvd_gpu_packed_turned_free(kvd_packed_turned *t);
/* Copies the method's tables to the device and sets their addresses in layer [n_layers]. */
int kvd_gpu_packed_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                          kvd_device_memory *memory, kvd_err *err);
typedef struct {
    float *mass;
    float *score;
} kvd_packed_salience;

/* Allocates *s and the logarithms of softmax denominators of `m`. Adds their bytes to *memory. */
int kvd_gpu_packed_salience_make(kvd_gpu_method *m, kvd_packed_salience *s,
                                 kvd_device_memory *memory, kvd_err *err);
/* Computes the attention that prompt tokens received. `*a` must hold only prompts. */
int kvd_gpu_packed_weigh_prompts(const kvd_gpu_method *m, const kvd_packed_salience *s,
                                 const kvd_paged_rows *r, kvd_packed_args *a, kvd_err *err);
/* Sets the page layout of `*a`, and zeroes its other members. head [n_kv_heads] has the stored
 * dimensions, or is NULL for those of `map`. `room` is the number of key outliers per page, or
 * 0. */
void kvd_gpu_packed_describe(const kvd_plan *plan, const kvd_config *c, const kvd_attn_map *map,
                             const kvd_dims_head *head, size_t room, kvd_packed_args *a);

#endif
