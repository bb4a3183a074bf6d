/* Quantises K and V while tokens are generated, for methods that also drop tokens, on the CPU or
 * the GPU. */
#include <stdlib.h>
#include <string.h>

#include "common/threads.h"
#include "methods/bits/bits.h"
#include "methods/bits/cuda/packed.h"
#include "methods/tokens/cuda/host_entries_parts.h"
#include "model/pass/blocks.h"

static const char what[] = KVD_HOST_ENTRIES_WHAT;

double kvd_host_entries_bits(const kvd_host_entries *e, size_t slot)
{
    return e->slot[slot].bits;
}

double kvd_host_entries_unseen(const kvd_host_entries *e, size_t slot)
{
    return e->slot[slot].unseen;
}

double kvd_host_entries_held(const kvd_host_entries *e)
{
    double bits = 0;
    for (size_t i = 0; i < e->n_slots; i++)
        bits += e->slot[i].bits;
    return bits / 8;
}

static void count_bits(const kvd_host_entries *e, kvd_slot_entries *s)
{
    s->bits = s->unseen = 0;
    for (size_t i = 0; i < e->layers * e->heads; i++) {
        const kvd_head_entries *const h = &s->head[i];
        s->unseen += h->unseen;
        const size_t exact = 2 * h->m - h->coded[KVD_KEYS] - h->coded[KVD_VALUES];
        s->bits += h->sum + 16.0 * (double)(exact * e->d);
    }
}

/* Sets *window to the number of newest tokens that are not quantised, and *block to the number of
 * tokens that are quantised together. */
static void window_of(const kvd_plan *p, int side, size_t *window, size_t *block)
{
    *window = 0;
    *block = 1;
    if (p->bits->window)
        p->bits->window(&p->bits_values, (kvd_side)side, window, block);
}

static void plan_head(const kvd_plan *p, kvd_head_entries *h)
{
    h->from = h->m;
    h->end = 0;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        size_t window, block;
        window_of(p, side, &window, &block);
        const size_t end = h->m > window ? (h->m - window) / block * block : 0;
        h->ready[side] = end > h->coded[side] ? end : h->coded[side];
        if (end <= h->coded[side])
            continue;
        h->from = h->coded[side] < h->from ? h->coded[side] : h->from;
        h->end = end > h->end ? end : h->end;
    }
    h->from = h->end ? h->from : 0;
}

/* Applies RoPE to x [n][d] if `table` is e->rope, or undoes it if `table` is e->back. */
static void turn(const kvd_host_entries *e, int layer, const float *table, const uint32_t *position,
                 size_t n, float *x)
{
    const kvd_config *const c = e->method->cache->config;
    const size_t half = e->max_len * e->d / 2;
    const float *const cosine = table + (kvd_rope_local(c, layer) ? half : 0);
    kvd_rope_apply(c, cosine, cosine + 2 * half, position, n, 1, x);
}

/* Undoes RoPE in the keys x [n][d] and rounds them to bf16. Stores the result in x and in `row`. */
static void turn_back(const kvd_host_entries *e, int layer, const uint32_t *position, size_t n,
                      float *x, uint16_t *row)
{
    turn(e, layer, e->back, position, n, x);
    for (size_t j = 0; j < n; j++) {
        kvd_from_f32(KVD_BF16, x + j * e->d, row + j * 2 * e->d, e->d);
        kvd_to_f32(KVD_BF16, row + j * 2 * e->d, x + j * e->d, e->d);
    }
}

static void note_bits(kvd_head_entries *h, int side, size_t from, size_t n, kvd_bits_count count)
{
    for (size_t j = from; j < from + n; j++)
        h->sum += h->bits[side][j] = (count.payload + count.side) / (double)n;
}

/* Scratch memory of a thread. The thread uses it again for every KV head, so that the system does
 * not map new pages each time. */
typedef struct {
    float *x;
    size_t bytes;
} scratch;

static int grow(scratch *s, size_t bytes, kvd_err *err)
{
    if (bytes <= s->bytes)
        return 0;
    free(s->x);
    s->x = malloc(bytes);
    s->bytes = s->x ? bytes : 0;
    return s->x ? 0 : kvd_no_memory(err, what, bytes);
}

