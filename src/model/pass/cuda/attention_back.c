#include "model/pass/cuda/attention.h"

#include <limits.h>
#include <math.h>

#include "model/pass/cuda/attention_units.h"
#include "model/pass/cuda/blocks_back.h"
#include "model/pass/cuda/score_blocks.h"

static const char what[] = "gradient of attention";

/* Returns bytes of scratch per score: 8 for float32 score and gradient, and 4 for bf16 copies. */
static size_t per_score(kvd_dtype type)
{
    return type == KVD_F32 ? 8 : 12;
}

size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads)
{
    return kvd_score_room(per_score(type), max_len, n_kv_heads) * per_score(type) +
           sizeof(void *) * KVD_BACK_MATRICES * KVD_SCORE_UNITS;
}

typedef struct {
    const kvd_gpu_attention_back_in *in;
    cudaDataType type;
    size_t d, bytes, group;
    size_t n_scores;
    /* [0] scores, [1] gradients of probabilities, [2] probabilities, [3] gradients of scores. */
    char *score[4];
    void **pointers;
    /* 1 if the rows of all heads are aligned to 16 bytes */
    int aligned;
} call;

/* Batched product in column-major order, c (m x n) = op(a) op(b), added to c if `add`. */
typedef struct {
    cublasOperation_t op_a, op_b;
    size_t m, n, k;
    /* The product is c = a b; a, b and c are indices KVD_BACK_... . */
    int a, b, c;
    size_t lda, ldb, ldc;
    int add;
} product;

