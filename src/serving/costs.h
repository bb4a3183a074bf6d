/*
 * What an iteration costs, interpolated from what kvdim-jct measured (rows of kind "iteration" of jct files).
 *
 * Two models, added when an iteration has both: prompts, seconds over (tokens of the piece, tokens before it), summed over pieces beyond the cost of
 * an empty iteration; steps, seconds over (requests, mean tokens in the cache). Within the measured grid linear between its
 * neighbours; beyond it linear from the last two and counted, so that a result says how many of its iterations were extrapolated.
 */
#ifndef KVD_SERVING_COSTS_H
#define KVD_SERVING_COSTS_H

#include "serving/batching.h"

typedef struct kvd_costs kvd_costs;
/* The rows of one method (as printed in the file) of a complete jct file. */
kvd_costs *kvd_costs_load(const char *path, const char *method, kvd_err *err);
void kvd_costs_free(kvd_costs *c);

double kvd_costs_of(const kvd_costs *c, const kvd_iteration *it, int *extrapolated); /* seconds */
double kvd_costs_bytes_per_token(const kvd_costs *c);                                /* of the cache */
double kvd_costs_weight_bytes(const kvd_costs *c);

#endif
