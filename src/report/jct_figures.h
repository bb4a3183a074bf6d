/* What the section of job completion time draws, and the table of shares behind its bars. */
#ifndef KVD_REPORT_JCT_FIGURES_H
#define KVD_REPORT_JCT_FIGURES_H

#include "report/jct_rows.h"
#include "report/report.h"

/* Place, method, input and output: the first columns of a table of jobs, and their cells. */
void kvd_jct_size_columns(kvd_table *t);
void kvd_jct_sizes(kvd_table *t, const kvd_jct_entry *e);

/* Bars of every place, in percent of the JCT of none and of the job's own; JCT against input and output length. */
int kvd_jct_figures(const kvd_jct_entries *all, kvd_section *s, kvd_err *err);
/* Parts as the papers' breakdowns have them, in percent of the job's own JCT. */
int kvd_jct_shares(const kvd_jct_entries *all, kvd_section *s, kvd_err *err);

#endif
