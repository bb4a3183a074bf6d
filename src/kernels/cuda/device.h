/*
 * Properties and current state of a GPU, for the rows of kernels.h5 and for reports. The functions
 * run on the host and may allocate a little memory and wait for the device. They change no setting
 * of the GPU.
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
    char pci_bus_id[32]; /* such as "0000:1B:00.0", the name that NVML and other tools use */
    int n_sms;
    int cc_major, cc_minor;        /* compute capability */
    size_t l2_bytes, memory_bytes; /* sizes of the L2 cache and of the memory of the whole GPU */
    /* Bytes of shared memory per SM, and the opt-in limit per block. */
    size_t smem_per_sm_bytes, smem_per_block_bytes;
    int driver_version, runtime_version; /* CUDA versions of driver and runtime; 13000 is 13.0 */
    /* Driver version from NVML, such as "580.95.05"; empty if NVML is missing. */
    char driver[80];
} kvd_device_info;

/* Returns the number of CUDA devices; 0 if there is no driver. */
int kvd_device_count(void);

/* Fills *info for device number `device` of the CUDA runtime. Returns 0, or -1 and fills *err. */
int kvd_device_read(int device, kvd_device_info *info, kvd_err *err);

/*
 * Current NVML readings of a GPU. If libnvidia-ml.so.1 is missing or does not report a number, that
 * number is NaN and `missing` holds the reason. `missing` is empty if all numbers are known. A
 * missing number is not an error.
 */
typedef struct {
    double sm_clock_mhz, sm_clock_max_mhz;
    double mem_clock_mhz, mem_clock_max_mhz;
    double temperature_c, power_w, power_limit_w;
    int throttle_known;
    uint64_t throttle; /* bit mask of NVML's clocks event reasons */
    /*
     * Names of the reasons in `throttle` for which the GPU lowered its clocks: "power cap,
     * thermal"; "none"; "idle"; "unknown".
     */
    char throttle_text[128];
    char missing[256];
} kvd_device_state;

/*
 * Fills *state with the current NVML readings of a GPU. Returns 0. Returns -1 and fills *err if
 * `device` is not a CUDA device.
 */
int kvd_device_state_read(int device, kvd_device_state *state, kvd_err *err);

/*
 * Time stamp with which the SM clock during a piece of work is measured. A stamp holds %globaltimer
 * (ns) and clock64 (SM cycles) of every SM. One stamp is taken before the work and one after it, on
 * the same stream. The mean clock between them is cycles / time, whatever ran in between. The work
 * should take longer than about 200 us, because the timer advances in steps of up to 1 us.
 */
typedef struct {
    /* Readings of each SM, indexed by %smid; ns is 0 if no stamp was taken on that SM. */
    uint64_t cycles[KVD_SMS_MAX], ns[KVD_SMS_MAX];
} kvd_clock_stamp;

/*
 * Enqueues a kernel on `stream`, a cudaStream_t, that writes a stamp of the current device to
 * *stamp. The caller must have set *stamp, device memory, to zero. Returns a cudaError_t as int.
 */
int kvd_clock_stamp_launch(kvd_clock_stamp *stamp, void *stream);

/*
 * Returns the median over SMs of cycles / time between two stamps, in MHz. Both arguments are host
 * copies. Returns NaN if no SM is in both stamps or no time passed between them.
 */
double kvd_clock_between(const kvd_clock_stamp *before, const kvd_clock_stamp *after);

/*
 * Stores in *mhz the SM clock of the current device while every SM computes FMAs for about `ms`
 * milliseconds (1 .. 1000). This is the clock at which a compute-bound kernel would run now.
 * Returns 0, or -1 and fills *err.
 */
int kvd_clock_measure(double ms, double *mhz, kvd_err *err);

#ifdef __cplusplus
}
#endif
#endif
