/* Functions that each add a section, a table or a figure to a report. */
#ifndef KVD_REPORT_STUDIES_STUDIES_H
#define KVD_REPORT_STUDIES_STUDIES_H

#include "common/stats.h"
#include "report/measures/ledger.h"
#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* Adds the summary at the top of the page and sets the page's title. Call it before the functions
 * that add other sections. */
int kvd_study_summary(const kvd_results *r, const kvd_ledger *l, kvd_report *report, kvd_err *err);
/* Adds a report section on singular values. */
int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds an empty table of singular values, with the columns that the gnuplot script plots/spectra.gp
 * reads, and returns it. */
kvd_table *kvd_section_spectra(kvd_section *s, const char *name, const char *title);
/* Appends the singular values in a spectrum file, as means over the heads, to the table. */
void kvd_table_spectrum(kvd_table *t, const char *series, const kvd_spectrum *x);
/* Adds a note below the latest figure of the section: how many singular values the figure omits
 * because they are 0. a, b: the matrices whose singular values it shows. */
void kvd_section_spectra_panels(kvd_section *s, const kvd_table *t, kvd_pair a, kvd_pair b);
/* Adds a report section that compares rotation matrices computed from different texts. */
int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds a report section on how many dimensions each head keeps, and on the resulting KL
 * divergence. */
void kvd_study_rates(const kvd_results *r, kvd_report *report);
/* Adds tables and figures of accuracy against the fraction of dimensions that is removed, and
 * against cache bytes. `paired`: method to compare with all others, or NULL for no comparison. */
int kvd_study_accuracy(const kvd_results *r, const char *paired, kvd_report *report, kvd_err *err);
/* Adds the accuracy results that no other result beats in both accuracy and cache bytes (Pareto
 * front). */
int kvd_study_pareto(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Adds a comparison of methods' accuracies after calibration on the evaluated text and after
 * calibration on another text. */
int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                       kvd_err *err);
/* Adds a table of each method's smallest cache within fixed limits on the loss, such as 95 % of the
 * uncompressed model's top-1 accuracy. */
void kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s);
/* Compares `method` with every other method that was measured on the same sequences: cache bytes
 * and KL divergence. If `method` is NULL, adds nothing. */
int kvd_study_paired(const kvd_accuracy_entries *all, const char *method, kvd_section *s,
                     kvd_err *err);

/* cache bytes and KL divergence of a method with one set of parameters */
typedef struct {
    double bytes;
    const double *kl;                /* KL summed over the predictions of each sequence */
    const kvd_accuracy_entry *entry; /* result row; kvd_paired_bytes_at does not read it */
} kvd_paired_setting;

typedef struct {
    kvd_paired_setting *setting; /* [n] settings of a method, ordered by falling bytes */
    size_t n;
} kvd_paired_curve;

/* number of bootstrap resamples of the sequences, from which intervals are computed */
enum { KVD_PAIRED_DRAWS = 2000 };

typedef struct {
    kvd_interval a, b, ratio; /* bytes of two methods at equal KL, and a / b */
    size_t n_reached;         /* number of resamples in which both methods reach the KL */
} kvd_paired_bytes;

/* Interpolates the cache bytes of two methods at KL divergence `kl` (nats per prediction). Writes
 * NaN for a method unless it was measured both below and above `kl`. Intervals have 95 %
 * confidence. predictions [n]: number of predictions in each sequence. */
int kvd_paired_bytes_at(const kvd_paired_curve *a, const kvd_paired_curve *b,
                        const double *predictions, size_t n, double kl, kvd_paired_bytes *out,
                        kvd_err *err);
/* Adds the results of searches (option --target) for the strongest compression that keeps a given
 * share of the uncompressed model's accuracy. */
void kvd_study_targets(const kvd_results *r, kvd_result_kind kind, const kvd_accuracy_entries *all,
                       kvd_section *s);
/* Adds tables and figures of benchmark scores against cache bytes and against the time of a decode
 * step. `link`: bytes per second of a link over which each step would read the cache; NaN for no
 * link. */
int kvd_study_tasks(const kvd_results *r, double link, kvd_report *report, kvd_err *err);
/* Adds tables of scores of three kinds of tasks: generating text, finding a pass key hidden in a
 * text, and classifying documents. */
void kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s);
/* Adds a table that compares the accuracy of quantised weights with the accuracy of quantised
 * caches. */
void kvd_study_weights(const kvd_results *r, kvd_section *s);
/* Adds a table of loss and cache bytes, measured with parameters from kvdim-fit --regression. */
int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err);
/* Adds a report section on calibration with fewer tokens, or with K-means centroids of tokens. */
int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err);
int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds a report section on job completion times, for single jobs and for request traces. */
int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds to the report a figure of the first iterations that timeline file `path` records (kvdim-jct
 * --timeline). If `path` is NULL, adds nothing. */
int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err);
/* Adds a report section on simulated servers (kvdim-serve). */
int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds a report section on attention to tokens: which tokens are important, and whether layers
 * agree on them. */
void kvd_study_tokens(const kvd_results *r, kvd_report *report);
/* Adds a section that checks whether published numbers about rotation matrices contradict each
 * other. `paper`: folder with the tables of the papers on ZACK and FDC. */
int kvd_study_published(const char *paper, const kvd_results *r, kvd_report *report, kvd_err *err);
/* Appends a sentence for each result file that lacks planned measurements, because the run was
 * interrupted or could not do them all. */
void kvd_study_missing_points(const kvd_results *r, kvd_result_kind kind, kvd_text *words);
/* Adds a list of results of models with random weights. Call it after kvd_study_summary and before
 * the functions that add other sections. */
void kvd_study_random_weights(const kvd_results *r, kvd_report *report);
void kvd_study_provenance(const kvd_results *r, kvd_report *report);

#endif
