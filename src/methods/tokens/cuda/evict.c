/* Token-dropping methods on the GPU in which all KV heads keep equally many tokens. */
#include <math.h>
#include <stdlib.h>

#include "methods/cuda/host_codes.h"
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/tokens.h"
#include "model/pass/batch.h"
#include "model/pass/blocks.h"

static const char what[] = "eviction";

typedef struct {
    size_t tokens, entries;
    /* Number of cached tokens of the request after the latest iteration. */
    double held;
    int32_t merged; /* value of kvd_evict_merging.merged before this request */
    /* Ring buffer of cache indices; each decode step overwrites K and V at the next index. */
    int32_t *place;
    /* place[oldest]: next cache index to overwrite. places: number of indices in `place`. */
    size_t oldest, places;
    /* For each cache index: position of the token in the sequence. Kept prompt tokens have
     * positions 0, 1, 2, ... */
    uint32_t *position;
} evict_slot;

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_evict_rule rule;
    kvd_evict_state state;
    bool steps;
    /* True if decode steps drop tokens by score, so that scores and positions must be stored. */
    bool notes;
    size_t n_slots, max_len, n_q8;
    evict_slot *slot;
    kvd_evict_budget *budget;
    kvd_evict_budget *there;
    /* Data for merging dropped tokens into kept ones, and a copy in pinned memory of
     * merging.merged, the number of tokens merged in each slot. */
    kvd_evict_merging merging;
    int32_t *merged;
    float *mass, *score, *lse, *lse_steps, *work;
    float *distance;
    int32_t *kept;
    /* True if tokens are ranked by the sum of the scores of KV heads that are on several GPUs. */
    bool joined;
    float *sums;
    /* Data for expected-attention scores: for layers with the usual RoPE base, then for layers with
     * rope_local_theta. */
    kvd_evict_expected expected[2];
    kvd_evict_trained trained;
    const kvd_latent_store *latents; /* NULL if K and V are stored */
    /* Bytes of a token in all layers without a sliding window: K, V, score and position, summed
     * over KV heads. */
    double entry_bytes;
    cudaStream_t stream;
    kvd_device_memory memory;
} evict;

static kvd_evict_budget budget_of(const kvd_plan *p, size_t n, size_t whole)
{
    const kvd_evict_request r = {.prompt = n, .whole = whole, .n_layers = 1};
    /* cppcheck-suppress returnDanglingLifetime ; The result has no pointer to r. */
    return p->tokens->eviction->budget(&p->tokens_values, &r);
}

/* Returns the number of cached tokens after a decode step, given n before it. */
static size_t left_of(const kvd_evict_budget *b, size_t n)
{
    const size_t limit = (size_t)b->limit, all = n + 1, recent = (size_t)b->recent;
    if (all <= limit || !b->drop)
        return kvd_smaller(all, limit);
    const size_t over = all - limit, drop = over > (size_t)b->drop ? over : (size_t)b->drop;
    return all - kvd_smaller(drop, all > recent ? all - recent : 0);
}

static int set_budget(evict *e, const kvd_slice *s, size_t prompt, kvd_err *err)
{
    const size_t whole = s->whole ? s->whole : e->max_len;
    if (whole > e->max_len || whole < (size_t)s->before + s->n)
        return kvd_fail(err, "request %u has %u tokens of %zu, the engine was made for %zu",
                        s->request, s->before + s->n, whole, e->max_len);
    e->budget[s->slot] = budget_of(e->method.plan, prompt, whole);
    return 0;
}

static void list_places(const evict *e, size_t slot)
{
    evict_slot *const s = &e->slot[slot];
    const size_t at = (size_t)e->budget[slot].at;
    s->oldest = 0;
    s->places = e->rule.fixed && s->entries > at ? s->entries - at : 0;
    for (size_t i = 0; i < s->places; i++)
        s->place[i] = (int32_t)(at + i);
    for (size_t i = 0; e->rule.fixed && i < s->entries; i++)
        s->position[i] = (uint32_t)i;
}

/* Chooses the cache index of the newest token: the first free one or, if the token budget is full,
 * that of the oldest token that may be dropped. */
