/*
 * Prompts of method kvtc with DEFLATE, for text generation on a GPU (kvd_kvtc_prompt_coder). Rows x
 * of K before RoPE and of V become components y = (x - mean) basis, codes of groups, and decoded
 * rows mean + y basis^T.
 */
#include <stdlib.h>

#include "common/half.h"
#include "methods/bits/bits.h"
#include "methods/bits/cuda/streams.h"

static const char what[] = "codes of prompts";

enum { LISTS = 4 /* start in y, tokens that are coded, first row in x and first row of Q */ };

/* K or V of one layer; device memory. */
typedef struct {
    /* basis as a sum of two bf16 matrices [2][wide][wide], and rows of basis^T and mean [ld][wide] */
    uint16_t *to, *from;
    float *bias; /* mean basis */
    kvd_kvtc_packed_group *group;
    int n_groups;
    size_t token_bytes, gap;
    uint8_t *packed; /* pinned copy of the packed codes */
} coder_side;

struct kvd_kvtc_prompt_coder {
    const kvd_gpu_method *m;
    size_t wide, ld, sink, window, block;
    uint16_t *x; /* borrowed, rows x_ld apart, `before` unused elements first */
    size_t x_ld, before;
    coder_side *side; /* [n_layers][KVD_N_SIDES] */
    float *y;
    uint16_t *decoded; /* [max_tokens][ld] */
    uint8_t *packed;
    int32_t *list, *lists; /* pinned and device [LISTS + 1][max_slices], the last: rows of x */
    size_t n, rows, n_q8, most;
    kvd_device_memory memory;
};

size_t kvd_kvtc_prompt_coder_ready(const kvd_kvtc_prompt_coder *k, size_t n)
{
    const size_t ready = n > k->window ? (n - k->window) / k->block * k->block : 0;
    return ready > k->sink ? ready : 0;
}

void kvd_kvtc_prompt_coder_free(kvd_kvtc_prompt_coder *k)
{
    if (!k)
        return;
    for (int i = 0; k->side && i < k->m->cache->config->n_layers * KVD_N_SIDES; i++)
        (void)cudaFreeHost(k->side[i].packed);
    (void)cudaFreeHost(k->list);
    kvd_device_release(&k->memory);
    free(k->side);
    free(k);
}

/* Writes x [n] as a sum of bf16 numbers. rest [n]: scratch. */
static void split(const float *x, size_t n, uint16_t *high, uint16_t *low, float *rest)
{
    kvd_from_f32(KVD_BF16, x, high, n);
    kvd_to_f32(KVD_BF16, high, rest, n);
    for (size_t i = 0; i < n; i++)
        rest[i] = x[i] - rest[i];
    kvd_from_f32(KVD_BF16, rest, low, n);
}

/* Host copies of coder_side's arrays. */
typedef struct {
    uint16_t *to, *from;
    float *bias, *rest;
} host_tables;

static int copy_matrices(kvd_kvtc_prompt_coder *k, coder_side *s, const float *basis,
                         const float *mean, const host_tables *t, kvd_err *err)
{
    const size_t wide = k->wide, square = wide * wide;
    split(basis, square, t->to, t->to + square, t->rest);
    for (size_t j = 0; j < wide; j++) {
        double sum = 0;
        for (size_t i = 0; i < wide; i++)
            sum += (double)mean[i] * (double)basis[i * wide + j];
        t->bias[j] = (float)sum;
        for (size_t i = 0; i < wide; i++)
            t->from[j * wide + i] = t->to[i * wide + j];
    }
    kvd_from_f32(KVD_BF16, mean, t->from + square, wide);
    const size_t to = 2 * square * sizeof *t->to, from = k->ld * wide * sizeof *t->from,
                 bias = wide * sizeof *t->bias;
    return (s->to = kvd_device_new(&k->memory, to, what, err)) &&
                   !kvd_device_put(s->to, t->to, to, what, err) &&
                   (s->from = kvd_device_new(&k->memory, from, what, err)) &&
                   !kvd_device_put(s->from, t->from, from, what, err) &&
                   (s->bias = kvd_device_new(&k->memory, bias, what, err)) &&
                   !kvd_device_put(s->bias, t->bias, bias, what, err)
               ? 0
               : -1;
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
    return b->max_tokens * s->token_bytes + b->max_slices * s->gap;
}

