/* Method cachegen on the GPU: complete pages are entropy-coded, tokens of an incomplete page are
 * bf16 in a ring buffer. */
#include <math.h>
#include <stdlib.h>

#include "methods/bits/cuda/packed.h"
#include "methods/bits/cuda/streams.h"
#include "model/checkpoint/cuda/random.h"

static const char what[] = "streams of codes";

typedef struct {
    kvd_gpu_method method;
    kvd_cachegen_layer *layer;
    /* [max_slices][max_pages] in device memory: page table of the ring buffers, which have the
     * newest tokens. */
    int32_t *table;
    /* True if the entropy coder's frequency tables are random, so that codes may overflow their
     * buffer. */
    bool drawn;
    bool replaces; /* true: pages hold decoded numbers, and no codes are stored */
    kvd_stream_slots slots;
    kvd_device_memory memory;
} cachegen;

int kvd_stream_slots_make(kvd_stream_slots *s, size_t n, kvd_device_memory *memory, kvd_err *err)
{
    const size_t bytes = (2 * n + 1) * sizeof *s->units;
    s->n = n;
    if (!(s->tokens = calloc(n, sizeof *s->tokens)))
        return kvd_no_memory(err, what, n * sizeof *s->tokens);
    s->units = kvd_device_filled(memory, bytes, 0, what, err);
    s->host_units = kvd_device_pinned(memory, bytes, what, err);
    return memory->status;
}

void kvd_stream_slots_release(kvd_stream_slots *s)
{
    free(s->tokens);
}

int kvd_stream_slots_forget(const kvd_stream_slots *s, const kvd_step_batch *b,
                            const kvd_paged_rows *r, kvd_err *err)
{
    for (size_t i = 0; r->layer == 0 && i < r->prompts; i++)
        if (kvd_cuda_check(cudaMemset2DAsync(s->units + b->host.slot[r->steps + i],
                                             (s->n + 1) * sizeof *s->units, 0, sizeof *s->units, 2,
                                             r->stream),
                           what, err))
            return -1;
    return 0;
}

int kvd_stream_slots_fetch(const kvd_stream_slots *s, const kvd_gpu_method *m,
                           const kvd_paged_rows *r, kvd_err *err)
{
    if (r->layer + 1 < m->cache->config->n_layers)
        return 0;
    return kvd_queue_get(s->host_units, s->units, (2 * s->n + 1) * sizeof *s->units, r->stream,
                         what, err);
}

int kvd_stream_slots_note(kvd_stream_slots *s, const kvd_gpu_method *m, const kvd_iteration *it,
                          int32_t room, kvd_err *err)
{
    if (room && s->host_units[s->n])
        return kvd_fail(
            err,
            "method '%s': a stream of a page of 64 tokens needs %u words, some have room "
            "for %d: the text differs from --calibration; set '%s' to store less",
            m->plan->bits->info.name, s->host_units[s->n], room, m->plan->bits->info.tradeoff->key);
    kvd_gpu_packed_count(m, it, s->n, s->tokens, &s->held);
    return 0;
}

kvd_stream_batch kvd_stream_batch_of(const kvd_paged_cache *c, const kvd_paged_rows *r,
                                     bool prompts, int32_t n_sink)
{
    const size_t first = prompts ? r->steps : 0;
    return (kvd_stream_batch){.n = (int32_t)(prompts ? r->prompts : r->steps),
                              .max_pages = (int32_t)c->pages->max_pages,
                              .n_sink = n_sink,
                              .kv_len = c->batch->device.kv_len + first,
                              .slot = c->batch->device.slot + first,
                              .q_len = prompts ? c->batch->device.q_len + first : NULL,
                              .start = prompts ? c->batch->device.start + first : NULL,
                              .live = prompts ? NULL : c->batch->device.live,
                              .page_table = c->pages->device + first * c->pages->max_pages,
                              .n_sms = c->n_sms};
}

void *kvd_stream_pool(kvd_device_memory *memory, size_t bytes, cudaStream_t stream, kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    void *const p = kvd_device_new(memory, bytes, "the cache", err);
    return p && !kvd_cuda_check(
                    kvd_gpu_random_fill(KVD_BF16, &normal, 0, bytes / sizeof(uint16_t), p, stream),
                    what, err)
               ? p
               : NULL;
}

