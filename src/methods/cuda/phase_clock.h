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
     * `capacity` is the largest number of marks. `n` is the number of marks after the first one,
     * which is the start of the iteration.
     */
    size_t capacity, n;
    /* Marks in device memory and in pinned host memory, [capacity]. */
    unsigned long long *device, *host;
    uint8_t *phase; /* phase that ends with each mark, [capacity] */
} kvd_clock;

/*
 * Allocates the marks of the clock. *c must be zeroed before; the caller releases it, also after a
 * failure. If `on` is false, the clock does nothing.
 */
int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err);
void kvd_clock_release(kvd_clock *c);

/*
 * These functions queue work on the stream: kvd_clock_start marks the start of an iteration,
 * kvd_clock_end the end of a phase, and kvd_clock_fetch copies all marks to the host.
 */
int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err);
int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err);
int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err);
/*
 * Reserves the mark of a phase whose end a kernel writes, and returns the device address to write
 * to. Returns NULL if the clock is off or has no room left (kvd_clock_fetch reports that).
 */
unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p);

/*
 * Computes the times of an iteration's phases from its marks, which must have reached the host. The
 * part of `total` that no phase covers is reported as KVD_PHASE_HOST.
 */
void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t);

#endif
