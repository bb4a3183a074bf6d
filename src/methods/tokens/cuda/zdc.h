/*
 * Two widths (numbers of stored dimensions) of tokens on the device, for method importance and ZDC
 * section 5. Important tokens of a prompt (KVD_ZDC_HIGH) are stored at the widths of the plan's
 * `dims`, less important tokens (KVD_ZDC_LOW) at the smaller widths of `dims_low`. A less important
 * token stores the first columns of the row that an important token would store. Functions that
 * launch kernels follow the conventions of model/pass/cuda/blocks.h.
 *
 * A slot has a list of pages: one page of its own, then the pages of its row of the page table. In
 * every layer the first pages, at least one, hold the less important tokens. The following pages
 * hold the important tokens and then the tokens after the prompt. All pages have the same size. The
 * less important tokens are in their original order, and so are the others.
 *
 * The attention of decode steps is one launch (kernels/cuda/decode.h, second_len), in which a layer
 * has twice its number of heads. The second half of the heads reads the less important tokens with
 * the first columns of the same queries. kvd_zdc_merge then computes the mean of the two outputs,
 * with the softmax denominators as weights.
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
 * Bits of `level`. KVD_ZDC_RAW: this layer itself ranks the token as important. KVD_ZDC_USED: the
 * layer treats the token as important. The second bit may come from an earlier layer, whose token
 * sets this layer uses.
 */
enum { KVD_ZDC_RAW = 1, KVD_ZDC_USED = 2 };

/*
 * Layout of a KV head in the pages of important and of other tokens. The last index [2] is 0 for K
 * (and Q) and 1 for V (and O).
 */
typedef struct {
    int16_t width[KVD_ZDC_STORES][2]; /* columns stored per token, multiples of 16 */
    /* Number of leading columns of a less important token that hold data; the others are 0. */
    int16_t kept[2];
    /* Index, in a page, of the element at which the head's K or V starts. */
    int32_t in_page[KVD_ZDC_STORES][2];
    /*
     * Column of an output row at which the outputs of this KV head begin. An output row holds the
     * outputs of attention to important tokens, then those of attention to the other tokens.
     */
    int32_t in_row[KVD_ZDC_STORES];
} kvd_zdc_head;

typedef struct {
    const int32_t *slot; /* device [batch] */
    /* Page numbers of each request, without the slot's own page: device [batch][pitch]. */
    const int32_t *table;
    /*
     * Slot s has page own + s of the pool as the first page of its list. `pitch` is the length of a
     * row of `table`.
     */
    int32_t pitch, own;
    /* Device [slots][n_layers]: number of less important tokens. */
    int32_t *n_low;
    int32_t n_layers, layer;
} kvd_zdc_pages;

/* Arguments of kvd_zdc_choose: the whole prompts of a batch, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_heads, n_q8, longest;
    /* First row and number of tokens of each prompt, device [batch]. */
    const int32_t *q_start, *q_len;
    /* Natural logarithms of the softmax denominators, device [n_heads][n_q8]. */
    const float *lse;
    /*
     * 1: `lse` does not hold softmax denominators but, for each query head and token, the sum of
     * the attention that the token received. These sums are added over query heads.
     */
    int32_t sums;
    /*
     * 1: the importance of a token is its softmax denominator divided by the number of keys that
     * the token sees
     */
    int32_t mean;
    double share; /* fraction of the tokens that are important */
    /*
     * Number of consecutive layers, this one included, that use the token sets chosen in this
     * layer.
     */
    int32_t span;
    /*
     * Smallest overlap at which this layer uses the preceding layer's sets of important and of
     * other tokens. The sets of important tokens of the two layers, and also those of other tokens,
     * must overlap by at least this fraction. A value above 1 disables the reuse.
     */
    double overlap;
    float *value; /* scratch, device [n_q8]: importance of every token */
    /*
     * Output, device [n_q8]: bits KVD_ZDC_RAW and KVD_ZDC_USED of every token. `level` and `place`
     * must stay unchanged between the layers of an iteration.
     */
    uint8_t *level;
    /* Output, device [n_q8]: index of the token among the important or among the other tokens. */
    int32_t *place;
} kvd_zdc_choose_args;

