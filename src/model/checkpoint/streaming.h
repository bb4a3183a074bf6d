/*
 * Reads checkpoints that are larger than memory. A thread reads tensors of a mapped file ahead, and
 * the forward pass drops their pages after use. About two layers are in memory at a time.
 */
#ifndef KVD_MODEL_CHECKPOINT_STREAMING_H
#define KVD_MODEL_CHECKPOINT_STREAMING_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint/weights.h"

/*
 * Lets the kernel drop the tensor's memory pages if it is in a mapped file. The tensor can still be
 * read.
 */
void kvd_tensor_drop(const kvd_tensor *t);
/* Lets the kernel drop the memory pages of `data`, which must be in a mapped file. */
void kvd_mapped_drop(const void *data, size_t bytes);

typedef struct {
    pthread_t thread;
    bool running;
    const kvd_weight *part;
    size_t n;
} kvd_prefetch;

/*
 * Starts a thread that reads the pages of weights part[0] .. part[n - 1] into memory. Before the
 * call, *p must be all zeros, or kvd_prefetch_wait must have been called for it. `part` must stay
 * valid until the next kvd_prefetch_wait. If the system cannot start a thread, nothing is read
 * ahead.
 */
void kvd_prefetch_start(kvd_prefetch *p, const kvd_weight *part, size_t n);
/* Waits until all tensors are read. Returns at once if no thread was started. */
void kvd_prefetch_wait(kvd_prefetch *p);

#endif