static void choose_place(const evict *e, const kvd_slice *s)
{
    evict_slot *const slot = &e->slot[s->slot];
    kvd_evict_budget *const b = &e->budget[s->slot];
    const double n = (double)slot->entries + 1,
                 most = b->share > 0 ? ceil(b->share * ((double)s->before + 1)) : (double)b->limit;
    int32_t newest = (int32_t)slot->entries;
    b->place = -1;
    if (n > most && slot->places) {
        newest = b->place = slot->place[slot->oldest];
        slot->oldest = (slot->oldest + 1) % e->max_len;
        slot->places--;
    }
    slot->place[(slot->oldest + slot->places++) % e->max_len] = newest;
    slot->position[newest] = s->before;
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    evict *const e = (evict *)m;
    bool changed = false;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        evict_slot *const slot = &e->slot[s->slot];
        if (i < it->n_steps && slot->tokens == s->before) {
            if (e->rule.fixed)
                choose_place(e, s);
            changed = changed || e->rule.fixed;
            continue;
        }
        /* If a timing run begins with a decode step, the earlier tokens (s->before) count as the
         * prompt. */
        if (set_budget(e, s, s->before ? s->before : s->n, err))
            return -1;
        *slot = (evict_slot){.tokens = s->before,
                             .entries = kvd_evict_kept(&e->budget[s->slot], s->before),
                             .merged = e->rule.merge ? e->merged[s->slot] : 0,
                             .place = slot->place,
                             .position = slot->position};
        list_places(e, s->slot);
        if (i < it->n_steps && e->rule.fixed)
            choose_place(e, s);
        changed = true;
    }
    return changed ? kvd_queue_put(e->there, e->budget, e->n_slots * sizeof *e->budget, e->stream,
                                   what, err)
                   : 0;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    evict *const e = (evict *)m;
    (void)err;
    for (size_t i = 0; i < e->n_slots; i++)
        e->slot[i].held = (double)e->slot[i].entries;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        evict_slot *const slot = &e->slot[s->slot];
        const kvd_evict_budget *const b = &e->budget[s->slot];
        slot->entries = i >= it->n_steps ? kvd_evict_kept(b, s->n)
                        : e->rule.fixed  ? slot->entries + (b->place < 0)
                                         : left_of(b, slot->entries);
        if (i >= it->n_steps)
            list_places(e, s->slot);
        slot->tokens += s->n;
        slot->held = (double)slot->entries;
        if (s->last)
            slot->tokens = slot->entries = 0;
        else /* keeps pages for the cached tokens and the next token */
            kvd_pages_keep(m->cache->pages, s->slot, slot->entries + 1);
    }
    return 0;
}

static size_t entries(const kvd_gpu_method *m, size_t slot, size_t before)
{
    return before ? ((const evict *)m)->slot[slot].entries : 0;
}

static size_t merged(const kvd_gpu_method *m, size_t slot)
{
    const evict *const e = (const evict *)m;
    return e->rule.merge ? (size_t)(e->merged[slot] - e->slot[slot].merged) : 0;
}

static double held(const kvd_gpu_method *m)
{
    const evict *const e = (const evict *)m;
    double n = 0;
    for (size_t i = 0; i < e->n_slots; i++)
        n += e->slot[i].held;
    return n * e->entry_bytes;
}

static kvd_evict_state state_of(const evict *e, int layer)
{
    kvd_evict_state s = e->state;
    s.layer = e->method.cache->kind_index[layer];
    return s;
}

static kvd_evict_latents latents_of(const evict *e, int layer)
{
    const kvd_latent_store *const s = e->latents;
    const size_t heads = s ? (size_t)s->cache->share->n_kv_heads : 0;
    if (!s)
        return (kvd_evict_latents){0};
    return (kvd_evict_latents){.pool = kvd_latent_store_pool(s, layer),
                               .page = s->layer[layer].page,
                               .head = s->head + (size_t)layer * heads,
                               .positions = s->layer[layer].positions};
}

