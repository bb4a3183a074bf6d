#include "model/pass/cuda/attention_units.h"

/* number of queries per block, and largest number of sequences for which scratch memory is
 * allocated */
enum { ROWS = 256, SEQUENCES = 16 };
#define SCRATCH ((size_t)256 << 20)

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static size_t round_up(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

size_t kvd_score_room(size_t per_score, size_t max_len, int n_heads)
{
    const size_t row = round_up(max_len ? max_len : 1, 8), most = SCRATCH / per_score;
    const size_t rows = smaller(row, ROWS) * SEQUENCES * (size_t)n_heads;
    const size_t n = row < most / rows ? row * rows : most;
    return round_up(n > row ? n : row, 64);
}

bool kvd_score_block_next(kvd_score_block *b, size_t len, size_t window, size_t room)
{
    b->first += b->rows;
    if (b->first >= len)
        return false;
    /* first key that this block of queries reads, rounded down to a multiple of 8 for speed */
    b->from = window && b->first + 1 > window ? (b->first + 1 - window) / 8 * 8 : 0;
    b->rows = smaller(len - b->first, ROWS);
    while (b->rows > 1 && b->rows * round_up(b->first + b->rows - b->from, 8) > room)
        b->rows = (b->rows + 1) / 2;
    b->keys = b->first + b->rows - b->from;
    b->ld = round_up(b->keys, 8);
    return true;
}

size_t kvd_score_units(const kvd_score_block *b, size_t room)
{
    return smaller(room / (b->rows * b->ld), KVD_SCORE_UNITS);
}

size_t kvd_equal_lengths(const size_t *offset, size_t s, size_t n_sequences)
{
    const size_t len = offset[s + 1] - offset[s];
    size_t n = 1;
    while (s + n < n_sequences && offset[s + n + 1] - offset[s + n] == len)
        n++;
    return n;
}

static cudaDataType cuda_type(kvd_dtype type)
{
    return type == KVD_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

int kvd_unit_multiply(const kvd_unit_blas *x, const kvd_unit_product *p, const kvd_units *units,
                      size_t n, kvd_err *err)
{
    const cudaDataType type = cuda_type(x->type), c_type = cuda_type(p->c_type);
    const int rows = (int)p->m, cols = (int)p->n, depth = (int)p->k, lda = (int)p->lda,
              ldb = (int)p->ldb, ldc = (int)p->ldc;
    const float one = 1, beta = p->add ? 1 : 0;
    const void *const *const at = (const void *const *)x->pointers;
    if (x->pointers)
        return kvd_cublas_check(
            x->lib->cublasGemmBatchedEx(x->blas, p->op_a, p->op_b, rows, cols, depth, &one,
                                        at + (size_t)p->a * n, type, lda, at + (size_t)p->b * n,
                                        type, ldb, &beta, x->pointers + (size_t)p->c * n, c_type,
                                        ldc, (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            x->what, err);
    for (size_t u = units->first; u < units->first + n; u++)
        if (kvd_cublas_check(x->lib->cublasGemmEx(x->blas, p->op_a, p->op_b, rows, cols, depth,
                                                  &one, kvd_unit_matrix(units, p->a, u), type, lda,
                                                  kvd_unit_matrix(units, p->b, u), type, ldb, &beta,
                                                  kvd_unit_matrix(units, p->c, u), c_type, ldc,
                                                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                             x->what, err))
            return -1;
    return 0;
}
