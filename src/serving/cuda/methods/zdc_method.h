/*
 * zdc (importance with a method of the dims axis at two widths) behind the cache's hooks. Prompts go whole and attend at the high widths, in
 * pages of one layer; the softmax denominators of that attention say which of their tokens are important, and every row goes into a store
 * of its width (zdc.h). Steps attend over both stores.
 */
#ifndef KVD_SERVING_CUDA_ZDC_METHOD_H
#define KVD_SERVING_CUDA_ZDC_METHOD_H

#include "serving/cuda/cache.h"
#include "serving/cuda/methods/zdc.h"

/* Whether a plan has it. */
bool kvd_serving_is_zdc(const kvd_plan *plan);
/* Fails naming what else of the plan does not go with it. */
int kvd_serving_zdc_open(const kvd_plan *plan, kvd_serving_cache *cache, kvd_serving_method **m,
                         kvd_err *err);

/* ---- of prompts that several GPUs share by their tokens (sequence_sets.c) ---- */

/* Importance is a sum over the heads of all GPUs. `exchange` makes sum, where a GPU has written its own part, the same on all of them. */
typedef struct {
    int n, own; /* n 0: one GPU has all heads      */
    float *sum; /* device [n][rows], rows as given */
    int (*exchange)(void *ctx, float *sum, size_t rows, kvd_err *err);
    void *ctx;
} kvd_zdc_parts;
void kvd_serving_zdc_share(kvd_serving_method *m, const kvd_zdc_parts *parts);

/* Key `layers` of importance: so many layers have the first one's sets, which are then known before the others run; 0: not so. */
int kvd_serving_zdc_together(const kvd_serving_method *m);
/* Of a layer: the heads of the cache's share [n_kv_heads], device; pages of low rows, as wide as they are. */
const kvd_zdc_head *kvd_serving_zdc_heads(const kvd_serving_method *m, int layer);
const kvd_attn_map *kvd_serving_zdc_low_map(const kvd_serving_method *m, int layer);
/* The sets of the latest layer (zdc.h), device. */
typedef struct {
    const uint8_t *level;
    const int32_t *place;
} kvd_zdc_sets;
kvd_zdc_sets kvd_serving_zdc_sets(const kvd_serving_method *m);

/* For tests: how many tokens of a slot are low in a layer. */
size_t kvd_serving_zdc_low(const kvd_serving_method *m, size_t slot, int layer);

#endif
