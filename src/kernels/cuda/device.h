/* Properties and current state of a GPU; no setting of the GPU is changed. */
#ifndef KVD_KERNELS_CUDA_DEVICE_H
#define KVD_KERNELS_CUDA_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_SMS_MAX = 256 };

typedef struct {
    char name[128];
    int n_sms;
    size_t l2_bytes; /* bytes of L2 cache */
    char driver[80]; /* NVML's driver version, such as "580.95.05"; empty without NVML. */
} kvd_device_info;

int kvd_device_read(int device, kvd_device_info *info, kvd_err *err);

/* NVML readings of a GPU. A number that is not available is NaN. */
typedef struct {
    double sm_clock_mhz, mem_clock_mhz, temperature_c;
    int throttle_known;
    uint64_t throttle; /* NVML's clocks event reasons, a bit mask */
} kvd_device_state;

/* Reads a GPU's clocks, temperature and throttling. Fails only if `device` is not a CUDA device. */
int kvd_device_state_read(int device, kvd_device_state *state, kvd_err *err);

/* Cycle counter and time of every SM. Two stamps, at least 200 us apart, give the mean SM clock. */
typedef struct {
    /* Cycle counter and time of each SM, by %smid; `ns` is 0 for an SM without a reading. */
    uint64_t cycles[KVD_SMS_MAX], ns[KVD_SMS_MAX];
} kvd_clock_stamp;

/* Queues a kernel on `stream` that writes the cycle counter and the time of every SM to *stamp,
 * which is zeroed device memory. Returns a cudaError_t. */
int kvd_clock_stamp_launch(kvd_clock_stamp *stamp, void *stream);

/* Returns the median SM clock in MHz between two stamps in host memory; NaN if no SM has both. */
double kvd_clock_between(const kvd_clock_stamp *before, const kvd_clock_stamp *after);

#ifdef __cplusplus
}
#endif
#endif
