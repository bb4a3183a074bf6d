/* Checksums of datasets in HDF5 files, stored as /checksums/PATH for dataset /PATH. A checksum is
 * the sum of (2 t + 1) XXH3(row t) over a block of KVD_CHECKSUM_ROWS rows. */
#ifndef KVD_COMMON_FILES_CHECKSUMS_H
#define KVD_COMMON_FILES_CHECKSUMS_H

#include "common/files/h5.h"

enum { KVD_CHECKSUM_ROWS = 64 };

/* checksums of a dataset [layer][head][row][...] */
typedef struct {
    char path[32];        /* path of the dataset that the checksums protect */
    const char *row_name; /* axis that counts rows, a string literal: "token" or "dim" */
    bool by_head;         /* the dataset has axes for layers and heads */
    size_t n_layers, n_heads, n_rows, row_bytes, n_blocks;
    /* [n_layers][n_heads][n_blocks] checksums of blocks of rows; NULL if the file has none */
    uint64_t *sum;
} kvd_checksums;

/* Allocates checksums, all 0, of dataset *data, and reserves space for them in a file that is being
 * written. */
int kvd_checksums_reserve(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err);

/* Reads the checksums of a dataset. If there are none, c->sum is NULL. */
int kvd_checksums_load(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err);

void kvd_checksums_release(kvd_checksums *c);

/* Adds n rows of a head, in the file's number type, to its checksums. Thread-safe. */
void kvd_checksums_add(kvd_checksums *c, size_t layer, size_t head, size_t first, size_t n,
                       const void *rows);

/* Sets the checksums of one head to 0, before its rows are written again. */
void kvd_checksums_clear(kvd_checksums *c, size_t layer, size_t head);

/* Combines all checksums c_i into one: the sum of (2 i + 1) c_i. */
uint64_t kvd_checksums_total(const kvd_checksums *c);

int kvd_checksums_write(const kvd_checksums *c, kvd_h5 *f, kvd_err *err);

/* Function that reads n rows of a head, in the file's number type, into `rows`. */
typedef int (*kvd_row_reader)(void *ctx, size_t first, size_t n, void *rows, kvd_err *err);

/* Compares n rows of a head with their checksums. A checksum covers a block of 64 rows; `reader` is
 * called for those rows of a block that are not in `rows`. */
int kvd_checksums_verify(const kvd_checksums *c, const char *file, size_t layer, size_t head,
                         size_t first, size_t n, const void *rows, kvd_row_reader reader, void *ctx,
                         kvd_err *err);

#endif
