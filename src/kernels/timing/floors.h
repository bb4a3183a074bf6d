/*
 * Lower bounds on the time of a case: the bytes of memory, floating-point operations and
 * exponentials that it needs at the widths in use, divided by the rates that the same machine
 * reached in the same run.
 * - pairs: sum over requests, queries t and query heads of the number of keys that the query
 *   attends to, kv_len - q_len + t + 1.
 * - flop: sum over query heads of 2 (d_qk + d_v) times the pairs of that head, for the two matrix
 *   products under the causal mask. Softmax is not counted.
 * - exps: equal to pairs, one exponential per score.
 * - bytes: Q, K and V read once and O written once, at the size of the element type.
 */
#ifndef KVD_KERNELS_TIMING_FLOORS_H
#define KVD_KERNELS_TIMING_FLOORS_H

#include "formats/kernels.h"
#include "kernels/timing/problem.h"

typedef struct {
    double bytes, flop, exps; /* amounts of the case */
    /* each amount divided by its peak rate; NaN if that was not measured */
    double bytes_us, flop_us, exps_us;
    double us; /* largest of the three times */
} kvd_floors;

/*
 * Sets f->bytes, f->flop and f->exps. `heads` has the widths in use, which differ from those of the
 * case for implementations that compute at full width.
 */
void kvd_floors_count(const kvd_problem *p, const kvd_attn_heads *heads, kvd_floors *f);
/*
 * Sets the times of *f from its amounts. Decode reads much and writes little, so its bytes are
 * divided by read_bytes if that is known.
 */
void kvd_floors_time(kvd_attn_phase phase, const kvd_rate_ceilings *ceilings, kvd_floors *f);

/*
 * Measures the peak rates of this CPU. The floors of CPU rows (kernels/timing/floors.h) are
 * computed from them.
 */

/*
 * Fills *c with the best of 3 measurements on all threads: sgemm of 1536^3, memcpy and a sum over
 * 128 MiB, and exp of float32 by a polynomial of degree 5 in registers (the rate of the vector
 * units; libm is slower). Takes some tenths of a second. Returns 0, or -1 and fills *err.
 */
int kvd_ceilings_cpu(kvd_rate_ceilings *c, kvd_err *err);

/* Measures the peak rates of the current GPU through kernels/cuda/ceilings.h. */

/*
 * Fills *c with the rates of a copy, a read, the bf16 product of 8192^3 through cuBLAS, and
 * exponentials. Takes about a second. Returns 0, or -1 and fills *err; always fails in a build
 * without CUDA.
 */
int kvd_ceilings_gpu(kvd_rate_ceilings *c, kvd_err *err);

#endif