double kvd_stream_value(const kvd_plan *plan, const char *key)
{
    return kvd_gpu_packed_value(plan, key);
}

int32_t kvd_stream_words(double bits, size_t room)
{
    const double wanted = room ? (double)room : 1.6 * bits / KVD_STREAM_WORD_BITS + 160;
    return ((int32_t)wanted + 7) / 8 * 8;
}

static cachegen *of(const kvd_gpu_method *m)
{
    return (cachegen *)(void *)m;
}

static double held(const kvd_gpu_method *m)
{
    return of(m)->slots.held;
}

static double slot_bits(const kvd_gpu_method *m, size_t slot)
{
    const cachegen *const k = of(m);
    const kvd_cachegen_layer *const l = &k->layer[0];
    const double n = k->slots.tokens[slot], pages = floor(n / KVD_PAGE_TOKENS),
                 sides = 2.0 * m->cache->config->n_layers * l->map.n_kv_heads;
    return KVD_STREAM_WORD_BITS * (double)k->slots.host_units[slot] +
           sides * (pages * (KVD_STREAM_HEADER_BITS + 32.0 * KVD_PAGE_TOKENS / l->group) +
                    16.0 * m->cache->config->d_head * (n - pages * KVD_PAGE_TOKENS));
}

/* Returns the number of bits of a request's compressed blocks and of its newer tokens, which are
 * not compressed. */
static double replaced_bits(const kvd_gpu_method *m, size_t slot)
{
    const cachegen *const k = of(m);
    const kvd_cachegen_layer *const l = &k->layer[0];
    const kvd_stream_slots *const s = &k->slots;
    const double n = s->tokens[slot], coded = floor(n / l->block) * l->block,
                 sides = 2.0 * m->cache->config->n_layers * l->map.n_kv_heads;
    return KVD_STREAM_WORD_BITS * (double)s->host_units[slot] +
           s->host_units[s->n + 1 + slot] / 16.0 +
           sides * (32 * coded / l->group + 16.0 * m->cache->config->d_head * (n - coded));
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    cachegen *const k = of(m);
    return kvd_stream_slots_note(&k->slots, m, it,
                                 k->drawn || k->replaces ? 0 : k->layer[0].room.words, err);
}

static size_t lacking(const kvd_gpu_method *m)
{
    const kvd_stream_slots *const s = &of(m)->slots;
    return s->host_units ? s->host_units[s->n] : 0;
}

static kvd_cachegen_layer layer_of(const kvd_gpu_method *m, int layer)
{
    kvd_cachegen_layer l = of(m)->layer[layer];
    l.rows = kvd_paged_cache_pool(m->cache, layer);
    return l;
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    cachegen *const k = of(m);
    return kvd_gpu_packed_rings(m->cache, r, 1, k->table, err)
               ? -1
               : kvd_paged_cache_append(m->cache, r, k->layer[r->layer].ring, k->table, err);
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    if (!r->steps)
        return 0;
    const kvd_cachegen_layer l = layer_of(m, r->layer);
    const kvd_stream_batch b = kvd_stream_batch_of(m->cache, r, false, 0);
    return kvd_status(kvd_cuda_check(kvd_cachegen_restore(&b, &l, r->stream), what, err) ||
                      kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err));
}

