#include "collect/dump.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int kvd_dump_init(kvd_dump *d, kvd_activations *file, size_t max_tokens, kvd_err *err)
{
    size_t bytes = (size_t)file->model.n_heads * (size_t)file->model.d_head * kvd_dtype_bytes(file->dtype);
    *d = (kvd_dump){.file = file, .max_tokens = max_tokens};
    if (__builtin_mul_overflow(bytes, max_tokens, &bytes) || !(d->slab = malloc(bytes)))
        return kvd_no_memory(err, "a batch of the dump", bytes);
    return 0;
}

void kvd_dump_release(kvd_dump *d)
{
    free(d->slab);
    d->slab = NULL;
}

/* from [n][n_heads][width] -> slab [n_heads][n][width]; rows are taken in blocks so that a block of
 * all heads is read from memory once. */
static void turn(kvd_dtype t, const float *from, size_t n, size_t n_heads, size_t width, char *slab)
{
    enum { ROWS = 64 };
    const size_t bytes = kvd_dtype_bytes(t), n_blocks = (n + ROWS - 1) / ROWS;
#pragma omp parallel for schedule(static)
    for (size_t b = 0; b < n_blocks; b++) {
        const size_t end = n - b * ROWS < ROWS ? n : (b + 1) * ROWS;
        for (size_t h = 0; h < n_heads; h++)
            for (size_t i = b * ROWS; i < end; i++)
                kvd_from_f32(t, from + (i * n_heads + h) * width, slab + (h * n + i) * width * bytes, width);
    }
}

/* Says which value it was, by the float32 it came from. */
static int blame(const kvd_dump *d, kvd_x x, int layer, size_t head, size_t n_heads, const float *from,
                 size_t at, kvd_err *err)
{
    const size_t width = (size_t)d->file->model.d_head, row = at / width, dim = at % width;
    const double value = (double)from[(row * n_heads + head) * width + dim];
    if (!isfinite(value))
        return kvd_fail(err, "layer %d head %zu token %zu dim %zu: %s is not finite", layer, head,
                        d->first_token + row, dim, kvd_x_name[x]);
    return kvd_fail(err, "layer %d head %zu token %zu dim %zu: %s is %g, which overflows %s; use --dtype %s",
                    layer, head, d->first_token + row, dim, kvd_x_name[x], value,
                    kvd_dtype_name(d->file->dtype), d->file->dtype == KVD_F16 ? "bf16 or f32" : "f32");
}

static int record_one(kvd_dump *d, kvd_x x, const kvd_attention_in *in, const float *from, kvd_err *err)
{
    const kvd_activations *a = d->file;
    const size_t n = in->n_tokens, width = (size_t)a->model.d_head;
    const size_t n_heads = (size_t)kvd_activations_heads(a, x), slab = n * width * kvd_dtype_bytes(a->dtype);
    const double start = now();
    turn(a->dtype, from, n, n_heads, width, d->slab);
    for (size_t h = 0; h < n_heads; h++) {
        const size_t bad = kvd_first_nonfinite(a->dtype, d->slab + h * slab, n * width);
        if (bad < n * width)
            return blame(d, x, in->layer, h, n_heads, from, bad, err);
    }
    const double turned = now();
    d->convert_s += turned - start;
    for (size_t h = 0; h < n_heads; h++)
        if (kvd_activations_put_rows(d->file, x, in->layer - a->first_layer, (int)h, d->first_token, n,
                                     d->slab + h * slab, err))
            return -1;
    d->write_s += now() - turned;
    return 0;
}

int kvd_dump_record(kvd_dump *d, const kvd_attention_in *in, kvd_err *err)
{
    const kvd_activations *a = d->file;
    if (in->layer < a->first_layer || in->layer >= a->first_layer + a->n_layers)
        return 0;
    assert(in->n_tokens <= d->max_tokens);
    const float *from[KVD_N_X] = {in->q, in->k, in->v, in->q_pre, in->k_pre};
    for (int x = 0; x < KVD_N_X; x++)
        if ((a->has_pre || x < KVD_X_Q_PRE) && record_one(d, (kvd_x)x, in, from[x], err))
            return -1;
    return 0;
}
