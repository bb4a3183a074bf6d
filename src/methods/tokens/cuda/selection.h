/* Kernels for decode steps that read only some of the cached tokens. They choose among selection
 * pages: groups of adjacent tokens. */
#ifndef KVD_METHODS_TOKENS_CUDA_SELECTION_H
#define KVD_METHODS_TOKENS_CUDA_SELECTION_H

#include <cuda_runtime_api.h>

#include "kernels/layout.h"
#include "methods/tokens/eviction.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    /* Location of each head's data in Q and in cache pages. All KV heads must have the same d_qk
     * and the same d_v. */
    kvd_attn_map map;
    /* Rule by which decode steps choose tokens. rule.page must divide KVD_PAGE_TOKENS, and must be
     * 1 with KVD_READ_RECENT. */
    kvd_read_rule rule;
    int32_t batch, max_pages;
    /* [batch] in device memory: number of cached tokens and slot of each request. Slots from
     * n_slots on are padding. */
    const int32_t *kv_len, *slot;
    int32_t n_slots;
    const int32_t *page_table; /* device [batch][max_pages] */
    const void *pool;          /* device pages of the layer */
    /* Device array [pages][n_kv_heads][64 / rule.page][2][d_qk]: smallest and largest element of
     * each key channel in each group of rule.page adjacent tokens. */
    void *bounds;
    /* For KVD_READ_RECENT: attention probabilities [page][n_kv_heads][history][64] in device
     * memory, summed over query heads. The query at position t writes element t % history. */
    float *recent;
} kvd_selection;

/* Updates s->bounds, the smallest and largest element of each key channel in each group of
 * rule.page tokens, after new tokens. Request b has q_len[b] new tokens, at most `longest`. */
cudaError_t kvd_selection_bounds(const kvd_selection *s, const int32_t *q_len, int32_t longest,
                                 cudaStream_t stream);

/* Queries of whole prompts or of parts of prompts, the input of kvd_selection_recent. */
typedef struct {
    const void *q;    /* device, BLOCKED with n_q8 rows */
    const float *lse; /* device [n_heads][n_q8] ln of softmax denominators */
    int32_t n_q8;
    const int32_t *q_start, *q_len; /* device [batch] first row, number of rows */
    int32_t longest;
} kvd_selection_rows;

/* Stores the attention probabilities of the last queries in s->recent. Must be called after each
 * part of a prompt. */
cudaError_t kvd_selection_recent(const kvd_selection *s, const kvd_selection_rows *rows,
                                 cudaStream_t stream);

/* Writes how many tokens each KV head reads to len [batch * n_kv_heads]. Sets heads[0] to live[0] *
 * n_kv_heads, where live[0] is the number of requests that are not padding. All arrays are in
 * device memory. */
cudaError_t kvd_selection_lengths(const kvd_selection *s, const int32_t *live, int32_t *len,
                                  int32_t *heads, cudaStream_t stream);

/* The tokens that decode steps read, in device memory. Row b * n_kv_heads + g of each array is for
 * KV head g of request b. */
typedef struct {
    const void *q; /* device [batch][q_pitch] queries */
    /* Scratch [batch * n_kv_heads][k][groups]: scores of groups of adjacent tokens.
     *
     * - k: number of query heads per KV head for KVD_READ_CODES and KVD_READ_LANDMARKS, 2 for
     *   KVD_READ_CLUSTERS, otherwise 1
     * - groups: number of groups in max_pages cache pages */
    float *score;
    /* [batch * n_kv_heads][groups] Indices of the groups of adjacent tokens that are read, in
     * rising order. */
    int32_t *chosen;
    /* [batch * n_kv_heads][groups] Page table of the chosen tokens, for attention. With
     * KVD_READ_LANDMARKS, it lists the pages of array `rows`, to which these tokens are copied. */
    int32_t *table;
    /* For KVD_READ_LANDMARKS: bf16 pages to which the chosen tokens are copied, row_pages pages per
     * KV head. */
    void *rows;
    int32_t row_pages; /* largest number of pages with tokens that a KV head reads */
    /* [batch * n_kv_heads] in device memory: number of tokens that each KV head reads. If this
     * number depends on the queries (kvd_selection_varies), the functions that choose tokens write
     * it. */
    int32_t *len;
    /* [batch] in device memory: number of tokens read, summed over calls. Written only if the
     * number depends on the queries. */
    unsigned long long *read;
} kvd_selected;

