/* Important prompt tokens keep all columns of their projections, less important tokens only the
 * first ones (ZDC section 5).
 *
 * In each layer, less important tokens fill a request's first pages (at least one); important and
 * later tokens follow. Attention runs once with twice the heads, and kvd_zdc_merge averages the
 * outputs. */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_ZDC_HIGH, KVD_ZDC_LOW, KVD_ZDC_STORES };
/* Bits of a token. RAW: ranked as important in this layer. USED: treated as important. */
enum { KVD_ZDC_RAW = 1, KVD_ZDC_USED = 2 };

/* Layout of a KV head for important and less important tokens. Last index 0: K, Q; 1: V, output. */
typedef struct {
    int16_t width[KVD_ZDC_STORES][2]; /* columns per token, multiples of 16 */
    /* Number of columns of K (0), V (1) with data, of a less important token, without padding. */
    int16_t kept[2];
    /* Index in a page of the element at which the head's K or V begins. */
    int32_t in_page[KVD_ZDC_STORES][2];
    /* First column of the head in the outputs over important and over less important tokens. */
    int32_t in_row[KVD_ZDC_STORES];
} kvd_zdc_head;

typedef struct {
    const int32_t *slot; /* device [batch] */
    /* [batch][pitch] in device memory: pages of each request, without its first page. */
    const int32_t *table;
    /* Row length of the page table, and number of the first page of slot 0. */
    int32_t pitch, own;
    /* [slots][n_layers] in device memory: number of less important tokens. */
    int32_t *n_low;
    int32_t n_layers, layer;
} kvd_zdc_pages;

/* Arguments for choosing important tokens: whole prompts of a batch, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_heads, n_q8, longest;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    /* [n_heads][n_q8] in device memory: natural logs of softmax denominators. */
    const float *lse;
    /* 1 if, in place of logs, `lse` has the attention that each token received per query head. */
    int32_t sums;
    /* 1 if a softmax denominator is divided by the number of keys that its query sees. */
    int32_t mean;
    double share; /* fraction of important tokens */
    /* Number of consecutive layers, from this one on, that use this layer's important tokens. */
    int32_t span;
    /* Smallest overlap of two layers' important tokens at which the later layer reuses them. */
    double overlap;
    float *value; /* device scratch [n_q8]: importance */
    /* Output [n_q8] in device memory: per token, bits KVD_ZDC_RAW (ranked as important in this
     * layer) and KVD_ZDC_USED (treated as important). */
    uint8_t *level;
    /* Output [n_q8] on the device: index of a token among the important or less important ones. */
    int32_t *place;
} kvd_zdc_choose_args;

/* Chooses as important the fraction args->share of each prompt's tokens with the largest
 * importance: the log of the sum of the softmax denominators exp(lse) of the token's query over
 * query heads. On ties, earlier tokens come first. Layers that reuse another layer's choice ignore
 * the result. */
cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *args, cudaStream_t stream);
/* Writes tokens' importance over this GPU's heads to `to` [n_q8], an input of kvd_zdc_choose. */
cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *args, float *to, cudaStream_t stream);

/* Arguments for pruning key channels (method think): whole prompts, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of `from`, in which KV heads have equal widths */
    int32_t batch, n_q8, window;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const void *q;    /* device queries, blocked layout */
    const void *from; /* device pages with the prompts */
    /* Output [slots][n_layers][n_kv_heads][d_qk] on the device: channel of each key column. */
    int16_t *order;
    /* Outputs [n_q8] in device memory: bits of each token as in kvd_zdc_choose_args, a prompt's
     * newest `window` tokens being the important ones, and its index among tokens of the same
     * kind. */
    uint8_t *level;
    int32_t *place;
} kvd_zdc_channels_args;
cudaError_t kvd_zdc_channels(const kvd_zdc_channels_args *args, cudaStream_t stream);
/* For a layer with a sliding window of `near` tokens: zeroes the key channels that method think
 * prunes. The channels are ranked by the prompt's newest `near` keys; `kept` of them stay. Ignores
 * order, level and place. `pages` must equal args->from. */
cudaError_t kvd_zdc_prune(const kvd_zdc_channels_args *args, int32_t near, int32_t kept,
                          void *pages, cudaStream_t stream);

/* Arguments of kvd_zdc_reorder: decode steps in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of important tokens */
    int32_t batch, pitch;
    /* [batch] on the device: number of rows in the request's pages up to the newest token's row. */
    const int32_t *end;
    const int32_t *table; /* device [batch][pitch] */
    const int16_t *order; /* output of kvd_zdc_channels */
    void *q;              /* device [batch][q_pitch] */
    void *store;          /* device pages of the layer */
} kvd_zdc_reorder_args;
/* Sorts the channels of queries and of the newest key by args->order. */
cudaError_t kvd_zdc_reorder(const kvd_zdc_reorder_args *args, cudaStream_t stream);

