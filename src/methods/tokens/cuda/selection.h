/*
 * Selection at read time: all tokens stay in the pages of the cache, and every decode step reads
 * some of them. Tokens are chosen by selection pages of `page` consecutive tokens each. A step
 * scores all selection pages of a KV head. It reads the newest selection pages, and of the others
 * those with the largest scores.
 *
 * With KVD_READ_BOUNDS, the smallest and the largest number of every channel of a selection page's
 * keys bound the product of a query with any of these keys (quest.c). The score is computed from
 * these bounds. With KVD_READ_RECENT, a selection page is a token, and its score is the sum of the
 * attention probabilities that the last `history` rows gave it (alisa.c). A row that did not read
 * the token counts as 0.
 *
 * With KVD_READ_CODES, a selection page is a token, and every query head of a group chooses tokens
 * by the product of its query with the centroid nearest to the token's key (a2ats.c). A step reads
 * the tokens that any query head chose.
 *
 * With KVD_READ_CLUSTERS, the bounds estimate how similar the queries are to clusters of tokens, at
 * two levels (mpcache.c). At the end of the prompt, each layer has dropped some tokens of the
 * prompt, and different layers may have dropped different tokens.
 *
 * With KVD_READ_LANDMARKS, the score of a selection page of the prompt is the largest share, over
 * the query heads, that its mean key has in a softmax over all such pages (shadowkv.c). Selection
 * pages whose keys differ much from their mean, the last pages of the prompt, and all later tokens
 * are always read, with exact keys. The keys of other tokens are latent vectors, from which `rows`
 * are rebuilt after the choice.
 *
 * With KVD_READ_BOUNDS, KVD_READ_RECENT and KVD_READ_LANDMARKS, the number of tokens that a step
 * reads follows from the numbers of tokens of the request and its prompt alone, so the attention of
 * all layers has one plan. Otherwise it follows from the choice, and every layer has a plan.
 * Attention treats each KV head as a request, whose page_table lists the chosen pages. A page of
 * the cache (64 tokens) that has KV heads of one width is a sequence of pages of one KV head, and
 * attention reads the chosen selection pages in place, as pages or pieces of pages
 * (kvd_decode_args.piece_tokens). With KVD_READ_LANDMARKS their rows are copied to `rows` first.
 */
#ifndef KVD_METHODS_TOKENS_CUDA_SELECTION_H
#define KVD_METHODS_TOKENS_CUDA_SELECTION_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/tokens/eviction.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    /* Layout of the layer. All KV heads must have one d_qk and one d_v. */
    kvd_attn_map map;
    /*
     * Rule by which tokens are chosen. rule.page is a divisor of KVD_PAGE_TOKENS, and 1 with
     * KVD_READ_RECENT.
     */
    kvd_read_rule rule;
    int32_t batch, max_pages;
    /*
     * Device [batch]: number of cached tokens, the newest included, and slot of each request. A row
     * whose slot is n_slots or more has no request and is skipped.
     */
    const int32_t *kv_len, *slot;
    int32_t n_slots;
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *pool;          /* pages of the layer, device */
    /*
     * Bounds of the layer, bf16, device [page of the pool][n_kv_heads][64 / page][2][d_qk]. The
     * smallest numbers of a selection page precede the largest.
     */
    void *bounds;
    /*
     * With KVD_READ_RECENT: probabilities, device [page of the pool][n_kv_heads][history][64],
     * summed over the query heads of the group. The query at position t writes element t % history.
     */
    float *recent;
} kvd_selection;

/*
 * Computes the bounds of every selection page that has one of the last q_len[b] tokens. q_len
 * [batch] is device memory, and `longest` is its largest element.
 */
cudaError_t kvd_selection_bounds(const kvd_selection *s, const int32_t *q_len, int32_t longest,
                                 cudaStream_t stream);

/* Queries of prompts, or of chunks of prompts, for kvd_selection_recent. */
typedef struct {
    const void *q;    /* device, in layout BLOCKED with n_q8 rows */
    const float *lse; /* device [n_heads][n_q8]: natural logarithms of the softmax denominators */
    int32_t n_q8;
    const int32_t *q_start, *q_len; /* device [batch]: first row, and number of rows */
    int32_t longest;                /* largest kv_len */
} kvd_selection_rows;

/*
 * Fills `recent` from the last `history` rows of every prompt. Must be called after the attention
 * of each chunk of a prompt.
 */
