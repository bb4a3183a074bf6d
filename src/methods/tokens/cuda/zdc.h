/*
 * Two widths (numbers of stored dimensions) of tokens on the device, for methods/tokens importance
 * and ZDC section 5. Important tokens of a prompt (high tokens) are stored at the widths of the
 * plan's method of the dims axis, `dims`; all other tokens (low tokens) at the smaller widths of
 * `dims_low`. The columns of a low row are the first columns of the wider row. Functions that
 * launch kernels follow the conventions of model/pass/cuda/blocks.h.
 *
 * A slot has a list of pages: one page of its own, then the pages of its row of the page table. In
 * every layer the first pages, at least one, hold the low tokens. The following pages hold the high
 * tokens and then the tokens after the prompt. A page of low tokens takes as much memory as a page
 * of high tokens. The high pages and the low pages are called stores; both keep the order of the
 * tokens. RoPE is already applied to the keys, so no record is kept of which token is in which row.
 *
 * Attention of steps is one launch (kernels/cuda/decode.h, second_len). For this launch a layer has
 * twice its number of heads; the second half of them reads the low rows with the first columns of
 * the same queries. kvd_zdc_merge then weights the outputs of the two halves by their softmax
 * denominators.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_ZDC_HIGH, KVD_ZDC_LOW, KVD_ZDC_STORES };
/*
 * Bits of the byte `level` of a token. KVD_ZDC_RAW: the token is high (important) by the importance
 * computed in this layer. KVD_ZDC_USED: the token is high in the token sets that the layer uses,
 * which may be those of an earlier layer.
 */
enum { KVD_ZDC_RAW = 1, KVD_ZDC_USED = 2 };

/*
 * Layout of a KV head in the pages of high (important) tokens and in those of low (other) tokens.
 * The last index [2] is 0 for K (and Q) and 1 for V (and O).
 */
typedef struct {
    int16_t width[KVD_ZDC_STORES][2]; /* columns stored per token, multiples of 16 */
    /* Low (less important) tokens: number of leading columns that hold data; the rest are 0. */
    int16_t kept[2];
    /* Index of the element of a page at which the head's K or V starts. */
    int32_t in_page[KVD_ZDC_STORES][2];
    /*
     * Column of an output row at which the head's first query head starts. An output row has two
     * halves: attention over the high (important) tokens, then over the low tokens.
     */
    int32_t in_row[KVD_ZDC_STORES];
} kvd_zdc_head;

/* Page lists of the slots of a batch. */
typedef struct {
    const int32_t *slot; /* device [batch]: slot of each request */
    /* Device [batch][pitch]: page numbers of each request after its slot's own page. */
    const int32_t *table;
    /*
     * pitch: row length of `table`. own: the page with which the list of slot 0 starts; the list of
     * slot s starts with page own + s.
     */
    int32_t pitch, own;
    /* Device [slots][n_layers]: number of low (less important) tokens. */
    int32_t *n_low;
    int32_t n_layers, layer;
} kvd_zdc_pages;

/*
 * Arguments of kvd_zdc_choose and kvd_zdc_value, which process the whole prompts of a batch in one
 * layer.
 */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_heads, n_q8, longest; /* longest: number of tokens of the longest prompt */
    /* Device [batch]: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    /*
     * Natural logarithms of the softmax denominators from the attention kernel, device
     * [n_heads][n_q8 rows of Q].
     */
    const float *lse;
    int32_t mean; /* 1: divide a token's softmax denominator by the number of keys it sees */
    double share; /* fraction of a prompt's tokens that are important (high) in this layer */
    /* Number of consecutive layers that use the sets chosen here, this layer included. */
    int32_t span;
    /*
     * Smallest overlap at which this layer uses the token sets of the preceding layer. The sets of
     * high (important) tokens of the two layers, and also the sets of low (other) tokens, must
     * overlap by at least this fraction. A value above 1 disables the reuse.
     */
    double overlap;
    /*
     * Scratch for the importance of every token; must stay unchanged between the layers of an
     * iteration.
     */
    float *value; /* device [n_q8 rows of Q]: importance of every token */
    /* Output, device [n_q8 rows of Q]: KVD_ZDC_RAW and KVD_ZDC_USED of every token. */
    uint8_t *level;
    /*
     * Output, device [n_q8 rows of Q]: index of the token among the high (important) tokens of its
     * prompt, or among the low (other) tokens, whichever it belongs to.
     */
    int32_t *place;
} kvd_zdc_choose_args;

/*
 * Chooses the high (important) tokens of whole prompts in a layer. The importance of a token is the
 * logarithm of the sum over query heads of exp(lse). The fraction `share` of tokens with the
 * largest importance is high; among equal tokens the earlier ones come first. If the layer uses the
 * sets of an earlier layer, the number of high tokens is that of the earlier layer.
 */
cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *args, cudaStream_t stream);
/*
 * Writes the importance of every token, over the query heads of this GPU, to `to` [n_q8 rows of Q].
 * If several GPUs share the heads, pass these arrays of all GPUs to kvd_zdc_choose in place of lse;
 * it then uses the importance over all GPUs.
 */
cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *args, float *to, cudaStream_t stream);

