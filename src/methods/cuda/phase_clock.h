/*
 * Measures the phases of an iteration (QKV product, attention, ...) on the device's own clock. A
 * mark is written at the end of a phase, when everything before it on the stream has ended, and
 * holds %globaltimer. The time since the previous mark is the phase's time, so the phases of an
 * iteration fill it without a gap. Most marks are written by kernels of one thread. The matrix
 * products of batches with few decode steps (few_rows.h) and the append of decode steps overlap the
 * end of the kernel before them; these kernels write the mark themselves when their wait for that
 * kernel has ended.
 */
#ifndef KVD_METHODS_CUDA_PHASE_CLOCK_H
#define KVD_METHODS_CUDA_PHASE_CLOCK_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "formats/phases.h"

typedef struct {
    bool on;
    /*
     * Largest number of times that can be recorded (capacity), and number of recorded times after
     * the first one, the start of the iteration (n).
     */
    size_t capacity, n;
    /*
     * Recorded times (values of %globaltimer) in device memory and in pinned host memory,
     * [capacity].
     */
    unsigned long long *device, *host;
    uint8_t *phase; /* phase that ends at each recorded time, [capacity] */
} kvd_clock;

/*
 * Allocates memory for `capacity` recorded times. *c must be zeroed before; the caller releases it,
 * also after a failure. If `on` is false, the clock does nothing.
 */
int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err);
void kvd_clock_release(kvd_clock *c);

/*
 * These functions queue work on the stream. kvd_clock_start records the time at which an iteration
 * starts, kvd_clock_end the time at which a phase ends. kvd_clock_fetch copies all recorded times
 * to the host.
 */
int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err);
int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err);
int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err);
/*
 * Reserves the place in device memory for the time at which a phase ends, and returns its address.
 * A kernel writes the time there. Returns NULL if the clock is off or has no room left
 * (kvd_clock_fetch reports that).
 */
unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p);

/*
 * Computes the times of an iteration's phases from the recorded times, which must have reached the
 * host. The part of `total` that no phase covers is reported as KVD_PHASE_HOST.
 */
void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t);

#endif
