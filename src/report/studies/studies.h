/* The sections of a report, one function per kind of result file; without files, no section. */
#ifndef KVD_REPORT_STUDIES_STUDIES_H
#define KVD_REPORT_STUDIES_STUDIES_H

#include "common/stats.h"
#include "report/measures/ledger.h"
#include "report/report.h"
#include "report/results.h"
#include "report/rows.h"

/* Adds the first screen of the page and sets its title. Must be called first. */
int kvd_study_summary(const kvd_results *r, const kvd_ledger *l, kvd_report *report, kvd_err *err);
/* Adds singular values (ZACK paper, Fig. 5 and 10; FDC paper, Fig. 3; ZDC paper, Fig. 13). */
int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds a table with the columns that the script plots/spectra.gp draws. */
kvd_table *kvd_section_spectra(kvd_section *s, const char *name, const char *title);
/*
 * Adds rows with the mean singular values of all matrices that a file decomposes (such as Q and K
 * together) to a table of kvd_section_spectra.
 */
void kvd_table_spectrum(kvd_table *t, const char *series, const kvd_spectrum *x);
/*
 * Notes which cells of table t the script plots/spectra.gp cannot draw. a and b name the decomposed
 * matrices (such as V alone) that its panels show.
 */
void kvd_section_spectra_panels(kvd_section *s, const kvd_table *t, kvd_pair a, kvd_pair b);
/* Adds similarities of rotations (ZACK paper, Tables 4 and 5, Fig. 18; FDC paper, Table 2). */
int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds kept dimensions of heads, removed fractions against removal rates, and losses when one head
 * loses dimensions.
 */
void kvd_study_rates(const kvd_results *r, kvd_report *report);
/*
 * Adds prediction quality against removed fraction and bytes. `paired` is a method to compare with
 * all others, or NULL.
 */
int kvd_study_accuracy(const kvd_results *r, const char *paired, kvd_report *report, kvd_err *err);
/* Adds the result rows with the best quality at their stored bytes (Pareto front). */
int kvd_study_pareto(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Adds a table of the loss that results from calibrating on another text. */
int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s,
                       kvd_err *err);
/* Adds a table of the smallest cache of each method within a given loss. */
void kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s);
/*
 * Compares `method` with every other method on the same sequences. Adds nothing if `method` is
 * NULL.
 */
int kvd_study_paired(const kvd_accuracy_entries *all, const char *method, kvd_section *s,
                     kvd_err *err);

/*
 * Bytes and KL divergence of a method with one set of parameters, for the comparison of two
 * methods.
 */
typedef struct {
    double bytes;
    const double *kl;                /* KL summed over the predictions of each sequence */
    const kvd_accuracy_entry *entry; /* result row; kvd_paired_bytes_at does not read it */
} kvd_paired_setting;

typedef struct {
    kvd_paired_setting *setting; /* [n] settings of a method, ordered by falling bytes */
    size_t n;
} kvd_paired_curve;

/* Number of bootstrap resamples of sequences in the comparison of two methods. */
enum { KVD_PAIRED_DRAWS = 2000 };

typedef struct {
    kvd_interval a, b, ratio; /* bytes of two methods at equal KL, and a / b */
    size_t n_reached;         /* number of resamples in which both methods reach the KL */
} kvd_paired_bytes;

/*
 * Computes the bytes at which two methods have a KL divergence of `kl` nats, and the ratio of these
 * bytes, with 95 % intervals over resamples. predictions [n]: number per sequence. NaN if no
 * measured results enclose `kl`.
 */
int kvd_paired_bytes_at(const kvd_paired_curve *a, const kvd_paired_curve *b,
                        const double *predictions, size_t n, double kl, kvd_paired_bytes *out,
                        kvd_err *err);
/*
 * Adds the searches for the strongest compression that keeps a fraction of the uncompressed score.
 */
void kvd_study_targets(const kvd_results *r, kvd_result_kind kind, const kvd_accuracy_entries *all,
                       kvd_section *s);
/*
 * Adds benchmark scores against the bytes of the cache and against times of decode steps. link:
 * bytes per second of a modelled link to the cache, or NaN for none.
 */
int kvd_study_tasks(const kvd_results *r, double link, kvd_report *report, kvd_err *err);
/* Appends a section on freely generated answers: texts, needles (hidden facts) and classes. */
void kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s);
/* Adds a comparison of quantised weights with quantised caches (Fig. 3 of the ZDC paper). */
void kvd_study_weights(const kvd_results *r, kvd_section *s);
/* Adds the rows with parameter values that kvdim-fit --regression proposed. */
int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err);
/*
 * Adds a comparison of calibration on pruned or clustered vectors with calibration on all vectors
 * (ZDC paper, Fig. 15 and 26).
 */
int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err);
int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds job completion times and replayed traces (FDC paper, Fig. 1, 2; ZACK paper, Fig. 6). */
int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err);
/*
 * Adds the first iterations of a timeline file (kvdim-jct --timeline). Does nothing if `path` is
 * NULL.
 */
int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err);
/* Adds simulated serving (papers ZACK, Fig. 13 to 17; FDC, Fig. 9 to 13; ZDC, Fig. 19 and 21). */
int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Adds token statistics (papers ZDC, Fig. 6 to 8; LeanKV, Fig. 1 to 3). */
void kvd_study_tokens(const kvd_results *r, kvd_report *report);
/* Adds a check of the papers' tables of epsilon and delta (folder `paper`) for consistency. */
int kvd_study_published(const char *paper, const kvd_results *r, kvd_report *report, kvd_err *err);
/* Appends the names of sweeps that were interrupted or that left out measurements. */
void kvd_study_missing_points(const kvd_results *r, kvd_result_kind kind, kvd_text *words);
/*
 * Adds a list of results of models with random weights. Must be called after kvd_study_summary and
 * before other sections.
 */
void kvd_study_random_weights(const kvd_results *r, kvd_report *report);
void kvd_study_provenance(const kvd_results *r, kvd_report *report);

#endif
