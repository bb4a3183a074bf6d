/*
 * Predicts the time of an iteration (forward pass) by interpolating the measurements of kvdim-jct
 * (lines of kind "iteration" in jct files).
 *
 * Prompts. Let P(n, b) be the seconds of an iteration that processes one part of a prompt: n
 * tokens, with b tokens of the prompt before them. The time of attention in it is taken to be c n
 * (b + n / 2). The constant c is fitted to parts that were measured with several b. The rest of P
 * is tabulated.
 *
 * Several parts in one iteration. Matrix products process the tokens of all parts at once;
 * attention processes each part alone. Let L(n) = P(n, 0) - c n^2 / 2 be the time of the matrix
 * products for n tokens. The predicted time is L(sum n) + sum (P(n, b) - L(n)), with sums over the
 * parts. For one part this is P(n, b). If an iteration of several whole prompts was measured, its
 * time without attention gives L for more tokens than the longest prompt has.
 *
 * Decode steps. Let S(m, t) be the seconds of a step of m requests with t tokens in the cache on
 * average. If the iteration has parts of prompts too, L(m + sum n) - L(m) is added. This is the
 * extra time for more tokens in products that read the weights once for all of them.
 *
 * Interpolation. Between measured points the tables are linear, in the second argument first.
 * Beyond them they extrapolate along the last two points. Times are never below 0 and, for prompts,
 * never below the time of an empty iteration. Extrapolations are counted, so that a result reports
 * how many of its iterations were extrapolated. If only one value of the second argument was
 * measured, it is taken to make no difference. Any other value of it then counts as extrapolated.
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
 * a size of the iteration (tokens of a prompt, tokens before them, requests, tokens in the cache)
 * is outside the range that was measured.
 */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/*
 * Returns the bytes per token in the KV cache, over all GPUs: the most bytes per token that the
 * cache stored in a measured job. If the file has no jobs, returns the bytes reserved per token.
 */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* bytes of the model's weights over all GPUs */
/* Returns the size of the KV cache in the measurement, in bytes; NaN if it is not in the file. */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* number of GPUs of the measurement; 0 means the CPU */
/* Returns the description of the engine that was measured. */
const char *kvd_costs_engine(const kvd_costs *c);

#endif
