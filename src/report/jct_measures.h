/* Numbers that are computed from kvdim/jct files, for the ledger. */
#ifndef KVD_REPORT_JCT_MEASURES_H
#define KVD_REPORT_JCT_MEASURES_H

#include "report/measures.h"

/*
 * Of jobs that ran on a GPU, methods by their names, with keys ("zack,p=0.3") that one alone; SIZES is "100000x256", input and output, or "all":
 *   jct-share-METHOD-PART[+PART]...:SIZES   parts ("decode_restore": columns without "_s") in percent of the JCT; none of them
 *                                           ran, none counts: the part behind may do their work
 *   jct-of-prompts-METHOD-PART[+PART]...:SIZES, jct-of-steps-...   the same in percent of the time of prompts, of steps
 *   jct-extra-METHOD-PART[+PART]...:SIZES   the same, of none in the same file and sizes taken off
 *   jct-change-A-over-B:SIZES               JCT of A over that of B in the same file and sizes less 1, in percent
 *   jct-shared-METHOD-PART[+PART]...:SIZES  as jct-share, of jobs whose prompts GPUs share by their tokens
 *   jct-shared-change-METHOD-PART[+PART]...-over-OTHER:SIZES   of such jobs the parts over those of OTHER less 1, in percent
 */
bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_values *out, kvd_err *err);

#endif
