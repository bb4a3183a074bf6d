/*
 * Writes Q, K and V from the GPU into an activations file while the GPU computes. The GPU
 * transposes them into pinned buffers; writer threads write the buffers without calling HDF5.
 */
#ifndef KVD_COLLECT_CUDA_DUMP_H
#define KVD_COLLECT_CUDA_DUMP_H

#include "formats/activations.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_dump kvd_gpu_dump;

/*
 * Starts threads that write the heads of `share` into the file. The GPU of `share` must be current.
 * A batch has at most max_tokens tokens. The file is borrowed and must stay open. On failure
 * returns NULL and fills *err.
 */
kvd_gpu_dump *kvd_gpu_dump_new(kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens,
                               kvd_err *err);
/*
 * Ends the writer threads and frees *d. The CUDA device of *d must be current. Layers added since
 * the last kvd_gpu_dump_flush may be lost.
 */
void kvd_gpu_dump_free(kvd_gpu_dump *d);
/*
 * Returns the bytes of device memory, and of pinned host memory, that kvd_gpu_dump_new allocates.
 */
size_t kvd_gpu_dump_bytes(const kvd_activations *file, const kvd_gpu_share *share,
                          size_t max_tokens);

/*
 * Queues the writing of one layer's Q, K and V. first_token is the index of the batch's first token
 * in the file. Ignores a layer that the file does not hold. If a value is not finite in the file's
 * number type, this call or a later one fails and names its position.
 */
int kvd_gpu_dump_add(kvd_gpu_dump *d, const kvd_gpu_attention_in *in, size_t first_token,
                     kvd_err *err);
/*
 * Waits until all layers passed to kvd_gpu_dump_add are written to the file. They may not be on
 * disk yet.
 */
int kvd_gpu_dump_flush(kvd_gpu_dump *d, kvd_err *err);
/*
 * Seconds spent so far. `convert` is the time in which the device transposed values, `wait` the
 * time in which no buffer was free, and `write` the sum over the writer threads of their time in
 * writing.
 */
typedef struct {
    double convert, wait, write;
} kvd_gpu_dump_times;
kvd_gpu_dump_times kvd_gpu_dump_time(kvd_gpu_dump *d);

#endif
