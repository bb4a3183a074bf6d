/* Methods waterfill and kvtc on the GPU. Pages hold K and V after a linear transform, quantised and
 * entropy-coded. */
#include "methods/bits/cuda/streams.h"

#include <math.h>
#include <stdlib.h>

#include "methods/dims/cuda/latents.h"

static const char what[] = "streams of codes";

typedef struct {
    kvd_stream_side side[KVD_N_SIDES];
    /* Matrices that transform K and V to components, as a sum of two bf16 matrices
     * [2][wide][pitch]. */
    const uint16_t *to[KVD_N_SIDES];
    /* Matrices in device memory that transform components back to K and V: [d_head][rank] for each
     * KV head or, for all KV heads together, [rank / 8][wide][8]. */
    const uint16_t *from;
    const kvd_latent_head *head;
    uint16_t *sink;
} layer_of;

typedef struct {
    kvd_gpu_method method;
    size_t wide, pitch; /* pitch: elements between adjacent rows of `to` and of y */
    int32_t n_sink;
    /* True if frequency tables are random, for timing. Entropy-coded blocks may then exceed their
     * room. */
    bool drawn;
    bool joint; /* true: all KV heads share matrices B (kvd_latent_restore_args.columns) */
    size_t lookup_room;
    layer_of *layer;
    size_t latent_page; /* number of bf16 elements of a page of latents */
    uint16_t *latents;
    float *y; /* [KVD_N_SIDES][max_tokens][pitch] components of new tokens */
    /* Second CUDA stream, which decodes the pages of the next layer ahead of time. */
    cudaStream_t ahead;
    /* Events that order the work of the CUDA stream `ahead` and of the main stream. */
    cudaEvent_t restored, decoded;
    kvd_stream_slots slots;
    kvd_device_memory memory;
} streams;

static streams *of(const kvd_gpu_method *m)
{
    return (streams *)(void *)m;
}

static void coder_of(const kvd_plan *plan, int layer, int side, kvd_stream_coder *to)
{
    if (plan->bits == &kvd_bits_kvtc)
        kvd_kvtc_coder_of(plan->bits_self, layer, side, to);
    else
        kvd_waterfill_coder_of(plan->bits_self, layer, side, to);
}

static double held(const kvd_gpu_method *m)
{
    return of(m)->slots.held;
}

static double slot_bits(const kvd_gpu_method *m, size_t slot)
{
    const streams *const k = of(m);
    const size_t n = k->slots.tokens[slot], sink = (size_t)k->n_sink, exact = n < sink ? n : sink;
    const size_t blocks = n > sink ? (n - 1) / KVD_PAGE_TOKENS - sink / KVD_PAGE_TOKENS + 1 : 0;
    double bits = KVD_STREAM_WORD_BITS * (double)k->slots.host_units[slot];
    for (int l = 0; l < m->cache->config->n_layers; l++)
        for (int side = 0; side < KVD_N_SIDES; side++)
            bits +=
                (double)blocks * k->layer[l].side[side].room.n_streams * KVD_STREAM_HEADER_BITS +
                32.0 * k->layer[l].side[side].room.scales * (double)(n - exact) +
                16.0 * (double)(exact * k->wide);
    return bits;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    streams *const k = of(m);
    return kvd_stream_slots_note(&k->slots, m, it, k->drawn ? 0 : k->layer[0].side[0].room.words,
                                 err);
}

static size_t lacking(const kvd_gpu_method *m)
{
    const kvd_stream_slots *const s = &of(m)->slots;
    return s->host_units ? s->host_units[s->n] : 0;
}

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static int decode(const streams *k, const kvd_paged_rows *r, int layer, cudaStream_t stream,
                  kvd_err *err)
{
    const kvd_stream_batch b = kvd_stream_batch_of(k->method.cache, r, false, k->n_sink);
    return kvd_cuda_check(
        kvd_streams_decode(&b, k->layer[layer].side, k->latents, k->latent_page, stream), what,
        err);
}

