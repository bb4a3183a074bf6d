/*
 * The sections of a report, one function per kind of result. Each adds nothing when there is no file of
 * its kind, and returns 0, or -1 with *err when memory runs out.
 */
#ifndef KVD_REPORT_STUDIES_H
#define KVD_REPORT_STUDIES_H

#include "report/accuracy_rows.h"
#include "report/report.h"
#include "report/results.h"

/* ZACK Fig. 5 and 10, Tables 6 and 7; FDC Fig. 3, Tables 3 and 4; ZDC Fig. 13. */
int kvd_study_spectra(const kvd_results *r, kvd_report *report, kvd_err *err);
/* ZACK Tables 4 and 5, Fig. 18; FDC Table 2, Fig. 14; transfer between texts. */
int kvd_study_similarity(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Overall p against removal rate; kept dimensions per head; what cutting a head costs. */
int kvd_study_rates(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Quality against overall p, the p that keeps a share of accuracy, ZDC Fig. 14, bytes. */
int kvd_study_accuracy(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Into the section of accuracy: fronts of quality against real bytes, and bytes saved at 99 % of the accuracy, texts side by side. */
int kvd_study_pareto(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Into the section of accuracy: calibrating on one text and serving another, and quality against the number of
 * calibration tokens (of the spectrum files that are there). */
int kvd_study_transfer(const kvd_results *r, const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Into the section of accuracy: the smallest cache within a loss, of methods whose settings were tried. */
int kvd_study_settings(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Into the section of accuracy: what ran free; nothing where nothing did. */
int kvd_study_free(const kvd_accuracy_entries *all, kvd_section *s, kvd_err *err);
/* Into the section of accuracy: weights of few bits beside caches of few bits, of files that have both. ZDC Fig. 3. */
int kvd_study_weights(const kvd_results *r, kvd_section *s, kvd_err *err);
/* Into the section of accuracy: settings that kvdim-fit --regression proposed, where they were measured. */
int kvd_study_proposals(const kvd_results *r, kvd_section *s, kvd_err *err);
/* ZDC Fig. 15 and 26: pruning and K-means against sums over all rows. */
int kvd_study_calibration(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Attention kernels: times, speed-up over cuDNN against p, rooflines, scheduling. */
int kvd_study_kernels(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Jobs and what their time goes to, lengths from which on a method pays, replays. FDC Fig. 1 and 2, ZACK Fig. 6. */
int kvd_study_jct(const kvd_results *r, kvd_report *report, kvd_err *err);
/* The first iterations of a trace that kvdim-jct --trace wrote, with their parts and the requests in them; path NULL: nothing. */
int kvd_study_timeline(const char *path, kvd_report *report, kvd_err *err);
/* Simulated serving: latency against rate, highest rates, validation. ZACK Fig. 13-17, FDC Fig. 9-13, ZDC Fig. 19, 21. */
int kvd_study_serving(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Ranges of scores, tokens that layers share, critical tokens: ZDC Fig. 6-8, LeanKV Fig. 1-3. */
int kvd_study_tokens(const kvd_results *r, kvd_report *report, kvd_err *err);
/* Which results are of models with random weights, and what that means. Comes first. */
int kvd_study_random_weights(const kvd_results *r, kvd_report *report, kvd_err *err);
/* What the files were made by and from. */
int kvd_study_provenance(const kvd_results *r, kvd_report *report, kvd_err *err);

#endif
