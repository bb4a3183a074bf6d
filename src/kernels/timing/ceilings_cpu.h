/* The rates that this CPU reaches, measured when they are needed: what floors of CPU rows divide by. */
#ifndef KVD_KERNELS_CEILINGS_CPU_H
#define KVD_KERNELS_CEILINGS_CPU_H

#include "kernels/timing/floors.h"

/*
 * With all threads, the best of 3: sgemm of 1536^3, memcpy and a sum over 128 MiB, exp of float32 by a polynomial of degree 5
 * in registers (the vector units' rate; libm's is lower). Takes some tenths of a second.
 */
int kvd_ceilings_cpu(kvd_rate_ceilings *c, kvd_err *err);

#endif