/* Restores K and V of a layer by multiplying decoded components by the inverse transform, while
 * another stream decodes the next layer. */
static int restore(const streams *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const layer_of *const l = &k->layer[r->layer];
    const kvd_stream_batch b = kvd_stream_batch_of(c, r, false, k->n_sink);
    const bool more = r->layer + 1 < c->config->n_layers;
    const kvd_latent_restore_args a = {.n = b.n,
                                       .max_pages = b.max_pages,
                                       .n_kv_heads = c->share->n_kv_heads,
                                       .d_head = c->config->d_head,
                                       .max_rank = larger(l->side[0].rank, l->side[1].rank),
                                       .newest = 1,
                                       .kv_len = b.kv_len,
                                       .page_table = b.page_table,
                                       .head = l->head,
                                       .latents = k->latents,
                                       .matrix = l->from,
                                       .latent_page = k->latent_page,
                                       .columns = k->joint ? (int32_t)k->wide : 0,
                                       .page = (size_t)c->layer[r->layer].map.page_elements,
                                       .cosine = c->cosine,
                                       .sine = c->sine,
                                       .interleaved =
                                           c->config->rope_layout == KVD_ROPE_INTERLEAVED,
                                       .pages = kvd_paged_cache_pool(c, r->layer),
                                       .n_sms = c->n_sms};
    if (r->layer == 0 ? decode(k, r, 0, r->stream, err)
                      : kvd_cuda_check(cudaStreamWaitEvent(r->stream, k->decoded, 0), what, err))
        return -1;
    return kvd_cuda_check(kvd_latent_restore(&a, r->stream), what, err) ||
                   (more && (kvd_gpu_queue_after(k->ahead, r->stream, k->restored, what, err) ||
                             decode(k, r, r->layer + 1, k->ahead, err) ||
                             kvd_cuda_check(cudaEventRecord(k->decoded, k->ahead), what, err))) ||
                   kvd_cuda_check(kvd_streams_sink(&b, &c->layer[r->layer].map, a.pages, l->sink,
                                                   true, r->stream),
                                  what, err)
               ? -1
               : 0;
}

/* Before the attention of decode steps, decodes the entropy-coded K and V of the layer's cached
 * tokens to bf16 pages. */
static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    return !r->steps ? 0
           : restore(of(m), r, err) ||
                   kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err)
               ? -1
               : 0;
}

static float *components(const streams *k, int side)
{
    return k->y + (size_t)side * k->method.cache->batch->max_tokens * k->pitch;
}

