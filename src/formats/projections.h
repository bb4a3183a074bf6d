/*
 * kvdim/projections: matrices that shorten K and V and rebuild them, for every layer and KV head.
 * No program of kvdim writes such files: they hold matrices that were trained elsewhere.
 */
#ifndef KVD_FORMATS_PROJECTIONS_H
#define KVD_FORMATS_PROJECTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_projections;

/* Projection matrices of one side, K or V. Components from `rank` on are not used. */
typedef struct {
    size_t n_components;
    int32_t *rank; /* [n_layers][n_kv_heads], 1 .. n_components */
    double *down;  /* [n_layers][n_kv_heads][heads * d_head][n_components] */
    double *up;    /* [n_layers][n_kv_heads][n_components][d_head] */
} kvd_projections_side;

typedef struct {
    kvd_model_info model;
    char origin[256];             /* who made the matrices */
    bool before_rope;             /* keys are multiplied before RoPE */
    int heads;                    /* number of adjacent KV heads that share a latent */
    kvd_projections_side side[2]; /* K, V */
} kvd_projections;

/*
 * Reads a kvdim/projections file. Refuses a model other than `model` (model_path in messages),
 * ranks outside 1 .. n_components, more components than rows, NaN and infinity. Refuses `heads`
 * that do not divide the number of KV heads, or are not 1 after RoPE. KV heads that share a latent
 * must have equal ranks and equal matrices `down`. On success the caller releases *p.
 */
int kvd_projections_load(kvd_projections *p, const char *path, const kvd_model_info *model,
                         const char *model_path, kvd_err *err);
void kvd_projections_release(kvd_projections *p); /* safe on a zeroed *p */

#endif
