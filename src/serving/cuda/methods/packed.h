/*
 * Caches whose numbers are codes (kivi, kvquant): pages hold codes, scales and outliers (packed_layout.h), a slot its newest rows in bf16. The rows
 * of a prompt lie in the bf16 pages, which all layers share, until they have been attended to, and are then coded; steps store theirs in the slot's
 * ring. Semantics are those of kvd_bits_method: the same windows, groups and roundings, on rows that bf16 holds.
 */
#ifndef KVD_SERVING_CUDA_PACKED_H
#define KVD_SERVING_CUDA_PACKED_H

#include "serving/cuda/cache.h"
#include "serving/cuda/methods/packed_codes.h"

/* Whether there is a kind for the plan's bits method, and no other axis but dims is filled. */
bool kvd_serving_packed_takes(const kvd_plan *plan);
/* As kvd_serving_method_open. */
int kvd_serving_packed_open(const kvd_plan *plan, kvd_serving_cache *cache, kvd_serving_method **m,
                            kvd_err *err);

/* packed_form.c: what follows from the plan. A parameter of its bits method; 0: there is none of this name. */
double kvd_serving_packed_value(const kvd_plan *plan, const char *key);
/* Levels in place of scales (kvquant). */
bool kvd_serving_packed_has_levels(const kvd_plan *plan);
/* Outliers of keys that a page of a head is expected to have. */
double kvd_serving_packed_outliers(const kvd_plan *plan, const kvd_config *c);
/* Bits of a request of m tokens in a KV head of a layer, but for outliers of keys: as the method itself counts them. */
double kvd_serving_packed_bits(const kvd_packed_args *a, int g, size_t m);
/*
 * What of a layer's arguments follows from the plan, of heads whose widths are d_head: the form of its pages, what is coded when. Zeroed otherwise.
 */
void kvd_serving_packed_describe(const kvd_plan *plan, const kvd_config *c, const kvd_attn_map *map,
                                 kvd_packed_args *a);

#endif
