/*
 * Writes Q, K and V from the GPU into an activations file while the GPU computes: transposed into
 * pinned buffers, written by threads without HDF5.
 */
#ifndef KVD_COLLECT_CUDA_DUMP_H
#define KVD_COLLECT_CUDA_DUMP_H

#include "formats/activations.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_dump kvd_gpu_dump;

/*
 * Starts threads that write the heads of `share` (whose GPU is current) into the borrowed, open
 * file; batches of up to max_tokens. On failure returns NULL and fills *err.
 */
kvd_gpu_dump *kvd_gpu_dump_new(kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens,
                               kvd_err *err);
/*
 * Ends the writer threads and frees *d, whose device must be current. Layers since the last
 * kvd_gpu_dump_flush may be lost.
 */
void kvd_gpu_dump_free(kvd_gpu_dump *d);
/* Returns the bytes of device memory, and of pinned memory, of kvd_gpu_dump_new. */
size_t kvd_gpu_dump_bytes(const kvd_activations *file, const kvd_gpu_share *share,
                          size_t max_tokens);

/*
 * Queues one layer's Q, K and V; first_token: index of the batch in the file. Ignores layers that
 * the file does not hold. This or a later call fails on a value that is not finite, naming its
 * position.
 */
int kvd_gpu_dump_add(kvd_gpu_dump *d, const kvd_gpu_attention_in *in, size_t first_token,
                     kvd_err *err);
/* Waits until all layers are written to the file, maybe not to disk. */
int kvd_gpu_dump_flush(kvd_gpu_dump *d, kvd_err *err);
/* Seconds so far: device transposing, no buffer free, writing (sum over threads). */
typedef struct {
    double convert, wait, write;
} kvd_gpu_dump_times;
kvd_gpu_dump_times kvd_gpu_dump_time(kvd_gpu_dump *d);

#endif
