/*
 * kvdim/error-table: the accuracy lost when one head is cut to one width, as kvdim-eval measures
 * it.
 */
#ifndef KVD_FORMATS_ERROR_TABLE_H
#define KVD_FORMATS_ERROR_TABLE_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_error_table;

/* Error (nats of KL divergence per token) by width. One head of one pair is cut at a time. */
typedef struct {
    kvd_model_info model;
    char method[32];
    kvd_pair pair[2]; /* Q-K pair and V pair */
    char bases_hash
        /* hash of the bases that were cut; "" in older files */
        [KVD_BASES_HASH];
    int n_layers, n_kv_heads, d_head;
    size_t n_widths;
    /* [n_widths] rising widths in 1 .. d_head; the last is d_head, whose error is 0 */
    int32_t *width;
    double *error; /* [2][n_layers][n_kv_heads][n_widths], nats per token */
} kvd_error_table;

int kvd_error_table_write(kvd_h5 *f, const kvd_error_table *t, kvd_err *err);
/*
 * Reads a file of schema kvdim/error-table. Refuses widths that do not rise to d_head, and errors
 * that are not finite, are negative, or are not 0 at d_head.
 */
int kvd_error_table_load(kvd_error_table *t, const char *path, kvd_err *err);
void kvd_error_table_release(kvd_error_table *t);

#endif
