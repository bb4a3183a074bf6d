#include "kernels/cpu/attention_cpu.h"

#include <math.h>
#include <stdlib.h>

#include "common/threads.h"
#include "kernels/attention_ref.h"
#include "kernels/cpu/attention_cpu_task.h"

/* PIECES: number of parts per thread into which the work is split. MIN_BLOCKS, MAX_BLOCKS: limits
 * on the blocks of keys in a part. */
enum { PIECES = 4, MIN_BLOCKS = 4, MAX_BLOCKS = 64 };

kvd_cpu_isa kvd_cpu_isa_best(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq"))
        return KVD_CPU_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return KVD_CPU_AVX2;
#endif
    return KVD_CPU_PORTABLE;
}

const char *kvd_cpu_isa_name(kvd_cpu_isa isa)
{
    static const char *const names[] = {"auto", "portable", "avx2", "avx512"};
    return names[isa];
}

static const kvd_cpu_kernel *kernel_of(kvd_cpu_isa isa, kvd_err *err)
{
    const kvd_cpu_isa best = kvd_cpu_isa_best();
    if ((int)isa < KVD_CPU_AUTO || isa > KVD_CPU_AVX512) {
        kvd_fail(err, "instruction set %d is not known", (int)isa);
        return NULL;
    }
    if (isa == KVD_CPU_AUTO)
        isa = best;
    if (isa > best) {
        kvd_fail(err, "this processor has no %s", kvd_cpu_isa_name(isa));
        return NULL;
    }
#if defined(__x86_64__)
    if (isa == KVD_CPU_AVX512)
        return &kvd_cpu_kernel_avx512;
    if (isa == KVD_CPU_AVX2)
        return &kvd_cpu_kernel_avx2;
#endif
    return &kvd_cpu_kernel_portable;
}

/* Part of the work, done by one thread: attention of some query rows to some keys of a KV head. */
typedef struct {
    kvd_cpu_task task;
    double cost;
    size_t n_pieces; /* Number of pieces in the task, set in its first piece, otherwise 0. */
} piece;

typedef struct {
    const kvd_attn_heads *heads;
    const kvd_attn_batch *batch;
    kvd_attn_plain plain;
    const kvd_cpu_kernel *kernel;
    const float *q, *k, *v;
    float *out;
    size_t n_threads;
    piece *pieces;
    size_t n_pieces;
    const piece **order; /* [pieces] sorted by decreasing cost */
    float *partials, *scratch;
    size_t scratch_floats;
} plan;

static piece whole_task(const plan *x, int b, int g, size_t row, size_t q_first, size_t kv_first)
{
    const size_t group = (size_t)x->plain.group, q_len = (size_t)x->batch->q_len[b];
    const size_t d_qk = (size_t)x->heads->d_qk[g], d_v = (size_t)x->heads->d_v[g];
    const size_t h = (size_t)g * group, left = q_len * group - row;
    kvd_cpu_task t = {.q = x->q + x->plain.q_at[h] + q_first * d_qk,
                      .q_head = x->plain.n_q * d_qk,
                      .out_head = x->plain.n_q * d_v,
                      .k = x->k + x->plain.k_at[g] + kv_first * d_qk,
                      .v = x->v + x->plain.v_at[g] + kv_first * d_v,
                      .out = x->out + x->plain.o_at[h] + q_first * d_v,
                      .d_qk = d_qk,
                      .d_v = d_v,
                      .group = group,
                      .position = (size_t)x->batch->kv_len[b] - q_len,
                      .row = row,
                      .rows = left < x->kernel->max_rows ? left : x->kernel->max_rows};
    t.key_end = t.position + (row + t.rows - 1) / group + 1;
    const size_t unit = x->kernel->row_unit, padded = (t.rows + unit - 1) / unit * unit;
    return (piece){t, (double)padded * (double)t.key_end * (double)(d_qk + d_v), 1};
}

static size_t pieces_of(const plan *x, const piece *p, double wanted)
{
    const size_t least = MIN_BLOCKS * x->kernel->key_block,
                 most = (p->task.key_end + least - 1) / least;
    const size_t longest = MAX_BLOCKS * x->kernel->key_block;
    const size_t fewest =
        p->task.rows <= x->kernel->row_unit ? (p->task.key_end + longest - 1) / longest : 1;
    const double n = ceil(p->cost / wanted);
    const size_t wished = n < 2 ? 1 : n > (double)most ? most : (size_t)n;
    return wished > fewest ? wished : fewest;
}

/* Splits the attention of all KV heads into pieces of about `wanted` multiply-adds, each with a
 * range of keys. If `wanted` is 0, keys are not split. Returns the multiply-adds of all pieces. */
static double walk(plan *x, double wanted)
{
    double cost = 0;
    size_t q_first = 0, kv_first = 0;
    x->n_pieces = 0;
    for (int b = 0; b < x->batch->batch; b++) {
        const size_t rows = (size_t)x->batch->q_len[b] * (size_t)x->plain.group;
        for (int g = 0; g < x->heads->n_kv_heads; g++)
            for (size_t row = 0; row < rows; row += x->kernel->max_rows) {
                piece p = whole_task(x, b, g, row, q_first, kv_first);
                const size_t n = wanted > 0 ? pieces_of(x, &p, wanted) : 1, end = p.task.key_end;
                const size_t block = x->kernel->key_block, blocks = (end + block - 1) / block;
                cost += p.cost;
                p.cost /= (double)n;
                for (size_t i = 0; i < n; i++) {
                    p.n_pieces = i ? 0 : n;
                    p.task.key = blocks * i / n * block;
                    p.task.key_end = i + 1 < n ? blocks * (i + 1) / n * block : end;
                    if (x->pieces)
                        x->pieces[x->n_pieces] = p;
                    x->n_pieces++;
                }
            }
        q_first += (size_t)x->batch->q_len[b];
        kv_first += (size_t)x->batch->kv_len[b];
    }
    return cost;
}

