/* Method waterfill on the GPU if each request is one entropy-coded stream (parameter block=0). */
#include <stdlib.h>
#include <string.h>

#include "methods/bits/bits.h"
#include "methods/bits/cuda/streams.h"

static const char what[] = "codes of transforms";

/* State of method waterfill if each request is one entropy-coded stream. The stream's bits are
 * counted, but the stream is not stored. */
typedef struct {
    kvd_gpu_method method; /* must be the first member */
    size_t wide, ld, x_ld; /* elements from one decoded row, or one row of x, to the next */
    int32_t n_sink;
    kvd_transform *of;        /* [n_layers][KVD_N_SIDES] */
    kvd_whole_stream *stream; /* the same, with y and `decoded` */
    uint16_t *x;              /* rows that replace those of kvd_paged_rows */
    int32_t *first_q;         /* device [max_slices] 8 b: first rows of Q of decode steps b */
    kvd_stream_slots slots;
    kvd_device_memory memory;
} whole_stream;

enum { WHOLE_BITS = 32 /* state at the end of the stream, in rans.h */ };

static whole_stream *of(const kvd_gpu_method *m)
{
    return (whole_stream *)(void *)m;
}

static double held(const kvd_gpu_method *m)
{
    return of(m)->slots.held;
}

static double bits(const kvd_gpu_method *m, size_t slot)
{
    const whole_stream *const k = of(m);
    const kvd_stream_slots *const s = &k->slots;
    const size_t n = s->tokens[slot], sink = (size_t)k->n_sink, exact = n < sink ? n : sink;
    const double sides = (double)m->cache->config->n_layers * KVD_N_SIDES;
    return KVD_STREAM_WORD_BITS * (double)s->host_units[slot] +
           s->host_units[s->n + 1 + slot] / 16.0 +
           sides * ((n > exact ? WHOLE_BITS : 0) + 16.0 * (double)(exact * k->wide));
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    return kvd_stream_slots_note(&of(m)->slots, m, it, 0, err);
}

/* Replaces K and V in the cache's pages by the decoded numbers k->x. */
static int rewrite(const whole_stream *k, const kvd_paged_rows *r, bool prompts, kvd_err *err)
{
    kvd_paged_cache *const c = k->method.cache;
    const kvd_step_batch *const b = c->batch;
    const size_t from = prompts ? r->steps : 0, n = prompts ? r->prompts : r->steps;
    kvd_paged_rewrite w = {.x = k->x + from * k->x_ld,
                           .ld = k->x_ld,
                           .start = prompts ? b->device.start + from : b->count,
                           .q_len = prompts ? b->device.q_len + from : b->one,
                           .kv_len = b->device.kv_len + from,
                           .q_start = prompts ? b->device.q_start + from : k->first_q,
                           .table = c->pages->device + from * c->pages->max_pages,
                           .n = (int32_t)n,
                           .n_rows = (int32_t)(prompts ? b->n_tokens - r->steps : n),
                           .n_q8 = (int32_t)(prompts ? b->n_q8 : 8 * n)};
    return n ? kvd_paged_cache_rewrite(c, r->layer, &w, err) : 0;
}

/* Quantises and decodes K or V, after its linear transform, of the new tokens of prompts (if
 * `prompts` is true) or of decode steps. */
static int round_rows(const whole_stream *k, const kvd_paged_rows *r, bool prompts, int side,
                      kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const kvd_stream_batch b = kvd_stream_batch_of(c, r, prompts, k->n_sink);
    kvd_whole_stream s = k->stream[r->layer * KVD_N_SIDES + side];
    if (!b.n)
        return 0;
    s.y += prompts ? r->steps * k->wide : 0;
    s.decoded += prompts ? r->steps * k->ld : 0;
    return kvd_cuda_check(
        kvd_whole_stream_round(&b, &s, prompts ? c->batch->n_tokens - r->steps : 1, k->slots.units,
                               k->slots.units + k->slots.n + 1, r->stream),
        what, err);
}

static int keep_first(const whole_stream *k, const kvd_paged_rows *r, bool prompts, size_t before,
                      kvd_err *err)
{
    const kvd_stream_batch b = kvd_stream_batch_of(k->method.cache, r, prompts, k->n_sink);
    const size_t from = prompts ? r->steps : 0;
    return b.n ? kvd_cuda_check(
                     kvd_whole_stream_keep(&b, (const uint16_t *)r->x + from * r->ld + before,
                                           r->ld, k->x + from * k->x_ld + before, k->x_ld,
                                           2 * k->wide, r->stream),
                     what, err)
               : 0;
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const whole_stream *const k = of(m);
    const kvd_paged_cache *const c = m->cache;
    const size_t n = r->prompts ? c->batch->n_tokens : r->steps,
                 before = (size_t)(c->share->n_heads * c->config->d_head);
    if (kvd_stream_slots_forget(&k->slots, c->batch, r, err))
        return -1;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const int i = r->layer * KVD_N_SIDES + side;
        const size_t at = before + (size_t)side * k->wide;
        if (kvd_transform_apply(c->worker, &k->of[i], k->wide, n, (const uint16_t *)r->x + at,
                                r->ld, (float *)(uintptr_t)k->stream[i].y, err) ||
            round_rows(k, r, true, side, err) || round_rows(k, r, false, side, err) ||
            kvd_transform_invert(c->worker, &k->of[i], k->wide, n, k->stream[i].decoded, k->x + at,
                                 k->x_ld, err))
            return -1;
    }
    return kvd_status(keep_first(k, r, true, before, err) || keep_first(k, r, false, before, err) ||
                      rewrite(k, r, true, err) || rewrite(k, r, false, err) ||
                      kvd_stream_slots_fetch(&k->slots, m, r, err));
}

