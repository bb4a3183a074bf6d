/* kvdim/activations files: Q, K and V of a text as [layer][head][token][dim], with W_O and W_V. */
#ifndef KVD_FORMATS_ACTIVATIONS_H
#define KVD_FORMATS_ACTIVATIONS_H

#include <stdbool.h>

#include "common/files/checksums.h"
#include "common/half.h"
#include "formats/model_info.h"

extern const kvd_schema kvd_schema_activations;

typedef enum { KVD_X_Q, KVD_X_K, KVD_X_V, KVD_X_Q_PRE, KVD_X_K_PRE, KVD_N_X } kvd_x;
/* names of the datasets: "q", "k", "v", "q_pre", "k_pre" (before RoPE) */
extern const char *const kvd_x_name[KVD_N_X];

/* Indices of the datasets of a file: 0 .. KVD_N_X - 1 for Q, K and V, then W_O, W_V, and three
 * datasets with one number per token. */
enum { KVD_SET_W_O = KVD_N_X, KVD_SET_W_V, KVD_SET_TOKEN, KVD_N_SETS = KVD_SET_TOKEN + 3 };

typedef struct {
    kvd_h5 file;
    kvd_model_info model;
    char label[64];
    char corpus_hash[KVD_CORPUS_HASH_TEXT];
    size_t n_tokens, n_sequences, seq_len;
    /* index 0 of a layer axis is the model's layer first_layer */
    int first_layer, n_layers;
    kvd_dtype dtype;
    bool has_pre;
    /* open datasets; H5I_INVALID_HID if absent */
    hid_t x[KVD_N_X];
    hid_t w_o, w_v;
    int fd; /* file descriptor of the open file; HDF5 closes it */
    /* byte position of each tensor in the file; UINT64_MAX if the tensor is stored in chunks */
    uint64_t at[KVD_N_X];
    kvd_checksums checksums[KVD_N_SETS];
} kvd_activations;

/* Opens a completely written activations file and checks the shape of every dataset. */
int kvd_activations_open(kvd_activations *a, const char *path, kvd_err *err);
void kvd_activations_close(kvd_activations *a);

/* Returns n_heads for Q, n_kv_heads for K and V. */
int kvd_activations_heads(const kvd_activations *a, kvd_x x);

/* Reads n tokens of one head as float32 [n][d_head]. `scratch`: n * d_head * 4 bytes. */
int kvd_activations_rows(kvd_activations *a, kvd_x x, int layer, int head, size_t first, size_t n,
                         float *rows, void *scratch, kvd_err *err);

/* Finds the sequences in n_tokens tokens. Sequence i begins at (*start)[i]; (*start)[*n] is
 * n_tokens. The caller frees *start. */
int kvd_activations_sequences(kvd_activations *a, size_t n_tokens, size_t **start, size_t *n,
                              kvd_err *err);

/* Reads W_O of a query head as float32 [d_head][d_model]. */
int kvd_activations_w_o(kvd_activations *a, int layer, int head, float *w, kvd_err *err);
/* Reads W_V^T of a KV head as float32 [d_head][d_model]. */
int kvd_activations_w_v(kvd_activations *a, int layer, int kv_head, float *w, kvd_err *err);

/* Creates PATH.partial. The caller has set model, sizes and names in *a. have_lock: true if the
 * caller already holds the lock on PATH.partial. */
int kvd_activations_create(kvd_activations *a, const char *path, const kvd_run *run, bool have_lock,
                           kvd_err *err);
/* Continues an interrupted PATH.partial. If there is no such file, a->file.id is
 * H5I_INVALID_HID. */
int kvd_activations_reopen(kvd_activations *a, const char *path, const kvd_run *run, kvd_err *err);

/* Writes n tokens of one head, [n][d_head] in the file's type. Thread-safe. */
int kvd_activations_put_rows(kvd_activations *a, kvd_x x, int layer, int head, size_t first,
                             size_t n, const void *rows, kvd_err *err);
int kvd_activations_put_tokens(kvd_activations *a, size_t first, size_t n, const uint32_t *id,
                               const uint32_t *sequence, const uint32_t *position, kvd_err *err);
/* Writes w_o [n_heads][d_head][d_model] and w_v [n_kv_heads][d_head][d_model] of a layer. A value
 * beyond the range of the file's number type is an error. */
int kvd_activations_put_weights(kvd_activations *a, int layer, const float *w_o, const float *w_v,
                                kvd_err *err);

/* Reads the first n_tokens tokens of a reopened file, and computes the checksum of each dataset
 * again. *total receives one checksum over all datasets. */
int kvd_activations_recount(kvd_activations *a, size_t n_tokens, uint64_t *total, kvd_err *err);
/* Returns a checksum of all tokens written so far. No other thread may write at the same time. */
uint64_t kvd_activations_checksum(const kvd_activations *a);

/* Renames PATH.partial to PATH and closes it. On failure PATH.partial remains. */
int kvd_activations_finish(kvd_activations *a, kvd_err *err);
/* Closes *a and removes PATH.partial unless keep_partial. Does nothing if *a is all zeros or
 * already finished. */
void kvd_activations_abandon(kvd_activations *a, bool keep_partial);

#endif
