/*
 * Plugins that remove dimensions of heads: they choose the subspace that is stored. Read
 * kvdim/plugin.h first.
 *
 * A method defines either `project` (projection matrices) or `prune` (channels of keys).
 */
#ifndef KVDIM_PLUGIN_DIMS_H
#define KVDIM_PLUGIN_DIMS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Rows Q, K and V of a calibration text at one KV head, after RoPE. n is 0 unless the method asks
 * for KVDIM_NEEDS_CALIBRATION.
 */
typedef struct kvdim_rows {
    uint32_t struct_size;
    int32_t layer, kv_head;
    int32_t group;      /* number of query heads that read this KV head */
    size_t n, d;        /* number of tokens (at most 4096), and of dimensions of a head */
    const float *q;     /* queries, [group][n][d] */
    const float *k, *v; /* keys and values, [n][d] */
} kvdim_rows;

/*
 * Projection matrices of one KV head, row-major and finite; arrays have room for d * d numbers. For
 * rows q, k, v of d numbers, kvdim stores k' = k a_k (d_qk numbers) and v' = v a_v (d_v numbers). A
 * score is (q a_q) . k' / sqrt(d), the output (P v') b_v with attention probabilities P.
 */
typedef struct kvdim_matrices {
    uint32_t struct_size;
    int32_t d_qk, d_v; /* Stored dimensions of a key and of a value: 1 .. d. On entry both are d. */
    float *a_q, *a_k;  /* [d][d_qk] each */
    float *a_v, *b_v;  /* a_v is [d][d_v], b_v is [d_v][d]. */
} kvdim_matrices;

/* Queries and keys of one prompt at one KV head. Dropped tokens have queries but no keys. */
typedef struct kvdim_channels {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t d;       /* number of dimensions (channels) of a key */
    size_t n_q;     /* number of tokens of the prompt */
    const float *q; /* queries after RoPE, [n_q][group][d]: tokens are `q_stride` numbers apart */
    size_t q_stride;
    size_t n_k;     /* number of tokens whose keys are still in the cache */
    const float *k; /* keys of the n_k tokens after RoPE, [n_k][d] */
} kvdim_channels;

typedef struct kvdim_dims_method {
    kvdim_method method;
    /*
     * Writes the projection matrices of one KV head to *m. Called once per layer and KV head, on
     * one thread, before the run. `value` [n_keys]: the parameter values.
     */
    int (*project)(const double *value, const kvdim_model *model, const kvdim_rows *rows,
                   kvdim_matrices *m, char *error);
    /*
     * Chooses the key channels that stay after a prompt: keep[i] 1 stores channel i, 0 drops it (it
     * reads as 0). At least one must stay. *newest (0 on entry, at most n_q) receives the number of
     * newest tokens that keep all channels, as tokens after the prompt do.
     */
    int (*prune)(const double *value, const kvdim_channels *c, uint8_t *keep, size_t *newest,
                 char *error);
} kvdim_dims_method;

#ifdef __cplusplus
}
#endif
#endif
