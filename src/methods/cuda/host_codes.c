/* Compresses rows of K and V on the CPU during text generation on a GPU (host_codes.h). */
#include "methods/cuda/host_codes_parts.h"

#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "methods/bits/bits.h"
#include "methods/bits/cuda/streams.h"
#include "methods/head.h"
#include "model/pass/blocks.h"

static const char what[] = KVD_HOST_CODES_WHAT;

enum { LISTS = 4 /* start, q_len, kv_len and q_start of kvd_paged_rewrite */ };

static void forget(const kvd_host_codes *k, kvd_host_slot *s)
{
    for (size_t l = 0; s->row && l < k->layers; l++)
        free(s->row[l]);
    for (size_t l = 0; s->mass && l < k->layers; l++)
        free(s->mass[l]);
    free(s->row);
    free(s->mass);
    free(s->state);
    free(s->near);
    *s = (kvd_host_slot){0};
}

void kvd_host_codes_drop(kvd_host_codes *k, size_t slot)
{
    forget(k, &k->slot[slot]);
}

/* Returns how many bits K and V of a request's tokens `from` .. `end` - 1 occupy in layers with a
 * sliding window. */
static double near_bits(const kvd_host_codes *k, const kvd_host_slot *s, size_t from, size_t end)
{
    double sum = 0;
    for (size_t i = from; i < end; i++) {
        sum += s->near[i];
        for (int side = 0; side < KVD_N_SIDES; side++)
            sum += i < s->coded[side] ? 0 : 16 * (double)k->numbers[KVD_LAYERS_NEAR][side];
    }
    return sum;
}

double kvd_host_codes_bits(const kvd_host_codes *k, size_t slot)
{
    const kvd_host_slot *const s = &k->slot[slot];
    double exact = 0;
    for (int side = 0; side < KVD_N_SIDES; side++)
        exact += (double)(s->n - s->coded[side]) * (double)k->numbers[KVD_LAYERS_FULL][side];
    return s->bits + (s->apart ? kvd_kvtc_prompt_coder_bits(k->prompts, slot) : 0) + 16 * exact +
           (s->near ? near_bits(k, s, kvd_host_codes_first_held(k, KVD_LAYERS_NEAR, s->n), s->n)
                    : 0);
}

double kvd_host_codes_unseen(const kvd_host_codes *k, size_t slot)
{
    return k->slot[slot].unseen;
}

double kvd_host_codes_held(const kvd_host_codes *k)
{
    double bits = 0;
    for (size_t i = 0; i < k->n_slots; i++)
        bits += kvd_host_codes_bits(k, i);
    return bits / 8;
}

int kvd_host_codes_finish(kvd_host_codes *k, kvd_err *err)
{
    return k->prompts ? kvd_kvtc_prompt_coder_finish(k->prompts, err) : 0;
}

/* Queues a copy of n rows from the GPU (`x`, ld elements apart) to host memory (`to`, k->pitch
 * elements apart). */
static int fetch_rows(const kvd_host_codes *k, uint16_t *to, const uint16_t *x, size_t ld,
                      size_t width, size_t n, cudaStream_t stream, kvd_err *err)
{
    const size_t element = sizeof *x;
    return n ? kvd_cuda_check(cudaMemcpy2DAsync(to, k->pitch * element, x, ld * element,
                                                width * element, n, cudaMemcpyDeviceToHost, stream),
                              what, err)
             : 0;
}

static uint16_t *row_of(const kvd_host_codes *k, size_t layer, size_t at)
{
    return k->row + (layer * k->room + at) * k->pitch;
}

int kvd_host_codes_fetch(kvd_host_codes *k, int layer, const void *x, size_t ld, size_t width,
                         cudaStream_t stream, kvd_err *err)
{
    return fetch_rows(k, row_of(k, (size_t)layer, 0), x, ld, width,
                      k->method->cache->batch->n_tokens, stream, err);
}

