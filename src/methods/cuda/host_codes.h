/*
 * Compresses K and V with bits methods on the CPU during text generation on a GPU. After each
 * iteration the CPU quantises the rows of new tokens with the method's own function `code`. The
 * decoded rows replace those in the GPU's cache. The counted bits are those of the method's codes.
 */
#ifndef KVD_METHODS_CUDA_HOST_CODES_H
#define KVD_METHODS_CUDA_HOST_CODES_H

#include "methods/cuda/paged_cache.h"

/*
 * Part of a row that is quantised separately: K or V of one KV head, of a group of heads, or of
 * all.
 */
typedef struct {
    kvd_side side;
    int kv_head;  /* kvd_bits_block.kv_head */
    size_t at, d; /* first element in the row, and number of elements */
} kvd_host_part;

typedef struct kvd_host_codes kvd_host_codes;

/* Layout of cache rows (K and V of a token in one layer, bf16), and where to write them. */
typedef struct {
    size_t width;              /* elements of the longest row of a layer, at most */
    size_t n_parts;            /* parts of a row */
    const kvd_host_part *part; /* [n_layers][n_parts], copied */
    /*
     * Queues the copy of decoded rows w->x (device, w->ld elements apart) to the cache of a layer.
     */
    int (*write)(void *ctx, int layer, const kvd_paged_rewrite *w, kvd_err *err);
    void *ctx;
    size_t ld, before; /* elements from one row of w->x to the next, and unused ones before a row */
    bool rotates;      /* true: rows come with keys before RoPE, which are coded after RoPE */
    bool turned;       /* true: keys of the rows that are written are after RoPE */
} kvd_host_rows;

/*
 * Return true if the CPU can quantise rows by the method plan->bits: rows of all tokens, or
 * (_entries) of the prompt tokens that the token selection keeps and of all later ones.
 */
bool kvd_host_codes_take(const kvd_plan *plan);
bool kvd_host_codes_take_entries(const kvd_plan *plan);
/*
 * Returns tables that apply RoPE or, if `undoes`, its inverse: cosines [2][max_len][d_head / 2],
 * then sines. Index 1 of the first dimension is for layers with rope_local_theta. The caller frees
 * the array. Returns NULL without memory.
 */
float *kvd_host_codes_rope(const kvd_paged_cache *c, bool undoes, kvd_err *err);
/*
 * Creates m->codes, which quantises rows on the CPU by the compression methods m->plan.
 * kvd_gpu_method_free frees it.
 */
int kvd_host_codes_new(kvd_gpu_method *m, const kvd_host_rows *rows, kvd_err *err);
/* Makes room for `slots` requests. Must be called once, before the first iteration. */
int kvd_host_codes_make(kvd_host_codes *k, size_t slots, kvd_err *err);
void kvd_host_codes_free(kvd_host_codes *k);

/* Makes room on the host for the rows of an iteration, which the GPU must not have begun. */
int kvd_host_codes_begin(kvd_host_codes *k, const kvd_iteration *it, kvd_err *err);
/*
 * Queues the copy of a layer's rows of an iteration's new tokens from the device array x to the
 * host. Rows of x are `ld` elements apart; `width` elements of each are copied.
 */
int kvd_host_codes_fetch(kvd_host_codes *k, int layer, const void *x, size_t ld, size_t width,
                         cudaStream_t stream, kvd_err *err);
/*
 * After an iteration, quantises all tokens that can be quantised, and writes the decoded rows to
 * the GPU's cache. Waits for the GPU.
 */
int kvd_host_codes_ended(kvd_host_codes *k, const kvd_iteration *it, kvd_err *err);
void kvd_host_codes_drop(kvd_host_codes *k, size_t slot);
/* Waits until the bits of all iterations are counted. */
int kvd_host_codes_finish(kvd_host_codes *k, kvd_err *err);
/*
 * Return the bits of K and V that a running request (slot) stores, and the bytes that all running
 * requests (slots) store. kvd_host_codes_finish must have been called.
 */
double kvd_host_codes_bits(const kvd_host_codes *k, size_t slot);
double kvd_host_codes_held(const kvd_host_codes *k);

/* Finds the tokens that a token-dropping method keeps in cache pages. */
typedef struct {
    /* Returns the number of cached tokens of a KV head after the latest iteration. */
    size_t (*count)(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
    /* Returns the device address of K of the token at `place`; V is 64 d_head elements after it. */
    uint16_t *(*row)(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, size_t place);
    /*
     * Queues the copy of the kept tokens' positions in the sequence, in order of their places, to
     * the pinned array `to` [n_layers][n_kv_heads][room]. NULL: tokens stay in order, no decode
     * step drops one, and the method calls kvd_host_entries_note.
     */
    int (*positions)(const kvd_gpu_method *m, size_t slot, uint32_t *to, cudaStream_t stream,
                     kvd_err *err);
    size_t room;
} kvd_host_places;

typedef struct kvd_host_entries kvd_host_entries;

/*
 * Quantises the kept tokens on the CPU, as kvd_host_codes does for all tokens. If keys are
 * quantised before RoPE, it is undone in those of the pages, and applied to the decoded keys.
 * kvd_host_entries_new fills m->kept, which kvd_gpu_method_free frees. Decode steps must not merge
 * tokens.
 */
int kvd_host_entries_new(kvd_gpu_method *m, const kvd_host_places *places, kvd_err *err);
int kvd_host_entries_make(kvd_host_entries *e, size_t slots, kvd_err *err);
void kvd_host_entries_free(kvd_host_entries *e);
/*
 * Queues the copy of the positions of the cached tokens of prompts in a layer, device kept
 * [n_kv_heads][n_q8] (kvd_evict_prompts_args). Does nothing if e is NULL or quantisation does not
 * depend on positions.
 */
int kvd_host_entries_note(kvd_host_entries *e, int layer, const int32_t *kept, cudaStream_t stream,
                          kvd_err *err);
int kvd_host_entries_ended(kvd_host_entries *e, const kvd_iteration *it, kvd_err *err);
void kvd_host_entries_drop(kvd_host_entries *e, size_t slot);
double kvd_host_entries_bits(const kvd_host_entries *e, size_t slot);
double kvd_host_entries_held(const kvd_host_entries *e);

#endif