static int transform(const streams *k, const kvd_paged_rows *r, size_t n, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const layer_of *const l = &k->layer[r->layer];
    const size_t from = (size_t)(c->share->n_heads * c->config->d_head),
                 to_side = 2 * k->wide * k->pitch;
    const int kept = larger(l->side[0].tables.kept, l->side[1].tables.kept);
    const float one = 1, zero = 0;
    for (size_t part = 0; part < 2; part++)
        if (kvd_cublas_check(c->worker->lib->cublasGemmStridedBatchedEx(
                                 c->worker->blas, CUBLAS_OP_N, CUBLAS_OP_N, kept, (int)n,
                                 (int)k->wide, &one, l->to[0] + part * k->wide * k->pitch,
                                 CUDA_R_16BF, (int)k->pitch, (long long)to_side,
                                 (const uint16_t *)r->x + from, CUDA_R_16BF, (int)r->ld,
                                 (long long)k->wide, part ? &one : &zero, k->y, CUDA_R_32F,
                                 (int)k->pitch, components(k, 1) - components(k, 0), KVD_N_SIDES,
                                 CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
                             what, err))
            return -1;
    return 0;
}

static int code(const streams *k, const kvd_paged_rows *r, bool prompts, kvd_err *err)
{
    const kvd_stream_batch b = kvd_stream_batch_of(k->method.cache, r, prompts, k->n_sink);
    const size_t most = prompts ? k->method.cache->batch->n_tokens - r->steps : 1,
                 first = prompts ? r->steps * k->pitch : 0;
    float *const y[KVD_N_SIDES] = {components(k, 0) + first, components(k, 1) + first};
    return kvd_cuda_check(kvd_streams_code(&b, k->layer[r->layer].side, y, k->pitch, most,
                                           k->slots.units, k->slots.units + k->slots.n, r->stream),
                          what, err);
}

static int keep_sinks(const streams *k, const kvd_paged_rows *r, bool prompts, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const kvd_stream_batch b = kvd_stream_batch_of(k->method.cache, r, prompts, k->n_sink);
    return kvd_cuda_check(kvd_streams_sink(&b, &c->layer[r->layer].map,
                                           kvd_paged_cache_pool(c, r->layer),
                                           k->layer[r->layer].sink, false, r->stream),
                          what, err);
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const streams *const k = of(m);
    const size_t n = r->prompts ? m->cache->batch->n_tokens : r->steps;
    if (kvd_stream_slots_forget(&k->slots, m->cache->batch, r, err) ||
        (r->prompts && keep_sinks(k, r, true, err)) || (r->steps && keep_sinks(k, r, false, err)) ||
        transform(k, r, n, err) || (r->prompts && code(k, r, true, err)) ||
        (r->steps && code(k, r, false, err)))
        return -1;
    return kvd_stream_slots_fetch(&k->slots, m, r, err);
}

static int make_pools(streams *k, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const size_t latents = k->latent_page * sizeof(uint16_t);
    char *blocks =
        kvd_stream_pool(&k->memory, (k->method.page_bytes - latents) * (pages + 1), stream, err);
    char *sinks =
        blocks ? kvd_stream_pool(&k->memory, k->method.slot_bytes * slots, stream, err) : NULL;
    if (!sinks || !(k->latents = kvd_stream_pool(&k->memory, latents * (pages + 1), stream, err)))
        return -1;
    for (int l = 0; l < c->config->n_layers; l++) {
        for (int side = 0; side < KVD_N_SIDES; side++) {
            kvd_stream_side *const s = &k->layer[l].side[side];
            const size_t bytes = kvd_stream_parts_of(s->room).bytes;
            s->blocks = blocks;
            blocks += bytes * (pages + 1);
            if (kvd_cuda_check(
                    kvd_streams_make_plausible(s->blocks, pages + 1, bytes, s->room, stream), what,
                    err))
                return -1;
        }
        k->layer[l].sink = (uint16_t *)(void *)sinks;
        sinks += k->method.slot_bytes / (size_t)c->config->n_layers * slots;
    }
    return 0;
}

static int make_stream(streams *k, kvd_err *err)
{
    int least = 0, greatest = 0;
    return kvd_cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest), what, err) ||
                   kvd_cuda_check(
                       cudaStreamCreateWithPriority(&k->ahead, cudaStreamNonBlocking, least), what,
                       err) ||
                   kvd_cuda_check(cudaEventCreateWithFlags(&k->restored, cudaEventDisableTiming),
                                  what, err) ||
                   kvd_cuda_check(cudaEventCreateWithFlags(&k->decoded, cudaEventDisableTiming),
                                  what, err)
               ? -1
               : 0;
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    streams *const k = of(m);
    return make_stream(k, err) || make_pools(k, pages, slots, stream, err) ||
                   !(k->y = kvd_device_new(&k->memory,
                                           KVD_N_SIDES * m->cache->batch->max_tokens * k->pitch *
                                               sizeof *k->y,
                                           what, err)) ||
                   kvd_stream_slots_make(&k->slots, slots, &k->memory, err)
               ? -1
               : 0;
}

