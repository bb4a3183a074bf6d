#include "model/pass/attention.h"

#include <assert.h>
#include <cblas.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/threads.h"
#include "model/pass/blocks.h"

/* Computes attention of one head for queries first .. first + rows - 1. q and out point to the
 * first of these queries, k and v to token 0. */
static void attend(size_t first, size_t rows, size_t window, size_t from, size_t d_qk, size_t d_v,
                   const float *q, size_t ldq, const float *k, size_t ldk, const float *v,
                   size_t ldv, kvd_scores score, float *scores, size_t lds, size_t width,
                   float *out, size_t ldo)
{
    const size_t keys = first + rows - from;
    k += from * ldk;
    v += from * ldv;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)rows, (int)keys, (int)d_qk, 1.0f, q,
                (int)ldq, k, (int)ldk, 0.0f, scores, (int)lds);
    for (size_t i = 0; i < rows; i++) {
        const size_t end = first + i + 1, start = window && end > window ? end - window : 0;
        kvd_softmax_row(scores + i * lds, start > from ? start - from : 0, end - from, width,
                        score);
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)rows, (int)d_v, (int)keys, 1.0f,
                scores, (int)lds, v, (int)ldv, 0.0f, out, (int)ldo);
}

void kvd_attend_rows(size_t first, size_t rows, size_t window, size_t d_qk, size_t d_v,
                     const float *q, size_t ldq, const float *k, size_t ldk, const float *v,
                     size_t ldv, kvd_scores score, float *scores, float *out, size_t ldo)
{
    assert(first + rows <= INT_MAX && ldq <= INT_MAX && ldk <= INT_MAX && ldv <= INT_MAX &&
           ldo <= INT_MAX);
    const size_t from = window && first + 1 > window ? first + 1 - window : 0,
                 keys = first + rows - from;
    attend(first, rows, window, from, d_qk, d_v, q, ldq, k, ldk, v, ldv, score, scores, keys, keys,
           out, ldo);
}

void kvd_attend_head(size_t n, size_t window, size_t d_qk, size_t d_v, const float *q, size_t ldq,
                     const float *k, size_t ldk, const float *v, size_t ldv, kvd_scores score,
                     float *scores, float *out, size_t ldo)
{
    assert(n <= INT_MAX && ldq <= INT_MAX && ldk <= INT_MAX && ldv <= INT_MAX && ldo <= INT_MAX);
    const int saved = kvd_blas_serial();
#pragma omp parallel for schedule(dynamic) if (n > KVD_ATTEND_ROWS)
    for (size_t first = 0; first < n; first += KVD_ATTEND_ROWS) {
        const size_t rows = n - first < KVD_ATTEND_ROWS ? n - first : KVD_ATTEND_ROWS;
        attend(first, rows, window, 0, d_qk, d_v, q + first * ldq, ldq, k, ldk, v, ldv, score,
               scores + first * n, n, n, out + first * ldo, ldo);
    }
    kvd_blas_restore(saved);
}

kvd_scores kvd_attention_scores(const kvd_attention_in *in, size_t head)
{
    kvd_scores score = kvd_config_scores(in->config);
    score.sink = in->sinks ? in->sinks + head : NULL;
    return score;
}

static int reserve(kvd_dense_attention *a, size_t n, kvd_err *err)
{
    if (n <= a->scratch_n)
        return 0;
    if (n > SIZE_MAX / sizeof *a->scratch)
        return kvd_fail(err, "attention scores of %zu elements overflow", n);
    free(a->scratch);
    a->scratch_n = 0;
    a->scratch = malloc(n * sizeof *a->scratch);
    if (!a->scratch)
        return kvd_no_memory(err, "attention scores", n * sizeof *a->scratch);
    a->scratch_n = n;
    return 0;
}

