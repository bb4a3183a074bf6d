/*
 * kvdim/projections files: for every layer and KV head, matrices that project K and V to fewer
 * numbers and matrices that rebuild K and V. No program of kvdim writes such files: they hold
 * matrices that were trained elsewhere.
 */
#ifndef KVD_FORMATS_PROJECTIONS_H
#define KVD_FORMATS_PROJECTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_projections;

/*
 * Projection matrices of K, or of V. They have n_components columns, of which a KV head uses only
 * the first `rank`.
 */
typedef struct {
    size_t n_components;
    /*
     * Number of columns of the projection that each KV head uses, 1 .. n_components:
     * [n_layers][n_kv_heads].
     */
    int32_t *rank;
    /*
     * Matrices that project K or V of `heads` adjacent KV heads together to one vector of
     * n_components numbers: [n_layers][n_kv_heads][heads * d_head][n_components].
     */
    double *down;
    /*
     * Matrices that rebuild K or V of one KV head from that vector of n_components numbers:
     * [n_layers][n_kv_heads][n_components][d_head].
     */
    double *up;
} kvd_projections_side;

typedef struct {
    kvd_model_info model;
    char origin[256]; /* text that says who made the matrices */
    bool before_rope; /* keys are projected before RoPE is applied */
    /* Number of adjacent KV heads that are projected together to one vector. */
    int heads;
    /* Projection matrices of K, then of V. */
    kvd_projections_side side[2];
} kvd_projections;

/*
 * Reads a kvdim/projections file. Refuses a model other than `model` (model_path in messages),
 * ranks outside 1 .. n_components, n_components above the number of rows of a matrix `down`, NaN
 * and infinity. `heads` (number of KV heads that are projected together) must divide the number of
 * KV heads. It must be 1 if keys are projected after RoPE. KV heads that are projected together
 * must have equal ranks and equal matrices `down`. On success the caller releases *p.
 */
int kvd_projections_load(kvd_projections *p, const char *path, const kvd_model_info *model,
                         const char *model_path, kvd_err *err);
void kvd_projections_release(kvd_projections *p);

#endif
