/* Times the phases of an iteration with the GPU's clock. */
#ifndef KVD_METHODS_CUDA_PHASE_CLOCK_H
#define KVD_METHODS_CUDA_PHASE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/cuda/memory.h"
#include "formats/phases.h"

typedef struct {
    bool on;
    /* Number of time records, one at the end of each timed phase. capacity: largest possible
     * number. n: current number. */
    size_t capacity, n;
    /* [capacity] Time records in ns, in device memory and in pinned memory. */
    unsigned long long *device, *host;
    uint8_t *phase; /* [capacity] phase that ends at each record */
    kvd_device_memory memory;
} kvd_clock;

/* Opens a clock in *c. *c must be zeroed before and released later. If `on` is false, the clock
 * does nothing. */
int kvd_clock_init(kvd_clock *c, bool on, size_t capacity, kvd_err *err);
void kvd_clock_release(kvd_clock *c);

/* kvd_clock_start, kvd_clock_end and kvd_clock_fetch queue work on the stream: they record the
 * start time, record the end time of phase p, and copy all times to the host. */
int kvd_clock_start(kvd_clock *c, cudaStream_t stream, kvd_err *err);
int kvd_clock_end(kvd_clock *c, kvd_phase p, cudaStream_t stream, kvd_err *err);
int kvd_clock_fetch(kvd_clock *c, cudaStream_t stream, kvd_err *err);
/* Returns the device address to which a kernel must write the end time of phase p, in ns. Returns
 * NULL if the clock is off or full. */
unsigned long long *kvd_clock_end_by(kvd_clock *c, kvd_phase p);

/* Sets *t to the phases' times copied by kvd_clock_fetch. The rest of `total` seconds counts as
 * KVD_PHASE_HOST. */
void kvd_clock_read(const kvd_clock *c, double total, kvd_phase_times *t);

#ifdef __cplusplus
extern "C"
#endif
    /* Queues a kernel that writes the current time in ns to *to. */
    cudaError_t
    kvd_stamp(unsigned long long *to, cudaStream_t stream);

#endif
