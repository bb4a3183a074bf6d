/*
 * Predicts the time of an iteration by interpolating the measurements of kvdim-jct (rows of kind
 * "iteration" of jct files).
 *
 * Prompts: P(n, b) is the seconds of a piece of n tokens with b tokens before it. The time of
 * attention is taken to be c n (b + n / 2), with one c for all, fitted to the pieces that were
 * measured with several b. The rest of P is tabulated. In an iteration of several pieces, the
 * products, which bound its time, process all of its tokens at once, and attention processes each
 * piece alone: L(sum n) + sum (P(n, b) - L(n)) with L(n) = P(n, 0) - c n^2 / 2; for one piece this
 * is P. Measured iterations of several whole prompts are points of L beyond the longest prompt.
 *
 * Steps: S(m, t) is the seconds of a step of m requests with t tokens in the cache on average. If
 * the iteration has pieces too, L(m + sum n) - L(m) is added: the extra time for more tokens in
 * products that read the weights once for all of them.
 *
 * Between measured points tables are linear, in the second coordinate first. Beyond them they
 * extrapolate along the last two points, never below 0 and, for prompts, never below the time of an
 * empty iteration. Extrapolations are counted, so that a result reports how many of its iterations
 * were extrapolated. A second coordinate that was measured only once is taken to make no
 * difference, and any other value of it counts as extrapolated.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_H
#define KVD_SERVING_SIMULATE_COSTS_H

#include "serving/batching.h"

typedef struct kvd_costs kvd_costs;
/*
 * Reads the measured times of iterations of one method (label as printed in the file), on `gpus`
 * GPUs, from a complete jct file. gpus -1: the number of GPUs in the file, if it has only one; 0:
 * the CPU. Fails if the rows differ in dtype, graphs or phases, if a point occurs twice, and if
 * there are fewer than two sizes of pieces or of batches.
 */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

/* Returns the predicted time of an iteration in seconds. */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/*
 * Returns the bytes per token in the KV cache, over all GPUs: the largest number that a job of the
 * file held, as the cache counts it. If the file has no jobs, returns the bytes reserved.
 */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* over all GPUs */
/* size of the KV cache in the measurement, in bytes; NaN if not in the file */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* 0 means the CPU */
/* Returns the description of the measured engine. */
const char *kvd_costs_engine(const kvd_costs *c);

#endif
