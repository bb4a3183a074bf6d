/*
 * Predicts the time of an iteration from measurements of kvdim-jct.
 *
 * P(n, b) is the time of a prompt part of n tokens after b cached tokens.
 * Attention takes c n (b + n / 2) of P, where c is fitted.
 * L(n) = P(n, 0) - c n^2 / 2 is the time of matrix products.
 * Several prompt parts take L(sum n) + sum (P(n, b) - L(n)).
 * S(m, t) is the time of decode steps of m requests with t cached tokens on average.
 * Prompt parts add L(m + sum n) - L(m).
 *
 * Tables are linear between measured points, and extrapolate along the last two points, never below
 * 0.
 */
#ifndef KVD_SERVING_SIMULATE_COSTS_H
#define KVD_SERVING_SIMULATE_COSTS_H

#include "formats/rows.h"
#include "serving/batching.h"

/*
 * Fails unless a table has the text columns `texts` and the number columns `numbers`, names
 * separated by spaces.
 */
int kvd_costs_columns(const kvd_rows *r, const char *path, const char *texts, const char *numbers,
                      kvd_err *err);

typedef struct kvd_costs kvd_costs;
/*
 * Reads the times of `method`. gpus: number of GPUs, 0 for the CPU, -1 for the only number in the
 * file. Fails if rows disagree, a measurement occurs twice, or there are fewer than two sizes.
 */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

/*
 * Returns the predicted seconds of an iteration. Sets *extrapolated if a size is outside the
 * measured range.
 */
double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated);
/*
 * Returns the largest number of bytes that the measured runs stored per token in the cache, summed
 * over all GPUs.
 */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* over all GPUs */
/* Returns the size of the measured KV cache in bytes, or NaN if unknown. */
double kvd_costs_cache_bytes(const kvd_costs *c);
int kvd_costs_gpus(const kvd_costs *c); /* 0 means the CPU */
/* Return true if the measured steps were replayed CUDA graphs, or if their parts were timed. */
bool kvd_costs_graphs(const kvd_costs *c);
bool kvd_costs_phases(const kvd_costs *c);
const char *kvd_costs_engine(const kvd_costs *c);

#endif
