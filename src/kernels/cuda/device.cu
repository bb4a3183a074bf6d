#include "kernels/cuda/device.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/cuda/launch.cuh"
extern "C" {
#include "common/stats.h"
}

/* These numbers are copied from NVML's documentation, so that nvml.h is not needed. */
enum { NVML_SUCCESS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_TEMPERATURE_GPU = 0 };

typedef struct nvmlDevice_st *nvml_device;

struct nvml_lib {
    bool tried, there;
    int (*init)(void);
    int (*by_bus)(const char *, nvml_device *);
    int (*clock)(nvml_device, int, unsigned *);
    int (*temperature)(nvml_device, int, unsigned *);
    int (*reasons)(nvml_device, unsigned long long *);
    int (*driver)(char *, unsigned);
};

/* Loads NVML on the first call. Returns NULL without NVML. Functions that NVML lacks are NULL. */
static const nvml_lib *nvml(void)
{
    static nvml_lib lib;
    if (lib.tried)
        return lib.there ? &lib : NULL;
    lib.tried = true;
    void *so = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!so)
        return NULL;
    *(void **)&lib.init = dlsym(so, "nvmlInit_v2");
    *(void **)&lib.by_bus = dlsym(so, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&lib.clock = dlsym(so, "nvmlDeviceGetClockInfo");
    *(void **)&lib.temperature = dlsym(so, "nvmlDeviceGetTemperature");
    *(void **)&lib.reasons = dlsym(so, "nvmlDeviceGetCurrentClocksEventReasons");
    if (!lib.reasons)
        *(void **)&lib.reasons = dlsym(so, "nvmlDeviceGetCurrentClocksThrottleReasons");
    *(void **)&lib.driver = dlsym(so, "nvmlSystemGetDriverVersion");
    lib.there = lib.init && lib.by_bus && lib.init() == NVML_SUCCESS;
    if (!lib.there)
        dlclose(so);
    return lib.there ? &lib : NULL;
}

static double read_of(int (*entry)(nvml_device, int, unsigned *), nvml_device handle, int which)
{
    unsigned value = 0;
    return entry && entry(handle, which, &value) == NVML_SUCCESS ? (double)value : NAN;
}

int kvd_device_state_read(int device, kvd_device_state *state, kvd_err *err)
{
    char bus[32];
    *state = {NAN, NAN, NAN, 0, 0};
    const cudaError_t e = cudaDeviceGetPCIBusId(bus, (int)sizeof bus, device);
    if (e != cudaSuccess)
        return kvd_fail(err, "device %d: %s", device, cudaGetErrorString(e));
    const nvml_lib *lib = nvml();
    nvml_device handle = nullptr;
    if (!lib || lib->by_bus(bus, &handle) != NVML_SUCCESS)
        return 0;
    state->sm_clock_mhz = read_of(lib->clock, handle, NVML_CLOCK_SM);
    state->mem_clock_mhz = read_of(lib->clock, handle, NVML_CLOCK_MEM);
    state->temperature_c = read_of(lib->temperature, handle, NVML_TEMPERATURE_GPU);
    unsigned long long reasons = 0;
    if (lib->reasons && lib->reasons(handle, &reasons) == NVML_SUCCESS) {
        state->throttle_known = 1;
        state->throttle = reasons;
    }
    return 0;
}

int kvd_device_read(int device, kvd_device_info *info, kvd_err *err)
{
    cudaDeviceProp prop;
    memset(info, 0, sizeof *info);
    const cudaError_t e = cudaGetDeviceProperties(&prop, device);
    if (e != cudaSuccess)
        return kvd_fail(err, "device %d: %s", device, cudaGetErrorString(e));
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, prop.name);
    info->n_sms = prop.multiProcessorCount;
    info->l2_bytes = (size_t)prop.l2CacheSize;
    const nvml_lib *lib = nvml();
    if (lib && lib->driver &&
        lib->driver(info->driver, (unsigned)sizeof info->driver) != NVML_SUCCESS)
        info->driver[0] = '\0';
    return 0;
}

static __device__ __forceinline__ unsigned sm_id()
{
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

/* Waits until %globaltimer advances, then reads the cycle counter of each SM. */
static __global__ void __launch_bounds__(1024) stamp_kernel(kvd_clock_stamp *stamp)
{
    const unsigned id = sm_id();
    if (threadIdx.x || id >= KVD_SMS_MAX)
        return;
    const uint64_t start = kvd_now_ns();
    uint64_t now = start;
    for (int i = 0; i < 10000 && now == start; i++)
        now = kvd_now_ns();
    stamp->cycles[id] = (uint64_t)clock64();
    stamp->ns[id] = now;
}

int kvd_clock_stamp_launch(kvd_clock_stamp *stamp, void *stream)
{
    int n = 0;
    const cudaError_t e = kvd_device_attribute(cudaDevAttrMultiProcessorCount, &n);
    if (e != cudaSuccess)
        return (int)e;
    stamp_kernel<<<(unsigned)n, 1024, 0, (cudaStream_t)stream>>>(stamp);
    return (int)cudaGetLastError();
}

double kvd_clock_between(const kvd_clock_stamp *before, const kvd_clock_stamp *after)
{
    double mhz[KVD_SMS_MAX];
    size_t n = 0;
    for (int i = 0; i < KVD_SMS_MAX; i++)
        if (before->ns[i] && after->ns[i] > before->ns[i] && after->cycles[i] > before->cycles[i])
            mhz[n++] = 1e3 * (double)(after->cycles[i] - before->cycles[i]) /
                       (double)(after->ns[i] - before->ns[i]);
    if (n == 0)
        return NAN;
    kvd_sort(mhz, n);
    return mhz[n / 2];
}