static int after_steps(evict *e, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_attn_map *const map = &c->layer[r->layer].map;
    const kvd_evict_steps_args a = {
        .map = *map,
        .rule = e->rule,
        .state = state_of(e, r->layer),
        .budget = e->there,
        .layer = r->layer,
        .batch = (int32_t)r->steps,
        .max_pages = (int32_t)c->pages->max_pages,
        .splits = c->hopper ? kvd_evict_splits(map, r->steps, (size_t)e->state.room, c->n_sms) : 1,
        .kv_len = c->batch->device.kv_len,
        .slot = c->batch->device.slot,
        .at = c->batch->device.step_at,
        .page_table = c->pages->device,
        .q = c->q_steps,
        .pool = kvd_paged_cache_pool(c, r->layer),
        .latents = latents_of(e, r->layer),
        .lse = e->method.lse_steps,
        .work = e->work,
        .sums = e->sums,
        .merging = e->merging};
    if (kvd_cuda_check(kvd_evict_steps(&a, r->stream), what, err))
        return -1;
    return e->sums && !e->rule.fixed
               ? kvd_gpu_method_add_up(&e->method, e->sums, r->steps * (size_t)e->state.room,
                                       r->stream, err) ||
                     kvd_cuda_check(kvd_evict_steps_drop(&a, r->stream), what, err)
               : 0;
}

static kvd_evict_expected expected_of(const evict *e, int layer)
{
    const kvd_paged_cache *const c = e->method.cache;
    kvd_evict_expected x = e->expected[kvd_rope_local(c->config, layer)];
    const size_t first = kvd_batch_rope_layer(c->config, c->max_len, layer) * (size_t)x.half;
    x.cosine = c->cosine ? c->cosine + first : NULL;
    x.sine = c->sine ? c->sine + first : NULL;
    return x;
}

static int join_prompts(const evict *e, kvd_evict_prompts_args *a, cudaStream_t stream,
                        kvd_err *err)
{
    const kvd_gpu_share *const share = e->method.cache->share;
    const size_t n = (size_t)a->n_q8;
    if (kvd_cuda_check(kvd_evict_sum_heads(a, stream), what, err) ||
        kvd_gpu_method_add_up(&e->method, e->mass, n, stream, err) ||
        (e->rule.anchor && kvd_gpu_method_add_up(&e->method, e->distance, n, stream, err)))
        return -1;
    a->summed = 1;
    a->n_heads = share->n_heads * share->count;
    return 0;
}

kvd_evict_prompts_args kvd_evict_prompts_of(const kvd_paged_cache *c, const kvd_paged_rows *r,
                                            int layer)
{
    const kvd_step_batch *const b = c->batch;
    return (kvd_evict_prompts_args){.map = c->layer[layer].map,
                                    .hopper = c->hopper,
                                    .layer = layer,
                                    .batch = (int32_t)r->prompts,
                                    .n_q8 = (int32_t)b->n_q8,
                                    .max_pages = (int32_t)c->pages->max_pages,
                                    .longest = kvd_paged_longest(r, b->host.q_len),
                                    .q_start = b->device.q_start + r->steps,
                                    .q_len = b->device.q_len + r->steps,
                                    .slot = b->device.slot + r->steps,
                                    .page_table = c->pages->device + r->steps * c->pages->max_pages,
                                    .q = c->q_prompts,
                                    .pool = kvd_paged_cache_pool(c, layer)};
}

void kvd_evict_prompts_whole(const kvd_paged_cache *c, kvd_evict_prompts_args *a)
{
    if (!c->whole)
        return;
    a->map = c->whole[a->layer].map;
    a->pool = c->whole_pool;
}

static int after_prompts(evict *e, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    kvd_evict_prompts_args a = kvd_evict_prompts_of(c, r, r->layer);
    a.rule = e->rule;
    a.state = state_of(e, r->layer);
    a.budget = e->there;
    a.lse = e->lse;
    a.mass = e->mass;
    a.distance = e->distance;
    a.score = e->score;
    a.kept = e->kept;
    a.merging = e->merging;
    a.latents = latents_of(e, r->layer);
    if (e->rule.ranking == KVD_EVICT_EXPECTED)
        a.expected = expected_of(e, r->layer);
    /* Tokens are scored by their keys before projection (`whole`), but kvd_evict_choose moves the
     * projected keys that the cache stores (`a`). */
    kvd_evict_prompts_args whole = a;
    kvd_evict_prompts_whole(c, &whole);
    return kvd_status((e->rule.ranking == KVD_EVICT_TRAINED
                           ? kvd_evict_trained_score(&e->trained, &e->method, r, e->score, err)
                           : kvd_cuda_check(kvd_evict_score_any(&whole, r->stream), what, err)) ||
                      (e->joined && join_prompts(e, &a, r->stream, err)) ||
                      kvd_cuda_check(kvd_evict_choose(&a, r->stream), what, err) ||
                      kvd_host_entries_note(e->method.kept, r->layer, e->kept, r->stream, err));
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    evict *const e = (evict *)m;
    return kvd_status((r->steps && e->steps && after_steps(e, r, err)) ||
                      (r->prompts && after_prompts(e, r, err)) ||
                      (e->rule.merge && state_of(e, r->layer).layer + 1 == e->state.n_layers &&
                       kvd_queue_get(e->merged, e->merging.merged, e->n_slots * sizeof *e->merged,
                                     r->stream, what, err)));
}

