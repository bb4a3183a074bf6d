/*
 * kvdim/moments: second moments X^T X in float64, d_head x d_head per layer and head: constant size
 * whatever the number of tokens; files of one model add.
 */
#ifndef KVD_FORMATS_MOMENTS_H
#define KVD_FORMATS_MOMENTS_H

#include <stdbool.h>

#include "formats/model_info.h"

extern const kvd_schema kvd_schema_moments;

typedef enum { KVD_G_Q, KVD_G_K, KVD_G_V, KVD_G_Q_PRE, KVD_G_K_PRE, KVD_G_W_O, KVD_G_W_V, KVD_N_G } kvd_g;
extern const char *const kvd_g_name[KVD_N_G]; /* "q" ... "w_v": dataset /gram/<name> */

typedef struct {
    kvd_model_info model;
    char label[64];
    char corpus_hash[40];
    size_t n_tokens, n_sequences, seq_len;
    int first_layer, n_layers;
    bool has_pre;
    double *gram[KVD_N_G]; /* [n_layers][heads of it][d_head][d_head]; NULL when absent   */
} kvd_moments;

/*
 * What the weights' sums are: w_o of a head is W_O^h W_O^hT, w_v is W_V^hT W_V^h in the paper's
 * notation (W_V^h [d_model][d_head]): both X^T X of d_model rows of d_head values.
 */

/* Heads of gram g: n_heads for q, q_pre, w_o; n_kv_heads for the others. */
int kvd_moments_heads(const kvd_moments *m, kvd_g g);
/* &gram[g][layer][head][0][0] */
double *kvd_moments_at(const kvd_moments *m, kvd_g g, int layer, int head);
/* Doubles in gram[g]; 0 when it is absent. */
size_t kvd_moments_count(const kvd_moments *m, kvd_g g);

/* Allocates zeroed sums for the model, layers and has_pre in *m. */
int kvd_moments_alloc(kvd_moments *m, kvd_err *err);
int kvd_moments_write(kvd_h5 *f, const kvd_moments *m, kvd_err *err);
/* Reads a whole file; refuses non-finite sums and negative diagonals. */
int kvd_moments_load(kvd_moments *m, const char *path, kvd_err *err);
/*
 * sum += other: activations' sums and token counts add, weights' sums must agree (to 1e-9 of the
 * largest). Fails naming both files when model, layers or has_pre differ. The label becomes "a+b",
 * the corpus hash one of both (in any order the same), seq_len the larger.
 */
int kvd_moments_add(kvd_moments *sum, const char *sum_path, const kvd_moments *other, const char *other_path,
                    kvd_err *err);
void kvd_moments_release(kvd_moments *m);

#endif
