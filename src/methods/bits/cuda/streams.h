/*
 * Kernels that code and decode blocks of entropy-coded components (streams.h), one block per page
 * of KVD_PAGE_TOKENS tokens, layer and side (K or V). A warp codes or decodes one stream.
 *
 * The first n_sink tokens of a request are not coded; their rows of the bf16 pages are copied.
 * Lengths, slots and page numbers are read on the device. Launchers queue work and never wait.
 */
#ifndef KVD_METHODS_BITS_CUDA_STREAMS_H
#define KVD_METHODS_BITS_CUDA_STREAMS_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/bits/streams.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Memory of a coded block: number of streams, and the words and exceptions that each stream has
 * room for. `words` is a multiple of 8.
 */
typedef struct {
    int32_t n_streams, words, exceptions;
    int32_t scales; /* groups of components with a scale, per token */
} kvd_stream_room;

/*
 * Byte offsets of the parts of a block. state: uint32_t [n_streams][KVD_LANES]. counts: uint32_t
 * [n_streams][2], numbers of words and of exceptions. words: uint16_t [n_streams][room.words].
 * exceptions: kvd_stream_exception [n_streams][room.exceptions]. scales: two float16, scale and
 * zero point, [KVD_PAGE_TOKENS][room.scales].
 */
typedef struct {
    size_t counts, words, exceptions, scales, bytes;
} kvd_stream_parts;

KVD_STREAM_INLINE kvd_stream_parts kvd_stream_parts_of(kvd_stream_room r)
{
    const size_t n = (size_t)r.n_streams;
    kvd_stream_parts p = {0, 0, 0, 0, 0};
    p.counts = n * KVD_LANES * sizeof(uint32_t);
    p.words = (p.counts + 2 * n * sizeof(uint32_t) + 15) / 16 * 16;
    p.exceptions = p.words + n * (size_t)r.words * sizeof(uint16_t);
    p.scales = p.exceptions + n * (size_t)r.exceptions * sizeof(kvd_stream_exception);
    p.bytes = (p.scales + KVD_PAGE_TOKENS * (size_t)r.scales * 2 * sizeof(uint16_t) + 15) / 16 * 16;
    return p;
}

/* K or V of one layer. Pointers are device memory. */
typedef struct {
    kvd_stream_tables tables;
    kvd_stream_room room;
    double step;
    /*
     * Added to the magnitude of every decoded integer except 0, to move it towards the mean of its
     * interval
     */
    float offset;
    /* [tables.kept] subtracted from each component before the component is rounded */
    const float *bias;
    /*
     * Groups of components with a common scale, and the group of each component [tables.kept]. Both
     * are set if the blocks store scales (room.scales is set).
     */
    const kvd_stream_group *group;
    const uint16_t *group_of;
    const uint32_t *lookup; /* what kvd_stream_lookups writes */
    kvd_stream_lookup_size lookup_size;
    char *blocks; /* [pages][bytes of kvd_stream_parts] */
    int32_t rank; /* number of components of a latent, at least tables.kept + 1 */
    /* Offset of this side in a page of latents, in elements. */
    int32_t latent_at;
} kvd_stream_side;

/* Tokens of the requests of a batch. Arrays are device memory. */
typedef struct {
    int32_t n, max_pages, n_sink;
    const int32_t *kv_len, *slot; /* [n] */
    /*
     * [n] Row of the first new token of each request in the array of new tokens. NULL: row b
     * belongs to request b.
     */
    const int32_t *q_len;
    /* [n] Row of the first new token of each request. NULL: row b belongs to request b. */
    const int32_t *start;
    /*
     * [1] Number of requests that are not padding; padding comes last. NULL: there is no padding.
     */
    const int32_t *live;
    const int32_t *page_table; /* [n][max_pages] */
    int32_t n_sms;
} kvd_stream_batch;

/*
 * Sets `*bytes` to the shared memory that the current device has for the lookup tables of one
 * stream (kvd_stream_lookups). If the table of a group of components does not fit, kernels look up
 * these components in global memory, which is slower.
 */
cudaError_t kvd_streams_lookup_room(size_t *bytes);
/*
 * Decodes all tokens but the newest of each request into bf16 latents [pages][latent_page] in the
 * layout of dims/cuda/latents.h. The components after the decoded ones are constant: number
 * tables.kept is 1 (for the mean), later ones are 0.
 */
cudaError_t kvd_streams_decode(const kvd_stream_batch *b, const kvd_stream_side side[2],
                               uint16_t *latents, size_t latent_page, cudaStream_t stream);
/*
 * Codes the components of the new tokens of each request: y[0] [rows][ld] are those of K, y[1]
 * those of V. A request has at most `most` new tokens. If components have scales, y is overwritten
 * with codes. Adds the growth of the blocks, in 16-bit units, to units [slots]. If a stream has no
 * room for all its words, and `*beyond` is smaller than the number of words that the stream needed,
 * sets `*beyond` to that number. An exception counts as KVD_STREAM_WORDS_PER_EXCEPTION words.
 */
enum { KVD_STREAM_WORDS_PER_EXCEPTION = 16 };
cudaError_t kvd_streams_code(const kvd_stream_batch *b, const kvd_stream_side side[2],
                             float *const y[2], size_t ld, size_t most, uint32_t *units,
                             uint32_t *beyond, cudaStream_t stream);
