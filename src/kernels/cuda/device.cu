#include "kernels/cuda/device.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvd_device_count(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return n;
}

/* These numbers are copied from NVML's documentation, so that nvml.h is not needed. */
enum { NVML_SUCCESS = 0, NVML_CLOCK_SM = 1, NVML_CLOCK_MEM = 2, NVML_TEMPERATURE_GPU = 0 };

typedef struct nvmlDevice_st *nvml_device;

struct nvml_lib {
    void *so;
    const char *why;
    int (*init)(void);
    int (*by_bus)(const char *, nvml_device *);
    int (*clock)(nvml_device, int, unsigned *);
    int (*max_clock)(nvml_device, int, unsigned *);
    int (*temperature)(nvml_device, int, unsigned *);
    int (*power)(nvml_device, unsigned *);
    int (*limit)(nvml_device, unsigned *);
    int (*reasons)(nvml_device, unsigned long long *);
    int (*driver)(char *, unsigned);
};

/* Loads NVML on the first call. Functions that NVML lacks are NULL. */
static const nvml_lib *nvml(void)
{
    static nvml_lib lib;
    if (lib.so || lib.why)
        return &lib;
    void *so = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        lib.why = "libnvidia-ml.so.1 is not there";
        return &lib;
    }
    *(void **)&lib.init = dlsym(so, "nvmlInit_v2");
    *(void **)&lib.by_bus = dlsym(so, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&lib.clock = dlsym(so, "nvmlDeviceGetClockInfo");
    *(void **)&lib.max_clock = dlsym(so, "nvmlDeviceGetMaxClockInfo");
    *(void **)&lib.temperature = dlsym(so, "nvmlDeviceGetTemperature");
    *(void **)&lib.power = dlsym(so, "nvmlDeviceGetPowerUsage");
    *(void **)&lib.limit = dlsym(so, "nvmlDeviceGetEnforcedPowerLimit");
    *(void **)&lib.reasons = dlsym(so, "nvmlDeviceGetCurrentClocksEventReasons");
    if (!lib.reasons)
        *(void **)&lib.reasons = dlsym(so, "nvmlDeviceGetCurrentClocksThrottleReasons");
    *(void **)&lib.driver = dlsym(so, "nvmlSystemGetDriverVersion");
    if (!lib.init || !lib.by_bus) {
        lib.why = "libnvidia-ml.so.1 lacks nvmlInit_v2 or nvmlDeviceGetHandleByPciBusId_v2";
        dlclose(so);
    } else if (lib.init() != NVML_SUCCESS) {
        lib.why = "nvmlInit failed";
        dlclose(so);
    } else {
        lib.so = so;
    }
    return &lib;
}

static void add_text(char *to, size_t size, const char *text)
{
    const size_t at = strlen(to);
    if (at < size)
        snprintf(to + at, size - at, "%s%s", at ? ", " : "", text);
}

static double reading(int code, unsigned value, double unit, const char *what,
                      kvd_device_state *state)
{
    if (code == NVML_SUCCESS)
        return (double)value * unit;
    char text[64];
    snprintf(text, sizeof text, "no %s (NVML %d)", what, code);
    add_text(state->missing, sizeof state->missing, text);
    return NAN;
}

/* return code for a function that the installed NVML lacks */
enum { NVML_NO_FUNCTION = 13 };

static double read_of(int (*entry)(nvml_device, int, unsigned *), nvml_device handle, int which,
                      const char *what, kvd_device_state *state)
{
    unsigned value = 0;
    const int code = entry ? entry(handle, which, &value) : NVML_NO_FUNCTION;
    return reading(code, value, 1.0, what, state);
}

static double watts(int (*entry)(nvml_device, unsigned *), nvml_device handle, const char *what,
                    kvd_device_state *state)
{
    unsigned milliwatts = 0;
    const int code = entry ? entry(handle, &milliwatts) : NVML_NO_FUNCTION;
    return reading(code, milliwatts, 1e-3, what, state);
}

