/* The sums of analysis/sensitivity.h on the device, in float64, from the gradients of model/cuda/backward.h where they are. */
#ifndef KVD_ANALYSIS_CUDA_SENSITIVITY_H
#define KVD_ANALYSIS_CUDA_SENSITIVITY_H

#include "model/cuda/backward.h"

typedef struct kvd_gpu_sensitivity kvd_gpu_sensitivity;

/* Sums of 0 on the current device, 32 n_layers n_kv_heads d_head^2 bytes. Heads of at most KVD_GRAM_MAX_D dimensions. */
kvd_gpu_sensitivity *kvd_gpu_sensitivity_new(const kvd_config *c, kvd_err *err);
void kvd_gpu_sensitivity_free(kvd_gpu_sensitivity *s);

/* Queues the addition of one layer of one batch. */
int kvd_gpu_sensitivity_add(kvd_gpu_sensitivity *s, const kvd_gpu_gradients *g, kvd_err *err);

/* To the host, laid out as kvd_sensitivity_sums. Waits for the stream. */
int kvd_gpu_sensitivity_get(kvd_gpu_sensitivity *s, cudaStream_t stream, double *sums, kvd_err *err);

#endif
