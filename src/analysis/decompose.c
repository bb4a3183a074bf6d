/* Computes, for each head, singular values and right singular vectors of matrices such as K, or Q
 * stacked on K. */
#include "analysis/pairs.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "common/threads.h"

typedef struct {
    kvd_pair pair;
    int layer, h;
} task;

static int decompose_one(const kvd_moments *m, task t, bool before_rope, int first, kvd_spectrum *s,
                         kvd_err *err)
{
    const size_t d = (size_t)m->model.d_head;
    double *sigma = kvd_spectrum_sigma(s, t.pair, first + t.layer, t.h);
    double *R = kvd_spectrum_R(s, t.pair, first + t.layer, t.h);
    double *gram = malloc(2 * d * d * sizeof *gram);
    int status;
    if (!gram)
        return kvd_no_memory(err, "a Gram matrix", 2 * d * d * sizeof *gram);
    if (kvd_pair_balanced(t.pair)) {
        kvd_balanced_grams(m, t.pair, t.layer, t.h, gram, gram + d * d);
        status = kvd_balanced(gram, gram + d * d, d, sigma, R,
                              kvd_spectrum_right(s, t.pair, first + t.layer, t.h), err);
    } else {
        status = kvd_pair_gram(m, t.pair, s->pairing, t.layer, t.h, before_rope, gram, err) ||
                 kvd_gram_svd(gram, d, sigma, R, err);
    }
    free(gram);
    return status ? kvd_in(err, "pair '%s', layer %d, head %d", kvd_pair_name[t.pair],
                           s->first_layer + first + t.layer, t.h)
                  : 0;
}

int kvd_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS], bool before_rope,
                          int first, kvd_spectrum *s, kvd_err *err)
{
    size_t n = 0, room = 0;
    for (int p = 0; p < KVD_N_PAIRS; p++)
        if (wanted[p])
            room += (size_t)m->n_layers * (size_t)s->pair[p].n_h;
    if (room == 0)
        return 0;
    task *tasks = malloc(room * sizeof *tasks);
    if (!tasks)
        return kvd_no_memory(err, "the list of heads", room * sizeof *tasks);
    for (int l = 0; l < m->n_layers; l++)
        for (int p = 0; p < KVD_N_PAIRS; p++)
            for (int h = 0; wanted[p] && h < s->pair[p].n_h; h++)
                tasks[n++] = (task){(kvd_pair)p, l, h};
    assert(n == room);

    /* Small matrices do not need threads inside LAPACK. */
    const int blas_threads = kvd_blas_serial();
    size_t failed = n;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < n; i++) {
        kvd_err mine;
        if (decompose_one(m, tasks[i], before_rope, first, s, &mine)) {
#pragma omp critical(kvd_decompose_failed)
            /* Reports the error of the first matrix that fails, in whatever order the threads
             * run. */
            if (i < failed) {
                failed = i;
                *err = mine;
            }
        }
    }
    kvd_blas_restore(blas_threads);
    free(tasks);
    return kvd_status(failed < n);
}

typedef struct {
    kvd_tsqr *qr; /* streaming QR, or NULL if dgesdd decomposes `rows` */
    double *rows; /* rows for dgesdd, [room][d] */
    size_t n, room, d;
    double *block; /* one block of rows in float64, for `qr` */
    size_t block_rows;
} stack;

static int take_rows(void *ctx, const float *rows, size_t n, kvd_err *err)
{
    stack *s = ctx;
    double *to = s->rows ? s->rows + s->n * s->d : s->block;
    if (s->rows) {
        assert(n <= s->room - s->n);
    } else if (n > s->block_rows) {
        to = realloc(s->block, n * s->d * sizeof *to);
        if (!to)
            return kvd_no_memory(err, "a block of rows", n * s->d * sizeof *to);
        s->block = to;
        s->block_rows = n;
    }
    for (size_t i = 0; i < n * s->d; i++)
        to[i] = rows[i];
    s->n += n;
    return s->qr ? kvd_tsqr_add(s->qr, to, n, err) : 0;
}

static int one_head(const kvd_source *source, size_t n_sources, kvd_pair pair, bool tsqr,
                    bool before_rope, int layer, int h, kvd_spectrum *s, kvd_err *err)
{
    stack x = {.d = (size_t)s->model.d_head};
    double *sigma = kvd_spectrum_sigma(s, pair, layer, h), *R = kvd_spectrum_R(s, pair, layer, h);
    size_t tokens = 0, bytes;
    int status = -1;
    for (size_t i = 0; i < n_sources; i++)
        tokens += source[i].n_tokens;
    x.room = kvd_pair_rows(&s->model, pair, s->pairing, tokens);
    if (tsqr) {
        if (!(x.qr = kvd_tsqr_new(x.d, err)))
            return -1;
    } else {
        if (__builtin_mul_overflow(x.room, x.d * sizeof(double), &bytes))
            return kvd_fail(err, "%zu rows are too many for svd: use tsqr or gram", x.room);
        if (!(x.rows = malloc(bytes)))
            return kvd_no_memory(err, "the rows of a head (tsqr and gram need none)", bytes);
    }
    for (size_t i = 0; i < n_sources; i++)
        if (kvd_pair_stack(&source[i], pair, s->pairing, layer, h, before_rope, take_rows, &x, err))
            goto done;
    if (kvd_pair_stack_weights(source[0].dump, pair, s->pairing, layer, h, take_rows, &x, err))
        goto done;
    assert(x.n <= x.room);
    status =
        tsqr ? kvd_tsqr_svd(x.qr, sigma, R, err) : kvd_svd_right(x.rows, x.n, x.d, sigma, R, err);
done:
    kvd_tsqr_free(x.qr);
    free(x.rows);
    free(x.block);
    return status;
}

int kvd_decompose_rows(const kvd_source *source, size_t n_sources, kvd_pair pair, bool tsqr,
                       bool before_rope, int layer, kvd_spectrum *s, kvd_err *err)
{
    assert(!kvd_pair_balanced(pair) && n_sources > 0);
    for (int h = 0; h < s->pair[pair].n_h; h++)
        if (one_head(source, n_sources, pair, tsqr, before_rope, layer, h, s, err))
            return kvd_in(err, "pair '%s', layer %d, head %d", kvd_pair_name[pair],
                          s->first_layer + layer, h);
    return 0;
}

int kvd_decompose_blurred(const kvd_source *source, size_t n_sources, kvd_pair pair,
                          bool before_rope, int layer, kvd_spectrum *s, kvd_err *err)
{
    assert(!kvd_pair_balanced(pair) && n_sources > 0);
    const size_t d = (size_t)s->model.d_head;
    for (int h = 0; h < s->pair[pair].n_h; h++) {
        const double *sigma = kvd_spectrum_sigma(s, pair, layer, h);
        if (sigma[0] <= 0 || sigma[d - 1] >= KVD_GRAM_LIMIT * sigma[0])
            continue;
        if (one_head(source, n_sources, pair, true, before_rope, layer, h, s, err))
            return kvd_in(err, "pair '%s', layer %d, head %d", kvd_pair_name[pair],
                          s->first_layer + layer, h);
        s->pair[pair].by_tsqr++;
    }
    return 0;
}
