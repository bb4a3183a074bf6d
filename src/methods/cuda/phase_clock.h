/*
 * Measures the phases of an iteration on the device's own clock. A mark is written at the end of a
 * phase, when everything before it on the stream has ended, and holds %globaltimer. The time since
 * the previous mark is the phase's time, so the phases of an iteration fill it without a gap. Most
 * marks are written by kernels of one thread. The few-row products and the append of steps overlap
 * the end of the kernel before them; these kernels write the mark themselves when their wait for
 * that kernel has ended.
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
    /* n: number of marks after the first one, which is the start */
    size_t capacity, n;
    unsigned long long *device, *host; /* [capacity]; host: pinned */
    uint8_t *phase;                    /* [capacity] phase that ends with each mark */
} kvd_clock;

/*
 * Allocates the marks of the clock. *c must be zeroed before; release it after a failure too. If
 * `on` is false, the clock does nothing.
 */
int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err);
void kvd_clock_release(kvd_clock *c);

/*
 * Queue on the stream: the start of an iteration, the end of a phase, and the copy of all marks to
 * the host.
 */
int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err);
int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err);
int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err);
/*
 * Reserves the mark of a phase whose end a kernel writes, and returns the address to write to.
 * Returns NULL if the clock is off or has no room left (kvd_clock_fetch reports that).
 */
unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p);

/*
 * Computes the times of an iteration's phases from its marks, which must have reached the host. The
 * rest of `total` is KVD_PHASE_HOST.
 */
void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t);

#endif