cudaError_t kvd_selection_choose(const kvd_selection *s, const kvd_selected *to,
                                 cudaStream_t stream);
/* Writes the attention probabilities of a decode step to s->recent. `to` lists the tokens that the
 * step read. lse [batch * n_kv_heads][group] has the natural logs of the softmax denominators. */
cudaError_t kvd_selection_recall(const kvd_selection *s, const kvd_selected *to, const float *lse,
                                 cudaStream_t stream);

/* Centroids of keys in one layer, and for each key the index of its nearest centroid, in device
 * memory. */
typedef struct {
    /* size: number of centroids per KV head. relative: position to which RoPE rotates queries
     * before they are compared with centroids. */
    int32_t size, relative;
    /* dims: number of dimensions that RoPE rotates. interleaved: 1 if RoPE rotates pairs of
     * adjacent dimensions. */
    int32_t dims, interleaved;
    const double *frequency; /* [dims / 2] angle per position */
    /* In device memory, for each KV head. factor: matrix [d][d] that multiplies keys before their
     * distances from centroids are computed. moved: centroids times this matrix. centroid:
     * centroids [size][d]. */
    const float *factor, *moved, *centroid;
    uint16_t *code; /* [page of the pool][n_kv_heads][64] nearest centroid */
    float *product; /* scratch [batch * n_kv_heads][group][size] */
} kvd_selection_codes;

/* Finds the centroid nearest to each new key. Request b has q_len[b] new keys, at most
 * `longest`. */
cudaError_t kvd_selection_encode(const kvd_selection *s, const kvd_selection_codes *codes,
                                 const int32_t *q_len, int32_t longest, cudaStream_t stream);
/* For KVD_READ_CLUSTERS: chooses the clusters of adjacent tokens that a decode step reads. */
cudaError_t kvd_selection_clusters(const kvd_selection *s, const kvd_selected *to,
                                   cudaStream_t stream);
/* For KVD_READ_CODES: chooses the tokens that a decode step reads, by the centroids nearest to
 * their keys. */
cudaError_t kvd_selection_lookup(const kvd_selection *s, const kvd_selection_codes *codes,
                                 const kvd_selected *to, cudaStream_t stream);
/* State of method shadowkv (KVD_READ_LANDMARKS) in one layer, in device memory. Each selection page
 * (group of rule.page prompt tokens) has a mean key and a flag. If the flag is above 0, the keys of
 * the group are also stored exactly. */
typedef struct {
    int32_t *prompt; /* [n_slots] tokens of the prompt */
    size_t side;
    /* Number of elements of a latent vector, from which a token's keys are rebuilt. The vectors are
     * stored as [page][64 * rank] in device memory. */
    int32_t rank;
    const uint16_t *latents;
    /* Outputs for each token that is read: latent vector of its key, and its position, or -1 if its
     * key is stored exactly. */
    uint16_t *gathered;
    int32_t *position;
    /* values: V of all tokens, [page][n_kv_heads][64 * d_v]. keys: exact keys of the newest tokens,
     * [page][n_kv_heads][64 * d_qk]. outliers: exact keys of chosen prompt tokens,
     * [n_slots][n_kv_heads][rule.outliers * rule.page][d_qk]. */
    uint16_t *values, *keys, *outliers;
    const int32_t *table;
    /* Output [batch * n_kv_heads]: index of the matrix that turns each KV head's latent vectors
     * back into keys. Indices are relative to the layer's first matrix. */
    int32_t *matrix;
    int32_t n_layers;
} kvd_selection_shadow;