/* Returns how many of a new request's first n tokens the GPU compresses. */
static size_t coded_apart(const kvd_host_codes *k, size_t n)
{
    return k->prompts ? kvd_kvtc_prompt_coder_ready(k->prompts, n) : 0;
}

/* Starts copying to the host the new tokens that the GPU does not compress itself. */
static int fetch_rest(kvd_host_codes *k, const kvd_paged_rows *r, const uint16_t *x, size_t width,
                      kvd_err *err)
{
    const kvd_step_batch *const b = k->method->cache->batch;
    const size_t layer = (size_t)r->layer;
    int status = fetch_rows(k, row_of(k, layer, 0), x, r->ld, width, r->steps, r->stream, err);
    for (size_t i = r->steps, at = r->steps; !status && i < r->steps + r->prompts; i++) {
        const size_t n = (size_t)b->host.q_len[i], coded = coded_apart(k, n);
        status = fetch_rows(k, row_of(k, layer, at),
                            x + (r->steps + (size_t)b->host.start[i] + coded) * r->ld, r->ld, width,
                            n - coded, r->stream, err);
        at += n - coded;
    }
    return status;
}

int kvd_host_codes_append(kvd_host_codes *k, const kvd_paged_rows *r, kvd_err *err)
{
    const size_t width = k->rows.width, input = k->rows.input,
                 n = k->method->cache->batch->n_tokens;
    const uint16_t *const x = (const uint16_t *)r->x + k->rows.before;
    uint16_t *const row = row_of(k, (size_t)r->layer, 0);
    if (k->prompts && r->prompts)
        return fetch_rest(k, r, x, width, err);
    return kvd_status(
        fetch_rows(k, row, x, r->ld, width, n, r->stream, err) ||
        (input && fetch_rows(k, row + width, r->input, input, input, n, r->stream, err)));
}

int kvd_host_codes_attended(kvd_host_codes *k, const kvd_paged_rows *r, kvd_err *err)
{
    return k->received                ? kvd_host_received_attended(k->received, r, err)
           : k->prompts && r->prompts ? kvd_kvtc_prompt_coder_attended(k->prompts, r, err)
                                      : 0;
}

/* Makes room for n rows of each layer. Their contents are lost. */
static int reserve_rows(kvd_host_codes *k, size_t n, kvd_err *err)
{
    const size_t most = k->method->cache->batch->max_tokens, ample = n + n / 4 + KVD_PAGE_TOKENS;
    if (n <= k->room || k->room == most)
        return 0;
    if (k->row)
        (void)cudaFreeHost(k->row);
    k->room = ample < most ? ample : most;
    k->row = kvd_pinned_new(k->layers * k->room * k->pitch * sizeof *k->row, what, err);
    return k->row ? 0 : -1;
}

int kvd_host_codes_begin(kvd_host_codes *k, const kvd_iteration *it, kvd_err *err)
{
    size_t fresh = 0, longest = 0;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        const kvd_host_slot *const slot = &k->slot[s->slot];
        const size_t n = s->before ? 1 : s->n - coded_apart(k, s->n),
                     pending = s->before ? slot->n - slot->first + n : n;
        fresh += n;
        longest = pending > longest ? pending : longest;
    }
    /* Rounded up, because the engine pads decode batches to a multiple of 8 requests. */
    return reserve_rows(k, ((fresh > longest ? fresh : longest) + 7) / 8 * 8, err);
}

/* Applies RoPE to the keys of n tokens, or undoes it, and rounds the keys to bf16. table: k->rope
 * applies RoPE, k->back undoes it. first: position of the first token. */
