/* kvdim/error-table files: loss of quality if dimensions are removed from a single head. */
#ifndef KVD_FORMATS_ERROR_TABLE_H
#define KVD_FORMATS_ERROR_TABLE_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_error_table;

/*
 * Loss by number of kept dimensions. Dimensions are removed from Q and K, or from V, of one KV head
 * at a time. All other heads keep all d_head dimensions.
 */
typedef struct {
    kvd_model_info model;
    char method[32];
    /* Kind of rotation used for Q and K (pair[0]) and for V (pair[1]). */
    kvd_pair pair[2];
    /* Hash of the rotations that removed the dimensions; "" in older files. */
    char bases_hash[KVD_BASES_HASH];
    int n_layers, n_kv_heads, d_head;
    size_t n_widths;
    /* Measured numbers of kept dimensions, rising. The last is d_head, whose loss is 0. */
    int32_t *width;
    /*
     * KL divergence from the uncompressed model, in nats per token:
     * [2][n_layers][n_kv_heads][n_widths]. The first index is 0 for Q and K, 1 for V.
     */
    double *error;
} kvd_error_table;

int kvd_error_table_write(kvd_h5 *f, const kvd_error_table *t, kvd_err *err);
/*
 * Fails on numbers of dimensions that do not rise to d_head. Fails on losses that are not finite,
 * are negative, or are not 0 at d_head.
 */
int kvd_error_table_load(kvd_error_table *t, const char *path, kvd_err *err);
void kvd_error_table_release(kvd_error_table *t);

#endif
