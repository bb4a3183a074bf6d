/*
 * What an iteration costs, interpolated from what kvdim-jct measured (rows of kind "iteration" of jct files).
 *
 * Prompts: seconds P(tokens n of a piece, tokens b before it). Attention's part is taken to be c n (b + n / 2), with one c for all: what
 * the pieces that were measured behind several b say. What remains of P is tabulated. In an iteration of several pieces the products, which
 * bound it, see all of its tokens at once, and attention each piece for itself: L(sum n) + sum (P(n, b) - L(n)) with
 * L(n) = P(n, 0) - c n^2 / 2, of one piece P. Iterations of several whole prompts that were measured are points of L, beyond the longest one.
 *
 * Steps: seconds S(requests m, mean tokens in the cache). With pieces L(m + sum n) - L(m) is added: what more tokens make of products
 * that read the weights once for all of them.
 *
 * Between measured points tables are linear, in the second coordinate first. Beyond them it goes on along the
 * last two, never below 0 nor, of prompts, an iteration that does nothing, and that is counted, so that a result says how many of its iterations were
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
