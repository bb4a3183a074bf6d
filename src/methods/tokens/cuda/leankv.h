/*
 * LeanKV's cache on the GPU: unified pages (section 5 of the paper), their memory manager and the
 * kernels that use them. leankv_method.c makes an engine method of these.
 *
 * The entries (cached tokens) of a KV head of a layer of a slot are divided into two sections, of
 * high and of low precision. Entries 0 .. n - 1 of a section are in the pages of its side of the
 * head's page table: high-precision pages fill the table from the left, low-precision pages from
 * the right. If an entry leaves a section, another entry takes its index (Algorithm 1 always has
 * one), so sections have no holes. The order of entries has no meaning; every entry stores its
 * position.
 *
 * All lists, counts and page tables are on the device. The functions here queue their kernels on a
 * stream and return. Grid sizes do not depend on data on the device.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_LEANKV_H
#define KVD_METHODS_TOKENS_CUDA_LEANKV_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- layout of a page ---- */

enum {
    KVD_LEANKV_HIGH,
    KVD_LEANKV_LOW,
    KVD_LEANKV_LEVELS,
    KVD_LEANKV_TILE = 16,       /* number of tokens whose codes are interleaved in one tile */
    KVD_LEANKV_PAGE_TOKENS = 64 /* number of tokens in a page of the high precision */
};

/*
 * Layout of a page of one precision. It has six segments of `tokens` entries each: keys, scales and
 * zero points of keys, values, scales and zero points of values, scores, positions. Keys start at
 * byte 0; the members give the first byte of the other segments. A scale and its zero point are
 * float16; a code q means the number scale q + zero. The score of an entry is the float32 sum of
 * the attention probabilities that the entry received from later tokens, averaged over the query
 * heads of its KV head. The number of later tokens follows from the entry's position.
 */
typedef struct {
    int32_t k_bits, v_bits; /* bits of a code. k_bits: 8 or 4; v_bits: 8, 4 or 2 */
    int32_t tokens;         /* number of tokens in a page; a multiple of KVD_LEANKV_TILE */
    int32_t k_meta, v, v_meta, score, position;
} kvd_leankv_precision;

/*
 * Layouts of high-precision and low-precision pages. A page of either precision has page_bytes
 * bytes.
 */
typedef struct {
    int32_t d, page_bytes;
    kvd_leankv_precision level[KVD_LEANKV_LEVELS];
} kvd_leankv_layout;

/*
 * Returns the bytes that one token takes in one KV head: codes, scales and zero points of K and V,
 * score, position.
 */
size_t kvd_leankv_entry_bytes(int d, int k_bits, int v_bits);
/*
 * Fills *out for heads of d = 32, 64 or 128 dimensions. k_bits and v_bits have one element per
 * level (high, low), in the ranges given at kvd_leankv_precision. A cached token of the low level
 * must not be larger than one of the high level. Returns 0, or -1 if an argument is out of range.
 */
int kvd_leankv_layout_make(int d, const int k_bits[], const int v_bits[], kvd_leankv_layout *out);

/*
 * Position of a code in a tile of 16 tokens: a 32-bit word and a shift within it. The order is that
 * of mma.sync m16n8k16 fragments, with tokens as rows for keys and features (dimensions) as rows
 * for values. Lane l (row l / 4, class l % 4) owns w words. They are stored in chunks of 4, 2 or 1
 * words per lane, so that all lanes read a chunk in one coalesced load.
 *
 * Keys: step s of the product multiplies features 16 s .. 16 s + 15, of which a lane of class c has
 * features 16 s + 4 c .. 16 s + 4 c + 3. Two features form one register; in a word, their codes are
 * 4 or 8 codes apart. Values: a lane of class c has tokens 2 c, 2 c + 1, 2 c + 8 and 2 c + 9.
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

/* Returns the index in a tile of word number w of a lane that owns `words` words. */
KVD_LEANKV_BOTH static inline int kvd_leankv_word(int words, int lane, int w)
{
    const int vec = words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
    return (w / vec * 32 + lane) * vec + w % vec;
}

