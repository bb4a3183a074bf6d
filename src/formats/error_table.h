/*
 * kvdim/error-table files: loss of prediction quality if dimensions are removed from a single head,
 * for several numbers of kept dimensions, measured by kvdim-eval.
 */
#ifndef KVD_FORMATS_ERROR_TABLE_H
#define KVD_FORMATS_ERROR_TABLE_H

#include <stdint.h>

#include "formats/spectrum.h"

extern const kvd_schema kvd_schema_error_table;

/*
 * Loss (nats of KL divergence per token) by number of kept dimensions. Dimensions are removed from
 * one KV head at a time, either from its Q and K or from its V. All other heads keep all d_head
 * dimensions.
 */
typedef struct {
    kvd_model_info model;
    char method[32];
    /* Rotations used for Q and K, and for V. */
    kvd_pair pair[2];
    /* Hash of the rotations with which the heads' dimensions were removed; "" in older files. */
    char bases_hash[KVD_BASES_HASH];
    int n_layers, n_kv_heads, d_head;
    size_t n_widths;
    /*
     * Numbers of kept dimensions at which the loss was measured, rising. The last is d_head, whose
     * loss is 0.
     */
    int32_t *width;
    /*
     * KL divergence, in nats per token, of the predictions with removed dimensions from those of
     * the uncompressed model: [Q and K, or V][n_layers][n_kv_heads][n_widths]. The last index
     * selects the number of kept dimensions in the array `width`.
     */
    double *error;
} kvd_error_table;

int kvd_error_table_write(kvd_h5 *f, const kvd_error_table *t, kvd_err *err);
/*
 * Reads a kvdim/error-table file. Refuses numbers of dimensions that do not rise to d_head, and
 * losses that are not finite, are negative, or are not 0 at d_head.
 */
int kvd_error_table_load(kvd_error_table *t, const char *path, kvd_err *err);
void kvd_error_table_release(kvd_error_table *t);

#endif
