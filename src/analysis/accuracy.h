/*
 * kvdim/accuracy: one row per evaluated point under /rows, attention errors per layer and head, and the
 * sums of every sequence, from which all means and intervals can be made again.
 */
#ifndef KVD_ANALYSIS_ACCURACY_H
#define KVD_ANALYSIS_ACCURACY_H

#include "analysis/evaluate.h"
#include "analysis/free_columns.h"
#include "analysis/points.h"
#include "analysis/target.h"
#include "analysis/target_difference.h"
#include "formats/rows.h"

extern const kvd_schema kvd_schema_accuracy;

typedef struct {
    kvd_rows *rows;
    const kvd_config *config;
    char label[64];
    char calibrated
        [64]; /* what the text of calibration activations is called; the owner sets it, empty: none */
    size_t n_sequences, n_tokens;
    /* private: raw samples, a block per row */
    size_t n, capacity;
    double *relative, *zdc;          /* [row][n_layers][n_heads], NaN where it was not measured */
    double *nll, *top1, *kl, *agree; /* [row][n_sequences]                                      */
    double *predictions;             /* [n_sequences]                                           */
    kvd_free_columns *free_columns;  /* NULL: nothing ran free                                  */
    kvd_column *all_columns;
    bool seeds;
    uint64_t seed; /* of intervals */
} kvd_accuracy;

/* f, NULL or borrowed: columns and raw values of its tasks. seeds: columns about several seeds. seed: of f's intervals. */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label, size_t n_sequences,
                      size_t n_tokens, const kvd_free_run *f, bool seeds, uint64_t seed, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/* Bytes per element that 16-bit caches store: what the nominal and padded columns count with. */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/* One evaluated choice. full_rank_error is NaN for none. */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point_source *source,
                     const kvd_point *point, const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/* Of a row: bytes saved, 1 - stored over what the uncompressed cache of this run would have stored. */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

/* Rows and raw samples. */
int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/* And back, into one that is initialised and has no rows; shapes must be those that it was initialised with. */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/* Appends a row of another one of the same shapes. */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/* How much further than `versus` a method keeps the target, as attributes of /target/<name>. */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/* The answers of each text where p was searched, as datasets [text] of the same group. */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text, size_t n_texts,
                                    kvd_err *err);

/* The answer of a search as attributes of /target/<name>. key: what was searched. */
int kvd_accuracy_write_target(kvd_h5 *f, const char *name, const kvd_method *m, const char *key,
                              const kvd_target *t, kvd_err *err);

#endif