static void release(kvd_gpu_method *m)
{
    streams *const k = of(m);
    if (k->ahead)
        (void)cudaStreamDestroy(k->ahead);
    if (k->restored)
        (void)cudaEventDestroy(k->restored);
    if (k->decoded)
        (void)cudaEventDestroy(k->decoded);
    kvd_device_release(&k->memory);
    kvd_stream_slots_release(&k->slots);
    free(k->layer);
    free(k);
}

static kvd_stream_room room_of(const kvd_stream_coder *c, size_t room)
{
    const int32_t n = kvd_stream_count(c->streams.kept),
                  words = kvd_stream_words(kvd_stream_expected_bits(c, KVD_PAGE_TOKENS) / n, room);
    return (kvd_stream_room){n, words, c->n_groups ? 0 : words / KVD_STREAM_WORDS_PER_EXCEPTION + 1,
                             (int32_t)c->n_groups};
}

typedef struct {
    uint16_t *to;   /* [2][wide][pitch] */
    uint16_t *from; /* [n_kv_heads][d_head][rank] */
    float *bias;    /* [kept] */
} host_tables;

static void split(float x, uint16_t *high, uint16_t *low)
{
    float rounded, rest;
    kvd_from_f32(KVD_BF16, &x, high, 1);
    kvd_to_f32(KVD_BF16, high, &rounded, 1);
    rest = x - rounded;
    kvd_from_f32(KVD_BF16, &rest, low, 1);
}

static void fill(const streams *k, const kvd_stream_coder *c, int32_t rank, const host_tables *t)
{
    const size_t kept = (size_t)c->streams.kept;
    for (size_t j = 0; j < kept; j++) {
        double sum = 0;
        for (size_t i = 0; i < c->wide; i++) {
            const float x = c->to[i * c->to_pitch + j];
            sum += (double)c->mean[i] * (double)x;
            split(x, t->to + i * k->pitch + j, t->to + (c->wide + i) * k->pitch + j);
        }
        t->bias[j] = (float)sum;
    }
    for (size_t i = 0; i < c->wide; i++)
        for (size_t j = 0; j <= kept; j++)
            kvd_from_f32(
                KVD_BF16, j < kept ? &c->from[j * c->wide + i] : &c->mean[i],
                t->from + (k->joint ? (j / 8 * c->wide + i) * 8 + j % 8 : i * (size_t)rank + j), 1);
}

/* Pointers to the next free elements of device arrays. Each array has the transform matrices or
 * entropy-coder tables of all layers. */
typedef struct {
    uint16_t *to, *from, *start, *group_of;
    float *bias;
    kvd_stream_component *component;
    kvd_stream_group *group;
    uint32_t *lookup;
} device_tables;

static int copy_groups(kvd_stream_side *s, const kvd_stream_coder *c, device_tables *at,
                       kvd_err *err)
{
    const size_t kept = (size_t)c->streams.kept;
    uint16_t *const of = calloc(kept, sizeof *of);
    if (!of)
        return kvd_no_memory(err, what, kept * sizeof *of);
    for (size_t g = 0; g < c->n_groups; g++)
        for (size_t j = 0; j < c->group[g].size; j++)
            of[c->group[g].first + j] = (uint16_t)g;
    const int status =
        c->n_groups &&
        (kvd_device_put(at->group_of, of, kept * sizeof *of, what, err) ||
         kvd_device_put(at->group, c->group, c->n_groups * sizeof *c->group, what, err));
    s->group_of = at->group_of;
    s->group = at->group;
    at->group_of += kept;
    at->group += c->n_groups;
    free(of);
    return status ? -1 : 0;
}

static int copy_lookups(const streams *k, kvd_stream_side *s, const kvd_stream_coder *c,
                        device_tables *at, kvd_err *err)
{
    const size_t bytes = s->lookup_size.words * sizeof *at->lookup;
    uint32_t *const lookup = malloc(bytes);
    if (!lookup)
        return kvd_no_memory(err, what, bytes);
    (void)kvd_stream_lookups(&c->streams, k->lookup_room, lookup);
    const int status = kvd_device_put(at->lookup, lookup, bytes, what, err);
    s->lookup = at->lookup;
    at->lookup += s->lookup_size.words;
    free(lookup);
    return status;
}

