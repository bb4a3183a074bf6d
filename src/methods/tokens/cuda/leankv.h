/*
 * LeanKV's cache on the GPU: unified pages (section 5 of the paper), their memory manager and the
 * kernels that use them. leankv_method.c makes an engine method of these.
 *
 * Every KV head of a layer of a slot has a section of entries at each of two precisions. Entries 0
 * .. n - 1 of a precision are in the pages of its side of the head's table: high-precision pages
 * fill the table from the left, low-precision pages from the right. If an entry leaves a section,
 * another one takes its place (Algorithm 1 always has one), so sections have no holes. The order of
 * entries has no meaning; every entry stores its position.
 *
 * All lists, counts and tables are on the device. Launchers queue their kernels and return; grid
 * sizes depend on numbers of rows only.
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
    KVD_LEANKV_TILE = 16,       /* tokens whose codes form one tile */
    KVD_LEANKV_PAGE_TOKENS = 64 /* tokens of a page at the high precision */
};

/*
 * A page of one precision has six segments of `tokens` entries each: keys, scales and zero points
 * of keys, values, scales and zero points of values, scores, positions. Keys start at byte 0; the
 * members give the first byte of the other segments. A scale and its zero point are float16; a code
 * q means the number scale q + zero. A score is the float32 sum of the probabilities that the entry
 * received from later tokens, averaged over the query heads of the group. The number of later
 * tokens follows from its position.
 */
typedef struct {
    int32_t k_bits, v_bits; /* k_bits: 8 or 4; v_bits: 8, 4 or 2 */
    int32_t tokens;         /* a multiple of KVD_LEANKV_TILE */
    int32_t k_meta, v, v_meta, score, position;
} kvd_leankv_precision;

/* Layout of the pages of both precisions; a page of either has page_bytes bytes. */
typedef struct {
    int32_t d, page_bytes;
    kvd_leankv_precision level[KVD_LEANKV_LEVELS];
} kvd_leankv_layout;

/* Returns the bytes of an entry: codes, scales and zero points, score, position. */
size_t kvd_leankv_entry_bytes(int d, int k_bits, int v_bits);
/*
 * Fills the layout for heads of d = 32, 64 or 128. Bits are indexed by level and have the ranges
 * above; an entry of the low level must not be larger than one of the high level. Returns 0, or -1
 * if an argument is out of range.
 */
int kvd_leankv_layout_make(int d, const int k_bits[], const int v_bits[], kvd_leankv_layout *out);

/*
 * Place of a code in a tile of 16 tokens: a 32-bit word and a shift within it. The order is that of
 * mma.sync m16n8k16 fragments, with tokens as rows for keys and features as rows for values. Lane l
 * (row l / 4, class l % 4) owns w words, stored in chunks of 4, 2 or 1 words per lane, so that all
 * lanes read a chunk in one coalesced load. Keys: class c has features 16 s + 4 c .. 16 s + 4 c + 3
 * of step s, whose pairs are 4 or 8 codes apart in a word. Values: class c has tokens 2 c, 2 c + 1,
 * 2 c + 8, 2 c + 9 of feature rows. These are LeanKV's layouts [F / (K_vec K_group), N, K_group,
 * K_vec] and [F / V_group, N / V_vec, V_group, V_vec] (section 6 of the paper) with K_group 4,
 * V_group 8, V_vec 4, within a tile of 16 tokens.
 */
typedef struct {
    int32_t word, shift;
} kvd_leankv_place;

#ifdef __CUDACC__
#define KVD_LEANKV_BOTH __host__ __device__
#else
#define KVD_LEANKV_BOTH
#endif

/* Returns the index in a tile of word w of a lane that has `words` words. */
KVD_LEANKV_BOTH static inline int kvd_leankv_word(int words, int lane, int w)
{
    const int vec = words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
    return (w / vec * 32 + lane) * vec + w % vec;
}

