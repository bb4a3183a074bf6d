/* What the files of zdc in the CUDA engine share: zdc.c has what happens in an iteration, zdc_make.c widths and memory. */
#ifndef KVD_SERVING_CUDA_ZDC_PARTS_H
#define KVD_SERVING_CUDA_ZDC_PARTS_H

#include "serving/cuda/methods/zdc.h"
#include "serving/cuda/methods/zdc_method.h"

typedef struct {
    kvd_attn_map low;             /* pages of both kinds are as far apart */
    kvd_attn_map both;            /* of steps: the heads once more, at the low widths */
    double entry[KVD_ZDC_STORES]; /* bytes of a token                            */
    size_t at;                    /* element of the layer's first page           */
    void *workspace;
} kvd_zdc_layer;

/* A request in a slot. */
typedef struct {
    size_t tokens;
    double held; /* bytes at the end of the latest iteration, of a request that left then too */
} kvd_zdc_slot;

typedef struct {
    kvd_serving_method method; /* first */
    kvd_device_memory memory;
    cudaStream_t stream;
    kvd_zdc_layer *layer;
    kvd_zdc_slot *slot;
    size_t n_slots;
    kvd_zdc_head *head; /* device [n_layers][n_kv_heads]                            */
    uint16_t *store;
    int32_t own;               /* page of slot 0 alone                              */
    int32_t *n_low, *host_low; /* device and pinned [slots][n_layers]               */
    /* prompts */
    float *lse, *value;
    uint8_t *level;
    int32_t *place;
    kvd_zdc_parts parts; /* of several GPUs */
    /* steps */
    float *lse_steps;
    void *o; /* rows of both halves */
    int32_t *end, *low_len, *table;
    void **works; /* [max_slices + 1] device: work lists' descriptions for so many steps, all layers */
    void *host_works;
} kvd_zdc;

static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->config->n_layers;
}

/* Widths, and what steps and prompts work in. The cache has its layers. */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
/* What is of slots and pages. */
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
