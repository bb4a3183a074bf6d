/* Numbers that are computed from kvdim/jct files, for the ledger. */
#ifndef KVD_REPORT_MEASURES_JCT_MEASURES_H
#define KVD_REPORT_MEASURES_JCT_MEASURES_H

#include "report/measures/measures.h"

/*
 * Measures of jobs that ran on a GPU. METHOD is a name, which covers all its settings, or a name
 * with keys ("zack,p=0.3"), which covers one. PART is a column without "_s" ("decode_restore"). SIZES is
 * "100000x256", input and output tokens, several of them with plus signs between them, or "all".
 *
 *   jct-share-METHOD-PART[+PART]...:SIZES         the parts in percent of the JCT; a job without
 *                                                 any of them does not count, because another
 *                                                 part may do their work
 *   jct-of-prompts-METHOD-PART[+PART]...:SIZES    the parts in percent of the time of prompts
 *   jct-of-steps-METHOD-PART[+PART]...:SIZES      the parts in percent of the time of steps
 *   jct-extra-METHOD-PART[+PART]...:SIZES         the parts less those of none in the same file and
 *                                                 sizes, in percent of the JCT
 *   jct-change-A-over-B:SIZES                     JCT of A over that of B in the same file and
 *                                                 sizes, less 1, in percent
 *   jct-parts-METHOD-PART[+PART]...-over-OTHER:SIZES
 *                                                 the parts over those of OTHER in the same file
 *                                                 and sizes, less 1, in percent
 *   jct-shared-METHOD-PART[+PART]...:SIZES        as jct-share, for jobs whose prompts the GPUs
 *                                                 share by their tokens
 *   jct-shared-change-METHOD-PART[+PART]...-over-OTHER:SIZES
 *                                                 for those jobs, the parts over those of OTHER,
 *                                                 less 1, in percent
 */
bool kvd_jct_measure_known(const char *name);
int kvd_jct_measure(const kvd_results *r, const char *name, const char *sizes, kvd_measured *out,
                    kvd_err *err);

#endif