static void turn(const kvd_host_codes *k, int layer, const float *table, size_t first, size_t n,
                 uint16_t *row)
{
    const kvd_paged_cache *const c = k->method->cache;
    const size_t d = (size_t)c->config->d_head, heads = (size_t)c->config->n_kv_heads;
    const float *const cosine = table + (kvd_rope_local(c->config, layer) ? c->max_len * d / 2 : 0),
                       *const sine = cosine + c->max_len * d;
    enum { TOGETHER = 8 };
    for (size_t i = 0; i < n; i++)
        for (size_t g = 0; g < heads; g += TOGETHER) {
            const uint32_t position = (uint32_t)(first + i);
            const size_t some = kvd_smaller(heads - g, TOGETHER);
            uint16_t *const keys = row + i * k->pitch + g * d;
            float x[TOGETHER * KVD_WIDTH_MAX];
            kvd_to_f32(KVD_BF16, keys, x, some * d);
            kvd_rope_apply(c->config, cosine, sine, &position, 1, some, x);
            kvd_from_f32(KVD_BF16, x, keys, some * d);
        }
}

/* Replaces K and V of each KV head in n rows by their projections, padded with zeros to d_head. */
static void cut(const kvd_host_codes *k, int layer, size_t n, uint16_t *row)
{
    enum { TOGETHER = 32 };
    const kvd_config *const c = k->method->cache->config;
    const size_t d = (size_t)c->d_head, heads = (size_t)c->n_kv_heads;
    float x[TOGETHER * KVD_WIDTH_MAX], y[TOGETHER * KVD_WIDTH_MAX];
    for (size_t first = 0; first < n; first += TOGETHER)
        for (size_t i = 0; i < KVD_N_SIDES * heads; i++) {
            const kvd_dims_head *const h = &k->rows.dims->head[(size_t)layer * heads + i % heads];
            const bool values = i >= heads;
            const size_t some = kvd_smaller(n - first, TOGETHER),
                         kept = (size_t)(values ? h->d_v : h->d_qk);
            uint16_t *const at = row + first * k->pitch + i * d;
            for (size_t t = 0; t < some; t++)
                kvd_to_f32(KVD_BF16, at + t * k->pitch, x + t * d, d);
            kvd_head_project(some, d, kept, x, d, values ? h->a_v : h->a_k, y);
            for (size_t t = 0; t < some; t++) {
                kvd_from_f32(KVD_BF16, y + t * kept, at + t * k->pitch, kept);
                memset(at + t * k->pitch + kept, 0, (d - kept) * sizeof *at);
            }
        }
}

static int keep_layer(const kvd_host_codes *k, kvd_host_slot *s, int layer, size_t at, size_t n,
                      kvd_err *err)
{
    /* Growing the buffer in every decode step, by one row, would be slow. So it grows by
     * KVD_PAGE_TOKENS rows at a time. */
    const size_t pitch = k->pitch, pending = s->n - s->first,
                 room = kvd_rounded_up(pending + n, KVD_PAGE_TOKENS),
                 bytes = room * pitch * sizeof **s->row;
    uint16_t *const row = realloc(s->row[layer], bytes);
    if (!row)
        return kvd_no_memory(err, what, bytes);
    s->row[layer] = row;
    memcpy(row + pending * pitch, row_of(k, (size_t)layer, at), n * pitch * sizeof *row);
    const float *const table = k->rows.undoes ? k->back : k->rope;
    if (table)
        turn(k, layer, table, s->n, n, row + pending * pitch);
    if (k->rows.dims)
        cut(k, layer, n, row + pending * pitch);
    return 0;
}

/* Adds n new tokens to the layer's array s->mass. Then adds to each token the attention
 * probabilities that it received in this iteration. `i` is the request's index in the iteration. */
static int keep_mass(const kvd_host_codes *k, kvd_host_slot *s, int layer, size_t i, size_t n,
                     bool fresh, kvd_err *err)
{
    const size_t heads = (size_t)k->method->cache->config->n_kv_heads, pending = s->n - s->first,
                 bytes = (pending + n) * heads * sizeof **s->mass;
    double *const mass = realloc(s->mass[layer], bytes);
    if (!mass)
        return kvd_no_memory(err, what, bytes);
    s->mass[layer] = mass;
    memset(mass + pending * heads, 0, n * heads * sizeof *mass);
    kvd_host_received_add(k->received, layer, i, fresh, s->first, s->n + n, mass);
    return 0;
}

/* Appends n new, not yet quantised tokens to s->near, with 0 as the number of bits of their
 * codes. */
