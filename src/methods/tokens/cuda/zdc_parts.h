/*
 * Types shared by the files of method zdc in the CUDA engine: zdc.c runs the iterations, zdc_make.c
 * computes widths and allocates memory.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H

#include "methods/tokens/cuda/zdc.h"
#include "methods/tokens/cuda/zdc_method.h"

/* Layouts and memory of one layer. */
typedef struct {
    /*
     * Layout of rows of low (less important) tokens; its page size equals that of high (important)
     * tokens.
     */
    kvd_attn_map low;
    /*
     * Layout of the heads for the attention of decode steps: all heads at the widths of high
     * tokens, then all heads again at those of low tokens.
     */
    kvd_attn_map both;
    /* Bytes of a high (important) token and of a low (other) token in this layer. */
    double entry[KVD_ZDC_STORES];
    /* Index of the element of `store` at which the layer's first page starts. */
    size_t at;
    void *workspace;
} kvd_zdc_layer;

/* Request in a slot, as the host tracks it. */
typedef struct {
    size_t tokens;
    /*
     * Bytes of cache that the request held at the end of the latest iteration, even if it finished
     * in it.
     */
    double held;
} kvd_zdc_slot;

/* State of method zdc in the engine. */
typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_device_memory memory;
    cudaStream_t stream;
    kvd_zdc_layer *layer;
    kvd_zdc_slot *slot;
    size_t n_slots;
    kvd_zdc_head *head; /* device [n_layers][n_kv_heads]: layout of every KV head */
    uint16_t *store;
    /*
     * Number of the page with which the page list of slot 0 starts; that of slot s starts with page
     * own + s.
     */
    int32_t own;
    /*
     * [slots][n_layers] Number of low (less important) tokens, on the device and in pinned memory.
     */
    int32_t *n_low, *host_low;
    /* Device arrays that prompts use, described at kvd_zdc_choose_args. */
    float *lse, *value;
    uint8_t *level;
    int32_t *place;
    /* Exchange with other GPUs; its n is 0 unless several GPUs share the heads. */
    kvd_zdc_parts parts;
    /* Device arrays that decode steps use. */
    float *lse_steps;
    /*
     * Attention outputs of decode steps: over high (important) tokens, then over low (other)
     * tokens.
     */
    void *o;
    int32_t *end, *low_len, *table;
    /*
     * Descriptions of the attention kernel's work lists on the device, [max_slices + 1]: works[n]
     * has those of all layers for n decode steps.
     */
    void **works;
    void *host_works;
} kvd_zdc;

static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->config->n_layers;
}

/*
 * Computes the widths of all layers and allocates the work arrays of decode steps and prompts. Call
 * it after the layers of the cache are set up. Returns 0, or -1 with *err filled.
 */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
/*
 * Allocates the arrays whose sizes depend on the number of slots and pages. Returns 0, or -1 with
 * *err filled.
 */
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
