/* Reads checkpoints that are larger than memory: a thread reads weights before they are needed. */
#ifndef KVD_MODEL_CHECKPOINT_STREAMING_H
#define KVD_MODEL_CHECKPOINT_STREAMING_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "model/checkpoint/weights.h"

/* Lets the operating system release the memory pages of a tensor in a mapped file. */
void kvd_tensor_drop(const kvd_tensor *t);
void kvd_mapped_drop(const void *data, size_t bytes);

typedef struct {
    pthread_t thread;
    bool running;
    const kvd_weight *part;
    size_t n;
} kvd_prefetch;

/* Starts a thread that reads n weights from disk before they are needed. `part` must stay valid
 * until kvd_prefetch_wait. */
void kvd_prefetch_start(kvd_prefetch *p, const kvd_weight *part, size_t n);
void kvd_prefetch_wait(kvd_prefetch *p);

#endif
