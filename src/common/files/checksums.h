/*
 * Checksums of rows that HDF5 stores without a filter, and thus without a checksum of its own: the
 * datasets of an activations or fisher file that are filled while the model runs. /checksums/PATH
 * holds the checksums of the dataset /PATH.
 *
 * Every KVD_CHECKSUM_ROWS rows of a head share one checksum: the sum modulo 2^64, over row numbers
 * t, of (2 t + 1) times the XXH3-64 of the bytes of row t. Rows may be added in any order and from
 * several threads, so batches may end anywhere. The factor detects rows that were exchanged.
 */
#ifndef KVD_COMMON_FILES_CHECKSUMS_H
#define KVD_COMMON_FILES_CHECKSUMS_H

#include "common/files/h5.h"

enum { KVD_CHECKSUM_ROWS = 64 };

/*
 * Checksums of the rows of one dataset [layer][head][row][...]. A dataset [row] without layers and
 * heads counts as one layer with one head.
 */
typedef struct {
    char path[32]; /* path of the dataset whose rows have these checksums */
    /* Axis of the dataset along which rows are counted, a string literal: "token" or "dim". */
    const char *row_name;
    bool by_head; /* true if the dataset has axes for layers and heads */
    size_t n_layers, n_heads, n_rows, row_bytes, n_blocks;
    /*
     * Checksums [n_layers][n_heads][n_blocks], one per block of KVD_CHECKSUM_ROWS rows. NULL: the
     * file has none, so its rows are not verified.
     */
    uint64_t *sum;
} kvd_checksums;

/*
 * Reserves a dataset for the checksums of the dataset that `data` describes, in a file that is
 * being written, and allocates them as zeros.
 */
int kvd_checksums_reserve(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err);

/*
 * Reads the checksums of the dataset that `data` describes: path, type, rank, dims and the name of
 * the row axis. If the file has none, returns 0 with c->sum NULL.
 */
int kvd_checksums_load(kvd_checksums *c, kvd_h5 *f, const kvd_h5_spec *data, kvd_err *err);

/* Frees the checksums. Safe on a zeroed *c. */
void kvd_checksums_release(kvd_checksums *c);

/*
 * Adds rows first .. first + n - 1 of a head to their checksums. `rows` are in the dtype of the
 * file. Several threads may call it at the same time.
 */
void kvd_checksums_add(kvd_checksums *c, size_t layer, size_t head, size_t first, size_t n,
                       const void *rows);

/* Sets the checksums of one layer's head to 0, before its rows are written again. */
void kvd_checksums_clear(kvd_checksums *c, size_t layer, size_t head);

/*
 * Returns one number that depends on all checksums: the sum over i of (2 i + 1) times checksum i.
 */
uint64_t kvd_checksums_total(const kvd_checksums *c);

/* Writes the checksums into the dataset that kvd_checksums_reserve reserved. */
int kvd_checksums_write(const kvd_checksums *c, kvd_h5 *f, kvd_err *err);

/*
 * Callback that reads rows first .. first + n - 1 of a head of the dataset, in the dtype of the
 * file. `ctx` identifies the head.
 */
typedef int (*kvd_row_reader)(void *ctx, size_t first, size_t n, void *rows, kvd_err *err);

/*
 * Compares rows first .. first + n - 1 of a head, in the dtype of `file`, with their checksums. If
 * the rows do not fill their first or last block of rows, `reader` reads the other rows of the
 * block. A difference is an error that names file, dataset, layer, head and rows.
 */
int kvd_checksums_verify(const kvd_checksums *c, const char *file, size_t layer, size_t head,
                         size_t first, size_t n, const void *rows, kvd_row_reader reader, void *ctx,
                         kvd_err *err);

#endif
