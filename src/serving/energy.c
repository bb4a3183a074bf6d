#include "serving/energy.h"

#include <math.h>
#include <string.h>

#ifdef KVD_CUDA
#include <cuda_runtime_api.h>
#include <dlfcn.h>

/* Finds the GPUs in NVML by their PCI bus ids, because NVML and CUDA number GPUs differently. */
static int find_devices(kvd_energy *e, int first, int n)
{
    int (*init)(void) = NULL;
    int (*by_bus)(const char *, void **) = NULL;
    *(void **)&init = dlsym(e->so, "nvmlInit_v2");
    *(void **)&by_bus = dlsym(e->so, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&e->total = dlsym(e->so, "nvmlDeviceGetTotalEnergyConsumption");
    if (!init || !by_bus || !e->total || init())
        return -1;
    for (e->n = 0; e->n < n && e->n < KVD_ENERGY_GPUS; e->n++) {
        char bus[32];
        if (cudaDeviceGetPCIBusId(bus, sizeof bus, first + e->n) || by_bus(bus, &e->gpu[e->n]))
            return -1;
    }
    return 0;
}

void kvd_energy_open(kvd_energy *e, int first, int n)
{
    memset(e, 0, sizeof *e);
    if (n > 0)
        e->so = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (e->so && find_devices(e, first, n))
        kvd_energy_close(e);
}

void kvd_energy_close(kvd_energy *e)
{
    if (e->so)
        dlclose(e->so);
    memset(e, 0, sizeof *e);
}
#else
void kvd_energy_open(kvd_energy *e, int first, int n)
{
    (void)first;
    (void)n;
    memset(e, 0, sizeof *e);
}

void kvd_energy_close(kvd_energy *e)
{
    memset(e, 0, sizeof *e);
}
#endif

double kvd_energy_joules(const kvd_energy *e)
{
    double sum = e->n ? 0 : (double)NAN;
    for (int i = 0; i < e->n; i++) {
        unsigned long long millijoules;
        if (e->total(e->gpu[i], &millijoules))
            return (double)NAN;
        sum += 1e-3 * (double)millijoules;
    }
    return sum;
}