static int multiply(const call *x, const product *p, const kvd_back_units *units, size_t n,
                    kvd_err *err)
{
    const kvd_cublas *lib = x->in->lib;
    const float one = 1, beta = p->add ? 1 : 0;
    if (x->aligned)
        return kvd_cublas_check(
            lib->cublasGemmBatchedEx(x->in->blas, p->op_a, p->op_b, (int)p->m, (int)p->n, (int)p->k,
                                     &one, (const void *const *)x->pointers + (size_t)p->a * n,
                                     x->type, (int)p->lda,
                                     (const void *const *)x->pointers + (size_t)p->b * n, x->type,
                                     (int)p->ldb, &beta, x->pointers + (size_t)p->c * n, CUDA_R_32F,
                                     (int)p->ldc, (int)n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            what, err);
    for (size_t u = units->first; u < units->first + n; u++)
        if (kvd_cublas_check(
                lib->cublasGemmEx(x->in->blas, p->op_a, p->op_b, (int)p->m, (int)p->n, (int)p->k,
                                  &one, kvd_back_matrix(units, p->a, u), x->type, (int)p->lda,
                                  kvd_back_matrix(units, p->b, u), x->type, (int)p->ldb, &beta,
                                  kvd_back_matrix(units, p->c, u), CUDA_R_32F, (int)p->ldc,
                                  CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                what, err))
            return -1;
    return 0;
}

/*
 * Computes the gradients of a block of queries for n units, each a KV head with one of its query
 * heads. S: scores, P: probabilities, O: output. In column-major order:
 *   S^T [keys][rows] = K Q^T     dP^T [keys][rows] = V dO^T
 *   dQ^T [d][rows] = K^T dS^T    dK^T [d][keys] += Q^T dS    dV^T [d][keys] += dO^T P
 */
static int block_back(const call *x, const kvd_score_block *b, const kvd_back_units *units,
                      size_t n, kvd_err *err)
{
    const kvd_gpu_attention_back_in *in = x->in;
    const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;
    const size_t rows = b->rows, keys = b->keys, d = x->d, ld = in->ld,
                 ldo = (size_t)in->n_heads * d;
    const product
        qk = {T, N, keys, rows, d, KVD_BACK_K, KVD_BACK_Q, KVD_BACK_SCORES, ld, ld, b->ld, 0},
        ov = {T, N, keys, rows, d, KVD_BACK_V, KVD_BACK_DO, KVD_BACK_D_PROB, ld, ldo, b->ld, 0},
        dq = {N, N, d, rows, keys, KVD_BACK_K, KVD_BACK_DS, KVD_BACK_DQ, ld, b->ld, in->ld_d, 0},
        dk = {N, T, d, keys, rows, KVD_BACK_Q, KVD_BACK_DS, KVD_BACK_DK, ld, b->ld, in->ld_d, 1},
        dv = {N, T, d, keys, rows, KVD_BACK_DO, KVD_BACK_P, KVD_BACK_DV, ldo, b->ld, in->ld_d, 1};
    const float scale = (float)(1 / sqrt((double)d));
    const kvd_gpu_scores scores = {.scale = scale};
    float *const prob = (float *)(void *)x->score[0], *const d_prob = (float *)(void *)x->score[1];
    if (x->aligned &&
        kvd_cuda_check(kvd_back_pointers(units, n, x->pointers, in->stream), what, err))
        return -1;
    return multiply(x, &qk, units, n, err) || multiply(x, &ov, units, n, err) ||
                   kvd_cuda_check(kvd_gpu_softmax(KVD_F32, prob, n, rows, b->ld, b->first - b->from,
                                                  keys, in->window, &scores, prob, in->stream),
                                  what, err) ||
                   kvd_cuda_check(kvd_gpu_softmax_back(in->type, prob, d_prob, n * rows, b->ld,
                                                       keys, scale, x->score[3], x->score[2],
                                                       in->stream),
                                  what, err) ||
                   multiply(x, &dq, units, n, err) || multiply(x, &dk, units, n, err) ||
                   multiply(x, &dv, units, n, err)
               ? -1
               : 0;
}

/* Returns the addresses of the matrices for a block of queries. */
static kvd_back_units units_of(const call *x, const kvd_score_block *b, size_t at, size_t len,
                               size_t member)
{
    const kvd_gpu_attention_back_in *in = x->in;
    const size_t e = x->bytes, f = sizeof(float), head = x->d, wide = x->group * head;
    const size_t ld = in->ld, ldo = (size_t)in->n_heads * head, ldd = in->ld_d,
                 scores = b->rows * b->ld;
    const size_t row = at + b->first, key = at + b->from, q = member * head;
    kvd_back_units u = {.n_heads = (size_t)in->n_kv_heads};
    u.at[KVD_BACK_Q] = (kvd_back_place){(char *)in->q + (row * ld + q) * e, len * ld * e, wide * e};
    u.at[KVD_BACK_DO] =
        (kvd_back_place){(char *)in->d_o + (row * ldo + q) * e, len * ldo * e, wide * e};
    u.at[KVD_BACK_K] = (kvd_back_place){(char *)in->k + key * ld * e, len * ld * e, head * e};
    u.at[KVD_BACK_V] = (kvd_back_place){(char *)in->v + key * ld * e, len * ld * e, head * e};
    u.at[KVD_BACK_DQ] = (kvd_back_place){(char *)(in->dq + row * ldd + q), len * ldd * f, wide * f};
    u.at[KVD_BACK_DK] = (kvd_back_place){(char *)(in->dk + key * ldd), len * ldd * f, head * f};
    u.at[KVD_BACK_DV] = (kvd_back_place){(char *)(in->dv + key * ldd), len * ldd * f, head * f};
    u.at[KVD_BACK_SCORES] = (kvd_back_place){x->score[0], 0, scores * f};
    u.at[KVD_BACK_D_PROB] = (kvd_back_place){x->score[1], 0, scores * f};
    u.at[KVD_BACK_P] = (kvd_back_place){x->score[2], 0, scores * e};
    u.at[KVD_BACK_DS] = (kvd_back_place){x->score[3], 0, scores * e};
    return u;
}

static int equal_back(const call *x, size_t at, size_t len, size_t n, kvd_err *err)
{
    const size_t n_units = n * (size_t)x->in->n_kv_heads;
    kvd_score_block b = {0};
    while (kvd_score_block_next(&b, len, x->in->window, x->n_scores)) {
        const size_t most = kvd_score_units(&b, x->n_scores);
        for (size_t member = 0; member < x->group; member++) {
            kvd_back_units units = units_of(x, &b, at, len, member);
            for (; units.first < n_units; units.first += most)
                if (block_back(x, &b, &units,
                               n_units - units.first < most ? n_units - units.first : most, err))
                    return -1;
        }
    }
    return 0;
}

static int aligned(const call *x)
{
    const kvd_gpu_attention_back_in *in = x->in;
    const uintptr_t types =
                        (uintptr_t)in->q | (uintptr_t)in->k | (uintptr_t)in->v | (uintptr_t)in->d_o,
                    floats = (uintptr_t)in->dq | (uintptr_t)in->dk | (uintptr_t)in->dv;
    return (types | floats | (in->ld | x->d) * x->bytes | in->ld_d * sizeof(float)) % 16 == 0;
}

int kvd_gpu_attend_back(const kvd_gpu_attention_back_in *in, void *scratch, kvd_err *err)
{
    if (in->longest > INT_MAX - 8 || in->ld > INT_MAX || in->ld_d > INT_MAX)
        return kvd_fail(err, "%s: a sequence of %zu with rows of %zu and %zu is too large", what,
                        in->longest, in->ld, in->ld_d);
    const int f32 = in->type == KVD_F32;
    const size_t n = kvd_score_room(per_score(in->type), in->longest, in->n_kv_heads);
    char *const s = scratch;
    call x = {.in = in,
              .type = f32 ? CUDA_R_32F : CUDA_R_16BF,
              .d = (size_t)in->d_head,
              .bytes = kvd_dtype_bytes(in->type),
              .group = (size_t)(in->n_heads / in->n_kv_heads),
              .n_scores = n,
              .score = {s, s + 4 * n, f32 ? s : s + 8 * n, f32 ? s + 4 * n : s + 10 * n},
              .pointers = (void **)(void *)(s + n * per_score(in->type))};
    x.aligned = aligned(&x);
    for (size_t i = 0, run; i < in->n_sequences; i += run) {
        const size_t len = in->offset[i + 1] - in->offset[i];
        for (run = 1;
             i + run < in->n_sequences && in->offset[i + run + 1] - in->offset[i + run] == len;)
            run++;
        if (equal_back(&x, in->offset[i], len, run, err))
            return -1;
    }
    return 0;
}