static size_t partial_floats(const kvd_cpu_task *t)
{
    return t->rows * (2 + t->d_v);
}

static int by_cost(const void *a, const void *b)
{
    const piece *x = *(const piece *const *)a, *y = *(const piece *const *)b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? 1 : -1;
    return (x > y) - (x < y);
}

static int plan_partials(plan *x, kvd_err *err)
{
    size_t floats = 0;
    for (int fill = 0; fill < 2; fill++) {
        size_t at = 0;
        for (size_t i = 0; i < x->n_pieces; i++)
            for (size_t n = x->pieces[i].n_pieces, j = 0; n > 1 && j < n; j++) {
                kvd_cpu_task *t = &x->pieces[i + j].task;
                if (fill)
                    t->partial = x->partials + at;
                at += partial_floats(t);
            }
        if (!at)
            return 0;
        floats = at;
        if (!fill && !(x->partials = calloc(floats, sizeof *x->partials)))
            return kvd_no_memory(err, "partial results", floats * sizeof *x->partials);
    }
    return 0;
}

static int make_plan(plan *x, kvd_err *err)
{
    size_t widest_qk = 0, widest_v = 0;
    for (int g = 0; g < x->heads->n_kv_heads; g++) {
        const size_t d_qk = (size_t)x->heads->d_qk[g], d_v = (size_t)x->heads->d_v[g];
        widest_qk = d_qk > widest_qk ? d_qk : widest_qk;
        widest_v = d_v > widest_v ? d_v : widest_v;
    }
    x->n_threads = kvd_thread_count();
    const double cost = walk(x, 0),
                 wanted = x->n_threads > 1 ? cost / (double)(PIECES * x->n_threads) : cost;
    walk(x, wanted);
    x->pieces = calloc(x->n_pieces, sizeof *x->pieces);
    x->order = calloc(x->n_pieces, sizeof *x->order);
    if (!x->pieces || !x->order)
        return kvd_no_memory(err, "tasks", x->n_pieces * (sizeof *x->pieces + sizeof *x->order));
    walk(x, wanted);
    if (plan_partials(x, err))
        return -1;
    for (size_t i = 0; i < x->n_pieces; i++)
        x->order[i] = &x->pieces[i];
    qsort(x->order, x->n_pieces, sizeof *x->order, by_cost);
    x->scratch_floats = (x->kernel->scratch(widest_qk, widest_v) + 15) / 16 * 16;
    const size_t bytes = x->n_threads * x->scratch_floats * sizeof *x->scratch;
    x->scratch = aligned_alloc(64, bytes);
    return x->scratch ? 0 : kvd_no_memory(err, "panels of Q and O", bytes);
}

static void merge(const piece *p, size_t n)
{
    const kvd_cpu_task *t = &p->task;
    for (size_t r = 0; r < t->rows; r++) {
        const size_t row = t->row + r;
        float *out = t->out + row % t->group * t->out_head + row / t->group * t->d_v;
        float max = -INFINITY, sum = 0;
        for (size_t i = 0; i < n; i++)
            max = p[i].task.partial[r] > max ? p[i].task.partial[r] : max;
        for (size_t c = 0; c < t->d_v; c++)
            out[c] = 0;
        for (size_t i = 0; i < n; i++) {
            const float *part = p[i].task.partial, *o = part + 2 * t->rows + r * t->d_v;
            const float weight = part[r] > -INFINITY ? exp2f(part[r] - max) : 0;
            sum += weight * part[t->rows + r];
            for (size_t c = 0; c < t->d_v; c++)
                out[c] += weight * o[c];
        }
        for (size_t c = 0; c < t->d_v; c++)
            out[c] /= sum;
    }
}

int kvd_attention_cpu(const kvd_attn_heads *heads, const kvd_attn_batch *batch, kvd_cpu_isa isa,
                      const float *q, const float *k, const float *v, float *out, kvd_err *err)
{
    plan x = {.heads = heads, .batch = batch, .q = q, .k = k, .v = v, .out = out};
    int status = -1;
    if (heads->window)
        return kvd_fail(err, "the CPU kernels compute no sliding window, the heads have one of %d",
                        heads->window);
    if (kvd_attn_plain_make(heads, batch, &x.plain, err) || !(x.kernel = kernel_of(isa, err)))
        return -1;
    if (make_plan(&x, err))
        goto done;
    /* The scale includes log2(e), because softmax is computed with powers of 2. */
    const float scale = (float)(1.4426950408889634 / sqrt((double)heads->d_head));
#pragma omp parallel
    {
        float *scratch = x.scratch + kvd_thread_index() * x.scratch_floats;
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < x.n_pieces; i++)
            x.kernel->run(&x.order[i]->task, scale, scratch);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < x.n_pieces; i++)
            if (x.pieces[i].n_pieces > 1)
                merge(&x.pieces[i], x.pieces[i].n_pieces);
    }
    status = 0;
done:
    free(x.pieces);
    free(x.order);
    free(x.partials);
    free(x.scratch);
    return status;
}