/*
 * Copies rows of tokens below n_sink between bf16 pages of a layer and sink [slots][n_sink][row],
 * with row = map.page_elements / KVD_PAGE_TOKENS: K and V of one KV head after another. If `back`
 * is true, copies from `sink` to the pages, for each request all sink tokens except the request's
 * newest token. Otherwise copies the new tokens to `sink`.
 */
cudaError_t kvd_streams_sink(const kvd_stream_batch *b, const kvd_attn_map *map, uint16_t *pages,
                             uint16_t *sink, bool back, cudaStream_t stream);
/*
 * One layer of cachegen. A page is coded when it is full. Until then its tokens are bf16 in the
 * ring buffer, which has one page per slot. Pointers are device memory.
 */
typedef struct {
    kvd_attn_map map;
    kvd_stream_room room; /* room for K or V of a head, which are coded as one stream */
    int32_t group, wide;
    /*
     * Bytes of K or V of a head in a page: first the stream, whose parts kvd_stream_parts
     * describes, then a scale and a zero point of each group.
     */
    size_t block_bytes;
    char *blocks;           /* [pages][n_kv_heads][2][block_bytes] */
    uint16_t *ring;         /* [slots][map.page_elements] */
    uint16_t *rows;         /* [pages][map.page_elements] */
    const float *step;      /* [n_kv_heads][2][wide] */
    const uint16_t *table;  /* [n_kv_heads][2][1 + wide][KVD_STREAM_TABLE] */
    const uint32_t *lookup; /* tables written by kvd_cachegen_lookups, with n = 2 n_kv_heads */
    kvd_stream_lookup_size lookup_size;
} kvd_cachegen_layer;

/* Restores all tokens of each request into l->rows, from coded blocks and from the ring buffer. */
cudaError_t kvd_cachegen_restore(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                                 cudaStream_t stream);
/*
 * Codes the pages that the new tokens of each request fill. Prompts are read from l->rows, and the
 * tokens of a page that is not full are copied to the ring buffer. Decode steps are read from the
 * ring buffer. `units` and `beyond` receive the growth of the blocks and the words needed, as in
 * kvd_streams_code.
 */
cudaError_t kvd_cachegen_code(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                              uint32_t *units, uint32_t *beyond, cudaStream_t stream);

/*
 * Fills the words and states of n blocks, `block_bytes` apart, with random bits, for timing.
 * Decoding random bits yields each integer with its calibrated frequency.
 */
cudaError_t kvd_streams_make_plausible(char *blocks, size_t n, size_t block_bytes,
                                       kvd_stream_room room, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

/* Number of tokens and bytes of code of each request slot of a method. */
typedef struct {
    /*
     * Device [n + 1]: size of the blocks of each slot, in 16-bit units. The last element is the
     * largest number of words needed by a stream that did not fit into its memory; 0: all fitted.
     */
    uint32_t *units, *host_units; /* host_units: pinned copy */
    size_t n;
    uint32_t *tokens; /* [n] number of tokens of the request in each slot; 0: no request */
    double held;      /* bytes of the codes of all slots */
} kvd_stream_slots;

/* Allocates the arrays of n slots. The caller must release *s, also after a failure. */
int kvd_stream_slots_make(kvd_stream_slots *s, size_t n, kvd_device_memory *memory,
                          cudaStream_t stream, kvd_err *err);
void kvd_stream_slots_release(kvd_stream_slots *s);
/*
 * In layer 0, launches a copy that sets to 0 the block sizes (kvd_stream_slots.units) of the slots
 * of prompts.
 */
int kvd_stream_slots_forget(const kvd_stream_slots *s, const kvd_step_batch *b,
                            const kvd_paged_rows *r, kvd_err *err);
/* In the last layer, launches the copy of the block sizes (kvd_stream_slots.units) to the host. */
int kvd_stream_slots_fetch(const kvd_stream_slots *s, const kvd_gpu_method *m,
                           const kvd_paged_rows *r, kvd_err *err);
/*
 * Sets the numbers of tokens of the slots, and the number of bytes that m->bits reports. Fails if a
 * stream needed more than `room` words; if `room` is 0, never fails.
 */
int kvd_stream_slots_note(kvd_stream_slots *s, const kvd_gpu_method *m, const kvd_iteration *it,
                          int32_t room, kvd_err *err);
/*
 * Returns a description of the running batch's decode steps or, if `prompts` is true, of its
 * prompts. The first n_sink tokens of a request are not coded.
 */
kvd_stream_batch kvd_stream_batch_of(const kvd_paged_cache *c, const kvd_paged_rows *r,
                                     bool prompts, int32_t n_sink);
/*
 * Returns device memory filled with random numbers. Runs for timing use it as a cache to which
 * nothing was written.
 */
void *kvd_stream_pool(kvd_device_memory *memory, size_t bytes, cudaStream_t stream, kvd_err *err);
/* Returns the parameter `key` of the plan's quantisation method, which must have it. */
double kvd_stream_value(const kvd_plan *plan, const char *key);
/*
 * Returns the number of words of memory for a stream: `room`, or, if `room` is 0, enough for `bits`
 * bits per page.
 */
int32_t kvd_stream_words(double bits, size_t room);
#endif
#endif
