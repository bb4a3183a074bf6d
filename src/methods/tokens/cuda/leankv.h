/*
 * LeanKV's cache on the GPU: unified pages (section 5 of the paper), their memory manager and the
 * kernels that use them.
 *
 * The cached tokens (entries) of a KV head are divided into two sections, of high and of low
 * precision. High-precision pages fill the head's page table from the left, low-precision pages
 * from the right. If an entry leaves a section, another entry takes its index, so sections have no
 * holes. The order of entries has no meaning; every entry stores its position. All lists, counts
 * and page tables are on the device. The functions that return cudaError_t queue kernels on the
 * stream and do not wait.
 */
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
    /* number of tokens in a tile, in which their codes are interleaved */
    KVD_LEANKV_TILE = 16,
    KVD_LEANKV_PAGE_TOKENS = 64 /* number of tokens in a high-precision page */
};

/*
 * Layout of a page of one precision. A page has six segments: keys, scales and zero points of keys,
 * values, scales and zero points of values, scores, positions. The members give the first byte of
 * each segment after the keys, which start at byte 0. Scales and zero points are float16; a code q
 * means scale q + zero. A score is the float32 sum of the attention probabilities received from
 * later tokens, averaged over the query heads.
 */
typedef struct {
    int32_t k_bits, v_bits; /* bits of a code of K (8 or 4) and of V (8, 4 or 2) */
    int32_t tokens;         /* number of tokens in a page; a multiple of KVD_LEANKV_TILE */
    int32_t k_meta, v, v_meta, score, position;
} kvd_leankv_precision;

/* Pages of both precisions have page_bytes bytes. */
typedef struct {
    int32_t d, page_bytes;
    kvd_leankv_precision level[KVD_LEANKV_LEVELS];
} kvd_leankv_layout;

size_t kvd_leankv_entry_bytes(int d, int k_bits, int v_bits);
/*
 * Computes the layout of pages for heads of d = 32, 64 or 128 dimensions. k_bits and v_bits have
 * one element per precision (high, low). A token of low precision must not take more bytes than one
 * of high precision. Returns -1 if an argument is out of range.
 */
int kvd_leankv_layout_make(int d, const int k_bits[], const int v_bits[], kvd_leankv_layout *out);

/*
 * Position of a code in a tile of 16 tokens: a 32-bit word and a shift within it. Codes are in the
 * order of mma.sync m16n8k16 fragments. The rows of a fragment are tokens for keys, and dimensions
 * (features) for values. Each lane owns w words, stored in chunks of 4, 2 or 1 words per lane.
 *
 * Keys: a lane with lane % 4 = c has features 16 s + 4 c .. 16 s + 4 c + 3, for s = 0, 1, and so
 * on. Values: a lane with lane % 4 = c has tokens 2 c, 2 c + 1, 2 c + 8 and 2 c + 9.
 *
 * These are LeanKV's layouts [F / (K_vec K_group), N, K_group, K_vec] and [F / V_group, N / V_vec,
 * V_group, V_vec] (section 6 of the paper) with K_group 4, V_group 8, V_vec 4, within a tile of 16
 * tokens.
 */
typedef struct {
    int32_t word, shift;
} kvd_leankv_place;

#ifdef __CUDACC__
#define KVD_LEANKV_BOTH __host__ __device__
#else
#define KVD_LEANKV_BOTH
#endif

/*
 * Returns the index in a tile of word w of lane `lane`, given that every lane owns `words` words.
 */
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

/*
 * Number of cached tokens, and number of pages, of one KV head of a slot, per precision (high,
 * low).
 */
typedef struct {
    int32_t n[KVD_LEANKV_LEVELS], pages[KVD_LEANKV_LEVELS];
    /*
     * Limits of a token's significance (received attention), relative to the mean significance in
     * the KV head. A token below cut[KVD_LEANKV_HIGH] is not stored at high precision. A token
     * below cut[KVD_LEANKV_LOW] is dropped.
     */
    float cut[KVD_LEANKV_LEVELS];
} kvd_leankv_head;

/*
 * State of the page pool, which the host reads at the end of an iteration. The free pages are
 * list[start .. end - 1], with indices modulo the number of pages.
 */
typedef struct {
    uint64_t start, end;
    /* number of cached tokens of high and of low precision */
    int64_t entries[KVD_LEANKV_LEVELS];
    /*
     * The first time that the pool had too few pages: number of pages requested and number of pages
     * that were free. Both are 0 if this never happened.
     */
    uint64_t wanted, left;
} kvd_leankv_state;

/*
 * Pool of pages, passed to kernels by value. KV heads are indexed [n_slots][n_layers][n_kv_heads].
 * A row of a batch whose slot is n_slots or more has no request and gets no pages.
 */
typedef struct {
    kvd_leankv_layout layout;
    int32_t n_pages, n_slots, n_layers, n_kv_heads;
    /*
     * Length of the page table of a KV head: room for the pages of the largest number of tokens,
     * and for one partly filled page of each precision.
     */
    int32_t table_length;
    /* [n_pages] Ring buffer of free page numbers (kvd_leankv_state). */
    int32_t *list;
    int32_t *table; /* [KV heads of the pool][table_length] page numbers */
    kvd_leankv_head *head;
    kvd_leankv_state *state;
    char *page; /* [n_pages][page_bytes] */
} kvd_leankv_pool;

