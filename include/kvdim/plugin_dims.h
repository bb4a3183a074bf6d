/*
 * Plugins that remove dimensions of heads: they choose the subspace of a head that is stored.
 * kvdim/plugin.h has what all plugins share. A method defines either `project` (projection
 * matrices) or `prune` (channels of keys).
 */
#ifndef KVDIM_PLUGIN_DIMS_H
#define KVDIM_PLUGIN_DIMS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Q, K and V of a calibration text at one KV head, after RoPE. If the method does not set
 * KVDIM_NEEDS_CALIBRATION, n is 0.
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
 * Projection matrices of one KV head, row-major and finite. The query q, key k and value v of a
 * token are row vectors of d numbers. kvdim stores the key k' = k a_k of d_qk numbers and the value
 * v' = v a_v of d_v numbers. An attention score is (q a_q) . k' / sqrt(d). The output of the head
 * is (P v') b_v, where P holds the attention probabilities. Each array has room for d * d numbers.
 */
typedef struct kvdim_matrices {
    uint32_t struct_size;
    /*
     * Number of stored dimensions of a key (d_qk) and of a value (d_v): 1 .. d. On entry both are
     * d.
     */
    int32_t d_qk, d_v;
    float *a_q, *a_k; /* [d][d_qk] each */
    /* a_v is [d][d_v], b_v is [d_v][d]. */
    float *a_v, *b_v;
} kvdim_matrices;

/*
 * Queries and keys of one prompt at one KV head. Tokens that another method has dropped from the
 * cache have queries here, but no keys.
 */
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
     * Writes the projection matrices of one KV head to *m. kvdim calls this function once per layer
     * and KV head, on one thread, before the run. `value` holds the parameter values, [n_keys].
     */
    int (*project)(const double *value, const kvdim_model *model, const kvdim_rows *rows,
                   kvdim_matrices *m, char *error);
    /*
     * Chooses the key channels that are stored, after the model has processed a prompt. Sets
     * keep[i] to 1 to store channel i, or to 0 to drop it, after which kvdim reads it as 0. At
     * least one channel must be stored. Sets *newest (0 on entry, at most n_q) to the number of
     * newest tokens that keep all channels. Tokens after the prompt keep all channels.
     */
    int (*prune)(const double *value, const kvdim_channels *c, uint8_t *keep, size_t *newest,
                 char *error);
} kvdim_dims_method;

#ifdef __cplusplus
}
#endif
#endif
