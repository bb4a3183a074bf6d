/*
 * Checksums of datasets that are filled while the model runs: /checksums/PATH protects the dataset
 * /PATH.
 *
 * KVD_CHECKSUM_ROWS rows of a head share one checksum, the sum of (2 t + 1) h_t modulo 2^64, where
 * h_t is the XXH3-64 hash of row t. Rows may be added in any order and from several threads.
 */
#ifndef KVD_COMMON_FILES_CHECKSUMS_H
#define KVD_COMMON_FILES_CHECKSUMS_H

#include "common/files/h5.h"

enum { KVD_CHECKSUM_ROWS = 64 };

/* Checksums of a dataset [layer][head][row][...]. A dataset [row] has one layer and one head. */
typedef struct {
    char path[32]; /* path of the dataset that the checksums protect */
    /* Axis that counts rows, a string literal: "token" or "dim". */
    const char *row_name;
    bool by_head; /* the dataset has axes for layers and heads */
    size_t n_layers, n_heads, n_rows, row_bytes, n_blocks;
    /* [n_layers][n_heads][n_blocks], one per KVD_CHECKSUM_ROWS rows; NULL: none */
    uint64_t *sum;
} kvd_checksums;

/* Prepares zero checksums of the dataset `data` in a file that is being written. */
int kvd_checksums_reserve(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err);

/* Reads the checksums of the dataset `data`. If there are none, returns 0 with c->sum NULL. */
int kvd_checksums_load(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err);

void kvd_checksums_release(kvd_checksums *c);

/* Adds the hashes of n rows of a head, in the file's number type. Thread-safe. */
void kvd_checksums_add(kvd_checksums *c, size_t layer, size_t head, size_t first, size_t n,
                       const void *rows);

/* Clears one head's checksums before its rows are written again. */
void kvd_checksums_clear(kvd_checksums *c, size_t layer, size_t head);

/* Returns the sum over i of (2 i + 1) times checksum i. */
uint64_t kvd_checksums_total(const kvd_checksums *c);

int kvd_checksums_write(const kvd_checksums *c, kvd_h5 *f, kvd_err *err);

/* Reads n rows of the head that `ctx` identifies, in the file's number type. */
typedef int (*kvd_row_reader)(void *ctx, size_t first, size_t n, void *rows, kvd_err *err);

/*
 * Compares n rows of a head with their checksums; `reader` reads further rows that the first and
 * last checksum cover. The message names dataset, layer, head and rows.
 */
int kvd_checksums_verify(const kvd_checksums *c, const char *file, size_t layer, size_t head,
                         size_t first, size_t n, const void *rows, kvd_row_reader reader, void *ctx,
                         kvd_err *err);

#endif
