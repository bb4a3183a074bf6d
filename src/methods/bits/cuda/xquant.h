/*
 * Kernels of method xquant in the CUDA engine. They quantise vectors Y of the input of a layer
 * (methods/bits/xquant.c), and restore pages of bf16 vectors in the layout of
 * methods/dims/cuda/latents.h.
 *
 * If `channels` is set, a token has two vectors of `rank` numbers, the first for K and the second
 * for V. The K vectors are quantised in whole groups of `group` tokens, with a scale for each group
 * and channel. The K vectors of the newest tokens, which fill no group, are bf16, in the ring
 * buffer of the request's slot. If `channels` is not set, a token has one vector for both K and V.
 * Vectors of V, and vectors for both, have a scale for `group` numbers of a token.
 *
 * A page of codes has 64 tokens, in 32-bit words:
 *
 *   K vectors      codes [rank][2][bits]: bit t % 32 of word [i][t / 32][j] is bit j of the code of
 *                  number i of token t. Scales [64 / min(group, 64)][rank]
 *   other vectors  codes [rank / 32][bits][64]: bit i % 32 of word [i / 32][j][t] is bit j of the
 *                  code. Scales [rank / group][64]
 *
 * rank / 32 and rank / group are rounded up. The lower half of a scale is the step, the upper half
 * the zero point, both float16.
 */
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

/* Sizes that all layers share. */
typedef struct {
    int32_t rank; /* a multiple of 16 */
    int32_t bits; /* 1 .. 16 */
    /*
     * number of tokens or channels that share a scale: a multiple or a divisor of KVD_PAGE_TOKENS
     */
    int32_t group;
    bool channels;
    int32_t ring_pages;
} kvd_xquant_form;

/* Offsets of the parts of a page of codes, and its size, in words. */
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
    p.channel_scale = f->channels ? f->rank * 2 * f->bits : 0;
    p.token = p.channel_scale + (f->channels ? groups * f->rank : 0);
    p.token_scale = p.token + kvd_xquant_pieces(f->rank, 32) * f->bits * tokens;
    p.words = p.token_scale + kvd_xquant_pieces(f->rank, f->group) * tokens;
    return p;
}

/* One layer, and the requests of a batch. */
typedef struct {
    kvd_xquant_form form;
    kvd_xquant_page page;
    uint32_t *codes; /* device [pages][page.words] */
    uint16_t *ring;  /* newest tokens, device [slots][ring_pages][page of bf16 vectors] */
    uint16_t *pages; /* restored vectors, device [pages][page of bf16 vectors] */
    /* Vectors Y of prompts, device [tokens][rank], or [tokens][2 rank] with form.channels. */
    const uint16_t *rows;
    int32_t n, max_pages;
    const int32_t *kv_len, *slot; /* device [n] */
    /* Device [n]: first row of each prompt in `rows`. NULL: decode steps of one token each. */
    const int32_t *start;
    const int32_t *page_table; /* device [n][max_pages] */
    int32_t longest;           /* upper bound of every kv_len[b] */
    int32_t n_sms;
} kvd_xquant_args;

/*
 * In prompts, quantises all tokens. In a decode step, quantises the newest token and, if the newest
 * token completes a group, the K vectors of the group (kvd_xquant_args.channels). Copies the K
 * vectors of a prompt that are not quantised to the ring buffer.
 */
cudaError_t kvd_xquant_code(const kvd_xquant_args *a, cudaStream_t stream);
/*
 * Writes the vectors of all tokens of decode steps to a->pages. The newest token is read from the
 * ring buffer, because it is not quantised yet.
 */
cudaError_t kvd_xquant_restore(const kvd_xquant_args *a, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
