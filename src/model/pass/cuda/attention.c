#include "model/pass/cuda/attention.h"

#include <limits.h>

#include "model/pass/cuda/attention_units.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/cuda/score_blocks.h"

static const char what[] = "attention";

/* Returns bytes of scratch per score: 4 for float32, and 2 for a bf16 probability. */
static size_t per_score(kvd_dtype type)
{
    return type == KVD_F32 ? 4 : 6;
}

size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads)
{
    return kvd_score_room(per_score(type), max_len, n_heads) * per_score(type) +
           sizeof(void *) * KVD_AT_MATRICES * KVD_SCORE_UNITS;
}

typedef struct {
    const kvd_gpu_attention_in *in;
    kvd_dtype type;
    cudaDataType cuda_type;
    size_t d, bytes;
    const char *q, *k, *v;
    char *out;
    size_t ldq, ldk, ldv, ldo;
    size_t n_scores;
    float *scores;
    char *prob;
    void **pointers;
    /* 1 if the rows of all heads are aligned to 16 bytes */
    int aligned;
} call;

/* Batched product in column-major order: c (m x n) = op(a) (m x k) b (k x n). */
typedef struct {
    cublasOperation_t op;
    size_t m, n, k;
    /* The product is c = a b; a, b and c are indices KVD_AT_... . */
    int a, b, c;
    size_t lda, ldb, ldc;
    cudaDataType c_type;
} product;

