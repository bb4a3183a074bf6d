/* Sections of a report, one function per kind of result file. */
#ifndef KVD_REPORT_STUDIES_STUDIES_H
#define KVD_REPORT_STUDIES_STUDIES_H

#include "common/stats.h"
#include "report/measures/ledger.h"
#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* Adds the first screen of the page and sets its title. Call first. */
int kvd_study_summary(const kvd_results *r, const kvd_ledger *l, kvd_report *report, kvd_err *err);
/* Adds singular values (ZACK paper, Fig. 5 and 10; FDC paper, Fig. 3; ZDC paper, Fig. 13). */
int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds a table with the columns of plots/spectra.gp. */
kvd_table *kvd_section_spectra(kvd_section *s, const char *name, const char *title);
/* Adds the mean singular values of all matrices of a file. */
void kvd_table_spectrum(kvd_table *t, const char *series, const kvd_spectrum *x);
/* Adds a note below the figure that counts the table's points that a logarithmic axis cannot show
 * (zeros). a, b: decomposed matrices of the figure's panels. */
void kvd_section_spectra_panels(kvd_section *s, const kvd_table *t, kvd_pair a, kvd_pair b);
/* Adds similarities of rotations (ZACK paper, Tables 4 and 5, Fig. 18; FDC paper, Table 2). */
int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds kept dimensions, removed fractions, and losses when one head loses dimensions. */
void kvd_study_rates(const kvd_results *r, kvd_report *report);
/* Adds tables and figures of accuracy against removed fraction and cache bytes. `paired`: method to
 * compare with all others, or NULL. */
int kvd_study_accuracy(const kvd_results *r, const char *paired, kvd_report *report, kvd_err *err);
/* Adds the results with the best quality at their bytes (Pareto front). */
int kvd_study_pareto(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Adds the loss from calibrating on another text. */
int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                       kvd_err *err);
/* Adds a table of each method's smallest cache that keeps the accuracy within fixed limits, such as
 * 0.95 of top-1. */
void kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s);
/* Adds a comparison of cache bytes and KL divergence of `method` with every other method on the
 * same sequences. If NULL, adds nothing. */
int kvd_study_paired(const kvd_accuracy_entries *all, const char *method, kvd_section *s,
                     kvd_err *err);

/* bytes and KL divergence of a method with one set of parameters */
typedef struct {
    double bytes;
    const double *kl;                /* KL summed over the predictions of each sequence */
    const kvd_accuracy_entry *entry; /* result row; kvd_paired_bytes_at does not read it */
} kvd_paired_setting;

typedef struct {
    kvd_paired_setting *setting; /* [n] settings of a method, ordered by falling bytes */
    size_t n;
} kvd_paired_curve;

/* number of bootstrap resamples of sequences */
enum { KVD_PAIRED_DRAWS = 2000 };

typedef struct {
    kvd_interval a, b, ratio; /* bytes of two methods at equal KL, and a / b */
    size_t n_reached;         /* number of resamples in which both methods reach the KL */
} kvd_paired_bytes;

/* Returns the bytes at which two methods have KL divergence `kl` (nats), and their ratio, with 95 %
 * intervals. predictions [n]: per sequence. NaN if no results enclose `kl`. */
int kvd_paired_bytes_at(const kvd_paired_curve *a, const kvd_paired_curve *b,
                        const double *predictions, size_t n, double kl, kvd_paired_bytes *out,
                        kvd_err *err);
/* Adds the results of searches for the strongest compression that keeps a share of the score. */
void kvd_study_targets(const kvd_results *r, kvd_result_kind kind, const kvd_accuracy_entries *all,
                       kvd_section *s);
/* Adds tables and figures of benchmark scores by cache bytes and by step time. `link`: bytes per
 * second of a link over which each step would read the cache, or NaN. */
int kvd_study_tasks(const kvd_results *r, double link, kvd_report *report, kvd_err *err);
/* Adds tables of scores of generated texts, hidden pass keys and classified documents. */
void kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s);
/* Compares quantised weights with quantised caches (ZDC paper, Fig. 3). */
void kvd_study_weights(const kvd_results *r, kvd_section *s);
/* Adds results with parameters that kvdim-fit --regression proposed. */
int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err);
/* Compares calibration on fewer or clustered tokens with the full one (ZDC paper, Fig. 15, 26). */
int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err);
int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds job completion times and replayed traces (FDC paper, Fig. 1, 2; ZACK paper, Fig. 6). */
int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds the first iterations of a timeline file, unless `path` is NULL. */
int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err);
/* Adds simulated serving (ZACK paper, Fig. 13 to 17; FDC, 9 to 13; ZDC, 19 and 21). */
int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds attention scores, overlap of important tokens between layers and received attention (ZDC
 * paper, Fig. 6 to 8; LeanKV, Fig. 1 to 3). */
void kvd_study_tokens(const kvd_results *r, kvd_report *report);
/* Checks numbers that the papers print for rotation matrices (mean element, mean difference to a
 * reference) in folder `paper` for contradictions. */
int kvd_study_published(const char *paper, const kvd_results *r, kvd_report *report, kvd_err *err);
/* Appends a sentence on sweeps that were interrupted or could not run all measurements. */
void kvd_study_missing_points(const kvd_results *r, kvd_result_kind kind, kvd_text *words);
/* Lists results of random weights. Call after kvd_study_summary, before other sections. */
void kvd_study_random_weights(const kvd_results *r, kvd_report *report);
void kvd_study_provenance(const kvd_results *r, kvd_report *report);

#endif