static int code(kvd_gpu_method *m, const kvd_paged_rows *r, bool prompts, kvd_err *err)
{
    const kvd_stream_slots *const s = &of(m)->slots;
    const kvd_cachegen_layer l = layer_of(m, r->layer);
    const kvd_stream_batch b = kvd_stream_batch_of(m->cache, r, prompts, 0);
    return kvd_cuda_check(
        of(m)->replaces ? kvd_cachegen_replace(&b, &l, s->units, s->units + s->n + 1, r->stream)
                        : kvd_cachegen_code(&b, &l, s->units, s->units + s->n, r->stream),
        what, err);
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_stream_slots *const s = &of(m)->slots;
    return kvd_status(kvd_stream_slots_forget(s, m->cache->batch, r, err) ||
                      (r->prompts && code(m, r, true, err)) ||
                      (r->steps && code(m, r, false, err)) || kvd_stream_slots_fetch(s, m, r, err));
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    cachegen *const k = of(m);
    const kvd_paged_cache *const c = m->cache;
    if (k->replaces)
        return kvd_stream_slots_make(&k->slots, slots, &k->memory, err);
    char *blocks = kvd_stream_pool(&k->memory, m->page_bytes * (pages + 1), stream, err);
    char *const rings = kvd_stream_pool(&k->memory, m->slot_bytes * slots, stream, err);
    k->table = kvd_device_new(
        &k->memory, c->batch->max_slices * c->pages->max_pages * sizeof *k->table, what, err);
    if (!blocks || !rings || !k->table)
        return -1;
    for (int l = 0; l < c->config->n_layers; l++) {
        kvd_cachegen_layer *const to = &k->layer[l];
        to->blocks = blocks;
        to->ring = (uint16_t *)(void *)rings + (size_t)l * slots * (size_t)to->map.page_elements;
        const size_t n = 2 * (size_t)to->map.n_kv_heads * (pages + 1);
        blocks += n * to->block_bytes;
        if (kvd_cuda_check(
                kvd_streams_make_plausible(to->blocks, n, to->block_bytes, to->room, stream), what,
                err))
            return -1;
    }
    return kvd_stream_slots_make(&k->slots, slots, &k->memory, err);
}

static void release(kvd_gpu_method *m)
{
    cachegen *const k = of(m);
    kvd_device_release(&k->memory);
    kvd_stream_slots_release(&k->slots);
    free(k->layer);
    free(k);
}

/* Returns the expected number of bits of a page of K or V of one KV head after entropy coding. */
static double expected_bits(const kvd_cachegen_coder *c, size_t sides)
{
    const size_t anchors = KVD_PAGE_TOKENS / c->group;
    double most = 0;
    for (size_t at = 0; at < sides; at++) {
        const uint16_t *const table = c->table + at * (1 + c->wide) * KVD_STREAM_TABLE;
        double bits = (double)(anchors * c->wide) * kvd_stream_entropy(table, 256);
        for (size_t j = 1; j <= c->wide; j++)
            bits += (double)(KVD_PAGE_TOKENS - anchors) *
                    kvd_stream_entropy(table + j * KVD_STREAM_TABLE, KVD_CACHEGEN_CODES);
        most = bits > most ? bits : most;
    }
    return most;
}

static int copy_lookups(cachegen *k, const kvd_cachegen_coder *c, kvd_err *err)
{
    const kvd_paged_cache *const cache = k->method.cache;
    const size_t all = 2 * (size_t)cache->config->n_kv_heads,
                 first = 2 * (size_t)cache->share->first_kv_head,
                 sides = 2 * (size_t)cache->share->n_kv_heads;
    size_t room = 0;
    if (kvd_cuda_check(kvd_streams_lookup_room(&room), what, err))
        return -1;
    for (size_t l = 0; l < (size_t)cache->config->n_layers; l++) {
        kvd_cachegen_layer *const to = &k->layer[l];
        const uint16_t *const table =
            c->table + (l * all + first) * (1 + c->wide) * KVD_STREAM_TABLE;
        to->lookup_size = kvd_cachegen_lookups(table, sides, c->wide, room, NULL);
        const size_t bytes = to->lookup_size.words * sizeof *to->lookup;
        uint32_t *const lookup = malloc(bytes);
        if (!lookup)
            return kvd_no_memory(err, what, bytes);
        (void)kvd_cachegen_lookups(table, sides, c->wide, room, lookup);
        to->lookup = kvd_device_from(&k->memory, lookup, bytes, what, err);
        free(lookup);
    }
    return k->memory.status;
}