static int keep_near(kvd_host_slot *s, size_t n, kvd_err *err)
{
    const size_t needed = s->n + n, room = needed + needed / 4 + KVD_PAGE_TOKENS;
    if (needed > s->room) {
        double *const near = realloc(s->near, room * sizeof *near);
        if (!near)
            return kvd_no_memory(err, what, room * sizeof *near);
        s->near = near;
        s->room = room;
    }
    memset(s->near + s->n, 0, n * sizeof *s->near);
    return 0;
}

/* Counts how many bits of stored tokens the latest decode step did not read, because these tokens
 * had left the window. */
static void count_unseen(const kvd_host_codes *k, kvd_host_slot *s)
{
    const size_t window = k->method->cache->window;
    s->unseen = !s->prompt && s->n > window
                    ? near_bits(k, s, kvd_host_codes_first_held(k, KVD_LAYERS_NEAR, s->n - 1),
                                s->n - window)
                    : 0;
}

/* Appends K and V of a request's n new tokens, in rows `at` .. `at` + n - 1 of k->row, to its state
 * `s`. If `fresh`, the request is new, and its first `coded` tokens are already quantised and have
 * no rows. */
static int keep(const kvd_host_codes *k, kvd_host_slot *s, size_t i, size_t at, size_t n,
                bool fresh, size_t coded, kvd_err *err)
{
    const size_t states = k->layers * k->rows.n_parts * k->states;
    int status = 0;
    if (fresh) {
        forget(k, s);
        s->row = calloc(k->layers, sizeof *s->row);
        s->state = calloc(states, sizeof *s->state);
        s->mass = k->received ? calloc(k->layers, sizeof *s->mass) : NULL;
        if (!s->row || !s->state || (k->received && !s->mass))
            return kvd_no_memory(err, what, states * sizeof *s->state);
        s->n = s->first = s->coded[KVD_KEYS] = s->coded[KVD_VALUES] = coded;
        s->apart = coded > 0;
    }
    const bool windows = k->method->cache->window > 0;
    if (windows && keep_near(s, n, err))
        return -1;
    const int saved = k->rows.dims ? kvd_blas_serial() : 0;
#pragma omp parallel for schedule(static) if (n > 1 || k->rows.dims)
    for (size_t l = 0; l < k->layers; l++) {
        kvd_err mine;
        if (!keep_layer(k, s, (int)l, at, n, &mine) &&
            !(s->mass && keep_mass(k, s, (int)l, i, n, fresh, &mine)))
            continue;
#pragma omp critical(kvd_host_codes)
        {
            *err = mine;
            status = -1;
        }
    }
    if (k->rows.dims)
        kvd_blas_restore(saved);
    s->n += n;
    s->prompt = fresh;
    if (windows)
        count_unseen(k, s);
    return status;
}

/* Sets w->from and w->end, for layers of `kind`, to the range of tokens that are written back to
 * the GPU's cache. */
static void plan_rows(const kvd_host_codes *k, int kind, kvd_host_written *w)
{
    const kvd_host_slot *const s = w->slot;
    const size_t window = kind == KVD_LAYERS_NEAR ? k->method->cache->window : s->n,
                 seen = s->n > window ? s->n - window : 0;
    size_t from = s->n, end = 0;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const size_t first = s->coded[side] > seen ? s->coded[side] : seen;
        if (first >= w->ready[side])
            continue;
        from = first < from ? first : from;
        end = w->ready[side] > end ? w->ready[side] : end;
    }
    /* Rounds up to whole groups of 8 tokens, because kvd_append overwrites whole groups. */
    end = (end + 7) / 8 * 8;
    w->end[kind] = end && end < s->n ? end : s->n;
    /* If no token was quantised (`end` is 0), only the newest token is written to the GPU's
     * cache. */
    w->from[kind] = end ? from : s->n - 1;
}

/* Determines which tokens of a request are quantised after this iteration, and which rows of the
 * GPU's pages change. */