static int code_side(const kvd_host_entries *e, const kvd_slot_entries *slot, size_t i, int side,
                     scratch *memory, kvd_err *err)
{
    const kvd_plan *const p = e->method->plan;
    kvd_head_entries *const h = &slot->head[i];
    const size_t d = e->d, from = h->coded[side], n = h->ready[side] - from;
    const int layer = (int)(i / e->heads);
    const bool turned = side == KVD_KEYS && e->back;
    size_t window, block;
    window_of(p, side, &window, &block);
    if (grow(memory, 2 * n * d * sizeof *memory->x + n, err))
        return -1;
    float *const x = memory->x;
    uint8_t *const level = (uint8_t *)(x + 2 * n * d);
    uint16_t *const row = h->row + (from - h->first) * 2 * d + (size_t)side * d;
    memset(level, KVD_LEVEL_HIGH, n);
    for (size_t j = 0; j < n; j++)
        kvd_to_f32(KVD_BF16, row + j * 2 * d, x + j * d, d);
    if (turned)
        turn_back(e, layer, h->position + from, n, x, row);
    int status = 0;
    for (size_t at = 0, each; !status && at < n; at += each) {
        each = slot->prompt || n - at < block ? n - at : block;
        const kvd_bits_block b = {.side = (kvd_side)side,
                                  .layer = layer,
                                  .kv_head = (int)(i % e->heads),
                                  .n = each,
                                  .d = d,
                                  .x = x + at * d,
                                  .level = level + at,
                                  .position = h->position + from + at,
                                  .state = h->state + (size_t)side * e->states,
                                  .prompt = slot->prompt};
        kvd_bits_count count = {0, 0};
        status = p->bits->code(p->bits_self, &b, x + (n + at) * d, &count, err);
        note_bits(h, side, from + at, each, count);
    }
    if (turned && !status)
        turn(e, layer, e->rope, h->position + from, n, x + n * d);
    for (size_t j = 0; !status && j < n; j++)
        kvd_from_f32(KVD_BF16, x + (n + j) * d, row + j * 2 * d, d);
    h->coded[side] = h->ready[side];
    return status ? kvd_in(err, "layer %d, KV head %zu", layer, i % e->heads) : 0;
}

/* Appends K and V of new tokens, `taken`, to the cache of KV head i (counted over all layers).
 * Quantises blocks of tokens that are now full, and copies these blocks to e->rows. */
static int code_head(kvd_host_entries *e, const kvd_slot_entries *slot, size_t i,
                     const uint16_t *taken, scratch *memory, kvd_err *err)
{
    kvd_head_entries *const h = &slot->head[i];
    const size_t width = 2 * e->d, rows = (h->m - h->first) * width;
    uint16_t *const row = realloc(h->row, (rows + 1) * sizeof *row);
    if (!row)
        return kvd_no_memory(err, what, rows * sizeof *row);
    h->row = row;
    memcpy(row + (h->fresh - h->first) * width, taken, (h->m - h->fresh) * width * sizeof *row);
    for (int side = 0; side < KVD_N_SIDES; side++)
        if (h->ready[side] > h->coded[side] && code_side(e, slot, i, side, memory, err))
            return -1;
    if (h->end)
        memcpy(e->rows + h->at * width, row + (h->from - h->first) * width,
               (h->end - h->from) * width * sizeof *row);
    const size_t first =
        h->coded[KVD_KEYS] < h->coded[KVD_VALUES] ? h->coded[KVD_KEYS] : h->coded[KVD_VALUES];
    memmove(row, row + (first - h->first) * width, (h->m - first) * width * sizeof *row);
    h->first = first;
    uint16_t *const rest = realloc(row, ((h->m - first) * width + 1) * sizeof *row);
    h->row = rest ? rest : row;
    return 0;
}

/* Lists, for n KV heads, the page addresses of new tokens or, if `ready`, of newly quantised
 * tokens. Sets *rows to the number of listed tokens. */