static void release(kvd_gpu_method *m)
{
    evict *const e = (evict *)m;
    kvd_device_release(&e->memory);
    free(e);
}

static size_t entry_state_bytes(const evict *e)
{
    return sizeof *e->state.score + sizeof *e->state.position +
           (e->rule.ranking == KVD_EVICT_PIVOTAL ? sizeof *e->state.rows : 0);
}

int kvd_evict_merging_work(kvd_evict_merging *g, kvd_device_memory *m, size_t n, kvd_err *err)
{
    g->into = kvd_device_new(m, n * sizeof *g->into, what, err);
    g->weight = kvd_device_new(m, n * sizeof *g->weight, what, err);
    g->length = kvd_device_new(m, n * sizeof *g->length, what, err);
    return m->status;
}

int kvd_evict_merging_slots(kvd_evict_merging *g, kvd_device_memory *m, size_t n_slots,
                            int32_t **host, kvd_err *err)
{
    g->merged = kvd_device_filled(m, n_slots * sizeof *g->merged, 0, what, err);
    *host = kvd_device_pinned(m, n_slots * sizeof **host, what, err);
    return m->status;
}

static int make_merging(evict *e, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const size_t heads = e->n_slots * (size_t)c->config->n_layers * (size_t)c->share->n_kv_heads;
    kvd_evict_merging *const g = &e->merging;
    /* Bytes 0xff make every threshold NaN, which means that the KV head has not dropped a token
     * yet. */
    g->threshold = kvd_device_filled(&e->memory, heads * sizeof *g->threshold, 0xff, what, err);
    return kvd_evict_merging_slots(g, &e->memory, e->n_slots, &e->merged, err);
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    evict *const e = (evict *)m;
    const size_t places = slots * m->slot_bytes / entry_state_bytes(e),
                 bytes = places * sizeof *e->state.score, rows = places * sizeof *e->state.rows;
    (void)pages;
    e->stream = stream;
    e->n_slots = slots - 1; /* the last slot is padding */
    e->state.n_slots = (int32_t)e->n_slots;
    kvd_device_memory *const d = &e->memory;
    if (!(e->slot = kvd_device_host(d, slots * sizeof *e->slot, what, err)))
        return -1;
    for (size_t i = 0; e->rule.fixed && i < e->n_slots; i++) {
        e->slot[i].place = kvd_device_host(d, e->max_len * sizeof *e->slot->place, what, err);
        e->slot[i].position = kvd_device_host(d, e->max_len * sizeof *e->slot->position, what, err);
    }
    e->budget = kvd_device_pinned(d, slots * sizeof *e->budget, what, err);
    e->there = kvd_device_filled(d, slots * sizeof *e->there, 0, "budgets", err);
    if (e->notes) {
        e->state.score = kvd_device_filled(d, bytes, 0, "scores of entries", err);
        e->state.position = kvd_device_filled(d, bytes, 0, "positions of entries", err);
    }
    if (e->rule.ranking == KVD_EVICT_PIVOTAL)
        e->state.rows = kvd_device_filled(d, rows, 0, "histories of entries", err);
    return d->status || (e->rule.merge && make_merging(e, err)) ? -1 : 0;
}

/* Fills x->future [positions][half][2]. Row n has the means of RoPE's cosines and of its sines over
 * the positions n .. n + rule.future - 1. */
