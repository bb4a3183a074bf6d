/*
 * The kvdim/accuracy table: one row per evaluated point under /rows, attention errors per layer and
 * head, and the sums of every sequence, from which all means and intervals can be computed again.
 */
#ifndef KVD_EVALUATE_ACCURACY_H
#define KVD_EVALUATE_ACCURACY_H

#include "evaluate/evaluate.h"
#include "evaluate/point_columns.h"
#include "evaluate/target.h"
#include "formats/accuracy.h"
#include "formats/rows.h"
#include "methods/points.h"

typedef struct {
    kvd_rows *rows;
    const kvd_config *config;
    char label[64];
    /* Name of the text of the calibration activations, set by the caller; empty means none. */
    char calibrated[64];
    size_t n_sequences, n_tokens;
    double *predictions; /* [n_sequences] */
    bool seeds;
} kvd_accuracy;

/* Initialises a table without rows. seeds: adds columns about several seeds. */
int kvd_accuracy_init(kvd_accuracy *a, const kvd_config *config, const char *label,
                      size_t n_sequences, size_t n_tokens, bool seeds, kvd_err *err);
void kvd_accuracy_release(kvd_accuracy *a);

/* Bytes per element of a 16-bit cache, in which the nominal and padded columns count. */
enum { KVD_ACCURACY_ELEMENT_BYTES = 2 };

/* Adds a row for one evaluated choice. full_rank_error is NaN if it was not measured. */
int kvd_accuracy_add(kvd_accuracy *a, const char *purpose, const kvd_point *point,
                     const kvd_choice *choice, const kvd_quality_summary *summary,
                     double full_rank_error, kvd_err *err);

/*
 * Returns the share of bytes that a row saves: 1 - stored bytes / bytes that the uncompressed cache
 * of this run would have stored.
 */
double kvd_accuracy_saving(const kvd_accuracy *a, size_t row);
kvd_interval kvd_accuracy_top1_share(const kvd_accuracy *a, size_t row);

/* Writes the rows and the raw samples. */
int kvd_accuracy_write(kvd_h5 *f, const kvd_accuracy *a, kvd_err *err);
/*
 * Reads rows and raw samples into *a, which must be initialised and without rows. Fails if the
 * shapes differ from those of *a.
 */
int kvd_accuracy_load(kvd_h5 *f, kvd_accuracy *a, kvd_err *err);
/* Appends a row of another kvd_accuracy of the same shapes. */
int kvd_accuracy_take(kvd_accuracy *a, const kvd_accuracy *from, size_t row, kvd_err *err);

/*
 * Writes the difference between the targets of a method and of `versus` as attributes of
 * /target/<name>.
 */
int kvd_accuracy_write_difference(kvd_h5 *f, const char *name, const char *versus,
                                  const kvd_target_difference_result *d, kvd_err *err);

/*
 * Writes the answers of each text, if p was searched, as datasets [text] of the group
 * /target/<name>.
 */
int kvd_accuracy_write_target_texts(kvd_h5 *f, const char *name, const kvd_target *of_text,
                                    size_t n_texts, kvd_err *err);

/* Writes the answer of a search as attributes of /target/<name>. key: the key that was searched. */
int kvd_accuracy_write_target(kvd_h5 *f, const char *name, const kvd_method *m, const char *key,
                              const kvd_target *t, kvd_err *err);

#endif
