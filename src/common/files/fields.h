/*
 * Reads attributes and shapes of HDF5 files and checks them against limits. Every reader of a
 * schema uses these functions.
 */
#ifndef KVD_COMMON_FILES_FIELDS_H
#define KVD_COMMON_FILES_FIELDS_H

#include "common/files/h5.h"

/*
 * Reads the text attribute `name` of the object `where` into to[size]. A longer text is an error.
 */
int kvd_field_text(kvd_h5 *f, const char *where, const char *name, char *to, size_t size,
                   kvd_err *err);

/*
 * Reads a text attribute of the file's root group into to[size]. If it is missing, as in files
 * written before the attribute existed, the text is "".
 */
int kvd_field_text_or_none(kvd_h5 *f, const char *name, char *to, size_t size, kvd_err *err);

/* Reads a whole number from an attribute. Fails unless it is within [lo, hi]. */
int kvd_field_int(kvd_h5 *f, const char *where, const char *name, int64_t lo, int64_t hi,
                  int64_t *out, kvd_err *err);

/*
 * Writes n texts as a dataset of fixed-length UTF-8, zero-padded to the longest text, which every
 * reader of HDF5 supports.
 */
int kvd_field_write_texts(kvd_h5 *f, const char *path, const char *long_name, const char *axis,
                          const char *const *text, size_t n, kvd_err *err);
/*
 * Fills text [n], which must be NULL, with copies of the texts of an open dataset. Fails if they
 * have no fixed length or are not UTF-8. The caller must free every text, also after a failure.
 * `file` and `path` are for messages.
 */
int kvd_field_read_texts(hid_t dataset, const char *file, const char *path, size_t n, char **text,
                         kvd_err *err);

/* Fails unless the dataset `path` exists and its dimensions are exactly want [rank]. */
int kvd_field_shape(kvd_h5 *f, const char *path, int rank, const hsize_t *want, kvd_err *err);

/*
 * Replaces *sum, the hash of a set of calibration texts, by the hash of the union of that set and
 * of the set with hash `other`. The order in which files are added has no effect.
 */
void kvd_field_add_hash(char *sum, size_t size, const char *other);
/*
 * Appends the label of a text (its name in results) to the label in `sum`: "a" and "b" become
 * "a+b", cut to `size` bytes. Two equal labels stay one.
 */
void kvd_field_add_label(char *sum, size_t size, const char *other);

#endif