/*
 * Returns the bytes that a slot takes in addition to its cached tokens: head records, page tables
 * and KVD_LEANKV_SPARE_PAGES partly filled pages per KV head.
 */
size_t kvd_leankv_slot_bytes(const kvd_leankv_pool *p);
enum { KVD_LEANKV_SPARE_PAGES = 2 };

/* Marks all pages as free and all KV heads as empty. */
cudaError_t kvd_leankv_reset(const kvd_leankv_pool *p, cudaStream_t stream);
/*
 * Assigns pages in layers first_layer .. first_layer + n_layers - 1 to the n slots in `slot`
 * (device). Every KV head gets pages for its tokens and for `spare` more tokens at high and `spare`
 * more at low precision. If too few pages are free, no page is assigned and state->wanted is set. A
 * KV head without enough pages then drops the tokens that do not fit.
 */
cudaError_t kvd_leankv_grow(const kvd_leankv_pool *p, const int32_t *slot, int n, int first_layer,
                            int n_layers, int spare, cudaStream_t stream);
/*
 * Returns all pages of the n slots to the pool and marks their KV heads as empty. `slot` [n] is
 * device memory.
 */
cudaError_t kvd_leankv_give_back(const kvd_leankv_pool *p, const int32_t *slot, int n,
                                 cudaStream_t stream);

/*
 * Arguments of one decode step in one layer. Row i of the batch is one new token, at position at[i]
 * of the request in slot[i]. K and V of the token are in row 0 of page page_table[i][0] of `fresh`
 * (layout BLOCKED, kernels/layout.h).
 */
typedef struct {
    kvd_leankv_pool pool;
    /* `n`: number of requests. `group`: query heads per KV head, at most 8. */
    int32_t layer, n, group;
    /* Largest number of cached tokens that a KV head can have. */
    int32_t room;
    int32_t splits;      /* number of CTAs that divide the tokens of a KV head of a row */
    float scale;         /* usually 1 / sqrt(d) */
    const int32_t *slot; /* device [n]: slot of each row */
    const uint32_t *at;  /* device [n]: position of each new token */
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* device bf16 pages with K and V of the new tokens */
    const void *q;     /* device bf16 [n][n_kv_heads * group * d] */
    void *o;           /* attention output, in the shape of `q` */
    /*
     * Output, [n][n_kv_heads][room][columns]: attention scores times log2(e). High-precision tokens
     * use the elements from the front in ascending order, low-precision tokens the elements from
     * the end in descending order. `columns` is `group` rounded up to an even number.
     */
    float *score;
    /* Output, [n][n_kv_heads][8]: log2 of the softmax denominators. */
    float *lse2;
    float *partial; /* scratch, [n][n_kv_heads][splits][8][d + 2] */
    /*
     * [n][n_kv_heads] Number of splits (CTAs) that have finished; 0 before and after each launch.
     */
    uint32_t *arrived;
    int32_t window; /* number of newest tokens that always stay at high precision */
} kvd_leankv_steps;

/*
 * Computes the attention of one decode step over the high-precision pages, the low-precision pages
 * and the new token in bf16.
 */
cudaError_t kvd_leankv_attend(const kvd_leankv_steps *s, cudaStream_t stream);
/*
 * Returns the number of CTAs per KV head (`splits`) for `rows` requests on n_sms multiprocessors.
 */
int kvd_leankv_splits(int rows, int n_kv_heads, int n_sms);
/*
 * Adds the step's attention probabilities to the scores and stores the new token by Algorithm 1 of
 * the paper, which may lower or drop other tokens. Must run after kvd_leankv_attend. Pages must
 * have room for one more token of each precision.
 */
cudaError_t kvd_leankv_update(const kvd_leankv_steps *s, cudaStream_t stream);

/*
 * Arguments for the whole prompts of a batch, in one layer. Token t of prompt i is row q_start[i] +
 * t of `q`.
 */
typedef struct {
    kvd_leankv_pool pool;
    /* `n`: number of prompts. `n_q8`: rows of `q`. `longest`: tokens of the longest prompt. */
    int32_t layer, n, group, n_q8, longest;
    int32_t window;
    float scale;
    /*
     * Limits of the precision levels. Tokens are sorted by increasing significance. For each token,
     * the significances up to and including its own are summed, as a fraction of the KV head's
     * total. Tokens for which this sum is below `th` are not kept at high precision; those for
     * which it is below `tl` are dropped.
     */
    double th, tl;
    /* Device [n]: slot, first row in `q` and number of tokens of each prompt. */
    const int32_t *slot, *q_start, *q_len;
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* device bf16 pages with K and V of the prompts, in layout BLOCKED */
    const void *q;     /* queries, device bf16 in layout BLOCKED */
    /* Natural logarithms of the softmax denominators, device [n_heads][n_q8]. */
    const float *lse;
    /* Output, [n_heads][n_q8]: sum of the attention probabilities received from later tokens. */
    float *mass;
    /*
     * Scratch, [n_kv_heads][n_q8]: indices of the high-precision tokens from the front on, and
     * indices of the low-precision tokens from the end backwards.
     */
    int32_t *source;
} kvd_leankv_prompts;

/*
 * kvd_leankv_masses computes `mass`, the significance of each token. The caller must then call
 * kvd_leankv_compress, which chooses the precision of each token, assigns pages and writes codes.
 */
cudaError_t kvd_leankv_masses(const kvd_leankv_prompts *p, cudaStream_t stream);
cudaError_t kvd_leankv_compress(const kvd_leankv_prompts *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
