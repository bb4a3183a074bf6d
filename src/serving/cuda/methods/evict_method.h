/*
 * Methods of the tokens axis that drop entries, behind the cache's hooks: h2o, keyformer, snapkv, alone or with a method of the dims axis. Prompts go whole: they
 * attend to all their tokens, in the widths of dims, and their scores are those of that attention. Pages that eviction empties go back
 * at the end of an iteration.
 */
#ifndef KVD_SERVING_CUDA_EVICT_METHOD_H
#define KVD_SERVING_CUDA_EVICT_METHOD_H

#include "serving/cuda/cache.h"

/* Whether a plan has one of these. */
bool kvd_serving_evicts(const kvd_plan *plan);
/* Fails naming what else of the plan does not go with it. */
int kvd_serving_evict_open(const kvd_plan *plan, kvd_serving_cache *cache, kvd_serving_method **m,
                           kvd_err *err);

/* For tests, of methods that evict behind steps: scores and positions of the *n entries of a slot, arrays for as many tokens as a request has. */
int kvd_serving_evict_read(const kvd_serving_method *m, size_t slot, int layer, int kv_head, float *score,
                           uint32_t *position, size_t *n, kvd_err *err);

#endif
