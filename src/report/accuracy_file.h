/* Reads what kvdim-eval writes. */
#ifndef KVD_REPORT_ACCURACY_FILE_H
#define KVD_REPORT_ACCURACY_FILE_H

#include "report/results.h"

/* f is open. Ratios of perplexity get their interval here, from the sums of every sequence. */
int kvd_accuracy_read(kvd_accuracy_result *a, kvd_h5 *f, kvd_err *err);
void kvd_accuracy_result_release(kvd_accuracy_result *a);

#endif
