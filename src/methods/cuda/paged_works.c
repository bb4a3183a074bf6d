/* Divides decode attention in a paged cache among CTAs, once for all layers whose heads have the
 * same dimensions. */
#include "methods/cuda/paged_cache.h"

#include <string.h>

static const char what[] = "cache";

kvd_gpu_method *kvd_paged_method_of(const kvd_paged_cache *c, int layer)
{
    kvd_gpu_method *const m = c->method;
    const bool skips =
        m && ((m->skips && m->skips[layer]) || (m->skips_windows && c->layer[layer].map.window));
    return skips ? NULL : m;
}

int kvd_paged_full_layer(const kvd_paged_cache *c, size_t l)
{
    int layer = 0;
    while (c->layer[layer].map.window || (size_t)c->kind_index[layer] != l)
        layer++;
    return layer;
}

/* Returns the page tables per KV head, or NULL if all KV heads cache the same tokens. */
static const kvd_gpu_heads *heads_of(const kvd_paged_cache *c)
{
    return c->method ? c->method->heads : NULL;
}

const kvd_pages *kvd_paged_pages_of(const kvd_paged_cache *c, const kvd_attn_map *map)
{
    return map->window ? c->near : c->pages;
}

const int32_t *kvd_paged_lens_of(const kvd_attn_map *map, const kvd_batch_lists *lists)
{
    return map->window ? lists->seq_len : lists->kv_len;
}

int32_t kvd_paged_longest(const kvd_paged_rows *r, const int32_t *n)
{
    int32_t longest = 0;
    for (size_t i = r->steps; i < r->steps + r->prompts; i++)
        longest = n[i] > longest ? n[i] : longest;
    return longest;
}

/* Assigns a layer to the group of layers with equal head dimensions, or starts a new group. */
static void number_layer(kvd_paged_cache *c, int layer)
{
    const kvd_attn_map *const map = &c->layer[layer].map;
    int i = 0;
    while (i < c->n_works && memcmp(c->work_map[i], map, sizeof *map) != 0)
        i++;
    c->work_of[layer] = i;
    if (i == c->n_works)
        c->work_map[c->n_works++] = map;
}

/* Adds the bytes of a layer's page to the sum over layers. If layers share pages, counts only the
 * largest page so far, whose size is *shared. */
static void count_bytes(kvd_paged_cache *c, int layer, size_t *shared)
{
    const kvd_attn_map *const map = &c->layer[layer].map;
    const kvd_gpu_method *const m = kvd_paged_method_of(c, layer);
    const size_t bytes = (size_t)map->page_elements * sizeof(uint16_t);
    size_t *const sum = map->window ? &c->near_page_bytes : &c->page_bytes;
    if (m && m->one_layer) {
        *sum += kvd_larger(bytes, *shared) - *shared;
        *shared = kvd_larger(bytes, *shared);
        return;
    }
    *sum += bytes;
    if (!map->window)
        c->kept_page_bytes += bytes;
}

int kvd_paged_works_number(kvd_paged_cache *c, kvd_err *err)
{
    const int n = c->config->n_layers;
    const size_t size = (size_t)n;
    kvd_device_memory *const m = &c->memory;
    c->work_of = kvd_device_host(m, size * sizeof *c->work_of, what, err);
    c->work_map = kvd_device_host(m, size * sizeof *c->work_map, what, err);
    c->workspace = kvd_device_host(m, 2 * size * sizeof *c->workspace, what, err);
    c->pool_at = kvd_device_host(m, size * sizeof *c->pool_at, what, err);
    if (m->status)
        return -1;
    for (int near = 0; near < 2; near++) {
        size_t shared = 0;
        for (int l = 0; l < n; l++)
            if ((c->layer[l].map.window > 0) == near) {
                number_layer(c, l);
                count_bytes(c, l, &shared);
            }
        if (!near)
            c->n_full_works = c->n_works;
    }
    if (c->whole)
        c->page_bytes += (size_t)c->whole->map.page_elements * sizeof(uint16_t);
    c->n_full_step_works = heads_of(c) ? c->n_full : c->n_full_works;
    c->n_step_works = c->n_full_step_works + c->n_works - c->n_full_works;
    return 0;
}

static const kvd_gpu_heads *heads_of_work(const kvd_paged_cache *c, int work)
{
    return work < c->n_full_step_works ? heads_of(c) : NULL;
}

static const kvd_attn_map *map_of_work(const kvd_paged_cache *c, int work)
{
    const kvd_gpu_heads *const h = heads_of_work(c, work);
    return h ? &h->map
           : work < c->n_full_step_works
               ? c->work_map[work]
               : c->work_map[work - c->n_full_step_works + c->n_full_works];
}

int kvd_paged_works_of(const kvd_paged_cache *c, int layer)
{
    return c->layer[layer].map.window ? c->work_of[layer] - c->n_full_works + c->n_full_step_works
           : heads_of(c)              ? c->kind_index[layer]
                                      : c->work_of[layer];
}

