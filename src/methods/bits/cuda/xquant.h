/* Kernels of method xquant, which quantise and restore vectors of `rank` numbers. The vectors are
 * the inputs of a layer, or projections of these inputs. */
#ifndef KVD_METHODS_BITS_CUDA_XQUANT_H
#define KVD_METHODS_BITS_CUDA_XQUANT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    int32_t rank; /* a multiple of 16 */
    int32_t bits; /* 1 .. 16 */
    /* Number of tokens (K) or channels (V) that share a scale: a multiple or a divisor of
     * KVD_PAGE_TOKENS. */
    int32_t group;
    /* True if a token has two vectors: one for K with scales per channel, and one for V with scales
     * per token. False if it has one vector, with scales per token. */
    bool channels;
    int32_t ring_pages;
} kvd_xquant_form;

/* Offsets, in 32-bit words, of the parts of a quantised page of 64 tokens. The parts are, in this
 * order:
 *   offset 0       codes of K
 *   channel_scale  scales of K [64 / min(group, 64)][rank]
 *   token          codes of V
 *   token_scale    scales of V [rank / group][64]
 * words: size of the page. If a token has only one vector, this vector takes the place of V, and K
 * is missing.
 *
 * Codes are [(rank + 31) / 32][bits][64 tokens]: 32 successive codes of a token fill `bits` words
 * without gaps, lowest bits first. A scale is a word: float16 step in the lower half, float16 zero
 * point in the upper half. */
typedef struct {
    int32_t channel_scale, token, token_scale, words;
} kvd_xquant_page;

static inline int32_t kvd_xquant_pieces(int32_t n, int32_t each)
{
    return (n + each - 1) / each;
}

static inline kvd_xquant_page kvd_xquant_page_of(const kvd_xquant_form *f)
{
    const int32_t tokens = KVD_PAGE_TOKENS, groups = tokens < f->group ? 1 : tokens / f->group;
    kvd_xquant_page p;
    const int32_t codes = kvd_xquant_pieces(f->rank, 32) * f->bits * tokens;
    p.channel_scale = f->channels ? codes : 0;
    p.token = p.channel_scale + (f->channels ? groups * f->rank : 0);
    p.token_scale = p.token + codes;
    p.words = p.token_scale + kvd_xquant_pieces(f->rank, f->group) * tokens;
    return p;
}

typedef struct {
    kvd_xquant_form form;
    kvd_xquant_page page;
    uint32_t *codes; /* device [pages][page.words] */
    uint16_t *ring;  /* newest tokens, device [slots][ring_pages][page of bf16 vectors] */
    uint16_t *pages; /* restored vectors, device [pages][page of bf16 vectors] */
    /* Vectors of new tokens to quantise, in device memory: [tokens][rank], or [tokens][2 rank] if a
     * token has K and V. */
    const uint16_t *rows;
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    /* [n] in device memory: index in `rows` of each prompt's first token. NULL: decode steps, with
     * one new token per request. */
    const int32_t *start;
    const int32_t *page_table; /* device [n][max_pages] */
    int32_t longest;
    int32_t n_sms;
    bool keys_alone; /* true: kvd_xquant_restore writes K vectors only */
} kvd_xquant_args;

/* Quantises the vectors of new tokens. For K, tokens of an incomplete group stay in bf16 in
 * a->ring. */
cudaError_t kvd_xquant_code(const kvd_xquant_args *a, cudaStream_t stream);
/* Decodes the quantised layer inputs, or their projections, of all cached tokens to bf16 pages
 * a->pages. */
cudaError_t kvd_xquant_restore(const kvd_xquant_args *a, cudaStream_t stream);

/* Limits of kvd_xquant_attend: largest number of heads, of elements of a quantised vector, and of
 * bits of an element. */
enum { KVD_XQUANT_HEADS = 32, KVD_XQUANT_RANK = 1024, KVD_XQUANT_BITS = 8 };
typedef struct {
    kvd_xquant_args x; /* decode steps */
    /* Numbers of heads, each of 128 dimensions. Query head h uses KV head h / (n_heads /
     * n_kv_heads). */
    int32_t n_heads, n_kv_heads;
    float scale;
    const void *q;    /* bf16 queries after RoPE, device [n][n_heads][128] */
    const void *pool; /* pages in layout BLOCKED (kernels/layout.h), device; V is not read */
    size_t page_elements;
    const float *sinks; /* device [n_heads], logits of attention sinks, or NULL */
    int32_t parts;      /* CTAs per request */
    /* Workspace. sums: partial outputs [n][parts][n_heads][rank]. ends: largest score and softmax
     * sum of each partial output, [n][parts][n_heads]. newest: scores of the newest token
     * [n][n_heads]. */
    float *sums;
    float2 *ends;
    float *newest;
    void *o; /* output, bf16, device [n][n_heads][rank] */
} kvd_xquant_attend_args;

/* Returns true if kvd_xquant_attend supports these numbers of heads and this quantisation. */
bool kvd_xquant_attends(const kvd_xquant_form *f, int32_t n_heads, int32_t n_kv_heads);
cudaError_t kvd_xquant_attend(const kvd_xquant_attend_args *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
