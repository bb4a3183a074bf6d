/* State of methods whose decode steps read only a part of the cached tokens. */
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
    /* layers: number of layers without a sliding window. kv: number of KV heads of a layer.
     * max_len: number of tokens of the longest request. */
    size_t layers, kv, max_len;
    size_t n_slots, pool_pages;
    /* [n_slots] Number of tokens of the running request in each slot. It becomes 0 after the
     * request's last iteration. */
    size_t *tokens;
    /* [n_slots] Number of tokens that the request in each slot had after the latest iteration. */
    size_t *held;
    size_t rows, row_pages, max_pages;
    /* [layers][pages][bytes per page] in device memory: data from which decode steps compute token
     * scores. The data are key bounds, mean keys, centroid indices or attention probabilities,
     * depending on the method. */
    char *sides;
    size_t side;
    float *lse; /* device [rows][group], for decode steps */
    /* [max_slices] in pinned memory: number of tokens that each decode step read, if this number
     * depends on the queries. */
    unsigned long long *read;
    /* [n_slots] Number of cached tokens that the latest decode step did not read, averaged over KV
     * heads and layers. */
    double *unread;
    /* Data of method a2ats: index of the centroid nearest to each key, in all layers. */
    struct {
        /* Kernel arguments for layer 0. The arguments for other layers are derived from them. */
        kvd_selection_codes of;
        double *frequency[2]; /* device angular frequencies of both RoPE bases */
    } codes;
    /* For method mpcache: numbers of cached tokens, which differ between layers, and buffers for
     * choosing these tokens. */
    struct {
        /* [layers][max_slices] Number of cached tokens of each request, including the new token.
         * `length` is in pinned memory, `lengths` in device memory. */
        int32_t *length, *lengths;
        size_t *entries; /* [n_slots][layers] number of cached tokens */
        kvd_evict_budget *budget;
        float *mass;
        int32_t *kept;
    } late;
    /* Data of method shadowkv: latent vectors and exact keys, in device memory. */
    struct {
        /* Kernel arguments for layer 0. The arguments for other layers are derived from them. */
        kvd_selection_shadow of;
        /* wide: number of elements of a token's keys in a layer, n_kv_heads * d_head. kept: rank at
         * which prompt keys are stored, without padding. */
        size_t wide, kept;
        size_t *prompt; /* host [n_slots] number of prompt tokens */
        /* [n_slots][layers][wide][rank] Right singular vectors of each request's prompt keys. */
        uint16_t *basis;
        uint16_t *latents; /* [layers][pool_pages][64 * rank] */
        /* For all layers: V of all tokens, exact keys of the newest tokens, and exact keys of
         * chosen groups of prompt tokens. */
        uint16_t *values, *keys, *outliers;
        kvd_pages tail;
        uint16_t *rows; /* latents of new tokens, [max_tokens][rank] */
        /* Arguments in device memory for rebuilding keys from latent vectors. head: layout of each
         * KV head. run: for every 8 latent dimensions, the index in a page at which they begin. */
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

/* Returns the kernel arguments for the n requests of the batch from index `from` on. */
kvd_selection kvd_selection_of_rows(const kvd_selection_method *e, int layer, size_t from,
                                    size_t n);

/* Returns true if the method drops prompt tokens. Layers then cache different numbers of tokens. */
static inline bool kvd_selection_is_late(const kvd_selection_method *e)
{
    return e->rule.ranking == KVD_READ_CLUSTERS;
}
/* Returns the number of tokens that a layer caches for a request of n tokens. */
size_t kvd_selection_cached(const kvd_selection_method *e, size_t slot, size_t layer, size_t n);

/* Returns a device array with the number of cached tokens of each request of the batch in a
 * layer. */
int32_t *kvd_selection_lengths_of(const kvd_selection_method *e, int layer);

/* Sets the callbacks of e->method for a method that drops prompt tokens. */
void kvd_selection_late_describe(kvd_selection_method *e);
/* Allocates e->late: the numbers of cached tokens per layer, and scratch memory for dropping prompt
 * tokens. The caller must have set e->n_slots and e->layers. */
int kvd_selection_late_make(kvd_selection_method *e, kvd_err *err);
/* Records how many tokens each layer caches for the i-th request of an iteration. */
void kvd_selection_late_ended(kvd_selection_method *e, const kvd_slice *s, size_t i);

/* Returns true if prompt keys are stored as latent vectors, as in method shadowkv. */
static inline bool kvd_selection_has_shadow(const kvd_selection_method *e)
{
    return e->rule.ranking == KVD_READ_LANDMARKS;
}
/* Sets e->method's callbacks for method shadowkv. Fails for unsupported models or parameters. */
int kvd_selection_shadow_describe(kvd_selection_method *e, kvd_err *err);
/* Allocates the arrays of method shadowkv whose sizes depend on e->rows and e->row_pages. */
int kvd_selection_shadow_work(kvd_selection_method *e, kvd_err *err);
int kvd_selection_shadow_make(kvd_selection_method *e, kvd_err *err);
void kvd_selection_shadow_free(kvd_selection_method *e);
/* Records the lengths of new prompts. Fails if a prompt's keys could not be decomposed. */
int kvd_selection_shadow_ended(kvd_selection_method *e, const kvd_iteration *it, kvd_err *err);
int kvd_selection_shadow_append(const kvd_selection_method *e, const kvd_paged_rows *r,
                                kvd_err *err);
void kvd_selection_shadow_drop(kvd_selection_method *e, size_t slot);
/* Queues a kernel that writes the device array e->len, the number of tokens that each decode step
 * reads. */
int kvd_selection_shadow_lengths(const kvd_selection_method *e, const kvd_selection *s,
                                 cudaStream_t stream, kvd_err *err);
/* Chooses the tokens that decode steps read, and rebuilds their keys from latent vectors. The time
 * of choosing counts as KVD_PHASE_COMPRESS, the time of rebuilding as KVD_PHASE_RESTORE. */
int kvd_selection_shadow_choose(const kvd_selection_method *e, const kvd_selection *s,
                                const kvd_selected *to, const kvd_paged_rows *r, kvd_err *err);

#endif
