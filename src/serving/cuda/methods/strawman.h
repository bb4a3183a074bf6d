/*
 * strawman in the CUDA engine (methods/dims/strawman.c has what it computes). A prompt attends at full width; behind that, layer by layer, K and V
 * of each request are decomposed (Gram matrices by cuBLAS, eigenvectors by cuSOLVER: phase compress), rotated, cut and stored (rotate).
 * A step rotates and cuts its row by its request's matrices (rotate), decompresses K and V of the layer whole (restore), its own row
 * among them, and attends at full width.
 */
#ifndef KVD_SERVING_CUDA_STRAWMAN_H
#define KVD_SERVING_CUDA_STRAWMAN_H

#include "serving/cuda/cache.h"

int kvd_serving_strawman_open(const kvd_plan *plan, kvd_serving_cache *c, kvd_serving_method **m,
                              kvd_err *err);

#endif
