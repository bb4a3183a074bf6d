/*
 * The sections of a report, one function per kind of result file. A function adds nothing if there
 * is no file of its kind. Returns 0, or -1 with *err if memory runs out.
 */
#ifndef KVD_REPORT_STUDIES_STUDIES_H
#define KVD_REPORT_STUDIES_STUDIES_H

#include "common/stats.h"
#include "report/measures/ledger.h"
#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* Adds the first screen of the page and sets the page's title. Must be called first. */
int kvd_study_summary(const kvd_results *r, const kvd_ledger *l, kvd_report *report, kvd_err *err);
/*
 * Adds singular values (ZACK Fig. 5 and 10, Tables 6 and 7; FDC Fig. 3, Tables 3 and 4; ZDC Fig.
 * 13).
 */
int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Counts the cells of t, a table of mean singular values, that plots/spectra.gp cannot draw, and
 * adds a note. a and b are the kinds of rotation in the table.
 */
void kvd_section_spectra(kvd_section *s, const kvd_table *t, kvd_pair a, kvd_pair b);
/*
 * Adds the similarity of rotations from two texts (ZACK Tables 4 and 5, Fig. 18; FDC Table 2, Fig.
 * 14).
 */
int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds three things: the kept dimensions of each head, the curve of the removed fraction p of
 * dimensions over the removal rate r, and the loss from removing dimensions of a single head.
 */
int kvd_study_rates(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds quality against the removed fraction p, the error of the attention output (ZDC Fig. 14), and
 * the bytes of the cache. `paired` is the method (or NULL) that kvd_study_paired compares with all
 * others. If `paired` is not NULL, the function fails unless the results have that method.
 */
int kvd_study_accuracy(const kvd_results *r, const char *paired, kvd_report *report, kvd_err *err);
/*
 * Adds the choices of parameters that are on the Pareto front of quality and stored bytes (no other
 * choice is better in both), and the bytes saved at 99 % of the accuracy.
 */
int kvd_study_pareto(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Adds the loss from calibrating on another text, and quality against the number of calibration
 * tokens.
 */
int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                       kvd_err *err);
/*
 * Adds the smallest cache within a given loss, for methods measured with several parameter values.
 */
int kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/*
 * Compares `method` with every other method that was evaluated on the same sequences. Adds nothing
 * if `method` is NULL.
 */
int kvd_study_paired(const kvd_accuracy_entries *all, const char *method, kvd_section *s,
                     kvd_err *err);

/* One measured setting of a method. */
typedef struct {
    double bytes;
    const double *kl; /* KL summed over the predictions of each sequence, [n sequences] */
    const kvd_accuracy_entry *entry; /* result row; kvd_paired_bytes_at does not read it */
} kvd_paired_setting;

typedef struct {
    kvd_paired_setting *setting; /* settings of a method in the order of falling bytes, [n] */
    size_t n;
} kvd_paired_curve;

/* Number of resamples of sequences in the comparison of two methods. */
enum { KVD_PAIRED_DRAWS = 2000 };

typedef struct {
    kvd_interval a, b, ratio; /* bytes of two methods at equal KL, and a / b */
    size_t n_reached;         /* number of resamples in which both methods reach the KL */
} kvd_paired_bytes;

/*
 * Computes the bytes of two methods at a KL of `kl` nats per prediction, and their ratio, with 95 %
 * percentile intervals over resamples of the n sequences. Both methods use the same resamples, so
 * the difficulty of a resample cancels in the ratio. predictions [n]: predictions of each sequence.
 *
 * Bytes are linear in log(KL) between two neighbouring settings and never extrapolated. If no two
 * settings of a method have KLs below and above `kl`, a value is NaN. An interval is NaN if a
 * resample has no such two settings, or if n is less than KVD_BOOTSTRAP_CLUSTERS.
 */
int kvd_paired_bytes_at(const kvd_paired_curve *a, const kvd_paired_curve *b,
                        const double *predictions, size_t n, double kl, kvd_paired_bytes *out,
                        kvd_err *err);
/*
 * Adds the table of the searches for the strongest compression that keeps a fraction of the
 * uncompressed model's score. In files of kvdim-eval the score is top-1 accuracy, in files of
 * kvdim-tasks the score of a task.
 */
int kvd_study_targets(const kvd_results *r, kvd_result_kind kind, const kvd_accuracy_entries *all,
                      kvd_section *s, kvd_err *err);
/*
 * Adds benchmark scores of the methods against the bytes of the cache. If kvdim/jct files have
 * decode steps of the same methods, adds also the scores against the times of these steps. Adds
 * nothing if there is no kvdim/tasks file.
 */
int kvd_study_tasks(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds tables of the quality of generated text, of needles (facts hidden in a text) and of
 * classification. Adds nothing if there are no such results.
 */
int kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Compares quantised weights with quantised caches, for files that have both (ZDC Fig. 3). */
int kvd_study_weights(const kvd_results *r, kvd_section *s, kvd_err *err);
/* Adds the parameters that kvdim-fit --regression proposed and that were measured. */
int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err);
/*
 * Compares calibration with pruned sequences or K-means centroids with that on all token vectors
 * (ZDC Fig. 15 and 26).
 */
int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err);
int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds job completion times and replayed traces of requests (FDC Fig. 1 and 2, ZACK Fig. 6). */
int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds a figure of the first iterations in a timeline of kvdim-jct --timeline. If `path` is NULL,
 * adds nothing.
 */
int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err);
/* Adds simulated serving (ZACK Fig. 13-17, FDC Fig. 9-13, ZDC Fig. 19, 21). */
int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds token statistics (ZDC Fig. 6-8, LeanKV Fig. 1-3). */
int kvd_study_tokens(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Checks the papers' tables of epsilon and delta (folder `paper`) for consistency, and adds the
 * values of epsilon and delta from the similarity files.
 */
int kvd_study_published(const char *paper, const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Appends to *words the name of each sweep of measurements that was interrupted or that left out
 * measurements. The reader must know this, because a missing measurement says nothing about speed.
 */
void kvd_study_missing_points(const kvd_results *r, kvd_result_kind kind, kvd_text *words);
/*
 * Lists the results of models with random weights. Must be called after kvd_study_summary and
 * before the functions that add other sections.
 */
int kvd_study_random_weights(const kvd_results *r, kvd_report *report, kvd_err *err);
int kvd_study_provenance(const kvd_results *r, kvd_report *report, kvd_err *err);

/*
 * Add what identifies a job to a table: conditions, method, input and output length.
 * kvd_jct_size_columns adds the columns, and kvd_jct_sizes the cells of one row.
 */
void kvd_jct_size_columns(kvd_table *t);
void kvd_jct_sizes(kvd_table *t, const kvd_report_row *e);

/*
 * Adds a bar chart of the parts of a job's time, in percent of the time with the uncompressed
 * cache, and curves over input and output length.
 */
int kvd_jct_figures(const kvd_report_rows *all, kvd_section *s, kvd_err *err);
/*
 * Adds a table of the percentage of the job completion time that is spent in each phase. The phases
 * are those that the papers distinguish.
 */
int kvd_jct_shares(const kvd_report_rows *all, kvd_section *s, kvd_err *err);

#endif