static int copy_tables(kvd_kvtc_prompt_coder *k, kvd_err *err)
{
    const size_t wide = k->wide, square = wide * wide;
    const host_tables t = {malloc(2 * square * sizeof *t.to), calloc(k->ld * wide, sizeof *t.from),
                           malloc(wide * sizeof *t.bias), malloc(square * sizeof *t.rest)};
    size_t most = 0;
    int status = t.to && t.from && t.bias && t.rest
                     ? 0
                     : kvd_no_memory(err, what, 2 * square * sizeof *t.to);
    for (int i = 0; !status && i < k->m->cache->config->n_layers * KVD_N_SIDES; i++) {
        coder_side *const s = &k->side[i];
        const int layer = i / KVD_N_SIDES;
        const kvd_side side = (kvd_side)(i % KVD_N_SIDES);
        const float *mean;
        const float *const basis = kvd_kvtc_basis(k->m->plan->bits_self, layer, side, &mean);
        status = copy_matrices(k, s, basis, mean, &t, err) || copy_groups(k, s, layer, side, err) ||
                 !(s->packed = kvd_pinned_new(packed_room(k, s) + 1, what, err));
        most = !status && packed_room(k, s) > most ? packed_room(k, s) : most;
    }
    status = status || !(k->packed = kvd_device_new(&k->memory, most + 1, what, err));
    free(t.to);
    free(t.from);
    free(t.bias);
    free(t.rest);
    return status ? -1 : 0;
}

static int make(kvd_kvtc_prompt_coder *k, kvd_err *err)
{
    const kvd_paged_cache *const c = k->m->cache;
    const size_t tokens = c->batch->max_tokens,
                 lists = (LISTS + 1) * c->batch->max_slices * sizeof *k->list,
                 decoded = tokens * k->ld * sizeof *k->decoded;
    if (!(k->side = calloc((size_t)c->config->n_layers * KVD_N_SIDES, sizeof *k->side)))
        return kvd_no_memory(err, what, (size_t)c->config->n_layers * sizeof *k->side);
    return (k->y = kvd_device_new(&k->memory, tokens * k->wide * sizeof *k->y, what, err)) &&
                   (k->decoded = kvd_device_new(&k->memory, decoded, what, err)) &&
                   !kvd_device_zero(k->decoded, decoded, what, err) &&
                   (k->list = kvd_pinned_new(lists, what, err)) &&
                   (k->lists = kvd_device_new(&k->memory, lists, what, err))
               ? copy_tables(k, err)
               : -1;
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
                                 .before = before};
    k->ld = k->wide + 8;
    if (!make(k, err))
        return k;
    kvd_kvtc_prompt_coder_free(k);
    return NULL;
}

/*
 * Sets and uploads the lists of an iteration's prompts. kvd_append clears rows up to a multiple of
 * 8, so these are written too, and prompts without codes are copied whole.
 */
static int begin(kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_step_batch *const b = k->m->cache->batch;
    const size_t each = b->max_slices;
    k->n = r->prompts;
    k->rows = k->n_q8 = k->most = 0;
    for (size_t i = 0; i < r->prompts; i++) {
        const size_t n = (size_t)b->host.q_len[r->steps + i],
                     coded = kvd_kvtc_prompt_coder_ready(k, n), octets = (coded + 7) / 8 * 8,
                     moved = coded && octets < n ? octets : n;
        k->list[i] = b->host.start[r->steps + i];
        k->list[each + i] = (int32_t)coded;
        k->list[2 * each + i] = (int32_t)k->rows;
        k->list[3 * each + i] = (int32_t)k->n_q8;
        k->list[4 * each + i] = (int32_t)moved;
        k->rows += moved;
        k->n_q8 += (moved + 7) / 8 * 8;
        k->most = coded > k->most ? coded : k->most;
    }
    return kvd_queue_put(k->lists, k->list, (LISTS + 1) * each * sizeof *k->list, r->stream, what,
                         err);
}

