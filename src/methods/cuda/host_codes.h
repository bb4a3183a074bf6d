/* Compresses K and V on the CPU during text generation on a GPU, after each iteration. */
#ifndef KVD_METHODS_CUDA_HOST_CODES_H
#define KVD_METHODS_CUDA_HOST_CODES_H

#include "methods/cuda/paged_cache.h"

/* Part of a token that is quantised separately: K or V of one KV head, of several, or of all. */
typedef struct {
    kvd_side side;
    int kv_head;  /* kvd_bits_block.kv_head */
    size_t at, d; /* first element in the row, and number of elements */
} kvd_host_part;

typedef struct kvd_host_codes kvd_host_codes;

/* Layout of a token's K and V (bf16) in a layer, and the function that writes dequantised K and V
 * to the GPU's cache. */
typedef struct {
    size_t width;              /* elements of the longest row of a layer, at most */
    size_t input;              /* d_model if a layer's input is needed too, otherwise 0 */
    size_t n_parts;            /* parts of a row */
    const kvd_host_part *part; /* [n_layers][n_parts], copied */
    /* Starts copying dequantised K and V (w->x in device memory, rows w->ld elements apart) to a
     * layer's cache. */
    int (*write)(void *ctx, int layer, const kvd_paged_rewrite *w, kvd_err *err);
    void *ctx;
    size_t ld, before; /* elements from one row of w->x to the next, and unused ones before a row */
    bool rotates;      /* true: rows come with keys before RoPE, which are coded after RoPE */
    bool undoes;       /* true: rows come with keys after RoPE, which are coded before RoPE */
    bool turned;       /* true: keys of the rows that are written are after RoPE */
    /* Projections that the CPU applies to K and V of new tokens; removed dimensions become 0. NULL:
     * no projections. */
    const kvd_dims *dims;
} kvd_host_rows;

/* Returns true if the plan drops no tokens and the CPU can quantise K and V. */
bool kvd_host_codes_take(const kvd_plan *plan);
/* Returns true if the plan drops tokens and the CPU can quantise K and V of the kept tokens. */
bool kvd_host_codes_take_entries(const kvd_plan *plan);
/* Returns tables that apply RoPE or, if `undoes`, its inverse: cosines [2][max_len][d_head / 2],
 * then sines. Index 1 is for layers with rope_local_theta. The caller frees the array. Returns NULL
 * without memory. */
float *kvd_host_codes_rope(const kvd_paged_cache *c, bool undoes, kvd_err *err);
/* Creates m->codes, the state for quantisation on the CPU. kvd_gpu_method_free frees it. */
int kvd_host_codes_new(kvd_gpu_method *m, const kvd_host_rows *rows, kvd_err *err);
/* Makes room for `slots` requests. Must be called once, before the first iteration. */
int kvd_host_codes_make(kvd_host_codes *k, size_t slots, kvd_err *err);
void kvd_host_codes_free(kvd_host_codes *k);

/* Reserves host memory for K and V of the tokens that iteration `it` processes. Must be called
 * before the GPU starts the iteration. */
int kvd_host_codes_begin(kvd_host_codes *k, const kvd_iteration *it, kvd_err *err);
/* Starts copying `width` elements per new token from x, where rows are `ld` apart, to the host. */
int kvd_host_codes_fetch(kvd_host_codes *k, int layer, const void *x, size_t ld, size_t width,
                         cudaStream_t stream, kvd_err *err);
/* Starts copying K and V of new tokens to the host. Also copies the layer's input, if the
 * compression method needs it. */
int kvd_host_codes_append(kvd_host_codes *k, const kvd_paged_rows *r, kvd_err *err);
/* Must be called after a layer's attention. Starts computing attention probabilities on the GPU, if
 * the method needs them. Otherwise starts compressing prompts, if the GPU compresses them. */
int kvd_host_codes_attended(kvd_host_codes *k, const kvd_paged_rows *r, kvd_err *err);
/* Makes the GPU, not the CPU, compress prompts. Does nothing unless the method is kvtc with
 * parameter lanes=0, no layer has a sliding window, and the engine supplies keys before RoPE. */
int kvd_host_codes_add_prompts(kvd_host_codes *k, kvd_err *err);
/* After an iteration, quantises all tokens that can be quantised, and writes the decoded rows to
 * the GPU's cache. Waits for the GPU. */
