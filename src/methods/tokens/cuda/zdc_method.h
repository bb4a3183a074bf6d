/* State and functions of method zdc on the GPU, in which important tokens keep more dimensions than
 * others. */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H

#include "methods/cuda/paged_cache.h"
#include "methods/tokens/cuda/zdc.h"

/* Importance of prompt tokens, for models whose heads are divided among GPUs. Each GPU computes it
 * from its own heads; `exchange` gives every GPU the results of all GPUs. */
typedef struct {
    int n, own; /* number of GPUs (0: heads are not shared), and index of this GPU */
    /* [GPUs][rows] in device memory: importance of prompt tokens, as each GPU computes it from its
     * own heads. */
    float *sum;
    int (*exchange)(void *ctx, float *sum, size_t rows, kvd_err *err);
    void *ctx;
} kvd_zdc_parts;
void kvd_gpu_zdc_share(kvd_gpu_method *m, const kvd_zdc_parts *parts);

/* Returns how many consecutive layers use the same important tokens, or 0 if parameter `overlap`
 * decides. */
int kvd_gpu_zdc_together(const kvd_gpu_method *m);
/* kvd_gpu_zdc_heads returns the layout of a layer's KV heads, an array in device memory.
 * kvd_gpu_zdc_low_map returns the layout of the layer's pages for less important tokens. */
const kvd_zdc_head *kvd_gpu_zdc_heads(const kvd_gpu_method *m, int layer);
const kvd_attn_map *kvd_gpu_zdc_low_map(const kvd_gpu_method *m, int layer);
/* Device arrays with one element per prompt token, for the layer that was computed last. */
typedef struct {
    const uint8_t *level; /* flags that mark important tokens */
    /* index of each token among the important tokens, or among the less important tokens */
    const int32_t *place;
} kvd_zdc_sets;
kvd_zdc_sets kvd_gpu_zdc_sets(const kvd_gpu_method *m);

/* Memory that is needed to choose the important tokens of prompts. */
typedef struct {
    /* [n_slots][layers without a sliding window] Number of less important tokens of each request.
     * n_low is in device memory, host_low in pinned memory. */
    int32_t *n_low, *host_low;
    size_t n_slots;
    /* Device arrays for the members of kvd_zdc_choose_args with the same names. */
    float *lse, *value;
    uint8_t *level;
    int32_t *place;
    float *sum; /* [GPUs][rows] importance over the heads of each GPU; NULL on one GPU */
} kvd_zdc_levels;

/* Allocates the arrays of *v that depend on the number of prompt tokens in an iteration. *m then
 * owns the memory. */
int kvd_zdc_levels_make(kvd_zdc_levels *v, kvd_device_memory *m, const kvd_paged_cache *c,
                        kvd_err *err);
int kvd_zdc_levels_make_slots(kvd_zdc_levels *v, kvd_device_memory *m, const kvd_paged_cache *c,
                              size_t slots, kvd_err *err);
/* v->host_low has the number of less important tokens of each request in each layer.
 * kvd_zdc_levels_put copies these counts to the device, kvd_zdc_levels_get copies them back. */
int kvd_zdc_levels_put(const kvd_zdc_levels *v, const kvd_paged_cache *c, cudaStream_t stream,
                       kvd_err *err);
int kvd_zdc_levels_get(const kvd_zdc_levels *v, const kvd_paged_cache *c, cudaStream_t stream,
                       kvd_err *err);
/* Returns the first of the consecutive layers that use the same important tokens as `layer`,
 * according to the method's parameter `layers`. Layers with a sliding window are not counted.
 * Ignores the method's parameter `overlap`. */
int kvd_zdc_first_of(const kvd_plan *p, int layer);
/* For timing runs without a prompt: sets a request's number of less important tokens in each layer,
 * as after a prompt of `prompt` tokens. */
void kvd_zdc_levels_suppose(const kvd_zdc_levels *v, const kvd_plan *p, int n_layers, size_t slot,
                            size_t prompt);
/* Returns the arguments of kvd_zdc_choose for the prompts of `r`, except `pages`, which the caller
 * must set. */
kvd_zdc_choose_args kvd_zdc_levels_args(const kvd_zdc_levels *v, const kvd_paged_cache *c,
                                        const kvd_plan *p, const kvd_paged_rows *r);
/* Adds the importance of tokens over all GPUs, then runs kvd_zdc_choose. All GPUs must call it. */
int kvd_zdc_choose_by_all(const kvd_paged_cache *c, const kvd_zdc_choose_args *args,
                          const kvd_zdc_levels *v, cudaStream_t stream, kvd_err *err);

/* For tests: returns the number of less important tokens of a request in a layer. They are stored
 * with fewer dimensions. */
size_t kvd_gpu_zdc_low(const kvd_gpu_method *m, size_t slot, int layer);

/* The declarations from here on are only for the source files that implement method zdc. */

typedef struct {
    /* Layout of the pages that have less important tokens. */
    kvd_attn_map low;
    /* Layout for the attention of decode steps, in which every head occurs twice: for important and
     * for less important tokens. */
    kvd_attn_map both;
    /* Bytes per important and per less important token in this layer. */
    double entry[KVD_ZDC_STORES];
    /* Number of elements of K and V per important and per less important token in this layer,
     * without padding. */
    double numbers[KVD_ZDC_STORES];
    /* Index in the array kvd_zdc.store at which the layer's pages begin. */
    size_t at;
    void *workspace;
} kvd_zdc_layer;

typedef struct {
    size_t tokens;
    /* Number of tokens that the request had after the latest iteration. */
    size_t counted;
    /* Bytes of the request's cache after the latest iteration. */
    double held;
} kvd_zdc_slot;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_device_memory memory;
    cudaStream_t stream;
    kvd_zdc_layer *layer;
    kvd_zdc_slot *slot;
    /* Projections of K and V to the dimensions that less important tokens keep. */
    const kvd_dims *dims_low;
    kvd_dims own_low;
    /* For method think: [slots][n_layers][n_kv_heads][d_head] in device memory, order in which key
     * channels are stored. Each element is the original index of a channel. Prompt tokens before
     * the newest `window` ones store only the first `kept` channels. */
    int16_t *order;
    size_t window, kept;
    kvd_zdc_head *head; /* device [kvd_zdc_layers()][n_kv_heads] */
    uint16_t *store;
    /* Page number of the first page of slot 0. Slot s has page own + s as its first page. */
    int32_t own;
    kvd_zdc_levels levels;
    /* [n_heads][rows] Attention that each token received. NULL unless the compression method is
     * `received`. */
    float *mass;
    /* If heads are divided among GPUs: importance of prompt tokens, from the heads of each GPU.
     * Otherwise parts.n is 0. */
    kvd_zdc_parts parts;
    /* In device memory: natural log of the softmax denominator of each query in decode steps. */
    float *lse_steps;
    /* In device memory: attention outputs of decode steps over the important tokens, then those
     * over the less important ones. */
    void *o;
    int32_t *end, *low_len, *table;
    /* [max_slices + 1] in device memory: works[n] divides the attention of a decode step with n
     * requests among CTAs. */
    void **works;
    void *host_works;
} kvd_zdc;

/* Returns the number of layers without a sliding window. Arrays of kvd_zdc have elements only for
 * these layers. In layers with a sliding window, every token keeps as many dimensions as an
 * important token. */
static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->n_full;
}

/* Allocates the arrays of *z. The layers of z->method.cache must exist already. */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
