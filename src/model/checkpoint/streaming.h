/*
 * Reads checkpoints that are larger than memory. A prefetch thread reads tensors of a mapped file
 * ahead, and the forward pass drops their memory pages after use, so that about two layers of the
 * file are in memory at a time. No value changes: a dropped tensor is read again from the page
 * cache or the file when it is needed.
 */
#ifndef KVD_MODEL_CHECKPOINT_STREAMING_H
#define KVD_MODEL_CHECKPOINT_STREAMING_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint/weights.h"

/*
 * Lets the kernel drop the memory pages of a tensor. Does nothing if the tensor is not in a mapped
 * file.
 */
void kvd_tensor_drop(const kvd_tensor *t);
/*
 * Lets the kernel drop the memory pages of `bytes` bytes at `data`, which must be in a mapped file.
 */
void kvd_mapped_drop(const void *data, size_t bytes);

/*
 * State of a prefetch thread, which touches every page of the tensors of n weights, in their order.
 */
typedef struct {
    pthread_t thread;
    bool running;
    const kvd_weight *part;
    size_t n;
} kvd_prefetch;

/*
 * Starts a thread that reads the tensors of the n weights at `part` into memory ahead of use. *p
 * must be zeroed or have been waited for, and `part` must stay valid until the next
 * kvd_prefetch_wait. If the system cannot start a thread, nothing is read ahead.
 */
void kvd_prefetch_start(kvd_prefetch *p, const kvd_weight *part, size_t n);
/*
 * Waits until the prefetch thread has read all tensors. Returns at once if no thread was started.
 */
void kvd_prefetch_wait(kvd_prefetch *p);

#endif
