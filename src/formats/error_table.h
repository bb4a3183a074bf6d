/* Files of type kvdim/error-table: KL divergence when a single head keeps fewer dimensions, for
 * several numbers of dimensions. */
#ifndef KVD_FORMATS_ERROR_TABLE_H
#define KVD_FORMATS_ERROR_TABLE_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_error_table;

/* loss when one KV head keeps fewer dimensions while all other heads keep d_head */
typedef struct {
    kvd_model_info model;
    char method[32];
    kvd_pair pair[2]; /* rotation matrices used for Q and K (pair[0]) and for V (pair[1]) */
    /* hash of the rotation matrices of the heads; "" in older files */
    char bases_hash[KVD_BASES_HASH];
    int n_layers, n_kv_heads, d_head;
    size_t n_widths;
    int32_t *width; /* measured numbers of kept dimensions, rising to d_head */
    /* [2][n_layers][n_kv_heads][n_widths] KL divergence in nats per token if only this head's Q and
     * K (first half), or only its V, keep `width` dimensions */
    double *error;
} kvd_error_table;

int kvd_error_table_write(kvd_h5 *f, const kvd_error_table *t, kvd_err *err);
/* Reads a table with a loss for each number of kept dimensions. Fails on a negative loss. Fails
 * unless the numbers of dimensions rise and end at d_head. */
int kvd_error_table_load(kvd_error_table *t, const char *path, kvd_err *err);
void kvd_error_table_release(kvd_error_table *t);

#endif