/*
 * Arguments of kvd_zdc_move and kvd_zdc_narrow, which process the whole prompts of a batch in one
 * layer.
 */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, longest;
    /* Device [batch]: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const uint8_t *level; /* device: level (high or low) of every token, output of kvd_zdc_choose */
    const int32_t *place;
    const kvd_zdc_head *head; /* device [n_kv_heads]: layout of every KV head */
    /*
     * Device pages that hold all tokens of the prompts, each with as many columns as a high
     * (important) token. Their numbers are in pages.table.
     */
    const void *from;
    /* Device pages of the layer, for high and for low tokens, that receive the rows. */
    void *store;
    /* Number of elements of a page of high (important) or of low (other) tokens. */
    size_t page;
} kvd_zdc_move_args;

/*
 * Copies the rows of K and V of prompts from their pages to the pages of high (important) tokens
 * and of low (other) tokens. After the last row of each kind, sets rows to 0 up to a multiple of 8
 * rows.
 */
cudaError_t kvd_zdc_move(const kvd_zdc_move_args *args, cudaStream_t stream);
/*
 * In the rows of low (less important) tokens, writes 0 into the columns that these tokens do not
 * keep. `pages` are the prompts' pages (args->from), in which all tokens have as many columns as
 * high tokens.
 */
cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *args, void *pages, cudaStream_t stream);

/*
 * Tokens first .. first + n - 1 of one prompt in some KV heads: rows to be sent to or received from
 * another GPU.
 */
typedef struct {
    const kvd_zdc_head *head; /* device [n_kv_heads]: layout of every KV head */
    int32_t n_kv_heads, first, n;
    /* Number of high (important) and of low (other) tokens of the prompt before token `first`. */
    int32_t before[KVD_ZDC_STORES];
    /* Number of high (important) and of low (other) tokens among the n. */
    int32_t count[KVD_ZDC_STORES];
    /* Number of elements of a packed row of a high (important) and of a low (other) token. */
    int32_t entry[KVD_ZDC_STORES];
    /*
     * Outputs of kvd_zdc_choose for all tokens of the prompt, on the device: the level (high or
     * low), and the index among the tokens of the same level.
     */
    const uint8_t *level;
    const int32_t *place;
    /*
     * Packed rows, device: rows of high (important) tokens [count[HIGH]][entry[HIGH]], then rows of
     * low (other) tokens [count[LOW]][entry[LOW]]. A row has one head after another, K before V.
     */
    void *rows;
    /*
     * Device pages of 64 tokens, each with as many columns as a high (important) token. Page
     * table[0] has tokens 0 .. 63 of the prompt.
     */
    void *pages;
    const int32_t *table; /* device: page numbers of the prompt */
    size_t page;          /* number of elements of a page */
} kvd_zdc_rows_args;

/*
 * kvd_zdc_pack copies rows from `pages` to `rows`. kvd_zdc_unpack copies them from `rows` to
 * `pages`. It fills the rows of low (less important) tokens with zeros up to the width of high
 * tokens, and sets the rest of the last group of 8 rows to 0.
 */
cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *args, cudaStream_t stream);
cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *args, cudaStream_t stream);

/*
 * Arguments of kvd_zdc_lists, which writes the page lists and lengths that a batch of decode steps
 * reads.
 */
typedef struct {
    /* Page lists of the slots; its member `layer` is ignored, because all layers are processed. */
    kvd_zdc_pages pages;
    int32_t batch, rows; /* rows: first dimension of the arrays below, at least batch */
    /* Device [batch]: number of tokens of each request, including the newest. */
    const int32_t *kv_len;
    /*
     * Arrays that kvd_decode reads: `end` is its kv_len (high, that is important, tokens and the
     * tokens after the prompt), `low_len` its second_len (low tokens), `table` its page lists.
     */
    /* Output, device [n_layers][rows]: `end` and `low_len` as described above. */
    int32_t *end, *low_len;
    int32_t *table; /* output, device [rows][pitch + 1]: page list of each request */
} kvd_zdc_lists_args;

/*
 * Fills the page lists and lengths of a batch of decode steps. `end` counts the newest token's row
 * as the last one, so that the append kernel can take `end` as its kv_len.
 */
cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *args, cudaStream_t stream);

/*
 * Arguments of kvd_zdc_merge: the attention outputs of one decode step in one layer, over high
 * (important) tokens and over low (other) tokens.
 */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, group;
    int32_t hopper;           /* 1: the outputs come from the kernels for sm_90 */
    const kvd_zdc_head *head; /* device [n_kv_heads]: layout of every KV head */
    int32_t pitch, out_pitch;
    /*
     * Device [batch][pitch]: attention outputs over the high (important) tokens, then over the low
     * (other) tokens.
     */
    const void *o;
    /* Natural logarithms of the softmax denominators, device [batch][2 n_heads]. */
    const float *lse;
    /*
     * Output, device [batch][out_pitch]: merged outputs, with as many columns as the V of high
     * tokens.
     */
    void *out;
} kvd_zdc_merge_args;

/*
 * Adds the attention outputs over high (important) and over low (other) tokens, weighted by their
 * softmax denominators. If there are no low tokens, their output has weight 0.
 */
cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
