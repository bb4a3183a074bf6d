/*
 * Important prompt tokens (KVD_ZDC_HIGH) keep all columns of the projections `dims`. Others
 * (KVD_ZDC_LOW) keep only the first columns, as many as `dims_low` has (ZDC section 5). Launchers
 * follow model/pass/cuda/blocks.h.
 *
 * The page list of a running request (slot) is its own page, then its page table row. In each
 * layer, less important tokens fill the first pages (at least one), then important and later tokens
 * follow.
 *
 * One attention launch has twice the heads (kernels/cuda/decode.h, second_len), the second half for
 * less important tokens. kvd_zdc_merge averages the outputs by softmax denominators.
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
 * Bits of `level`. RAW: this layer ranks the token as important. USED: this layer treats the token
 * as important, perhaps because an earlier layer ranked it so.
 */
enum { KVD_ZDC_RAW = 1, KVD_ZDC_USED = 2 };

/* Layout of a KV head in important and other tokens' pages. Last index: 0 is K (Q), 1 is V (O). */
typedef struct {
    int16_t width[KVD_ZDC_STORES][2]; /* columns per token, multiples of 16 */
    /* Number of leading columns of a less important token that hold data. */
    int16_t kept[2];
    /* Index in a page of the element at which the head's K or V begins. */
    int32_t in_page[KVD_ZDC_STORES][2];
    /* First column of the head in output rows, over important tokens and over other tokens. */
    int32_t in_row[KVD_ZDC_STORES];
} kvd_zdc_head;

typedef struct {
    const int32_t *slot; /* device [batch] */
    /*
     * [batch][pitch] in device memory: page numbers of each request, without the request's own
     * page.
     */
    const int32_t *table;
    /* Row length of `table`, and number of the pool page with which slot 0's list begins. */
    int32_t pitch, own;
    /* Number of less important tokens, [slots][n_layers] in device memory. */
    int32_t *n_low;
    int32_t n_layers, layer;
} kvd_zdc_pages;

/* Arguments of kvd_zdc_choose: the whole prompts of a batch, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_heads, n_q8, longest;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    /* Natural logs of softmax denominators, [n_heads][n_q8] in device memory. */
    const float *lse;
    /* 1 if `lse` instead has the attention that each token received per query head. */
    int32_t sums;
    /* 1 if a softmax denominator is divided by the number of keys that its token sees. */
    int32_t mean;
    double share; /* fraction of important tokens */
    /* Number of consecutive layers, from this one on, that use this layer's important tokens. */
    int32_t span;
    /* Fraction of overlap from which on the preceding layer's sets are reused. Above 1: never. */
    double overlap;
    float *value; /* device scratch [n_q8]: importance */
    /* Output [n_q8] in device memory: KVD_ZDC_ bits of each token, one array for all layers. */
    uint8_t *level;
    /*
     * Output [n_q8] in device memory: index of each token among important, or among other, tokens.
     */
    int32_t *place;
} kvd_zdc_choose_args;

/*
 * Chooses the fraction `share` of each prompt with the largest importance, which is the log of the
 * sum over query heads of exp(lse). The earlier of equal tokens counts. Layers that reuse sets
 * ignore `share`.
 */
cudaError_t kvd_zdc_choose(const kvd_zdc_choose_args *args, cudaStream_t stream);
/* Writes the importance, over this GPU's heads, to [n_q8]; kvd_zdc_choose takes it as `lse`. */
cudaError_t kvd_zdc_value(const kvd_zdc_choose_args *args, float *to, cudaStream_t stream);

/*
 * Arguments of kvd_zdc_channels (method think): whole prompts, in one layer. Key channels are
 * stored by falling importance.
 */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of `from`, in which KV heads have equal widths */
    int32_t batch, n_q8, window;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const void *q;    /* device queries, blocked layout */
    const void *from; /* device pages with the prompts */
    /*
     * Output [slots][n_layers][n_kv_heads][d_qk] in device memory: channel stored in each column of
     * K.
     */
    int16_t *order;
    /* Outputs like those of kvd_zdc_choose. A prompt's last `window` tokens are important. */
    uint8_t *level;
    int32_t *place;
} kvd_zdc_channels_args;
cudaError_t kvd_zdc_channels(const kvd_zdc_channels_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_reorder: decode steps in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    kvd_attn_map map; /* layout of important tokens */
    int32_t batch, pitch;
    /* Number of rows up to the newest token, device [batch] (kvd_zdc_lists_args.end). */
    const int32_t *end;
    const int32_t *table; /* device [batch][pitch] */
    const int16_t *order; /* output of kvd_zdc_channels */
    void *q;              /* device [batch][q_pitch] */
    void *store;          /* device pages of the layer */
} kvd_zdc_reorder_args;
/* Sorts the channels of queries and of the newest key by `order`. */
cudaError_t kvd_zdc_reorder(const kvd_zdc_reorder_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_move: the whole prompts of a batch, in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, longest;
    /* [batch] in device memory: first row and number of tokens of each prompt. */
    const int32_t *q_start, *q_len;
    const uint8_t *level; /* device output of kvd_zdc_choose */
    const int32_t *place;
    const int16_t *order;     /* output of kvd_zdc_channels, or NULL if columns keep their order */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    /*
     * Pages in device memory with the prompts, in which all tokens are as wide as important ones.
     */
    const void *from;
    /* Pages in device memory to which kvd_zdc_move copies rows. */
    void *store;
    size_t page; /* elements of a page */
} kvd_zdc_move_args;