KVD_LEANKV_BOTH static inline kvd_leankv_place kvd_leankv_key_place(int d, int bits, int row,
                                                                    int feature)
{
    const int per = d * bits / 128; /* 32-bit words of one class of a row (kvd_leankv_place) */
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

/* Numbers of entries and of pages of a KV head at each level, and the thresholds of levels. */
typedef struct {
    int32_t n[KVD_LEANKV_LEVELS], pages[KVD_LEANKV_LEVELS];
    /*
     * Thresholds of significance, relative to the mean: below cut[HIGH] an entry is not high, below
     * cut[LOW] it is dropped.
     */
    float cut[KVD_LEANKV_LEVELS];
} kvd_leankv_head;

/*
 * State of the pool that the host reads at the end of an iteration. The free pages are list[start
 * .. end - 1], with indices taken modulo the number of pages.
 */
typedef struct {
    uint64_t start, end;
    int64_t entries[KVD_LEANKV_LEVELS]; /* number of entries of all heads */
    /* Numbers of pages requested and free when pages first ran short, else 0. */
    uint64_t wanted, left;
} kvd_leankv_state;

/*
 * Pool of pages, passed to kernels by value. Heads are indexed [n_slots][n_layers][n_kv_heads]. A
 * slot number of n_slots or more means no request: it has no entries and gets none.
 */
typedef struct {
    kvd_leankv_layout layout;
    int32_t n_pages, n_slots, n_layers, n_kv_heads;
    /*
     * Page table entries per KV head: the pages of its entries, and one page of each precision that
     * is not full.
     */
    int32_t table_length;
    int32_t *list;  /* [n_pages] page numbers */
    int32_t *table; /* [heads][table_length] page numbers */
    kvd_leankv_head *head;
    kvd_leankv_state *state;
    char *page; /* [n_pages][page_bytes] */
} kvd_leankv_pool;

/*
 * kvd_leankv_slot_bytes returns the bytes of a slot that do not depend on its number of tokens:
 * head records, tables and KVD_LEANKV_SPARE_PAGES pages per head. KVD_LEANKV_SPARE_PAGES is the
 * number of pages that a head may have beyond its full high-precision pages.
 */
size_t kvd_leankv_slot_bytes(const kvd_leankv_pool *p);
enum { KVD_LEANKV_SPARE_PAGES = 2 };

/* Marks all pages as free and all heads as empty. */
cudaError_t kvd_leankv_reset(const kvd_leankv_pool *p, cudaStream_t stream);
/*
 * Plans and assigns pages for n_layers layers of the slots slot [n] (device). Every head gets the
 * pages that its entries and `spare` more entries of each precision need; an exclusive prefix sum
 * over all heads gives the places in the free list. If fewer pages are free, no page is assigned,
 * state->wanted records the number of pages needed, and heads are cut to the entries that fit in
 * their pages.
 */
cudaError_t kvd_leankv_grow(const kvd_leankv_pool *p, const int32_t *slot, int n, int first_layer,
                            int n_layers, int spare, cudaStream_t stream);
/*
 * Frees the pages of all layers of the slots, by appending them to the free list, and empties their
 * heads.
 */
cudaError_t kvd_leankv_give_back(const kvd_leankv_pool *p, const int32_t *slot, int n,
                                 cudaStream_t stream);

/* ---- kernels over pages ---- */

/*
 * Arguments for decode steps. Row i is the token of slot[i] at position at[i]. Its K and V are in
 * row 0 of page page_table[i][0] of `fresh` (BLOCKED, kernels/layout.h).
 */
typedef struct {
    kvd_leankv_pool pool;
    int32_t layer, n, group; /* n: number of rows; group: query heads per KV head, at most 8 */
    int32_t room;            /* largest number of entries of a head; length of `score` */
    int32_t splits;          /* CTAs per head */
    float scale;             /* factor of attention scores */
    const int32_t *slot;     /* device [n] */
    const uint32_t *at;      /* device [n] */
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* device, bf16 pages with the new rows */
    const void *q;     /* device bf16 [n][n_kv_heads * group * d] */
    void *o;           /* output, device bf16, shape of q */
    /*
     * Attention scores times log2(e) of the stored entries, low entries from the end backwards, and
     * log2 of the softmax denominators. `score` has `group` columns, rounded up to an even number.
     */
    float *score;      /* output, [n][n_kv_heads][room][columns] */
    float *lse2;       /* output, [n][n_kv_heads][8] */
    float *partial;    /* [n][n_kv_heads][splits][8][d + 2] */
    uint32_t *arrived; /* [n][n_kv_heads]; zero before and after each launch */
    int32_t window;    /* window of kvd_leankv_update, in tokens */
} kvd_leankv_steps;

/*
 * Computes the attention of decode steps over the high-precision pages of every head, then over its
 * low-precision pages, then over the new token in bf16.
 */
cudaError_t kvd_leankv_attend(const kvd_leankv_steps *s, cudaStream_t stream);
/* Returns the number of CTAs per head that kvd_leankv_attend should use. */
int kvd_leankv_splits(int rows, int n_kv_heads, int n_sms);
/*
 * Runs Algorithm 1 of the paper after kvd_leankv_attend. Adds probabilities to scores; keeps,
 * lowers or drops the token that leaves the window; may lower or drop the least significant entry
 * of a level; and codes the new token. Pages must have room for one more entry at each level.
 */
cudaError_t kvd_leankv_update(const kvd_leankv_steps *s, cudaStream_t stream);

/* Arguments for whole prompts of a layer. Row t of prompt i is row q_start[i] + t of blocked Q. */
typedef struct {
    kvd_leankv_pool pool;
    /* n: number of prompts. n_q8: rows of blocked Q. longest: tokens of the longest prompt. */
    int32_t layer, n, group, n_q8, longest;
    int32_t window;
    float scale;
    /*
     * Fractions of the cumulative significance: tokens below `th` are not high, tokens below `tl`
     * are dropped.
     */
    double th, tl;
    const int32_t *slot, *q_start, *q_len; /* device [n] */
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* bf16 pages, BLOCKED: K and V of the prompts */
    const void *q;     /* device bf16, BLOCKED */
    const float *lse;  /* device [n_heads][n_q8], natural log of the softmax denominators */
    /*
     * Output, [n_heads][n_q8]: attention probability that a token received from later rows of a
     * query head.
     */
    float *mass;
    /*
     * Scratch, [n_kv_heads][n_q8]: indices of the tokens of the high level, and from the end
     * backwards those of the low level.
     */
    int32_t *source;
} kvd_leankv_prompts;

/*
 * kvd_leankv_masses computes `mass`. kvd_leankv_compress then chooses the levels of tokens, takes
 * pages and writes the codes of all heads of the layer.
 */
cudaError_t kvd_leankv_masses(const kvd_leankv_prompts *p, cudaStream_t stream);
cudaError_t kvd_leankv_compress(const kvd_leankv_prompts *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
