/* Computes linear transforms of K and V on the GPU, and their inverse. Compresses prompts for
 * method kvtc. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/threads.h"
#include "methods/bits/bits.h"
#include "methods/bits/cuda/streams.h"

static const char what[] = "codes of transforms";

enum { START, CODED, ROW, FIRST_Q, MOVED, SLOT, LISTS };

typedef struct {
    kvd_transform of;
    kvd_kvtc_packed_group *group; /* device */
    int n_groups;
    size_t token_bytes, gap;
} coder_side;

/* Prompts of one iteration, which a thread compresses while the next iteration runs. */
typedef struct {
    const struct kvd_kvtc_prompt_coder *of;
    size_t n, rows, n_q8, most;
    int32_t *list;    /* pinned [LISTS][max_slices] */
    uint8_t **packed; /* [n_layers][KVD_N_SIDES] pinned copies of the packed codes */
    double *bits;     /* [max_slices][n_layers][KVD_N_SIDES] */
    pthread_t thread;
    bool running;
    int status;
    kvd_err err; /* filled if status is not 0 */
} prompt_batch;

enum { BATCHES = 2 /* the GPU fills one, the CPU compresses the other */ };

struct kvd_kvtc_prompt_coder {
    const kvd_gpu_method *m;
    size_t wide, ld, sink, window, block;
    uint16_t *x; /* borrowed, rows x_ld apart, `before` unused elements first */
    size_t x_ld, before;
    coder_side *side; /* [n_layers][KVD_N_SIDES] */
    float *y;
    uint16_t *decoded; /* [max_tokens][ld] */
    uint8_t *packed;
    int32_t *lists;                    /* device copy of prompt_batch.list */
    prompt_batch batch[BATCHES], *now; /* now: batch of the current iteration */
    size_t threads;
    double *bits; /* [max_slices] bits of the prompt in each slot */
    kvd_device_memory memory;
};

static size_t sides_of(const kvd_kvtc_prompt_coder *k)
{
    return (size_t)k->m->cache->config->n_layers * KVD_N_SIDES;
}

static int32_t *list_of(const kvd_kvtc_prompt_coder *k, const prompt_batch *b, size_t which)
{
    return b->list + which * k->m->cache->batch->max_slices;
}

size_t kvd_kvtc_prompt_coder_ready(const kvd_kvtc_prompt_coder *k, size_t n)
{
    const size_t ready = n > k->window ? (n - k->window) / k->block * k->block : 0;
    return ready > k->sink ? ready : 0;
}

void kvd_kvtc_prompt_coder_free(kvd_kvtc_prompt_coder *k)
{
    if (!k)
        return;
    for (prompt_batch *b = k->batch; b < k->batch + BATCHES; b++)
        if (b->running)
            (void)pthread_join(b->thread, NULL);
    kvd_device_release(&k->memory);
    free(k->side);
    free(k);
}

/* Splits matrix x [wide][wide] into a sum of two bf16 matrices. rest [wide][wide] is scratch
 * memory. */
static void split(const float *x, size_t wide, uint16_t *high, uint16_t *low, float *rest)
{
#pragma omp parallel for schedule(static)
    for (size_t row = 0; row < wide; row++) {
        const size_t at = row * wide;
        kvd_from_f32(KVD_BF16, x + at, high + at, wide);
        kvd_to_f32(KVD_BF16, high + at, rest + at, wide);
        for (size_t i = at; i < at + wide; i++)
            rest[i] = x[i] - rest[i];
        kvd_from_f32(KVD_BF16, rest + at, low + at, wide);
    }
}

int kvd_transform_tables_new(kvd_transform_tables *t, size_t wide, kvd_err *err)
{
    const size_t square = wide * wide;
    *t = (kvd_transform_tables){wide, malloc(2 * square * sizeof *t->to),
                                calloc((wide + KVD_TRANSFORM_PAD) * wide, sizeof *t->from),
                                malloc(wide * sizeof *t->bias), malloc(square * sizeof *t->rest)};
    return t->to && t->from && t->bias && t->rest
               ? 0
               : kvd_no_memory(err, what, 2 * square * sizeof *t->to);
}

void kvd_transform_tables_free(kvd_transform_tables *t)
{
    free(t->to);
    free(t->from);
    free(t->bias);
    free(t->rest);
}

enum { COLUMNS = 16 /* float32 numbers of a cache line, which are read together */ };

