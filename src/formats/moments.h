/*
 * kvdim/moments files: Gram matrices X^T X in float64, one d_head x d_head matrix per tensor, layer
 * and head; the rows of X are the vectors of all tokens. The size of a file does not depend on the
 * number of tokens. Files of one model can be added.
 */
#ifndef KVD_FORMATS_MOMENTS_H
#define KVD_FORMATS_MOMENTS_H

#include <stdbool.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_moments;

typedef enum {
    KVD_G_Q,
    KVD_G_K,
    KVD_G_V,
    KVD_G_Q_PRE,
    KVD_G_K_PRE,
    KVD_G_W_O,
    KVD_G_W_V,
    KVD_N_G
} kvd_g;
/* Names of the HDF5 datasets with Gram matrices, /gram/<name>: "q" ... "w_v". */
extern const char *const kvd_g_name[KVD_N_G];

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    bool has_pre;
    /*
     * Gram matrices of each tensor: [n_layers][n_heads or n_kv_heads][d_head][d_head]. NULL if the
     * tensor was not recorded. For the weights of a head they are W_O W_O^T and W_V^T W_V, where
     * W_O is [d_head][d_model] and W_V is [d_model][d_head].
     */
    double *gram[KVD_N_G];
} kvd_moments;

/*
 * Returns the number of heads for which tensor `g` has Gram matrices: n_heads for Q and W_O,
 * n_kv_heads for K, V and W_V.
 */
int kvd_moments_heads(const kvd_moments *m, kvd_g g);
/* Returns the address of the Gram matrix [d_head][d_head] of tensor g, for one layer and head. */
double *kvd_moments_at(const kvd_moments *m, kvd_g g, int layer, int head);
/*
 * Returns the number of doubles in the Gram matrices of tensor g, over all layers and heads; 0 if
 * absent.
 */
size_t kvd_moments_count(const kvd_moments *m, kvd_g g);
/*
 * Returns the bytes of memory that kvd_moments_alloc would allocate for the model and layers set in
 * *m, and for has_pre (Q and K are recorded before RoPE as well).
 */
double kvd_moments_bytes(const kvd_moments *m);

/*
 * Allocates zeroed Gram matrices for the model and layers set in *m, and for has_pre (Q and K are
 * recorded before RoPE as well).
 */
int kvd_moments_alloc(kvd_moments *m, kvd_err *err);
int kvd_moments_write(kvd_h5 *f, const kvd_moments *m, kvd_err *err);
/*
 * Reads a kvdim/moments file. Refuses Gram matrices with non-finite elements or a negative
 * diagonal.
 */
int kvd_moments_load(kvd_moments *m, const char *path, kvd_err *err);
/*
 * Adds the Gram matrices `other`, computed from another text, to `sum`. Adds the token counts and
 * the matrices of Q, K and V. The matrices of weights are not added, but must agree to 1e-9 of the
 * largest element. The label becomes "a+b", the corpus hash that of both texts (independent of the
 * order), and seq_len the larger one. Fails, naming both files, if the models, the recorded layers,
 * or has_pre (Q and K recorded before RoPE) differ.
 */
int kvd_moments_add(kvd_moments *sum, const char *sum_path, const kvd_moments *other,
                    const char *other_path, kvd_err *err);
void kvd_moments_release(kvd_moments *m);

#endif
