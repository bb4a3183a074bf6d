/*
 * What an iteration costs, interpolated from what kvdim-jct measured (rows of kind "iteration" of jct files).
 *
 * Two tables. Prompts: seconds P(tokens of a piece, tokens before it). Steps: seconds S(requests, mean tokens
 * in the cache). The cost of an iteration that does nothing, e, is P continued to a piece of 0 tokens. Pieces
 * p of an iteration take e + sum (P(p) - e); with steps S takes the place of the first e: the weights are
 * read once for all of it.
 *
 * Between measured points a table is linear, in the second coordinate first. Beyond them it goes on along the
 * last two, never below 0, and that is counted, so that a result says how many of its iterations were
 * extrapolated. A second coordinate that was measured once only is taken to make no difference, and any other
 * value of it counts as extrapolated.
 */
#ifndef KVD_SERVING_COSTS_H
#define KVD_SERVING_COSTS_H

#include "serving/batching.h"

typedef struct kvd_costs kvd_costs;
/*
 * The rows of one method (as printed in the file) on `gpus` GPUs (-1: whatever the file has, if it has one
 * number only; 0: the CPU) of a complete jct file. Fails when rows of it differ in dtype, graphs or phases,
 * when a point is there twice, and with fewer than two sizes of pieces or of batches.
 */
kvd_costs *kvd_costs_load(const char *path, const char *method, int gpus, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated); /* seconds */
/* Of the cache, all GPUs together: the most that a job of the file held by the cache's own count; without
 * jobs what was reserved. */
double kvd_costs_bytes_per_token(const kvd_costs *c);
double kvd_costs_weight_bytes(const kvd_costs *c); /* all GPUs together                            */
double kvd_costs_cache_bytes(const kvd_costs *c);  /* of the cache that was measured with, or NaN  */
int kvd_costs_gpus(const kvd_costs *c);            /* 0: the CPU                                   */
const char *kvd_costs_engine(const kvd_costs *c);  /* what was measured, by its own account        */

#endif
