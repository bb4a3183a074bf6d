/*
 * kvdim/projections files: matrices, trained elsewhere, that project K and V to fewer components
 * and reconstruct them.
 */
#ifndef KVD_FORMATS_PROJECTIONS_H
#define KVD_FORMATS_PROJECTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_projections;

/* Matrices of K, or of V, to vectors of n_components. */
typedef struct {
    size_t n_components;
    /* [n_layers][n_kv_heads] leading components used, 1 .. n_components */
    int32_t *rank;
    /*
     * [n_layers][n_kv_heads][heads * d_head][n_components]: projects `heads` adjacent KV heads
     * together, with equal matrices
     */
    double *down;
    /* [n_layers][n_kv_heads][n_components][d_head]: reconstructs one KV head */
    double *up;
} kvd_projections_side;

typedef struct {
    kvd_model_info model;
    char origin[256];
    bool before_rope;
    /* adjacent KV heads that are projected together */
    int heads;
    /* K, then V */
    kvd_projections_side side[2];
} kvd_projections;

/*
 * Reads a file, which the caller releases on success. Fails if it is of another model than `model`,
 * has a bad rank, NaN or infinity, n_components > heads * d_head, or heads that do not divide the
 * KV heads (keys after RoPE: 1) or differ in ranks or `down`.
 */
int kvd_projections_load(kvd_projections *p, const char *path, const kvd_model_info *model,
                         const char *model_path, kvd_err *err);
void kvd_projections_release(kvd_projections *p);

#endif
