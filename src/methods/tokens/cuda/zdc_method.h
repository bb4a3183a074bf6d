/*
 * Method zdc in the CUDA engine: important tokens keep more dimensions. A prompt attends with those
 * of important ones.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H

#include "methods/cuda/paged_cache.h"
#include "methods/tokens/cuda/zdc.h"

/* GPUs that share heads write importance to `sum`; `exchange` adds the others' parts. */
typedef struct {
    int n, own; /* GPUs (0: not shared), own index */
    /* Device [n][rows]: importance over the heads of each GPU. */
    float *sum;
    int (*exchange)(void *ctx, float *sum, size_t rows, kvd_err *err);
    void *ctx;
} kvd_zdc_parts;
void kvd_gpu_zdc_share(kvd_gpu_method *m, const kvd_zdc_parts *parts);

/* Returns parameter `layers`: consecutive layers with equal sets; 0: unused. */
int kvd_gpu_zdc_together(const kvd_gpu_method *m);
/* Return device layouts [n_kv_heads], and the layout of less important pages. */
const kvd_zdc_head *kvd_gpu_zdc_heads(const kvd_gpu_method *m, int layer);
const kvd_attn_map *kvd_gpu_zdc_low_map(const kvd_gpu_method *m, int layer);
/* Device arrays of kvd_zdc_choose_args for the latest layer. */
typedef struct {
    const uint8_t *level;
    const int32_t *place;
} kvd_zdc_sets;
kvd_zdc_sets kvd_gpu_zdc_sets(const kvd_gpu_method *m);

/* For tests: returns a slot's less important tokens in a layer. */
size_t kvd_gpu_zdc_low(const kvd_gpu_method *m, size_t slot, int layer);

/* For the files of method zdc only. */

typedef struct {
    /* Layout of the pages of less important tokens. */
    kvd_attn_map low;
    /* Decode attention: all heads at important, then at other widths. */
    kvd_attn_map both;
    /* Bytes of an important and of another token in this layer. */
    double entry[KVD_ZDC_STORES];
    /* Index in kvd_zdc.store of the layer's first element. */
    size_t at;
    void *workspace;
} kvd_zdc_layer;

typedef struct {
    size_t tokens;
    /* `tokens` after the latest iteration. */
    size_t counted;
    /* Cache bytes after the latest iteration. */
    double held;
} kvd_zdc_slot;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_device_memory memory;
    cudaStream_t stream;
    kvd_zdc_layer *layer;
    kvd_zdc_slot *slot;
    size_t n_slots;
    /* Widths of less important tokens: the plan's or own_low. */
    const kvd_dims *dims_low;
    kvd_dims own_low;
    /*
     * For think. order: device [slots][n_layers][n_kv_heads][d_head]. window: newest prompt tokens,
     * all important. kept: channels of other keys.
     */
    int16_t *order;
    size_t window, kept;
    kvd_zdc_head *head; /* device [n_layers][n_kv_heads] */
    uint16_t *store;
    /* Slot s's page list begins with pool page own + s. */
    int32_t own;
    /* [slots][n_layers] Less important tokens, device and pinned. */
    int32_t *n_low, *host_low;
    /* Device arrays for choosing important tokens (kvd_zdc_choose_args). */
    float *lse, *value;
    /* [n_heads][rows] Received attention; NULL except for method `received`. */
    float *mass;
    uint8_t *level;
    int32_t *place;
    /* parts.n is 0 unless GPUs divide prompts. */
    kvd_zdc_parts parts;
    float *sum; /* as in kvd_zdc_choose_by_all */
    /* Device: ln of the softmax denominators of decode steps. */
    float *lse_steps;
    /* Device: outputs over important, then over other tokens. */
    void *o;
    int32_t *end, *low_len, *table;
    /* Device [max_slices + 1]: work of n decode steps. */
    void **works;
    void *host_works;
} kvd_zdc;

static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->config->n_layers;
}

/*
 * As kvd_zdc_choose; tensor-parallel GPUs, all calling, first sum importance in scratch `sum` of
 * kvd_zdc_sum_bytes; else NULL.
 */
int kvd_zdc_choose_by_all(const kvd_paged_cache *c, const kvd_zdc_choose_args *args, float *sum,
                          cudaStream_t stream, kvd_err *err);
/* Returns 0 on one GPU. */
size_t kvd_zdc_sum_bytes(const kvd_paged_cache *c);

/* Allocates the arrays of *z. Requires the layers of z->cache. */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
