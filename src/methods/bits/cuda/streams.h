/* Kernels that compress K and V with an entropy coder, and decompress them. Components are the
 * elements of K or V after a linear transform. Functions that return cudaError_t launch kernels and
 * do not wait for them. */
#ifndef KVD_METHODS_BITS_CUDA_STREAMS_H
#define KVD_METHODS_BITS_CUDA_STREAMS_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/bits/streams.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Sizes of an entropy-coded block. words: largest number of 16-bit words per stream. exceptions:
 * largest number of integers per stream that the frequency tables lack. */
typedef struct {
    int32_t n_streams, words, exceptions;
    int32_t scales; /* number of scales per token, one per group of components; 0: none */
} kvd_stream_room;

/* Byte offsets of the parts of an entropy-coded block, and its size (bytes). The block begins with
 * the coder states [n_streams][KVD_LANES]. Then follow:
 *   counts      [n_streams][2] number of words and number of exceptions of each stream
 *   words       [n_streams][room.words] code
 *   exceptions  [n_streams][room.exceptions] integers that the frequency tables lack
 *   scales      [KVD_PAGE_TOKENS][room.scales] */
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

typedef struct {
    kvd_stream_tables tables;
    kvd_stream_room room;
    double step;
    /* Number added to the magnitude of every nonzero decoded integer, before multiplication by the
     * step. */
    float offset;
    /* [tables.kept] Number that is subtracted from each stored component of K or V before
     * quantisation. */
    const float *bias;
    /* group: groups of adjacent components that share a scale. group_of: index of each component's
     * group. Both are unused if there are no scales. */
    const kvd_stream_group *group;
    const uint16_t *group_of;
    const uint32_t *lookup; /* lookup tables written by kvd_stream_lookups */
    kvd_stream_lookup_size lookup_size;
    char *blocks; /* [pages][bytes of kvd_stream_parts] */
    int32_t rank; /* components of a latent, at least tables.kept + 1 */
    /* Offset, in elements, of decoded K or V in its page. The numbers are not yet transformed
     * back. */
    int32_t latent_at;
} kvd_stream_side;

/* The requests of a batch, with their new and cached tokens, in device memory. */
typedef struct {
    int32_t n, max_pages, n_sink;
    const int32_t *kv_len, *slot; /* [n] */
    /* [n] Number of new tokens of each request. NULL: each request has one, in a decode step. */
    const int32_t *q_len;
    /* [n] Index in the batch of the first new token of each request. NULL: request b has one new
     * token, with index b. */
    const int32_t *start;
    /* [1] Number of real requests. Requests with this index or a higher one only pad the batch.
     * NULL: no request is padding. */
    const int32_t *live;
    const int32_t *page_table; /* [n][max_pages] */
    int32_t n_sms;
} kvd_stream_batch;

/* Sets *bytes to the size of the shared memory that is available for the lookup tables of one
 * entropy-coded stream. */
cudaError_t kvd_streams_lookup_room(size_t *bytes);
/* Decodes all tokens, except the newest token of each request, into bf16 latent vectors
 * [pages][latent_page]. A vector has the components of a token, then a 1 (by which the mean of K or
 * V is multiplied), then zeros. */
cudaError_t kvd_streams_decode(const kvd_stream_batch *b, const kvd_stream_side side[2],
                               uint16_t *latents, size_t latent_page, cudaStream_t stream);
enum { KVD_STREAM_WORDS_PER_EXCEPTION = 16 /* one exception has room per 16 words of a stream */ };
/* Encodes at most `most` new tokens per request, as entropy-coded streams. y: components of K and
 * of V, each [tokens][ld]; both arrays may be overwritten. Adds the number of 16-bit words of a
 * request's streams to `units` [slots]. If a stream does not fit into its buffer, *beyond becomes
 * max(*beyond, number of words of the stream). */
cudaError_t kvd_streams_code(const kvd_stream_batch *b, const kvd_stream_side side[2],
                             float *const y[2], size_t ld, size_t most, uint32_t *units,
                             uint32_t *beyond, cudaStream_t stream);
/* Copies K and V of each request's first n_sink tokens from bf16 pages to sink
 * [slots][n_sink][map.page_elements / KVD_PAGE_TOKENS]. If `back` is set, copies them back to the
 * pages instead, except the newest token. */
