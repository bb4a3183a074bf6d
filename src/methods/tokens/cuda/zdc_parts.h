/*
 * Types shared by the files of zdc in the CUDA engine: zdc.c runs the iterations, zdc_make.c
 * computes widths and allocates memory.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_PARTS_H

#include "methods/tokens/cuda/zdc.h"
#include "methods/tokens/cuda/zdc_method.h"

/* Layouts and memory of one layer. */
typedef struct {
    kvd_attn_map low; /* layout of low rows; the page size equals that of high rows */
    /*
     * Head layout for the attention of decode steps: all heads at the high widths, then all heads
     * again at the low widths.
     */
    kvd_attn_map both;
    double entry[KVD_ZDC_STORES]; /* Bytes per token in each store */
    /* index of the element at which the layer's first page starts */
    size_t at;
    void *workspace;
} kvd_zdc_layer;

/* Request in a slot, as the host tracks it. */
typedef struct {
    size_t tokens;
    /* Bytes held at the end of the latest iteration, also for a request that finished in it. */
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
    kvd_zdc_head *head; /* device [n_layers][n_kv_heads] */
    uint16_t *store;
    int32_t own;               /* page number of slot 0's own page */
    int32_t *n_low, *host_low; /* device and pinned [slots][n_layers] number of low tokens */
    /* Arrays for prompts. */
    float *lse, *value;
    uint8_t *level;
    int32_t *place;
    kvd_zdc_parts parts; /* set if several GPUs share the heads */
    /* Arrays for decode steps. */
    float *lse_steps;
    void *o; /* output rows of decode steps: high half, then low half */
    int32_t *end, *low_len, *table;
    /*
     * Work-list descriptions on the device, [max_slices + 1]: works[n] has those of all layers for
     * n decode steps.
     */
    void **works;
    void *host_works;
} kvd_zdc;

static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->config->n_layers;
}

/*
 * Computes the widths of all layers and allocates the work arrays of decode steps and prompts. The
 * cache must have its layers.
 */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
/* Allocates the arrays whose sizes depend on the number of slots and pages. */
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
