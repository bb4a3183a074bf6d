/* Selection at read time: all tokens stay cached, but steps read only some of them. Tokens are
 * chosen in selection pages of `page` adjacent tokens: the newest pages, and those with the largest
 * scores. */
#ifndef KVD_METHODS_TOKENS_CUDA_SELECTION_H
#define KVD_METHODS_TOKENS_CUDA_SELECTION_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/tokens/eviction.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    /* Location of each head in Q and in pages. All KV heads must have the same d_qk and d_v. */
    kvd_attn_map map;
    /* rule.page must divide KVD_PAGE_TOKENS, and is 1 with KVD_READ_RECENT. */
    kvd_read_rule rule;
    int32_t batch, max_pages;
    /* [batch] on the device: cached tokens, and slot. Slots from n_slots on are padding. */
    const int32_t *kv_len, *slot;
    int32_t n_slots;
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *pool;          /* device pages of the layer */
    /* Device [cache page][n_kv_heads][64 / rule.page][2][d_qk]: least, largest key per channel. */
    void *bounds;
    /* [page][n_kv_heads][history][64] in device memory: probabilities summed over query heads, for
     * KVD_READ_RECENT. Position t writes element t % history. */
    float *recent;
} kvd_selection;

/* Updates s->bounds, the smallest and largest number per key channel of each group of rule.page
 * tokens, for each request's last q_len[b] <= longest tokens. */
cudaError_t kvd_selection_bounds(const kvd_selection *s, const int32_t *q_len, int32_t longest,
                                 cudaStream_t stream);

/* Queries of prompts, or of parts of prompts, for kvd_selection_recent. */
typedef struct {
    const void *q;    /* device, BLOCKED with n_q8 rows */
    const float *lse; /* device [n_heads][n_q8] ln of softmax denominators */
    int32_t n_q8;
    const int32_t *q_start, *q_len; /* device [batch] first row, number of rows */
    int32_t longest;
} kvd_selection_rows;

/* Stores the last queries' probabilities in s->recent. Called after each part of a prompt. */
cudaError_t kvd_selection_recent(const kvd_selection *s, const kvd_selection_rows *rows,
                                 cudaStream_t stream);

/* Writes the number of tokens that each KV head reads to len [batch * n_kv_heads], and the number
 * of KV heads of the first live[0] requests to heads[0]. All arrays are in device memory. */
cudaError_t kvd_selection_lengths(const kvd_selection *s, const int32_t *live, int32_t *len,
                                  int32_t *heads, cudaStream_t stream);

/* Choice of tokens to read, on the device. Row b * n_kv_heads + g is KV head g of request b. */
typedef struct {
    const void *q; /* device [batch][q_pitch] queries */
    /* Scratch memory for scores, [batch * n_kv_heads][k][max_pages * 64 / page]. k is the number of
     * query heads per KV head for KVD_READ_CODES and KVD_READ_LANDMARKS, 2 for KVD_READ_CLUSTERS,
     * otherwise 1. */
    float *score;
    /* [batch * n_kv_heads][max_pages * 64 / page] Indices of the token groups read, rising. */
    int32_t *chosen;
    /* [batch * n_kv_heads][max_pages * 64 / page] Page table that attention reads, with an entry
     * per group of `page` tokens, or per page of `rows` for KVD_READ_LANDMARKS. */
    int32_t *table;
    /* bf16 pages of the chosen tokens for KVD_READ_LANDMARKS, row_pages pages per KV head. */
    void *rows;
    int32_t row_pages; /* largest number of pages with tokens that a KV head reads */
    /* [batch * n_kv_heads] in device memory: number of tokens that each KV head reads. If it
     * depends on the queries (kvd_selection_varies), the functions that choose tokens write it. */
    int32_t *len;
    /* [batch] on the device: tokens read, summed over calls, if queries decide their number. */
    unsigned long long *read;
} kvd_selected;

cudaError_t kvd_selection_choose(const kvd_selection *s, const kvd_selected *to,
                                 cudaStream_t stream);
/* Writes the attention probabilities of a decode step to s->recent. `to` has the tokens that were
 * read. lse [batch * n_kv_heads][group] has the natural logs of softmax denominators. */
cudaError_t kvd_selection_recall(const kvd_selection *s, const kvd_selected *to, const float *lse,
                                 cudaStream_t stream);

/* Centroids, and index of the nearest centroid of each key of a layer, in device memory. */
typedef struct {
    /* Number of centroids, and RoPE position of queries when they are compared with centroids. */
    int32_t size, relative;
    /* Number of rotated dimensions. interleaved: 1 if RoPE rotates adjacent dimensions. */
    int32_t dims, interleaved;
    const double *frequency; /* [dims / 2] angle per position */
    /* In device memory, per KV head: matrix [d][d] by which keys are multiplied before distances
     * are computed, centroids of keys times this matrix, and centroids [size][d]. */
    const float *factor, *moved, *centroid;
    uint16_t *code; /* [page of the pool][n_kv_heads][64] nearest centroid */
    float *product; /* scratch [batch * n_kv_heads][group][size] */
} kvd_selection_codes;

