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
    int n, own; /* number of GPUs, index of this GPU; n = 0 if one GPU has all heads */
    /* Device [n][rows]: importance of tokens over the heads of each GPU. */
    float *sum;
    int (*exchange)(void *ctx, float *sum, size_t rows, kvd_err *err);
    void *ctx;
} kvd_zdc_parts;
void kvd_gpu_zdc_share(kvd_gpu_method *m, const kvd_zdc_parts *parts);

/*
 * Returns the number of consecutive layers that use the token sets of the first of them (parameter
 * `layers` of method importance). Returns 0 if the parameter is not used.
 */
int kvd_gpu_zdc_together(const kvd_gpu_method *m);
/*
 * kvd_gpu_zdc_heads returns the layouts of this GPU's KV heads, a device array [n_kv_heads].
 * kvd_gpu_zdc_low_map returns the layout of the pages of less important tokens.
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

#endif
