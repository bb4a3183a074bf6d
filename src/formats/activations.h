/*
 * kvdim/activations: Q, K, V of every token. One contiguous dataset each, [layer][head][token][dim],
 * in the dtype of the dump; ids, sequences and positions beside them; W_O and W_V of every head.
 */
#ifndef KVD_FORMATS_ACTIVATIONS_H
#define KVD_FORMATS_ACTIVATIONS_H

#include <stdbool.h>

#include "common/half.h"
#include "formats/model_info.h"

extern const kvd_schema kvd_schema_activations;

typedef enum { KVD_X_Q, KVD_X_K, KVD_X_V, KVD_X_Q_PRE, KVD_X_K_PRE, KVD_N_X } kvd_x;
extern const char *const kvd_x_name[KVD_N_X]; /* "q", "k", "v", "q_pre", "k_pre" */

typedef struct {
    kvd_h5 file;
    kvd_model_info model;
    char label[64]; /* what the texts are called in tables              */
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers; /* --layers A-B: layer index 0 here is first_layer of the model */
    kvd_dtype dtype;
    bool has_pre;
    hid_t x[KVD_N_X]; /* open datasets                                     */
} kvd_activations;

/* Opens a complete dump and checks every dataset's shape against /model and /tokens. */
int kvd_activations_open(kvd_activations *a, const char *path, kvd_err *err);
void kvd_activations_close(kvd_activations *a);

/* Number of heads of tensor x: n_heads or n_kv_heads. */
int kvd_activations_heads(const kvd_activations *a, kvd_x x);

/* Rows first .. first+n-1 of one head as float32 [n][d_head]; a non-finite value is an error that
 * names dataset, layer, head, token and dim. scratch: n * d_head * 4 bytes, or NULL for f32. */
int kvd_activations_rows(kvd_activations *a, kvd_x x, int layer, int head, size_t first, size_t n,
                         float *rows, void *scratch, kvd_err *err);

/* W_O^h [d_head][d_model] of a query head / W_V^h transposed [d_head][d_model] of a KV head, float32. */
int kvd_activations_w_o(kvd_activations *a, int layer, int head, float *w, kvd_err *err);
int kvd_activations_w_v(kvd_activations *a, int layer, int kv_head, float *w, kvd_err *err);

#endif
