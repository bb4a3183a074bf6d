/* Predicts the time of an iteration from measurements of kvdim-jct.
 *
 * - P(n, b): measured time of n tokens of one prompt after b cached tokens
 * - S(m, t): measured time of a decode step of m requests with t cached tokens each
 * - c: time of attention per pair of a query and a key
 * - L(n) = P(n, 0) - c n^2 / 2: time of the matrix products of n tokens
 *
 * Time of an iteration, where sums run over all prompts in the iteration:
 *
 * - without a decode step: L(sum of n) + sum of (P(n, b) - L(n))
 * - with a decode step: S(m, t) + L(m + sum of n) - L(m) + sum of (P(n, b) - L(n)) */
#ifndef KVD_SERVING_SIMULATE_COSTS_H
#define KVD_SERVING_SIMULATE_COSTS_H

#include "formats/rows.h"
#include "serving/batching.h"

/* Fails unless the table has all columns named in `texts` (text columns) and `numbers` (number
 * columns). Names are separated by spaces. */
int kvd_costs_columns(const kvd_rows *r, const char *path, const char *texts, const char *numbers,
                      kvd_err *err);

typedef struct kvd_costs kvd_costs;
/* Reads the iteration times of `method`. gpus: number of GPUs; 0 for the CPU; -1 if the file has
 * only one number of GPUs. Fails if rows contradict each other, or if too few sizes were measured
 * to interpolate. */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

/* Returns the predicted seconds of an iteration. Sets *extrapolated to 1 if a size of the iteration
 * is outside the measured range, else to 0. */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/* Returns the largest measured number of cache bytes per token, summed over all GPUs. */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* over all GPUs */
/* Returns the size of the cache, in bytes, in the run that measured the times; NaN if not
 * recorded. */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* 0 means the CPU */
/* Returns true if decode steps were measured as CUDA graphs. */
bool kvd_costs_graphs(const kvd_costs *c);
/* Returns true if phases of an iteration, such as attention, were timed separately. */
bool kvd_costs_phases(const kvd_costs *c);
const char *kvd_costs_engine(const kvd_costs *c);

#endif
