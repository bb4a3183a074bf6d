/*
 * kvdim/fisher files: squared gradients of the loss with respect to keys, values, W_K and W_V. Palu
 * uses this empirical Fisher information to choose ranks, and KVQuant uses it to weight
 * quantisation errors. The loss of a sequence is the sum of -log p(next token) over its tokens.
 */
#ifndef KVD_FORMATS_FISHER_H
#define KVD_FORMATS_FISHER_H

#include "common/files/checksums.h"
#include "formats/model_info.h"

extern const kvd_schema kvd_schema_fisher;

/* Tensors with gradients: keys after RoPE, keys before RoPE, values. */
typedef enum { KVD_F_K, KVD_F_K_PRE, KVD_F_V, KVD_N_F } kvd_f;
/*
 * Number of tensors for which the file has also gradients of the weights and products g^T g. These
 * tensors are the keys before RoPE and the values.
 */
enum { KVD_F_SIDES = 2 };

typedef struct kvd_fisher {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    /* Number of tokens whose next token is known: n_tokens - n_sequences. */
    size_t n_predicted;
    /* Loss in nats, summed over all sequences. */
    double loss;
    /* Squared gradients [n_layers][n_kv_heads][d_head], summed over all tokens. */
    double *sum[KVD_N_F];
    /*
     * Squared gradients of W_K and W_V, summed over sequences and elements: [n_layers][n_kv_heads].
     */
    double *weight[KVD_F_SIDES];
    /*
     * For each weight, the root mean square over sequences of its gradient; then the mean over the
     * weights of a head: [n_layers][n_kv_heads].
     */
    double *root[KVD_F_SIDES];
    /*
     * Sums over tokens of g^T g, where g is the gradient of all KV heads together:
     * [n_layers][n_kv_heads d_head][n_kv_heads d_head]. NULL if the file lacks them.
     */
    double *moment[KVD_F_SIDES];
    size_t n_rows; /* number of tokens whose squared gradients are stored one by one */
    kvd_h5 file;
    /*
     * Squared gradients of the first n_rows tokens: float32 [n_layers][n_kv_heads][n_rows][d_head].
     */
    hid_t row[KVD_F_SIDES];
    kvd_checksums checksums[KVD_F_SIDES];
} kvd_fisher;

/* Opens a complete file and reads the sums. A negative sum of squares is an error. */
int kvd_fisher_open(kvd_fisher *f, const char *path, kvd_err *err);
/* Closes the file. Removes a file that was not finished. Safe on a zeroed *f. */
void kvd_fisher_close(kvd_fisher *f);

/*
 * Reads the squared gradients of n tokens of one KV head into rows [n][d_head]. `side` 0 is keys
 * before RoPE, 1 is values. Checksum mismatches, negative and non-finite numbers are errors.
 */
int kvd_fisher_rows(kvd_fisher *f, int side, int layer, int kv_head, size_t first, size_t n,
                    float *rows, kvd_err *err);

/*
 * Creates a file with zeroed sums and space for squared gradients of n_rows single tokens. The
 * caller has set model, label, corpus_hash, n_tokens, n_sequences, seq_len, layers and n_rows in
 * *f.
 */
int kvd_fisher_create(kvd_fisher *f, const char *path, const kvd_run *run, kvd_err *err);
/*
 * Writes the squared gradients of n tokens of a layer: rows [n_kv_heads][n][d_head]. `side` 0 is
 * keys before RoPE, 1 is values.
 */
int kvd_fisher_put_rows(kvd_fisher *f, int side, int layer, size_t first, size_t n,
                        const float *rows, kvd_err *err);
/* Writes the sums, completes the file and closes it. */
int kvd_fisher_finish(kvd_fisher *f, kvd_err *err);

#endif
