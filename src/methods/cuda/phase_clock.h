/*
 * Measures the phases of an iteration with the device's %globaltimer. A record is the time at which
 * a phase ends. The time of a phase is the difference from the previous record. Kernels that
 * overlap the end of the previous kernel (few_rows.h, append of decode steps) record the time
 * themselves.
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
     * `capacity` is the largest number of records of an iteration. `n` is the number of records so
     * far, not counting the record of the start.
     */
    size_t capacity, n;
    /* [capacity] values of %globaltimer in device memory and in pinned host memory. */
    unsigned long long *device, *host;
    uint8_t *phase; /* [capacity] phase that ends at each record */
} kvd_clock;

/*
 * Initialises `*c`, which must be zeroed before. The caller must release `*c`, also after a
 * failure. If `on` is false, the clock does nothing.
 */
int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err);
void kvd_clock_release(kvd_clock *c);

/*
 * These functions queue work on the stream. kvd_clock_start records the start of an iteration,
 * kvd_clock_end the end of a phase. kvd_clock_fetch copies all records to the host.
 */
int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err);
int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err);
int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err);
/*
 * Returns the device address at which a kernel must write the time when a phase ends. Returns NULL
 * if the clock is off or full (kvd_clock_fetch reports that).
 */
unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p);

/*
 * Computes phase times from the records, which must have reached the host. The part of `total` that
 * no phase covers is reported as KVD_PHASE_HOST.
 */
void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t);

#ifdef __cplusplus
extern "C"
#endif
    /* Writes %globaltimer, in ns, to `*to` when all earlier work on the stream has ended. */
    cudaError_t
    kvd_stamp(unsigned long long *to, cudaStream_t stream);

#endif