static size_t workspace_bytes(const kvd_paged_cache *c, int work, size_t max_len)
{
    const kvd_gpu_heads *const h = heads_of_work(c, work);
    const size_t rows = h ? h->rows : c->batch->max_slices;
    return kvd_rounded_up(
        kvd_decode_workspace_bytes(map_of_work(c, work), (int)rows, (int)max_len, c->n_sms), 256);
}

int kvd_paged_works_make(kvd_paged_cache *c, size_t max_len, kvd_err *err)
{
    const size_t n = (size_t)c->n_step_works * (c->batch->max_slices + 1);
    size_t bytes = 0, at = 0;
    if (!(c->ctas = kvd_device_host(&c->memory, n * sizeof *c->ctas, what, err)))
        return -1;
    memset(c->ctas, -1, n * sizeof *c->ctas);
    for (int i = 0; i < c->n_step_works; i++)
        bytes += workspace_bytes(c, i, max_len);
    char *const all = kvd_device_filled(&c->memory, bytes, 0, "work lists of attention", err);
    if (!all)
        return -1;
    for (int i = 0; i < c->n_step_works; i++) {
        c->workspace[i] = all + at;
        at += workspace_bytes(c, i, max_len);
    }
    return 0;
}

kvd_decode_args kvd_paged_works_args(const kvd_paged_cache *c, int work, size_t n)
{
    const kvd_gpu_heads *const h = heads_of_work(c, work);
    const size_t at = h ? (size_t)work * h->rows : 0;
    const kvd_attn_map *const map = map_of_work(c, work);
    kvd_decode_args a = {.dtype = KVD_BF16,
                         .map = *map,
                         .batch = (int32_t)n * (h ? c->share->n_kv_heads : 1),
                         .max_pages = (int32_t)c->pages->max_pages,
                         .kv_len = h ? h->kv_len + at : kvd_paged_lens_of(map, &c->batch->device),
                         .live = h ? h->live : c->batch->device.live,
                         .page_table = h ? h->table + at * c->pages->max_pages
                                         : kvd_paged_pages_of(c, map)->device,
                         .n_sinks = h ? c->share->n_heads : 0,
                         .q = c->q_steps,
                         .n_ctas = c->n_sms,
                         .workspace = c->workspace[work]};
    int8_t *const ctas = c->ctas + (size_t)work * (c->batch->max_slices + 1) + n;
    if (h || c->attention != KVD_ATTENTION_OURS)
        return a;
    if (*ctas < 0)
        *ctas = (int8_t)kvd_decode_ctas_per_task(&a, 0);
    a.ctas_per_task = *ctas;
    return a;
}

size_t kvd_paged_cache_works_bytes(const kvd_paged_cache *c)
{
    return (size_t)c->n_step_works * kvd_decode_plan_layer_bytes();
}

int kvd_paged_cache_describe(const kvd_paged_cache *c, size_t n, void *works, kvd_err *err)
{
    for (int i = 0; i < c->n_step_works; i++) {
        const kvd_decode_args a = kvd_paged_works_args(c, i, n);
        if (kvd_cuda_check(
                kvd_decode_plan_describe(&a, kvd_paged_cache_schedule(c, false),
                                         (char *)works + (size_t)i * kvd_decode_plan_layer_bytes()),
                what, err))
            return -1;
    }
    return 0;
}

/* Divides the decode attention of n requests among CTAs, for layer groups `first` .. `end` - 1. The
 * layers of a group have equal head dimensions. */
static int plan_some(const kvd_paged_cache *c, int first, int end, size_t n, const void *works,
                     cudaStream_t stream, kvd_err *err)
{
    bool planned = false;
    for (int i = first; i < end; i++)
        planned = planned || !kvd_paged_works_args(c, i, n).ctas_per_task;
    if (!planned)
        return 0;
    const kvd_decode_args a = kvd_paged_works_args(c, first, n);
    return kvd_cuda_check(
        kvd_decode_plan_layers(&a, kvd_paged_cache_schedule(c, false),
                               (const char *)works + (size_t)first * kvd_decode_plan_layer_bytes(),
                               end - first, stream),
        what, err);
}

int kvd_paged_cache_plan(const kvd_paged_cache *c, size_t n, const void *works, cudaStream_t stream,
                         kvd_err *err)
{
    kvd_gpu_method *const m = c->method;
    const int full = c->n_full_step_works, all = c->n_step_works;
    if (m && m->plan_steps)
        return kvd_status(m->plan_steps(m, n, stream, err) ||
                          (m->skips_windows && plan_some(c, full, all, n, works, stream, err)));
    if (!heads_of(c))
        return plan_some(c, 0, all, n, works, stream, err);
    return kvd_status(plan_some(c, 0, full, n, works, stream, err) ||
                      plan_some(c, full, all, n, works, stream, err));
}