/*
 * Copies prompts to the pages of important and of other tokens. Rows after the last become 0 up to
 * a multiple of 8.
 */
cudaError_t kvd_zdc_move(const kvd_zdc_move_args *args, cudaStream_t stream);
/* Zeroes the columns that less important tokens do not store. `pages` must equal args->from. */
cudaError_t kvd_zdc_narrow(const kvd_zdc_move_args *args, void *pages, cudaStream_t stream);

/* Tokens first .. first + n - 1 of a prompt, for exchange with another GPU. */
typedef struct {
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t n_kv_heads, first, n;
    /* Number of important and of other tokens before token `first` in the prompt. */
    int32_t before[KVD_ZDC_STORES];
    /* Number of important and of other tokens among the tokens first .. first + n - 1. */
    int32_t count[KVD_ZDC_STORES];
    /* Number of elements in `rows` of an important and of another token. */
    int32_t entry[KVD_ZDC_STORES];
    /* Device outputs of kvd_zdc_choose for the whole prompt. */
    const uint8_t *level;
    const int32_t *place;
    /* Device [count[HIGH]][entry[HIGH]], then [count[LOW]][entry[LOW]]: K before V per head. */
    void *rows;
    /*
     * Pages in device memory as wide as important tokens. The first page in the table has tokens 0
     * to 63.
     */
    void *pages;
    const int32_t *table; /* device: the prompt's page numbers */
    size_t page;          /* elements of a page */
} kvd_zdc_rows_args;

/*
 * kvd_zdc_pack copies `pages` to `rows`. kvd_zdc_unpack copies `rows` to `pages`, and zeroes
 * missing columns and the rest of the last 8 tokens.
 */
cudaError_t kvd_zdc_pack(const kvd_zdc_rows_args *args, cudaStream_t stream);
cudaError_t kvd_zdc_unpack(const kvd_zdc_rows_args *args, cudaStream_t stream);

typedef struct {
    /* Pages of all layers; kvd_zdc_lists ignores pages.layer. */
    kvd_zdc_pages pages;
    /* Number of requests, and first dimension `rows` >= `batch` of the output arrays. */
    int32_t batch, rows;
    /* Number of tokens of each request with the newest, [batch] in device memory. */
    const int32_t *kv_len;
    /*
     * Outputs [n_layers][rows] in device memory for kvd_decode. end: number of rows up to the
     * newest token (kv_len). low_len: number of less important tokens (second_len).
     */
    int32_t *end, *low_len;
    int32_t *table; /* device output [rows][pitch + 1]: page lists */
} kvd_zdc_lists_args;

/*
 * Fills `end`, `low_len` and `table`. `end` includes the newest token, because the append kernel
 * takes it as kv_len.
 */
cudaError_t kvd_zdc_lists(const kvd_zdc_lists_args *args, cudaStream_t stream);

/* Arguments of kvd_zdc_merge: attention outputs of one decode step in one layer. */
typedef struct {
    kvd_zdc_pages pages;
    int32_t batch, n_kv_heads, group;
    int32_t hopper;           /* 1 if sm_90 kernels wrote `o` */
    const kvd_zdc_head *head; /* device [n_kv_heads] */
    int32_t pitch, out_pitch;
    /*
     * [batch][pitch] in device memory: attention outputs over important tokens, then over other
     * tokens.
     */
    const void *o;
    /* Natural logs of the softmax denominators, [batch][2 n_heads] in device memory. */
    const float *lse;
    /* Output [batch][out_pitch] in device memory with the columns of V of important tokens. */
    void *out;
} kvd_zdc_merge_args;

/* Averages the outputs over important and over other tokens, weighted by softmax denominators. */
cudaError_t kvd_zdc_merge(const kvd_zdc_merge_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#ifdef __CUDACC__
/* Returns the number of pages that hold `tokens` tokens. */

static __device__ __forceinline__ int zdc_pages_of(int tokens)
{
    return (tokens + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
}

/* Returns the number of pages for n_low less important tokens, at least one. */
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

/* Returns the index in a page of columns 8 block .. 8 block + 7 of token t. */
static __device__ __forceinline__ int zdc_in_page(int t, int width, int block)
{
    return t / 8 * 8 * width + block * 64 + t % 8 * 8;
}

/* Returns the index in `order` at which the d channels of KV head g begin. */
static __device__ __forceinline__ size_t zdc_order_at(const kvd_zdc_pages &p, int b, int n_kv_heads,
                                                      int g, int d)
{
    return (((size_t)p.slot[b] * (size_t)p.n_layers + (size_t)p.layer) * (size_t)n_kv_heads +
            (size_t)g) *
           (size_t)d;
}
#endif
#endif
