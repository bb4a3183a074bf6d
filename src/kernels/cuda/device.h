/*
 * Properties and current state of a GPU. The functions run on the host and change no setting of the
 * GPU. All functions with an argument `err` return 0, or -1 with *err filled.
 */
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
    int cc_major, cc_minor;        /* compute capability */
    size_t l2_bytes, memory_bytes; /* bytes of the L2 cache and of the memory of the GPU */
    /* Bytes of shared memory per SM, and the opt-in limit per block. */
    size_t smem_per_sm_bytes, smem_per_block_bytes;
    int driver_version, runtime_version; /* CUDA versions; 13000 means 13.0 */
    /* Driver version from NVML, such as "580.95.05"; empty if NVML is missing. */
    char driver[80];
} kvd_device_info;

/* Returns the number of CUDA devices, or 0 if there is no driver. */
int kvd_device_count(void);

int kvd_device_read(int device, kvd_device_info *info, kvd_err *err);

/*
 * Current NVML readings of a GPU. A number that is not available is NaN, which is no error.
 * `missing` holds the reason, or is empty.
 */
typedef struct {
    double sm_clock_mhz, sm_clock_max_mhz;
    double mem_clock_mhz, mem_clock_max_mhz;
    double temperature_c, power_w, power_limit_w;
    int throttle_known;
    uint64_t throttle; /* NVML's clocks event reasons, a bit mask */
    /* Reasons in `throttle` as text: "power cap, thermal"; "none"; "idle"; "unknown". */
    char throttle_text[128];
    char missing[256];
} kvd_device_state;

/*
 * Reads the current state of a device. Returns -1 and fills *err if `device` is not a CUDA device.
 */
int kvd_device_state_read(int device, kvd_device_state *state, kvd_err *err);

/*
 * Cycle counter and time of every SM at one moment. Two stamps on a stream, one before and one
 * after some work, give the mean SM clock during the work. The work should take more than about 200
 * us, because %globaltimer advances in steps of up to 1 us.
 */
typedef struct {
    /* Indexed by %smid. An element of `ns` is 0 if no stamp was taken on that SM. */
    uint64_t cycles[KVD_SMS_MAX], ns[KVD_SMS_MAX];
} kvd_clock_stamp;

/*
 * Queues a kernel on `stream` (a cudaStream_t of the current device) that writes *stamp. *stamp is
 * device memory, which the caller must have set to zero. Returns a cudaError_t as int.
 */
int kvd_clock_stamp_launch(kvd_clock_stamp *stamp, void *stream);

/*
 * Returns the SM clock in MHz between two stamps, which are in host memory: the median over SMs.
 * Returns NaN if no SM is in both stamps or no time passed.
 */
double kvd_clock_between(const kvd_clock_stamp *before, const kvd_clock_stamp *after);

/*
 * Measures the SM clock of the current device while every SM computes FMAs for about `ms`
 * milliseconds (1 .. 1000). A compute-bound kernel would run at this clock.
 */
int kvd_clock_measure(double ms, double *mhz, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
