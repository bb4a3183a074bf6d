/* kvdim/error-table: what cutting one head to one width costs, as kvdim-eval measures it. */
#ifndef KVD_FORMATS_ERROR_TABLE_H
#define KVD_FORMATS_ERROR_TABLE_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_error_table;

/* Error (nats of KL divergence) against width, measured with one head of one pair cut at a time. */
typedef struct {
    kvd_model_info model;
    char method[32];
    kvd_pair pair[2];                /* the Q-K pair, the V pair                                       */
    char bases_hash[KVD_BASES_HASH]; /* of the spectrum that was cut; "" in files that do not say it */
    int n_layers, n_kv_heads, d_head;
    size_t n_widths;
    int32_t *width; /* [n_widths] rising, 1 .. d_head; the last is d_head (error 0)   */
    double *error;  /* [2][n_layers][n_kv_heads][n_widths], nats per token            */
} kvd_error_table;

int kvd_error_table_write(kvd_h5 *f, const kvd_error_table *t, kvd_err *err);
/* Refuses widths that do not rise to d_head, and errors that are not finite, negative, or not 0 at d_head. */
int kvd_error_table_load(kvd_error_table *t, const char *path, kvd_err *err);
void kvd_error_table_release(kvd_error_table *t);

#endif