static int make_future(evict *e, bool local, kvd_evict_expected *x, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const size_t half = (size_t)x->half, future = (size_t)e->rule.future, rows = e->max_len + 1,
                 floats = rows * half * 2, all = (rows + future) * half;
    float *const host = malloc((floats + 2 * all) * sizeof *host);
    if (!host)
        return kvd_no_memory(err, "means of the rope table", (floats + 2 * all) * sizeof *host);
    float *const cosine = host + floats, *const sine = cosine + all;
    kvd_rope_tables(c->config, local, e->max_len, rows + future, cosine, sine);
    x->square = cosine[0] * cosine[0];
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < half; i++) {
        double sum[2] = {0, 0};
        for (size_t t = 0; t < rows + future; t++) {
            if (t >= future) {
                const size_t n = t - future;
                host[(n * half + i) * 2] = (float)(sum[0] / (double)future);
                host[(n * half + i) * 2 + 1] = (float)(sum[1] / (double)future);
                sum[0] -= (double)cosine[n * half + i];
                sum[1] -= (double)sine[n * half + i];
            }
            sum[0] += (double)cosine[t * half + i];
            sum[1] += (double)sine[t * half + i];
        }
    }
    float *const there =
        kvd_device_new(&e->memory, floats * sizeof *host, "means of the rope table", err);
    x->future = there;
    const int status = !there || kvd_device_put(there, host, floats * sizeof *host, what, err);
    free(host);
    return status ? -1 : 0;
}

static int make_expected(evict *e, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    float *const work =
        kvd_device_new(&e->memory, kvd_evict_expected_bytes(c->share->n_heads, c->config->d_head),
                       "moments of queries", err);
    if (!work)
        return -1;
    for (int local = 0; local < 2; local++) {
        kvd_evict_expected *const x = &e->expected[local];
        *x = (kvd_evict_expected){.dims = (int32_t)kvd_config_rope_dims(c->config),
                                  .half = c->config->d_head / 2,
                                  .interleaved = c->config->rope_layout == KVD_ROPE_INTERLEAVED,
                                  .square = 1,
                                  .work = work};
        if (c->cosine && (!local || c->config->rope_local_theta > 0) &&
            make_future(e, local, x, err))
            return -1;
    }
    return 0;
}

static int make_merging_work(evict *e, size_t all, size_t heads, kvd_err *err)
{
    kvd_evict_merging *const g = &e->merging;
    const size_t near =
        kvd_evict_near_bytes(&e->method.cache->layer[0].map, e->method.cache->batch->max_slices);
    g->victim = kvd_device_new(&e->memory, heads * sizeof *g->victim, what, err);
    g->near = kvd_device_new(&e->memory, near, what, err);
    return kvd_evict_merging_work(g, &e->memory, all, err);
}

static int make_work(evict *e, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const size_t slices = c->batch->max_slices, rows = c->batch->max_tokens + 8 * slices;
    const size_t heads = (size_t)c->share->n_heads, kv = (size_t)c->share->n_kv_heads;
    const size_t sums = e->joined && e->notes ? slices * (size_t)e->state.room : 0;
    const size_t work = e->rule.tau0 > 0 || e->rule.ranking == KVD_EVICT_PIVOTAL
                            ? kvd_evict_steps_bytes(&c->layer[0].map, slices, (size_t)e->state.room)
                            : 0;
    kvd_device_memory *const m = &e->memory;
    e->mass = kvd_device_new(m, heads * rows * sizeof *e->mass, what, err);
    e->lse = kvd_device_new(m, heads * rows * sizeof *e->lse, what, err);
    e->lse_steps = kvd_device_new(m, slices * heads * sizeof *e->lse, what, err);
    e->score = kvd_device_new(m, kv * rows * sizeof *e->score, what, err);
    e->kept = kvd_device_new(m, kv * rows * sizeof *e->kept, what, err);
    e->distance = kvd_device_new(m, e->rule.anchor ? rows * sizeof *e->distance : 0, what, err);
    e->work = kvd_device_new(m, work, what, err);
    e->sums = sums ? kvd_device_new(m, sums * sizeof *e->sums, what, err) : NULL;
    return kvd_status(m->status ||
                      (e->rule.merge && make_merging_work(e, kv * rows, slices * kv, err)) ||
                      (e->rule.ranking == KVD_EVICT_EXPECTED && make_expected(e, err)) ||
                      (e->rule.ranking == KVD_EVICT_TRAINED &&
                       kvd_evict_trained_make(&e->trained, &e->method, m, err)));
}

