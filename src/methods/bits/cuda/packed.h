/* Methods that store a quantised KV cache on the GPU: older tokens in quantised pages, the newest
 * tokens in bf16 ring buffers. Functions return nonzero and fill *err on failure. */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_H
#define KVD_METHODS_BITS_CUDA_PACKED_H

#include "methods/bits/cuda/packed_codes.h"
#include "methods/cuda/paged_cache.h"

/* Returns the value of the quantisation method's parameter `key`, or 0 if the method has no such
 * parameter. */
double kvd_gpu_packed_value(const kvd_plan *plan, const char *key);
/* Returns true if the method stores indices of non-uniform quantisation levels (kvquant). */
bool kvd_gpu_packed_has_levels(const kvd_plan *plan);
/* Returns true if the method stores small floating-point numbers (fp8, mxfp4 and nvfp4). */
bool kvd_gpu_packed_has_floats(const kvd_plan *plan);
/* Sets bits, exponent and block of *f to the values of the plan's method: fp8, mxfp4 or nvfp4. */
void kvd_gpu_packed_set_floats(const kvd_plan *plan, kvd_packed_form *f);
/* Returns true if the GPU kernels of the method support heads of more than KVD_WIDTH_NARROW
 * dimensions. */
bool kvd_gpu_packed_takes_wide(const kvd_plan *plan);
/* Returns the expected number of outliers of K per page (64 tokens) and KV head. */
double kvd_gpu_packed_outliers(const kvd_plan *plan, const kvd_config *c);
/* Returns how many bits a request of m tokens stores for tokens `from` .. m - 1 in KV head g. Does
 * not count outliers of K. */
double kvd_gpu_packed_bits(const kvd_packed_args *a, int g, size_t from, size_t m);
/* Returns how many bits tokens `from` .. m - 1 take in KV head g, for methods that quantise blocks
 * of tokens. The prompt's `prompt` tokens are one block. */
double kvd_gpu_packed_block_bits(const kvd_packed_args *a, int g, size_t from, size_t m,
                                 size_t prompt);
/* Sets sizes in *a that depend on the number of bits of each dimension, for method allot. If `word`
 * is not NULL, sets it to each dimension's first word in a page. first_kv_head: index in the model
 * of this GPU's first KV head. */
void kvd_gpu_packed_allot(const kvd_plan *plan, int layer, int first_kv_head, kvd_packed_args *a,
                          uint16_t *word);
/* Returns true if the method is turboquant and its parameter `bits` is a whole number. */
bool kvd_gpu_packed_is_turned(const kvd_plan *plan);
/* Returns true if the method is turboquant and its parameter `bits` is not a whole number, such as
 * 2.5. */
bool kvd_gpu_packed_is_parted(const kvd_plan *plan);

/* Fails if an iteration has a prompt that is not whole. Used as kvd_gpu_method.begin. */
int kvd_gpu_packed_begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err);
/* Must be called after each iteration. Sets tokens [slots]: the number of cached tokens of each
 * request, 0 if it ended. Sets *held to the cache bytes of all requests, including those that
 * ended. */
void kvd_gpu_packed_count(const kvd_gpu_method *m, const kvd_iteration *it, size_t slots,
                          uint32_t *tokens, double *held);
/* In layer 0, launches a kernel that fills `table` [max_slices][max_pages], the page table of the
 * newest tokens. In other layers, does nothing. */
int kvd_gpu_packed_rings(const kvd_paged_cache *c, const kvd_paged_rows *r, int32_t ring_pages,
                         int32_t *table, kvd_err *err);

/* Fills wave [KVD_WIDTH_MAX (KVD_WIDTH_MAX + 1)] with the cosines and sines of Fourier transforms
 * of all lengths. */
void kvd_gpu_packed_waves(double *wave);

/* Quantisation levels and random matrices of method turboquant in host memory. */
typedef struct {
    float *level, *range, *turn_rows, *turn_outputs;
    float *sketch_rows, *sketch_back;
    /* Number of elements of `level`, of `range`, and of each matrix. */
    size_t n_level, n_range, n_matrix;
} kvd_packed_turned;

/* Computes the quantisation levels and random matrices of method turboquant. The caller must call
 * kvd_gpu_packed_turned_free, even after a failure. */
int kvd_gpu_packed_turned_make(const kvd_plan *plan, const kvd_packed_args *a, kvd_packed_turned *t,
                               kvd_err *err);
void kvd_gpu_packed_turned_free(kvd_packed_turned *t);
/* Copies the quantisation method's tables to the GPU, and sets their addresses in layer
 * [n_layers]. */
int kvd_gpu_packed_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                          kvd_device_memory *memory, kvd_err *err);
typedef struct {
    float *mass;
    float *score;
} kvd_packed_salience;

/* Allocates the arrays of *s, and m->lse and m->lse_steps for the logarithms of softmax
 * denominators. *memory owns the arrays. */
int kvd_gpu_packed_salience_make(kvd_gpu_method *m, kvd_packed_salience *s,
                                 kvd_device_memory *memory, kvd_err *err);
/* Computes how much attention each prompt token received. All requests in *a must be prompts. */
int kvd_gpu_packed_weigh_prompts(const kvd_gpu_method *m, const kvd_packed_salience *s,
                                 const kvd_paged_rows *r, kvd_packed_args *a, kvd_err *err);
/* Sets the page layout in *a, and zeroes the other members. head [n_kv_heads] has the numbers of
 * stored dimensions; if NULL, `map` has them. `room` is the number of outliers of K per page, or
 * 0. */
void kvd_gpu_packed_describe(const kvd_plan *plan, const kvd_config *c, const kvd_attn_map *map,
                             const kvd_dims_head *head, size_t room, kvd_packed_args *a);

#endif