static int describe(cachegen *k, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const size_t layers = (size_t)c->config->n_layers, all = 2 * (size_t)c->config->n_kv_heads,
                 each = 2 * (size_t)c->share->n_kv_heads,
                 first = 2 * (size_t)c->share->first_kv_head;
    const size_t groups = (size_t)kvd_stream_value(k->method.plan, "groups");
    kvd_cachegen_coder coder;
    kvd_cachegen_coder_of(k->method.plan->bits_self, &coder);
    k->drawn = coder.drawn;
    const size_t side_table = (1 + coder.wide) * KVD_STREAM_TABLE, n_step = all * coder.wide,
                 n_table = all * side_table;
    const int32_t words = kvd_stream_words(expected_bits(&coder, layers * all), c->outliers);
    const float *const step =
        kvd_device_from(&k->memory, coder.step, layers * n_step * sizeof *step, what, err);
    const uint16_t *const table =
        kvd_device_from(&k->memory, coder.table, layers * n_table * sizeof *table, what, err);
    if (k->memory.status)
        return -1;
    for (size_t l = 0; l < layers; l++) {
        kvd_cachegen_layer *const to = &k->layer[l];
        *to = (kvd_cachegen_layer){.map = c->layer[l].map,
                                   .room = {1, words, 0, 0},
                                   .group = (int32_t)coder.group,
                                   .block = (int32_t)(coder.group * groups),
                                   .wide = (int32_t)coder.wide,
                                   .step = step + l * n_step + first * coder.wide,
                                   .table = table + l * n_table + first * side_table};
        if (k->replaces)
            continue;
        const size_t scales = 4 * KVD_PAGE_TOKENS / coder.group;
        to->block_bytes = kvd_stream_parts_of(to->room).bytes + (scales + 15) / 16 * 16;
        k->method.page_bytes += each * to->block_bytes;
        k->method.slot_bytes += (size_t)to->map.page_elements * sizeof *to->ring;
    }
    return k->replaces ? 0 : copy_lookups(k, &coder, err);
}

static bool fits(const kvd_plan *plan)
{
    return kvd_gpu_packed_value(plan, "lanes") > 0 &&
           fabs(kvd_gpu_packed_value(plan, "group") * kvd_gpu_packed_value(plan, "groups") -
                KVD_PAGE_TOKENS) < 0.5;
}

/* Returns true if pages hold decoded bf16 numbers, and the bits of the entropy code are only
 * counted. */
static bool replaces(const kvd_plan *plan)
{
    return !(kvd_stream_value(plan, "lanes") > 0) && !(kvd_stream_value(plan, "own") > 0);
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    const bool other = cache->generates && replaces(plan);
    if (!fits(plan) && !other)
        return kvd_fail(
            err,
            "cachegen,group=%g,groups=%g,lanes=%g: the CUDA engine decodes blocks of %d "
            "tokens by lanes, use group=8,groups=8,lanes=1",
            kvd_gpu_packed_value(plan, "group"), kvd_gpu_packed_value(plan, "groups"),
            kvd_gpu_packed_value(plan, "lanes"), KVD_PAGE_TOKENS);
    cachegen *const k = calloc(1, sizeof *k);
    const size_t bytes = (size_t)cache->config->n_layers * sizeof *k->layer;
    if (!k || !(k->layer = calloc(1, bytes))) {
        free(k);
        return kvd_no_memory(err, what, bytes);
    }
    k->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .anywhere = true,
                                 .whole_prompts = true,
                                 .make = make,
                                 .ended = ended,
                                 .lacking = lacking,
                                 .held = held,
                                 .bits = slot_bits,
                                 .append = append,
                                 .appended = appended,
                                 .attended = attended,
                                 .free = release};
    k->replaces = other;
    if (other) {
        k->method.one_layer = k->method.anywhere = false;
        k->method.bits = replaced_bits;
        k->method.append = k->method.appended = NULL;
    }
    *m = &k->method;
    return describe(k, err);
}

static bool runs(const kvd_plan *plan)
{
    return !plan->layers && !plan->tokens && !plan->maker && !plan->channels && !plan->dims &&
           !plan->dims_low;
}

static bool generates(const kvd_plan *plan)
{
    return runs(plan) && (fits(plan) || replaces(plan));
}

const kvd_gpu_kind kvd_gpu_cachegen = {
    .joins_heads = kvd_gpu_heads_apart, .runs = runs, .generates = generates, .open = open_method};
