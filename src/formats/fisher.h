/*
 * kvdim/fisher files: squared gradients of the losses of sequences, sum(-log p), by K, V, W_K and
 * W_V.
 */
#ifndef KVD_FORMATS_FISHER_H
#define KVD_FORMATS_FISHER_H

#include "common/files/checksums.h"
#include "formats/model_info.h"

extern const kvd_schema kvd_schema_fisher;

/* tensors with gradients: keys after RoPE, keys before RoPE, values */
typedef enum { KVD_F_K, KVD_F_K_PRE, KVD_F_V, KVD_N_F } kvd_f;
/*
 * Number of tensors for which gradients of weights are stored: W_K (keys before RoPE) and W_V
 * (values).
 */
enum { KVD_F_SIDES = 2 };

typedef struct kvd_fisher {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    size_t n_predicted;   /* number of tokens whose next token is known: n_tokens - n_sequences */
    double loss;          /* loss in nats, summed over all sequences */
    double *sum[KVD_N_F]; /* [n_layers][n_kv_heads][d_head] squared gradients, summed over tokens */
    /* [n_layers][n_kv_heads] squared gradients of W_K, W_V, summed over sequences and elements */
    double *weight[KVD_F_SIDES];
    /*
     * [n_layers][n_kv_heads] Root mean square over sequences of the gradient of each weight, mean
     * over a head's weights.
     */
    double *root[KVD_F_SIDES];
    /*
     * [n_layers][n_kv_heads d_head][n_kv_heads d_head] Sum over tokens of g^T g, with the gradient
     * g by K or V of all KV heads; NULL if absent.
     */
    double *moment[KVD_F_SIDES];
    size_t n_rows; /* number of tokens whose squared gradients are stored one by one */
    kvd_h5 file;
    /*
     * float32 [n_layers][n_kv_heads][n_rows][d_head] Squared gradients by K or V of the first
     * n_rows tokens.
     */
    hid_t row[KVD_F_SIDES];
    kvd_checksums checksums[KVD_F_SIDES];
} kvd_fisher;

/* Opens a complete file and reads the sums. A negative sum of squares is an error. */
int kvd_fisher_open(kvd_fisher *f, const char *path, kvd_err *err);
/* Closes the file and removes an unfinished one. Safe on a zeroed *f. */
void kvd_fisher_close(kvd_fisher *f);

/*
 * Reads squared gradients [n][d_head] of a KV head by K before RoPE (`side` 0) or by V (`side` 1).
 */
int kvd_fisher_rows(kvd_fisher *f, int side, int layer, int kv_head, size_t first, size_t n,
                    float *rows, kvd_err *err);

/*
 * Creates a file with zeroed sums and space for n_rows tokens. The caller has filled the
 * description in *f.
 */
int kvd_fisher_create(kvd_fisher *f, const char *path, const kvd_run *run, kvd_err *err);
/* Writes squared gradients [n_kv_heads][n][d_head] by K before RoPE (side 0) or by V (side 1). */
int kvd_fisher_put_rows(kvd_fisher *f, int side, int layer, size_t first, size_t n,
                        const float *rows, kvd_err *err);
/* Writes the sums, completes the file and closes it. */
int kvd_fisher_finish(kvd_fisher *f, kvd_err *err);

#endif
