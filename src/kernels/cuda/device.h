/*
 * What card this is and what it is doing: for rows of kernels.h5 and for reports. Host functions; they may allocate a
 * little and may wait for the device. Nothing here changes a setting of the card.
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
    char pci_bus_id[32]; /* "0000:1B:00.0": how NVML and other tools name the card */
    int n_sms;
    int cc_major, cc_minor;                         /* compute capability                             */
    size_t l2_bytes, memory_bytes;                  /* whole card                                     */
    size_t smem_per_sm_bytes, smem_per_block_bytes; /* the second with opt-in                         */
    int driver_version, runtime_version;            /* CUDA's: 13000 is 13.0                          */
    char driver[80];                                /* "580.95.05" from NVML; empty where it is absent */
} kvd_device_info;

/* Number of CUDA devices; 0 where there is no driver. */
int kvd_device_count(void);

/* Fills *info for a device number of the CUDA runtime. Returns 0, or -1 with *err. */
int kvd_device_read(int device, kvd_device_info *info, kvd_err *err);

/*
 * What NVML says now. Where libnvidia-ml.so.1 is absent, or it does not tell a number, that number is NaN and `missing`
 * says why (empty when all are there); that is no error.
 */
typedef struct {
    double sm_clock_mhz, sm_clock_max_mhz;
    double mem_clock_mhz, mem_clock_max_mhz;
    double temperature_c, power_w, power_limit_w;
    int throttle_known;
    uint64_t throttle;       /* NVML's clocks event reasons, bit mask                              */
    char throttle_text[128]; /* "power cap, thermal"; "none"; "idle"; "unknown"                     */
    char missing[256];
} kvd_device_state;

/* Returns 0, or -1 with *err when `device` is no CUDA device. */
int kvd_device_state_read(int device, kvd_device_state *state, kvd_err *err);

/*
 * SM clock over a piece of work: a stamp before it and one after, on the same stream, hold %globaltimer (ns) and
 * clock64 (SM cycles) of every SM. The mean clock between them is cycles / time, whatever ran in between. Work shorter
 * than about 200 us is too short: the timer steps by up to 1 us.
 */
typedef struct {
    uint64_t cycles[KVD_SMS_MAX], ns[KVD_SMS_MAX]; /* by %smid; ns = 0 where no stamp was taken */
} kvd_clock_stamp;

/* Enqueues a stamp of the current device into *stamp, device memory that was zeroed. stream is a cudaStream_t. Returns a
 * cudaError_t as int. */
int kvd_clock_stamp_launch(kvd_clock_stamp *stamp, void *stream);

/* Host copies of two stamps -> median over SMs of cycles / time, in MHz; NaN when no SM has both, or time stood still. */
double kvd_clock_between(const kvd_clock_stamp *before, const kvd_clock_stamp *after);

/* The SM clock of the current device while every SM is busy with FMAs for about ms milliseconds (1 .. 1000): what a kernel that
 * computes would see now. Returns 0, or -1 with *err. */
int kvd_clock_measure(double ms, double *mhz, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
