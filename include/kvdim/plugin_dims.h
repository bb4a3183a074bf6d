/* Interface of plugins that remove dimensions of heads. Read kvdim/plugin.h first.
 *
 * Each method defines either `project`, which projects K and V of each head to fewer dimensions, or
 * `prune`, which drops dimensions (channels) of keys. */
#ifndef KVDIM_PLUGIN_DIMS_H
#define KVDIM_PLUGIN_DIMS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Q, K and V of a calibration text at one KV head, after RoPE. If the method does not set
 * KVDIM_NEEDS_CALIBRATION, n is 0. */
typedef struct kvdim_rows {
    uint32_t struct_size;
    int32_t layer, kv_head;
    int32_t group;      /* number of query heads that read this KV head */
    size_t n, d;        /* number of tokens (at most 4096), and of dimensions of a head */
    const float *q;     /* queries, [group][n][d] */
    const float *k, *v; /* keys and values, [n][d] */
} kvdim_rows;

/* Projection matrices of one KV head, row-major, with room for d * d numbers each. kvdim stores a
 * key k as k a_k and a value v as v a_v. The score of query q is (q a_q) . (k a_k) / sqrt(d). With
 * attention weights P, the output is (P V a_v) b_v. */
typedef struct kvdim_matrices {
    uint32_t struct_size;
    int32_t d_qk, d_v; /* Stored dimensions of a key and of a value: 1 .. d. On entry both are d. */
    float *a_q, *a_k;  /* [d][d_qk] each */
    float *a_v, *b_v;  /* a_v is [d][d_v], b_v is [d_v][d]. */
} kvdim_matrices;

/* Queries and keys of a prompt at one KV head. Tokens that were dropped from the cache have queries
 * but no keys. */
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
    /* Writes the projection matrices of one KV head to *m. kvdim calls it before the run, for each
     * KV head of each layer. `value` [n_keys]: parameter values. A method that defines `prune` sets
     * `project` to NULL. */
    int (*project)(const double *value, const kvdim_model *model, const kvdim_rows *rows,
                   kvdim_matrices *m, char *error);
    /* Chooses which channels (dimensions) of one KV head's keys are kept after a prompt. A method
     * that defines `project` sets `prune` to NULL.
     *
     * - keep: [d] receives 1 for each kept channel, else 0; at least one channel must be kept
     * - newest: receives the number of newest tokens whose keys keep all channels; 0 on entry */
    int (*prune)(const double *value, const kvdim_channels *c, uint8_t *keep, size_t *newest,
                 char *error);
} kvdim_dims_method;

#ifdef __cplusplus
}
#endif
#endif