/* Returns the bytes of the scores and positions of a token in all layers and KV heads. */
static size_t notes_bytes(const evict *e)
{
    const kvd_paged_cache *const c = e->method.cache;
    return e->notes ? (size_t)c->n_full * (size_t)c->share->n_kv_heads * entry_state_bytes(e) : 0;
}

static void describe(evict *e, const kvd_plan *plan)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_evict_budget most = budget_of(plan, 1, e->max_len);
    e->steps = plan->tokens->step || plan->tokens->step_heads;
    e->rule = (kvd_evict_rule){.seed = plan->seed,
                               .smooth = 1,
                               .first_head = c->share->first_kv_head * c->layer[0].map.group};
    if (plan->tokens->eviction->rule)
        plan->tokens->eviction->rule(&plan->tokens_values, &e->rule);
    e->notes = e->steps && !e->rule.fixed &&
               (e->rule.ranking == KVD_EVICT_ATTENTION || e->rule.ranking == KVD_EVICT_PIVOTAL);
    e->joined = e->rule.whole_layer && c->share->count > 1;
    e->state.n_layers = c->n_full;
    e->state.room = kvd_evict_count(kvd_smaller(e->max_len, (size_t)most.limit) + 1);
    e->method.slot_bytes = notes_bytes(e) * (size_t)e->state.room;
    e->entry_bytes = (double)notes_bytes(e);
    for (int l = 0; l < c->config->n_layers; l++)
        if (!c->layer[l].map.window)
            e->entry_bytes +=
                (double)c->layer[l].map.page_elements * sizeof(uint16_t) / KVD_PAGE_TOKENS;
}

static const char *other_member(const kvd_plan *p)
{
    return p->layers                                    ? p->layers->info.name
           : p->maker && !(p->dims && p->dims->rebuild) ? p->maker->info.name
           : p->channels                                ? p->channels->info.name
           : p->dims_low                                ? "widths of a low level"
           : p->bits && !kvd_host_codes_take_entries(p) ? p->bits->info.name
                                                        : NULL;
}

static size_t count_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head)
{
    (void)layer, (void)kv_head;
    return ((const evict *)m)->slot[slot].entries;
}

static uint16_t *entry_row(const kvd_gpu_method *m, size_t slot, int layer, int kv_head,
                           size_t place)
{
    return kvd_paged_cache_row(m->cache, slot, layer, kv_head, place);
}

/* Returns the position in the sequence of the token at cache index `place`, if decode steps
 * overwrite the last b->recent cache indices in turn. */
static uint32_t streamed(const kvd_evict_budget *b, size_t tokens, size_t place)
{
    const size_t limit = (size_t)b->limit, recent = (size_t)b->recent, prompt = (size_t)b->prompt,
                 whole = prompt > limit ? prompt : limit, k = place - (limit - recent);
    if (tokens <= limit || place < limit - recent)
        return (uint32_t)place;
    return (uint32_t)(tokens > whole + k ? whole + k + (tokens - whole - 1 - k) / recent * recent
                                         : whole - recent + k);
}

static int entry_positions(const kvd_gpu_method *m, size_t slot, uint32_t *to, cudaStream_t stream,
                           kvd_err *err)
{
    const evict *const e = (const evict *)m;
    const kvd_evict_state *const s = &e->state;
    const size_t kv = (size_t)m->cache->share->n_kv_heads, room = (size_t)s->room,
                 each = (size_t)s->n_layers * kv * room, pitch = kv * room * sizeof *to;
    for (size_t i = 0; !e->notes && i < each; i++)
        to[i] = i % room >= e->slot[slot].entries ? 0
                : e->rule.fixed                   ? e->slot[slot].position[i % room]
                                : streamed(&e->budget[slot], e->slot[slot].tokens, i % room);
    if (!e->notes)
        return 0;
    const uint32_t *const from = s->position + slot * each;
    /* If all KV heads keep the same tokens, the device stores positions only for the first head.
     * They are copied to all heads. */
    for (size_t g = 0; e->rule.whole_layer && g < kv; g++)
        if (kvd_cuda_check(cudaMemcpy2DAsync(to + g * room, pitch, from, pitch, room * sizeof *to,
                                             (size_t)s->n_layers, cudaMemcpyDeviceToHost, stream),
                           what, err))
            return -1;
    return e->rule.whole_layer ? 0 : kvd_queue_get(to, from, each * sizeof *to, stream, what, err);
}

