/* Settings that kvdim-fit --regression proposed, where they were measured, beside the Oracle of the same text: ZDC section 8. */
#ifndef KVD_REPORT_PROPOSALS_H
#define KVD_REPORT_PROPOSALS_H

#include "report/measures.h"

typedef struct {
    const kvd_result *file; /* with the proposal */
    size_t proposal;        /* row of it         */
    const kvd_result *accuracy;
    size_t row;            /* where it was measured */
    double asked;          /* loss: perplexity over the uncompressed model's, less 1 */
    kvd_interval measured; /* the same as measured */
    double share;          /* of a 16-bit cache */
    double
        oracle_asked; /* smallest share that was measured of another setting within the loss that was asked for; NaN: none was */
    double oracle_measured; /* within the loss that the proposal has */
} kvd_judged_proposal;

/*
 * Every proposal in every accuracy file of its model that has a row with exactly its numbers. The Oracle is sought among the rows of the same model,
 * text, tokens, prompt and method that are no proposals, in all files. *all is allocated, the caller frees it.
 */
int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err);

/* "proposal-over-oracle": share over oracle_measured, less 1, percent, of those within the sweep's losses. */
int kvd_proposals_measure(const kvd_results *r, kvd_values *out, kvd_err *err);

#endif
