/*
 * LeanKV's cache on the GPU: unified pages (section 5), their memory manager, and the kernels over them. leankv.c makes a method of the
 * engine of it.
 *
 * Every KV head of a layer of a slot has entries at two precisions, each section dense: entries 0 .. n - 1 of a precision stand in the pages of
 * its side of the head's table, which high-precision pages fill from the left and low-precision ones from the right. An entry that leaves
 * is replaced by one that comes (Algorithm 1 always has one), so sections have no holes. The order of entries means nothing: each has its position.
 *
 * All lists, counts and tables live on the device. Launchers queue and return; grids depend on numbers of rows alone.
 */
#ifndef KVD_SERVING_CUDA_LEANKV_H
#define KVD_SERVING_CUDA_LEANKV_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a page ------------------------------------------------------------------------------------------------- */

enum {
    KVD_LEANKV_HIGH,
    KVD_LEANKV_LOW,
    KVD_LEANKV_LEVELS,
    KVD_LEANKV_TILE = 16,       /* tokens whose codes lie together                      */
    KVD_LEANKV_PAGE_TOKENS = 64 /* of a page at the high precision                      */
};

/*
 * A page of one precision: six segments of `tokens` entries each: keys, their scales and zero points, values, theirs, scores, positions. Keys begin
 * at byte 0, the others where the members say. A scale and its zero point are float16; a code q stands for scale q + zero.
 * A score is the float32 sum of the probabilities that the entry received, the mean over query heads; the rows that saw it follow from its position.
 */
typedef struct {
    int32_t k_bits, v_bits; /* 8 or 4; 8, 4 or 2      */
    int32_t tokens;         /* a multiple of the tile */
    int32_t k_meta, v, v_meta, score, position;
} kvd_leankv_precision;

typedef struct {
    int32_t d, page_bytes;
    kvd_leankv_precision level[KVD_LEANKV_LEVELS];
} kvd_leankv_layout;

/* Bytes of an entry: codes, scales, score, position. */
size_t kvd_leankv_entry_bytes(int d, int k_bits, int v_bits);
/* Heads of d = 32, 64 or 128; bits [level] as above, the low level no larger than the high one. 0, or -1. */
int kvd_leankv_layout_make(int d, const int k_bits[], const int v_bits[], kvd_leankv_layout *out);

/*
 * Where codes stand in a tile, in 32-bit words: as mma.sync m16n8k16 wants them, with tokens as rows for keys and features as rows for
 * values. Lane l (row l / 4, class l % 4) owns w words, which stand in chunks of 4, 2 or 1 of all lanes: one coalesced load each.
 * Keys: class c has features 16 s + 4 c .. + 3 of step s, whose pairs are 4 or 8 codes apart in a word. Values: class c has tokens 2 c, 2 c + 1,
 * 2 c + 8, 2 c + 9 of feature rows. These are LeanKV's layouts [F / (K_vec K_group), N, K_group, K_vec] and [F / V_group, N / V_vec, V_group, V_vec]
 * (section 6) with K_group 4, V_group 8, V_vec 4, within a tile of 16 tokens.
 */
typedef struct {
    int32_t word, shift;
} kvd_leankv_place;

#ifdef __CUDACC__
#define KVD_LEANKV_BOTH __host__ __device__
#else
#define KVD_LEANKV_BOTH
#endif

/* Word w of a lane that has `words` of them. */
KVD_LEANKV_BOTH static inline int kvd_leankv_word(int words, int lane, int w)
{
    const int vec = words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1;
    return (w / vec * 32 + lane) * vec + w % vec;
}

KVD_LEANKV_BOTH static inline kvd_leankv_place kvd_leankv_key_place(int d, int bits, int row, int feature)
{
    const int per = d * bits / 128; /* words of a row and class */
    const int s = feature / 16, c = feature % 16 / 4, b = feature % 4 / 2, a = feature % 2;
    const int w = row / 8 * per + s * bits / 8, lane = row % 8 * 4 + c;
    kvd_leankv_place p;
    p.word = kvd_leankv_word(2 * per, lane, w);
    p.shift = bits == 8 ? 8 * (2 * b + a) : 4 * (2 * (s % 2) + b) + 16 * a;
    return p;
}

KVD_LEANKV_BOTH static inline kvd_leankv_place kvd_leankv_value_place(int d, int bits, int row, int feature)
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

/* ---- pages, on the device ----------------------------------------------------------------------------------- */

typedef struct {
    int32_t n[KVD_LEANKV_LEVELS], pages[KVD_LEANKV_LEVELS];
    float cut[KVD_LEANKV_LEVELS]; /* relative significance below which an entry is not high; not low */
} kvd_leankv_head;

/* What the host reads at the end of an iteration. The free pages are list[start .. end - 1], both modulo the number of pages. */
typedef struct {
    uint64_t start, end;
    int64_t entries[KVD_LEANKV_LEVELS]; /* of all heads */
    uint64_t wanted, left;              /* of the first time that pages were short, else 0 */
} kvd_leankv_state;

