/*
 * Method strawman with two widths of tokens: important prompt tokens are stored with more columns
 * than others.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/dims/cuda/strawman_parts.h"
#include "methods/tokens/cuda/zdc_method.h"

static const char what[] = "two widths of tokens";

enum { OVERLAP = 2, MEAN /* indices in the parameter table of tokens/importance.c */ };

static const kvd_parameter_values *values_of(const kvd_strawman *s)
{
    return &s->method.plan->tokens_values;
}

static size_t layers_of(const kvd_strawman *s)
{
    return (size_t)s->method.cache->config->n_layers;
}

/* Returns the layer whose important tokens `layer` uses. */
static int first_of(const kvd_strawman *s, int layer)
{
    const int together = kvd_tokens_layers(values_of(s));
    return together ? layer - layer % together : layer;
}

/*
 * Sets low [n_layers][n], the columns that less important tokens keep, and the bytes that each such
 * token saves.
 */
static void describe(const kvd_strawman *s, kvd_latent_basis *low, double *saved)
{
    const int kv = s->method.cache->share->n_kv_heads;
    for (size_t l = 0; l < layers_of(s); l++)
        for (int i = 0; i < s->n; i++) {
            const int width =
                          kvd_strawman_width(s, s->method.plan->widths_low, (int)l, i / kv, i % kv),
                      rank = (width + 15) / 16 * 16;
            low[l * (size_t)s->n + (size_t)i] = (kvd_latent_basis){.width = width, .rank = rank};
            saved[l] += (double)(s->store.layer[l].rank[i / kv][i % kv] - rank) * sizeof(uint16_t);
        }
}

static int make_rows(kvd_strawman *s, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    kvd_strawman_levels *const v = &s->levels;
    kvd_device_memory *const m = &s->store.memory;
    const size_t rows = c->batch->max_tokens + 8 * c->batch->max_slices,
                 heads = (size_t)c->share->n_heads;
    if (!(v->lse = kvd_device_new(m, heads * rows * sizeof *v->lse, what, err)) ||
        !(v->value = kvd_device_new(m, rows * sizeof *v->value, what, err)) ||
        (kvd_zdc_sum_bytes(c) && !(v->sum = kvd_device_new(m, kvd_zdc_sum_bytes(c), what, err))) ||
        !(v->level = kvd_device_new(m, rows, what, err)) ||
        !(v->place = kvd_device_new(m, rows * sizeof *v->place, what, err)))
        return -1;
    s->method.lse = v->lse;
    return 0;
}

int kvd_strawman_levels_make(kvd_strawman *s, kvd_err *err)
{
    const size_t bytes = layers_of(s) * (size_t)s->n * sizeof(kvd_latent_basis);
    kvd_latent_basis *const low = malloc(bytes);
    s->levels.saved = calloc(layers_of(s), sizeof *s->levels.saved);
    int status = low && s->levels.saved ? 0 : kvd_no_memory(err, what, bytes);
    if (!status) {
        describe(s, low, s->levels.saved);
        s->levels.low = kvd_device_copy(&s->store.memory, low, bytes, what, s->w->stream, err);
        status = !s->levels.low || kvd_cuda_check(cudaStreamSynchronize(s->w->stream), what, err) ||
                         make_rows(s, err)
                     ? -1
                     : 0;
    }
    free(low);
    s->method.slot_bytes += layers_of(s) * sizeof *s->levels.n_low;
    return status;
}

int kvd_strawman_levels_make_slots(kvd_strawman *s, size_t slots, kvd_err *err)
{
    kvd_strawman_levels *const v = &s->levels;
    const size_t bytes = slots * layers_of(s) * sizeof *v->n_low;
    v->n_slots = slots;
    if (!(v->n_low = kvd_device_new(&s->store.memory, bytes, what, err)) ||
        kvd_device_zero(v->n_low, bytes, what, err) ||
        !(v->host_low = kvd_pinned_new(bytes, what, err)))
        return -1;
    memset(v->host_low, 0, bytes);
    return 0;
}

/*
 * Sets the numbers of less important tokens of slots whose prompts were never processed (timing
 * runs) from the prompt lengths.
 */
