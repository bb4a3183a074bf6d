/*
 * State of methods whose decode steps read a part of the cache, shared by selection.c and
 * selection_late.c. The methods of selection_late.c also compress prompts. With KVD_READ_CLUSTERS
 * tokens are dropped, so that layers hold different numbers of tokens. With KVD_READ_LANDMARKS keys
 * are stored in low rank.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_SELECTION_METHOD_H
#define KVD_METHODS_TOKENS_CUDA_SELECTION_METHOD_H

#include "methods/cuda/paged_cache.h"
#include "methods/dims/cuda/latent_store.h"
#include "methods/tokens/cuda/selection.h"

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_attn_map one;      /* shape of one KV head with its query heads */
    kvd_read_rule rule;
    /*
     * layers: number of layers without a sliding window, the only layers on which the method acts.
     * kv: number of KV heads. max_len: largest number of tokens of a request.
     */
    size_t layers, kv, max_len;
    size_t n_slots, pool_pages;
    /* [n_slots] Number of tokens of each slot's request, between iterations. */
    size_t *tokens;
    /*
     * [n_slots] Number of tokens at the end of the latest iteration, even if the request finished
     * in that iteration.
     */
    size_t *held;
    size_t rows, row_pages, max_pages;
    /*
     * Device [layers][pool_pages]: for each page, `side` bytes of side information, from which
     * steps choose. The side information is the bounds or the recent probabilities of the page's
     * tokens (kvd_selection).
     */
    char *sides;
    size_t side;
    float *lse; /* device, of decode steps: [rows][group] */
    /*
     * Pinned memory [max_slices], used if the choice determines how many tokens a step reads:
     * number of tokens that each step of the latest iteration read, summed over all layers and KV
     * heads.
     */
    unsigned long long *read;
    /*
     * [n_slots] number of cached tokens that the latest step did not read, averaged over KV heads
     * and layers
     */
    double *unread;
    /* Codes (centroid indices of keys) of all layers; used for KVD_READ_CODES. */
    struct {
        /* Arguments of the kernels for layer 0: centroids, scratch memory and outputs */
        kvd_selection_codes of;
        double *frequency[2]; /* angular frequencies of the two RoPE bases, device */
    } codes;
    /* Data of KVD_READ_CLUSTERS, whose layers hold different numbers of tokens. */
    struct {
        /*
         * Numbers of cached tokens, including the new one: pinned memory, and device
         * [layers][max_slices].
         */
        int32_t *length, *lengths;
        size_t *entries; /* [n_slots][layers] number of cached tokens */
        kvd_evict_budget *budget;
        float *mass;
        int32_t *kept;
    } late;
    /* Data of KVD_READ_LANDMARKS. Arrays are on the device unless another place is named. */
    struct {
        /* Arguments of the kernels for layer 0; those of other layers follow from it */
        kvd_selection_shadow of;
        /* n_kv_heads * d_head, and rank of the stored keys without padding */
        size_t wide, kept;
        size_t *prompt; /* host [n_slots]: number of tokens of the prompt */
        /* Leading right singular vectors of the keys of prompts, [n_slots][layers][wide][rank]. */
        uint16_t *basis;
        uint16_t *latents; /* [layers][pool_pages][64 * rank] */
        /* [layers][...] as in kvd_selection_shadow. `tail` assigns the pages of `keys` to slots. */
        uint16_t *values, *keys, *outliers;
        kvd_pages tail;
        uint16_t *rows; /* latents of new tokens, [max_tokens][rank] */
        float *gram;    /* [wide][wide] */
        /* Tables that the kernels of latents.h read. */
        kvd_latent_basis *leading;
        kvd_latent_head *head;
        int32_t *run;
        kvd_latent_solver solver;
        int *info;      /* pinned [max_slices][layers]: status of the decompositions */
        size_t prompts; /* number of prompts in the running iteration */
    } shadow;
    cudaStream_t stream;
    int32_t *len, *heads;
    kvd_selected to;
    void *workspace;
    kvd_device_memory memory;
} kvd_selection_method;

/*
 * Returns the arguments of the functions in selection.h for rows from .. from + n-1 of the batch.
 */
kvd_selection kvd_selection_of_rows(const kvd_selection_method *e, int layer, size_t from,
                                    size_t n);

/*
 * Returns true if the method drops tokens at the end of a prompt; selection_late.c then has its
 * functions.
 */
static inline bool kvd_selection_is_late(const kvd_selection_method *e)
{
    return e->rule.ranking == KVD_READ_CLUSTERS;
}
/*
 * Returns the number of tokens that one layer has cached for a slot, if the request in the slot has
 * n tokens.
 */
size_t kvd_selection_cached(const kvd_selection_method *e, size_t slot, size_t layer, size_t n);

/* Returns the numbers of cached tokens of a layer on the device, one for each row of a batch. */
int32_t *kvd_selection_lengths_of(const kvd_selection_method *e, int layer);

/* Sets the callbacks of e->method for methods that drop tokens of prompts. */
void kvd_selection_late_describe(kvd_selection_method *e);
/* Allocates the arrays of e->late. e->n_slots and e->layers must be set. */
int kvd_selection_late_make(kvd_selection_method *e, kvd_err *err);
void kvd_selection_late_free(kvd_selection_method *e);
/* Stores the numbers of cached tokens of request i after an iteration in the arrays of its slot. */
void kvd_selection_late_ended(kvd_selection_method *e, const kvd_slice *s, size_t i);

/* Returns true if keys of prompts are stored in low rank. */
static inline bool kvd_selection_has_shadow(const kvd_selection_method *e)
{
    return e->rule.ranking == KVD_READ_LANDMARKS;
}
/* Sets the callbacks of e->method. Fails if the model or a parameter is not supported. */
int kvd_selection_shadow_describe(kvd_selection_method *e, kvd_err *err);
/*
 * kvd_selection_shadow_make allocates the arrays of e->shadow that depend on the slots and the
 * pages of the pool. kvd_selection_shadow_work allocates all other arrays of e->shadow. It requires
 * that e->rows and e->row_pages are set.
 */
int kvd_selection_shadow_work(kvd_selection_method *e, kvd_err *err);
int kvd_selection_shadow_make(kvd_selection_method *e, kvd_err *err);
void kvd_selection_shadow_free(kvd_selection_method *e);
/* Stores the lengths of the iteration's prompts. Fails if a decomposition of their keys failed. */
int kvd_selection_shadow_ended(kvd_selection_method *e, const kvd_iteration *it, kvd_err *err);
/* Stores the new tokens of steps. */
int kvd_selection_shadow_append(const kvd_selection_method *e, const kvd_paged_rows *r,
                                kvd_err *err);
/* Frees the memory that a slot holds. */
void kvd_selection_shadow_drop(kvd_selection_method *e, size_t slot);
/* Writes the number of tokens that each step reads to device memory (e->shadow). */
int kvd_selection_shadow_lengths(const kvd_selection_method *e, const kvd_selection *s,
                                 cudaStream_t stream, kvd_err *err);
/*
 * Chooses the tokens that steps read, and rebuilds the keys of these tokens. Marks the ends of the
 * timed phases.
 */
int kvd_selection_shadow_choose(const kvd_selection_method *e, const kvd_selection *s,
                                const kvd_selected *to, const kvd_paged_rows *r, kvd_err *err);

#endif