static int list_rows(kvd_host_entries *e, const kvd_iteration *it, size_t first, size_t n,
                     bool ready, size_t *rows, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method->cache;
    const size_t each = e->layers * e->heads;
    size_t at = 0;
    for (size_t j = first; j < first + n; j++) {
        kvd_head_entries *const h = e->list[j];
        h->at = at;
        at += ready ? h->end - h->from : h->m - h->fresh;
    }
#pragma omp parallel for schedule(static)
    for (size_t j = first; j < first + n; j++) {
        const kvd_head_entries *const h = e->list[j];
        const size_t from = ready ? h->from : h->fresh, end = ready ? h->end : h->m, i = j % each,
                     slot = it->slice[j / each].slot;
        const int layer = (int)(i / e->heads), kv_head = (int)(i % e->heads);
        for (size_t k = from; k < end; k++)
            e->k[h->at + k - from] =
                c->layer[layer].map.window
                    ? kvd_paged_cache_row(c, slot, layer, kv_head, h->place[k])
                    : e->places.row(e->method, slot, layer, kv_head, h->place[k]);
    }
    *rows = at;
    return kvd_queue_put(e->device_k, e->k, at * sizeof *e->k, e->method->cache->worker->stream,
                         what, err);
}

/* Copies K and V of new tokens in n KV heads from GPU pages to host memory. If `back`, copies newly
 * quantised tokens from host memory to the pages instead. */
static int move(kvd_host_entries *e, const kvd_iteration *it, size_t first, size_t n, bool back,
                kvd_err *err)
{
    const cudaStream_t stream = e->method->cache->worker->stream;
    const size_t bytes = 2 * e->d * sizeof *e->rows;
    size_t at;
    return kvd_status(
        list_rows(e, it, first, n, back, &at, err) ||
        (back && kvd_queue_put(e->device_rows, e->rows, at * bytes, stream, what, err)) ||
        kvd_cuda_check(kvd_cache_move(e->device_k, at, (int)e->d, e->device_rows, back, stream),
                       what, err) ||
        (!back && kvd_queue_get(e->taken, e->device_rows, at * bytes, stream, what, err)) ||
        kvd_cuda_check(cudaStreamSynchronize(stream), what, err));
}

static kvd_bits_count bits_on_gpu(const kvd_host_entries *e, int side, size_t n)
{
    return e->form.exponent ? (kvd_bits_count){(double)n * e->token_bits[side], 0}
                            : kvd_bits_of_groups(n, e->d, side == KVD_KEYS, e->group, e->form.bits);
}

/* Returns which tokens of KV head i (counted over all layers) the GPU must quantise. Stores their
 * quantised size in bits in slot->head. */
static kvd_cache_codes code_later(const kvd_host_entries *e, const kvd_slot_entries *slot, size_t i)
{
    const kvd_plan *const p = e->method->plan;
    kvd_head_entries *const h = &slot->head[i];
    kvd_cache_codes to = {{0, 0}, {0, 0}, {1, 1}};
    for (int side = 0; side < KVD_N_SIDES; side++) {
        const size_t from = h->coded[side], n = h->ready[side] - from;
        size_t window, block;
        window_of(p, side, &window, &block);
        for (size_t at = 0, each; at < n; at += each) {
            each = slot->prompt || n - at < block ? n - at : block;
            note_bits(h, side, from + at, each, bits_on_gpu(e, side, each));
        }
        to.first[side] = n ? (int32_t)(h->at + from - h->from) : 0;
        to.n[side] = (int32_t)n;
        if (p->bits == &kvd_bits_fp8 || p->bits == &kvd_bits_nvfp4)
            to.scale[side] = kvd_scales_at(p->bits_self, (kvd_side)side, (int)(i / e->heads),
                                           (int)(i % e->heads));
        h->coded[side] = h->ready[side];
    }
    h->first = h->m;
    return to;
}

/* Makes the GPU quantise the new tokens of n KV heads of an iteration. The tokens must fit into
 * e->device_rows. */