/* Computes the mean key of each selection page (group of rule.page adjacent tokens) of prompts, and
 * chooses the selection pages whose keys are also stored exactly. `score` is scratch memory. */
cudaError_t kvd_selection_landmarks(const kvd_selection *s, const kvd_selection_shadow *x,
                                    float *score, int32_t longest, cudaStream_t stream);
/* Stores V and exact keys of new tokens in the arrays of *x. Request b has q_len[b] new tokens, at
 * most `longest`. */
cudaError_t kvd_selection_shadow_store(const kvd_selection *s, const kvd_selection_shadow *x,
                                       const int32_t *q_len, int32_t longest, cudaStream_t stream);
/* For method shadowkv: computes how many tokens the decode step of each request reads. */
cudaError_t kvd_selection_landmark_lengths(const kvd_selection *s, const kvd_selection_shadow *x,
                                           const int32_t *live, int32_t *len, int32_t *heads,
                                           cudaStream_t stream);
/* For method shadowkv: chooses the tokens that decode steps read, and copies their V to to->rows.
 * Also copies the keys that are stored exactly. Sets all other keys to 0; the caller must rebuild
 * them from the latent vectors x->gathered and the positions x->position. */
cudaError_t kvd_selection_choose_landmarks(const kvd_selection *s, const kvd_selection_shadow *x,
                                           const kvd_selected *to, cudaStream_t stream);

#ifdef __CUDACC__
#define KVD_ON_BOTH __host__ __device__
#else
#define KVD_ON_BOTH
#endif

/* Counts of groups of adjacent tokens. all: groups of a request. newest: groups that are always
 * read. chosen: older groups that a decode step chooses by score. */
typedef struct {
    size_t all, newest, chosen;
} kvd_selection_pages;

/* Counts the groups of r->page adjacent tokens of a request with n cached tokens: all groups, the
 * newest groups, which are always read, and the older groups that a decode step chooses. */
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

/* Counts of groups of adjacent prompt tokens. all: groups with a mean key. outliers: groups whose
 * keys are also stored exactly. chosen: groups that a decode step chooses by score. */
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

/* Returns how many of n cached tokens a decode step reads with KVD_READ_LANDMARKS. */
KVD_ON_BOTH static inline size_t kvd_selection_marked(const kvd_read_rule *r, size_t prompt,
                                                      size_t n)
{
    const kvd_selection_marks m = kvd_selection_marks_of(r, prompt);
    return n - (m.all - m.outliers - m.chosen) * r->page;
}

/* Returns true if the number of tokens that a decode step reads depends on its queries. */
KVD_ON_BOTH static inline bool kvd_selection_varies(const kvd_read_rule *r)
{
    return r->ranking == KVD_READ_CODES || r->ranking == KVD_READ_CLUSTERS;
}

/* Returns how many tokens each page-table entry covers in attention. 0 means a whole cache page. */
KVD_ON_BOTH static inline int32_t kvd_selection_piece(const kvd_read_rule *r)
{
    return r->ranking != KVD_READ_LANDMARKS && r->page < KVD_PAGE_TOKENS ? (int32_t)r->page : 0;
}

/* Returns how many of n clusters of tokens a decode step reads for their high scores, not counting
 * the first and the last cluster. */
KVD_ON_BOTH static inline size_t kvd_selection_wanted(const kvd_read_rule *r, size_t n)
{
    const size_t budget = (size_t)r->budget;
    return r->budget < 1 ? (size_t)(r->budget * (double)n) : (budget + r->page - 1) / r->page;
}

/* Returns how many of n cached tokens a decode step reads. Must not be called if
 * kvd_selection_varies(r). */
KVD_ON_BOTH static inline size_t kvd_selection_tokens(const kvd_read_rule *r, size_t n)
{
    const kvd_selection_pages p = kvd_selection_pages_of(r, n);
    return p.chosen * r->page + n - (p.all - p.newest) * r->page;
}

/* Returns how many of n cached tokens a decode step reads at most. `group` is the number of query
 * heads per KV head. */
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