cudaError_t kvd_selection_recent(const kvd_selection *s, const kvd_selection_rows *rows,
                                 cudaStream_t stream);

/*
 * Writes to len [batch * n_kv_heads] the number of tokens that each KV head reads, and to heads[0]
 * the number of KV heads of the first live[0] requests together. All arrays are on the device. Does
 * not use pool, bounds and page_table.
 */
cudaError_t kvd_selection_lengths(const kvd_selection *s, const int32_t *live, int32_t *len,
                                  int32_t *heads, cudaStream_t stream);

/* Outputs of kvd_selection_choose, device. Row b * n_kv_heads + g is KV head g of request b. */
typedef struct {
    const void *q; /* device [batch][q_pitch]: queries of the step */
    /*
     * Scratch [batch * n_kv_heads][max_pages * 64 / page]: scores of the selection pages. With
     * KVD_READ_CODES, the scores of every query head: [batch * n_kv_heads][group][max_pages * 64].
     */
    float *score;
    /* [batch * n_kv_heads][max_pages * 64 / page]: chosen selection pages, in rising order. */
    int32_t *chosen;
    /*
     * [batch * n_kv_heads][max_pages * 64 / page]: pages or pieces of `page` tokens that attention
     * reads. Not written with KVD_READ_LANDMARKS. Pages are numbered by KV head: a page of the pool
     * counts as n_kv_heads pages.
     */
    int32_t *table;
    /*
     * With KVD_READ_LANDMARKS: pages of one KV head, bf16, to which the rows of the chosen
     * selection pages are copied. Row i has the row_pages pages from page i * row_pages on.
     */
    void *rows;
    int32_t row_pages; /* largest number of pages of tokens that a KV head reads */
    /*
     * Device [batch * n_kv_heads]: number of tokens that are read. This array is an output if the
     * choice determines how many tokens are read (kvd_selection_varies), otherwise an input.
     */
    int32_t *len;
    /*
     * Device [batch]: number of tokens read by each request, summed over KV heads and calls.
     * kvd_selection_choose adds to it if the choice determines how many tokens are read.
     */
    unsigned long long *read;
} kvd_selected;

/* Chooses the tokens that a decode step of every request reads. */
cudaError_t kvd_selection_choose(const kvd_selection *s, const kvd_selected *to,
                                 cudaStream_t stream);
/*
 * Writes the probabilities of a step to `recent`. `to` is the output of kvd_selection_choose, and
 * lse [batch * n_kv_heads][group] has the natural logarithms of the softmax denominators.
 */
cudaError_t kvd_selection_recall(const kvd_selection *s, const kvd_selected *to, const float *lse,
                                 cudaStream_t stream);

/* Centroids and codes of a layer, with KVD_READ_CODES. All arrays are on the device. */
typedef struct {
    /* Number of centroids, and relative RoPE position of queries (kvd_read_codes) */
    int32_t size, relative;
    /*
     * Number of dimensions that RoPE rotates. It rotates dimensions i and i + dims/2 together, or 2
     * i and 2 i + 1 if `interleaved` is 1.
     */
    int32_t dims, interleaved;
    const double *frequency; /* [dims / 2] angle of a pair of dimensions per position */
    /*
     * factor [n_kv_heads][d][d]: Cholesky factors; moved [n_kv_heads][size][d]: centroids times
     * these factors; centroid [n_kv_heads][size][d]. These are device copies of the arrays of
     * kvd_read_codes.
     */
    const float *factor, *moved, *centroid;
    uint16_t *code; /* [page of the pool][n_kv_heads][64] index of the centroid of every token */
    float *product; /* scratch [batch * n_kv_heads][group][size] */
} kvd_selection_codes;

/*
 * Writes the codes of the last q_len[b] tokens of each request b. `longest` is the largest q_len.
 */
cudaError_t kvd_selection_encode(const kvd_selection *s, const kvd_selection_codes *codes,
                                 const int32_t *q_len, int32_t longest, cudaStream_t stream);
/*
 * Chooses clusters in place of kvd_selection_choose for KVD_READ_CLUSTERS. The tokens of a cluster
 * are adjacent among the cached tokens of a KV head. `score` needs twice as many elements as for
 * kvd_selection_choose.
 */