int kvd_host_codes_ended(kvd_host_codes *k, const kvd_iteration *it, kvd_err *err);
void kvd_host_codes_drop(kvd_host_codes *k, size_t slot);
/* Waits until the stored bits of all requests' K and V are counted. */
int kvd_host_codes_finish(kvd_host_codes *k, kvd_err *err);
/* Returns the number of bits that store K and V of the request in `slot`. kvd_host_codes_finish
 * must be called before. */
double kvd_host_codes_bits(const kvd_host_codes *k, size_t slot);
/* Returns the number of bytes that store K and V of all requests. kvd_host_codes_finish must be
 * called before. */
double kvd_host_codes_held(const kvd_host_codes *k);
/* Returns how many stored bits the latest decode step did not read, because their tokens had left
 * the window. */
double kvd_host_codes_unseen(const kvd_host_codes *k, size_t slot);

/* Attention probabilities that tokens receive, for methods that rank tokens by them (zipcache). */
typedef struct kvd_host_received kvd_host_received;
/* Allocates m->lse, m->lse_steps and the arrays of an iteration's attention probabilities. Returns
 * NULL on failure. The caller frees the result. */
kvd_host_received *kvd_host_received_new(kvd_gpu_method *m, kvd_err *err);
void kvd_host_received_free(kvd_host_received *x);
/* Queues GPU work that sums, for each token, the attention probabilities it received in a layer,
 * and copies the sums to the host. Must be called after the layer's attention. */
int kvd_host_received_attended(const kvd_host_received *x, const kvd_paged_rows *r, kvd_err *err);
/* Adds the attention probabilities that a request's tokens received in the iteration to mass [n -
 * first][n_kv_heads]. first: index of the first of these tokens. n: number of the request's tokens
 * after the iteration. slice: index of the request in the iteration. prompt: true if all these
 * tokens are new. */
void kvd_host_received_add(const kvd_host_received *x, int layer, size_t slice, bool prompt,
                           size_t first, size_t n, double *mass);

/* Callbacks by which a method that drops tokens tells how many tokens it caches, and where. */
typedef struct {
    /* Returns the number of cached tokens of a KV head after the latest iteration. Not called for
     * layers with a sliding window. */
    size_t (*count)(const kvd_gpu_method *m, size_t slot, int layer, int kv_head);
    /* Returns the device address of K of the cached token number `place` of a KV head. V is 64
     * d_head elements later. */
    uint16_t *(*row)(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, size_t place);
    /* Starts copying the sequence positions of a request's cached tokens, in cache order, to pinned
     * memory `to` [layers without a window][n_kv_heads][room].
     *
     * May be NULL if decode steps drop no tokens. A method without this function must keep tokens
     * in order and call kvd_host_entries_note. */
    int (*positions)(const kvd_gpu_method *m, size_t slot, uint32_t *to, cudaStream_t stream,
                     kvd_err *err);
    size_t room;
} kvd_host_places;

typedef struct kvd_host_entries kvd_host_entries;

/* Creates m->kept, which quantises cached tokens on the CPU; kvd_gpu_method_free frees it. Methods
 * that merge tokens in decode steps are not supported. */
int kvd_host_entries_new(kvd_gpu_method *m, const kvd_host_places *places, kvd_err *err);
int kvd_host_entries_make(kvd_host_entries *e, size_t slots, kvd_err *err);
void kvd_host_entries_free(kvd_host_entries *e);
/* Starts copying `kept` [n_kv_heads][n_q8] from the device to the host: positions of the prompt
 * tokens that stay cached. Does nothing if e is NULL or positions are not needed. */
int kvd_host_entries_note(kvd_host_entries *e, int layer, const int32_t *kept, cudaStream_t stream,
                          kvd_err *err);
int kvd_host_entries_ended(kvd_host_entries *e, const kvd_iteration *it, kvd_err *err);
void kvd_host_entries_drop(kvd_host_entries *e, size_t slot);
double kvd_host_entries_bits(const kvd_host_entries *e, size_t slot);
double kvd_host_entries_held(const kvd_host_entries *e);
/* Returns how many stored bits the latest decode step did not read, because their tokens had left
 * the window. */
double kvd_host_entries_unseen(const kvd_host_entries *e, size_t slot);

#endif
