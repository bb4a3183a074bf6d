/*
 * Method zdc in the CUDA engine: important tokens keep more dimensions than other tokens (zdc.h).
 * During the attention of a prompt, all its tokens have the dimensions of important tokens.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H

#include "methods/cuda/paged_cache.h"
#include "methods/tokens/cuda/zdc.h"

/*
 * Exchange of importance between GPUs that share the heads of a layer. Each GPU writes the
 * importance over its own heads to `sum`; `exchange` fills in the importance from the other GPUs.
 */
typedef struct {
    int n, own; /* number of GPUs, and index of this GPU; n is 0 if this GPU has all heads */
    /* Device [n][rows]: importance of tokens over the heads of each GPU. */
    float *sum;
    int (*exchange)(void *ctx, float *sum, size_t rows, kvd_err *err);
    void *ctx;
} kvd_zdc_parts;
void kvd_gpu_zdc_share(kvd_gpu_method *m, const kvd_zdc_parts *parts);

/*
 * Returns the parameter `layers` of method importance: the number of consecutive layers that use
 * the token sets chosen in the first of these layers. Returns 0 if the parameter is not used.
 */
int kvd_gpu_zdc_together(const kvd_gpu_method *m);
/*
 * These functions return layouts. kvd_gpu_zdc_heads returns the layouts of this GPU's KV heads, a
 * device array [n_kv_heads]. kvd_gpu_zdc_low_map returns the layout of the pages of less important
 * tokens.
 */
const kvd_zdc_head *kvd_gpu_zdc_heads(const kvd_gpu_method *m, int layer);
const kvd_attn_map *kvd_gpu_zdc_low_map(const kvd_gpu_method *m, int layer);
/* Device arrays `level` and `place` of kvd_zdc_choose_args for the latest layer. */
typedef struct {
    const uint8_t *level;
    const int32_t *place;
} kvd_zdc_sets;
kvd_zdc_sets kvd_gpu_zdc_sets(const kvd_gpu_method *m);

/* For tests: returns the number of less important tokens of a slot in a layer. */
size_t kvd_gpu_zdc_low(const kvd_gpu_method *m, size_t slot, int layer);

/* The declarations from here on are for the files of method zdc only. */

typedef struct {
    /* Layout of the pages of less important tokens. */
    kvd_attn_map low;
    /*
     * Layout for the attention of decode steps: all heads at the widths of important tokens, then
     * again all heads at those of other tokens.
     */
    kvd_attn_map both;
    /* Bytes of an important token, and of any other token, in this layer. */
    double entry[KVD_ZDC_STORES];
    /* Index in kvd_zdc.store of the first element of the layer's pages. */
    size_t at;
    void *workspace;
} kvd_zdc_layer;

typedef struct {
    size_t tokens;
    /*
     * Value of the member `tokens` at the end of the latest iteration, even if the request finished
     * in that iteration.
     */
    size_t counted;
    /*
     * Bytes of cache at the end of the latest iteration, even if the request finished in that
     * iteration.
     */
    double held;
} kvd_zdc_slot;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_device_memory memory;
    cudaStream_t stream;
    kvd_zdc_layer *layer;
    kvd_zdc_slot *slot;
    size_t n_slots;
    /* Widths of less important tokens: those of the plan, or own_low for method think. */
    const kvd_dims *dims_low;
    kvd_dims own_low;
    /*
     * For method think.
     * order: order of the channels of keys, device [slots][n_layers][n_kv_heads][d_head].
     * window: number of newest prompt tokens that are important.
     * kept: number of channels that less important keys keep.
     */
    int16_t *order;
    size_t window, kept;
    kvd_zdc_head *head; /* device [n_layers][n_kv_heads] */
    uint16_t *store;
    /* The page list of slot s starts with page own + s of the pool. */
    int32_t own;
    /* [slots][n_layers] Number of less important tokens, on the device and in pinned memory. */
    int32_t *n_low, *host_low;
    /*
     * Device arrays with which the important tokens of a batch's prompts are chosen
     * (kvd_zdc_choose_args).
     */
    float *lse, *value;
    /*
     * Attention that tokens received, [n_heads][rows]. NULL unless the method of the tokens axis is
     * `received`.
     */
    float *mass;
    uint8_t *level;
    int32_t *place;
    /* parts.n is 0 unless GPUs divide the tokens of a prompt. */
    kvd_zdc_parts parts;
    float *sum; /* as in kvd_zdc_choose_by_all */
    /* Logarithms of the softmax denominators of decode steps, on the device. */
    float *lse_steps;
    /*
     * Attention outputs of decode steps over important tokens, then over other tokens; on the
     * device.
     */
    void *o;
    int32_t *end, *low_len, *table;
    /*
     * Work lists of the attention kernel on the device, [max_slices + 1]. works[n] is used for n
     * decode steps.
     */
    void **works;
    void *host_works;
} kvd_zdc;

static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->config->n_layers;
}

/*
 * Chooses the important tokens of prompts as kvd_zdc_choose does. If tensor-parallel GPUs divide
 * the heads, adds up the importance over all GPUs before; `sum` is then scratch of
 * kvd_zdc_sum_bytes bytes, and every GPU must call the function. Otherwise `sum` is NULL.
 */
int kvd_zdc_choose_by_all(const kvd_paged_cache *c, const kvd_zdc_choose_args *args, float *sum,
                          cudaStream_t stream, kvd_err *err);
/* Returns 0 on one GPU. */
size_t kvd_zdc_sum_bytes(const kvd_paged_cache *c);

/*
 * Allocates the arrays of *z. The caller must have made the layers of the cache (z->cache) before.
 */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
