/*
 * What a case must cost at least: bytes of memory, floating-point operations and exponentials, counted at the widths in use,
 * over the rates that the same machine reached in the same run.
 *
 *   pairs  sum over requests, queries t and query heads of the keys that the query sees, kv_len - q_len + t + 1
 *   flop   sum over query heads of 2 (d_qk + d_v) pairs of that head: the two products, causal; softmax is not counted
 *   exps   pairs: one exponential per score
 *   bytes  Q and K and V read once, O written once, at the size of the type
 */
#ifndef KVD_KERNELS_FLOORS_H
#define KVD_KERNELS_FLOORS_H

#include "kernels/timing/problem.h"

/* Rates in units per second; 0: not measured. */
typedef struct {
    double copy_bytes; /* device copy, read + write                                             */
    double read_bytes; /* read only                                                             */
    double flop;       /* matrix product in the type of the case: 16-bit on a GPU, float32 on a CPU */
    double exps;       /* the fastest way to exponentials that was tried                       */
} kvd_rate_ceilings;

typedef struct {
    double bytes, flop, exps;          /* of the case                                                  */
    double bytes_us, flop_us, exps_us; /* each over its ceiling; NaN where that was not measured       */
    double us;                         /* the largest of the three                                     */
} kvd_floors;

/* Sets bytes, flop, exps. heads: the widths in use, which are not always those of the case (dense rivals). */
void kvd_floors_count(const kvd_problem *p, const kvd_attn_heads *heads, kvd_floors *f);
/* Sets the times from what was counted. Decode reads and hardly writes: its bytes go by read_bytes where that is known. */
void kvd_floors_time(kvd_attn_phase phase, const kvd_rate_ceilings *ceilings, kvd_floors *f);

#endif
