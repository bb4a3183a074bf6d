/*
 * Predicts iteration times from measurements of kvdim-jct.
 *
 * Prompts: P(n, b) is the time of n tokens after b cached tokens. Attention takes c n (b + n / 2)
 * of it, c fitted; the rest is tabulated.
 * Several parts: L(n) = P(n, 0) - c n^2 / 2; prediction L(sum n) + sum (P(n, b) - L(n)). Iterations
 * of whole prompts extend L.
 * Decode: S(m, t) for m requests with mean t cached tokens; prompt parts add L(m + sum n) - L(m).
 *
 * Tables are linear and extrapolate along the last two points, never below 0; prompts never below
 * an empty iteration. With one measured v, time does not depend on v; other v count as
 * extrapolated.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_H
#define KVD_SERVING_SIMULATE_COSTS_H

#include "serving/batching.h"

typedef struct kvd_costs kvd_costs;
/*
 * Reads the times of `method`; gpus 0 means the CPU, -1 the only number in the file. Fails if rows
 * differ in setting, repeat, or cover less than two prompt or batch sizes.
 */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

/* Returns seconds; *extrapolated becomes 1 outside the measured range. */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/* Returns the most bytes per token of a measured job, else the reserved ones, over all GPUs. */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* over all GPUs */
/* Returns bytes of the measured KV cache, or NaN. */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* 0 means the CPU */
const char *kvd_costs_engine(const kvd_costs *c);

#endif
