/* State of methods whose steps read part of the cache. */
#ifndef KVD_METHODS_TOKENS_CUDA_SELECTION_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_SELECTION_METHOD_H

#include "methods/cuda/paged_cache.h"
#include "methods/dims/cuda/latent_span.h"
#include "methods/dims/cuda/latents.h"
#include "methods/tokens/cuda/selection.h"

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_attn_map one;      /* shape of one KV head with its query heads */
    kvd_read_rule rule;
    /* Number of layers without a window, of KV heads, and of tokens of the longest request. */
    size_t layers, kv, max_len;
    size_t n_slots, pool_pages;
    /* [n_slots] Number of tokens of each running request, or 0 after its last iteration. */
    size_t *tokens;
    /* [n_slots] Number of tokens of each request after the latest iteration. */
    size_t *held;
    size_t rows, row_pages, max_pages;
    /* [layers][pages][bytes per page] in device memory: key bounds, mean keys, codes or
     * probabilities by which steps choose tokens. */
    char *sides;
    size_t side;
    float *lse; /* device [rows][group], for decode steps */
    /* [max_slices] Pinned: number of tokens that each step read, if it varies. */
    unsigned long long *read;
    /* [n_slots] Number of tokens that the latest step skipped, mean over KV heads and layers. */
    double *unread;
    /* Index of the centroid nearest to each key, for all layers. */
    struct {
        /* Kernel arguments for layer 0, from which those of other layers are made. */
        kvd_selection_codes of;
        double *frequency[2]; /* device angular frequencies of both RoPE bases */
    } codes;
    /* Numbers of cached tokens, for methods whose layers cache different numbers. */
    struct {
        /* [layers][max_slices] Cached token counts, new one included: pinned, and on the device. */
        int32_t *length, *lengths;
        size_t *entries; /* [n_slots][layers] number of cached tokens */
        kvd_evict_budget *budget;
        float *mass;
        int32_t *kept;
    } late;
    /* Latent vectors and exact keys of method shadowkv, in device memory. */
    struct {
        /* Kernel arguments for layer 0, from which those of other layers are made. */
        kvd_selection_shadow of;
        /* Number of elements of all keys of a token in a layer (n_kv_heads * d_head), and rank of
         * the keys without padding. */
        size_t wide, kept;
        size_t *prompt; /* host [n_slots] number of prompt tokens */
        /* [n_slots][layers][wide][rank] Right singular vectors of each request's prompt keys. */
        uint16_t *basis;
        uint16_t *latents; /* [layers][pool_pages][64 * rank] */
        /* All layers: values, exact keys of newest tokens, exact keys of chosen prompt pages. */
        uint16_t *values, *keys, *outliers;
        kvd_pages tail;
        uint16_t *rows; /* latents of new tokens, [max_tokens][rank] */
        /* Device tables for rebuilding keys: description of each KV head, and page offsets. */
        kvd_latent_head *head;
        int32_t *run;
        kvd_latent_span span;
        float *captured; /* pinned [layers][max_slices], of kvd_latent_span_rows */
        size_t prompts;  /* number of prompts in the iteration */
    } shadow;
    cudaStream_t stream;
    int32_t *len, *heads;
    kvd_selected to;
    void *workspace;
    kvd_device_memory memory;
} kvd_selection_method;

/* Returns kernel arguments for rows from .. from + n - 1 of the batch. */
kvd_selection kvd_selection_of_rows(const kvd_selection_method *e, int layer, size_t from,
                                    size_t n);

/* Returns true if prompt tokens are dropped, so that layers cache different numbers of tokens. */
static inline bool kvd_selection_is_late(const kvd_selection_method *e)
{
    return e->rule.ranking == KVD_READ_CLUSTERS;
}
/* Returns the number of tokens that a layer caches for a request of n tokens. */
size_t kvd_selection_cached(const kvd_selection_method *e, size_t slot, size_t layer, size_t n);

/* Returns a device array with the number of cached tokens of each request in a layer. */
int32_t *kvd_selection_lengths_of(const kvd_selection_method *e, int layer);

/* Sets e->method's callbacks for methods that drop prompt tokens. */
void kvd_selection_late_describe(kvd_selection_method *e);
/* Allocates e->late: numbers of cached tokens per layer, and scratch memory for dropping prompt
 * tokens. e->n_slots and e->layers must be set. */
int kvd_selection_late_make(kvd_selection_method *e, kvd_err *err);
/* Records how many tokens each layer caches for request i. */
void kvd_selection_late_ended(kvd_selection_method *e, const kvd_slice *s, size_t i);

/* Returns true if prompt keys are stored as latent vectors, as in method shadowkv. */
static inline bool kvd_selection_has_shadow(const kvd_selection_method *e)
{
    return e->rule.ranking == KVD_READ_LANDMARKS;
}
/* Sets e->method's callbacks for method shadowkv. Fails for unsupported models or parameters. */
int kvd_selection_shadow_describe(kvd_selection_method *e, kvd_err *err);
/* Allocates the arrays of e->shadow whose sizes depend on e->rows and e->row_pages. */
int kvd_selection_shadow_work(kvd_selection_method *e, kvd_err *err);
int kvd_selection_shadow_make(kvd_selection_method *e, kvd_err *err);
void kvd_selection_shadow_free(kvd_selection_method *e);
/* Stores the lengths of new prompts. Fails if the decomposition of a prompt's keys failed. */
int kvd_selection_shadow_ended(kvd_selection_method *e, const kvd_iteration *it, kvd_err *err);
int kvd_selection_shadow_append(const kvd_selection_method *e, const kvd_paged_rows *r,
                                kvd_err *err);
void kvd_selection_shadow_drop(kvd_selection_method *e, size_t slot);
/* Queues a kernel that writes e->len, the numbers of tokens that requests read, on the device. */
int kvd_selection_shadow_lengths(const kvd_selection_method *e, const kvd_selection *s,
                                 cudaStream_t stream, kvd_err *err);
/* Chooses the tokens that decode steps read, and rebuilds their keys. The time counts as
 * KVD_PHASE_COMPRESS (choosing) and KVD_PHASE_RESTORE (rebuilding). */
int kvd_selection_shadow_choose(const kvd_selection_method *e, const kvd_selection *s,
                                const kvd_selected *to, const kvd_paged_rows *r, kvd_err *err);

#endif
