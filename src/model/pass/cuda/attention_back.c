/* Gradients of attention on a GPU, by batched products of cuBLAS. */
#include "model/pass/cuda/attention.h"

#include <limits.h>
#include <math.h>

#include "model/pass/cuda/attention_units.h"
#include "model/pass/cuda/blocks_back.h"

static const char what[] = "gradient of attention";

/* indices of the matrices that attention's backward pass uses for one head of one sequence */
enum {
    Q,
    K,
    V,
    D_OUT, /* gradient of the output */
    DQ,
    DK,
    DV,
    SCORES, /* float32 scores, later probabilities */
    D_PROB, /* float32 gradients of the probabilities */
    PROB,   /* probabilities in the type of the pass */
    DS      /* gradients of scores in the type of the pass */
};

/* Returns how many bytes of scratch memory an attention score takes: 8, or 12 with copies in
 * bf16. */
static size_t per_score(kvd_dtype type)
{
    return type == KVD_F32 ? 8 : 12;
}

size_t kvd_gpu_attend_back_scratch(kvd_dtype type, size_t max_len, int n_kv_heads)
{
    return kvd_score_room(per_score(type), max_len, n_kv_heads) * per_score(type) +
           sizeof(void *) * KVD_UNIT_MATRICES * KVD_SCORE_UNITS;
}

typedef struct {
    const kvd_gpu_attention_back_in *in;
    kvd_unit_blas blas;
    size_t d, bytes, group;
    size_t n_scores;
    /* scratch memory for attention scores, gradients of probabilities, probabilities, and gradients
     * of scores */
    char *score[4];
} call;

/* Computes gradients for a block of queries and n heads. S: scores, P: probabilities, O: output.
 *
 * In column-major order: S^T = K Q^T, dP^T = V dO^T, dQ^T = K^T dS^T, dK^T += Q^T dS, dV^T += dO^T
 * P. */
static int block_back(const call *x, const kvd_score_block *b, const kvd_units *units, size_t n,
                      kvd_err *err)
{
    const kvd_gpu_attention_back_in *in = x->in;
    const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;
    const size_t rows = b->rows, keys = b->keys, d = x->d, ld = in->ld,
                 ldo = (size_t)in->n_heads * d;
    const kvd_unit_product
        scores[] = {{T, N, keys, rows, d, K, Q, SCORES, ld, ld, b->ld, KVD_F32, 0},
                    {T, N, keys, rows, d, V, D_OUT, D_PROB, ld, ldo, b->ld, KVD_F32, 0}},
        back[] = {{N, N, d, rows, keys, K, DS, DQ, ld, b->ld, in->ld_d, KVD_F32, 0},
                  {N, T, d, keys, rows, Q, DS, DK, ld, b->ld, in->ld_d, KVD_F32, 1},
                  {N, T, d, keys, rows, D_OUT, PROB, DV, ldo, b->ld, in->ld_d, KVD_F32, 1}};
    const float scale = (float)(1 / sqrt((double)d));
    const kvd_gpu_scores factor = {.scale = scale};
    float *const prob = (float *)(void *)x->score[0], *const d_prob = (float *)(void *)x->score[1];
    if (x->blas.pointers &&
        kvd_cuda_check(kvd_unit_pointers(units, n, x->blas.pointers, in->stream), what, err))
        return -1;
    for (size_t i = 0; i < sizeof scores / sizeof *scores; i++)
        if (kvd_unit_multiply(&x->blas, &scores[i], units, n, err))
            return -1;
    if (kvd_cuda_check(kvd_gpu_softmax(KVD_F32, prob, n, rows, b->ld, b->first - b->from, keys,
                                       in->window, &factor, prob, in->stream),
                       what, err) ||
        kvd_cuda_check(kvd_gpu_softmax_back(in->type, prob, d_prob, n * rows, b->ld, keys, scale,
                                            x->score[3], x->score[2], in->stream),
                       what, err))
        return -1;
    for (size_t i = 0; i < sizeof back / sizeof *back; i++)
        if (kvd_unit_multiply(&x->blas, &back[i], units, n, err))
            return -1;
    return 0;
}

/* Returns the addresses of Q, K, V, the attention scores and the gradients of all four, for one
 * query head of each KV head. member: index of this query head among the query heads of a KV
 * head. */
static kvd_units units_of(const call *x, const kvd_score_block *b, size_t at, size_t len,
                          size_t member)
{
    const kvd_gpu_attention_back_in *in = x->in;
    const size_t e = x->bytes, f = sizeof(float), head = x->d, wide = x->group * head;
    const size_t ld = in->ld, ldo = (size_t)in->n_heads * head, ldd = in->ld_d,
                 scores = b->rows * b->ld;
    const size_t row = at + b->first, key = at + b->from, q = member * head;
    return (kvd_units){
        .at = {[Q] = {(char *)in->q + (row * ld + q) * e, len * ld * e, wide * e, 1},
               [D_OUT] = {(char *)in->d_o + (row * ldo + q) * e, len * ldo * e, wide * e, 1},
               [K] = {(char *)in->k + key * ld * e, len * ld * e, head * e, 1},
               [V] = {(char *)in->v + key * ld * e, len * ld * e, head * e, 1},
               [DQ] = {(char *)(in->dq + row * ldd + q), len * ldd * f, wide * f, 1},
               [DK] = {(char *)(in->dk + key * ldd), len * ldd * f, head * f, 1},
               [DV] = {(char *)(in->dv + key * ldd), len * ldd * f, head * f, 1},
               [SCORES] = {x->score[0], 0, scores * f, 0},
               [D_PROB] = {x->score[1], 0, scores * f, 0},
               [PROB] = {x->score[2], 0, scores * e, 0},
               [DS] = {x->score[3], 0, scores * e, 0}},
        .n_heads = (size_t)in->n_kv_heads};
}

static int equal_back(const call *x, size_t at, size_t len, size_t n, kvd_err *err)
{
    const size_t n_units = n * (size_t)x->in->n_kv_heads;
    kvd_score_block b = {0};
    while (kvd_score_block_next(&b, len, x->in->window, x->n_scores)) {
        const size_t most = kvd_score_units(&b, x->n_scores);
        for (size_t member = 0; member < x->group; member++) {
            kvd_units units = units_of(x, &b, at, len, member);
            for (; units.first < n_units; units.first += most)
                if (block_back(x, &b, &units,
                               n_units - units.first < most ? n_units - units.first : most, err))
                    return -1;
        }
    }
    return 0;
}

static bool aligned(const call *x)
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
              .blas = {.lib = in->lib, .blas = in->blas, .type = in->type, .what = what},
              .d = (size_t)in->d_head,
              .bytes = kvd_dtype_bytes(in->type),
              .group = (size_t)(in->n_heads / in->n_kv_heads),
              .n_scores = n,
              .score = {s, s + 4 * n, f32 ? s : s + 8 * n, f32 ? s + 4 * n : s + 10 * n}};
    if (aligned(&x))
        x.blas.pointers = (void **)(void *)(s + n * per_score(in->type));
    for (size_t i = 0, run; i < in->n_sequences; i += run) {
        run = kvd_equal_lengths(in->offset, i, in->n_sequences);
        if (equal_back(&x, in->offset[i], in->offset[i + 1] - in->offset[i], run, err))
            return -1;
    }
    return 0;
}