int kvd_transform_make(kvd_transform *s, const float *to, const float *from, const float *mean,
                       const kvd_transform_tables *t, kvd_device_memory *memory, kvd_err *err)
{
    const size_t wide = t->wide, square = wide * wide;
    split(to, wide, t->to, t->to + square, t->rest);
#pragma omp parallel for schedule(static)
    for (size_t first = 0; first < wide; first += COLUMNS) {
        const size_t end = kvd_smaller(first + COLUMNS, wide);
        double sum[COLUMNS] = {0};
        for (size_t i = 0; i < wide; i++)
            for (size_t j = first; j < end; j++) {
                sum[j - first] += (double)mean[i] * (double)to[i * wide + j];
                if (!from)
                    t->from[j * wide + i] = t->to[i * wide + j];
            }
        for (size_t j = first; j < end; j++)
            t->bias[j] = (float)sum[j - first];
    }
    if (from)
        kvd_from_f32(KVD_BF16, from, t->from, square);
    kvd_from_f32(KVD_BF16, mean, t->from + square, wide);
    const size_t n_to = 2 * square * sizeof *t->to,
                 n_from = (wide + KVD_TRANSFORM_PAD) * wide * sizeof *t->from,
                 n_bias = wide * sizeof *t->bias;
    return kvd_status(!(s->to = kvd_device_new(memory, n_to, what, err)) ||
                      kvd_device_put(s->to, t->to, n_to, what, err) ||
                      !(s->from = kvd_device_new(memory, n_from, what, err)) ||
                      kvd_device_put(s->from, t->from, n_from, what, err) ||
                      !(s->bias = kvd_device_new(memory, n_bias, what, err)) ||
                      kvd_device_put(s->bias, t->bias, n_bias, what, err));
}

