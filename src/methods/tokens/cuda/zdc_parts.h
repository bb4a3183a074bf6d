/* Types shared by the files of method zdc in the CUDA engine. */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H

#include "methods/tokens/cuda/zdc.h"
#include "methods/tokens/cuda/zdc_method.h"

typedef struct {
    /* Layout of the rows of low (less important) tokens. */
    kvd_attn_map low;
    /*
     * Attention of decode steps: all heads at the widths of important tokens, then again at those
     * of other tokens.
     */
    kvd_attn_map both;
    /* Bytes of an important and of another token in this layer. */
    double entry[KVD_ZDC_STORES];
    /* Index in `store` of the element at which the layer's first page starts. */
    size_t at;
    void *workspace;
} kvd_zdc_layer;

typedef struct {
    size_t tokens;
    /* Bytes of cache at the end of the latest iteration, also of a finished request. */
    double held;
} kvd_zdc_slot;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_device_memory memory;
    cudaStream_t stream;
    kvd_zdc_layer *layer;
    kvd_zdc_slot *slot;
    size_t n_slots;
    kvd_zdc_head *head; /* device [n_layers][n_kv_heads] */
    uint16_t *store;
    /* The page list of slot s starts with page own + s. */
    int32_t own;
    /* [slots][n_layers] Low (less important) tokens, on the device and in pinned memory. */
    int32_t *n_low, *host_low;
    /* Device arrays of prompts (kvd_zdc_choose_args). */
    float *lse, *value;
    uint8_t *level;
    int32_t *place;
    /* parts.n is 0 unless several GPUs share the heads. */
    kvd_zdc_parts parts;
    /* Logarithms of the softmax denominators of decode steps, on the device. */
    float *lse_steps;
    /* Attention outputs over important tokens, then over other tokens. */
    void *o;
    int32_t *end, *low_len, *table;
    /*
     * Work lists of the attention kernel on the device, [max_slices + 1]: works[n] is for n decode
     * steps.
     */
    void **works;
    void *host_works;
} kvd_zdc;

static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->config->n_layers;
}

/* Call it after the layers of the cache are set up. */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
