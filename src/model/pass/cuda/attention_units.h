/* Addresses of the matrices of heads, for batched products of cuBLAS. */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_UNITS_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_UNITS_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define KVD_ANYWHERE __host__ __device__
#else
#define KVD_ANYWHERE
#endif

/* Matrices that attention reads and writes for one head of one sequence. */
enum { KVD_AT_K, KVD_AT_Q, KVD_AT_SCORES, KVD_AT_V, KVD_AT_PROB, KVD_AT_OUT, KVD_AT_MATRICES };

/*
 * Addresses of matrices in a batch of sequences of equal length; offsets are in bytes. Unit u is
 * query head u % n_heads of sequence u / n_heads.
 *
 * Matrix m of head h of sequence s is at base[m] + s * sequence[m] + h * head[m]; for K and V, h
 * counts KV heads. Scores and probabilities are at base[m] + (u - first) * head[m].
 */
typedef struct {
    char *base[KVD_AT_MATRICES];
    size_t sequence[KVD_AT_MATRICES], head[KVD_AT_MATRICES];
    size_t first, n_heads, group;
} kvd_attention_units;

static inline KVD_ANYWHERE char *kvd_attention_matrix(const kvd_attention_units *a, int m, size_t u)
{
    if (m == KVD_AT_SCORES || m == KVD_AT_PROB)
        return a->base[m] + (u - a->first) * a->head[m];
    const size_t h = u % a->n_heads, head = m == KVD_AT_K || m == KVD_AT_V ? h / a->group : h;
    return a->base[m] + u / a->n_heads * a->sequence[m] + head * a->head[m];
}

/* Fills the device array `at` [KVD_AT_MATRICES][n] for units first .. first + n - 1. */
cudaError_t kvd_attention_pointers(const kvd_attention_units *a, size_t n, void **at,
                                   cudaStream_t stream);

/* Matrices of the gradient of attention for one head of one sequence. */
enum {
    KVD_BACK_Q,
    KVD_BACK_K,
    KVD_BACK_V,
    KVD_BACK_DO, /* gradient of the output O */
    KVD_BACK_DQ,
    KVD_BACK_DK,
    KVD_BACK_DV,
    KVD_BACK_SCORES, /* float32 scores, later probabilities */
    KVD_BACK_D_PROB, /* float32 gradients of the probabilities */
    KVD_BACK_P,      /* probabilities in the type of the pass */
    KVD_BACK_DS,     /* gradients of scores in the type of the pass */
    KVD_BACK_MATRICES
};

/* Matrix of every KV head h and sequence s, at base + s * sequence + h * head (bytes). */
typedef struct {
    char *base;
    size_t sequence, head;
} kvd_back_place;

/*
 * A unit is one query head. Unit u belongs to KV head u % n_heads, of n_heads KV heads, and to
 * sequence u / n_heads.
 */
typedef struct {
    kvd_back_place at[KVD_BACK_MATRICES];
    size_t first, n_heads;
} kvd_back_units;

static inline KVD_ANYWHERE char *kvd_back_matrix(const kvd_back_units *a, int m, size_t u)
{
    const kvd_back_place *p = &a->at[m];
    return m >= KVD_BACK_SCORES ? p->base + (u - a->first) * p->head
                                : p->base + u / a->n_heads * p->sequence + u % a->n_heads * p->head;
}

/* Fills the device array `at` [KVD_BACK_MATRICES][n] for units first .. first + n - 1. */
cudaError_t kvd_back_pointers(const kvd_back_units *a, size_t n, void **at, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