static int code_on_gpu(kvd_host_entries *e, const kvd_iteration *it, size_t first, size_t n,
                       kvd_err *err)
{
    const cudaStream_t stream = e->method->cache->worker->stream;
    const size_t each = e->layers * e->heads;
    const int d = (int)e->d;
    size_t rows;
    if (list_rows(e, it, first, n, true, &rows, err))
        return -1;
#pragma omp parallel for schedule(static)
    for (size_t j = first; j < first + n; j++)
        e->codes[j - first] = code_later(e, &e->slot[it->slice[j / each].slot], j % each);
    return kvd_status(
        kvd_queue_put(e->device_codes, e->codes, n * sizeof *e->codes, stream, what, err) ||
        kvd_cuda_check(kvd_cache_move(e->device_k, rows, d, e->device_rows, false, stream), what,
                       err) ||
        kvd_cuda_check(
            kvd_cache_code(e->device_rows, d, e->device_codes, n, &e->form, (int)e->group, stream),
            what, err) ||
        kvd_cuda_check(kvd_cache_move(e->device_k, rows, d, e->device_rows, true, stream), what,
                       err) ||
        kvd_cuda_check(cudaStreamSynchronize(stream), what, err));
}

/* Quantises newly cached tokens of n KV heads on the CPU. The tokens must fit into e->rows. */
static int code_heads(kvd_host_entries *e, const kvd_iteration *it, size_t first, size_t n,
                      kvd_err *err)
{
    const size_t each = e->layers * e->heads, width = 2 * e->d;
    size_t *const from = malloc(n * sizeof *from), at = 0;
    int status =
        from ? move(e, it, first, n, false, err) : kvd_no_memory(err, what, n * sizeof *from);
    for (size_t j = 0; !status && j < n; j++) {
        kvd_head_entries *const h = e->list[first + j];
        from[j] = h->at;
        h->at = at;
        at += h->end - h->from;
    }
    const int saved = kvd_blas_serial();
#pragma omp parallel
    {
        scratch memory = {NULL, 0};
#pragma omp for schedule(dynamic)
        for (size_t j = 0; j < n; j++) {
            kvd_err mine;
            if (status ||
                !code_head(e, &e->slot[it->slice[(first + j) / each].slot], (first + j) % each,
                           e->taken + from[j] * width, &memory, &mine))
                continue;
#pragma omp critical(kvd_host_entries)
            {
                *err = mine;
                status = -1;
            }
        }
        free(memory.x);
    }
    kvd_blas_restore(saved);
    free(from);
    return status ? status : move(e, it, first, n, true, err);
}

int kvd_host_entries_note(kvd_host_entries *e, int layer, const int32_t *kept, cudaStream_t stream,
                          kvd_err *err)
{
    return e && e->kept ? kvd_queue_get(e->kept + (size_t)layer * e->heads * e->kept_rows, kept,
                                        e->heads * e->method->cache->batch->n_q8 * sizeof *kept,
                                        stream, what, err)
                        : 0;
}

int kvd_host_entries_ended(kvd_host_entries *e, const kvd_iteration *it, kvd_err *err)
{
    const size_t each = e->layers * e->heads, n = it->n_slices * each;
    for (size_t i = 0; i < it->n_slices; i++) {
        if (kvd_host_entries_update(e, &it->slice[i], i, err))
            return -1;
        for (size_t j = 0; j < each; j++) {
            e->list[i * each + j] = &e->slot[it->slice[i].slot].head[j];
            plan_head(e->method->plan, e->list[i * each + j]);
        }
    }
    for (size_t first = 0, end; first < n; first = end) {
        size_t taken = 0, written = 0;
        for (end = first; end < n; end++) {
            const kvd_head_entries *const h = e->list[end];
            taken += e->codes ? 1 : h->m - h->fresh;
            written += h->end - h->from;
            if (end > first && (taken > KVD_HOST_ENTRIES_ROWS || written > KVD_HOST_ENTRIES_ROWS))
                break;
        }
        if (e->codes ? code_on_gpu(e, it, first, end - first, err)
                     : code_heads(e, it, first, end - first, err))
            return -1;
    }
    for (size_t i = 0; i < it->n_slices; i++)
        count_bits(e, &e->slot[it->slice[i].slot]);
    return 0;
}

int kvd_host_entries_make(kvd_host_entries *e, size_t slots, kvd_err *err)
{
    e->n_slots = slots;
    return kvd_status(!(e->slot = kvd_new(slots, sizeof *e->slot, what, err)));
}

void kvd_host_entries_free(kvd_host_entries *e)
{
    if (!e)
        return;
    for (size_t i = 0; e->slot && i < e->n_slots; i++)
        kvd_host_entries_drop(e, i);
    free(e->slot);
    free(e->list);
    free(e->rope);
    free(e->back);
    kvd_device_release(&e->memory);
    free(e);
}

