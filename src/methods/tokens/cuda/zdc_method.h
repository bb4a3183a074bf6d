/* Method zdc on the GPU: important tokens keep more dimensions. */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H

#include "methods/cuda/paged_cache.h"
#include "methods/tokens/cuda/zdc.h"

/* For heads that are divided among GPUs: importance of prompt tokens by each GPU's heads.
 * `exchange` collects the sums of all GPUs. */
typedef struct {
    int n, own; /* number of GPUs (0: heads are not shared), and index of this GPU */
    /* [n][rows] in device memory: importance of each token by the heads of each GPU. */
    float *sum;
    int (*exchange)(void *ctx, float *sum, size_t rows, kvd_err *err);
    void *ctx;
} kvd_zdc_parts;
void kvd_gpu_zdc_share(kvd_gpu_method *m, const kvd_zdc_parts *parts);

/* Returns parameter `layers`: the number of consecutive layers that use the same important tokens.
 * 0: parameter `overlap` decides. */
int kvd_gpu_zdc_together(const kvd_gpu_method *m);
/* Return the layout of a layer's KV heads, in device memory, and the layout of its pages of less
 * important tokens. */
const kvd_zdc_head *kvd_gpu_zdc_heads(const kvd_gpu_method *m, int layer);
const kvd_attn_map *kvd_gpu_zdc_low_map(const kvd_gpu_method *m, int layer);
/* Device outputs of kvd_zdc_choose in the latest layer. `level` says whether a token is important;
 * `place` is its index among the important or among the less important tokens. */
typedef struct {
    const uint8_t *level;
    const int32_t *place;
} kvd_zdc_sets;
kvd_zdc_sets kvd_gpu_zdc_sets(const kvd_gpu_method *m);

/* Memory for choosing the important tokens of prompts. */
typedef struct {
    /* Number of less important tokens, [n_slots][layers without a sliding window], in device and in
     * pinned memory. */
    int32_t *n_low, *host_low;
    size_t n_slots;
    /* Device arrays for the members of kvd_zdc_choose_args with the same names. */
    float *lse, *value;
    uint8_t *level;
    int32_t *place;
    float *sum; /* [GPUs][rows] importance over the heads of each GPU; NULL on one GPU */
} kvd_zdc_levels;

/* Allocates the arrays for prompts of `rows` tokens. *m owns all memory. */
int kvd_zdc_levels_make(kvd_zdc_levels *v, kvd_device_memory *m, const kvd_paged_cache *c,
                        kvd_err *err);
int kvd_zdc_levels_make_slots(kvd_zdc_levels *v, kvd_device_memory *m, const kvd_paged_cache *c,
                              size_t slots, kvd_err *err);
/* Copies the counts of less important tokens to the device. kvd_zdc_levels_get copies them back. */
int kvd_zdc_levels_put(const kvd_zdc_levels *v, const kvd_paged_cache *c, cudaStream_t stream,
                       kvd_err *err);
int kvd_zdc_levels_get(const kvd_zdc_levels *v, const kvd_paged_cache *c, cudaStream_t stream,
                       kvd_err *err);
/* Returns the first layer of the group of layers (parameter `layers`) that uses the same important
 * tokens as `layer`. Layers with a sliding window are not counted. Parameter `overlap`, by which
 * the device may join more layers, is ignored. */
int kvd_zdc_first_of(const kvd_plan *p, int layer);
/* For timing runs without a prompt: sets a request's number of less important tokens in each layer,
 * as after a prompt of `prompt` tokens. */
void kvd_zdc_levels_suppose(const kvd_zdc_levels *v, const kvd_plan *p, int n_layers, size_t slot,
                            size_t prompt);
/* Returns kvd_zdc_choose's arguments for the prompts of `r`. The caller must set `pages`. */
kvd_zdc_choose_args kvd_zdc_levels_args(const kvd_zdc_levels *v, const kvd_paged_cache *c,
                                        const kvd_plan *p, const kvd_paged_rows *r);
/* Runs kvd_zdc_choose after adding importance over all GPUs, which must all call this. */
int kvd_zdc_choose_by_all(const kvd_paged_cache *c, const kvd_zdc_choose_args *args,
                          const kvd_zdc_levels *v, cudaStream_t stream, kvd_err *err);

/* For tests: returns how many tokens of a request have fewer dimensions in a layer. */
size_t kvd_gpu_zdc_low(const kvd_gpu_method *m, size_t slot, int layer);

/* The declarations below are for the files of method zdc only. */

typedef struct {
    /* Layout of the pages that store less important tokens. */
    kvd_attn_map low;
    /* Layout of decode attention: every head twice, for important and less important tokens. */
    kvd_attn_map both;
    /* Bytes of an important and of a less important token in this layer. */
    double entry[KVD_ZDC_STORES];
    /* Elements of K and V of an important and of a less important token, without padding. */
    double numbers[KVD_ZDC_STORES];
    /* Index in the array kvd_zdc.store at which the layer's pages begin. */
    size_t at;
    void *workspace;
} kvd_zdc_layer;

typedef struct {
    size_t tokens;
    /* Number of the request's tokens after the latest iteration. */
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
    /* Projections to the dimensions that less important tokens keep. */
    const kvd_dims *dims_low;
    kvd_dims own_low;
    /* For method think: channel of each key column, [slots][n_layers][n_kv_heads][d_head] in device
     * memory. The prompt's newest `window` tokens keep all key channels, older ones `kept` of
     * them. */
    int16_t *order;
    size_t window, kept;
    kvd_zdc_head *head; /* device [kvd_zdc_layers()][n_kv_heads] */
    uint16_t *store;
    /* Number of the first page of slot 0. The first page of slot s is own + s. */
    int32_t own;
    kvd_zdc_levels levels;
    /* [n_heads][rows] Attention that tokens received. NULL except for method `received`. */
    float *mass;
    /* Importance by each GPU's heads. parts.n is 0 unless heads are divided among GPUs. */
    kvd_zdc_parts parts;
    /* In device memory: natural logs of the softmax denominators of decode steps. */
    float *lse_steps;
    /* In device memory: attention outputs over important, then over less important tokens. */
    void *o;
    int32_t *end, *low_len, *table;
    /* Device [max_slices + 1]: works[n] divides the attention of n decode steps among CTAs. */
    void **works;
    void *host_works;
} kvd_zdc;

/* Returns the number of layers without a sliding window, which have the indices 0 ..
 * kvd_zdc_layers() - 1 in the arrays of kvd_zdc. In other layers, all tokens keep the dimensions of
 * important tokens. */
static inline size_t kvd_zdc_layers(const kvd_zdc *z)
{
    return (size_t)z->method.cache->n_full;
}

/* Allocates the arrays of *z. The layers of z->cache must exist. */
int kvd_zdc_make(kvd_zdc *z, kvd_err *err);
int kvd_zdc_make_pool(kvd_zdc *z, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err);

#endif