cudaError_t kvd_streams_sink(const kvd_stream_batch *b, const kvd_attn_map *map, uint16_t *pages,
                             uint16_t *sink, bool back, cudaStream_t stream);
/* One layer of method cachegen in device memory. Complete pages are entropy-coded; tokens of an
 * incomplete page are bf16 in a ring buffer. */
typedef struct {
    kvd_attn_map map;
    kvd_stream_room room;
    int32_t group, wide;
    int32_t block; /* tokens of a block, for kvd_cachegen_replace */
    /* Bytes of K or V of one KV head in a page. They are the entropy-coded stream, then a scale and
     * a zero point per group of tokens. */
    size_t block_bytes;
    char *blocks;           /* [pages][n_kv_heads][2][block_bytes] */
    uint16_t *ring;         /* [slots][map.page_elements] */
    uint16_t *rows;         /* [pages][map.page_elements] */
    const float *step;      /* [n_kv_heads][2][wide] */
    const uint16_t *table;  /* [n_kv_heads][2][1 + wide][KVD_STREAM_TABLE] */
    const uint32_t *lookup; /* tables of kvd_cachegen_lookups, with n = 2 n_kv_heads */
    kvd_stream_lookup_size lookup_size;
} kvd_cachegen_layer;

/* Restores K and V of all tokens, from entropy-coded blocks and the ring buffer, to l->rows. */
cudaError_t kvd_cachegen_restore(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                                 cudaStream_t stream);
/* Encodes the pages that new tokens complete as entropy-coded streams, and copies incomplete pages
 * to the ring buffer. Adds the number of 16-bit words of a request's streams to `units` [slots]. If
 * a stream does not fit into its buffer, *beyond becomes max(*beyond, number of words of the
 * stream). */
cudaError_t kvd_cachegen_code(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                              uint32_t *units, uint32_t *beyond, cudaStream_t stream);

/* Overwrites complete blocks of tokens in l->rows with their dequantised numbers. Does not store
 * the codes; only adds their size to two counters. units[slot] counts whole 16-bit words,
 * part[slot] counts the remaining sixteenths of a bit. */
cudaError_t kvd_cachegen_replace(const kvd_stream_batch *b, const kvd_cachegen_layer *l,
                                 uint32_t *units, uint32_t *part, cudaStream_t stream);

/* K or V of one layer in device memory, for method waterfill if all tokens of a request form one
 * entropy-coded stream. */
typedef struct {
    int32_t wide;
    float step, offset;
    const kvd_stream_component *component; /* [wide] */
    const uint16_t *start;
    /* [wide] For each dimension: extra cost, in 1/16 bit, of an integer that has no entry in the
     * frequency table, compared with integer 0. */
    const int16_t *escape;
    const float *y, *bias; /* [rows][wide]; [wide] subtracted */
    uint16_t *decoded;     /* bf16 [rows][ld]: components, then 1 */
    size_t ld;
} kvd_whole_stream;
/* Quantises K or V of new tokens, and writes the dequantised numbers to s->decoded. Does not store
 * the codes; only adds their size to two counters. units[slot] counts whole 16-bit words,
 * part[slot] counts the remaining sixteenths of a bit. Skips the first n_sink tokens of each
 * request. most: largest number of new tokens of a request. */
cudaError_t kvd_whole_stream_round(const kvd_stream_batch *b, const kvd_whole_stream *s,
                                   size_t most, uint32_t *units, uint32_t *part,
                                   cudaStream_t stream);
/* Copies `width` elements of new tokens from x to `to`. Only the first n_sink tokens of each
 * request are copied. */
cudaError_t kvd_whole_stream_keep(const kvd_stream_batch *b, const uint16_t *x, size_t ld_x,
                                  uint16_t *to, size_t ld, size_t width, cudaStream_t stream);

/* Group of principal components that share a scale in each token (method kvtc). Each component
 * takes `bits` bits. If `bits` is 0, the group is not stored. */