static int run_keeping_probabilities(kvd_dense_attention *a, const kvd_attention_in *in,
                                     size_t longest, float *out, kvd_err *err)
{
    const kvd_config *c = in->config;
    const size_t d = (size_t)c->d_head, group = (size_t)(c->n_heads / c->n_kv_heads);
    const size_t ldq = (size_t)c->n_heads * d, ldk = (size_t)c->n_kv_heads * d;
    if (longest > 0 && longest > SIZE_MAX / longest)
        return kvd_fail(err, "attention scores of a sequence of %zu overflow", longest);
    if (reserve(a, longest * longest, err))
        return -1;
    for (size_t s = 0; s < in->n_sequences; s++)
        for (int h = 0; h < c->n_heads; h++) {
            const size_t at = in->offset[s], n = in->offset[s + 1] - at;
            const size_t qh = (size_t)h * d, kh = (size_t)h / group * d;
            kvd_attend_head(n, in->window, d, d, in->q + at * ldq + qh, ldq, in->k + at * ldk + kh,
                            ldk, in->v + at * ldk + kh, ldk, kvd_attention_scores(in, (size_t)h),
                            a->scratch, out + at * ldq + qh, ldq);
            if (a->probabilities(a->ctx, in, s, h, a->scratch, n, err))
                return -1;
        }
    return 0;
}

static int dense_run(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_dense_attention *a = (kvd_dense_attention *)self;
    const kvd_config *c = in->config;
    const size_t d = (size_t)c->d_head, heads = (size_t)c->n_heads,
                 group = heads / (size_t)c->n_kv_heads;
    const size_t ldq = heads * d, ldk = (size_t)c->n_kv_heads * d;

    /* Sequences must be whole texts, because dense attention keeps no keys of earlier batches. */
    assert(!in->start);
    size_t longest = 0;
    for (size_t s = 0; s < in->n_sequences; s++)
        if (in->offset[s + 1] - in->offset[s] > longest)
            longest = in->offset[s + 1] - in->offset[s];
    if (a->probabilities)
        return run_keeping_probabilities(a, in, longest, out, err);

    const size_t each = KVD_ATTEND_ROWS * longest;
    if (reserve(a, each * kvd_thread_count(), err))
        return -1;
    const int saved = kvd_blas_serial();
#pragma omp parallel
    {
        float *scores = a->scratch + each * kvd_thread_index();
        for (size_t s = 0; s < in->n_sequences; s++) {
            const size_t at = in->offset[s], n = in->offset[s + 1] - at;
            const size_t blocks = (n + KVD_ATTEND_ROWS - 1) / KVD_ATTEND_ROWS;
#pragma omp for schedule(dynamic) collapse(2) nowait
            for (size_t b = 0; b < blocks; b++)
                for (size_t h = 0; h < heads; h++) {
                    const size_t first = (blocks - 1 - b) * KVD_ATTEND_ROWS;
                    const size_t rows = n - first < KVD_ATTEND_ROWS ? n - first : KVD_ATTEND_ROWS;
                    const size_t row = (at + first) * ldq + h * d, kv = at * ldk + h / group * d;
                    kvd_attend_rows(first, rows, in->window, d, d, in->q + row, ldq, in->k + kv,
                                    ldk, in->v + kv, ldk, kvd_attention_scores(in, h), scores,
                                    out + row, ldq);
                }
        }
    }
    kvd_blas_restore(saved);
    return 0;
}

void kvd_dense_attention_init(kvd_dense_attention *a)
{
    *a = (kvd_dense_attention){.hook = {.run = dense_run}};
}

void kvd_dense_attention_release(kvd_dense_attention *a)
{
    free(a->scratch);
    a->scratch = NULL;
    a->scratch_n = 0;
}

static int capture_run(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_capture *t = (kvd_capture *)self;
    if (t->record && t->record(t->ctx, in, err))
        return -1;
    if (t->inner->run(t->inner, in, out, err))
        return -1;
    return t->output ? t->output(t->ctx, in, out, err) : 0;
}

void kvd_capture_init(kvd_capture *t, kvd_attention *inner)
{
    *t = (kvd_capture){.hook = {.run = capture_run,
                                .wants_pre = inner->wants_pre,
                                .wants_input = inner->wants_input},
                       .inner = inner};
}