/* Counts the bits of a token that is quantised to a floating-point format. They do not depend on
 * the token's numbers. */
static int count_token(kvd_host_entries *e, kvd_err *err)
{
    const kvd_plan *const p = e->method->plan;
    float *const x = calloc(2 * e->d, sizeof *x);
    int status = x ? 0 : kvd_no_memory(err, what, 2 * e->d * sizeof *x);
    for (int side = 0; !status && side < KVD_N_SIDES; side++) {
        const kvd_bits_block b = {.side = (kvd_side)side, .n = 1, .d = e->d, .x = x};
        kvd_bits_count count = {0, 0};
        status = p->bits->code(p->bits_self, &b, x + e->d, &count, err);
        e->token_bits[side] = count.payload + count.side;
    }
    free(x);
    return status;
}

static int make_codes(kvd_host_entries *e, kvd_err *err)
{
    const kvd_plan *const p = e->method->plan;
    const bool floats = kvd_gpu_packed_has_floats(p);
    e->form.bits = (int32_t)kvd_gpu_packed_value(p, "bits");
    e->group = (size_t)kvd_gpu_packed_value(p, "group");
    if (floats)
        kvd_gpu_packed_set_floats(p, &e->form);
    e->codes = kvd_device_pinned(&e->memory, KVD_HOST_ENTRIES_ROWS * sizeof *e->codes, what, err);
    e->device_codes =
        kvd_device_new(&e->memory, KVD_HOST_ENTRIES_ROWS * sizeof *e->codes, what, err);
    return kvd_status(e->memory.status || (floats && count_token(e, err)));
}

int kvd_host_entries_new(kvd_gpu_method *m, const kvd_host_places *places, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_bits_method *const bits = m->plan->bits;
    kvd_host_entries *const e = m->kept = calloc(1, sizeof *e);
    if (!e)
        return kvd_no_memory(err, what, sizeof *e);
    *e = (kvd_host_entries){.method = m,
                            .places = *places,
                            .layers = (size_t)c->config->n_layers,
                            .heads = (size_t)c->config->n_kv_heads,
                            .d = (size_t)c->config->d_head,
                            .states = bits->states ? bits->states(m->plan->bits_self) : 1,
                            .max_len = c->max_len,
                            .kept_rows = c->batch->max_tokens + 8 * c->batch->max_slices};
    const size_t each = e->layers * e->heads,
                 rows = KVD_HOST_ENTRIES_ROWS * 2 * e->d * sizeof *e->rows,
                 list = c->batch->max_slices * each * sizeof *e->list;
    if (c->max_len > KVD_HOST_ENTRIES_ROWS)
        return kvd_fail(err, "%s: requests of up to %d tokens", what, KVD_HOST_ENTRIES_ROWS);
    if (!(e->list = malloc(list)))
        return kvd_no_memory(err, what, list);
    const bool turns = bits->keys_before_rope && c->config->positions == KVD_POSITIONS_ROPE;
    if (turns && (!(e->rope = kvd_host_codes_rope(c, false, err)) ||
                  !(e->back = kvd_host_codes_rope(c, true, err))))
        return -1;
    kvd_device_memory *const d = &e->memory;
    if (places->positions)
        e->positions = kvd_device_pinned(d, each * places->room * sizeof *e->positions, what, err);
    else if (bits->keys_before_rope || bits->exact_key)
        e->kept = kvd_device_pinned(d, each * e->kept_rows * sizeof *e->kept, what, err);
    if (bits == &kvd_bits_kivi || kvd_gpu_packed_has_floats(m->plan)) {
        if (make_codes(e, err))
            return -1;
    } else {
        e->rows = kvd_device_pinned(d, rows, what, err);
        e->taken = kvd_device_pinned(d, rows, what, err);
    }
    e->k = kvd_device_pinned(d, KVD_HOST_ENTRIES_ROWS * sizeof *e->k, what, err);
    e->device_rows = kvd_device_new(d, rows, what, err);
    e->device_k = kvd_device_new(d, KVD_HOST_ENTRIES_ROWS * sizeof *e->k, what, err);
    return d->status;
}
