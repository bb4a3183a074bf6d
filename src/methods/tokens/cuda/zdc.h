/* Functions of method zdc (ZDC paper, section 5). Important prompt tokens keep all dimensions of K
 * and V after projection, less important tokens only the first dimensions.
 *
 * The less important tokens are in separate pages, the first pages of a request in each layer.
 * Attention runs separately over each kind of token, and kvd_zdc_merge combines the two outputs. */
#ifndef KVD_METHODS_TOKENS_CUDA_ZDC_H
#define KVD_METHODS_TOKENS_CUDA_ZDC_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "kernels/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVD_ZDC_HIGH, KVD_ZDC_LOW, KVD_ZDC_STORES };
/* Flags of a token. RAW: important by this layer's own ranking. USED: treated as important, perhaps
 * by an earlier layer's ranking. */
enum { KVD_ZDC_RAW = 1, KVD_ZDC_USED = 2 };

/* Layout of a KV head in the pages. Arrays [KVD_ZDC_STORES] have an element for important and one
 * for less important tokens. Arrays [2] have an element for K and Q, and one for V and the
 * attention output. */
typedef struct {
    int16_t width[KVD_ZDC_STORES][2]; /* columns per token, multiples of 16 */
    /* Number of dimensions of K, then of V, that a less important token keeps, without padding. */
    int16_t kept[2];
    /* Index of the element in a page at which the K or V of this head begins. */
    int32_t in_page[KVD_ZDC_STORES][2];
    /* Offsets of this KV head's attention outputs in a row: attention to important tokens, then to
     * less important tokens. */
    int32_t in_row[KVD_ZDC_STORES];
} kvd_zdc_head;

typedef struct {
    const int32_t *slot; /* device [batch] */
    /* [batch][pitch] in device memory: page table of each request, from its second page on. */
    const int32_t *table;
    /* pitch: row length of `table`. own: page number of the first page of slot 0. Slot s has
     * page own + s as its first page. */
    int32_t pitch, own;
    /* [slots][n_layers] in device memory: number of less important tokens of each request in each
     * layer. */
    int32_t *n_low;
    int32_t n_layers, layer;
} kvd_zdc_pages;

/* Arguments for choosing the important tokens in one layer, for a batch of whole prompts. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_heads, n_q8, longest;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    /* [n_heads][n_q8] in device memory: natural log of the softmax denominator of each query. */
    const float *lse;
    /* 1 if `lse` has the attention that each token received, per query head, instead of softmax
     * denominators. */
    int32_t sums;
    /* 1 if each softmax denominator is divided by the number of keys to which its query attends. */
    int32_t mean;
    double share; /* fraction of important tokens */
    /* Number of consecutive layers, beginning with this one, that use the important tokens which
     * this layer chooses. */
    int32_t span;
    /* If the important tokens of a layer and of the layer before it overlap by at least this
     * fraction, the layer uses the important tokens of the layer before. */
    double overlap;
    float *value; /* device scratch [n_q8]: importance */
    /* Output [n_q8] in device memory: flags of each token, KVD_ZDC_RAW (ranked as important in this
     * layer) and KVD_ZDC_USED (treated as important). */
    uint8_t *level;
    /* Output [n_q8] in device memory: index of each token among the important tokens of its prompt,
     * or among the less important ones. */
    int32_t *place;
} kvd_zdc_choose_args;

/* Marks the fraction args->share of each prompt's tokens as important. A token's importance is
 * computed from the softmax denominators of its query. */
cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *args, cudaStream_t stream);
/* Writes the importance of each token, computed from this GPU's heads alone, to `to` [n_q8]. This
 * is an input of kvd_zdc_choose. */
cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *args, float *to, cudaStream_t stream);

/* Arguments for choosing the key channels that method `think` removes in one layer, for a batch of
 * whole prompts. */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of `from`, in which KV heads have equal widths */
    int32_t batch, n_q8, window;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const void *q;    /* device queries, blocked layout */
    const void *from; /* device pages with the prompts */
    /* Output [slots][n_layers][n_kv_heads][d_qk] in device memory: order in which key channels are
     * stored, the most important first. Each element is the original index of a channel. */
    int16_t *order;
    /* Output [n_q8] in device memory: flags that mark the newest `window` tokens of each prompt as
     * important. */
    uint8_t *level;
    /* Output [n_q8] in device memory: index of each token among its prompt's important tokens, or
     * among its less important tokens. */
    int32_t *place;
} kvd_zdc_channels_args;
cudaError_t kvd_zdc_channels(const kvd_zdc_channels_args *args, cudaStream_t stream);
/* Zeroes all but `kept` key channels (method think), in the pages of a layer with a sliding window
 * of `near` tokens. `pages` must equal args->from. */
cudaError_t kvd_zdc_prune(const kvd_zdc_channels_args *args, int32_t near, int32_t kept,
                          void *pages, cudaStream_t stream);

/* Arguments of kvd_zdc_reorder, for the decode steps of a batch in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of important tokens */
    int32_t batch, pitch;
    /* [batch] in device memory: number of token rows in the pages of each request, up to and
     * including the newest token. */
    const int32_t *end;
    const int32_t *table; /* device [batch][pitch] */
    const int16_t *order; /* output of kvd_zdc_channels */
    void *q;              /* device [batch][q_pitch] */
    void *store;          /* device pages of the layer */
} kvd_zdc_reorder_args;
/* Sorts the channels of the queries and of the newest key of each request into the order
 * args->order. */
cudaError_t kvd_zdc_reorder(const kvd_zdc_reorder_args *args, cudaStream_t stream);