/* Copies the transform matrices and entropy-coder tables of K or V of one layer to the device, at
 * the addresses in *at. Moves these addresses to the end of the copies. */
static int copy_side(const streams *k, layer_of *l, int side, const kvd_stream_coder *c,
                     device_tables *at, kvd_err *err)
{
    kvd_stream_side *const s = &l->side[side];
    const size_t kept = (size_t)c->streams.kept, n_to = 2 * k->wide * k->pitch,
                 n_from = k->wide * (size_t)s->rank;
    const host_tables t = {calloc(n_to, sizeof *t.to), calloc(n_from, sizeof *t.from),
                           calloc(kept, sizeof *t.bias)};
    int status = t.to && t.from && t.bias ? 0 : kvd_no_memory(err, what, n_to * sizeof *t.to);
    if (!status)
        fill(k, c, s->rank, &t);
    status = status || kvd_device_put(at->to, t.to, n_to * sizeof *t.to, what, err) ||
             kvd_device_put(at->from, t.from, n_from * sizeof *t.from, what, err) ||
             kvd_device_put(at->bias, t.bias, kept * sizeof *t.bias, what, err) ||
             kvd_device_put(at->component, c->streams.component,
                            kept * sizeof *c->streams.component, what, err) ||
             kvd_device_put(at->start, c->streams.start, c->n_starts * sizeof *c->streams.start,
                            what, err) ||
             copy_groups(s, c, at, err) || copy_lookups(k, s, c, at, err);
    l->to[side] = at->to;
    l->from = side ? l->from : at->from;
    s->bias = at->bias;
    s->tables = (kvd_stream_tables){c->streams.kept, at->component, at->start};
    at->to += n_to;
    at->from += n_from;
    at->bias += kept;
    at->component += kept;
    at->start += c->n_starts;
    free(t.to);
    free(t.from);
    free(t.bias);
    return status ? -1 : 0;
}

static void place_heads(const streams *k, int l, kvd_latent_head *head)
{
    const kvd_attn_map *const map = &k->method.cache->layer[l].map;
    const kvd_stream_side *const s = k->layer[l].side;
    for (int g = 0; g < map->n_kv_heads; g++)
        for (int side = 0; side < KVD_N_SIDES; side++) {
            head[g].latent[side] = s[side].latent_at;
            head[g].rank[side] = s[side].rank;
            head[g].page[side] = map->kv_offset[g] + (side ? KVD_PAGE_TOKENS * map->d_qk[g] : 0);
            head[g].matrix[side] =
                (side ? (int32_t)k->wide * s[0].rank : 0) +
                g * k->method.cache->config->d_head * (k->joint ? 8 : s[side].rank);
        }
}

static int copy_heads(streams *k, kvd_err *err)
{
    const size_t layers = (size_t)k->method.cache->config->n_layers,
                 heads = (size_t)k->method.cache->config->n_kv_heads, n = layers * heads;
    kvd_latent_head *const head = calloc(n, sizeof *head), *device;
    if (!head)
        return kvd_no_memory(err, what, n * sizeof *head);
    for (size_t l = 0; l < layers; l++)
        place_heads(k, (int)l, head + l * heads);
    device = kvd_device_new(&k->memory, n * sizeof *head, what, err);
    const int status = !device || kvd_device_put(device, head, n * sizeof *head, what, err);
    for (size_t l = 0; l < layers; l++)
        k->layer[l].head = device + l * heads;
    free(head);
    return status ? -1 : 0;
}

typedef struct {
    size_t from, kept, starts, groups, lookups;
} table_sizes;

