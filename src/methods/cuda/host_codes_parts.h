/* Private data structures for quantising K and V on the CPU, shared by the files that implement
 * host_codes.h. */
#ifndef KVD_METHODS_CUDA_HOST_CODES_PARTS_H
#define KVD_METHODS_CUDA_HOST_CODES_PARTS_H

#include "methods/bits/cuda/streams.h"
#include "methods/cuda/host_codes.h"

#define KVD_HOST_CODES_WHAT "codes on the CPU" /* in messages */

/* State of a request with n tokens. K and V of the tokens before index `first` are quantised. */
typedef struct {
    size_t n, first;
    size_t coded[KVD_N_SIDES];
    bool prompt; /* true: the latest iteration brought the prompt */
    bool apart;  /* true: kvd_host_codes.prompts coded tokens of the prompt */
    /* Number of bits of the K and V that the CPU has quantised, summed over the layers without a
     * sliding window. */
    double bits;
    /* [n] Number of bits of each token's quantised K and V, summed over the layers with a sliding
     * window. */
    double *near;
    size_t room;   /* of `near` */
    double unseen; /* bits of tokens that the latest step no longer read */
    /* [n_layers] arrays [n - first][pitch]: K and V of tokens first .. n - 1. Quantised numbers are
     * replaced by their decoded values. */
    uint16_t **row;
    /* [n_layers] arrays [n - first][n_kv_heads]: attention probabilities that tokens first .. n - 1
     * received. NULL if the method does not need them. */
    double **mass;
    uint32_t *state; /* [n_layers][n_parts][states] states of the entropy coder */
} kvd_host_slot;

/* Kinds of layers: without a sliding window (KVD_LAYERS_FULL) and with one (KVD_LAYERS_NEAR). */
enum { KVD_LAYERS_FULL, KVD_LAYERS_NEAR, KVD_LAYER_KINDS };

/* Rows of a request that are written to the GPU's cache again after quantisation. Arrays
 * [KVD_LAYER_KINDS] have an element for layers without a window and one for layers with a
 * window. */
typedef struct {
    kvd_host_slot *slot;
    bool changed;                                       /* false: no token was quantised */
    size_t from[KVD_LAYER_KINDS], end[KVD_LAYER_KINDS]; /* positions of the tokens */
    size_t at[KVD_LAYER_KINDS]; /* row of the first of them in kvd_host_codes.row */
    size_t ready[KVD_N_SIDES];  /* number of tokens that are coded after the iteration */
    double near[KVD_N_SIDES];   /* bits of the codes of layers with a window */
} kvd_host_written;

struct kvd_host_codes {
    kvd_gpu_method *method; /* borrowed */
    kvd_host_rows rows;
    kvd_host_part *part; /* rows.part */
    size_t layers;
    size_t pitch;  /* elements of a row on the CPU: rows.width, then the layer's input */
    size_t states; /* elements of kvd_bits_block.state */
    /* Number of elements of a token's K or V, summed over the layers without a sliding window, or
     * over the layers with one. */
    size_t numbers[KVD_LAYER_KINDS][KVD_N_SIDES];
    /* RoPE tables of kvd_host_codes_rope: `rope` applies RoPE, `back` undoes it. A table that is
     * not needed is NULL. */
    float *rope, *back;
    /* [layers][room][pitch] Buffer of K and V in pinned memory, one token per row. The GPU writes K
     * and V of new tokens here, and reads dequantised K and V from here. */
    uint16_t *row;
    /* Number of rows of each layer in `row`. It may grow before an iteration, up to max_tokens. */
    size_t room;
    uint16_t *x;                 /* device [max_tokens][rows.ld] */
    kvd_host_received *received; /* attention probabilities, or NULL if the method needs none */
    int32_t *list;               /* pinned [KVD_LAYER_KINDS][4][max_slices] */
    int32_t *lists;              /* device copy of `list` */
    kvd_host_written *written;   /* [max_slices] */
    kvd_host_slot *slot;         /* [n_slots] */
    size_t n_slots;
    kvd_kvtc_prompt_coder *prompts; /* GPU code that compresses prompts, or NULL */
    kvd_device_memory memory;
};

/* Returns KVD_LAYERS_NEAR if a layer has a sliding window, else KVD_LAYERS_FULL. */
static inline int kvd_host_codes_kind(const kvd_host_codes *k, size_t layer)
{
    return k->method->cache->layer[layer].map.window ? KVD_LAYERS_NEAR : KVD_LAYERS_FULL;
}

/* Returns the index of the oldest of a request's n tokens that is still stored. kind:
 * KVD_LAYERS_NEAR for layers with a sliding window, KVD_LAYERS_FULL for layers without one. */
static inline size_t kvd_host_codes_first_held(const kvd_host_codes *k, int kind, size_t n)
{
    return kind == KVD_LAYERS_NEAR ? kvd_gpu_first_held(k->method, k->method->cache->window, n) : 0;
}

/* Quantises the first w[i].ready tokens of each of n requests, unless they are quantised already.
 * Replaces their K and V by decoded values, and adds the bits of their codes to the request's
 * totals. Uses all threads. */
int kvd_host_codes_quantise(const kvd_host_codes *k, kvd_host_written *w, size_t n, kvd_err *err);

#endif
