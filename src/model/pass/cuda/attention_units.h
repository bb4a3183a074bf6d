/*
 * Attention by batched products of cuBLAS: blocks of queries whose scores fit into scratch memory,
 * and addresses of the matrices of all units. A unit is one head of one sequence.
 */
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

/* Largest number of matrices per unit (head of a sequence), and of units in one batched product. */
enum { KVD_UNIT_MATRICES = 11, KVD_SCORE_UNITS = 4096 };

/*
 * Position of one matrix in memory for every unit (head of a sequence). All numbers are bytes
 * except `share`.
 */
typedef struct {
    char *base;
    size_t sequence, head; /* from one sequence, or head, to the next */
    /*
     * Number of consecutive units that share a matrix, such as query heads of one KV head. If 0,
     * the matrix of unit u is at (u - first) * head.
     */
    size_t share;
} kvd_unit_place;

/*
 * Units (heads of sequences) of a batched product. Unit u belongs to sequence u / n_heads. `first`
 * is the first unit of the product.
 */
typedef struct {
    kvd_unit_place at[KVD_UNIT_MATRICES];
    size_t first, n_heads;
} kvd_units;

/* Returns the address of matrix m of unit u (head of a sequence). */
static inline KVD_ANYWHERE char *kvd_unit_matrix(const kvd_units *a, int m, size_t u)
{
    const kvd_unit_place *p = &a->at[m];
    return p->share ? p->base + u / a->n_heads * p->sequence + u % a->n_heads / p->share * p->head
                    : p->base + (u - a->first) * p->head;
}

/*
 * Fills the device array `at` [KVD_UNIT_MATRICES][n] with the addresses of the matrices of heads of
 * sequences (units) first .. first + n - 1.
 */
cudaError_t kvd_unit_pointers(const kvd_units *a, size_t n, void **at, cudaStream_t stream);

#ifdef __cplusplus
}
#else

/*
 * Matrix product of every unit (head of a sequence) in column-major order, c (m x n) = op(a) op(b),
 * added to c if `add`.
 */
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
    /* Addresses written by kvd_unit_pointers, or NULL if an address is no multiple of 16 bytes. */
    void **pointers;
    const char *what; /* for messages */
} kvd_unit_blas;

/*
 * Computes the product for n units (heads of sequences): in one call of cuBLAS, or in one call per
 * unit if there are no pointers.
 */
int kvd_unit_multiply(const kvd_unit_blas *x, const kvd_unit_product *p, const kvd_units *units,
                      size_t n, kvd_err *err);

/* Returns how many consecutive sequences, from s on, have the same length as sequence s. */
size_t kvd_equal_lengths(const size_t *offset, size_t s, size_t n_sequences);

/*
 * Block of attention scores: queries first .. first + rows - 1 with keys from .. from + keys - 1.
 */
typedef struct {
    size_t first, rows, from, keys, ld;
} kvd_score_block;

/* Returns for how many scores to allocate scratch memory, at most 256 MiB if possible. */
size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads);

/*
 * Advances *b, zeroed at first, to the next block of 1 to 256 queries. Returns false at the end of
 * the sequence.
 */
bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room);

/*
 * Returns for how many heads of sequences (units) a block's scores fit into `room` scores, at least
 * 1.
 */
size_t kvd_score_units(const kvd_score_block *b, size_t room);

#endif
#endif
