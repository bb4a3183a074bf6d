/*
 * The sections of a report, one function per kind of result file. A function adds nothing if there
 * is no file of its kind. Returns 0, or -1 with *err if memory runs out.
 */
#ifndef KVD_REPORT_STUDIES_STUDIES_H
#define KVD_REPORT_STUDIES_STUDIES_H

#include "report/measures/ledger.h"
#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/*
 * Adds the first screen of the page and sets the page's title. Must be called before the functions
 * that add other sections.
 */
int kvd_study_summary(const kvd_results *r, const kvd_ledger *l, kvd_report *report, kvd_err *err);
/*
 * Adds the section on singular values: their means over heads, how fast they fall, and how much
 * they vary between heads (ZACK Fig. 5 and 10, Tables 6 and 7; FDC Fig. 3, Tables 3 and 4; ZDC Fig.
 * 13).
 */
int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Counts the cells of a table of mean singular values that the figure of plots/spectra.gp cannot
 * draw, for two kinds of rotation a and b. The page says how many there are.
 */
void kvd_section_spectra(kvd_section *s, const kvd_table *t, kvd_pair a, kvd_pair b);
/*
 * Adds the section on the similarity of rotations from two texts: delta / epsilon, overlap and kept
 * energy for each two texts, and against the number of calibration tokens (ZACK Tables 4 and 5,
 * Fig. 18; FDC Table 2, Fig. 14).
 */
int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the section on kept dimensions: the fraction p of dimensions that is removed as a function
 * of r, the fraction of the sum of singular values that may be removed; the kept dimensions of each
 * head; and the loss from cutting a single head.
 */
int kvd_study_rates(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the section on quality: loss against the removed fraction p, the p that keeps a given
 * fraction of the accuracy, the error of the attention output (ZDC Fig. 14), and the stored bytes
 * of the cache.
 */
int kvd_study_accuracy(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds two parts to the section on accuracy: the settings that no other setting beats in both
 * quality and stored bytes, and the bytes saved at 99 % of the accuracy, with one column per text.
 */
int kvd_study_pareto(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Adds two parts to the section on accuracy: the loss from calibrating on one text and evaluating
 * on another, and quality against the number of calibration tokens, which is read from the spectrum
 * files.
 */
int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                       kvd_err *err);
/*
 * Adds to the section on accuracy the smallest cache within a given loss, for methods of which
 * several settings were measured.
 */
int kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Adds the table of searches for a share of the uncompressed model's score: of top-1 accuracy from
 * files of kvdim-eval, with what their evaluated settings show, or of a task's score from files of
 * kvdim-tasks.
 */
int kvd_study_targets(const kvd_results *r, kvd_result_kind kind, const kvd_accuracy_entries *all,
                      kvd_section *s, kvd_err *err);
/* Adds the section on tasks. Adds nothing if there is no kvdim/tasks file. */
int kvd_study_tasks(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the leaderboard to the section on tasks: one row per method and one column per task, the
 * best methods at three cache sizes, and the mean score against bytes. Adds nothing unless two
 * settings have benchmark scores.
 */
int kvd_study_leaderboard(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Adds tables of generated text, needles and classes to a section. Adds nothing if there are no
 * such results.
 */
int kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Adds to the section on accuracy a comparison of quantised weights with quantised caches, for
 * files that have both (ZDC Fig. 3).
 */
int kvd_study_weights(const kvd_results *r, kvd_section *s, kvd_err *err);
/*
 * Adds to the section on accuracy the settings that kvdim-fit --regression proposed and that were
 * measured.
 */
int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err);
/*
 * Adds the section on calibration with pruned sequences or K-means centroids, compared with all
 * token vectors (ZDC Fig. 15 and 26).
 */
int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the section on attention kernels: times, speed-up over cuDNN against the removed fraction p,
 * rooflines, scheduling.
 */
int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the section on job completion time: jobs with the times of their phases, the prompt and
 * output lengths from which a method is faster, and traces of requests that were run in real time
 * (replays). See FDC Fig. 1 and 2, ZACK Fig. 6.
 */
int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds a figure of the engine's first iterations in a timeline that kvdim-jct --timeline wrote,
 * with their phases and requests. If `path` is NULL, adds nothing.
 */
int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err);
/*
 * Adds the section on simulated serving: latency against request rate, highest rates, validation
 * (ZACK Fig. 13-17, FDC Fig. 9-13, ZDC Fig. 19, 21).
 */
int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the section on token statistics: ranges of attention scores, important tokens that layers
 * have in common, and critical tokens (ZDC Fig. 6-8, LeanKV Fig. 1-3).
 */
int kvd_study_tokens(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the consistency checks of the published tables in folder `paper` of epsilon (mean absolute
 * element of a rotation) and delta (mean absolute difference of two rotations), and the same
 * quantities computed from the similarity files.
 */
int kvd_study_published(const char *paper, const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds one paragraph for each file of the kind whose sweep was interrupted or skipped measurements,
 * because a missing measurement says nothing about speed.
 */
void kvd_study_missing_points(const kvd_results *r, kvd_result_kind kind, kvd_text *words);
/*
 * Adds a list of the results of models with random weights, and explains the limits of such
 * results. Must be called before the functions that add other sections.
 */
int kvd_study_random_weights(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds the section on provenance: programs, machines, commands and inputs of the result files. */
int kvd_study_provenance(const kvd_results *r, kvd_report *report, kvd_err *err);

/*
 * Columns that identify a job in a table: conditions, method, input and output length.
 * kvd_jct_size_columns adds them to a new table; kvd_jct_sizes adds their cells in one table row.
 */
void kvd_jct_size_columns(kvd_table *t);
void kvd_jct_sizes(kvd_table *t, const kvd_report_row *e);

/*
 * Adds figures for every set of conditions (model, machine, batch): bars of the parts of a job in
 * percent of the time of the uncompressed cache and of the job's own time, and curves of job
 * completion time over the input and output length.
 */
int kvd_jct_figures(const kvd_report_rows *all, kvd_section *s, kvd_err *err);
/*
 * Adds the table of the parts of a job that the papers distinguish, in percent of its job
 * completion time.
 */
int kvd_jct_shares(const kvd_report_rows *all, kvd_section *s, kvd_err *err);

#endif