static void name_reasons(kvd_device_state *state)
{
    static const struct {
        uint64_t bit;
        const char *name;
    } known[] = {{0x1, "idle"},
                 {0x2, "application clocks"},
                 {0x4, "software power cap"},
                 {0x8, "hardware slowdown"},
                 {0x10, "sync boost"},
                 {0x20, "software thermal slowdown"},
                 {0x40, "hardware thermal slowdown"},
                 {0x80, "hardware power brake"},
                 {0x100, "display clocks"}};
    uint64_t rest = state->throttle;
    state->throttle_text[0] = '\0';
    for (const auto &k : known) {
        if (rest & k.bit)
            add_text(state->throttle_text, sizeof state->throttle_text, k.name);
        rest &= ~k.bit;
    }
    if (rest)
        add_text(state->throttle_text, sizeof state->throttle_text, "others");
    if (!state->throttle)
        add_text(state->throttle_text, sizeof state->throttle_text, "none");
}

int kvd_device_state_read(int device, kvd_device_state *state, kvd_err *err)
{
    char bus[32];
    memset(state, 0, sizeof *state);
    state->sm_clock_mhz = state->sm_clock_max_mhz = state->mem_clock_mhz =
        state->mem_clock_max_mhz = NAN;
    state->temperature_c = state->power_w = state->power_limit_w = NAN;
    snprintf(state->throttle_text, sizeof state->throttle_text, "unknown");
    const cudaError_t e = cudaDeviceGetPCIBusId(bus, (int)sizeof bus, device);
    if (e != cudaSuccess)
        return kvd_fail(err, "device %d: %s", device, cudaGetErrorString(e));
    const nvml_lib *lib = nvml();
    nvml_device handle = nullptr;
    if (lib->why) {
        add_text(state->missing, sizeof state->missing, lib->why);
        return 0;
    }
    const int found = lib->by_bus(bus, &handle);
    if (found != NVML_SUCCESS) {
        char text[96];
        snprintf(text, sizeof text, "NVML does not know '%s' (%d)", bus, found);
        add_text(state->missing, sizeof state->missing, text);
        return 0;
    }
    state->sm_clock_mhz = read_of(lib->clock, handle, NVML_CLOCK_SM, "SM clock", state);
    state->sm_clock_max_mhz =
        read_of(lib->max_clock, handle, NVML_CLOCK_SM, "maximum SM clock", state);
    state->mem_clock_mhz = read_of(lib->clock, handle, NVML_CLOCK_MEM, "memory clock", state);
    state->mem_clock_max_mhz =
        read_of(lib->max_clock, handle, NVML_CLOCK_MEM, "maximum memory clock", state);
    state->temperature_c =
        read_of(lib->temperature, handle, NVML_TEMPERATURE_GPU, "temperature", state);
    state->power_w = watts(lib->power, handle, "power", state);
    state->power_limit_w = watts(lib->limit, handle, "power limit", state);
    unsigned long long reasons = 0;
    const int code = lib->reasons ? lib->reasons(handle, &reasons) : NVML_NO_FUNCTION;
    (void)reading(code, 0, 1.0, "clocks event reasons", state);
    if (code == NVML_SUCCESS) {
        state->throttle_known = 1;
        state->throttle = reasons;
        name_reasons(state);
    }
    return 0;
}

