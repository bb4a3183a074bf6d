/*
 * zdc (importance with a method of the dims axis at two widths) behind the cache's hooks. Prompts go whole and attend at the high widths, in
 * pages of one layer; the softmax denominators of that attention say which of their tokens are important, and every row goes into a store
 * of its width (zdc.h). Steps attend over both stores.
 */
#ifndef KVD_SERVING_CUDA_ZDC_METHOD_H
#define KVD_SERVING_CUDA_ZDC_METHOD_H

#include "serving/cuda/cache.h"

/* Whether a plan has it. */
bool kvd_serving_is_zdc(const kvd_plan *plan);
/* Fails naming what else of the plan does not go with it. */
int kvd_serving_zdc_open(const kvd_plan *plan, kvd_serving_cache *cache, kvd_serving_method **m,
                         kvd_err *err);

/* For tests: how many tokens of a slot are low in a layer. */
size_t kvd_serving_zdc_low(const kvd_serving_method *m, size_t slot, int layer);

#endif
