/*
 * Method zdc in the CUDA engine: method importance combined with a method that removes dimensions.
 * Important (high) tokens keep more dimensions than other (low) tokens (zdc.h). A prompt is
 * processed in one iteration; its tokens all have the dimensions of high tokens during attention.
 * The softmax denominators of that attention decide which tokens are important, and every row is
 * moved to the pages of high or of low tokens. Decode steps attend to both.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_METHOD_H

#include "methods/cuda/paged_cache.h"
#include "methods/tokens/cuda/zdc.h"

/*
 * Exchange of importance between GPUs that share the heads of a layer; the sum is over the heads of
 * all GPUs. Each GPU writes the part of its own heads to `sum`; `exchange` then fills in the parts
 * of the other GPUs, so that all GPUs have the same `sum`. Used by sequence_sets.c, for prompts
 * whose tokens several GPUs share.
 */
typedef struct {
    int n, own; /* number of GPUs, index of this GPU; n = 0 if one GPU has all heads */
    /*
     * Device [n][rows]: each GPU's part of the summed importance of tokens. `rows` is the argument
     * of `exchange`.
     */
    float *sum;
    int (*exchange)(void *ctx, float *sum, size_t rows, kvd_err *err);
    void *ctx;
} kvd_zdc_parts;
void kvd_gpu_zdc_share(kvd_gpu_method *m, const kvd_zdc_parts *parts);

/*
 * Returns the number of consecutive layers that use the token sets chosen by the first of them
 * (parameter `layers` of method importance). Such sets are known before the other layers run.
 * Returns 0 if layers do not share sets in this way.
 */
int kvd_gpu_zdc_together(const kvd_gpu_method *m);
/*
 * kvd_gpu_zdc_heads returns the layouts of the KV heads of a layer that this GPU has, a device
 * array [n_kv_heads]. kvd_gpu_zdc_low_map returns the layout of pages that hold the layer's low
 * (less important) tokens with as many columns as these tokens keep.
 */
const kvd_zdc_head *kvd_gpu_zdc_heads(const kvd_gpu_method *m, int layer);
const kvd_attn_map *kvd_gpu_zdc_low_map(const kvd_gpu_method *m, int layer);
/*
 * Levels (high or low) of the prompt tokens, chosen in the latest layer, and their indices among
 * the tokens of the same level (kvd_zdc_choose_args), device arrays.
 */
typedef struct {
    const uint8_t *level;
    const int32_t *place;
} kvd_zdc_sets;
kvd_zdc_sets kvd_gpu_zdc_sets(const kvd_gpu_method *m);

/* For tests: returns the number of low (less important) tokens of a slot in a layer. */
size_t kvd_gpu_zdc_low(const kvd_gpu_method *m, size_t slot, int layer);

#endif
