/*
 * Plugins that shorten the dims axis: they choose the subspace of a head that is stored.
 * kvdim/plugin.h has what all plugins share.
 *
 * A method defines one of two functions. `project` computes the projections of a KV head once,
 * before the run. `prune` chooses channels of the keys of each prompt, when the prompt has been
 * processed.
 */
#ifndef KVDIM_PLUGIN_DIMS_H
#define KVDIM_PLUGIN_DIMS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Q, K and V of calibration text at one KV head, after RoPE. Without KVDIM_NEEDS_CALIBRATION n is
 * 0.
 */
typedef struct kvdim_rows {
    uint32_t struct_size;
    int32_t layer, kv_head;
    int32_t group;      /* number of query heads of the KV head */
    size_t n, d;        /* number of tokens, at most 4096; d_head */
    const float *q;     /* [group][n][d] */
    const float *k, *v; /* [n][d] */
} kvdim_rows;

/*
 * Projection matrices of one KV head, row-major and finite, which `project` writes. kvdim stores k'
 * = k a_k and v' = v a_v. A score is (q a_q) . k' / sqrt(d), and the output of the head is (P v')
 * b_v, where P holds the attention probabilities. Each array has room for d * d numbers.
 */
typedef struct kvdim_matrices {
    uint32_t struct_size;
    int32_t d_qk, d_v; /* stored widths of keys and values, 1 .. d; d on entry */
    float *a_q, *a_k;  /* [d][d_qk] */
    float *a_v, *b_v;  /* [d][d_v], [d_v][d] */
} kvdim_matrices;

/*
 * Queries and keys of one sequence's prompt at one KV head, after methods of the tokens axis have
 * dropped entries.
 */
typedef struct kvdim_channels {
    uint32_t struct_size;
    int32_t layer, kv_head, group;
    size_t d;       /* d_head: number of channels */
    size_t n_q;     /* rows of the prompt */
    const float *q; /* [n_q][group][d] after RoPE; rows are `q_stride` numbers apart */
    size_t q_stride;
    size_t n_k;     /* number of entries */
    const float *k; /* [n_k][d] after RoPE */
} kvdim_channels;

typedef struct kvdim_dims_method {
    kvdim_method method;
    /*
     * Writes the projections of one KV head to *m. kvdim calls it once per layer and KV head, on
     * one thread. `value` holds the values of the method's keys, [n_keys].
     */
    int (*project)(const double *value, const kvdim_model *model, const kvdim_rows *rows,
                   kvdim_matrices *m, char *error);
    /*
     * Chooses the key channels that are stored: writes 1 to keep [d] for a channel that stays and 0
     * for a pruned one, with at least one 1. Pruned channels are read as 0. *newest, 0 on entry and
     * at most n_q, is the number of newest tokens of the prompt that keep all channels. Tokens
     * after the prompt keep all channels.
     */
    int (*prune)(const double *value, const kvdim_channels *c, uint8_t *keep, size_t *newest,
                 char *error);
} kvdim_dims_method;

#ifdef __cplusplus
}
#endif
#endif
