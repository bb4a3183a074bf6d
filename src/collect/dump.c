#include "collect/dump.h"

#include <math.h>
#include <stdlib.h>

#include "common/clock.h"
#include "common/threads.h"

/* bytes that a thread handles at a time, which fit into the L2 cache */
enum { PIECE_BYTES = 1 << 19 };

int kvd_dump_init(kvd_dump *d, kvd_activations *file, kvd_err *err)
{
    const size_t row = (size_t)file->model.d_head * kvd_dtype_bytes(file->dtype);
    *d = (kvd_dump){.file = file, .n_threads = (int)kvd_thread_count()};
    d->piece = PIECE_BYTES / row ? PIECE_BYTES / row : 1;
    const size_t bytes = (size_t)d->n_threads * d->piece * row;
    if (!(d->slabs = malloc(bytes)))
        return kvd_no_memory(err, "a batch of the dump", bytes);
    return 0;
}

void kvd_dump_release(kvd_dump *d)
{
    free(d->slabs);
    d->slabs = NULL;
}

/* Converts head h of n tokens to type t and writes it to slab [n][width]. Returns the index of the
 * first element that is not finite, or n * width if there is none. */
static size_t transpose(kvd_dtype t, const float *from, size_t n_heads, size_t h, size_t width,
                        size_t first, size_t n, char *slab)
{
    /* number of tokens to convert at a time; a check for NaN then reads them from the L1 cache */
    enum { ROWS = 32 };
    const size_t bytes = width * kvd_dtype_bytes(t);
    for (size_t at = 0; at < n; at += ROWS) {
        const size_t m = n - at < ROWS ? n - at : ROWS;
        for (size_t i = at; i < at + m; i++)
            kvd_from_f32(t, from + ((first + i) * n_heads + h) * width, slab + i * bytes, width);
        const size_t bad = kvd_first_nonfinite(t, slab + at * bytes, m * width);
        if (bad < m * width)
            return at * width + bad;
    }
    return n * width;
}

static int blame(const kvd_dump *d, kvd_x x, int layer, size_t head, size_t n_heads,
                 const float *from, size_t at, kvd_err *err)
{
    const size_t width = (size_t)d->file->model.d_head, row = at / width, dim = at % width;
    const double value = (double)from[(row * n_heads + head) * width + dim];
    if (!isfinite(value))
        return kvd_fail(err, "layer %d head %zu token %zu dim %zu: %s is not finite", layer, head,
                        d->first_token + row, dim, kvd_x_name[x]);
    return kvd_fail(
        err, "layer %d head %zu token %zu dim %zu: %s is %g, which overflows %s; use --dtype %s",
        layer, head, d->first_token + row, dim, kvd_x_name[x], value,
        kvd_dtype_name(d->file->dtype), d->file->dtype == KVD_F16 ? "bf16 or f32" : "f32");
}

typedef struct {
    kvd_x x;
    int head;
    const float *from;
} job;

typedef struct {
    double transposed, written;
} times;

static int record_one(kvd_dump *d, const job *j, const kvd_attention_in *in, char *slab, times *t,
                      kvd_err *err)
{
    const kvd_activations *a = d->file;
    const size_t width = (size_t)a->model.d_head, n_heads = (size_t)kvd_activations_heads(a, j->x);
    for (size_t first = 0; first < in->n_tokens; first += d->piece) {
        const size_t n = in->n_tokens - first < d->piece ? in->n_tokens - first : d->piece;
        const double start = kvd_clock_s();
        const size_t bad =
            transpose(a->dtype, j->from, n_heads, (size_t)j->head, width, first, n, slab);
        if (bad < n * width)
            return blame(d, j->x, in->layer, (size_t)j->head, n_heads, j->from, first * width + bad,
                         err);
        const double transposed = kvd_clock_s();
        if (kvd_activations_put_rows(d->file, j->x, in->layer - a->first_layer, j->head,
                                     d->first_token + first, n, slab, err))
            return -1;
        t->transposed += transposed - start;
        t->written += kvd_clock_s() - transposed;
    }
    return 0;
}

int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err)
{
    const kvd_activations *a = d->file;
    if (in->layer < a->first_layer || in->layer >= a->first_layer + a->n_layers)
        return 0;
    const double start = kvd_clock_s();
    const float *from[KVD_N_X] = {in->q, in->k, in->v, in->q_pre, in->k_pre};
    int n_jobs = 0;
    job *jobs = malloc((size_t)(2 * a->model.n_heads + 3 * a->model.n_kv_heads) * sizeof *jobs);
    if (!jobs)
        return kvd_no_memory(err, "a batch of the dump", sizeof *jobs);
    for (int x = 0; x < (a->has_pre ? KVD_N_X : KVD_X_Q_PRE); x++)
        for (int h = 0; h < kvd_activations_heads(a, (kvd_x)x); h++)
            jobs[n_jobs++] = (job){(kvd_x)x, h, from[x]};
    /* smallest index of a failed job, so that the reported error does not depend on thread order */
    int failed = n_jobs;
    double transposed = 0, written = 0;
    const size_t slab = d->piece * (size_t)a->model.d_head * kvd_dtype_bytes(a->dtype);
#pragma omp parallel for num_threads(d->n_threads) schedule(dynamic) reduction(+ : transposed, written)
    for (int i = 0; i < n_jobs; i++) {
        kvd_err mine = {""};
        times t = {0};
        if (record_one(d, &jobs[i], in, d->slabs + kvd_thread_index() * slab, &t, &mine)) {
#pragma omp critical(kvd_dump_error)
            if (i < failed) {
                failed = i;
                *err = mine;
            }
        }
        transposed += t.transposed;
        written += t.written;
    }
    const double share =
        transposed + written > 0 ? (kvd_clock_s() - start) / (transposed + written) : 0;
    d->convert_s += transposed * share;
    d->write_s += written * share;
    free(jobs);
    return kvd_status(failed < n_jobs);
}