static table_sizes describe(streams *k)
{
    kvd_paged_cache *const c = k->method.cache;
    table_sizes sum = {0, 0, 0, 0, 0};
    for (int l = 0; l < c->config->n_layers; l++) {
        size_t latent = 0;
        for (int side = 0; side < KVD_N_SIDES; side++) {
            kvd_stream_side *const s = &k->layer[l].side[side];
            kvd_stream_coder coder;
            coder_of(k->method.plan, l, side, &coder);
            const size_t kept = (size_t)coder.streams.kept;
            k->drawn = coder.drawn;
            s->room = room_of(&coder, c->outliers);
            s->step = coder.step;
            s->offset = (float)coder.offset;
            s->rank = (int32_t)(kept / 16 + 1) * 16;
            s->lookup_size = kvd_stream_lookups(&coder.streams, k->lookup_room, NULL);
            s->latent_at = (int32_t)latent;
            latent += (size_t)s->rank * KVD_PAGE_TOKENS;
            k->method.page_bytes += kvd_stream_parts_of(s->room).bytes;
            k->pitch = kept > k->pitch ? (kept + 7) / 8 * 8 : k->pitch;
            sum.from += k->wide * (size_t)s->rank;
            sum.kept += kept;
            sum.starts += coder.n_starts;
            sum.groups += coder.n_groups;
            sum.lookups += s->lookup_size.words;
        }
        k->latent_page = latent > k->latent_page ? latent : k->latent_page;
    }
    k->method.page_bytes += k->latent_page * sizeof *k->latents;
    k->method.slot_bytes =
        (size_t)c->config->n_layers * (size_t)k->n_sink * 2 * k->wide * sizeof(uint16_t);
    return sum;
}

static int copy_tables(streams *k, kvd_err *err)
{
    const int layers = k->method.cache->config->n_layers;
    if (kvd_cuda_check(kvd_streams_lookup_room(&k->lookup_room), what, err))
        return -1;
    const table_sizes n = describe(k);
    const size_t n_to = (size_t)layers * KVD_N_SIDES * 2 * k->wide * k->pitch;
    device_tables at = {0};
    if (!(at.to = kvd_device_new(&k->memory, n_to * sizeof *at.to, what, err)) ||
        !(at.from = kvd_device_new(&k->memory, n.from * sizeof *at.from, what, err)) ||
        !(at.bias = kvd_device_new(&k->memory, n.kept * sizeof *at.bias, what, err)) ||
        !(at.component = kvd_device_new(&k->memory, n.kept * sizeof *at.component, what, err)) ||
        !(at.start = kvd_device_new(&k->memory, n.starts * sizeof *at.start, what, err)) ||
        !(at.lookup = kvd_device_new(&k->memory, n.lookups * sizeof *at.lookup, what, err)) ||
        !(at.group_of = kvd_device_new(&k->memory, n.kept * sizeof *at.group_of, what, err)) ||
        !(at.group = kvd_device_new(&k->memory, n.groups * sizeof *at.group, what, err)))
        return -1;
    for (int l = 0; l < layers; l++)
        for (int side = 0; side < KVD_N_SIDES; side++) {
            kvd_stream_coder coder;
            coder_of(k->method.plan, l, side, &coder);
            if (copy_side(k, &k->layer[l], side, &coder, &at, err))
                return -1;
        }
    return copy_heads(k, err);
}

/* Returns true if the kernels support the method's parameters, such as its number of tokens per
 * block. */
static bool fits(const kvd_plan *plan)
{
    return plan->bits == &kvd_bits_kvtc
               ? kvd_stream_value(plan, "lanes") > 0 && !(kvd_stream_value(plan, "window") > 0)
               : fabs(kvd_stream_value(plan, "block") - KVD_PAGE_TOKENS) < 0.5;
}

/* Returns the smallest i = layer * KVD_N_SIDES + side for which no component of K (side 0) or V
 * (side 1) is stored. Returns -1 if there is none. */
static int empty_side(const kvd_plan *plan, const kvd_config *c)
{
    for (int i = 0; i < c->n_layers * KVD_N_SIDES; i++) {
        kvd_stream_coder coder;
        coder_of(plan, i / KVD_N_SIDES, i % KVD_N_SIDES, &coder);
        if (!coder.streams.kept)
            return i;
    }
    return -1;
}

