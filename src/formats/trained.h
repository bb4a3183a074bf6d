/* Files of trained weights. kvdim/projections: matrices that project K and V to fewer components.
 * kvdim/retaining-heads: networks that score tokens. */
#ifndef KVD_FORMATS_TRAINED_H
#define KVD_FORMATS_TRAINED_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_projections, kvd_schema_retaining_heads;

/* matrices that project the K, or the V, of KV heads to n_components components */
typedef struct {
    size_t n_components;
    /* [n_layers][n_kv_heads] number of leading components that are kept */
    int32_t *rank;
    /* [n_layers][n_kv_heads][heads * d_head][n_components] projects the vectors of `heads` KV heads
     * together */
    double *down;
    double *up; /* [n_layers][n_kv_heads][n_components][d_head] reconstructs one KV head */
} kvd_projections_side;

typedef struct {
    kvd_model_info model;
    char origin[256];
    bool before_rope;
    int heads;                    /* number of adjacent KV heads that are projected together */
    kvd_projections_side side[2]; /* matrices of K, then of V */
} kvd_projections;

/* Reads the matrices that project K and V. Fails if they were made for another model than *model,
 * or if ranks are invalid. The caller releases *p. */
int kvd_projections_load(kvd_projections *p, const char *path, const kvd_model_info *model,
                         const char *model_path, kvd_err *err);
void kvd_projections_release(kvd_projections *p);

/* two matrices per layer that score a token from its Q, K and V */
typedef struct kvd_retaining_heads {
    size_t hidden; /* number of hidden units */
    float *fc1;    /* [n_layers][hidden][(n_heads + 2 n_kv_heads) * d_head] */
    float *fc2;    /* [n_layers][n_kv_heads][hidden] */
} kvd_retaining_heads;

/* Reads the weights of the network that scores tokens. Fails if it was made for another model than
 * *model, has more than 65,536 hidden units, or has weights too large for float32. The caller
 * releases *r. */
int kvd_retaining_heads_load(kvd_retaining_heads *r, const char *path, const kvd_model_info *model,
                             const char *model_path, kvd_err *err);
void kvd_retaining_heads_release(kvd_retaining_heads *r);

#endif
