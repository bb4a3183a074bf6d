/*
 * Where the time of an iteration goes, on the device's own clock. A mark stands where a phase ends, that is, where everything before it on the
 * stream has ended, and holds %globaltimer; the time since the mark before it is the phase's, so that the phases of an iteration fill it
 * without a gap. Marks are kernels of one thread, or are written by a kernel that computes anyhow when its wait for the one before has ended:
 * the few-row products and append of steps, which overlap the end of the kernel in front.
 */
#ifndef KVD_SERVING_CUDA_CLOCK_H
#define KVD_SERVING_CUDA_CLOCK_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "serving/phases.h"

typedef struct {
    bool on;
    size_t capacity, n;                /* n marks after the first, which is the start */
    unsigned long long *device, *host; /* [capacity]; host: pinned                    */
    uint8_t *phase;                    /* [capacity] that ends with the mark          */
} kvd_clock;

/* Zeroed before; release it whatever came back. Off, it does nothing. */
int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err);
void kvd_clock_release(kvd_clock *c);

/* Queue the start of an iteration, the end of a phase, the copy of all marks to the host. */
int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err);
int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err);
int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err);
/* The end of a phase that a kernel writes: where to. NULL when off, or when there is no room (which fetch reports). */
unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p);

/* What an iteration took, when its marks are here: parts on the device; the rest of `total` is KVD_PHASE_HOST. */
void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t);

#endif
