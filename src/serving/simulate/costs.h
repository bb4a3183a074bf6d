/*
 * Predicts iteration times by interpolating measurements of kvdim-jct.
 *
 * Prompts: P(n, b) is the time of n tokens after b cached tokens. Attention takes c n (b + n / 2)
 * of it, with c fitted; the rest is tabulated.
 *
 * Several prompt parts: L(n) = P(n, 0) - c n^2 / 2 is the matrix products' time. The prediction is
 * L(sum n) + sum (P(n, b) - L(n)). Iterations of several whole prompts give L for more tokens.
 *
 * Decode: S(m, t) is the time of m requests with t cached tokens on average. Prompt parts add L(m +
 * sum n) - L(m).
 *
 * Tables are linear and extrapolate along the last two points, never below 0; prompts never below
 * an empty iteration. With one value of the second argument, the time does not depend on the
 * argument, and other values count as extrapolated.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_H
#define KVD_SERVING_SIMULATE_COSTS_H

#include "serving/batching.h"

typedef struct kvd_costs kvd_costs;
/*
 * Reads the times of `method` (label in the file). gpus: 0 means the CPU, -1 the only number in the
 * file. Fails if rows differ in dtype, CUDA graphs or timed phases, if a measurement repeats, or
 * with fewer than two prompt or batch sizes.
 */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

/* Returns predicted seconds. Outside the measured range sets *extrapolated to 1. */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/*
 * Returns the most bytes per token, over all GPUs, in a measured job, else the bytes reserved per
 * token.
 */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* over all GPUs */
/* Returns bytes of the measured KV cache; NaN if the file has none. */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* 0 means the CPU */
const char *kvd_costs_engine(const kvd_costs *c);

#endif