static kvd_host_written plan_slot(const kvd_host_codes *k, kvd_host_slot *s)
{
    const kvd_plan *const p = k->method->plan;
    kvd_host_written w = {.slot = s};
    for (int side = 0; side < KVD_N_SIDES; side++) {
        size_t window = 0, block = 1;
        if (p->bits->window)
            p->bits->window(&p->bits_values, (kvd_side)side, &window, &block);
        const size_t end = s->n > window ? (s->n - window) / block * block : 0;
        w.changed = w.changed || end > s->coded[side];
        w.ready[side] = end > s->coded[side] ? end : s->coded[side];
    }
    for (int kind = 0; kind < KVD_LAYER_KINDS; kind++)
        plan_rows(k, kind, &w);
    return w;
}

/* Copies to the buffer k->row the K and V that must be written to the GPU's cache. Then deletes the
 * CPU's copy of tokens whose K and V are both quantised. */
static void take_rows(const kvd_host_codes *k, const kvd_host_written *w)
{
    kvd_host_slot *const s = w->slot;
    const size_t heads = (size_t)k->method->cache->config->n_kv_heads, pitch = k->pitch,
                 first = w->ready[KVD_KEYS] < w->ready[KVD_VALUES] ? w->ready[KVD_KEYS]
                                                                   : w->ready[KVD_VALUES];
#pragma omp parallel for schedule(static) if (w->end[KVD_LAYERS_FULL] - w->from[KVD_LAYERS_FULL] > \
                                              KVD_PAGE_TOKENS)
    for (size_t l = 0; l < k->layers; l++) {
        const int kind = kvd_host_codes_kind(k, l);
        const size_t from = w->from[kind], n = w->end[kind] - from;
        uint16_t *const row = s->row[l], *const to = row_of(k, l, w->at[kind]);
        memcpy(to, row + (from - s->first) * pitch, n * pitch * sizeof *row);
        if (k->back)
            turn(k, (int)l, k->rope, from, n, to);
        if (first > s->first)
            memmove(row, row + (first - s->first) * pitch, (s->n - first) * pitch * sizeof *row);
        if (s->mass)
            memmove(s->mass[l], s->mass[l] + (first - s->first) * heads,
                    (s->n - first) * heads * sizeof *s->mass[l]);
    }
    s->first = first;
    memcpy(s->coded, w->ready, sizeof s->coded);
}

/* Lists the rows of K and V that quantisation changed in n requests, from request `first` on. kind:
 * KVD_LAYERS_NEAR for layers with a sliding window, KVD_LAYERS_FULL for layers without one. */
static kvd_paged_rewrite list_rows(const kvd_host_codes *k, int kind, size_t first, size_t n)
{
    const kvd_paged_cache *const c = k->method->cache;
    const kvd_pages *const pages = kind == KVD_LAYERS_NEAR ? c->near : c->pages;
    const size_t most = c->batch->max_slices, at = (size_t)(kind * LISTS) * most;
    int32_t *const list = k->list + at, *const device = k->lists + at;
    kvd_paged_rewrite r = {.x = k->x,
                           .ld = k->rows.ld,
                           .start = device,
                           .q_len = device + most,
                           .kv_len = device + 2 * most,
                           .q_start = device + 3 * most,
                           .table = pages->device + first * pages->max_pages,
                           .n = (int32_t)n,
                           .turned = k->rows.turned,
                           .cut = k->rows.dims != NULL};
    for (size_t i = 0; i < n; i++) {
        const kvd_host_written *const w = &k->written[first + i];
        const int32_t rows = (int32_t)(w->end[kind] - w->from[kind]);
        list[i] = (int32_t)w->at[kind];
        list[most + i] = rows;
        list[2 * most + i] = (int32_t)w->end[kind];
        list[3 * most + i] = r.n_q8;
        r.n_rows += rows;
        r.n_q8 += (rows + 7) / 8 * 8;
    }
    return r;
}

/* Writes dequantised K and V of requests first .. first + n - 1 to the GPU's cache, and waits for
 * the GPU. */
