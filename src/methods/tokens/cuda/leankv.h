/* Cache of method leankv on the GPU (LeanKV section 5): cached tokens are quantised at high or low
 * precision. In a KV head's page table, high-precision pages begin at the left end, low-precision
 * pages at the right.
 *
 * Cached tokens have no order. Functions that return cudaError_t only queue kernels. */
#ifndef KVD_METHODS_TOKENS_CUDA_LEANKV_H
#define KVD_METHODS_TOKENS_CUDA_LEANKV_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    KVD_LEANKV_HIGH,
    KVD_LEANKV_LOW,
    KVD_LEANKV_LEVELS,
    /* Number of tokens in a tile. The quantised numbers of these tokens are interleaved in
     * memory. */
    KVD_LEANKV_TILE = 16,
    KVD_LEANKV_PAGE_TOKENS = 64 /* tokens in a high-precision page */
};

/* Byte offsets of the parts of a page. Keys are at offset 0. A quantised number q means scale * q +
 * zero, with a float16 scale and zero per vector. A token's score is the attention that it received
 * from later tokens, averaged over query heads. */
typedef struct {
    int32_t k_bits, v_bits; /* bits of a code of K (8, 4) and of V (8, 4, 2) */
    int32_t tokens;         /* number of tokens of a page, a multiple of KVD_LEANKV_TILE */
    int32_t k_meta, v, v_meta, score, position;
} kvd_leankv_precision;

/* Layout of pages with high-precision tokens and of pages with low-precision tokens. Both have
 * page_bytes bytes. */
typedef struct {
    int32_t d, page_bytes;
    kvd_leankv_precision level[KVD_LEANKV_LEVELS];
} kvd_leankv_layout;

size_t kvd_leankv_entry_bytes(int d, int k_bits, int v_bits);
/* Fills the layout of pages for heads of d = 32, 64 or 128 numbers. k_bits and v_bits have the bits
 * per number at high, then at low precision. A low-precision token must not take more bytes than a
 * high-precision one. Returns -1 for invalid arguments. */
int kvd_leankv_layout_make(int d, const int k_bits[], const int v_bits[], kvd_leankv_layout *out);

/* Location of a quantised number in a tile of 16 tokens: index of a 32-bit word, and shift in bits.
 * Numbers have the order in which mma.sync m16n8k16 reads them (LeanKV section 6). */
typedef struct {
    int32_t word, shift;
} kvd_leankv_place;

#ifdef __CUDACC__
#define KVD_LEANKV_BOTH __host__ __device__
#else
#define KVD_LEANKV_BOTH
#endif

/* Returns the index in a tile at which 32-bit word w of a lane is stored. Each lane has `words`
 * words. */
KVD_LEANKV_BOTH static inline int kvd_leankv_word(int words, int lane, int w)
{
    const int vec = words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
    return (w / vec * 32 + lane) * vec + w % vec;
}

KVD_LEANKV_BOTH static inline kvd_leankv_place kvd_leankv_key_place(int d, int bits, int row,
                                                                    int feature)
{
    const int per = d * bits / 128;
    const int s = feature / 16, c = feature % 16 / 4, b = feature % 4 / 2, a = feature % 2;
    const int w = row / 8 * per + s * bits / 8, lane = row % 8 * 4 + c;
    kvd_leankv_place p;
    p.word = kvd_leankv_word(2 * per, lane, w);
    p.shift = bits == 8 ? 8 * (2 * b + a) : 4 * (2 * (s % 2) + b) + 16 * a;
    return p;
}

KVD_LEANKV_BOTH static inline kvd_leankv_place kvd_leankv_value_place(int d, int bits, int row,
                                                                      int feature)
{
    const int m = feature / 16, u = feature % 16 / 8, lane = feature % 8 * 4 + row % 8 / 2;
    const int a = row % 2, b = row / 8;
    kvd_leankv_place p;
    p.word = kvd_leankv_word(d * bits / 64, lane, bits == 8 ? 2 * m + u : bits == 4 ? m : m / 2);
    p.shift = bits == 8   ? 8 * (2 * b + a)
              : bits == 4 ? 4 * (2 * u + b) + 16 * a
                          : 2 * (4 * (m % 2) + 2 * u + b) + 16 * a;
    return p;
}

/* Numbers of cached tokens and of pages of one KV head of a request, at high and at low
 * precision. */
typedef struct {
    int32_t n[KVD_LEANKV_LEVELS], pages[KVD_LEANKV_LEVELS];
    /* Thresholds of the mean attention that a token received, relative to the average token. Below
     * cut[KVD_LEANKV_HIGH], a token gets low precision. Below cut[KVD_LEANKV_LOW], it is
     * dropped. */
    float cut[KVD_LEANKV_LEVELS];
} kvd_leankv_head;

/* State of the pool of pages. Free pages are elements start .. end - 1 of the ring buffer
 * `list`. */
typedef struct {
    uint64_t start, end;
    /* Number of cached tokens at high and at low precision, over all requests. */
    int64_t entries[KVD_LEANKV_LEVELS];
    /* When pages first ran out: number of pages requested, and number of pages free. Both are 0
     * before that. */
    uint64_t wanted, left;
} kvd_leankv_state;

/* Pool of pages for the KV heads of all requests. The heads are numbered as an array
 * [n_slots][n_layers][n_kv_heads]. Kernels get the structure by value. */