/*
 * Chooses the important tokens of each prompt: the fraction `share` of its tokens with the largest
 * importance. The importance of a token is the logarithm of the sum over query heads of its softmax
 * denominators exp(lse). Among equally important tokens the earlier one is chosen. If the layer
 * uses the sets of an earlier layer, `share` has no effect.
 */
cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *args, cudaStream_t stream);
/*
 * Writes the importance of tokens, summed over the query heads of this GPU, to `to` [n_q8]. If
 * several GPUs share the heads, give the arrays of all GPUs to kvd_zdc_choose as its `lse`.
 */
cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *args, float *to, cudaStream_t stream);

/*
 * Arguments of kvd_zdc_channels: the whole prompts of a batch, in one layer, for method think
 * (methods/dims/think.c). Keys are stored with their channels in falling order of importance, so
 * that pruned channels are the last columns.
 */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of the pages `from`; all KV heads have the same width */
    int32_t batch, n_q8, window;
    /* First row and number of tokens of each prompt, device [batch]. */
    const int32_t *q_start, *q_len;
    const void *q;    /* queries in the blocked layout, device */
    const void *from; /* pages that hold the prompts, device */
    /*
     * Output, device [slots][n_layers][n_kv_heads][d_qk]: order[j] is the channel that column j of
     * K holds. Channels with equal scores stay in rising order.
     */
    int16_t *order;
    /*
     * Outputs `level` and `place`, as kvd_zdc_choose writes them. The last `window` tokens of a
     * prompt are important.
     */
    uint8_t *level;
    int32_t *place;
} kvd_zdc_channels_args;
cudaError_t kvd_zdc_channels(const kvd_zdc_channels_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_reorder: decode steps in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of important tokens */
    int32_t batch, pitch;
    /* Device [batch]: kvd_zdc_lists_args.end, the number of rows up to the newest token */
    const int32_t *end;
    const int32_t *table; /* device [batch][pitch] */
    const int16_t *order; /* output of kvd_zdc_channels */
    void *q;              /* device [batch][q_pitch]: queries */
    void *store;          /* device pages of the layer */
} kvd_zdc_reorder_args;
/*
 * Sorts the channels of the queries and of the newest key by `order`, the order in which the
 * request's keys are stored.
 */
cudaError_t kvd_zdc_reorder(const kvd_zdc_reorder_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_move: the whole prompts of a batch, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, longest;
    /* Device [batch]: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const uint8_t *level; /* device: output of kvd_zdc_choose */
    const int32_t *place;
    const int16_t *order;     /* output of kvd_zdc_channels, or NULL: columns stay in their order */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    /*
     * Device pages that hold the prompts before kvd_zdc_move copies them. In these pages, all
     * tokens have as many columns as important tokens.
     */
    const void *from;
    /* Device pages of the layer to which kvd_zdc_move copies the rows. */
    void *store;
    size_t page; /* number of elements of a page */
} kvd_zdc_move_args;

/*
 * Copies K and V of prompts to the pages of important and of other tokens. Sets the rows after the
 * last important token and after the last other token to 0, up to a multiple of 8.
 */
cudaError_t kvd_zdc_move(const kvd_zdc_move_args *args, cudaStream_t stream);
/*
 * Sets to 0 the columns that less important tokens do not store, in `pages`. `pages` must point to
 * the same memory as args->from, which is a pointer to const.
 */
cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *args, void *pages, cudaStream_t stream);

/* Tokens first .. first + n - 1 of one prompt, to be sent to or received from another GPU. */
typedef struct {
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t n_kv_heads, first, n;
    /* Number of important and of other tokens that precede token `first` in the prompt. */
    int32_t before[KVD_ZDC_STORES];
    /* Number of important and of other tokens among tokens first .. first + n - 1. */
    int32_t count[KVD_ZDC_STORES];
    /* Number of elements of an important token, and of any other token, in `rows`. */
    int32_t entry[KVD_ZDC_STORES];
    /* Outputs of kvd_zdc_choose for all tokens of the prompt, on the device. */
    const uint8_t *level;
    const int32_t *place;
    /*
     * Packed tokens, on the device: the important ones [count[HIGH]][entry[HIGH]], then the others
     * [count[LOW]][entry[LOW]]. A token has one head after another, K before V.
     */
    void *rows;
    /*
     * Device pages of 64 tokens, in which all tokens have the columns of important tokens. The page
     * with number table[0] has tokens 0 .. 63 of the prompt.
     */
    void *pages;
    const int32_t *table; /* device: page numbers of the prompt */
    size_t page;          /* number of elements of a page */
} kvd_zdc_rows_args;