cudaError_t kvd_selection_clusters(const kvd_selection *s, const kvd_selected *to,
                                   cudaStream_t stream);
/* Does the work of kvd_selection_choose with KVD_READ_CODES. */
cudaError_t kvd_selection_lookup(const kvd_selection *s, const kvd_selection_codes *codes,
                                 const kvd_selected *to, cudaStream_t stream);
/*
 * State of a layer with KVD_READ_LANDMARKS, on the device. For each page of the pool, `bounds` of
 * kvd_selection has `side` bytes: the mean keys in bf16 [n_kv_heads][64 / page][d_qk], then a byte
 * for each selection page [n_kv_heads][64 / page]. The byte is 0, or 1 plus the number of the
 * selection page among those of the KV head with exact keys. `pool` holds the tokens of prompts
 * while their layer runs, and the new token of a step.
 */
typedef struct {
    int32_t *prompt; /* [n_slots] number of tokens of the prompt */
    size_t side;
    /*
     * rank: number of elements of a latent vector. latents: device [page of the pool][64 * rank]
     * (latents.h).
     */
    int32_t rank;
    const uint16_t *latents;
    /*
     * Outputs for each row of kvd_selected: latents of the tokens that are read, in row_pages
     * pages, and the positions of these tokens [row_pages * 64], -1 for tokens with exact keys.
     */
    uint16_t *gathered;
    int32_t *position;
    /*
     * Values of all tokens, [page of the pool][n_kv_heads][64 * d_v], and exact keys: of the tokens
     * after the selection pages with a mean key, the first of which is token 0 of the pages in
     * table [batch][max_pages], [page][n_kv_heads][64 * d_qk]; and of other selection pages,
     * [n_slots][n_kv_heads][rule.outliers * rule.page][d_qk].
     */
    uint16_t *values, *keys, *outliers;
    const int32_t *table;
    /*
     * Output of kvd_selection_landmark_lengths: index of each row's matrix, slot * n_layers *
     * n_kv_heads + KV head.
     */
    int32_t *matrix;
    int32_t n_layers;
} kvd_selection_shadow;

/*
 * Computes the mean keys of whole prompts, which are in the pool, and chooses the selection pages
 * whose keys stay exact. `score` is scratch memory of the size of kvd_selected.score. `longest` is
 * the largest kv_len.
 */
cudaError_t kvd_selection_landmarks(const kvd_selection *s, const kvd_selection_shadow *x,
                                    float *score, int32_t longest, cudaStream_t stream);
/*
 * Copies values and exact keys of the last q_len[b] tokens, at most `longest`, from the pool. Must
 * be called after kvd_selection_landmarks.
 */
cudaError_t kvd_selection_shadow_store(const kvd_selection *s, const kvd_selection_shadow *x,
                                       const int32_t *q_len, int32_t longest, cudaStream_t stream);
/* Does the work of kvd_selection_lengths with KVD_READ_LANDMARKS. */
cudaError_t kvd_selection_landmark_lengths(const kvd_selection *s, const kvd_selection_shadow *x,
                                           const int32_t *live, int32_t *len, int32_t *heads,
                                           cudaStream_t stream);
/*
 * Does the work of kvd_selection_choose with KVD_READ_LANDMARKS, and gathers the latents of the
 * chosen tokens. The keys in `rows` of tokens with a position in x->position are 0: the caller must
 * rebuild them from the latents. `score` has a row for every query head.
 */
cudaError_t kvd_selection_choose_landmarks(const kvd_selection *s, const kvd_selection_shadow *x,
                                           const kvd_selected *to, cudaStream_t stream);
/* Copies the rows of the tokens in `chosen` to `rows`. kvd_selection_choose_landmarks calls it. */
cudaError_t kvd_selection_gather(const kvd_selection *s, const kvd_selected *to,
                                 cudaStream_t stream);

#ifdef __CUDACC__
#define KVD_ON_BOTH __host__ __device__
#else
#define KVD_ON_BOTH
#endif

/*
 * Numbers of selection pages of a KV head: `all` pages together, the `newest` pages, which are
 * always read, and the `chosen` ones of the older pages.
 */
typedef struct {
    size_t all, newest, chosen;
} kvd_selection_pages;