typedef struct {
    kvd_leankv_layout layout;
    int32_t n_pages, n_slots, n_layers, n_kv_heads;
    /* Length of a KV head's page table, which has room for all full pages and for one partly filled
     * page per precision. */
    int32_t table_length;
    /* [n_pages] Ring buffer with the indices of the free pages. */
    int32_t *list;
    int32_t *table; /* [KV heads of the pool][table_length] page numbers */
    kvd_leankv_head *head;
    kvd_leankv_state *state;
    char *page; /* [n_pages][page_bytes] */
} kvd_leankv_pool;

/* Returns the bytes that a request needs before it has cached tokens. */
size_t kvd_leankv_slot_bytes(const kvd_leankv_pool *p);
enum { KVD_LEANKV_SPARE_PAGES = 2 };

/* Marks all pages as free and all KV heads as empty. */
cudaError_t kvd_leankv_reset(const kvd_leankv_pool *p, cudaStream_t stream);
/* Allocates pages for `spare` more tokens at each precision, in every KV head of n requests and
 * n_layers layers. If too few pages are free, allocates none and sets state->wanted, which makes
 * the iteration fail. */
cudaError_t kvd_leankv_grow(const kvd_leankv_pool *p, const int32_t *slot, int n, int first_layer,
                            int n_layers, int spare, cudaStream_t stream);
/* Frees all pages of n requests. slot [n], in device memory, lists the requests. */
cudaError_t kvd_leankv_give_back(const kvd_leankv_pool *p, const int32_t *slot, int n,
                                 cudaStream_t stream);

/* Arguments of a decode step in one layer. Request i is in slot[i], and its new token has position
 * at[i]. K and V of the new token are in page page_table[i][0] of `fresh`. */
typedef struct {
    kvd_leankv_pool pool;
    /* n is the number of requests, `group` the number of query heads per KV head, at most 8. */
    int32_t layer, n, group;
    /* Largest number of cached tokens in a KV head. */
    int32_t room;
    int32_t splits; /* number of CTAs that divide a KV head's tokens */
    float scale;    /* usually 1 / sqrt(d) */
    const int32_t *slot;
    const uint32_t *at;
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* device bf16 pages with new K and V */
    const void *q;     /* device bf16 [n][n_kv_heads * group * d] */
    void *o;           /* output, in the shape of `q` */
    /* Output [n][n_kv_heads][room][columns]: attention logits times log2(e). High-precision tokens
     * fill the rows from the first row up, low-precision tokens from the last row down. */
    float *score;
    /* Output [n][n_kv_heads][8]: log2 of the softmax denominator of each query head. A KV head has
     * 1 to 8 query heads. */
    float *lse2;
    float *partial; /* scratch memory, [n][n_kv_heads][splits][8][d + 2] */
    /* [n][n_kv_heads] Number of CTAs that have finished their part of a KV head. It is 0 before and
     * after each launch. */
    uint32_t *arrived;
    int32_t window; /* number of newest tokens that stay at high precision */
    /* [n_kv_heads * group] in device memory: logit of each query head's attention sink. NULL if the
     * model has no sinks. */
    const float *sinks;
} kvd_leankv_steps;

/* Computes the attention of decode steps over the new token and all cached tokens, at high and at
 * low precision. */
cudaError_t kvd_leankv_attend(const kvd_leankv_steps *s, cudaStream_t stream);
/* Returns the number of CTAs among which a KV head's tokens are divided, for `rows` requests on
 * n_sms multiprocessors. */
int kvd_leankv_splits(int rows, int n_kv_heads, int n_sms);
/* Adds the decode step's attention probabilities to the token scores, and stores the new token
 * (LeanKV Algorithm 1). Must follow kvd_leankv_attend. Each KV head needs room for one more token
 * per precision. */
cudaError_t kvd_leankv_update(const kvd_leankv_steps *s, cudaStream_t stream);

/* Arguments for choosing the precision of prompt tokens and for quantising them, in one layer.
 * Token t of prompt i has row q_start[i] + t of Q. */
typedef struct {
    kvd_leankv_pool pool;
    /* layer: index of the layer. n: number of prompts. group: query heads per KV head. n_q8: rows
     * of Q. longest: tokens of the longest prompt. */
    int32_t layer, n, group, n_q8, longest;
    int32_t window;
    float scale;
    /* Prompt tokens are dropped in rising order of attention, up to the fraction tl of all
     * attention. Further tokens get low precision, up to the fraction th. */
    double th, tl;
    /* [n] in device memory: slot, first row of Q and number of tokens of each prompt. */
    const int32_t *slot, *q_start, *q_len;
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* device bf16 pages with K and V of prompts, BLOCKED */
    const void *q;     /* device bf16 queries, BLOCKED */
    /* [n_heads][n_q8] in device memory: natural log of the softmax denominator of each query. */
    const float *lse;
    /* Output [n_heads][n_q8]: attention that each token received from later tokens, in each query
     * head. */
    float *mass;
    /* Scratch [n_kv_heads][n_q8]: indices of the prompt tokens that stay in the cache. */
    int32_t *source;
} kvd_leankv_prompts;

/* kvd_leankv_masses computes the attention that each prompt token received. From this attention,
 * kvd_leankv_compress chooses the tokens' precisions; it then writes quantised K and V to the
 * pages. */
cudaError_t kvd_leankv_masses(const kvd_leankv_prompts *p, cudaStream_t stream);
cudaError_t kvd_leankv_compress(const kvd_leankv_prompts *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