KVD_LEANKV_BOTH static inline kvd_leankv_place kvd_leankv_key_place(int d, int bits, int row,
                                                                    int feature)
{
    /* 32-bit words of the features of one class (lane % 4) of one token's key. */
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

/* ---- memory manager of pages on the device ---- */

/*
 * Record of a KV head of a slot: per level (high, low), its number of cached tokens, its number of
 * pages, and the threshold below which a token leaves the level.
 */
typedef struct {
    int32_t n[KVD_LEANKV_LEVELS], pages[KVD_LEANKV_LEVELS];
    /*
     * Thresholds of significance, relative to the mean significance of the head's cached tokens. A
     * token below cut[HIGH] is not high; a token below cut[LOW] is dropped.
     */
    float cut[KVD_LEANKV_LEVELS];
} kvd_leankv_head;

/*
 * State of the page pool that the host reads at the end of an iteration. The free pages are
 * list[start .. end - 1], with indices modulo the number of pages.
 */
typedef struct {
    uint64_t start, end;
    /* number of cached tokens at the high and at the low precision, over all KV heads */
    int64_t entries[KVD_LEANKV_LEVELS];
    /*
     * Numbers of pages that were requested and that were free when pages first ran short; 0 if they
     * never did.
     */
    uint64_t wanted, left;
} kvd_leankv_state;

/*
 * Pool of pages, passed to kernels by value. KV heads are indexed [n_slots][n_layers][n_kv_heads].
 * A slot number of n_slots or more means that the row has no request; it has no cached tokens and
 * gets no pages.
 */
typedef struct {
    kvd_leankv_layout layout;
    int32_t n_pages, n_slots, n_layers, n_kv_heads;
    /*
     * Length of a KV head's page table. It has room for the pages of the largest number of entries,
     * and for one partly filled page of each precision.
     */
    int32_t table_length;
    /* [n_pages] ring of page numbers; free pages are those from state->start to state->end. */
    int32_t *list;
    int32_t *table; /* [heads][table_length] page numbers of every KV head */
    kvd_leankv_head *head;
    kvd_leankv_state *state;
    char *page; /* memory of the pages, [n_pages][page_bytes] */
} kvd_leankv_pool;

/*
 * kvd_leankv_slot_bytes returns the bytes that a slot takes whatever its number of tokens: head
 * records, page tables and KVD_LEANKV_SPARE_PAGES pages per KV head. KVD_LEANKV_SPARE_PAGES is the
 * number of pages that a KV head may have beyond its full high-precision pages.
 */
size_t kvd_leankv_slot_bytes(const kvd_leankv_pool *p);
enum { KVD_LEANKV_SPARE_PAGES = 2 };

/* Marks all pages as free and all heads as empty. */
cudaError_t kvd_leankv_reset(const kvd_leankv_pool *p, cudaStream_t stream);
/*
 * Plans and assigns pages for layers first_layer .. first_layer + n_layers - 1 of the n slots in
 * `slot` (device). Every KV head gets the pages that its cached tokens and `spare` more tokens of
 * each precision need. An exclusive prefix sum over all heads gives the position of a head's pages
 * in the list of free pages. If fewer pages are free than needed, no page is assigned,
 * state->wanted records the number of pages needed, and heads are cut to the tokens that fit in
 * their present pages.
 */
cudaError_t kvd_leankv_grow(const kvd_leankv_pool *p, const int32_t *slot, int n, int first_layer,
                            int n_layers, int spare, cudaStream_t stream);
/*
 * Frees the pages of all layers of the n slots in `slot`, by appending them to the list of free
 * pages, and sets their KV heads to empty.
 */
cudaError_t kvd_leankv_give_back(const kvd_leankv_pool *p, const int32_t *slot, int n,
                                 cudaStream_t stream);

/* ---- kernels over pages ---- */

/*
 * Arguments of one decode step in one layer. Row i of the batch is the new token of slot[i] at
 * position at[i]. Its K and V are in row 0 of page page_table[i][0] of `fresh` (layout BLOCKED,
 * kernels/layout.h).
 */
typedef struct {
    kvd_leankv_pool pool;
    /* n: number of rows (requests); group: query heads per KV head, at most 8. */
    int32_t layer, n, group;
    /* Largest number of cached tokens of a KV head; number of rows per head in `score`. */
    int32_t room;
    int32_t splits;      /* number of CTAs that share a KV head of a row */
    float scale;         /* factor of the products q.k, usually 1 / sqrt(d) */
    const int32_t *slot; /* device [n]: slot of each row */
    const uint32_t *at;  /* device [n]: position of each row's new token */
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* bf16 pages with K and V of the new tokens, on the device */
    const void *q;     /* queries of the step, device bf16 [n][n_kv_heads * group * d] */
    void *o;           /* output of the attention, device bf16, in the shape of `q` */
    /*
     * `score` receives the attention score of every stored cached token times log2(e): high tokens
     * from the front, low tokens from the end backwards. `lse2` receives log2 of each query head's
     * softmax denominator. `columns` is `group` rounded up to an even number.
     */
    /*
     * Output, [n][n_kv_heads][room][columns]: attention scores of each cached token with the query
     * heads of its KV head. A row has `columns` elements, one per query head, rounded up to an even
     * number.
     */
    float *score;
    /* Output, [n][n_kv_heads][8]: log2 of each query head's softmax denominator. */
    float *lse2;
    float *partial; /* scratch for the outputs of splits, [n][n_kv_heads][splits][8][d + 2] */
    /* Number of splits that finished, [n][n_kv_heads]; 0 before and after each launch. */
    uint32_t *arrived;
    int32_t window; /* number of newest tokens that kvd_leankv_update keeps at the high level */
} kvd_leankv_steps;

/*
 * Computes the attention of one decode step over the high-precision pages of every KV head, then
 * over its low-precision pages, then over the new token in bf16.
 */
cudaError_t kvd_leankv_attend(const kvd_leankv_steps *s, cudaStream_t stream);
/*
 * Returns the number of CTAs per KV head (`splits`) that kvd_leankv_attend should use for `rows`
 * requests on n_sms multiprocessors.
 */
int kvd_leankv_splits(int rows, int n_kv_heads, int n_sms);
/*
 * Runs Algorithm 1 of the paper after kvd_leankv_attend. Adds the step's attention probabilities to
 * the entries' scores. Keeps, lowers or drops the token that leaves the window of newest tokens.
 * May lower or drop the least significant entry of a level. Quantises the new token. Pages must
 * have room for one more entry at each level.
 */
cudaError_t kvd_leankv_update(const kvd_leankv_steps *s, cudaStream_t stream);

/*
 * Arguments for the whole prompts of a batch in one layer. Token t of prompt i is row q_start[i] +
 * t of `q`.
 */
typedef struct {
    kvd_leankv_pool pool;
    /*
     * n: number of prompts. n_q8: number of rows of `q`. longest: number of tokens of the longest
     * prompt.
     */
    int32_t layer, n, group, n_q8, longest;
    int32_t window;
    float scale;
    /*
     * Thresholds `th` and `tl` as fractions of a head's total significance. Tokens are taken in
     * rising order of significance. The tokens within the first fraction `th` of the total are not
     * high; those within the first `tl` are dropped.
     */
    double th, tl;
    /* Device [n]: slot, first row in `q` and number of tokens of each prompt. */
    const int32_t *slot, *q_start, *q_len;
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* device, bf16 pages in layout BLOCKED with K and V of the prompts */
    const void *q;     /* queries of the prompts, device bf16 in layout BLOCKED */
    /* Natural logarithms of the softmax denominators, device [n_heads][n_q8 rows of Q]. */
    const float *lse;
    /*
     * Output, [n_heads][n_q8 rows of Q]: sum of the attention probabilities that a token received
     * from the later tokens of its prompt in a query head.
     */
    float *mass;
    /*
     * Scratch, [n_kv_heads][n_q8 rows of Q]: indices of the prompt's high tokens, and from the end
     * backwards those of its low tokens.
     */
    int32_t *source;
} kvd_leankv_prompts;

/*
 * kvd_leankv_masses computes `mass`. kvd_leankv_compress then chooses the level of every token
 * (high, low or dropped), assigns pages and writes the codes of all KV heads of the layer.
 */
cudaError_t kvd_leankv_masses(const kvd_leankv_prompts *p, cudaStream_t stream);
cudaError_t kvd_leankv_compress(const kvd_leankv_prompts *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