int kvd_device_read(int device, kvd_device_info *info, kvd_err *err)
{
    cudaDeviceProp prop;
    memset(info, 0, sizeof *info);
    cudaError_t e = cudaGetDeviceProperties(&prop, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetPCIBusId(info->pci_bus_id, (int)sizeof info->pci_bus_id, device);
    if (e == cudaSuccess)
        e = cudaDriverGetVersion(&info->driver_version);
    if (e == cudaSuccess)
        e = cudaRuntimeGetVersion(&info->runtime_version);
    if (e != cudaSuccess)
        return kvd_fail(err, "device %d: %s", device, cudaGetErrorString(e));
    snprintf(info->name, sizeof info->name, "%.*s", (int)sizeof info->name - 1, prop.name);
    info->n_sms = prop.multiProcessorCount;
    info->cc_major = prop.major;
    info->cc_minor = prop.minor;
    info->l2_bytes = (size_t)prop.l2CacheSize;
    info->memory_bytes = prop.totalGlobalMem;
    info->smem_per_sm_bytes = prop.sharedMemPerMultiprocessor;
    info->smem_per_block_bytes = prop.sharedMemPerBlockOptin;
    const nvml_lib *lib = nvml();
    if (!lib->why && lib->driver &&
        lib->driver(info->driver, (unsigned)sizeof info->driver) != NVML_SUCCESS)
        info->driver[0] = '\0';
    return 0;
}

static __device__ __forceinline__ uint64_t global_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
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
    const uint64_t start = global_ns();
    uint64_t now = start;
    for (int i = 0; i < 10000 && now == start; i++)
        now = global_ns();
    stamp->cycles[id] = (uint64_t)clock64();
    stamp->ns[id] = now;
}

static __global__ void __launch_bounds__(1024) spin_kernel(uint64_t ns, float *sink)
{
    const uint64_t start = global_ns();
    float a = (float)threadIdx.x, b = 0.5F, c = 0.25F, d = 0.125F;
    while (global_ns() - start < ns)
        for (int i = 0; i < 64; i++) {
            a = fmaf(a, 0.999F, 0.1F);
            b = fmaf(b, 0.999F, 0.1F);
            c = fmaf(c, 0.999F, 0.1F);
            d = fmaf(d, 0.999F, 0.1F);
        }
    if (a + b + c + d == -1.0F)
        *sink = a;
}

static cudaError_t sm_count(int *n)
{
    int device;
    const cudaError_t e = cudaGetDevice(&device);
    return e == cudaSuccess ? cudaDeviceGetAttribute(n, cudaDevAttrMultiProcessorCount, device) : e;
}

int kvd_clock_stamp_launch(kvd_clock_stamp *stamp, void *stream)
{
    int n = 0;
    const cudaError_t e = sm_count(&n);
    if (e != cudaSuccess)
        return (int)e;
    stamp_kernel<<<(unsigned)n, 1024, 0, (cudaStream_t)stream>>>(stamp);
    return (int)cudaGetLastError();
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
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
    qsort(mhz, n, sizeof *mhz, ascending);
    return mhz[n / 2];
}

int kvd_clock_measure(double ms, double *mhz, kvd_err *err)
{
    int rc = -1, n = 0;
    kvd_clock_stamp *dev = nullptr, *host = nullptr;
    *mhz = NAN;
    if (!(ms >= 1.0 && ms <= 1000.0))
        return kvd_fail(err, "clock measurement of %g ms, want 1 .. 1000", ms);
    cudaError_t e = sm_count(&n);
    if (e == cudaSuccess)
        e = cudaMalloc(&dev, 2 * sizeof *dev);
    if (e == cudaSuccess)
        e = cudaMemset(dev, 0, 2 * sizeof *dev);
    if (e == cudaSuccess)
        e = (cudaError_t)kvd_clock_stamp_launch(dev, nullptr);
    if (e == cudaSuccess) {
        spin_kernel<<<(unsigned)n, 1024>>>((uint64_t)(ms * 1e6), (float *)dev);
        e = cudaGetLastError();
    }
    if (e == cudaSuccess)
        e = (cudaError_t)kvd_clock_stamp_launch(dev + 1, nullptr);
    host = (kvd_clock_stamp *)malloc(2 * sizeof *host);
    if (!host) {
        kvd_no_memory(err, "clock stamps", 2 * sizeof *host);
        goto done;
    }
    if (e == cudaSuccess)
        e = cudaMemcpy(host, dev, 2 * sizeof *host, cudaMemcpyDeviceToHost);
    if (e != cudaSuccess) {
        kvd_fail(err, "clock measurement: %s", cudaGetErrorString(e));
        goto done;
    }
    *mhz = kvd_clock_between(host, host + 1);
    rc = isnan(*mhz) ? kvd_fail(err, "clock measurement: no SM has two stamps") : 0;
done:
    free(host);
    cudaFree(dev);
    return rc;
}
