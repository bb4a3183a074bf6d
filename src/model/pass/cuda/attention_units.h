/* Attention by batched products of cuBLAS, one block of queries after another. A unit is one head
 * of one sequence. */
#ifndef KVD_MODEL_PASS_CUDA_ATTENTION_UNITS_H
#define KVD_MODEL_PASS_CUDA_ATTENTION_UNITS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
#define KVD_ANYWHERE __host__ __device__
extern "C" {
#else
#define KVD_ANYWHERE
#include "common/cuda/libraries.h"
#include "common/half.h"
#endif

/* A unit is one head of one sequence. KVD_UNIT_MATRICES: largest number of matrices (such as Q, K
 * and V) of a unit; KVD_SCORE_UNITS: largest number of units in one batched matrix product. */
enum { KVD_UNIT_MATRICES = 11, KVD_SCORE_UNITS = 4096 };

/* memory locations of one kind of matrix, such as Q, for each head of each sequence */
typedef struct {
    char *base;
    size_t sequence, head; /* bytes from one sequence, or head, to the next */
    /* number of consecutive heads that share one matrix, such as the query heads of a KV head; 0 if
     * each head of each sequence has its own matrix */
    size_t share;
} kvd_unit_place;

/* units of a batched product; unit u is one head of one sequence: head u % n_heads of sequence u /
 * n_heads */
typedef struct {
    kvd_unit_place at[KVD_UNIT_MATRICES];
    size_t first, n_heads;
} kvd_units;

/* Returns the address of matrix m of unit u, which is one head of one sequence. */
static inline KVD_ANYWHERE char *kvd_unit_matrix(const kvd_units *a, int m, size_t u)
{
    const kvd_unit_place *p = &a->at[m];
    return p->share ? p->base + u / a->n_heads * p->sequence + u % a->n_heads / p->share * p->head
                    : p->base + (u - a->first) * p->head;
}

/* Fills device array `at` [KVD_UNIT_MATRICES][n] with the addresses of the matrices of n units. A
 * unit is one head of one sequence. */
cudaError_t kvd_unit_pointers(const kvd_units *a, size_t n, void **at, cudaStream_t stream);

#ifdef __cplusplus
}
#else

/* column-major matrix product op(a) op(b) (m x n), computed for each head of each sequence. It is
 * written to c or, if `add`, added to c. */
typedef struct {
    cublasOperation_t op_a, op_b;
    size_t m, n, k;
    int a, b, c; /* indices of kvd_units.at */
    size_t lda, ldb, ldc;
    kvd_dtype c_type;
    int add;
} kvd_unit_product;

typedef struct {
    const kvd_cublas *lib;
    cublasHandle_t blas;
    kvd_dtype type; /* of a and b */
    /* device array with the addresses of the matrices of all heads of all sequences; NULL if an
     * address is no multiple of 16 bytes */
    void **pointers;
    const char *what; /* for messages */
} kvd_unit_blas;

/* Computes the matrix product *p for n units; a unit is one head of one sequence. If x->pointers is
 * NULL, calls cuBLAS once per unit, else once for all units. */
int kvd_unit_multiply(const kvd_unit_blas *x, const kvd_unit_product *p, const kvd_units *units,
                      size_t n, kvd_err *err);

/* Returns how many sequences, beginning with sequence s, have the same length. */
size_t kvd_equal_lengths(const size_t *offset, size_t s, size_t n_sequences);

/* block of attention scores: queries first .. first + rows - 1 with keys from .. from + keys - 1 */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/* Returns the number of attention scores for which to allocate scratch memory. The memory usually
 * has 256 MiB. */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/* Advances *b to a sequence's next block of queries; the first call needs a zeroed *b. Returns
 * false if there are no more queries. */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/* Returns how many blocks of attention scores, as large as *b, fit into memory for `room` scores;
 * at most KVD_SCORE_UNITS. */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
#endif
