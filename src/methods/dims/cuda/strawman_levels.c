/* Method strawman with two classes of prompt tokens: important tokens keep more dimensions. In
 * layers with a sliding window, all tokens keep as many dimensions as important tokens. */
#include <stdlib.h>

#include "methods/dims/cuda/strawman_parts.h"

static const char what[] = "two widths of tokens";

/* Returns the number of layers without a sliding window. */
static size_t layers_of(const kvd_strawman *s)
{
    return (size_t)s->method.cache->n_full;
}

/* Sets how many dimensions of each head's K and V a less important token keeps (low), and how many
 * bytes that saves per layer (saved). */
static void describe(const kvd_strawman *s, kvd_latent_basis *low, double *saved)
{
    const int kv = s->method.cache->share->n_kv_heads;
    for (size_t l = 0; l < layers_of(s); l++) {
        const int layer = kvd_paged_full_layer(s->method.cache, l);
        for (int i = 0; i < s->n; i++) {
            const int width =
                          kvd_strawman_width(s, s->method.plan->widths_low, layer, i / kv, i % kv),
                      rank = (width + 15) / 16 * 16;
            low[layer * s->n + i] = (kvd_latent_basis){.width = width, .rank = rank};
            saved[l] +=
                (double)(s->store.layer[layer].rank[i / kv][i % kv] - rank) * sizeof(uint16_t);
        }
    }
}

int kvd_strawman_levels_make(kvd_strawman *s, kvd_err *err)
{
    kvd_device_memory *const m = &s->store.memory;
    const size_t bytes =
        (size_t)s->method.cache->config->n_layers * (size_t)s->n * sizeof(kvd_latent_basis);
    s->levels.saved = kvd_device_host(m, layers_of(s) * sizeof *s->levels.saved, what, err);
    if (!s->levels.saved)
        return -1;
    kvd_latent_basis *const low = calloc(1, bytes);
    if (!low)
        return kvd_no_memory(err, what, bytes);
    describe(s, low, s->levels.saved);
    s->levels.low = kvd_device_from(m, low, bytes, what, err);
    free(low);
    s->method.slot_bytes += layers_of(s) * sizeof *s->levels.of.n_low;
    const int status = kvd_zdc_levels_make(&s->levels.of, m, s->method.cache, err);
    s->method.lse = s->levels.of.lse;
    return status;
}

int kvd_strawman_levels_make_slots(kvd_strawman *s, size_t slots, kvd_err *err)
{
    return kvd_zdc_levels_make_slots(&s->levels.of, &s->store.memory, s->method.cache, slots, err);
}

int kvd_strawman_levels_begin(kvd_strawman *s, const kvd_iteration *it, kvd_err *err)
{
    bool changed = false;
    for (size_t i = 0; i < it->n_steps; i++) {
        const kvd_slice *const x = &it->slice[i];
        if (s->store.tokens[x->slot] && s->store.tokens[x->slot] <= x->before)
            continue;
        kvd_zdc_levels_suppose(&s->levels.of, s->method.plan, (int)layers_of(s), x->slot,
                               x->before);
        changed = true;
    }
    return changed ? kvd_zdc_levels_put(&s->levels.of, s->method.cache, s->w->stream, err) : 0;
}

int kvd_strawman_levels_choose(kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_zdc_levels *const v = &s->levels.of;
    const int layer = c->kind_index[r->layer];
    kvd_zdc_choose_args a = kvd_zdc_levels_args(v, c, s->method.plan, r);
    a.pages = (kvd_zdc_pages){.slot = c->batch->device.slot + r->steps,
                              .n_low = v->n_low,
                              .n_layers = c->n_full,
                              .layer = layer};
    if (kvd_zdc_first_of(s->method.plan, layer) == layer &&
        kvd_zdc_choose_by_all(c, &a, v, r->stream, err))
        return -1;
    return layer + 1 < c->n_full ? 0 : kvd_zdc_levels_get(v, c, r->stream, err);
}

int kvd_strawman_levels_narrow(const kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_latent_slices at = kvd_latent_store_slices(&s->store, r->layer, true, r->prompts);
    const kvd_latent_narrow_args a = {.s = at,
                                      .q_start = c->batch->device.q_start + r->steps,
                                      .level = s->levels.of.level,
                                      .important = KVD_ZDC_USED,
                                      .low = s->levels.low + r->layer * s->n,
                                      .n = s->n,
                                      .wide = s->wide,
                                      .rows = s->cut};
    return kvd_cuda_check(kvd_latent_narrow(&a, r->stream), what, err);
}

void kvd_strawman_levels_ended(kvd_strawman *s, const kvd_iteration *it)
{
    kvd_strawman_levels *const v = &s->levels;
    for (size_t i = 0; i < it->n_slices; i++)
        s->store.tokens[it->slice[i].slot] = it->slice[i].before + it->slice[i].n;
    v->less = 0;
    for (size_t slot = 0; slot < v->of.n_slots; slot++)
        for (size_t l = 0; s->store.tokens[slot] && l < layers_of(s); l++)
            v->less += (double)v->of.host_low[slot * layers_of(s) + l] * v->saved[l] -
                       (double)sizeof *v->of.n_low;
}

double kvd_strawman_levels_low(const kvd_strawman *s, size_t slot)
{
    const kvd_plan *const p = s->method.plan;
    const int kv = s->method.cache->share->n_kv_heads;
    double sum = 0;
    for (size_t l = 0; l < layers_of(s); l++) {
        const int layer = kvd_paged_full_layer(s->method.cache, l);
        int less = 0;
        for (int i = 0; i < s->n; i++)
            less += kvd_strawman_width(s, p->widths, layer, i / kv, i % kv) -
                    kvd_strawman_width(s, p->widths_low, layer, i / kv, i % kv);
        sum += (double)s->levels.of.host_low[slot * layers_of(s) + l] * less;
    }
    return sum;
}

size_t kvd_strawman_levels_tokens(const kvd_strawman *s, size_t slot)
{
    size_t sum = 0;
    for (size_t l = 0; l < layers_of(s); l++)
        sum += (size_t)s->levels.of.host_low[slot * layers_of(s) + l];
    return sum * (size_t)s->method.cache->share->n_kv_heads;
}
