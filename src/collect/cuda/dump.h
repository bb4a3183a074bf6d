/* Writes Q, K and V from the GPU into an activations file while the GPU computes. */
#ifndef KVD_COLLECT_CUDA_DUMP_H
#define KVD_COLLECT_CUDA_DUMP_H

#include "formats/activations.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_dump kvd_gpu_dump;

/* Starts threads that write Q, K and V of the current GPU's heads (`share`) into the open file. */
kvd_gpu_dump *kvd_gpu_dump_new(kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens,
                               kvd_err *err);
/* Frees *d, whose device must be current. Layers added since the last flush may be lost. */
void kvd_gpu_dump_free(kvd_gpu_dump *d);
/* Returns how many bytes of device memory and pinned host memory kvd_gpu_dump_new allocates. */
size_t kvd_gpu_dump_bytes(const kvd_activations *file, const kvd_gpu_share *share,
                          size_t max_tokens);

/*
 * Queues writing of one layer's Q, K and V. Their first token is token first_token of the file.
 * Ignores layers that the file does not hold.
 */
int kvd_gpu_dump_add(kvd_gpu_dump *d, const kvd_gpu_attention_in *in, size_t first_token,
                     kvd_err *err);
/* Waits until all layers are written to the file. They may not be on disk yet. */
int kvd_gpu_dump_flush(kvd_gpu_dump *d, kvd_err *err);
/* Seconds in which the device transposed values, no buffer was free, and threads wrote to disk. */
typedef struct {
    double convert, wait, write;
} kvd_gpu_dump_times;
kvd_gpu_dump_times kvd_gpu_dump_time(kvd_gpu_dump *d);

#endif