static int write_rows(kvd_host_codes *k, size_t first, size_t n, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method->cache;
    const cudaStream_t stream = c->worker->stream;
    const size_t lists = KVD_LAYER_KINDS * LISTS * c->batch->max_slices,
                 bytes = k->rows.width * sizeof *k->x;
    kvd_paged_rewrite of[KVD_LAYER_KINDS] = {list_rows(k, KVD_LAYERS_FULL, first, n)};
    if (c->window)
        of[KVD_LAYERS_NEAR] = list_rows(k, KVD_LAYERS_NEAR, first, n);
    if (kvd_queue_put(k->lists, k->list, lists * sizeof *k->list, stream, what, err))
        return -1;
    for (size_t l = 0; l < k->layers; l++) {
        const kvd_paged_rewrite *const r = &of[kvd_host_codes_kind(k, l)];
        if (kvd_cuda_check(cudaMemcpy2DAsync(k->x + k->rows.before, k->rows.ld * sizeof *k->x,
                                             row_of(k, l, 0), k->pitch * sizeof *k->x, bytes,
                                             (size_t)r->n_rows, cudaMemcpyHostToDevice, stream),
                           what, err) ||
            k->rows.write(k->rows.ctx, (int)l, r, err))
            return -1;
    }
    return kvd_cuda_check(cudaStreamSynchronize(stream), what, err);
}

/* Quantises tokens of n requests, and writes the changed rows to the GPU's cache. Processes as many
 * requests at a time as fit into k->row. */
static int code_slices(kvd_host_codes *k, size_t n, kvd_err *err)
{
    while (n && !k->written[n - 1].changed)
        n--;
    for (size_t first = 0, end; first < n; first = end) {
        size_t rows[KVD_LAYER_KINDS] = {0};
        while (!k->written[first].changed)
            first++;
        for (end = first; end < n; end++) {
            kvd_host_written *const w = &k->written[end];
            if (rows[KVD_LAYERS_FULL] + (w->end[KVD_LAYERS_FULL] - w->from[KVD_LAYERS_FULL]) >
                k->room)
                break;
            for (int kind = 0; kind < KVD_LAYER_KINDS; kind++) {
                w->at[kind] = rows[kind];
                rows[kind] += w->end[kind] - w->from[kind];
            }
        }
        if (kvd_host_codes_quantise(k, k->written + first, end - first, err))
            return -1;
        for (size_t i = first; i < end; i++)
            take_rows(k, &k->written[i]);
        if (write_rows(k, first, end - first, err))
            return -1;
    }
    return 0;
}

int kvd_host_codes_ended(kvd_host_codes *k, const kvd_iteration *it, kvd_err *err)
{
    size_t at = 0;
    if (k->prompts && it->n_slices > it->n_steps &&
        (kvd_cuda_check(cudaStreamSynchronize(k->method->cache->worker->stream), what, err) ||
         kvd_kvtc_prompt_coder_ended(k->prompts, err)))
        return -1;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        kvd_host_slot *const slot = &k->slot[s->slot];
        const size_t coded = s->before ? 0 : coded_apart(k, s->n);
        if (keep(k, slot, i, at, s->n - coded, s->before == 0, coded, err))
            return -1;
        k->written[i] = plan_slot(k, slot);
        at += s->n - coded;
    }
    if (code_slices(k, it->n_slices, err))
        return -1;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            kvd_host_codes_drop(k, it->slice[i].slot);
    return 0;
}

int kvd_host_codes_make(kvd_host_codes *k, size_t slots, kvd_err *err)
{
    k->n_slots = slots;
    return kvd_status(!(k->slot = kvd_new(slots, sizeof *k->slot, what, err)));
}

void kvd_host_codes_free(kvd_host_codes *k)
{
    if (!k)
        return;
    for (size_t i = 0; k->slot && i < k->n_slots; i++)
        forget(k, &k->slot[i]);
    kvd_kvtc_prompt_coder_free(k->prompts);
    free(k->part);
    free(k->slot);
    free(k->written);
    free(k->rope);
    free(k->back);
    kvd_host_received_free(k->received);
    (void)cudaFreeHost(k->row);
    (void)cudaFreeHost(k->list);
    kvd_device_release(&k->memory);
    free(k);
}

