/*
 * Codes of bits methods on the CPU, for text generation on a GPU. After an iteration the CPU codes
 * the rows of new tokens with the method's own `code`, and the decoded rows replace those in the
 * cache of the GPU. The stored bits are those that the method counts.
 */
#ifndef KVD_METHODS_CUDA_HOST_CODES_H
#define KVD_METHODS_CUDA_HOST_CODES_H

#include "methods/cuda/paged_cache.h"

/* Part of a row that is coded by itself: K or V of a KV head, of a group of heads, or of all. */
typedef struct {
    kvd_side side;
    int kv_head;  /* kvd_bits_block.kv_head */
    size_t at, d; /* first element in the row, and number of elements */
} kvd_host_part;

typedef struct kvd_host_codes kvd_host_codes;

/* Rows of the cache, which hold K and V of a token in one layer, bf16. */
typedef struct {
    size_t width;              /* elements of the longest row of a layer, at most */
    size_t n_parts;            /* parts of a row */
    const kvd_host_part *part; /* [n_layers][n_parts], copied */
    /*
     * Queues the copy of decoded rows to the cache of layer `layer`. w->x: device, rows w->ld
     * elements apart.
     */
    int (*write)(void *ctx, int layer, const kvd_paged_rewrite *w, kvd_err *err);
    void *ctx;
    size_t ld, before; /* elements from one row of w->x to the next, and unused ones before a row */
    bool rotates;      /* true: rows come with keys before RoPE, which are coded after RoPE */
    bool turned;       /* true: keys of the rows that are written are after RoPE */
} kvd_host_rows;

/*
 * Return true if the CPU can code rows of all tokens with the bits method, or of the tokens that
 * the plan's method on the tokens axis keeps of a prompt and all later ones.
 */
bool kvd_host_codes_take(const kvd_plan *plan);
bool kvd_host_codes_take_entries(const kvd_plan *plan);
/* Creates codes for the plan of *m in m->codes, which kvd_gpu_method_free frees. */
int kvd_host_codes_new(kvd_gpu_method *m, const kvd_host_rows *rows, kvd_err *err);
/* Makes room for `slots` requests. Must be called once, before the first iteration. */
int kvd_host_codes_make(kvd_host_codes *k, size_t slots, kvd_err *err);
void kvd_host_codes_free(kvd_host_codes *k);

/*
 * Queues the copy of the rows of an iteration's new tokens in a layer to the host. x: device, rows
 * `ld` elements apart. The copy has `width` elements a row.
 */
int kvd_host_codes_fetch(kvd_host_codes *k, int layer, const void *x, size_t ld, size_t width,
                         cudaStream_t stream, kvd_err *err);
/* Codes what is ready after an iteration, and writes the decoded rows. Waits for the GPU. */
int kvd_host_codes_ended(kvd_host_codes *k, const kvd_iteration *it, kvd_err *err);
void kvd_host_codes_drop(kvd_host_codes *k, size_t slot);
/* Return the bits of K and V of a slot, and the bytes of all slots. */
double kvd_host_codes_bits(const kvd_host_codes *k, size_t slot);
double kvd_host_codes_held(const kvd_host_codes *k);

/* Places in the pages of the entries (cached tokens) that a method on the tokens axis keeps. */
typedef struct {
    /* Returns the number of entries of a KV head after the latest iteration. */
    size_t (*count)(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
    /* Returns the device address of K of the entry at a place; V is 64 d_head elements after it. */
    uint16_t *(*row)(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, size_t place);
    /*
     * Queues the copy of the entries' positions in the sequence, by place, to the pinned array to
     * [n_layers][n_kv_heads][room]. NULL: entries stay in order, and no step drops one.
     */
    int (*positions)(const kvd_gpu_method *m, size_t slot, uint32_t *to, cudaStream_t stream,
                     kvd_err *err);
    size_t room;
} kvd_host_places;

typedef struct kvd_host_entries kvd_host_entries;

/*
 * Codes of the kept entries, as of rows above. kvd_host_entries_new fills m->kept, which
 * kvd_gpu_method_free frees. Steps must not merge entries.
 */
int kvd_host_entries_new(kvd_gpu_method *m, const kvd_host_places *places, kvd_err *err);
int kvd_host_entries_make(kvd_host_entries *e, size_t slots, kvd_err *err);
void kvd_host_entries_free(kvd_host_entries *e);
int kvd_host_entries_ended(kvd_host_entries *e, const kvd_iteration *it, kvd_err *err);
void kvd_host_entries_drop(kvd_host_entries *e, size_t slot);
double kvd_host_entries_bits(const kvd_host_entries *e, size_t slot);
double kvd_host_entries_held(const kvd_host_entries *e);

#endif