static void release(kvd_gpu_method *m)
{
    whole_stream *const k = of(m);
    kvd_device_release(&k->memory);
    kvd_stream_slots_release(&k->slots);
    free(k->of);
    free(k->stream);
    free(k);
}

static int copy_new(whole_stream *k, const void *from, size_t bytes, void *to, kvd_err *err)
{
    void *const p = kvd_device_new(&k->memory, bytes, what, err);
    memcpy(to, &p, sizeof p);
    return kvd_status(!p || kvd_device_put(p, from, bytes, what, err));
}

static int make_streams(whole_stream *k, float *y, uint16_t *decoded, kvd_err *err)
{
    kvd_transform_tables t;
    int status = kvd_transform_tables_new(&t, k->wide, err);
    for (int i = 0; !status && i < k->method.cache->config->n_layers * KVD_N_SIDES; i++) {
        kvd_whole_stream *const s = &k->stream[i];
        kvd_stream_coder c;
        kvd_waterfill_coder_of(k->method.plan->bits_self, i / KVD_N_SIDES, i % KVD_N_SIDES, &c);
        *s = (kvd_whole_stream){.wide = (int32_t)k->wide,
                                .step = (float)c.step,
                                .offset = (float)c.offset,
                                .y = y,
                                .decoded = decoded,
                                .ld = k->ld};
        status =
            kvd_transform_make(&k->of[i], c.to, c.from, c.mean, &t, &k->memory, err) ||
            copy_new(k, c.streams.component, k->wide * sizeof *s->component, &s->component, err) ||
            copy_new(k, c.streams.start, c.n_starts * sizeof *s->start, &s->start, err) ||
            copy_new(k, c.escape, k->wide * sizeof *s->escape, &s->escape, err);
        s->bias = k->of[i].bias;
    }
    kvd_transform_tables_free(&t);
    return kvd_status(status);
}

static int make_whole(whole_stream *k, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const size_t tokens = c->batch->max_tokens, slices = c->batch->max_slices,
                 sides = (size_t)c->config->n_layers * KVD_N_SIDES,
                 x = tokens * k->x_ld * sizeof *k->x, rounded = tokens * k->ld * sizeof(uint16_t);
    int32_t *const list = malloc(slices * sizeof *list);
    float *y;
    uint16_t *decoded;
    if (!list)
        return kvd_no_memory(err, what, slices * sizeof *list);
    for (size_t b = 0; b < slices; b++)
        list[b] = (int32_t)(8 * b);
    const int status = copy_new(k, list, slices * sizeof *list, &k->first_q, err);
    free(list);
    k->of = calloc(sides, sizeof *k->of);
    k->stream = calloc(sides, sizeof *k->stream);
    if (!status && (!k->of || !k->stream))
        return kvd_no_memory(err, what, sides * sizeof *k->stream);
    return kvd_status(status || !(k->x = kvd_device_new(&k->memory, x, what, err)) ||
                      kvd_device_zero(k->x, x, what, err) ||
                      !(y = kvd_device_new(&k->memory, tokens * k->wide * sizeof *y, what, err)) ||
                      !(decoded = kvd_device_new(&k->memory, rounded, what, err)) ||
                      kvd_device_zero(decoded, rounded, what, err) ||
                      make_streams(k, y, decoded, err));
}

static int make_slots(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream,
                      kvd_err *err)
{
    (void)pages;
    (void)stream;
    return kvd_stream_slots_make(&of(m)->slots, slots, &of(m)->memory, err);
}

int kvd_whole_stream_open(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                          kvd_err *err)
{
    whole_stream *const k = calloc(1, sizeof *k);
    if (!k)
        return kvd_no_memory(err, what, sizeof *k);
    k->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .whole_prompts = true,
                                 .make = make_slots,
                                 .ended = ended,
                                 .held = held,
                                 .bits = bits,
                                 .attended = attended,
                                 .free = release};
    k->wide = (size_t)cache->config->n_kv_heads * (size_t)cache->config->d_head;
    k->ld = k->wide + KVD_TRANSFORM_PAD;
    k->x_ld = (size_t)(cache->share->n_heads * cache->config->d_head) + 2 * k->wide;
    k->n_sink = (int32_t)kvd_stream_value(plan, "sink");
    *m = &k->method;
    return make_whole(k, err);
}
