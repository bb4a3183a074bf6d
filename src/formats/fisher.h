/*
 * kvdim/fisher: squared gradients of the loss with respect to keys, values, W_K and W_V. This is
 * the empirical Fisher information that Palu's rank search and KVQuant's weights use. The loss of a
 * sequence is the sum of -log p(next token) over its rows (model/pass/backward.h).
 */
#ifndef KVD_FORMATS_FISHER_H
#define KVD_FORMATS_FISHER_H

#include "common/files/checksums.h"
#include "formats/model_info.h"

extern const kvd_schema kvd_schema_fisher;

/* keys after RoPE, keys before RoPE, values */
typedef enum { KVD_F_K, KVD_F_K_PRE, KVD_F_V, KVD_N_F } kvd_f;
enum { KVD_F_SIDES = 2 }; /* keys before RoPE, values */

typedef struct kvd_fisher {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    size_t n_predicted; /* number of rows whose next token is known: n_tokens - n_sequences */
    double loss;        /* summed over sequences, in nats */
    /* [n_layers][n_kv_heads][d_head]: squared gradients, summed over all tokens */
    double *sum[KVD_N_F];
    double
        /*
         * [n_layers][n_kv_heads]: squared gradients of W_K^h and W_V^h, summed over sequences and
         * elements
         */
        *weight[KVD_F_SIDES];
    /*
     * [n_layers][n_kv_heads]: root mean square over sequences of each weight's gradient, averaged
     * over the elements of W_K^h or W_V^h
     */
    double *root[KVD_F_SIDES];
    /*
     * [n_layers][n_kv_heads d_head][n_kv_heads d_head]: products g^T g of gradients with respect to
     * keys before RoPE, or values, of all KV heads, summed over all tokens. NULL if the file was
     * written without them.
     */
    double *moment[KVD_F_SIDES];
    size_t n_rows; /* number of tokens whose squared gradients are stored one by one */
    kvd_h5 file;
    hid_t row[KVD_F_SIDES];               /* [n_layers][n_kv_heads][n_rows][d_head] float32 */
    kvd_checksums checksums[KVD_F_SIDES]; /* checksums of `row` */
} kvd_fisher;

/* ---- reading ---- */

/*
 * Opens a complete kvdim/fisher file, checks every shape and reads the sums. A negative sum is an
 * error.
 */
int kvd_fisher_open(kvd_fisher *f, const char *path, kvd_err *err);
/*
 * Closes the file. Removes a file that was being written and is not finished. Safe on a zeroed *f.
 */
void kvd_fisher_close(kvd_fisher *f);

/*
 * Reads the squared gradients of tokens first .. first + n - 1 of one head into [n][d_head]. Rows
 * that do not match their checksum, negative numbers and non-finite numbers are errors.
 */
int kvd_fisher_rows(kvd_fisher *f, int side, int layer, int kv_head, size_t first, size_t n,
                    float *rows, kvd_err *err);

/* ---- writing (kvdim-collect) ---- */

/*
 * Creates the file, allocates zeroed sums and makes room for the rows. The caller has set model,
 * label, corpus_hash, n_tokens, n_sequences, seq_len, layers and n_rows in *f.
 */
int kvd_fisher_create(kvd_fisher *f, const char *path, const kvd_run *run, kvd_err *err);
/*
 * Writes the squared gradients of tokens first .. first + n - 1 of all KV heads of a layer,
 * [n_kv_heads][n][d_head].
 */
int kvd_fisher_put_rows(kvd_fisher *f, int side, int layer, size_t first, size_t n,
                        const float *rows, kvd_err *err);
/* Writes the sums, completes the file and closes it. */
int kvd_fisher_finish(kvd_fisher *f, kvd_err *err);

#endif
