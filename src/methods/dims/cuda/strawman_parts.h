#ifndef KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H
#define KVD_METHODS_DIMS_CUDA_STRAWMAN_PARTS_H

#include "methods/dims/cuda/latents.h"
#include "methods/tokens/cuda/zdc_method.h"

/* Less important tokens store only the columns of kvd_plan.widths_low. Device arrays. */
typedef struct {
    /* [n_layers][n] Columns of other tokens. NULL: all tokens are equal. */
    kvd_latent_basis *low;
    kvd_zdc_levels of;
    /* Host [n_layers]: bytes that each other (less important) token saves. */
    double *saved;
    /* Bytes that other (less important) tokens of all slots save. */
    double less;
} kvd_strawman_levels;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_latent_store store;
    kvd_gpu_worker *w;
    /* Number of KV heads times 2 (K and V), and largest rank, a multiple of 16. */
    int n, wide;
    /* True if slots have no matrices but share kvd_plan.widths. */
    bool shared;
    /* Device [n_layers][n]: projections of a layer. */
    kvd_latent_basis *basis;
    /* [n_layers] Offset of a layer's matrices in a slot, and elements of a slot. */
    size_t *layer_at, each;
    /* Elements without padding: of a slot's matrices, and of a token in all layers. */
    size_t matrix_kept, token_kept;
    /* Device [slots][n_layers]: projections of all heads, K first. */
    uint16_t *matrix;
    /* Device [n][d_head][wide] zero-padded, per prompt or (shared) layer. NULL: equal ranks. */
    uint16_t *padded;
    /* Device [max_tokens][n][d_head] K and V of prompts. */
    uint16_t *rows;
    /* Device [max_tokens][n_heads][d_head] Q of prompts; NULL without Q^T Q (online=1). */
    uint16_t *queries;
    /* Device [max_tokens][n][wide] projected K and V. */
    uint16_t *cut;
    float *gram;
    /* Device [n_layers][n_kv_heads][d_head][d_head] W_O W_O^T, or NULL. */
    float *outputs;
    kvd_latent_solver solver;
    /* Pinned [max_slices][n_layers][n] decomposition status. */
    int *host_info;
    size_t prompts; /* number of prompts in the iteration */
    kvd_strawman_levels levels;
} kvd_strawman;

/* Returns the kept dimensions of K (side 0) or V (side 1). */
int kvd_strawman_width(const kvd_strawman *s, const kvd_dims *widths, int layer, int side, int g);

/* Allocates the arrays whose size does not depend on the number of slots, and s->method.lse. */
int kvd_strawman_levels_make(kvd_strawman *s, kvd_err *err);
int kvd_strawman_levels_make_slots(kvd_strawman *s, size_t slots, kvd_err *err);
/* Prepares an iteration. Must be called before each. */
int kvd_strawman_levels_begin(kvd_strawman *s, const kvd_iteration *it, kvd_err *err);
/* Chooses important tokens. Must be called after the attention of the prompts. */
int kvd_strawman_levels_choose(kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
int kvd_strawman_levels_narrow(const kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err);
/* Updates the byte counts. Must be called after each iteration, before kvd_latent_store_note. */
void kvd_strawman_levels_ended(kvd_strawman *s, const kvd_iteration *it);
/* Returns the elements that less important tokens save, over all layers. */
double kvd_strawman_levels_low(const kvd_strawman *s, size_t slot);
/* Returns a slot's less important tokens, summed over KV heads and layers. */
size_t kvd_strawman_levels_tokens(const kvd_strawman *s, size_t slot);

#endif
