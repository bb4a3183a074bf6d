#include "model/pass/cuda/attention.h"

#include <limits.h>

#include "model/pass/cuda/attention_units.h"
#include "model/pass/cuda/blocks.h"

static const char what[] = "attention";

/* indices of the matrices of one query head of one sequence */
enum { K, Q, SCORES, V, PROB, OUT };

/* Returns how many bytes of scratch memory an attention score takes: 4, and in bf16 2 more for its
 * probability. */
static size_t per_score(kvd_dtype type)
{
    return type == KVD_F32 ? 4 : 6;
}

size_t kvd_gpu_attend_scratch(kvd_dtype type, size_t max_len, int n_heads)
{
    return kvd_score_room(per_score(type), max_len, n_heads) * per_score(type) +
           sizeof(void *) * KVD_UNIT_MATRICES * KVD_SCORE_UNITS;
}

typedef struct {
    const kvd_gpu_attention_in *in;
    kvd_unit_blas blas;
    size_t d, bytes;
    const char *q, *k, *v;
    char *out;
    size_t ldq, ldk, ldv, ldo;
    size_t n_scores;
    float *scores;
    char *prob;
} call;

/* Computes attention for a block of queries and n heads, in cuBLAS's column-major order: scores^T =
 * K Q^T, out^T = V^T P^T. */
static int attend_block(const call *x, const kvd_score_block *b, const kvd_units *units, size_t n,
                        kvd_err *err)
{
    const cublasOperation_t N = CUBLAS_OP_N, T = CUBLAS_OP_T;
    const kvd_dtype type = x->blas.type;
    const size_t rows = b->rows, keys = b->keys, d = x->d;
    const kvd_unit_product qk = {T,      N,      keys,   rows,  d,       K, Q,
                                 SCORES, x->ldk, x->ldq, b->ld, KVD_F32, 0},
                           pv = {N, N, d, rows, keys, V, PROB, OUT, x->ldv, b->ld, x->ldo, type, 0};
    const cudaStream_t stream = x->in->stream;
    const kvd_scores model = kvd_config_scores(x->in->config);
    const kvd_gpu_scores scores = {.scale = model.scale,
                                   .softcap = model.softcap,
                                   .sinks = x->in->sinks,
                                   .first = units->first,
                                   .n_heads = units->n_heads};
    if (x->blas.pointers &&
        kvd_cuda_check(kvd_unit_pointers(units, n, x->blas.pointers, stream), what, err))
        return -1;
    return kvd_status(
        kvd_unit_multiply(&x->blas, &qk, units, n, err) ||
        kvd_cuda_check(kvd_gpu_softmax(type, x->scores, n, rows, b->ld, b->first - b->from, keys,
                                       x->in->window, &scores, x->prob, stream),
                       what, err) ||
        kvd_unit_multiply(&x->blas, &pv, units, n, err));
}

/* Returns the addresses of Q, K, V, scores and output for sequences of `len` tokens, the first of
 * which begins at token `at`. */
static kvd_units units_of(const call *x, const kvd_score_block *b, size_t at, size_t len)
{
    const size_t e = x->bytes, head = x->d * e, n_heads = (size_t)x->in->share->n_heads,
                 group = n_heads / (size_t)x->in->share->n_kv_heads, query = at + b->first,
                 key = at + b->from, scores = b->rows * b->ld;
    const size_t ldq = x->ldq * e, ldk = x->ldk * e, ldv = x->ldv * e, ldo = x->ldo * e;
    return (kvd_units){.at = {[K] = {(char *)x->k + key * ldk, len * ldk, head, group},
                              [Q] = {(char *)x->q + query * ldq, len * ldq, head, 1},
                              [SCORES] = {(char *)x->scores, 0, scores * sizeof(float), 0},
                              [V] = {(char *)x->v + key * ldv, len * ldv, head, group},
                              [PROB] = {x->prob, 0, scores * e, 0},
                              [OUT] = {x->out + query * ldo, len * ldo, head, 1}},
                       .n_heads = n_heads};
}

static int attend_equal(const call *x, size_t at, size_t len, size_t n, kvd_err *err)
{
    const size_t n_units = n * (size_t)x->in->share->n_heads;
    kvd_score_block b = {0};
    while (kvd_score_block_next(&b, len, x->in->window, x->n_scores)) {
        const size_t most = kvd_score_units(&b, x->n_scores);
        kvd_units units = units_of(x, &b, at, len);
        for (; units.first < n_units; units.first += most)
            if (attend_block(x, &b, &units,
                             n_units - units.first < most ? n_units - units.first : most, err))
                return -1;
    }
    return 0;
}

static bool aligned(const call *x)
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
              .blas = {.lib = in->lib, .blas = in->blas, .type = type, .what = what},
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
              .prob = (char *)scratch + (type == KVD_F32 ? 0 : n_scores * sizeof(float))};
    if (aligned(&x))
        x.blas.pointers = (void **)(void *)((char *)scratch + n_scores * per_score(type));
    for (size_t s = 0, n; s < in->n_sequences; s += n) {
        n = kvd_equal_lengths(in->offset, s, in->n_sequences);
        if (attend_equal(&x, in->offset[s], in->offset[s + 1] - in->offset[s], n, err))
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
