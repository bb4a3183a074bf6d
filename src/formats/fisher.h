/*
 * kvdim/fisher: squared gradients of the loss with respect to keys, values, W_K and W_V: the empirical Fisher
 * information that Palu's rank search and KVQuant's weights read. The loss of a sequence is the sum of -log
 * p(next token) over its rows (model/backward.h).
 */
#ifndef KVD_FORMATS_FISHER_H
#define KVD_FORMATS_FISHER_H

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_fisher;

typedef enum { KVD_F_K, KVD_F_K_PRE, KVD_F_V, KVD_N_F } kvd_f; /* after RoPE, before it, values */
enum { KVD_F_SIDES = 2 };                                      /* keys (before RoPE), values    */

typedef struct kvd_fisher {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    size_t n_predicted;   /* rows whose next token is known: n_tokens - n_sequences */
    double loss;          /* sum over sequences, nats                               */
    double *sum[KVD_N_F]; /* [n_layers][n_kv_heads][d_head] over all tokens, squared gradients        */
    double
        *weight[KVD_F_SIDES];  /* [n_layers][n_kv_heads] W_K^h, W_V^h: over sequences and elements         */
    double *root[KVD_F_SIDES]; /* [n_layers][n_kv_heads] mean over elements of sqrt(mean over sequences)   */
    size_t n_rows;             /* tokens whose squared gradients are in the file one by one                */
    kvd_h5 file;
    hid_t row[KVD_F_SIDES]; /* [n_layers][n_kv_heads][n_rows][d_head] float32 */
} kvd_fisher;

/* ---- reading ------------------------------------------------------------------------------------ */

/* Opens a complete file, checks every shape, reads what is summed; no sum is negative. */
int kvd_fisher_open(kvd_fisher *f, const char *path, kvd_err *err);
/* Safe when zeroed. A file that was being written and is not finished is removed. */
void kvd_fisher_close(kvd_fisher *f);

/* Tokens first .. first + n - 1 of one head [n][d_head]. A negative number, or one that is not finite, is an
 * error. */
int kvd_fisher_rows(kvd_fisher *f, int side, int layer, int kv_head, size_t first, size_t n, float *rows,
                    kvd_err *err);

/* ---- writing (kvdim-collect) ---------------------------------------------------------------------- */

/* The caller has set model, label, corpus_hash, n_tokens, n_sequences, seq_len, layers and n_rows; allocates the sums, 0, and makes
 * room for the rows. */
int kvd_fisher_create(kvd_fisher *f, const char *path, const kvd_run *run, kvd_err *err);
/* Tokens first .. first + n - 1 of all KV heads of a layer, [n_kv_heads][n][d_head]. */
int kvd_fisher_put_rows(kvd_fisher *f, int side, int layer, size_t first, size_t n, const float *rows,
                        kvd_err *err);
/* Writes sums and describes them, completes the file and closes it. */
int kvd_fisher_finish(kvd_fisher *f, kvd_err *err);

#endif