static int code_entries(evict *e, kvd_err *err)
{
    const kvd_host_places places = {.count = count_entries,
                                    .row = entry_row,
                                    .positions = e->steps ? entry_positions : NULL,
                                    .room = (size_t)e->state.room};
    return e->steps && !e->notes && !e->rule.fixed && e->rule.ranking != KVD_EVICT_FIRST
               ? kvd_fail(err, "the CUDA engine runs '%s' without codes",
                          e->method.plan->tokens->info.name)
               : kvd_host_entries_new(&e->method, &places, err);
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (other_member(plan) || (plan->bits && !cache->generates))
        return kvd_fail(
            err, "the CUDA engine runs '%s' with methods of the dims axis alone, not with '%s'",
            plan->tokens->info.name,
            other_member(plan) ? other_member(plan) : plan->bits->info.name);
    if (plan->dims && !cache->exact_prompts && !cache->exact_method &&
        plan->tokens->eviction->whole_keys)
        return kvd_fail(err,
                        "'%s' after a method of the dims axis: it ranks tokens by whole keys, the "
                        "CUDA engine has cut keys alone",
                        plan->tokens->info.name);
    evict *const e = calloc(1, sizeof *e);
    if (!e)
        return kvd_no_memory(err, what, sizeof *e);
    *m = &e->method;
    e->max_len = cache->max_len;
    e->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .skips_windows = true,
                                 .anywhere = true,
                                 .whole_prompts = true,
                                 .pre_of_prompts = true,
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .entries = entries,
                                 .merged = merged,
                                 .held = held,
                                 .attended = attended,
                                 .free = release};
    describe(e, plan);
    if (e->rule.ranking == KVD_EVICT_TRAINED)
        cache->hook.wants_pre |= cache->cosine && !cache->hook.wants_raw;
    if (make_work(e, err) || (plan->bits && code_entries(e, err)))
        return -1;
    /* True if token scores need the softmax denominators from the attention kernels. */
    const bool reads = e->rule.ranking == KVD_EVICT_PIVOTAL ||
                       e->rule.ranking == KVD_EVICT_IMPORTANT ||
                       (e->rule.ranking == KVD_EVICT_ATTENTION && !(e->rule.tau0 > 0));
    e->method.lse = reads ? e->lse : NULL;
    e->method.lse_steps = reads && e->notes ? e->lse_steps : NULL;
    return 0;
}

void kvd_gpu_evict_latents(kvd_gpu_method *m, const kvd_latent_store *store)
{
    evict *const e = (evict *)m;
    e->latents = store;
    e->entry_bytes = store->token_bytes + (double)notes_bytes(e);
}

int kvd_gpu_evict_read(const kvd_gpu_method *m, size_t slot, int layer, int kv_head, float *score,
                       uint32_t *position, size_t *n, kvd_err *err)
{
    const evict *const e = (const evict *)m;
    const size_t index = (size_t)m->cache->kind_index[layer];
    const size_t at =
        ((slot * (size_t)e->state.n_layers + index) * (size_t)m->cache->share->n_kv_heads +
         (size_t)kv_head) *
        (size_t)e->state.room;
    *n = e->slot[slot].entries;
    return kvd_status(kvd_cuda_check(cudaMemcpy(score, e->state.score + at, *n * sizeof *score,
                                                cudaMemcpyDeviceToHost),
                                     what, err) ||
                      kvd_cuda_check(cudaMemcpy(position, e->state.position + at,
                                                *n * sizeof *position, cudaMemcpyDeviceToHost),
                                     what, err));
}

static bool generates(const kvd_plan *plan)
{
    return !(plan->dims && plan->dims->rebuild) && !other_member(plan);
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

const kvd_gpu_kind kvd_gpu_evict = {.computes = computes,
                                    .joins_heads = kvd_gpu_heads_apart,
                                    .generates = generates,
                                    .codes_on_host = kvd_host_codes_take_entries,
                                    .before_rope = kvd_host_codes_take_entries,
                                    .open = open_method};
