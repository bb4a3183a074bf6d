/* LeanKV in the engine (leankv_method.c). */
#ifndef KVD_SERVING_CUDA_LEANKV_METHOD_H
#define KVD_SERVING_CUDA_LEANKV_METHOD_H

#include "serving/cuda/methods/method.h"

/* Whether the plan is sparsity with hetero: LeanKV's levels in LeanKV's codes. */
bool kvd_serving_is_leankv(const kvd_plan *plan);
/* As kvd_serving_method_open; *m is the cache's, whatever comes back. */
int kvd_serving_leankv_open(const kvd_plan *plan, struct kvd_serving_cache *cache, kvd_serving_method **m,
                            kvd_err *err);

#endif
