/* Energy that GPUs have taken, by NVML's counters (Volta and later). */
#ifndef KVD_SERVING_ENERGY_H
#define KVD_SERVING_ENERGY_H

enum { KVD_ENERGY_GPUS = 64 };

typedef struct {
    void *so;
    void *gpu[KVD_ENERGY_GPUS];
    int n;
    int (*total)(void *gpu, unsigned long long *millijoules);
} kvd_energy;

/* CUDA devices first .. first + n - 1. Without NVML, or where it does not tell: kvd_energy_joules is NaN. */
void kvd_energy_open(kvd_energy *e, int first, int n);
void kvd_energy_close(kvd_energy *e);

/* Sum over the GPUs since the driver was loaded; differences count. */
double kvd_energy_joules(const kvd_energy *e);

#endif