int kvd_strawman_levels_begin(kvd_strawman *s, const kvd_iteration *it, kvd_err *err)
{
    kvd_strawman_levels *const v = &s->levels;
    const int layers = (int)layers_of(s);
    bool changed = false;
    for (size_t i = 0; i < it->n_steps; i++) {
        const kvd_slice *const x = &it->slice[i];
        if (s->store.tokens[x->slot] && s->store.tokens[x->slot] <= x->before)
            continue;
        for (int l = 0; l < layers; l++) {
            const double share = kvd_tokens_important(values_of(s), first_of(s, l), layers);
            v->host_low[x->slot * (size_t)layers + (size_t)l] =
                (int32_t)((long)x->before - lround(share * (double)x->before));
        }
        changed = true;
    }
    return changed ? kvd_queue_put(v->n_low, v->host_low,
                                   v->n_slots * (size_t)layers * sizeof *v->n_low, s->w->stream,
                                   what, err)
                   : 0;
}

int kvd_strawman_levels_choose(kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_strawman_levels *const v = &s->levels;
    const int layers = (int)layers_of(s), together = kvd_tokens_layers(values_of(s)),
              left = layers - r->layer;
    kvd_zdc_choose_args a = {.pages = {.slot = c->batch->device.slot + r->steps,
                                       .n_low = v->n_low,
                                       .n_layers = layers,
                                       .layer = r->layer},
                             .batch = (int32_t)r->prompts,
                             .n_heads = c->share->n_heads,
                             .n_q8 = (int32_t)c->batch->n_q8,
                             .longest = 1,
                             .q_start = c->batch->device.q_start + r->steps,
                             .q_len = c->batch->device.q_len + r->steps,
                             .lse = v->lse,
                             .mean = values_of(s)->value[MEAN] > 0,
                             .share = kvd_tokens_important(values_of(s), r->layer, layers),
                             .span = !together         ? 1
                                     : together < left ? together
                                                       : left,
                             .overlap = together ? 2 : values_of(s)->value[OVERLAP],
                             .value = v->value,
                             .level = v->level,
                             .place = v->place};
    for (size_t i = r->steps; i < r->steps + r->prompts; i++)
        a.longest = c->batch->host.q_len[i] > a.longest ? c->batch->host.q_len[i] : a.longest;
    if (first_of(s, r->layer) == r->layer && kvd_zdc_choose_by_all(c, &a, v->sum, r->stream, err))
        return -1;
    return r->layer + 1 < layers ? 0
                                 : kvd_queue_get(v->host_low, v->n_low,
                                                 v->n_slots * (size_t)layers * sizeof *v->n_low,
                                                 r->stream, what, err);
}

int kvd_strawman_levels_narrow(const kvd_strawman *s, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = s->method.cache;
    const kvd_latent_slices at = kvd_latent_store_slices(&s->store, true, r->prompts);
    const kvd_latent_narrow_args a = {.s = at,
                                      .q_start = c->batch->device.q_start + r->steps,
                                      .level = s->levels.level,
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
    for (size_t slot = 0; slot < v->n_slots; slot++)
        for (size_t l = 0; s->store.tokens[slot] && l < layers_of(s); l++)
            v->less += (double)v->host_low[slot * layers_of(s) + l] * v->saved[l] -
                       (double)sizeof *v->n_low;
}

double kvd_strawman_levels_low(const kvd_strawman *s, size_t slot)
{
    const kvd_plan *const p = s->method.plan;
    const int kv = s->method.cache->share->n_kv_heads;
    double sum = 0;
    for (size_t l = 0; l < layers_of(s); l++) {
        int less = 0;
        for (int i = 0; i < s->n; i++)
            less += kvd_strawman_width(s, p->widths, (int)l, i / kv, i % kv) -
                    kvd_strawman_width(s, p->widths_low, (int)l, i / kv, i % kv);
        sum += (double)s->levels.host_low[slot * layers_of(s) + l] * less;
    }
    return sum;
}

size_t kvd_strawman_levels_tokens(const kvd_strawman *s, size_t slot)
{
    size_t sum = 0;
    for (size_t l = 0; l < layers_of(s); l++)
        sum += (size_t)s->levels.host_low[slot * layers_of(s) + l];
    return sum * (size_t)s->method.cache->share->n_kv_heads;
}

void kvd_strawman_levels_release(kvd_strawman *s)
{
    (void)cudaFreeHost(s->levels.host_low);
    free(s->levels.saved);
}
