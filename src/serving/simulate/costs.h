/*
 * Predicts the time of an iteration by interpolating the measurements of kvdim-jct.
 *
 * Prompts. P(n, b) is the time of an iteration with n prompt tokens after b cached tokens.
 * Attention takes c n (b + n / 2) of it. The constant c is fitted to measurements with several b,
 * and the rest of P is tabulated.
 *
 * Several parts of prompts in one iteration. L(n) = P(n, 0) - c n^2 / 2 is the time of the matrix
 * products for n tokens. The predicted time is L(sum n) + sum (P(n, b) - L(n)), with sums over the
 * parts. If an iteration of several whole prompts was measured, it gives L for more tokens.
 *
 * Decode steps. S(m, t) is the time of a step of m requests with t cached tokens on average. If the
 * iteration also has parts of prompts, L(m + sum n) - L(m) is added.
 *
 * Interpolation. The tables are linear between measured points and extrapolate along the last two
 * points. Times are never below 0 and, for prompts, never below the time of an empty iteration. If
 * only one value of the second argument was measured, the time is taken not to depend on this
 * argument, and every other value counts as extrapolated.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_H
#define KVD_SERVING_SIMULATE_COSTS_H

#include "serving/batching.h"

typedef struct kvd_costs kvd_costs;
/*
 * Reads the measured times of one method from a complete file of kvdim-jct. `method` is the label
 * as printed in the file. `gpus` is the number of GPUs of the measurements to read: 0 means the
 * CPU. -1 means the only number of GPUs in the file. Fails if result rows differ in dtype, in
 * whether CUDA graphs were used, or in whether phases were timed. Fails if a measurement occurs
 * twice. Fails also with fewer than two sizes of prompts or of batches.
 */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

/*
 * Returns the predicted time of an iteration in seconds. Sets *extrapolated to 1 if a size of the
 * iteration is outside the measured range.
 */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/*
 * Returns the most bytes per token, over all GPUs, that the cache stored in a measured job. If the
 * file has no jobs, returns the bytes reserved per token.
 */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* over all GPUs */
/* Returns the size of the KV cache in the measurement, in bytes; NaN if it is not in the file. */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* 0 means the CPU */
const char *kvd_costs_engine(const kvd_costs *c);

#endif