/* Finds the nearest centroid of each of a request's last q_len[b] <= longest keys. */
cudaError_t kvd_selection_encode(const kvd_selection *s, const kvd_selection_codes *codes,
                                 const int32_t *q_len, int32_t longest, cudaStream_t stream);
/* For KVD_READ_CLUSTERS: chooses the clusters of adjacent tokens that steps read. */
cudaError_t kvd_selection_clusters(const kvd_selection *s, const kvd_selected *to,
                                   cudaStream_t stream);
/* For KVD_READ_CODES: chooses the tokens that steps read by their keys' nearest centroids. */
cudaError_t kvd_selection_lookup(const kvd_selection *s, const kvd_selection_codes *codes,
                                 const kvd_selected *to, cudaStream_t stream);
/* State of method shadowkv (KVD_READ_LANDMARKS) in one layer, in device memory. Each selection page
 * has a mean key and a flag. A flag above 0 means that the page's keys are also stored exactly. */
typedef struct {
    int32_t *prompt; /* [n_slots] tokens of the prompt */
    size_t side;
    /* Elements of a latent vector. Latent vectors are [page][64 * rank] on the device. */
    int32_t rank;
    const uint16_t *latents;
    /* Outputs: latent vector of each read token's key, and the token's position, or -1 if its key
     * is stored exactly. */
    uint16_t *gathered;
    int32_t *position;
    /* Values [page][n_kv_heads][64 * d_v] and exact keys of the newest tokens [page][n_kv_heads][64
     * * d_qk]. outliers [n_slots][n_kv_heads][rule.outliers * rule.page][d_qk] has exact keys of
     * prompts. */
    uint16_t *values, *keys, *outliers;
    const int32_t *table;
    /* Output of kvd_selection_landmark_lengths: index of each KV head's projection, counted from
     * the layer's first one. It is slot * n_layers * n_kv_heads + KV head. */
    int32_t *matrix;
    int32_t n_layers;
} kvd_selection_shadow;

/* Computes the mean keys of prompts' selection pages (groups of rule.page adjacent tokens), and
 * chooses the pages whose keys are also stored exactly. `score` is scratch memory. */
cudaError_t kvd_selection_landmarks(const kvd_selection *s, const kvd_selection_shadow *x,
                                    float *score, int32_t longest, cudaStream_t stream);
/* Stores values and exact keys of each request's last q_len[b] <= longest tokens in *x. */
cudaError_t kvd_selection_shadow_store(const kvd_selection *s, const kvd_selection_shadow *x,
                                       const int32_t *q_len, int32_t longest, cudaStream_t stream);
/* Computes how many tokens each decode step reads with method shadowkv. */
cudaError_t kvd_selection_landmark_lengths(const kvd_selection *s, const kvd_selection_shadow *x,
                                           const int32_t *live, int32_t *len, int32_t *heads,
                                           cudaStream_t stream);
/* Chooses the tokens that steps read with method shadowkv, and copies their values and exact keys.
 * Keys that are stored as latent vectors become 0; the caller must rebuild them from x->gathered
 * and x->position. */
cudaError_t kvd_selection_choose_landmarks(const kvd_selection *s, const kvd_selection_shadow *x,
                                           const kvd_selected *to, cudaStream_t stream);

#ifdef __CUDACC__
#define KVD_ON_BOTH __host__ __device__
#else
#define KVD_ON_BOTH
#endif

/* Numbers of selection pages (token groups): all, newest (always read), older ones to be read. */
typedef struct {
    size_t all, newest, chosen;
} kvd_selection_pages;

/* Returns the numbers of selection pages (groups of r->page tokens) if n tokens are cached. */
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

/* Numbers of a prompt's token groups: with a mean key, with exact keys too, chosen by a step. */
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

/* Returns true if the number of tokens read depends on the queries. */
KVD_ON_BOTH static inline bool kvd_selection_varies(const kvd_read_rule *r)
{
    return r->ranking == KVD_READ_CODES || r->ranking == KVD_READ_CLUSTERS;
}

/* Returns the tokens per entry of attention's page table, or 0 if entries are cache pages. */
KVD_ON_BOTH static inline int32_t kvd_selection_piece(const kvd_read_rule *r)
{
    return r->ranking != KVD_READ_LANDMARKS && r->page < KVD_PAGE_TOKENS ? (int32_t)r->page : 0;
}

/* Returns how many of n small clusters are chosen by score. The first and last are always read. */
KVD_ON_BOTH static inline size_t kvd_selection_wanted(const kvd_read_rule *r, size_t n)
{
    const size_t budget = (size_t)r->budget;
    return r->budget < 1 ? (size_t)(r->budget * (double)n) : (budget + r->page - 1) / r->page;
}

/* Returns how many of n cached tokens a step reads. Requires !kvd_selection_varies(r). */
KVD_ON_BOTH static inline size_t kvd_selection_tokens(const kvd_read_rule *r, size_t n)
{
    const kvd_selection_pages p = kvd_selection_pages_of(r, n);
    return p.chosen * r->page + n - (p.all - p.newest) * r->page;
}

/* Returns the largest number of n cached tokens that a decode step may read. */
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