/* Returns the numbers of selection pages if n tokens are cached. */
KVD_ON_BOTH static inline kvd_selection_pages kvd_selection_pages_of(const kvd_read_rule *r,
                                                                     size_t n)
{
    const size_t budget = r->budget < 1 ? (size_t)(r->budget * (double)n) : (size_t)r->budget,
                 wanted = (budget + r->page - 1) / r->page,
                 part = r->ranking == KVD_READ_RECENT ? (size_t)(r->local * (double)budget) : 1,
                 newest = part > 1 ? part : 1;
    kvd_selection_pages p;
    p.all = (n + r->page - 1) / r->page;
    p.newest = newest < p.all ? newest : p.all;
    p.chosen = wanted > newest ? wanted - newest : 0;
    p.chosen = p.chosen < p.all - p.newest ? p.chosen : p.all - p.newest;
    return p;
}

/*
 * Numbers of selection pages of a prompt with KVD_READ_LANDMARKS: the number `all` of pages with a
 * mean key, the number `outliers` of those with exact keys, and the number `chosen` of other pages
 * that a step reads.
 */
typedef struct {
    size_t all, outliers, chosen;
} kvd_selection_marks;

KVD_ON_BOTH static inline kvd_selection_marks kvd_selection_marks_of(const kvd_read_rule *r,
                                                                     size_t prompt)
{
    const size_t pages = prompt / r->page, last = (size_t)r->last,
                 budget = r->budget < 1 ? (size_t)(r->budget * (double)prompt) : (size_t)r->budget,
                 wanted = budget / r->page;
    kvd_selection_marks m;
    m.all = pages > last ? pages - last : 0;
    m.outliers = (size_t)r->outliers < m.all ? (size_t)r->outliers : m.all;
    m.chosen = wanted < m.all - m.outliers ? wanted : m.all - m.outliers;
    return m;
}

/* Returns how many of n cached tokens a step reads with KVD_READ_LANDMARKS. */
KVD_ON_BOTH static inline size_t kvd_selection_marked(const kvd_read_rule *r, size_t prompt,
                                                      size_t n)
{
    const kvd_selection_marks m = kvd_selection_marks_of(r, prompt);
    return n - (m.all - m.outliers - m.chosen) * r->page;
}

/*
 * Returns true if a step chooses how many tokens it reads, so that the number is not known
 * beforehand.
 */
KVD_ON_BOTH static inline bool kvd_selection_varies(const kvd_read_rule *r)
{
    return r->ranking == KVD_READ_CODES || r->ranking == KVD_READ_CLUSTERS;
}

/* Returns the number of tokens per entry of the page table, for kvd_decode_args.piece_tokens. */
KVD_ON_BOTH static inline int32_t kvd_selection_piece(const kvd_read_rule *r)
{
    return r->ranking != KVD_READ_LANDMARKS && r->page < KVD_PAGE_TOKENS ? (int32_t)r->page : 0;
}

/* Returns how many of n small clusters are chosen, not counting the first and the last cluster. */
KVD_ON_BOTH static inline size_t kvd_selection_wanted(const kvd_read_rule *r, size_t n)
{
    const size_t budget = (size_t)r->budget;
    return r->budget < 1 ? (size_t)(r->budget * (double)n) : (budget + r->page - 1) / r->page;
}

/*
 * Returns the number of tokens that a step reads of n cached tokens. Must not be used if
 * kvd_selection_varies(r) is true.
 */
KVD_ON_BOTH static inline size_t kvd_selection_tokens(const kvd_read_rule *r, size_t n)
{
    const kvd_selection_pages p = kvd_selection_pages_of(r, n);
    return p.chosen * r->page + n - (p.all - p.newest) * r->page;
}

/* Returns the largest number of tokens that a step may read if n tokens are cached. */
KVD_ON_BOTH static inline size_t kvd_selection_most(const kvd_read_rule *r, size_t group, size_t n)
{
    const size_t budget = r->budget < 1 ? (size_t)(r->budget * (double)n) : (size_t)r->budget,
                 small = (n + r->page - 1) / r->page,
                 most = r->ranking == KVD_READ_CODES
                            ? (size_t)r->sink + (size_t)r->newest + group * budget
                            : (kvd_selection_wanted(r, small) + 2) * r->page;
    return r->ranking == KVD_READ_LANDMARKS ? n
           : !kvd_selection_varies(r)       ? kvd_selection_tokens(r, n)
           : most < n                       ? most
                                            : n;
}

#ifdef __cplusplus
}
#endif
#endif
