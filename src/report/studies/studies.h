/*
 * The sections of a report, one function per kind of result. Each adds nothing when there is no
 * file of its kind, and returns 0, or -1 with *err when memory runs out.
 */
#ifndef KVD_REPORT_STUDIES_STUDIES_H
#define KVD_REPORT_STUDIES_STUDIES_H

#include "report/measures/ledger.h"
#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* Adds the first screen of the page and its title. Must be called first. */
int kvd_study_summary(const kvd_results *r, const kvd_ledger *l, kvd_report *report, kvd_err *err);
/* Adds spectra: ZACK Fig. 5 and 10, Tables 6 and 7; FDC Fig. 3, Tables 3 and 4; ZDC Fig. 13. */
int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Counts the mean singular values of pairs a and b in a table that spectra.gp cannot draw. */
void kvd_section_spectra(kvd_section *s, const kvd_table *t, kvd_pair a, kvd_pair b);
/* Adds similarity: ZACK Tables 4 and 5, Fig. 18; FDC Table 2, Fig. 14; transfer between texts. */
int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds overall p against removal rate, kept dimensions per head, and the loss from cutting a head.
 */
int kvd_study_rates(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds quality against overall p, the p that keeps a share of accuracy, ZDC Fig. 14, bytes. */
int kvd_study_accuracy(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds to the section of accuracy: fronts of quality against real bytes, and bytes saved at 99 % of
 * the accuracy, with one column per text.
 */
int kvd_study_pareto(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Adds to the section of accuracy: loss from calibrating on one text and serving another, and
 * quality against the number of calibration tokens, which the spectrum files among the results
 * give.
 */
int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                       kvd_err *err);
/*
 * Adds to the section of accuracy: the smallest cache within a loss, for methods of which several
 * settings were tried.
 */
int kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Adds the section of kvdim-tasks; nothing if no file is of kvdim/tasks. */
int kvd_study_tasks(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds to the section of kvdim-tasks: methods down, tasks across, the best methods at three sizes,
 * and the mean score against bytes. Adds nothing unless two points have scores of benchmarks.
 */
int kvd_study_leaderboard(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Adds tables of the tasks among the entries to a section; nothing if there are none. */
int kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Adds to the section of accuracy: weights of few bits compared with caches of few bits, for files
 * that have both (ZDC Fig. 3).
 */
int kvd_study_weights(const kvd_results *r, kvd_section *s, kvd_err *err);
/*
 * Adds to the section of accuracy: settings that kvdim-fit --regression proposed and that were
 * measured.
 */
int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err);
/* Adds ZDC Fig. 15 and 26: pruning and K-means compared with sums over all rows. */
int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds attention kernels: times, speed-up over cuDNN against p, rooflines, scheduling. */
int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds jobs and the parts of their time, the lengths from which a method is faster, and replays:
 * FDC Fig. 1 and 2, ZACK Fig. 6.
 */
int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the first iterations of a trace that kvdim-jct --timeline wrote, with their parts and
 * requests. If path is NULL, adds nothing.
 */
int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err);
/*
 * Adds simulated serving: latency against rate, highest rates, validation. ZACK Fig. 13-17, FDC
 * Fig. 9-13, ZDC Fig. 19, 21.
 */
int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds ranges of scores, tokens that layers share, and critical tokens: ZDC Fig. 6-8, LeanKV Fig.
 * 1-3.
 */
int kvd_study_tokens(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the checks of the published tables of the folder `paper`, and the values of their readings
 * in the similarity files.
 */
int kvd_study_published(const char *paper, const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds one paragraph for each file of the kind whose sweep was interrupted or left out points: a
 * missing point did not run, which does not mean that it was slow.
 */
void kvd_study_missing_points(const kvd_results *r, kvd_result_kind kind, kvd_text *words);
/*
 * Adds a list of the results of models with random weights, and the limits of such results. Must be
 * called before the other sections.
 */
int kvd_study_random_weights(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds programs, machines, commands and inputs of the files. */
int kvd_study_provenance(const kvd_results *r, kvd_report *report, kvd_err *err);

/* Figures of the section on job completion time, and the table of shares that its bars show. */

/*
 * Adds the first columns of a table of jobs (place, method, input and output length) and their
 * cells.
 */
void kvd_jct_size_columns(kvd_table *t);
void kvd_jct_sizes(kvd_table *t, const kvd_report_row *e);

/*
 * Adds the bars of every place, in percent of the JCT of none and of the job's own JCT, and the
 * curves of JCT over input and output length.
 */
int kvd_jct_figures(const kvd_report_rows *all, kvd_section *s, kvd_err *err);
/* Adds the table of the papers' parts, in percent of the job's own JCT. */
int kvd_jct_shares(const kvd_report_rows *all, kvd_section *s, kvd_err *err);

#endif