float *kvd_host_codes_rope(const kvd_paged_cache *c, bool undoes, kvd_err *err)
{
    const size_t n = c->max_len * (size_t)c->config->d_head / 2,
                 tables = c->config->rope_local_theta > 0 ? 2 : 1;
    float *const table = malloc(4 * n * sizeof *table);
    if (!table)
        kvd_no_memory(err, what, 4 * n * sizeof *table);
    for (size_t local = 0; table && local < tables; local++)
        kvd_rope_tables(c->config, local, c->max_len, c->max_len, table + local * n,
                        table + (2 + local) * n);
    /* Computes the inverse rotation: (cos, -sin) / (cos^2 + sin^2). */
    for (size_t i = 0; table && undoes && i < tables * n; i++) {
        float *const cosine = table + i, *const sine = table + 2 * n + i;
        const float square = *cosine * *cosine + *sine * *sine;
        *cosine /= square;
        *sine /= -square;
    }
    return table;
}

static int make_tables(kvd_host_codes *k, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method->cache;
    return kvd_status(
        ((k->rows.rotates || k->rows.undoes) && !(k->rope = kvd_host_codes_rope(c, false, err))) ||
        (k->rows.undoes && !(k->back = kvd_host_codes_rope(c, true, err))));
}

int kvd_host_codes_new(kvd_gpu_method *m, const kvd_host_rows *rows, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_bits_method *const bits = m->plan->bits;
    const size_t slices = c->batch->max_slices,
                 lists = KVD_LAYER_KINDS * LISTS * slices * sizeof(int32_t),
                 layers = (size_t)c->config->n_layers, parts = layers * rows->n_parts,
                 x = c->batch->max_tokens * rows->ld * sizeof(uint16_t);
    kvd_host_codes *const k = m->codes = calloc(1, sizeof *k);
    if (!k)
        return kvd_no_memory(err, what, sizeof *k);
    *k = (kvd_host_codes){.method = m,
                          .rows = *rows,
                          .part = malloc(parts * sizeof *k->part),
                          .layers = layers,
                          .pitch = rows->width + rows->input,
                          .states = bits->states ? bits->states(m->plan->bits_self) : 1,
                          .written = calloc(slices, sizeof *k->written)};
    if (!k->part || !k->written)
        return kvd_no_memory(err, what, parts * sizeof *k->part);
    memcpy(k->part, rows->part, parts * sizeof *k->part);
    k->rows.part = k->part;
    for (size_t i = 0; i < parts; i++)
        k->numbers[kvd_host_codes_kind(k, i / rows->n_parts)][k->part[i].side] += k->part[i].d;
    if (bits->info.needs & KVD_NEEDS_PROBABILITIES &&
        !(k->received = kvd_host_received_new(m, err)))
        return -1;
    return (k->list = kvd_pinned_new(lists, what, err)) &&
                   (k->lists = kvd_device_new(&k->memory, lists, what, err)) &&
                   (k->x = kvd_device_new(&k->memory, x, what, err)) &&
                   !kvd_device_zero(k->x, x, what, err)
               ? make_tables(k, err)
               : -1;
}

int kvd_host_codes_add_prompts(kvd_host_codes *k, kvd_err *err)
{
    kvd_gpu_method *const m = k->method;
    const kvd_paged_cache *const c = m->cache;
    const size_t wide = (size_t)c->config->n_kv_heads * (size_t)c->config->d_head;
    if (m->plan->bits != &kvd_bits_kvtc || kvd_stream_value(m->plan, "lanes") > 0 || wide % 8 ||
        c->window || k->rows.undoes)
        return 0;
    k->prompts = kvd_kvtc_prompt_coder_new(m, k->x, k->rows.ld, k->rows.before, err);
    return k->prompts ? 0 : -1;
}
