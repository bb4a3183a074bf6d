/*
 * Plugins that shorten the dims axis: they choose the subspace of a head that is stored.
 * kvdim/plugin.h has what all plugins share.
 *
 * A method has one of two functions. `project` makes the matrices of a KV head once, before the
 * run. `prune` chooses channels of the keys of each prompt, at its end.
 */
#ifndef KVDIM_PLUGIN_DIMS_H
#define KVDIM_PLUGIN_DIMS_H

#include <kvdim/plugin.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of calibration text at one KV head, after RoPE. Without KVDIM_NEEDS_CALIBRATION n is 0. */
typedef struct kvdim_rows {
    uint32_t struct_size;
    int32_t layer, kv_head;
    int32_t group;      /* number of query heads of the KV head */
    size_t n, d;        /* number of tokens, at most 4096; d_head */
    const float *q;     /* [group][n][d] */
    const float *k, *v; /* [n][d] */
} kvdim_rows;

/*
 * Matrices of one KV head, which the function writes, row-major and finite. Stored are k' = k a_k
 * and v' = v a_v. A score is (q a_q) . k' / sqrt(d), and the output of the head is (P v') b_v, with
 * P the probabilities. Each array has room for d * d numbers.
 */
typedef struct kvdim_matrices {
    uint32_t struct_size;
    int32_t d_qk, d_v; /* stored widths of keys and values, 1 .. d; d on entry */
    float *a_q, *a_k;  /* [d][d_qk] */
    float *a_v, *b_v;  /* [d][d_v], [d_v][d] */
} kvdim_matrices;

/* The prompt of one sequence at one KV head, after methods of the tokens axis. */
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
    /* Writes *m. Called once per layer and KV head, on one thread. value: [n_keys]. */
    int (*project)(const double *value, const kvdim_model *model, const kvdim_rows *rows,
                   kvdim_matrices *m, char *error);
    /*
     * Writes 1 for channels that stay and 0 for others to keep [d], at least one 1; pruned channels
     * of keys are not stored and read as 0. *newest is the number of newest tokens of the prompt
     * that keep all channels, 0 on entry, at most n_q. Steps keep all channels.
     */
    int (*prune)(const double *value, const kvdim_channels *c, uint8_t *keep, size_t *newest,
                 char *error);
} kvdim_dims_method;

#ifdef __cplusplus
}
#endif
#endif
