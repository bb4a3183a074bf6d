/*
 * Quantised KV caches of the CUDA engine (kivi, kvquant, fp8, mxfp4, nvfp4, turboquant, comet,
 * allot, gear, hetero, rotatekv, zipcache, vidkv). Pages hold codes, scales and outliers
 * (packed_layout.h, gear.h).
 *
 * The newest tokens of a request are bf16, in a ring buffer that belongs to the request's slot. A
 * prompt is stored in bf16 pages, which all layers use in turn, until attention has read it; then
 * it is quantised. Windows, groups and roundings are those of kvd_bits_method, applied to bf16
 * numbers.
 */
#ifndef KVD_METHODS_BITS_CUDA_PACKED_H
#define KVD_METHODS_BITS_CUDA_PACKED_H

#include "methods/bits/cuda/packed_codes.h"
#include "methods/cuda/paged_cache.h"

/*
 * Returns the parameter `key` of the plan's quantisation method, or 0 if the method has no such
 * parameter.
 */
double kvd_gpu_packed_value(const kvd_plan *plan, const char *key);
/* Returns true if codes are indices into a table of quantisation levels (kvquant). */
bool kvd_gpu_packed_has_levels(const kvd_plan *plan);
/* Returns true for fp8, mxfp4 and nvfp4. */
bool kvd_gpu_packed_has_floats(const kvd_plan *plan);
/* Returns true if heads may have more than KVD_WIDTH_NARROW dimensions. */
bool kvd_gpu_packed_takes_wide(const kvd_plan *plan);
/* Returns the expected number of key outliers in a page (64 tokens) of one KV head. */
double kvd_gpu_packed_outliers(const kvd_plan *plan, const kvd_config *c);
/*
 * Returns the number of bits that tokens from .. m - 1 of a request of m tokens take in KV head g
 * of a layer, without key outliers. The CPU method counts the same number.
 */
double kvd_gpu_packed_bits(const kvd_packed_args *a, int g, size_t from, size_t m);
/*
 * Does what kvd_gpu_packed_bits does (returns the bits of tokens from .. m - 1 of KV head g) for a
 * layout that codes tokens in blocks (kvd_packed_in_blocks). `prompt` is the number of tokens of
 * the request's prompt. The bits of a block are divided equally among its tokens.
 */
double kvd_gpu_packed_block_bits(const kvd_packed_args *a, int g, size_t from, size_t m,
                                 size_t prompt);
/*
 * Sets the sizes of `*a` that depend on the numbers of bits of the dimensions of a layer (allot).
 * `first_kv_head` is the model's number of KV head 0 of `*a`. If `word` is not NULL, it receives
 * the contents of the device array kvd_packed_allot.word: [n_kv_heads][2][wide].
 */
void kvd_gpu_packed_allot(const kvd_plan *plan, int layer, int first_kv_head, kvd_packed_args *a,
                          uint16_t *word);
/*
 * Returns true if the plan's method is turboquant with a whole number of bits, in which all
 * channels are rotated ("turned") together.
 */
bool kvd_gpu_packed_is_turned(const kvd_plan *plan);
/*
 * Returns true if the plan's method is turboquant with a fractional number of bits, in which the
 * channels are divided in two parts.
 */
bool kvd_gpu_packed_is_parted(const kvd_plan *plan);

/*
 * Fills host memory [KVD_WIDTH_MAX (KVD_WIDTH_MAX + 1)] with the cosines and sines that the device
 * array kvd_packed_split_codes.wave holds.
 */
void kvd_gpu_packed_waves(double *wave);

/*
 * Host copies of the tables of turboquant that have the same names in kvd_packed_args: quantisation
 * levels, ranges, and rotation matrices.
 */
typedef struct {
    float *level, *range, *turn_rows, *turn_outputs;
    float *sketch_rows, *sketch_back; /* NULL unless form.sketch is set */
    /* Number of elements of `level`, of `range`, and of each matrix. */
    size_t n_level, n_range, n_matrix;
} kvd_packed_turned;

/*
 * Computes the tables `*t` for the plan, which must be open, and for the page layout and heads of
 * `*a`. The caller must call kvd_gpu_packed_turned_free, after a failure too.
 */
int kvd_gpu_packed_turned_make(const kvd_plan *plan, const kvd_packed_args *a, kvd_packed_turned *t,
                               kvd_err *err);
void kvd_gpu_packed_turned_free(kvd_packed_turned *t);
/*
 * Copies the tables of the plan's quantisation method to the device and sets their addresses in
 * layer [n_layers]. The plan must be open.
 */
int kvd_gpu_packed_tables(const kvd_plan *plan, const kvd_paged_cache *c, kvd_packed_args *layer,
                          kvd_device_memory *memory, kvd_err *err);
/* Device memory for the attention probabilities by which method zipcache ranks tokens. */
typedef struct {
    float *mass;  /* [n_heads][rows of Q], the array kvd_packed_class_codes.mass */
    float *score; /* [n_kv_heads][rows of Q], the array kvd_packed_class_codes.score */
} kvd_packed_salience;

/*
 * Allocates `*s`, and the arrays m->lse and m->lse_steps into which attention kernels write the
 * logarithms of softmax denominators. Counts the bytes in `*memory`.
 */
int kvd_gpu_packed_salience_make(kvd_gpu_method *m, kvd_packed_salience *s,
                                 kvd_device_memory *memory, kvd_err *err);
/*
 * Computes the attention probabilities that each token of an iteration's prompts received from all
 * queries, and sets the members of a->classes that kvd_packed_code reads when it codes prompts. The
 * batch in `*a` must consist of these prompts.
 */
int kvd_gpu_packed_weigh_prompts(const kvd_gpu_method *m, const kvd_packed_salience *s,
                                 const kvd_paged_rows *r, kvd_packed_args *a, kvd_err *err);
/*
 * Sets the page layout of `*a` and the sizes that determine which tokens are quantised, for heads
 * of the widths in `map`. All other members of `*a` become 0. `head` [n_kv_heads] has the numbers
 * of stored dimensions of the layer's KV heads, without padding; if NULL, `map` has them. A page
 * has room for `room` key outliers per KV head; if `room` is 0, for four times the expected number,
 * plus 64.
 */
void kvd_gpu_packed_describe(const kvd_plan *plan, const kvd_config *c, const kvd_attn_map *map,
                             const kvd_dims_head *head, size_t room, kvd_packed_args *a);

#endif
