/* Writes Q, K and V from the GPU to an activations file while the GPU computes. */
#ifndef KVD_COLLECT_CUDA_DUMP_H
#define KVD_COLLECT_CUDA_DUMP_H

#include "formats/activations.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_dump kvd_gpu_dump;

/* Starts threads that write Q, K and V of this GPU's heads (`share`) to the open file. */
kvd_gpu_dump *kvd_gpu_dump_new(kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens,
                               kvd_err *err);
/* Frees *d, whose device must be current. Layers added since the last kvd_gpu_dump_flush may be
 * lost. */
void kvd_gpu_dump_free(kvd_gpu_dump *d);
/* Returns how many bytes of device and pinned memory kvd_gpu_dump_new takes. */
size_t kvd_gpu_dump_bytes(const kvd_activations *file, const kvd_gpu_share *share,
                          size_t max_tokens);

/* Queues a layer's Q, K, V for the file, from token first_token on. Ignores layers not in the
 * file. */
int kvd_gpu_dump_add(kvd_gpu_dump *d, const kvd_gpu_attention_in *in, size_t first_token,
                     kvd_err *err);
/* Waits until all layers are written to the file. They may not be on disk yet. */
int kvd_gpu_dump_flush(kvd_gpu_dump *d, kvd_err *err);
/* seconds of transposing Q, K and V, of waiting for a free buffer, and of writing to the file */
typedef struct {
    double convert, wait, write;
} kvd_gpu_dump_times;
kvd_gpu_dump_times kvd_gpu_dump_time(kvd_gpu_dump *d);

#endif
