/*
 * Predicts the time of an iteration by interpolating the measurements of kvdim-jct (lines of kind
 * "iteration" in jct files).
 *
 * Prompts: P(n, b) is the seconds of a part of a prompt, n tokens with b tokens before it. The
 * time of attention is taken to be c n (b + n / 2). The constant c is fitted to the parts that
 * were measured with several b. The rest of P is tabulated. In an iteration with several parts,
 * the matrix products, which bound its time, process all of its tokens at once, and attention
 * processes each part alone. The time is L(sum n) + sum (P(n, b) - L(n)) with L(n) = P(n, 0) - c
 * n^2 / 2. For one part this is P. Measured iterations of several whole prompts are points of L
 * beyond the longest prompt.
 *
 * Decode steps: S(m, t) is the seconds of a step of m requests with t tokens in the cache on
 * average. If the iteration has parts of prompts too, L(m + sum n) - L(m) is added: the extra time
 * for more tokens in products that read the weights once for all of them.
 *
 * Between measured points tables are linear, in the second coordinate first. Beyond them they
 * extrapolate along the last two points, never below 0 and, for prompts, never below the time of
 * an empty iteration. Extrapolations are counted, so that a result reports how many of its
 * iterations were extrapolated. A second coordinate that was measured only once is taken to make
 * no difference, and any other value of it counts as extrapolated.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_H
#define KVD_SERVING_SIMULATE_COSTS_H

#include "serving/batching.h"

typedef struct kvd_costs kvd_costs;
/*
 * Reads the measured times of iterations of one method from a complete file of kvdim-jct. `method`
 * is the label as printed in the file. `gpus` selects the number of GPUs: 0 means the CPU, and -1
 * the number of GPUs in the file, if it has only one. Fails if the lines differ in dtype, graphs
 * or phases, if a measurement occurs twice, and if there are fewer than two sizes of prompts or of
 * batches.
 */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

/*
 * Returns the predicted time of an iteration (forward pass) in seconds. Sets *extrapolated to 1 if
 * the time is beyond the measured ones.
 */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/*
 * Returns the bytes per token in the KV cache, over all GPUs: the largest number that a job in the
 * file held, as the cache counts it. If the file has no jobs, returns the bytes reserved.
 */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* bytes of the model's weights over all GPUs */
/* Returns the size of the KV cache in the measurement, in bytes; NaN if it is not in the file. */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* number of GPUs of the measurement; 0 means the CPU */
/* Returns the description of the engine that was measured. */
const char *kvd_costs_engine(const kvd_costs *c);

#endif
