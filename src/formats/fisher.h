/* kvdim/fisher files: squared gradients of a text's loss with respect to K, V, W_K and W_V. */
#ifndef KVD_FORMATS_FISHER_H
#define KVD_FORMATS_FISHER_H

#include "common/files/checksums.h"
#include "formats/model_info.h"

extern const kvd_schema kvd_schema_fisher;

/* tensors with gradients: keys after RoPE, keys before RoPE, values */
typedef enum { KVD_F_K, KVD_F_K_PRE, KVD_F_V, KVD_N_F } kvd_f;
/* Number of cached matrices per layer: K before RoPE (index 0) and V (index 1). */
enum { KVD_F_SIDES = 2 };

typedef struct kvd_fisher {
    kvd_model_info model;
    char label[64];
    char corpus_hash[KVD_CORPUS_HASH_TEXT];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    size_t n_predicted;   /* number of tokens whose next token is known: n_tokens - n_sequences */
    double loss;          /* loss in nats, summed over all sequences */
    double *sum[KVD_N_F]; /* [n_layers][n_kv_heads][d_head] squared gradients, summed over tokens */
    /* [n_layers][n_kv_heads] squared gradients of W_K (weight[0]) or W_V (weight[1]), summed over
     * sequences and over the elements of a head */
    double *weight[KVD_F_SIDES];
    /* [n_layers][n_kv_heads] gradients of W_K (root[0]) and W_V (root[1]): root mean square of each
     * element over sequences, averaged over the elements of a head */
    double *root[KVD_F_SIDES];
    /* [n_layers][n_kv_heads d_head][n_kv_heads d_head] sum over tokens of g^T g. The row vector g
     * is the gradient of a token's K before RoPE (moment[0]) or V (moment[1]) in all KV heads. NULL
     * if absent. */
    double *moment[KVD_F_SIDES];
    size_t n_rows; /* number of tokens whose squared gradients are stored one by one */
    kvd_h5 file;
    /* float32 [n_layers][n_kv_heads][n_rows][d_head] squared gradients of K before RoPE (row[0]) or
     * V (row[1]), for the first n_rows tokens */
    hid_t row[KVD_F_SIDES];
    kvd_checksums checksums[KVD_F_SIDES];
} kvd_fisher;

/* Opens a complete file and reads its sums of squared gradients. Fails if one is negative. */
int kvd_fisher_open(kvd_fisher *f, const char *path, kvd_err *err);
/* Closes the file and removes it if it is unfinished. *f may be all zeros. */
void kvd_fisher_close(kvd_fisher *f);

/* Reads squared gradients [n][d_head] of K before RoPE (`side` 0) or of V (`side` 1). */
int kvd_fisher_rows(kvd_fisher *f, int side, int layer, int kv_head, size_t first, size_t n,
                    float *rows, kvd_err *err);

/* Creates a file of squared gradients with space for n_rows tokens. The caller has set model, text
 * and sizes in *f. Sets all sums of squared gradients in *f to 0. */
int kvd_fisher_create(kvd_fisher *f, const char *path, const kvd_run *run, kvd_err *err);
/* Writes squared gradients [n_kv_heads][n][d_head] of K before RoPE (side 0) or V (side 1). */
int kvd_fisher_put_rows(kvd_fisher *f, int side, int layer, size_t first, size_t n,
                        const float *rows, kvd_err *err);
/* Writes the sums of squared gradients, completes the file and closes it. */
int kvd_fisher_finish(kvd_fisher *f, kvd_err *err);

#endif
