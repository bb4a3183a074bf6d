/* Methods that draw random numbers: one point under several seeds. */
#ifndef KVD_ANALYSIS_SEEDS_H
#define KVD_ANALYSIS_SEEDS_H

#include "analysis/evaluate.h"

/*
 * Means over n evaluated choices of one point that differ in their seeds: sums of every sequence and values of every item are
 * averaged, so that intervals are of what the method does on average; what was counted is added, as are seconds and errors of attention outputs;
 * the spread over seeds is that of the means over sequences or items. *mean is zeroed; its plan is borrowed from the first; kvd_choice_release.
 */
int kvd_choice_mean(const kvd_choice *choice, size_t n, const kvd_evaluator *e, const kvd_free_run *f,
                    kvd_choice *mean, kvd_err *err);

#endif