/* Arguments for copying tokens to their pages: whole prompts of a batch, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, longest;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const uint8_t *level; /* device output of kvd_zdc_choose */
    const int32_t *place;
    const int16_t *order;     /* output of kvd_zdc_channels, or NULL if columns keep their order */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    /* Pages of the prompts in device memory, in which all tokens have all columns. */
    const void *from;
    /* Pages in device memory to which tokens are copied. */
    void *store;
    size_t page; /* elements of a page */
} kvd_zdc_move_args;

/* Copies prompt tokens to the pages of important or less important tokens, and pads with zeros. */
cudaError_t kvd_zdc_move(const kvd_zdc_move_args *args, cudaStream_t stream);
/* Zeroes the columns that less important tokens do not store. `pages` must equal args->from. */
cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *args, void *pages, cudaStream_t stream);

/* Tokens first .. first + n - 1 of a prompt, for exchange with another GPU. */
typedef struct {
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t n_kv_heads, first, n;
    /* Number of important and of less important tokens among tokens 0 .. first - 1 of the
     * prompt. */
    int32_t before[KVD_ZDC_STORES];
    /* Number of important and less important tokens among the tokens first .. first + n - 1. */
    int32_t count[KVD_ZDC_STORES];
    /* Number of elements of an important and of a less important token in packed rows. */
    int32_t entry[KVD_ZDC_STORES];
    /* Outputs of kvd_zdc_choose for the whole prompt, in device memory. */
    const uint8_t *level;
    const int32_t *place;
    /* Packed rows in device memory: first the important tokens, then the less important ones. A
     * token has K, then V, for each KV head. */
    void *rows;
    /* Pages in device memory in which all tokens have all columns of K and V. The first page in
     * `table` has the prompt's tokens 0 to 63. */
    void *pages;
    const int32_t *table; /* device: the prompt's page numbers */
    size_t page;          /* elements of a page */
} kvd_zdc_rows_args;

/* kvd_zdc_pack copies tokens from args->pages to args->rows. kvd_zdc_unpack copies tokens back, and
 * zeroes the columns that rows lack. */
cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *args, cudaStream_t stream);
cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *args, cudaStream_t stream);

typedef struct {
    /* Pages of all layers. Member pages.layer is not used. */
    kvd_zdc_pages pages;
    /* Number of requests, and number of rows of the output arrays, at least `batch`. */
    int32_t batch, rows;
    /* [batch] in device memory: number of tokens of each request, including the newest one. */
    const int32_t *kv_len;
    /* Outputs [n_layers][rows] in device memory, with an element per request. end: number of token
     * rows in the request's pages up to the newest token. low_len: number of less important tokens
     * (those with fewer columns), at least 1. */
    int32_t *end, *low_len;
    int32_t *table; /* device output [rows][pitch + 1]: page lists */
} kvd_zdc_lists_args;

/* For all layers and requests, writes the number of token rows (args->end), the number of less
 * important tokens (low_len), and the list of pages (table). */
cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *args, cudaStream_t stream);

/* Arguments for averaging attention over important and less important tokens, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, group;
    int32_t hopper;           /* 1 if sm_90 kernels wrote `o` */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t pitch, out_pitch;
    /* [batch][pitch] in device memory: outputs over important, then over less important tokens. */
    const void *o;
    /* [batch][2 n_heads] in device memory: natural logs of the softmax denominators over important
     * tokens (first n_heads), then over less important ones. */
    const float *lse;
    /* Logits of attention sinks, [n_heads] in device memory, or NULL. */
    const float *sinks;
    /* Output [batch][out_pitch] in device memory, as wide as V of important tokens. */
    void *out;
} kvd_zdc_merge_args;

/* Averages the attention outputs over important and over less important tokens, weighted by softmax
 * denominators. A query head's sink counts once. */
cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__

static __device__ __forceinline__ int zdc_pages_of(int tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/* Returns the number of pages for n_low less important tokens, at least one. */
static __device__ __forceinline__ int zdc_low_pages(int n_low)
{
    return zdc_pages_of(max(n_low, 1));
}

/* Returns the number of the i-th page of request b. */
static __device__ __forceinline__ int zdc_page(const kvd_zdc_pages &p, int b, int i)
{
    return i ? p.table[(size_t)b * (size_t)p.pitch + (size_t)(i - 1)] : p.own + p.slot[b];
}

static __device__ __forceinline__ int zdc_low(const kvd_zdc_pages &p, int b)
{
    return p.n_low[(size_t)p.slot[b] * (size_t)p.n_layers + p.layer];
}

/* Returns the offset in a page of columns 8 block .. 8 block + 7 of token t. */
static __device__ __forceinline__ int zdc_in_page(int t, int width, int block)
{
    return t / 8 * 8 * width + block * 64 + t % 8 * 8;
}

/* Returns the index in `order` at which the channels of KV head g begin. */
static __device__ __forceinline__ size_t zdc_order_at(const kvd_zdc_pages &p, int b, int n_kv_heads,
                                                      int g, int d)
{
    return (((size_t)p.slot[b] * (size_t)p.n_layers + (size_t)p.layer) * (size_t)n_kv_heads +
            (size_t)g) *
           (size_t)d;
}
#endif
#endif