/* Arguments for copying prompt tokens to their pages in one layer, for a batch of whole prompts. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, longest;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const uint8_t *level; /* device output of kvd_zdc_choose */
    const int32_t *place;
    const int16_t *order;     /* output of kvd_zdc_channels, or NULL if columns keep their order */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    /* Pages in device memory with all dimensions of K and V of all prompt tokens. */
    const void *from;
    /* Pages in device memory to which prompt tokens are copied, with fewer dimensions of K and V
     * for less important tokens. */
    void *store;
    size_t page; /* elements of a page */
} kvd_zdc_move_args;

/* Copies important and less important prompt tokens to their pages, and fills unused dimensions
 * with zeros. */
cudaError_t kvd_zdc_move(const kvd_zdc_move_args *args, cudaStream_t stream);
/* For less important tokens, zeroes the dimensions of K and V that they do not store. `pages` must
 * equal args->from. */
cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *args, void *pages, cudaStream_t stream);

/* Arguments for sending tokens first .. first + n - 1 of a prompt to another GPU, or receiving
 * them. */
typedef struct {
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t n_kv_heads, first, n;
    /* Number of important and of less important tokens before token `first` of the prompt. */
    int32_t before[KVD_ZDC_STORES];
    /* Number of important and of less important tokens among tokens first .. first + n - 1 of the
     * prompt. */
    int32_t count[KVD_ZDC_STORES];
    /* Number of elements that an important and a less important token have in `rows`. */
    int32_t entry[KVD_ZDC_STORES];
    /* In device memory, for each token of the prompt. level: flags that mark important tokens.
     * place: index among the important or among the less important tokens. */
    const uint8_t *level;
    const int32_t *place;
    /* In device memory: the important tokens, then the less important tokens, without gaps. For
     * each KV head in turn, a token has the dimensions of K that it stores, then the dimensions of
     * V. */
    void *rows;
    /* Pages in device memory with all dimensions of K and V of all tokens. The first page in
     * `table` has tokens 0 to 63 of the prompt. */
    void *pages;
    const int32_t *table; /* device: the prompt's page numbers */
    size_t page;          /* elements of a page */
} kvd_zdc_rows_args;

/* kvd_zdc_pack copies tokens from args->pages to args->rows. kvd_zdc_unpack copies tokens from
 * args->rows to args->pages, and zeroes the dimensions that args->rows does not have. */
cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *args, cudaStream_t stream);
cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *args, cudaStream_t stream);

typedef struct {
    /* Pages of all layers. Member pages.layer is not used. */
    kvd_zdc_pages pages;
    /* batch: number of requests. rows: row length of the output arrays, at least `batch`. */
    int32_t batch, rows;
    /* [batch] in device memory: number of tokens of each request, including the newest one. */
    const int32_t *kv_len;
    /* Outputs [n_layers][rows] in device memory, for each request:
     *
     * - end: number of token rows in the request's pages up to the newest token, including padding
     * - low_len: number of less important tokens, but at least 1 */
    int32_t *end, *low_len;
    int32_t *table; /* device output [rows][pitch + 1]: page lists */
} kvd_zdc_lists_args;

/* Computes the page lists and token counts of each request in all layers: args->table, end and
 * low_len. */
cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *args, cudaStream_t stream);

/* Arguments for combining two attention outputs in one layer: one for important tokens, one for
 * less important tokens. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, group;
    int32_t hopper;           /* 1 if sm_90 kernels wrote `o` */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t pitch, out_pitch;
    /* [batch][pitch] in device memory: attention outputs over the important tokens, then those over
     * the less important ones. */
    const void *o;
    /* [batch][2 n_heads] in device memory: natural logs of softmax denominators, those over the
     * important tokens in the first n_heads elements, then those over the less important ones. */
    const float *lse;
    /* [n_heads] in device memory: logit of each query head's attention sink. NULL if the model has
     * no sinks. */
    const float *sinks;
    /* Output [batch][out_pitch] in device memory: attention output over all cached tokens. Each
     * head has one element for each V dimension that important (less compressed) tokens keep. */
    void *out;
} kvd_zdc_merge_args;

/* Averages the attention outputs for important and for less important tokens, weighted by their
 * softmax denominators. The attention sink of a query head is counted once. */
cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__

static __device__ __forceinline__ int zdc_pages_of(int tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/* Returns the number of pages for n_low tokens of low importance, at least 1. */
static __device__ __forceinline__ int zdc_low_pages(int n_low)
{
    return zdc_pages_of(max(n_low, 1));
}

/* Returns the index, in the page pool, of page i of request b. */
static __device__ __forceinline__ int zdc_page(const kvd_zdc_pages &p, int b, int i)
{
    return i ? p.table[(size_t)b * (size_t)p.pitch + (size_t)(i - 1)] : p.own + p.slot[b];
}

static __device__ __forceinline__ int zdc_low(const kvd_zdc_pages &p, int b)
{
    return p.n_low[(size_t)p.slot[b] * (size_t)p.n_layers + p.layer];
}

/* Returns the index in a page at which dimensions 8 * block to 8 * block + 7 of token t begin.
 * `width`: number of dimensions of a vector. */
static __device__ __forceinline__ int zdc_in_page(int t, int width, int block)
{
    return t / 8 * 8 * width + block * 64 + t % 8 * 8;
}

/* Returns the index in kvd_zdc_channels_args.order at which the channels of KV head g of request b
 * begin. */
static __device__ __forceinline__ size_t zdc_order_at(const kvd_zdc_pages &p, int b, int n_kv_heads,
                                                      int g, int d)
{
    return (((size_t)p.slot[b] * (size_t)p.n_layers + (size_t)p.layer) * (size_t)n_kv_heads +
            (size_t)g) *
           (size_t)d;
}
#endif
#endif
