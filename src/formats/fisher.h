/*
 * kvdim/fisher files: squared gradients of the loss by keys, values, W_K and W_V (empirical Fisher
 * information of Palu and KVQuant).
 *
 * A sequence's loss is the sum of -log p(next token) over its tokens.
 */
#ifndef KVD_FORMATS_FISHER_H
#define KVD_FORMATS_FISHER_H

#include "common/files/checksums.h"
#include "formats/model_info.h"

extern const kvd_schema kvd_schema_fisher;

/* Tensors with gradients: keys after RoPE, keys before RoPE, values. */
typedef enum { KVD_F_K, KVD_F_K_PRE, KVD_F_V, KVD_N_F } kvd_f;
/* Tensors with gradients of weights and g^T g: keys before RoPE, values. */
enum { KVD_F_SIDES = 2 };

typedef struct kvd_fisher {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    /* tokens with a known next token: n_tokens - n_sequences */
    size_t n_predicted;
    /* in nats, summed over all sequences */
    double loss;
    /* [n_layers][n_kv_heads][d_head] squared gradients, summed over tokens */
    double *sum[KVD_N_F];
    /*
     * [n_layers][n_kv_heads] squared gradients of W_K and W_V, summed over sequences and elements
     */
    double *weight[KVD_F_SIDES];
    /*
     * [n_layers][n_kv_heads] root mean square of a weight's gradient over sequences, mean over the
     * head's weights
     */
    double *root[KVD_F_SIDES];
    /*
     * [n_layers][n_kv_heads d_head][n_kv_heads d_head] sums over tokens of g^T g, g of all KV
     * heads; NULL if absent
     */
    double *moment[KVD_F_SIDES];
    size_t n_rows; /* tokens with stored squared gradients */
    kvd_h5 file;
    /*
     * float32 [n_layers][n_kv_heads][n_rows][d_head] squared gradients of the first n_rows tokens
     */
    hid_t row[KVD_F_SIDES];
    kvd_checksums checksums[KVD_F_SIDES];
} kvd_fisher;

/* Opens a complete file and reads the sums. A negative sum of squares is an error. */
int kvd_fisher_open(kvd_fisher *f, const char *path, kvd_err *err);
/* Closes the file; removes an unfinished one. Safe on a zeroed *f. */
void kvd_fisher_close(kvd_fisher *f);

/*
 * Reads squared gradients of n tokens of a KV head, rows [n][d_head]; `side` 0: keys before RoPE,
 * 1: values. Bad checksums, negative or non-finite numbers are errors.
 */
int kvd_fisher_rows(kvd_fisher *f, int side, int layer, int kv_head, size_t first, size_t n,
                    float *rows, kvd_err *err);

/*
 * Creates a file with zero sums and space for n_rows tokens, from model, label, corpus_hash,
 * n_tokens, n_sequences, seq_len, layers and n_rows of *f.
 */
int kvd_fisher_create(kvd_fisher *f, const char *path, const kvd_run *run, kvd_err *err);
/*
 * Writes a layer's squared gradients of n tokens, rows [n_kv_heads][n][d_head]; `side` 0: keys
 * before RoPE, 1: values.
 */
int kvd_fisher_put_rows(kvd_fisher *f, int side, int layer, size_t first, size_t n,
                        const float *rows, kvd_err *err);
/* Writes the sums, completes the file and closes it. */
int kvd_fisher_finish(kvd_fisher *f, kvd_err *err);

#endif
