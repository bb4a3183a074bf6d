/*
 * Times the phases of an iteration with the device's %globaltimer. A record is the end of a phase.
 * Kernels that overlap the previous kernel's end (few_rows.h, append of decode steps) record their
 * time themselves.
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
    /* Largest number of records, and number so far without the start's record. */
    size_t capacity, n;
    /* [capacity] values of %globaltimer: device memory, pinned host memory. */
    unsigned long long *device, *host;
    uint8_t *phase; /* [capacity] phase that ends at each record */
} kvd_clock;

/*
 * `*c` must be zeroed before. The caller must release `*c`, also after a failure. `on` false: the
 * clock does nothing.
 */
int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err);
void kvd_clock_release(kvd_clock *c);

/*
 * Queue work on the stream: record the start of an iteration, record the end of a phase, copy all
 * records to the host.
 */
int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err);
int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err);
int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err);
/*
 * Returns the device address where a kernel must write the phase's end time. NULL: clock off or
 * full; kvd_clock_fetch reports a full clock.
 */
unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p);

/*
 * The records must have reached the host. Time of `total` outside all phases becomes
 * KVD_PHASE_HOST.
 */
void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t);

#ifdef __cplusplus
extern "C"
#endif
    /* Writes %globaltimer (ns) to `*to` when all earlier work on the stream has ended. */
    cudaError_t
    kvd_stamp(unsigned long long *to, cudaStream_t stream);

#endif
