/*
 * palu in the CUDA engine (methods/dims/palu.c has what it computes). Latents of groups of heads come out of the product of Q, K and V, whose
 * weights hold the down-projections, and are what is stored. Every row attends to keys that are rebuilt and turned, those of its own prompt
 * included.
 *
 * Steps: one kernel that rebuilds, turns, scores and sums latent values (kernels/rivals/palu_decode.h) where it takes the shape; else the
 * pages of the layer are rebuilt (phase restore) and the cache's kernel reads them. Prompts: pages are rebuilt, of a piece those of what stands before it as well.
 *
 * Values: where no latent is wider than a head, attention sums latents and B_v is in W_O. Latents of groups are mostly wider; W_O would grow
 * by as much, so sums of latents are multiplied by B_v, or values are rebuilt beside keys, and W_O stays.
 */
#ifndef KVD_SERVING_CUDA_PALU_H
#define KVD_SERVING_CUDA_PALU_H

#include "serving/cuda/cache.h"

int kvd_serving_palu_open(const kvd_plan *plan, kvd_serving_cache *c, kvd_serving_method **m, kvd_err *err);

#endif
