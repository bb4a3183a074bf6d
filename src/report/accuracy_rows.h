/*
 * Rows of all accuracy files in one list, sorted into series that figures draw. Those calibrated on fewer rows, by a spectrum
 * among the results, stand in a section of their own (report/calibration.h). Single seeds of a point are left out: its row is their mean; and so are
 * weights of few bits, which are no method of the cache.
 */
#ifndef KVD_REPORT_ACCURACY_ROWS_H
#define KVD_REPORT_ACCURACY_ROWS_H

#include "report/results.h"

typedef struct {
    const kvd_result *file;
    size_t row;
    char method
        [KVD_LABEL]; /* method, with a side cut alone, and model, rule, cache type, prompt or predictions where they tell rows apart */
    char series[KVD_LABEL]; /* the same with the calibration where rows differ in it              */
} kvd_accuracy_entry;

typedef struct {
    kvd_accuracy_entry *item; /* by label, series, p; the uncompressed model first */
    size_t n;
    const char **label; /* distinct evaluated texts */
    size_t n_labels;
} kvd_accuracy_entries;

int kvd_accuracy_collect(const kvd_results *r, kvd_accuracy_entries *all, kvd_err *err);
void kvd_accuracy_entries_release(kvd_accuracy_entries *all);

const char *kvd_entry_text(const kvd_accuracy_entry *e, const char *column);
double kvd_entry_real(const kvd_accuracy_entry *e, const char *column);
/* True for a row of the uncompressed model. */
bool kvd_entry_is_none(const kvd_accuracy_entry *e);
/* "h2o.heavy = 0.1": where a row stands along the key that trades bytes for quality; empty where it says nothing. */
void kvd_entry_setting(const kvd_accuracy_entry *e, char *text, size_t size);
/* Bytes saved: 1 - stored over what the uncompressed cache of the run would have stored. */
double kvd_entry_saving(const kvd_accuracy_entry *e);
/* The last entry of the series and label that item `first` begins. */
size_t kvd_entry_last(const kvd_accuracy_entries *all, size_t first);

#endif
