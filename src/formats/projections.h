/*
 * kvdim/projections files: matrices that project K and V to vectors with fewer components, and
 * matrices that reconstruct K and V. They were trained elsewhere; no program of kvdim writes such
 * files.
 */
#ifndef KVD_FORMATS_PROJECTIONS_H
#define KVD_FORMATS_PROJECTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_projections;

/* Projection matrices of K, or of V. The projected vector has n_components components. */
typedef struct {
    size_t n_components;
    /*
     * Number of leading components that each KV head uses, 1 .. n_components:
     * [n_layers][n_kv_heads].
     */
    int32_t *rank;
    /*
     * Matrices that project `heads` adjacent KV heads together to one vector:
     * [n_layers][n_kv_heads][heads * d_head][n_components]. KV heads that are projected together
     * have equal matrices.
     */
    double *down;
    /* Matrices that reconstruct one KV head: [n_layers][n_kv_heads][n_components][d_head]. */
    double *up;
} kvd_projections_side;

typedef struct {
    kvd_model_info model;
    char origin[256];
    bool before_rope;
    /* Number of adjacent KV heads that are projected together to one vector. */
    int heads;
    /* Matrices of K, then of V. */
    kvd_projections_side side[2];
} kvd_projections;

/*
 * Reads a kvdim/projections file. Fails if the file is for another model than `model`, or has a bad
 * rank, NaN or infinity. n_components must be at most p->heads * d_head. p->heads, the number of KV
 * heads that are projected together, must divide the number of KV heads; if keys are projected
 * after RoPE, it must be 1. KV heads that are projected together must have equal ranks and equal
 * matrices `down`. On success the caller releases *p.
 */
int kvd_projections_load(kvd_projections *p, const char *path, const kvd_model_info *model,
                         const char *model_path, kvd_err *err);
void kvd_projections_release(kvd_projections *p);

#endif