static int multiply(const kvd_kvtc_prompt_coder *k, size_t rows, size_t columns, size_t sum,
                    const uint16_t *a, const uint16_t *b, size_t ld_b, float beta, void *to,
                    cudaDataType type, size_t ld, kvd_err *err)
{
    const kvd_gpu_worker *const w = k->m->cache->worker;
    const float one = 1;
    return kvd_cublas_check(
        w->lib->cublasGemmEx(w->blas, CUBLAS_OP_N, CUBLAS_OP_N, (int)rows, (int)columns, (int)sum,
                             &one, a, CUDA_R_16BF, (int)rows, b, CUDA_R_16BF, (int)ld_b, &beta, to,
                             type, (int)ld, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        what, err);
}

/* Codes K or V of the prompts, whose rows are x, and writes decoded rows to k->x. */
static int code(const kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, int side,
                const uint16_t *x, kvd_err *err)
{
    const kvd_step_batch *const b = k->m->cache->batch;
    const coder_side *const s = &k->side[r->layer * KVD_N_SIDES + side];
    const size_t wide = k->wide, tokens = b->n_tokens - r->steps, each = b->max_slices;
    const kvd_kvtc_prompts p = {.n = (int32_t)k->n,
                                .n_groups = s->n_groups,
                                .wide = (int32_t)wide,
                                .n_sink = (int32_t)k->sink,
                                .start = k->lists,
                                .coded = k->lists + each,
                                .group = s->group,
                                .y = k->y,
                                .bias = s->bias,
                                .decoded = k->decoded,
                                .ld = k->ld,
                                .most = k->most,
                                .token_bytes = s->token_bytes,
                                .gap = s->gap,
                                .packed = k->packed};
    for (size_t part = 0; part < 2; part++)
        if (multiply(k, wide, tokens, wide, s->to + part * wide * wide, x, r->ld, (float)part, k->y,
                     CUDA_R_32F, wide, err))
            return -1;
    if (kvd_cuda_check(kvd_kvtc_pack(&p, r->stream), what, err) ||
        kvd_queue_get(s->packed, k->packed, tokens * s->token_bytes + k->n * s->gap, r->stream,
                      what, err))
        return -1;
    for (size_t i = 0; i < k->n; i++) {
        const size_t start = (size_t)k->list[i], coded = (size_t)k->list[each + i],
                     row = (size_t)k->list[2 * each + i];
        if (coded && multiply(k, wide, coded, k->ld, s->from, k->decoded + start * k->ld, k->ld, 0,
                              k->x + row * k->x_ld + k->before + (size_t)side * wide, CUDA_R_16BF,
                              k->x_ld, err))
            return -1;
    }
    return 0;
}

/* Copies K and V of n tokens of prompt i from token t on to k->x. */
static int copy_rows(const kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, const uint16_t *x,
                     size_t i, size_t t, size_t n, kvd_err *err)
{
    const size_t row = (size_t)k->list[2 * k->m->cache->batch->max_slices + i] + t;
    return n ? kvd_cuda_check(cudaMemcpy2DAsync(
                                  k->x + row * k->x_ld + k->before, k->x_ld * sizeof *x,
                                  x + ((size_t)k->list[i] + t) * r->ld, r->ld * sizeof *x,
                                  2 * k->wide * sizeof *x, n, cudaMemcpyDeviceToDevice, r->stream),
                              what, err)
             : 0;
}

/* Copies tokens without codes: the first ones, and those after the last code. */
static int copy_exact(const kvd_kvtc_prompt_coder *k, const kvd_paged_rows *r, const uint16_t *x,
                      kvd_err *err)
{
    const size_t each = k->m->cache->batch->max_slices;
    for (size_t i = 0; i < k->n; i++) {
        const size_t coded = (size_t)k->list[each + i], moved = (size_t)k->list[4 * each + i];
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
    if (!k->n || !k->most)
        return 0;
    const uint16_t *const x =
        (const uint16_t *)r->x + r->steps * r->ld + (size_t)(c->share->n_heads * c->config->d_head);
    const kvd_paged_rewrite w = {.x = k->x,
                                 .ld = k->x_ld,
                                 .start = k->lists + 2 * each,
                                 .q_len = k->lists + 4 * each,
                                 .kv_len = k->lists + 4 * each,
                                 .q_start = k->lists + 3 * each,
                                 .table = c->pages->device + r->steps * c->pages->max_pages,
                                 .n = (int32_t)k->n,
                                 .n_rows = (int32_t)k->rows,
                                 .n_q8 = (int32_t)k->n_q8};
    return code(k, r, KVD_KEYS, x, err) || code(k, r, KVD_VALUES, x + k->wide, err) ||
                   copy_exact(k, r, x, err) || kvd_paged_cache_rewrite(c, r->layer, &w, err)
               ? -1
               : 0;
}

int kvd_kvtc_prompt_coder_bits(kvd_kvtc_prompt_coder *k, double *bits, kvd_err *err)
{
    const size_t sides = (size_t)k->m->cache->config->n_layers * KVD_N_SIDES,
                 each = k->m->cache->batch->max_slices, tasks = k->n * sides;
    double *const of = calloc(tasks + 1, sizeof *of);
    int status = of ? 0 : kvd_no_memory(err, what, tasks * sizeof *of);
#pragma omp parallel for schedule(dynamic)
    for (size_t t = 0; t < tasks; t++) {
        const size_t i = t / sides, coded = (size_t)k->list[each + i];
        coder_side *const s = &k->side[t % sides];
        kvd_err mine;
        if (status || !coded)
            continue;
        of[t] = 16.0 * (double)(k->sink * k->wide);
        if (!kvd_kvtc_deflate(k->m->plan->bits_self, (int)(t % sides / KVD_N_SIDES),
                              (kvd_side)(t % KVD_N_SIDES),
                              s->packed + (size_t)k->list[i] * s->token_bytes + i * s->gap,
                              coded - k->sink, &of[t], &mine))
            continue;
#pragma omp critical(kvd_kvtc_prompts)
        {
            *err = mine;
            status = -1;
        }
    }
    for (size_t i = 0; !status && i < k->n; i++) {
        bits[i] = 0;
        for (size_t t = 0; t < sides; t++)
            bits[i] += of[i * sides + t];
    }
    free(of);
    return status;
}