static int check_parameters(const kvd_plan *plan, const kvd_paged_cache *c, kvd_err *err)
{
    if (!fits(plan) && plan->bits == &kvd_bits_kvtc)
        return kvd_fail(err,
                        "kvtc,lanes=%g,window=%g: the CUDA engine codes every token, by lanes, use "
                        "lanes=1,window=0",
                        kvd_stream_value(plan, "lanes"), kvd_stream_value(plan, "window"));
    if (!fits(plan))
        return kvd_fail(err,
                        "%s,block=%g: the CUDA engine decodes blocks of %d tokens, use block=%d",
                        plan->bits->info.name, kvd_stream_value(plan, "block"), KVD_PAGE_TOKENS,
                        KVD_PAGE_TOKENS);
    const int i = empty_side(plan, c->config);
    return i < 0 ? 0
                 : kvd_fail(err,
                            "'%s' stores no component of the %s of layer %d, which the CUDA engine "
                            "does not run: use more bits",
                            plan->bits->info.name, i % KVD_N_SIDES ? "values" : "keys",
                            i / KVD_N_SIDES);
}

/* Returns true if the method is waterfill with parameter block=0, which stores one entropy-coded
 * stream per request. */
static bool whole(const kvd_plan *plan)
{
    return plan->bits == &kvd_bits_waterfill && !(kvd_stream_value(plan, "block") > 0);
}

static int check(const kvd_plan *plan, const kvd_paged_cache *c, kvd_err *err)
{
    const char *const name = plan->bits->info.name;
    const size_t wide = (size_t)c->config->n_kv_heads * (size_t)c->config->d_head;
    if (!(c->generates && whole(plan)) && check_parameters(plan, c, err))
        return -1;
    if (wide >= KVD_LATENT_RANK_MAX)
        return kvd_fail(err,
                        "'%s' in the CUDA engine: up to %d numbers per token and side, not %zu",
                        name, KVD_LATENT_RANK_MAX - 1, wide);
    if (c->config->rope_local_theta > 0)
        return kvd_fail(err, "'%s' in the CUDA engine: one RoPE base, the model has two", name);
    return c->cosine && !c->hook.wants_raw
               ? kvd_fail(err,
                          "'%s' codes keys before RoPE, which the CUDA engine does not have in "
                          "models with biases or norms of Q and K, or with partial RoPE",
                          name)
               : 0;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (check(plan, cache, err))
        return -1;
    if (cache->generates && whole(plan))
        return kvd_whole_stream_open(plan, cache, m, err);
    streams *const k = calloc(1, sizeof *k);
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
                                 .appended = appended,
                                 .attended = attended,
                                 .free = release};
    k->wide = (size_t)cache->config->n_kv_heads * (size_t)cache->config->d_head;
    k->n_sink = (int32_t)kvd_stream_value(plan, "sink");
    k->joint = kvd_latent_joins(cache->config->n_kv_heads, cache->config->d_head);
    *m = &k->method;
    return copy_tables(k, err);
}

static bool runs(const kvd_plan *plan)
{
    return !plan->layers && !plan->tokens && !plan->maker && !plan->channels && !plan->dims &&
           !plan->dims_low;
}

static bool generates(const kvd_plan *plan)
{
    return runs(plan) && (fits(plan) || whole(plan));
}

/* Returns false if some layer stores no dimensions of K, or none of V. The kernels do not support
 * this case. */
static bool has_components(const kvd_plan *plan, const kvd_config *c)
{
    return !plan->bits_self || whole(plan) || empty_side(plan, c) < 0;
}

const kvd_gpu_kind kvd_gpu_streams = {.joined = "one transform covers all KV heads of a layer",
                                      .runs = runs,
                                      .generates = generates,
                                      .fits = has_components,
                                      .open = open_method};