static int multiply(const call *x, const product *p, const kvd_attention_units *units, size_t n,
                    kvd_err *err)
{
    const kvd_cublas *lib = x->in->lib;
    const float one = 1, zero = 0;
    if (x->aligned)
        return kvd_cublas_check(
            lib->cublasGemmBatchedEx(
                x->in->blas, p->op, CUBLAS_OP_N, (int)p->m, (int)p->n, (int)p->k, &one,
                (const void *const *)x->pointers + (size_t)p->a * n, x->cuda_type, (int)p->lda,
                (const void *const *)x->pointers + (size_t)p->b * n, x->cuda_type, (int)p->ldb,
                &zero, x->pointers + (size_t)p->c * n, p->c_type, (int)p->ldc, (int)n,
                CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
            what, err);
    for (size_t u = units->first; u < units->first + n; u++)
        if (kvd_cublas_check(
                lib->cublasGemmEx(x->in->blas, p->op, CUBLAS_OP_N, (int)p->m, (int)p->n, (int)p->k,
                                  &one, kvd_attention_matrix(units, p->a, u), x->cuda_type,
                                  (int)p->lda, kvd_attention_matrix(units, p->b, u), x->cuda_type,
                                  (int)p->ldb, &zero, kvd_attention_matrix(units, p->c, u),
                                  p->c_type, (int)p->ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                what, err))
            return -1;
    return 0;
}

/*
 * Computes attention of a block of queries for n units, each a query head of a sequence. In
 * column-major order: scores^T [keys][rows] = K Q^T, out^T [d][rows] = V^T P^T.
 */
static int attend_block(const call *x, const kvd_score_block *b, const kvd_attention_units *units,
                        size_t n, kvd_err *err)
{
    const product qk = {CUBLAS_OP_T,   b->keys, b->rows, x->d,  KVD_AT_K,  KVD_AT_Q,
                        KVD_AT_SCORES, x->ldk,  x->ldq,  b->ld, CUDA_R_32F};
    const product pv = {CUBLAS_OP_N, x->d,   b->rows, b->keys, KVD_AT_V,    KVD_AT_PROB,
                        KVD_AT_OUT,  x->ldv, b->ld,   x->ldo,  x->cuda_type};
    const cudaStream_t stream = x->in->stream;
    const kvd_scores model = kvd_config_scores(x->in->config);
    const kvd_gpu_scores scores = {.scale = model.scale,
                                   .softcap = model.softcap,
                                   .sinks = x->in->sinks,
                                   .first = units->first,
                                   .n_heads = units->n_heads};
    if (x->aligned &&
        kvd_cuda_check(kvd_attention_pointers(units, n, x->pointers, stream), what, err))
        return -1;
    return multiply(x, &qk, units, n, err) ||
                   kvd_cuda_check(kvd_gpu_softmax(x->type, x->scores, n, b->rows, b->ld,
                                                  b->first - b->from, b->keys, x->in->window,
                                                  &scores, x->prob, stream),
                                  what, err) ||
                   multiply(x, &pv, units, n, err)
               ? -1
               : 0;
}

/* Returns the addresses of the matrices for a block of queries in sequences of `len` tokens. */
static kvd_attention_units units_of(const call *x, const kvd_score_block *b, size_t at, size_t len)
{
    const size_t e = x->bytes, head = x->d * e, n_heads = (size_t)x->in->share->n_heads;
    return (kvd_attention_units){.base = {[KVD_AT_K] = (char *)x->k + (at + b->from) * x->ldk * e,
                                          [KVD_AT_Q] = (char *)x->q + (at + b->first) * x->ldq * e,
                                          [KVD_AT_SCORES] = (char *)x->scores,
                                          [KVD_AT_V] = (char *)x->v + (at + b->from) * x->ldv * e,
                                          [KVD_AT_PROB] = x->prob,
                                          [KVD_AT_OUT] = x->out + (at + b->first) * x->ldo * e},
                                 .sequence = {[KVD_AT_K] = len * x->ldk * e,
                                              [KVD_AT_Q] = len * x->ldq * e,
                                              [KVD_AT_V] = len * x->ldv * e,
                                              [KVD_AT_OUT] = len * x->ldo * e},
                                 .head = {[KVD_AT_K] = head,
                                          [KVD_AT_Q] = head,
                                          [KVD_AT_SCORES] = b->rows * b->ld * sizeof(float),
                                          [KVD_AT_V] = head,
                                          [KVD_AT_PROB] = b->rows * b->ld * e,
                                          [KVD_AT_OUT] = head},
                                 .n_heads = n_heads,
                                 .group = n_heads / (size_t)x->in->share->n_kv_heads};
}

static int attend_equal(const call *x, size_t at, size_t len, size_t n, kvd_err *err)
{
    const size_t n_units = n * (size_t)x->in->share->n_heads;
    kvd_score_block b = {0};
    while (kvd_score_block_next(&b, len, x->in->window, x->n_scores)) {
        const size_t most = kvd_score_units(&b, x->n_scores);
        kvd_attention_units units = units_of(x, &b, at, len);
        for (; units.first < n_units; units.first += most)
            if (attend_block(x, &b, &units,
                             n_units - units.first < most ? n_units - units.first : most, err))
                return -1;
    }
    return 0;
}

static int aligned(const call *x)
{
    const uintptr_t bits = (uintptr_t)x->q | (uintptr_t)x->k | (uintptr_t)x->v | (uintptr_t)x->out;
    return (bits | (x->ldq | x->ldk | x->ldv | x->ldo | x->d) * x->bytes) % 16 == 0;
}

int kvd_gpu_attend(const kvd_gpu_attention_in *in, kvd_dtype type, const void *q, size_t ldq,
                   const void *k, size_t ldk, const void *v, size_t ldv, void *out, size_t ldo,
                   void *scratch, kvd_err *err)
{
    if (in->longest > INT_MAX - 8 || ldq > INT_MAX || ldk > INT_MAX || ldv > INT_MAX ||
        ldo > INT_MAX)
        return kvd_fail(
            err, "attention: a sequence of %zu with rows of %zu, %zu, %zu and %zu is too large",
            in->longest, ldq, ldk, ldv, ldo);
    const size_t n_scores = kvd_score_room(per_score(type), in->longest, in->share->n_heads);
    call x = {.in = in,
              .type = type,
              .cuda_type = type == KVD_F32 ? CUDA_R_32F : CUDA_R_16BF,
              .d = (size_t)in->config->d_head,
              .bytes = kvd_dtype_bytes(type),
              .q = q,
              .k = k,
              .v = v,
              .out = out,
              .ldq = ldq,
              .ldk = ldk,
              .ldv = ldv,
              .ldo = ldo,
              .n_scores = n_scores,
              .scores = scratch,
              .prob = (char *)scratch + (type == KVD_F32 ? 0 : n_scores * sizeof(float)),
              .pointers = (void **)(void *)((char *)scratch + n_scores * per_score(type))};
    x.aligned = aligned(&x);
    const size_t *offset = in->offset;
    for (size_t s = 0, n; s < in->n_sequences; s += n) {
        const size_t len = offset[s + 1] - offset[s];
        for (n = 1; s + n < in->n_sequences && offset[s + n + 1] - offset[s + n] == len;)
            n++;
        if (attend_equal(&x, offset[s], len, n, err))
            return -1;
    }
    return 0;
}

static int capture_run(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out,
                       kvd_err *err)
{
    kvd_gpu_capture *t = (kvd_gpu_capture *)self;
    if (t->record && t->record(t->ctx, in, err))
        return -1;
    if (t->inner->run(t->inner, in, out, err))
        return -1;
    return t->output ? t->output(t->ctx, in, out, err) : 0;
}

void kvd_gpu_capture_init(kvd_gpu_capture *t, kvd_gpu_attention *inner)
{
    *t = (kvd_gpu_capture){.hook = {.run = capture_run,
                                    .wants_pre = inner->wants_pre,
                                    .wants_input = inner->wants_input},
                           .inner = inner};
}
