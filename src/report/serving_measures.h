/* Numbers that are computed from kvdim/serving files, for the ledger. */
#ifndef KVD_REPORT_SERVING_MEASURES_H
#define KVD_REPORT_SERVING_MEASURES_H

#include "report/measures.h"

/*
 * "serving-WHAT-A-over-B:TRACE", of methods by their names without keys and of Poisson arrivals with the
 * lengths of TRACE; a value for every pair of rows of A and B in one place (model, trace, replicas, chunk):
 *   rate             highest rate of A over that of B, same bound on latency
 *   ttft, tbt, jct   mean of A over that of B less 1, in percent, at the point with the highest rate that is
 *                    within B's highest
 * A value of rows that serve less than 90 % as fast as they arrive says so (`grows`).
 */
bool kvd_serving_measure_known(const char *name);
int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace, kvd_values *out,
                        kvd_err *err);

#endif