/* Passed to kernels by value. Heads: [n_slots][n_layers][n_kv_heads]. A slot beyond n_slots stands for no request: it has no entries and gets none. */
typedef struct {
    kvd_leankv_layout layout;
    int32_t n_pages, n_slots, n_layers, n_kv_heads;
    int32_t
        table_length; /* of a head: entries / tokens of a page, and one page of each precision that is not full */
    int32_t *list;  /* [n_pages]             */
    int32_t *table; /* [heads][table_length] */
    kvd_leankv_head *head;
    kvd_leankv_state *state;
    char *page; /* [n_pages][page_bytes] */
} kvd_leankv_pool;

/* Bytes of the arrays of a slot beside its pages; pages that a head may have beyond its entries' high-precision ones, rounded down. */
size_t kvd_leankv_slot_bytes(const kvd_leankv_pool *p);
enum { KVD_LEANKV_SPARE_PAGES = 2 };

/* All pages free, all heads empty. */
cudaError_t kvd_leankv_reset(const kvd_leankv_pool *p, cudaStream_t stream);
/*
 * Planning and coordination of n_layers layers of the slots slot [n] (device): every head gets the pages that its entries and `spare` more of each
 * precision want, at the places of an exclusive prefix sum over all heads. Where fewer are free nothing is given, state->wanted says so, and
 * heads are cut to what they have room for.
 */
cudaError_t kvd_leankv_grow(const kvd_leankv_pool *p, const int32_t *slot, int n, int first_layer,
                            int n_layers, int spare, cudaStream_t stream);
/* Pages of all layers of the slots go back to the end of the list; their heads are empty. */
cudaError_t kvd_leankv_give_back(const kvd_leankv_pool *p, const int32_t *slot, int n, cudaStream_t stream);

/* ---- kernels over pages ------------------------------------------------------------------------------------- */

/* Rows of steps: row i is slot[i]'s token at position at[i]. Its K and V stand in row 0 of page page_table[i][0] of `fresh` (BLOCKED, kernels/layout.h). */
typedef struct {
    kvd_leankv_pool pool;
    int32_t layer, n, group; /* rows; query heads of a KV head, up to 8                          */
    int32_t room;            /* entries of a head at most: of `score`                             */
    int32_t splits;          /* CTAs of a head                                                    */
    float scale;             /* of scores                                                         */
    const int32_t *slot;     /* device [n]                                                        */
    const uint32_t *at;      /* device [n]                                                        */
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* pages of bf16                                                           */
    const void *q;     /* device bf16 [n][n_kv_heads * group * d]                                 */
    void *o;           /* device bf16, the same                                             out   */
    /* Scores times log2(e), as they were computed: low entries from the end on; of the new token; log2 of their denominators. */
    float *score;       /* [n][n_kv_heads][room][group, rounded up to even] out */
    float *fresh_score; /* [n][n_kv_heads][8]                       out */
    float *lse2;        /* [n][n_kv_heads][8]                       out */
    float *partial;     /* [n][n_kv_heads][splits][8][d + 2]            */
    uint32_t *arrived;  /* [n][n_kv_heads], zero; zero again afterwards */
    int32_t window;     /* of the update                                */
} kvd_leankv_steps;

/* Attention of steps: over high-, then low-precision pages of every head, then the new token as it is. */
cudaError_t kvd_leankv_attend(const kvd_leankv_steps *s, cudaStream_t stream);
int kvd_leankv_splits(int rows, int n_kv_heads, int n_sms);
/*
 * Behind it, Algorithm 1: probabilities are added to scores, the token that leaves the window is kept, lowered or dropped, the least
 * significant of its level is lowered or dropped, and the new token is coded. Pages must have room for one entry more at each level.
 */
cudaError_t kvd_leankv_update(const kvd_leankv_steps *s, cudaStream_t stream);

/* Prompts, whole: row t of prompt i is row q_start[i] + t of blocked Q. */
typedef struct {
    kvd_leankv_pool pool;
    int32_t layer, n, group, n_q8,
        longest; /* prompts; rows of blocked Q; tokens of the longest prompt         */
    int32_t window;
    float scale;
    double th, tl; /* cumulative significance below which tokens are not high; are dropped     */
    const int32_t *slot, *q_start, *q_len; /* device [n]                                       */
    const int32_t *page_table;
    int32_t max_pages;
    const void *fresh; /* pages of bf16, BLOCKED: the prompts' K and V                         */
    const void *q;     /* device bf16, BLOCKED                                                  */
    const float *lse;  /* device [n_heads][n_q8] natural log                                    */
    float *mass;       /* [n_heads][n_q8] probability that a token received, of a query head out */
    int32_t *source;   /* [n_kv_heads][n_q8] tokens at the high level, and from the end on at the low one */
} kvd_leankv_prompts;

/* Masses; then levels, pages and codes of all heads of the layer. */
cudaError_t kvd_leankv_masses(const kvd_leankv_prompts *p, cudaStream_t stream);
cudaError_t kvd_leankv_compress(const kvd_leankv_prompts *p, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
