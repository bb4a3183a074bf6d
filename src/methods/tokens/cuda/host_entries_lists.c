/* For methods that drop tokens: lists the cached tokens of every KV head by age, as the CPU engine
 * does. */
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/cuda/host_entries_parts.h"

static const char what[] = KVD_HOST_ENTRIES_WHAT;

void kvd_host_entries_drop(kvd_host_entries *e, size_t slot)
{
    kvd_slot_entries *const s = &e->slot[slot];
    for (size_t i = 0; s->head && i < e->layers * e->heads; i++) {
        kvd_head_entries *const h = &s->head[i];
        free(h->position);
        free(h->place);
        free(h->bits[KVD_KEYS]);
        free(h->bits[KVD_VALUES]);
        free(h->row);
        free(h->state);
    }
    free(s->head);
    *s = (kvd_slot_entries){0};
}

static int reserve(const kvd_host_entries *e, kvd_head_entries *h, size_t n, kvd_err *err)
{
    if (n <= h->room)
        return 0;
    const size_t room = n + n / 4 + 64;
    uint32_t *const position = realloc(h->position, room * sizeof *position);
    h->position = position ? position : h->position;
    uint32_t *const place = realloc(h->place, room * sizeof *place);
    h->place = place ? place : h->place;
    bool all = position && place;
    for (int side = 0; side < KVD_N_SIDES; side++) {
        double *const bits = realloc(h->bits[side], room * sizeof *bits);
        h->bits[side] = bits ? bits : h->bits[side];
        all = all && bits;
    }
    if (!h->state)
        h->state = calloc(KVD_N_SIDES * e->states, sizeof *h->state);
    if (!all || !h->state)
        return kvd_no_memory(err, what, room * sizeof *position);
    h->room = room;
    return 0;
}

static void remove_entries(const kvd_host_entries *e, kvd_head_entries *h, const bool *stays)
{
    size_t m = 0, coded[KVD_N_SIDES] = {0, 0}, before = 0;
    for (size_t i = 0; i < h->m; i++) {
        if (!stays[i]) {
            for (int side = 0; side < KVD_N_SIDES; side++)
                h->sum -= i < h->coded[side] ? h->bits[side][i] : 0;
            continue;
        }
        for (int side = 0; side < KVD_N_SIDES; side++) {
            coded[side] += i < h->coded[side];
            h->bits[side][m] = h->bits[side][i];
        }
        before += i < h->first;
        if (i >= h->first)
            memmove(h->row + (m - before) * 2 * e->d, h->row + (i - h->first) * 2 * e->d,
                    2 * e->d * sizeof *h->row);
        h->position[m] = h->position[i];
        h->place[m++] = h->place[i];
    }
    h->m = m;
    h->first = before;
    memcpy(h->coded, coded, sizeof coded);
}

