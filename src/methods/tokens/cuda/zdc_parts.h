/* Types shared by the files of method zdc in the CUDA engine. */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H

#include "methods/tokens/cuda/zdc.h"
#include "methods/tokens/cuda/zdc_method.h"

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
    /* `tokens` at the end of the latest iteration, even if the request finished in it. */
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
    /* Widths of less important tokens: those of the plan, or `own` of method think. */
    const kvd_dims *dims_low;
    kvd_dims own_low;
    /*
     * With method think: order of the channels of keys, device [slots][n_layers][n_kv_heads]
     * [d_head]; number of newest prompt tokens that are important; number of channels that stay.
     */
    int16_t *order;
    size_t window, kept;
    kvd_zdc_head *head; /* device [n_layers][n_kv_heads] */
    uint16_t *store;
    /* The page list of slot s starts with page own + s. */
    int32_t own;
    /* [slots][n_layers] Number of less important tokens, on the device and in pinned memory. */
    int32_t *n_low, *host_low;
    /* Device arrays for the prompts of a batch (kvd_zdc_choose_args). */
    float *lse, *value;
    /* Attention that tokens received, [n_heads][rows]. NULL unless the method is `received`. */
    float *mass;
    uint8_t *level;
    int32_t *place;
    /* parts.n is 0 unless several GPUs share the heads. */
    kvd_zdc_parts parts;
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

/* Must be called after the layers of the cache are set up. */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
