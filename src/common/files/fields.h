/* Reads attributes and shapes of HDF5 files and checks them against limits. */
#ifndef KVD_COMMON_FILES_FIELDS_H
#define KVD_COMMON_FILES_FIELDS_H

#include "common/files/h5.h"

/* Reads a text attribute into to[size]. A longer text is an error. */
int kvd_field_text(kvd_h5 *f, const char *where, const char *name, char *to, size_t size,
                   kvd_err *err);

/* Reads a text attribute of the root group, or "" if it is missing. */
int kvd_field_text_or_none(kvd_h5 *f, const char *name, char *to, size_t size, kvd_err *err);

/* Reads an integer attribute, which must be in [lo, hi]. */
int kvd_field_int(kvd_h5 *f, const char *where, const char *name, int64_t lo, int64_t hi,
                  int64_t *out, kvd_err *err);

/* Read a size or a small integer, which must be in [lo, hi]. */
int kvd_field_size(kvd_h5 *f, const char *where, const char *name, size_t lo, size_t hi,
                   size_t *out, kvd_err *err);
int kvd_field_small(kvd_h5 *f, const char *where, const char *name, int lo, int hi, int *out,
                    kvd_err *err);

/* Reads a dataset's number of layers, which must be in [1, most]. */
int kvd_field_layers(kvd_h5 *f, const char *path, int rank, int most, int *n_layers, kvd_err *err);
/* kvd_field_write_tokens writes the number of tokens from which a file was computed.
 * kvd_field_tokens reads this number, and fails if it is below `least`. */
int kvd_field_write_tokens(kvd_h5 *f, const char *long_name, size_t n_tokens, kvd_err *err);
int kvd_field_tokens(kvd_h5 *f, size_t least, size_t *n_tokens, kvd_err *err);
/* Writes n real numbers without a unit as a one-dimensional dataset. */
int kvd_field_write_reals(kvd_h5 *f, const char *path, const char *long_name, const char *axis,
                          const double *x, size_t n, kvd_err *err);

/* Writes n texts as fixed-length UTF-8, padded with zero bytes. */
int kvd_field_write_texts(kvd_h5 *f, const char *path, const char *long_name, const char *axis,
                          const char *const *text, size_t n, kvd_err *err);
/* Copies the n fixed-length texts of a dataset to text [n], which the caller frees. Fails if the
 * dataset has another number of texts. */
int kvd_field_read_texts(hid_t dataset, const char *file, const char *path, size_t n, char **text,
                         kvd_err *err);

/* Fails unless the dataset `path` has exactly the dimensions want [rank]. */
int kvd_field_shape(kvd_h5 *f, const char *path, int rank, const hsize_t *want, kvd_err *err);

/* Writes the hash of texts to attributes of the file. The part before "+" becomes attribute
 * `corpus_hash`. The part after "+", if there is one, becomes attribute `corpus_start`. */
int kvd_field_write_corpus_hash(kvd_h5 *f, const char *hash, kvd_err *err);
/* Reads a hash of texts from two attributes and joins them by "+": `corpus_hash`, of the texts'
 * tokens, and `corpus_start`, of the texts' first bytes. If an older file lacks `corpus_start`, "+"
 * is omitted too. */
int kvd_field_corpus_hash(kvd_h5 *f, char hash[KVD_CORPUS_HASH_TEXT], kvd_err *err);
/* Combines the hash `sum` with the hash of another text. The order of texts does not matter. */
void kvd_field_add_hash(char *sum, size_t size, const char *other);
/* Joins labels: "a" and "b" become "a+b". Equal labels are not joined. */
void kvd_field_add_label(char *sum, size_t size, const char *other);

#endif