static int by_position(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Updates the list of a KV head's cached tokens to the n tokens that are now in its pages. position
 * [n] has their positions in the sequence. `where` [max_len] is scratch memory. */
static int match(const kvd_host_entries *e, kvd_head_entries *h, const uint32_t *position, size_t n,
                 int64_t newest, uint32_t *where, kvd_err *err)
{
    uint64_t *const added = malloc((n + 1) * sizeof *added);
    bool *const stays = malloc(h->m + 1);
    size_t n_added = 0;
    if (!added || !stays) {
        free(added);
        free(stays);
        return kvd_no_memory(err, what, n * sizeof *added);
    }
    for (size_t i = 0; i < h->m; i++)
        where[h->position[i]] = UINT32_MAX;
    for (size_t p = 0; p < n; p++)
        if ((int64_t)position[p] > h->seen)
            added[n_added++] = (uint64_t)position[p] << 32 | p;
        else
            where[position[p]] = (uint32_t)p;
    for (size_t i = 0; i < h->m; i++) {
        stays[i] = where[h->position[i]] != UINT32_MAX;
        h->place[i] = where[h->position[i]];
    }
    remove_entries(e, h, stays);
    qsort(added, n_added, sizeof *added, by_position);
    int status = h->m + n_added == n
                     ? reserve(e, h, n, err)
                     : kvd_fail(err, "%s: %zu entries of %zu are known", what, h->m + n_added, n);
    for (size_t i = 0; !status && i < n_added; i++, h->m++) {
        h->position[h->m] = (uint32_t)(added[i] >> 32);
        h->place[h->m] = (uint32_t)added[i];
    }
    h->fresh = n - n_added;
    h->seen = newest;
    free(added);
    free(stays);
    return status;
}

/* Returns the sequence position of a new token of a request. `place` is its index among the cached
 * tokens of KV head i. Heads are counted over all layers. */
static uint32_t position_of(const kvd_host_entries *e, const kvd_slice *s, size_t row, size_t i,
                            size_t place)
{
    const kvd_step_batch *const b = e->method->cache->batch;
    const size_t fresh = e->slot[s->slot].head[i].fresh;
    if (!e->kept)
        return (uint32_t)place;
    return s->before
               ? s->before + (uint32_t)(place - fresh)
               : (uint32_t)e->kept[i / e->heads * e->heads * e->kept_rows + i % e->heads * b->n_q8 +
                                   (size_t)b->host.q_start[row] + place];
}

/* Appends new tokens to the list of cached tokens of KV head i (counted over all layers) until it
 * has n tokens. Removes none. */
static int extend(const kvd_host_entries *e, const kvd_slice *s, size_t row, size_t i, size_t n,
                  kvd_err *err)
{
    kvd_head_entries *const h = &e->slot[s->slot].head[i];
    if (n <= h->m)
        return kvd_fail(err, "%s: %zu entries after %zu, expected more", what, n, h->m);
    if (reserve(e, h, n, err))
        return -1;
    h->fresh = h->m;
    for (; h->m < n; h->m++) {
        h->position[h->m] = position_of(e, s, row, i, h->m);
        h->place[h->m] = (uint32_t)h->m;
    }
    return 0;
}

/* Computes how many bits a KV head stores for tokens outside the sliding window (h->unseen). Then
 * removes such tokens from the head's list, in whole blocks. */
static int leave_window(const kvd_host_entries *e, kvd_head_entries *h, size_t before, size_t n,
                        kvd_err *err)
{
    const size_t window = e->method->cache->window, seen = n > window ? n - window : 0,
                 first = kvd_gpu_first_held(e->method, window, n);
    bool *const stays = malloc(h->m + 1);
    if (!stays)
        return kvd_no_memory(err, what, h->m);
    h->unseen = 0;
    for (size_t i = 0; before && i < h->m && h->position[i] < seen; i++)
        for (int side = 0; side < KVD_N_SIDES; side++)
            h->unseen += i < h->coded[side] ? h->bits[side][i] : 16 * (double)e->d;
    for (size_t i = 0; i < h->m; i++)
        stays[i] = h->position[i] >= first;
    if (h->m && !stays[0])
        remove_entries(e, h, stays);
    free(stays);
    return 0;
}

/* For a layer with a sliding window: removes the tokens that have left the window from a KV head's
 * list of cached tokens, and appends the new tokens. */
static int slide(const kvd_host_entries *e, const kvd_slice *s, kvd_head_entries *h, kvd_err *err)
{
    const size_t n = (size_t)s->before + s->n,
                 first = kvd_gpu_first_held(e->method, e->method->cache->window, n);
    if (leave_window(e, h, s->before, n, err) || reserve(e, h, n - first, err))
        return -1;
    h->fresh = h->m;
    for (; h->m < n - first; h->m++)
        h->position[h->m] = h->place[h->m] = (uint32_t)(first + h->m);
    return 0;
}

/* Updates the list of cached tokens of KV head i after an iteration with the new tokens *s.
 *
 * - i: index among the heads of all layers
 * - row: index of *s in the iteration
 * - where: scratch memory [max_len] */
static int update_head(const kvd_host_entries *e, const kvd_slice *s, size_t row, size_t i,
                       uint32_t *where, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method->cache;
    const int layer = (int)(i / e->heads), kv_head = (int)(i % e->heads);
    kvd_head_entries *const h = &e->slot[s->slot].head[i];
    if (c->layer[layer].map.window)
        return slide(e, s, h, err);
    const size_t n = e->places.count(e->method, s->slot, layer, kv_head),
                 head = (size_t)c->kind_index[layer] * e->heads + (size_t)kv_head;
    return e->places.positions ? match(e, h, e->positions + head * e->places.room, n,
                                       (int64_t)s->before + s->n - 1, where, err)
                               : extend(e, s, row, i, n, err);
}

int kvd_host_entries_update(kvd_host_entries *e, const kvd_slice *s, size_t row, kvd_err *err)
{
    const kvd_gpu_method *const m = e->method;
    const cudaStream_t stream = m->cache->worker->stream;
    kvd_slot_entries *const slot = &e->slot[s->slot];
    const size_t n = e->layers * e->heads;
    slot->prompt = !s->before;
    if (slot->prompt) {
        kvd_host_entries_drop(e, s->slot);
        slot->prompt = true;
        if (!(slot->head = calloc(n, sizeof *slot->head)))
            return kvd_no_memory(err, what, n * sizeof *slot->head);
        for (size_t i = 0; i < n; i++)
            slot->head[i].seen = -1;
    }
    if (e->places.positions && (e->places.positions(m, s->slot, e->positions, stream, err) ||
                                kvd_cuda_check(cudaStreamSynchronize(stream), what, err)))
        return -1;
    int status = 0;
#pragma omp parallel
    {
        uint32_t *const where = malloc(e->max_len * sizeof *where);
#pragma omp for schedule(static)
        for (size_t i = 0; i < n; i++) {
            kvd_err mine;
            const int failed = where ? update_head(e, s, row, i, where, &mine)
                                     : kvd_no_memory(&mine, what, e->max_len * sizeof *where);
#pragma omp critical(kvd_host_entries)
            if (failed) {
                *err = mine;
                status = -1;
            }
        }
        free(where);
    }
    return status;
}
