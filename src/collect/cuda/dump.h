/*
 * Writes Q, K and V from the GPU into an activations file while the GPU computes. The GPU
 * transposes each layer into blocks [head][token][dim] of the file's number type, some tokens at a
 * time. Each block is copied into one of a few pinned buffers, and a writer thread writes it with
 * kvd_activations_put_rows, which does not call HDF5.
 */
#ifndef KVD_COLLECT_CUDA_DUMP_H
#define KVD_COLLECT_CUDA_DUMP_H

#include "formats/activations.h"
#include "model/pass/cuda/attention.h"

typedef struct kvd_gpu_dump kvd_gpu_dump;

/*
 * Creates a writer of recorded Q, K and V for the heads that one GPU computes (`share`). That GPU
 * must be the current device. Allocates buffers and starts writer threads. A batch has at most
 * max_tokens tokens. The file is borrowed and must stay open. On failure returns NULL and fills
 * *err.
 */
kvd_gpu_dump *kvd_gpu_dump_new(kvd_activations *file, const kvd_gpu_share *share, size_t max_tokens,
                               kvd_err *err);
/*
 * Frees the writer `d`; its device must be current. Layers added since the last flush may be lost.
 */
void kvd_gpu_dump_free(kvd_gpu_dump *d);
/*
 * Returns the size in bytes of the device memory that kvd_gpu_dump_new allocates. It allocates
 * pinned host memory of the same size.
 */
size_t kvd_gpu_dump_bytes(const kvd_activations *file, const kvd_gpu_share *share,
                          size_t max_tokens);

/*
 * Queues the writing of Q, K and V of one layer, for a batch whose first token has index
 * first_token in the file. Waits for free buffers. A layer that the file does not hold is ignored.
 * If a value is not finite or does not fit into the file's number type, this call or a later one
 * fails. The message names tensor, layer, head, token and value, as on the CPU.
 */
int kvd_gpu_dump_add(kvd_gpu_dump *d, const kvd_gpu_attention_in *in, size_t first_token,
                     kvd_err *err);
/*
 * Waits until all added layers have been written to the file. The data may then still be in
 * the page cache and not on disk. Returns 0, or -1 with *err.
 */
int kvd_gpu_dump_flush(kvd_gpu_dump *d, kvd_err *err);
/*
 * Time in seconds spent on the blocks written so far. `convert`: the device transposed and
 * converted values. `wait`: the device was idle because no buffer was free. `write`: time of all
 * writer threads together.
 */
typedef struct {
    double convert, wait, write;
} kvd_gpu_dump_times;
kvd_gpu_dump_times kvd_gpu_dump_time(kvd_gpu_dump *d);

#endif
