/* kvdim/moments files: X^T X in float64 per tensor, layer and head. A row of X is a token. */
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
/* names of the datasets: "q" ... "w_v" */
extern const char *const kvd_g_name[KVD_N_G];

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[KVD_CORPUS_HASH_TEXT];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    bool has_pre;
    /* [n_layers][heads][d_head][d_head] X^T X, with X = Q, K, V, W_O^T, W_V; NULL if absent */
    double *gram[KVD_N_G];
} kvd_moments;

/* Returns n_heads for Q and W_O, else n_kv_heads. */
int kvd_moments_heads(const kvd_moments *m, kvd_g g);
double *kvd_moments_at(const kvd_moments *m, kvd_g g, int layer, int head);
/* Returns the number of doubles in all matrices X^T X of a tensor, or 0 if the tensor was not
 * recorded. */
size_t kvd_moments_count(const kvd_moments *m, kvd_g g);
double kvd_moments_bytes(const kvd_moments *m);

/* Allocates the second-moment matrices X^T X, all elements 0. The caller has set the model, the
 * layers and has_pre, which is true if Q and K before RoPE are recorded too. */
int kvd_moments_alloc(kvd_moments *m, kvd_err *err);
int kvd_moments_write(kvd_h5 *f, const kvd_moments *m, kvd_err *err);
/* Reads second-moment matrices. Fails if an element is not finite, if a diagonal element is
 * negative, or if another element is larger than the diagonal allows. */
int kvd_moments_load(kvd_moments *m, const char *path, kvd_err *err);
/* Adds the second moments of another text to *sum. Fails if the models differ in shape, or in
 * second moments of W_O or W_V by a relative error above 1e-9. */
int kvd_moments_add(kvd_moments *sum, const char *sum_path, const kvd_moments *other,
                    const char *other_path, kvd_err *err);
void kvd_moments_release(kvd_moments *m);

#endif