static int multiply(const kvd_gpu_worker *w, size_t rows, size_t columns, size_t sum,
                    const uint16_t *a, const uint16_t *b, size_t ld_b, float beta, void *to,
                    cudaDataType type, size_t ld, kvd_err *err)
{
    const float one = 1;
    return kvd_cublas_check(
        w->lib->cublasGemmEx(w->blas, CUBLAS_OP_N, CUBLAS_OP_N, (int)rows, (int)columns, (int)sum,
                             &one, a, CUDA_R_16BF, (int)rows, b, CUDA_R_16BF, (int)ld_b, &beta, to,
                             type, (int)ld, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        what, err);
}

int kvd_transform_apply(const kvd_gpu_worker *w, const kvd_transform *s, size_t wide, size_t n,
                        const uint16_t *x, size_t ld, float *y, kvd_err *err)
{
    return kvd_status(
        multiply(w, wide, n, wide, s->to, x, ld, 0, y, CUDA_R_32F, wide, err) ||
        multiply(w, wide, n, wide, s->to + wide * wide, x, ld, 1, y, CUDA_R_32F, wide, err));
}

int kvd_transform_invert(const kvd_gpu_worker *w, const kvd_transform *s, size_t wide, size_t n,
                         const uint16_t *decoded, uint16_t *x, size_t ld, kvd_err *err)
{
    return multiply(w, wide, n, wide + KVD_TRANSFORM_PAD, s->from, decoded,
                    wide + KVD_TRANSFORM_PAD, 0, x, CUDA_R_16BF, ld, err);
}

static int copy_groups(kvd_kvtc_prompt_coder *k, coder_side *s, int layer, kvd_side side,
                       kvd_err *err)
{
    const kvd_kvtc_group *from;
    const size_t n = kvd_kvtc_groups(k->m->plan->bits_self, layer, side, &from),
                 bytes = n * sizeof *s->group;
    kvd_kvtc_packed_group *const group = malloc(bytes);
    if (!group)
        return kvd_no_memory(err, what, bytes);
    s->n_groups = (int)n;
    s->gap = (n + 15) / 16 * 16;
    for (size_t g = 0; g < n; g++) {
        group[g] = (kvd_kvtc_packed_group){from[g].first, from[g].size, from[g].bits,
                                           (uint32_t)s->token_bytes};
        s->token_bytes += (size_t)from[g].size * from[g].bits / 8;
    }
    const int status = !(s->group = kvd_device_new(&k->memory, bytes, what, err)) ||
                       kvd_device_put(s->group, group, bytes, what, err);
    free(group);
    return status ? -1 : 0;
}

static size_t packed_room(const kvd_kvtc_prompt_coder *k, const coder_side *s)
{
    const kvd_step_batch *const b = k->m->cache->batch;
    return b->max_tokens * s->token_bytes + b->max_slices * s->gap + 1;
}

static int copy_tables(kvd_kvtc_prompt_coder *k, kvd_err *err)
{
    kvd_transform_tables t;
    size_t most = 0;
    int status = kvd_transform_tables_new(&t, k->wide, err);
    for (int i = 0; !status && i < k->m->cache->config->n_layers * KVD_N_SIDES; i++) {
        coder_side *const s = &k->side[i];
        const int layer = i / KVD_N_SIDES;
        const kvd_side side = (kvd_side)(i % KVD_N_SIDES);
        const float *mean;
        const float *const basis = kvd_kvtc_basis(k->m->plan->bits_self, layer, side, &mean);
        status = kvd_transform_make(&s->of, basis, NULL, mean, &t, &k->memory, err) ||
                 copy_groups(k, s, layer, side, err);
        most = !status && packed_room(k, s) > most ? packed_room(k, s) : most;
    }
    status = status || !(k->packed = kvd_device_new(&k->memory, most, what, err));
    kvd_transform_tables_free(&t);
    return kvd_status(status);
}

static int make_batch(kvd_kvtc_prompt_coder *k, prompt_batch *b, kvd_err *err)
{
    const size_t sides = sides_of(k), slices = k->m->cache->batch->max_slices;
    kvd_device_memory *const d = &k->memory;
    b->of = k;
    b->list = kvd_device_pinned(d, LISTS * slices * sizeof *b->list, what, err);
    b->packed = kvd_device_host(d, sides * sizeof *b->packed, what, err);
    b->bits = kvd_device_host(d, slices * sides * sizeof *b->bits, what, err);
    for (size_t i = 0; !d->status && i < sides; i++)
        b->packed[i] = kvd_device_pinned(d, packed_room(k, &k->side[i]), what, err);
    return d->status;
}

static int make(kvd_kvtc_prompt_coder *k, kvd_err *err)
{
    const kvd_paged_cache *const c = k->m->cache;
    const size_t tokens = c->batch->max_tokens, slices = c->batch->max_slices;
    kvd_device_memory *const d = &k->memory;
    if (!(k->side = calloc(sides_of(k), sizeof *k->side)))
        return kvd_no_memory(err, what, sides_of(k) * sizeof *k->side);
    k->y = kvd_device_new(d, tokens * k->wide * sizeof *k->y, what, err);
    k->decoded = kvd_device_filled(d, tokens * k->ld * sizeof *k->decoded, 0, what, err);
    k->lists = kvd_device_new(d, LISTS * slices * sizeof *k->lists, what, err);
    k->bits = kvd_device_host(d, slices * sizeof *k->bits, what, err);
    int status = d->status || copy_tables(k, err);
    for (size_t i = 0; !status && i < BATCHES; i++)
        status = make_batch(k, &k->batch[i], err);
    return status;
}

kvd_kvtc_prompt_coder *kvd_kvtc_prompt_coder_new(const kvd_gpu_method *m, uint16_t *x, size_t ld,
                                                 size_t before, kvd_err *err)
{
    const kvd_config *const c = m->cache->config;
    kvd_kvtc_prompt_coder *const k = calloc(1, sizeof *k);
    if (!k) {
        (void)kvd_no_memory(err, what, sizeof *k);
        return NULL;
    }
    *k = (kvd_kvtc_prompt_coder){.m = m,
                                 .wide = (size_t)c->n_kv_heads * (size_t)c->d_head,
                                 .sink = (size_t)kvd_stream_value(m->plan, "sink"),
                                 .window = (size_t)kvd_stream_value(m->plan, "window"),
                                 .block = (size_t)kvd_stream_value(m->plan, "block"),
                                 .x = x,
                                 .x_ld = ld,
                                 .before = before,
                                 .now = k->batch,
                                 .threads = kvd_thread_count()};
    k->ld = k->wide + KVD_TRANSFORM_PAD;
    if (!make(k, err))
        return k;
    kvd_kvtc_prompt_coder_free(k);
    return NULL;
}

/* Waits for the thread that compresses a batch of prompts, and stores the compressed size of each
 * prompt in bits. */
static int join(kvd_kvtc_prompt_coder *k, prompt_batch *b, kvd_err *err)
{
    const size_t sides = sides_of(k);
    if (!b->running)
        return 0;
    b->running = false;
    (void)pthread_join(b->thread, NULL);
    if (b->status) {
        *err = b->err;
        return -1;
    }
    for (size_t i = 0; i < b->n; i++) {
        double sum = 0;
        for (size_t t = 0; t < sides; t++)
            sum += b->bits[i * sides + t];
        k->bits[list_of(k, b, SLOT)[i]] = sum;
    }
    return 0;
}

/* Copies to the GPU which tokens of each prompt are quantised. Short prompts have none. */
static int begin(kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_step_batch *const b = k->m->cache->batch;
    prompt_batch *const now = k->now = k->now == k->batch ? k->batch + 1 : k->batch;
    if (join(k, now, err))
        return -1;
    now->n = r->prompts;
    now->rows = now->n_q8 = now->most = 0;
    for (size_t i = 0; i < r->prompts; i++) {
        const size_t n = (size_t)b->host.q_len[r->steps + i],
                     coded = kvd_kvtc_prompt_coder_ready(k, n), octets = (coded + 7) / 8 * 8,
                     moved = coded && octets < n ? octets : n;
        list_of(k, now, START)[i] = b->host.start[r->steps + i];
        list_of(k, now, CODED)[i] = (int32_t)coded;
        list_of(k, now, ROW)[i] = (int32_t)now->rows;
        list_of(k, now, FIRST_Q)[i] = (int32_t)now->n_q8;
        list_of(k, now, MOVED)[i] = (int32_t)moved;
        list_of(k, now, SLOT)[i] = b->host.slot[r->steps + i];
        now->rows += moved;
        now->n_q8 += (moved + 7) / 8 * 8;
        now->most = coded > now->most ? coded : now->most;
    }
    return kvd_queue_put(k->lists, now->list, LISTS * b->max_slices * sizeof *now->list, r->stream,
                         what, err);
}

/* Reads K or V of prompts from x, quantises them, and writes the decoded vectors to k->x. */
static int code(const kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, int side,
                const uint16_t *x, kvd_err *err)
{
    const kvd_step_batch *const b = k->m->cache->batch;
    const kvd_gpu_worker *const w = k->m->cache->worker;
    const prompt_batch *const now = k->now;
    const int i_side = r->layer * KVD_N_SIDES + side;
    const coder_side *const s = &k->side[i_side];
    const size_t wide = k->wide, tokens = b->n_tokens - r->steps, each = b->max_slices;
    const kvd_kvtc_prompts p = {.n = (int32_t)now->n,
                                .n_groups = s->n_groups,
                                .wide = (int32_t)wide,
                                .n_sink = (int32_t)k->sink,
                                .start = k->lists + START * each,
                                .coded = k->lists + CODED * each,
                                .group = s->group,
                                .y = k->y,
                                .bias = s->of.bias,
                                .decoded = k->decoded,
                                .ld = k->ld,
                                .most = now->most,
                                .token_bytes = s->token_bytes,
                                .gap = s->gap,
                                .packed = k->packed};
    if (kvd_transform_apply(w, &s->of, wide, tokens, x, r->ld, k->y, err))
        return -1;
    if (kvd_cuda_check(kvd_kvtc_pack(&p, r->stream), what, err) ||
        kvd_queue_get(now->packed[i_side], k->packed, tokens * s->token_bytes + now->n * s->gap,
                      r->stream, what, err))
        return -1;
    for (size_t i = 0; i < now->n; i++) {
        const size_t start = (size_t)list_of(k, now, START)[i],
                     coded = (size_t)list_of(k, now, CODED)[i],
                     row = (size_t)list_of(k, now, ROW)[i];
        if (coded && kvd_transform_invert(w, &s->of, wide, coded, k->decoded + start * k->ld,
                                          k->x + row * k->x_ld + k->before + (size_t)side * wide,
                                          k->x_ld, err))
            return -1;
    }
    return 0;
}

/* Copies K and V of n tokens of prompt i, from token t on, unchanged to k->x. */
static int copy_rows(const kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, const uint16_t *x,
                     size_t i, size_t t, size_t n, kvd_err *err)
{
    const size_t row = (size_t)list_of(k, k->now, ROW)[i] + t,
                 from = (size_t)list_of(k, k->now, START)[i] + t;
    return n ? kvd_cuda_check(cudaMemcpy2DAsync(k->x + row * k->x_ld + k->before,
                                                k->x_ld * sizeof *x, x + from * r->ld,
                                                r->ld * sizeof *x, 2 * k->wide * sizeof *x, n,
                                                cudaMemcpyDeviceToDevice, r->stream),
                              what, err)
             : 0;
}

/* Copies K and V of tokens that are not quantised to k->x. These are the first and the newest
 * tokens of each prompt. */
static int copy_exact(const kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, const uint16_t *x,
                      kvd_err *err)
{
    for (size_t i = 0; i < k->now->n; i++) {
        const size_t coded = (size_t)list_of(k, k->now, CODED)[i],
                     moved = (size_t)list_of(k, k->now, MOVED)[i];
        if ((coded && copy_rows(k, r, x, i, 0, k->sink, err)) ||
            copy_rows(k, r, x, i, coded, moved - coded, err))
            return -1;
    }
    return 0;
}

int kvd_kvtc_prompt_coder_attended(kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_paged_cache *const c = k->m->cache;
    const size_t each = c->batch->max_slices;
    if (r->layer == 0 && begin(k, r, err))
        return -1;
    if (!k->now->most)
        return 0;
    const uint16_t *const x =
        (const uint16_t *)r->x + r->steps * r->ld + (size_t)(c->share->n_heads * c->config->d_head);
    const kvd_paged_rewrite w = {.x = k->x,
                                 .ld = k->x_ld,
                                 .start = k->lists + ROW * each,
                                 .q_len = k->lists + MOVED * each,
                                 .kv_len = k->lists + MOVED * each,
                                 .q_start = k->lists + FIRST_Q * each,
                                 .table = c->pages->device + r->steps * c->pages->max_pages,
                                 .n = (int32_t)k->now->n,
                                 .n_rows = (int32_t)k->now->rows,
                                 .n_q8 = (int32_t)k->now->n_q8};
    return code(k, r, KVD_KEYS, x, err) || code(k, r, KVD_VALUES, x + k->wide, err) ||
                   copy_exact(k, r, x, err) || kvd_paged_cache_rewrite(c, r->layer, &w, err)
               ? -1
               : 0;
}

/* Compresses the quantised tokens of a batch of prompts with DEFLATE. Runs as a thread. */
static void *compress(void *batch)
{
    prompt_batch *const b = batch;
    const kvd_kvtc_prompt_coder *const k = b->of;
    const size_t sides = sides_of(k), tasks = b->n * sides;
#pragma omp parallel for schedule(dynamic) num_threads((int)k->threads)
    for (size_t t = 0; t < tasks; t++) {
        const size_t i = t / sides, at = t % sides, start = (size_t)list_of(k, b, START)[i],
                     coded = (size_t)list_of(k, b, CODED)[i];
        const coder_side *const s = &k->side[at];
        kvd_err mine;
        b->bits[t] = coded ? 16.0 * (double)(k->sink * k->wide) : 0;
        if (!coded || !kvd_kvtc_count(k->m->plan->bits_self, (int)(at / KVD_N_SIDES),
                                      (kvd_side)(at % KVD_N_SIDES),
                                      b->packed[at] + start * s->token_bytes + i * s->gap,
                                      coded - k->sink, &b->bits[t], &mine))
            continue;
#pragma omp critical(kvd_kvtc_prompts)
        {
            b->err = mine;
            b->status = -1;
        }
    }
    return NULL;
}

int kvd_kvtc_prompt_coder_ended(kvd_kvtc_prompt_coder *k, kvd_err *err)
{
    prompt_batch *const b = k->now;
    const int failed = pthread_create(&b->thread, NULL, compress, b);
    b->running = !failed;
    return failed ? kvd_fail(err, "%s: no thread: %s", what, strerror(failed)) : 0;
}

int kvd_kvtc_prompt_coder_finish(kvd_kvtc_prompt_coder *k, kvd_err *err)
{
    prompt_batch *const earlier = k->now == k->batch ? k->batch + 1 : k->batch;
    return kvd_status(join(k, earlier, err) || join(k, k->now, err));
}

double kvd_kvtc_prompt_coder_bits(const kvd_kvtc_prompt_coder *k, size_t slot)
{
    return k->bits[slot];
}
