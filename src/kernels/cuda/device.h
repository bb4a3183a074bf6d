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
    char pci_bus_id[32]; /* such as "0000:1B:00.0" */
    int n_sms;
    int cc_major, cc_minor;
    size_t l2_bytes, memory_bytes; /* bytes of L2 cache and of GPU memory */
    /* Bytes of shared memory: per SM, and opt-in limit per block. */
    size_t smem_per_sm_bytes, smem_per_block_bytes;
    int driver_version, runtime_version; /* CUDA versions; 13000 means 13.0 */
    char driver[80]; /* NVML's driver version, such as "580.95.05"; empty without NVML. */
} kvd_device_info;

int kvd_device_count(void);

int kvd_device_read(int device, kvd_device_info *info, kvd_err *err);

/* NVML readings of a GPU. A number that is not available is NaN; `missing` gives the reason. */
typedef struct {
    double sm_clock_mhz, sm_clock_max_mhz;
    double mem_clock_mhz, mem_clock_max_mhz;
    double temperature_c, power_w, power_limit_w;
    int throttle_known;
    uint64_t throttle; /* NVML's clocks event reasons, a bit mask */
    /* `throttle` as text: "power cap, thermal"; "none"; "idle"; "unknown". */
    char throttle_text[128];
    char missing[256];
} kvd_device_state;

/* Reads the state of a GPU. Returns -1 only if `device` is not a CUDA device. */
int kvd_device_state_read(int device, kvd_device_state *state, kvd_err *err);

/* Cycle counter and time of every SM. Two stamps, at least 200 us apart, give the mean SM clock. */
typedef struct {
    /* Indexed by %smid; `ns` is 0 for an SM without a stamp. */
    uint64_t cycles[KVD_SMS_MAX], ns[KVD_SMS_MAX];
} kvd_clock_stamp;

/* Queues a kernel that writes *stamp (zeroed device memory) on `stream`. Returns a cudaError_t. */
int kvd_clock_stamp_launch(kvd_clock_stamp *stamp, void *stream);

/* Returns the median SM clock in MHz between two stamps in host memory; NaN if no SM has both. */
double kvd_clock_between(const kvd_clock_stamp *before, const kvd_clock_stamp *after);

/* Measures the SM clock while all SMs compute FMAs for `ms` milliseconds (1 .. 1000). */
int kvd_clock_measure(double ms, double *mhz, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
