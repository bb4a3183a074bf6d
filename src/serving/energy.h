/* Reads the energy counters of NVIDIA GPUs with NVML. */
#ifndef KVD_SERVING_ENERGY_H
#define KVD_SERVING_ENERGY_H

enum { KVD_ENERGY_GPUS = 64 };

typedef struct {
    void *so;
    void *gpu[KVD_ENERGY_GPUS];
    int n;
    int (*total)(void *gpu, unsigned long long *millijoules);
} kvd_energy;

/* Opens the energy counters of n GPUs, from CUDA device number `first` on. If NVML is missing,
 * kvd_energy_joules returns NaN. */
void kvd_energy_open(kvd_energy *e, int first, int n);
void kvd_energy_close(kvd_energy *e);

/* Returns the energy in joules that the opened GPUs have used since the driver was loaded. */
double kvd_energy_joules(const kvd_energy *e);

#endif
