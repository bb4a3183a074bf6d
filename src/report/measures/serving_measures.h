/* Numbers that are computed from kvdim/serving files, for the ledger. */
#ifndef KVD_REPORT_MEASURES_SERVING_MEASURES_H
#define KVD_REPORT_MEASURES_SERVING_MEASURES_H

#include "report/measures/measures.h"

/*
 * "serving-WHAT-A-over-B:TRACE", of methods by their names without keys and of Poisson arrivals
 * with the lengths of TRACE. Rows of A and B are compared if they differ in method and rate alone
 * (same.h).
 *
 *   ttft, tbt, jct   Mean of A over that of B less 1, in percent: one value per load, which is the
 *                    rate of arrivals over the highest rate of B. Loads above 1 are left out.
 *   rate             Rate at which A has the normalised latency that B has at the load, over B's
 *                    rate, by linear interpolation between the points of A; one value per load. If
 *                    A stays below that latency at all of its points, its highest rate counts; if A
 *                    is above it at all of them, the value is 0.
 *   top              Highest rate of A over that of B under the same bound on latency: one value.
 *   throughput       Output tokens per second of A over those of B at one point, if more requests
 *                    arrive than B serves and memory is short: B runs at most half of max_batch at
 *                    once. One value per point of B.
 *   running          Mean number of requests that A runs at once over that of B, at those points.
 *
 * The values of one A, one B and one place are a curve, by rising load (kvd_measured_value.load). A
 * value of rows that serve less than 90 % as fast as requests arrive is marked (`grows`).
 */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err);

#endif