typedef struct {
    uint16_t first, size;
    uint32_t bits, at; /* at: bytes of earlier groups of a token */
} kvd_kvtc_packed_group;
/* K or V of one layer in device memory, of prompts that method kvtc compresses with DEFLATE. */
typedef struct {
    int32_t n, n_groups, wide;
    int32_t n_sink;               /* first tokens of each prompt, which have no codes */
    const int32_t *start, *coded; /* [n] first row; number of tokens to code, the sinks included */
    const kvd_kvtc_packed_group *group;
    const float *y, *bias; /* [rows][wide]; [wide] subtracted */
    uint16_t *decoded;     /* bf16 [rows][ld]: components, then 1 */
    size_t ld, most;       /* most: largest number of tokens of a prompt */
    size_t token_bytes, gap;
    /* Codes of the components, packed into bytes. Codes of prompt b begin at byte token_bytes *
     * start[b] + gap * b. */
    uint8_t *packed;
} kvd_kvtc_prompts;
/* Quantises the principal components p->y. Writes their codes to p->packed, and the decoded
 * components to p->decoded. */
cudaError_t kvd_kvtc_pack(const kvd_kvtc_prompts *p, cudaStream_t stream);

/* Fills n entropy-coded blocks with random words and valid coder states, for timing. */
cudaError_t kvd_streams_make_plausible(char *blocks, size_t n, size_t block_bytes,
                                       kvd_stream_room room, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifndef __cplusplus
#include "methods/cuda/paged_cache.h"

typedef struct {
    /* Array [2 n + 1] in device memory, for n slots. First n elements: size of each request's codes
     * in 16-bit words, rounded down. Last n elements: the rest of this size, in 1/16 bit. Element
     * n: number of words of the longest stream that did not fit into its buffer, or 0. */
    uint32_t *units, *host_units; /* host_units: pinned copy */
    size_t n;
    uint32_t *tokens; /* [n] tokens of the request in each slot; 0: no request */
    double held;
} kvd_stream_slots;

/* Allocates counters for n slots: cached tokens, and 16-bit words of entropy-coded data. The caller
 * must release *s, even after a failure. */
int kvd_stream_slots_make(kvd_stream_slots *s, size_t n, kvd_device_memory *memory, kvd_err *err);
void kvd_stream_slots_release(kvd_stream_slots *s);
/* In layer 0, sets the counter of 16-bit entropy-coded words to 0 for each request whose prompt
 * begins. */
int kvd_stream_slots_forget(const kvd_stream_slots *s, const kvd_step_batch *b,
                            const kvd_paged_rows *r, kvd_err *err);
/* In the last layer, starts copying to the host how many 16-bit words of entropy-coded data each
 * request has. */
int kvd_stream_slots_fetch(const kvd_stream_slots *s, const kvd_gpu_method *m,
                           const kvd_paged_rows *r, kvd_err *err);
/* Updates the number of tokens of each request, and the count of bytes in the cache. Fails if an
 * entropy-coded stream did not fit into its buffer of `room` 16-bit words. If `room` is 0, does not
 * fail. */
int kvd_stream_slots_note(kvd_stream_slots *s, const kvd_gpu_method *m, const kvd_iteration *it,
                          int32_t room, kvd_err *err);
/* Returns a description of the batch's decode steps or, if `prompts` is true, of its prompts. */
kvd_stream_batch kvd_stream_batch_of(const kvd_paged_cache *c, const kvd_paged_rows *r,
                                     bool prompts, int32_t n_sink);
enum { KVD_TRANSFORM_PAD = 8 /* components of a decoded row after the last; the first is 1 */ };
/* Linear transform of K or V of one layer, in device memory. The components of a vector x are (x -
 * mean) times `to`; `from` maps components back to x. */
typedef struct {
    /* - to [2][wide][wide]: two bf16 matrices, whose sum maps K or V to components
     * - from [wide + KVD_TRANSFORM_PAD][wide]: the inverse transform, then a row with the mean,
     *   then rows of zeros */
    uint16_t *to, *from;
    float *bias; /* [wide] mean times `to` */
} kvd_transform;
/* Arrays in host memory from which the arrays of a linear transform of K or V on the GPU are
 * filled. `wide` is the number of dimensions. */
typedef struct {
    size_t wide;
    uint16_t *to, *from;
    float *bias, *rest;
} kvd_transform_tables;
/* Allocates the arrays of *t. The caller must call kvd_transform_tables_free, even after a
 * failure. */
int kvd_transform_tables_new(kvd_transform_tables *t, size_t wide, kvd_err *err);
void kvd_transform_tables_free(kvd_transform_tables *t);
/* Creates the transform of K or V on the GPU. The matrix `to` [wide][wide] maps x - mean to
 * components; `from` maps components back to x - mean. If `from` is NULL, the transpose of `to` is
 * used. `memory` owns the device arrays. */
int kvd_transform_make(kvd_transform *s, const float *to, const float *from, const float *mean,
                       const kvd_transform_tables *t, kvd_device_memory *memory, kvd_err *err);
/* Computes y [n][wide] = x * `to` for n vectors x that are `ld` elements apart. Does not subtract
 * the transformed mean (s->bias). */
int kvd_transform_apply(const kvd_gpu_worker *w, const kvd_transform *s, size_t wide, size_t n,
                        const uint16_t *x, size_t ld, float *y, kvd_err *err);
/* Computes n vectors x of K or V from their decoded components, `decoded` [n][wide +
 * KVD_TRANSFORM_PAD]. */
int kvd_transform_invert(const kvd_gpu_worker *w, const kvd_transform *s, size_t wide, size_t n,
                         const uint16_t *decoded, uint16_t *x, size_t ld, kvd_err *err);
/* Prepares method waterfill for a run with one entropy-coded stream per request. Only the size of a
 * stream is computed; pages hold decoded numbers in bf16. */
int kvd_whole_stream_open(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                          kvd_err *err);
/* Compresses prompts with method kvtc: the GPU quantises them, then CPU threads apply DEFLATE. */
typedef struct kvd_kvtc_prompt_coder kvd_kvtc_prompt_coder;
/* Creates a coder that compresses K and V of prompts. It writes decoded K and V to x
 * [max_tokens][ld], but skips the first `before` elements of each row. Returns NULL on failure. */
kvd_kvtc_prompt_coder *kvd_kvtc_prompt_coder_new(const kvd_gpu_method *m, uint16_t *x, size_t ld,
                                                 size_t before, kvd_err *err);
void kvd_kvtc_prompt_coder_free(kvd_kvtc_prompt_coder *k);
/* Returns how many of the n tokens of a prompt the coder compresses. */
size_t kvd_kvtc_prompt_coder_ready(const kvd_kvtc_prompt_coder *k, size_t n);
/* Starts quantising K and V of a layer's prompts. Must be called after the attention of the
 * prompts. */
int kvd_kvtc_prompt_coder_attended(kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, kvd_err *err);
/* Starts threads that apply DEFLATE to the quantised tokens of an iteration. The GPU must have
 * finished the iteration. */
int kvd_kvtc_prompt_coder_ended(kvd_kvtc_prompt_coder *k, kvd_err *err);
/* Waits for the threads that apply DEFLATE. Must be called before kvd_kvtc_prompt_coder_bits. */
int kvd_kvtc_prompt_coder_finish(kvd_kvtc_prompt_coder *k, kvd_err *err);
/* Returns the compressed size, in bits, of the latest prompt in a slot. */
double kvd_kvtc_prompt_coder_bits(const kvd_kvtc_prompt_coder *k, size_t slot);
/* Returns device memory filled with random numbers, for timing. Returns NULL on failure. */
void *kvd_stream_pool(kvd_device_memory *memory, size_t bytes, cudaStream_t stream, kvd_err *err);
/* Returns the parameter `key` of the quantisation method, which must have it. */
double kvd_stream_value(const kvd_plan *plan, const char *key);
/* Returns the number of 16-bit words for which a page has room in each entropy-coded stream. This
 * is `room` or, if `room` is 0, enough for `bits` bits. */
int32_t kvd_stream_words(double bits, size_t room);
#endif

#ifdef __CUDACC__ /* shared by the kernels that code and those that decode blocks */
#include <cuda_fp16.h>

namespace
{

struct block_of {
    uint32_t *state, *counts;
    uint16_t *word;
    kvd_stream_exception *exception;
    __half2 *scale; /* [KVD_PAGE_TOKENS][room.scales] scale and zero point */
};

/* Returns the addresses of the data of stream s in the entropy-coded block at `from`, for example
 * of its coder states. */
__device__ __forceinline__ block_of parts_of(char *from, kvd_stream_room room, int s)
{
    const kvd_stream_parts p = kvd_stream_parts_of(room);
    return {reinterpret_cast<uint32_t *>(from) + s * KVD_LANES,
            reinterpret_cast<uint32_t *>(from + p.counts) + 2 * s,
            reinterpret_cast<uint16_t *>(from + p.words) + (size_t)s * (size_t)room.words,
            reinterpret_cast<kvd_stream_exception *>(from + p.exceptions) +
                (size_t)s * (size_t)room.exceptions,
            reinterpret_cast<__half2 *>(from + p.scales)};
}

__device__ __forceinline__ block_of block_at(const kvd_stream_side &side, int page, int s)
{
    return parts_of(side.blocks + (size_t)page * kvd_stream_parts_of(side.room).bytes, side.room,
                    s);
}

__device__ __forceinline__ int page_number(const kvd_stream_batch &a, int b, int p)
{
    return __ldg(a.page_table + (size_t)b * (size_t)a.max_pages + p);
}

/* Returns the index of dimension i of token t in a page, which is a matrix [64][d] divided into 8 x
 * 8 blocks. */
__device__ __forceinline__ int blocked(int t, int i, int d)
{
    return t / 8 * 8 * d + i / 8 * 64 + t % 8 * 8 + i % 8;
}

__device__ __forceinline__ float scaled(__half2 scale, float code)
{
    const float2 s = __half22float2(scale);
    return __fadd_rn(__fmul_rn(s.x, code), s.y);
}

struct head_page {
    const kvd_cachegen_layer &l;
    int g, side, d;
    block_of block;
    /* [64 / group] Scale and zero point of the first token of each group. Other tokens have none,
     * because they are stored as differences from the first token of their group. */
    __half2 *scale;
    const uint16_t *table; /* [1 + wide][KVD_STREAM_TABLE] */
    const float *step;
};

__device__ __forceinline__ head_page head_page_of(const kvd_cachegen_layer &l, int page, int z)
{
    const int g = z / 2, side = z % 2;
    char *const from =
        l.blocks + ((size_t)page * (size_t)(2 * l.map.n_kv_heads) + (size_t)z) * l.block_bytes;
    return {l,
            g,
            side,
            side ? l.map.d_v[g] : l.map.d_qk[g],
            parts_of(from, l.room, 0),
            reinterpret_cast<__half2 *>(from + kvd_stream_parts_of(l.room).bytes),
            l.table + (size_t)z * (size_t)(1 + l.wide) * KVD_STREAM_TABLE,
            l.step + (size_t)z * (size_t)l.wide};
}

__device__ __forceinline__ uint16_t *rows_of(const head_page &h, uint16_t *pages, size_t page)
{
    return pages + page * (size_t)h.l.map.page_elements + h.l.map.kv_offset[h.g] +
           (h.side ? KVD_PAGE_TOKENS * h.l.map.d_qk[h.g] : 0);
}

enum { CHANNELS = KVD_WIDTH_NARROW / KVD_LANES /* most channels of a lane */ };

/* Copies the first n tokens of a page, and writes zeros after them up to a multiple of 8 tokens. */
__device__ void copy_page(const uint16_t *from, uint16_t *to, int n, int d, int lane)
{
    for (int i = lane; i < (n + 7) / 8 * d; i += KVD_LANES) {
        const int t = i / d * 8 + i % 8;
        reinterpret_cast<uint4 *>(to)[i] =
            t < n ? reinterpret_cast<const uint4 *>(from)[i] : make_uint4(0, 0, 0, 0);
    }
}

inline bool bad(const kvd_stream_batch *b)
{
    return b->n < 1 || b->n > 65535 || b->max_pages < 1 || b->n_sink < 0 || b->n_sms < 1;
}

/* Returns true if the kernels do not support the layer's head dimensions or group size. */
inline bool bad_layer(const kvd_cachegen_layer *l)
{
    return l->room.n_streams != 1 || l->group < 2 || KVD_PAGE_TOKENS % l->group ||
           kvd_attn_widest(&l->map) > KVD_WIDTH_NARROW || l->wide > KVD_WIDTH_NARROW;
}

} // namespace
#endif
#endif