/*
 * kvd_zdc_pack copies tokens from `pages` to `rows`, kvd_zdc_unpack from `rows` to `pages`.
 * kvd_zdc_unpack sets to 0 the columns that `rows` does not have, and the tokens after the last one
 * in its group of 8.
 */
cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *args, cudaStream_t stream);
cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *args, cudaStream_t stream);

typedef struct {
    /*
     * Pages of the slots. kvd_zdc_lists makes page lists for all layers, so the member `layer` is
     * ignored.
     */
    kvd_zdc_pages pages;
    /* rows: first dimension of `end`, `low_len` and `table`, at least `batch` */
    int32_t batch, rows;
    /* Number of tokens of each request, the newest included, device [batch]. */
    const int32_t *kv_len;
    /*
     * Outputs, device [n_layers][rows]. `low_len` is the number of less important tokens, which
     * kvd_decode expects as second_len. `end` is the number of rows from the start of the page list
     * to the newest token, which kvd_decode expects as kv_len.
     */
    int32_t *end, *low_len;
    int32_t *table; /* output, device [rows][pitch + 1]: page list of each request */
} kvd_zdc_lists_args;

/*
 * Fills `end`, `low_len` and `table`. The append kernel uses `end` as kv_len, so `end` must include
 * the newest token.
 */
cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_merge: attention outputs of one decode step in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, group;
    int32_t hopper;           /* 1 if attention kernels for sm_90 wrote `o` */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t pitch, out_pitch;
    /*
     * Device [batch][pitch]: attention outputs over important tokens, then those over other tokens.
     */
    const void *o;
    /* Natural logarithms of the softmax denominators, device [batch][2 n_heads]. */
    const float *lse;
    /*
     * Output, device [batch][out_pitch]: merged attention output, with the columns of V of
     * important tokens.
     */
    void *out;
} kvd_zdc_merge_args;

/*
 * Adds the attention outputs over important and over other tokens, weighted by their softmax
 * denominators. If a slot has no other tokens, their output has weight 0.
 */
cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/*
 * Returns the number of pages that hold `tokens` tokens. The functions from here on locate the row
 * of a token in the pages of method zdc.
 */

static __device__ __forceinline__ int zdc_pages_of(int tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/*
 * Returns the number of pages at the front of a page list that hold the n_low less important
 * tokens; at least one.
 */
static __device__ __forceinline__ int zdc_low_pages(int n_low)
{
    return zdc_pages_of(max(n_low, 1));
}

/* Returns the number of the i-th page in the page list of request b. */
static __device__ __forceinline__ int zdc_page(const kvd_zdc_pages &p, int b, int i)
{
    return i ? p.table[(size_t)b * (size_t)p.pitch + (size_t)(i - 1)] : p.own + p.slot[b];
}

static __device__ __forceinline__ int zdc_low(const kvd_zdc_pages &p, int b)
{
    return p.n_low[(size_t)p.slot[b] * (size_t)p.n_layers + p.layer];
}

/*
 * Returns the index of columns 8 block .. 8 block + 7 of token t in K or V of a page
 * (kernels/layout.h).
 */
static __device__ __forceinline__ int zdc_in_page(int t, int width, int block)
{
    return t / 8 * 8 * width + block * 64 + t % 8 * 8;
}

/*
 * Returns the index in `order` (output of kvd_zdc_channels) at which the d key channels of KV head
 * g of request b begin.
 */
static __device__ __forceinline__ size_t zdc_order_at(const kvd_zdc_pages &p, int b, int n_kv_heads,
                                                      int g, int d)
{
    return (((size_t)p.slot[b] * (size_t)p.n_layers + (size_t)p.layer) * (size_t)n_kv_heads +
            (size_t)g) *
           (size_t)d;
}
#endif
#endif
