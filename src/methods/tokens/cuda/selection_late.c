/*
 * Methods whose prompts drop tokens, the same ones in all KV heads of a layer, and whose steps read
 * clusters of the others (mpcache.c), in the CUDA engine. All layers share page numbers, and the
 * pages of a request have room for the layer with the most tokens.
 */
#include <stdlib.h>

#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/cuda/selection_method.h"
#include "methods/tokens/tokens.h"

static const char what[] = "selection of clusters";

typedef kvd_selection_method selection;

static selection *of(kvd_gpu_method *m)
{
    return (selection *)(void *)m;
}

static const selection *of_const(const kvd_gpu_method *m)
{
    return (const selection *)(const void *)m;
}

int32_t *kvd_selection_lengths_of(const selection *e, int layer)
{
    const kvd_paged_cache *const c = e->method.cache;
    return e->late.lengths + (size_t)c->kind_index[layer] * c->batch->max_slices;
}

size_t kvd_selection_cached(const selection *e, size_t slot, size_t layer, size_t n)
{
    return n && kvd_selection_is_late(e) ? e->late.entries[slot * e->layers + layer] : n;
}

/* Returns the largest number of cached tokens of a layer. New tokens have pages after these. */
static size_t entries(const kvd_gpu_method *m, size_t slot, size_t before)
{
    const selection *const e = of_const(m);
    size_t most = 0;
    for (size_t l = 0; before && l < e->layers; l++)
        most = kvd_selection_cached(e, slot, l, before) > most
                   ? kvd_selection_cached(e, slot, l, before)
                   : most;
    return most;
}

static double mean(const kvd_gpu_method *m, size_t slot)
{
    const selection *const e = of_const(m);
    size_t sum = 0;
    for (size_t l = 0; l < e->layers; l++)
        sum += kvd_selection_cached(e, slot, l, e->held[slot]);
    return (double)sum / (double)e->layers;
}

/* Sets the numbers of cached tokens, the new ones of steps included. */
static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    selection *const e = of(m);
    const size_t rows = m->cache->batch->max_slices, n = e->layers * rows;
    for (size_t i = 0; i < n; i++)
        e->late.length[i] = 1;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        if (i >= it->n_steps && s->before)
            return kvd_fail(err,
                            "method '%s' compresses a prompt in one piece: it goes without chunks",
                            m->plan->tokens->info.name);
        if (i < it->n_steps && s->before != e->tokens[s->slot])
            return kvd_fail(err,
                            "method '%s' cannot go on after %u tokens of request %u, which were "
                            "never computed",
                            m->plan->tokens->info.name, s->before, s->request);
        for (size_t l = 0; l < e->layers && i < it->n_steps; l++)
            e->late.length[l * rows + i] =
                (int32_t)kvd_selection_cached(e, s->slot, l, s->before) + 1;
    }
    return kvd_cuda_check(cudaMemcpyAsync(e->late.lengths, e->late.length,
                                          n * sizeof *e->late.length, cudaMemcpyHostToDevice,
                                          e->stream),
                          what, err);
}

void kvd_selection_late_ended(selection *e, const kvd_slice *s, size_t i)
{
    for (size_t l = 0; l < e->layers; l++)
        e->late.entries[s->slot * e->layers + l] =
            (size_t)e->late.length[l * e->method.cache->batch->max_slices + i];
    if (!s->last)
        kvd_pages_keep(e->method.cache->pages, s->slot, entries(&e->method, s->slot, 1) + 1);
}

/* Stores steps after the cached tokens of the layer. */
static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_paged_place at = {.pool = kvd_paged_cache_pool(c, r->layer),
                                .table = c->pages->device,
                                .kv_len = kvd_selection_lengths_of(of_const(m), r->layer),
                                .pitch = (int32_t)c->pages->max_pages};
    return kvd_paged_cache_append_at(m->cache, r, &at, err);
}

/* Drops tokens of prompts, and computes the bounds of the others. */
static int drop_tokens(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    selection *const e = of(m);
    const kvd_paged_cache *const c = m->cache;
    const kvd_step_batch *const b = c->batch;
    const size_t counts = e->layers * b->max_slices;
    if (!r->prompts)
        return 0;
    const kvd_selection s = kvd_selection_of_rows(e, r->layer, r->steps, r->prompts);
    kvd_evict_prompts_args a = {.map = s.map,
                                .budget = e->late.budget,
                                .layer = r->layer,
                                .batch = s.batch,
                                .n_q8 = (int32_t)b->n_q8,
                                .max_pages = s.max_pages,
                                .q_start = b->device.q_start + r->steps,
                                .q_len = b->device.q_len + r->steps,
                                .slot = s.slot,
                                .page_table = s.page_table,
                                .q = c->q_prompts,
                                .pool = kvd_paged_cache_pool(c, r->layer),
                                .lse = m->lse,
                                .mass = e->late.mass,
                                .kept = e->late.kept};
    int32_t *const length = kvd_selection_lengths_of(e, r->layer) + r->steps;
    for (size_t i = r->steps; i < r->steps + r->prompts; i++)
        a.longest = b->host.q_len[i] > a.longest ? b->host.q_len[i] : a.longest;
    return kvd_cuda_check(kvd_evict_mark(&a, e->rule.rows, e->rule.threshold, r->stream), what,
                          err) ||
                   kvd_cuda_check(kvd_evict_marked(&a, length, e->late.budget, r->stream), what,
                                  err) ||
                   kvd_cuda_check(kvd_selection_bounds(&s, length, a.longest, r->stream), what,
                                  err) ||
                   (c->kind_index[r->layer] + 1 == (int)e->layers &&
                    kvd_cuda_check(cudaMemcpyAsync(e->late.length, e->late.lengths,
                                                   counts * sizeof *e->late.length,
                                                   cudaMemcpyDeviceToHost, r->stream),
                                   what, err))
               ? -1
               : 0;
}

int kvd_selection_late_make(selection *e, kvd_err *err)
{
    const kvd_step_batch *const b = e->method.cache->batch;
    kvd_device_memory *const m = &e->memory;
    const size_t n = e->layers * b->max_slices, rows = b->max_tokens + 8 * b->max_slices,
                 bytes = n * sizeof *e->late.length;
    e->late.entries = calloc(e->n_slots * e->layers, sizeof *e->late.entries);
    if (!e->late.entries)
        return kvd_no_memory(err, what, e->n_slots * e->layers * sizeof *e->late.entries);
    if (kvd_cuda_check(cudaMallocHost((void **)&e->late.length, bytes), what, err) ||
        !(e->late.lengths = kvd_device_new(m, bytes, what, err)) ||
        !(e->late.budget = kvd_device_new(m, e->n_slots * sizeof *e->late.budget, what, err)) ||
        !(e->late.mass = kvd_device_new(m, rows * sizeof *e->late.mass, what, err)) ||
        !(e->late.kept = kvd_device_new(m, e->kv * rows * sizeof *e->late.kept, what, err)))
        return -1;
    /* Before the first iteration, every layer has one cached token. */
    for (size_t i = 0; i < n; i++)
        e->late.length[i] = 1;
    return kvd_device_put(e->late.lengths, e->late.length, bytes, what, err);
}

void kvd_selection_late_free(selection *e)
{
    (void)cudaFreeHost(e->late.length);
    free(e->late.entries);
}

void kvd_selection_late_describe(selection *e)
{
    e->method.whole_prompts = true;
    e->method.begin = begin;
    e->method.entries = entries;
    e->method.mean = mean;
    e->method.append = append;
    e->method.attended = drop_tokens;
}
