/* Methods on the GPU whose KV heads keep different numbers of cached tokens. */
#include <math.h>
#include <stdlib.h>

#include "methods/cuda/host_codes.h"
#include "methods/tokens/cuda/uneven.h"
#include "model/checkpoint/cuda/random.h"

static const char what[] = "eviction with budgets of heads";

typedef kvd_uneven uneven;
typedef kvd_uneven_slot uneven_slot;

static size_t index_of(const uneven *e, int layer)
{
    return (size_t)e->method.cache->kind_index[layer];
}

static size_t most_of(const uneven *e, const kvd_evict_budget *b, size_t n)
{
    const size_t newest = kvd_smaller(n, (size_t)b->keep_new), own = (size_t)b->keep_own,
                 mean = kvd_smaller((size_t)b->keep_old, n);
    return newest + kvd_smaller(n - newest, own < mean ? own + e->all * (mean - own) : mean);
}

static int set_budgets(uneven *e, const kvd_slice *s, size_t prompt, kvd_err *err)
{
    const kvd_plan *const p = e->method.plan;
    const kvd_paged_cache *const c = e->method.cache;
    /* True if only layers without a sliding window share the method's token budget. */
    const bool some = p->tokens->rank != NULL;
    kvd_evict_request r = {.prompt = prompt,
                           .whole = s->whole ? s->whole : e->max_len,
                           .n_layers = some ? (int)e->layers : c->config->n_layers};
    if (r.whole > e->max_len || r.whole < (size_t)s->before + s->n)
        return kvd_fail(err, "request %u has %u tokens of %zu, the engine was made for %zu",
                        s->request, s->before + s->n, r.whole, e->max_len);
    for (int l = 0; l < c->config->n_layers; l++) {
        if (c->layer[l].map.window)
            continue;
        r.layer = some ? (int)index_of(e, l) : l;
        e->budget[index_of(e, l) * e->n_slots + s->slot] =
            p->tokens->eviction->budget(&p->tokens_values, &r);
    }
    return 0;
}

/* Assigns pages to the KV heads of a request. For a prompt, each KV head gets room for the tokens
 * that may stay, or for all tokens if their number is unknown. For a decode step, it gets room for
 * one more token. */
static int hold(uneven *e, const kvd_slice *s, size_t i, bool fresh, kvd_err *err)
{
    for (size_t l = 0; l < e->layers; l++)
        for (size_t g = 0; g < e->kv; g++) {
            const size_t head = (s->slot * e->layers + l) * e->kv + g,
                         row = l * e->heads.rows + i * e->kv + g;
            const size_t n = s->before ? e->entries[head] + 1
                             : e->late.on || e->whole || e->rule.merge
                                 ? s->n
                                 : most_of(e, &e->budget[l * e->n_slots + s->slot], s->n);
            if (kvd_pages_hold(&e->pages, head, n, fresh, err))
                return kvd_in(err, "request %u, layer %zu, KV head %zu", s->request, l, g);
            kvd_pages_row(&e->pages, row, head);
            e->length[row] = kvd_evict_count(n);
        }
    return 0;
}

/* For timing runs that begin with a decode step: sets each KV head's number of cached tokens to the
 * number that would stay after a prompt. */
static void assume(uneven *e, const kvd_slice *s)
{
    for (size_t l = 0; l < e->layers; l++)
        for (size_t g = 0; g < e->kv; g++)
            e->entries[(s->slot * e->layers + l) * e->kv + g] =
                e->method.cache->share->first_kv_head + (int)g < (int)e->whole
                    ? s->before
                    : kvd_evict_kept(&e->budget[l * e->n_slots + s->slot], s->before);
    e->slot[s->slot].tokens = s->before;
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    uneven *const e = (uneven *)m;
    const size_t lengths = e->layers * e->heads.rows + 1;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        const bool fresh = s->before == 0 || e->slot[s->slot].tokens != s->before;
        if (fresh && set_budgets(e, s, s->before ? s->before : s->n, err))
            return -1;
        if (fresh && s->before)
            assume(e, s);
        if (fresh && e->rule.merge)
            e->slot[s->slot].merged = e->merged[s->slot];
        if (e->prompt)
            e->prompt[i] = (int32_t)s->n;
        if (hold(e, s, i, fresh, err))
            return -1;
    }
    e->length[lengths - 1] = (int32_t)(it->n_steps * e->kv);
    return kvd_status(
        kvd_pages_upload(&e->pages, e->stream, err) ||
        kvd_queue_put(e->lengths, e->length, lengths * sizeof *e->length, e->stream, what, err) ||
        (it->n_slices > it->n_steps &&
         kvd_queue_put(e->there, e->budget, e->layers * e->n_slots * sizeof *e->budget, e->stream,
                       what, err)) ||
        (e->prompt && kvd_queue_put(e->prompts, e->prompt, it->n_slices * sizeof *e->prompt,
                                    e->stream, what, err)));
}

static void drop(kvd_gpu_method *m, size_t slot)
{
    uneven *const e = (uneven *)m;
    const size_t heads = e->layers * e->kv;
    for (size_t h = slot * heads; h < (slot + 1) * heads; h++) {
        kvd_pages_give_back(&e->pages, h);
        e->entries[h] = 0;
    }
    e->slot[slot].tokens = 0;
}

static double held_by(const uneven *e, size_t slot)
{
    const size_t heads = e->layers * e->kv;
    double n = 0;
    for (size_t h = slot * heads; h < (slot + 1) * heads; h++)
        n += (double)e->entries[h];
    return n;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    uneven *const e = (uneven *)m;
    if (*e->late.err.msg)
        return kvd_fail(err, "%s", e->late.err.msg);
    for (size_t s = 0; s < e->n_slots; s++)
        e->slot[s].held = held_by(e, s);
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        for (size_t l = 0; l < e->layers; l++)
            for (size_t g = 0; g < e->kv; g++) {
                const size_t head = (s->slot * e->layers + l) * e->kv + g;
                e->entries[head] = i < it->n_steps
                                       ? e->entries[head] + 1
                                       : (size_t)e->counted[(l * e->n_slots + s->slot) * e->kv + g];
                /* Keeps pages for the KV head's cached tokens and one more token, and frees its
                 * other pages. */
                kvd_pages_keep(&e->pages, head, e->entries[head] + 1);
            }
        e->slot[s->slot].tokens += s->n;
        e->slot[s->slot].held = held_by(e, s->slot);
        if (s->last)
            drop(m, s->slot);
        else
            /* Keeps one bf16 page for the request's next token, and frees the request's other
             * pages. */
            kvd_pages_keep(m->cache->pages, s->slot, 1);
    }
    return 0;
}

/* Returns how many tokens stay in bf16 pages: none. */
static size_t entries(const kvd_gpu_method *m, size_t slot, size_t before)
{
    (void)m, (void)slot, (void)before;
    return 0;
}

static size_t merged(const kvd_gpu_method *m, size_t slot)
{
    const uneven *const e = (const uneven *)m;
    return e->rule.merge ? (size_t)(e->merged[slot] - e->slot[slot].merged) : 0;
}

static double mean(const kvd_gpu_method *m, size_t slot)
{
    const uneven *const e = (const uneven *)m;
    return held_by(e, slot) / (double)(e->layers * e->kv);
}

static double held(const kvd_gpu_method *m)
{
    const uneven *const e = (const uneven *)m;
    double n = 0;
    for (size_t s = 0; s < e->n_slots; s++)
        n += e->slot[s].held;
    return n * (double)e->page_bytes / KVD_PAGE_TOKENS;
}

static const int32_t *table_of(const uneven *e, int layer, size_t slice)
{
    return e->heads.table +
           (index_of(e, layer) * e->heads.rows + slice * e->kv) * e->method.cache->pages->max_pages;
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const uneven *const e = (uneven *)m;
    const kvd_paged_cache *const c = m->cache;
    const kvd_uneven_step_args a = {.map = c->layer[r->layer].map,
                                    .batch = (int32_t)r->steps,
                                    .max_pages = (int32_t)c->pages->max_pages,
                                    .slot = c->batch->device.slot,
                                    .n_slots = (int32_t)e->n_slots,
                                    .from_table = c->pages->device,
                                    .from = kvd_paged_cache_pool(c, r->layer),
                                    .kv_len = e->lengths + index_of(e, r->layer) * e->heads.rows,
                                    .table = table_of(e, r->layer, 0),
                                    .heads = e->heads.pool};
    return kvd_status(r->steps && (kvd_cuda_check(kvd_uneven_step(&a, r->stream), what, err) ||
                                   kvd_clock_end(c->clock, KVD_PHASE_APPEND, r->stream, err)));
}

kvd_uneven_prompts_args kvd_uneven_prompts_of(const uneven *e, const kvd_paged_rows *r, int layer)
{
    const kvd_paged_cache *const c = e->method.cache;
    const size_t at = index_of(e, layer) * e->n_slots;
    kvd_uneven_prompts_args a = {.prompt = kvd_evict_prompts_of(c, r, layer),
                                 .n_all = (int32_t)e->all,
                                 .first = e->all > e->kv ? c->share->first_kv_head : 0,
                                 .least = e->least,
                                 .rank = e->rank,
                                 .whole = (int32_t)e->whole,
                                 .vector = e->vector,
                                 .is_whole = e->is_whole,
                                 .count = e->count + at * e->kv,
                                 .table = table_of(e, layer, r->steps),
                                 .heads = e->heads.pool,
                                 .layer_counts = e->n_slots * e->kv};
    a.prompt.rule = e->rule;
    a.prompt.budget = e->there + at;
    a.prompt.lse = e->lse;
    a.prompt.mass = e->mass;
    a.prompt.score = e->score;
    a.prompt.kept = e->kept;
    a.prompt.merging = e->merging;
    if (e->prompt) {
        a.prompt.q_len = e->prompts + r->steps;
        a.prompt.longest = kvd_paged_longest(r, e->prompt);
    }
    if (e->late.on) {
        a.rank = e->late.rank + index_of(e, layer) * e->late.ranks * c->batch->n_q8;
        a.statistic = e->late.pair ? (e->joined ? e->late.own : e->late.pair) + at * 2 : NULL;
        a.spread = e->late.spread;
    }
    return a;
}

/* Copies K and V of the chosen tokens to pages of their KV heads. If several layers keep the same
 * tokens, the first of them chooses for all. */
static int choose_windows(const uneven *e, kvd_uneven_prompts_args *a, cudaStream_t stream,
                          kvd_err *err)
{
    const int index = (int)index_of(e, a->prompt.layer), left = (int)e->layers - index;
    a->layers = left < e->rule.layers ? left : e->rule.layers;
    if (index % e->rule.layers == 0 &&
        (kvd_cuda_check(kvd_uneven_review(a, stream), what, err) ||
         (e->joined && kvd_gpu_method_add_up(&e->method, a->prompt.score, (size_t)a->prompt.n_q8,
                                             stream, err)) ||
         kvd_cuda_check(kvd_uneven_windows(a, stream), what, err)))
        return -1;
    return kvd_cuda_check(kvd_uneven_copy(a, stream), what, err);
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    uneven *const e = (uneven *)m;
    const bool last = index_of(e, r->layer) + 1 == e->layers;
    if (!r->prompts)
        return 0;
    kvd_uneven_prompts_args a = kvd_uneven_prompts_of(e, r, r->layer);
    if (e->late.on && e->joined && index_of(e, r->layer) == 0 &&
        kvd_uneven_clear(e, r->stream, err))
        return -1;
    if (e->late.on ? kvd_cuda_check(kvd_uneven_rank(&a, r->stream), what, err) ||
                         kvd_cuda_check(kvd_uneven_store(&a, r->stream), what, err) ||
                         (last && kvd_uneven_after_layers(e, r, err))
        : e->rule.merge  ? kvd_cuda_check(kvd_uneven_runs(&a, r->stream), what, err)
        : e->rule.review ? choose_windows(e, &a, r->stream, err)
        : e->rank        ? kvd_uneven_choose_joined(e, &a, r->stream, err)
                         : kvd_cuda_check(kvd_uneven_prompts(&a, r->stream), what, err))
        return -1;
    if (!e->late.on && kvd_host_entries_note(m->kept, r->layer, e->kept, r->stream, err))
        return -1;
    if (last && e->rule.merge &&
        kvd_queue_get(e->merged, e->merging.merged, e->n_slots * sizeof *e->merged, r->stream, what,
                      err))
        return -1;
    return last ? kvd_queue_get(e->counted, e->count,
                                e->layers * e->n_slots * e->kv * sizeof *e->count, r->stream, what,
                                err)
                : 0;
}

static void release(kvd_gpu_method *m)
{
    uneven *const e = (uneven *)m;
    kvd_device_release(&e->memory);
    kvd_pages_release(&e->pages);
    free(e);
}

/* Allocates the pages and fills them with random numbers, for timing runs. */
static int make_pool(uneven *e, size_t pages, cudaStream_t stream, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    const size_t heads = e->layers * e->kv, rows = e->layers * e->heads.rows,
                 bytes = pages * heads * e->page_bytes;
    if (kvd_pages_init(&e->pages, pages * heads, e->n_slots * heads, rows, c->pages->max_pages,
                       err))
        return -1;
    e->heads.pool = kvd_device_new(&e->memory, bytes, "the cache", err);
    e->lengths = kvd_device_new(&e->memory, (rows + 1) * sizeof *e->lengths, "lengths", err);
    e->length = kvd_device_pinned(&e->memory, (rows + 1) * sizeof *e->length, what, err);
    if (e->memory.status)
        return -1;
    for (size_t i = 0; i <= rows; i++)
        e->length[i] = 1;
    e->heads.table = e->pages.device;
    e->heads.kv_len = e->lengths;
    e->heads.live = e->lengths + rows;
    return kvd_status(
        kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, bytes / sizeof(uint16_t),
                                           e->heads.pool, stream),
                       what, err) ||
        kvd_cuda_check(
            cudaMemsetAsync(e->pages.device, 0, kvd_pages_bytes(rows, c->pages->max_pages), stream),
            what, err) ||
        kvd_queue_put(e->lengths, e->length, (rows + 1) * sizeof *e->length, stream, what, err));
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    uneven *const e = (uneven *)m;
    e->stream = stream;
    e->n_slots = slots - 1; /* the last slot is padding */
    const size_t heads = e->layers * e->kv, budgets = e->layers * e->n_slots,
                 counts = heads * e->n_slots;
    kvd_device_memory *const d = &e->memory;
    e->slot = kvd_device_host(d, e->n_slots * sizeof *e->slot, what, err);
    e->entries = kvd_device_host(d, counts * sizeof *e->entries, what, err);
    e->budget = kvd_device_pinned(d, budgets * sizeof *e->budget, what, err);
    e->counted = kvd_device_pinned(d, counts * sizeof *e->counted, what, err);
    e->there = kvd_device_new(d, budgets * sizeof *e->there, "budgets", err);
    e->count = kvd_device_filled(d, counts * sizeof *e->count, 0, "counts", err);
    const size_t pairs = kvd_uneven_gpus(e) * 2 * budgets * sizeof *e->late.pairs;
    if (e->late.spreads) {
        e->late.pair = kvd_device_new(d, pairs, "statistics of all layers", err);
        e->late.own = kvd_device_new(d, pairs, "statistics of all layers", err);
        e->late.pairs = kvd_device_pinned(d, pairs, "statistics of all layers", err);
    }
    if (e->rule.merge)
        (void)kvd_evict_merging_slots(&e->merging, d, e->n_slots, &e->merged, err);
    return d->status || make_pool(e, pages, stream, err) ? -1 : 0;
}

static int make_work(uneven *e, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const size_t slices = c->batch->max_slices, rows = c->batch->max_tokens + 8 * slices,
                 heads = (size_t)c->share->n_heads, d = (size_t)c->config->d_head,
                 vectors = slices * e->all;
    kvd_device_memory *const m = &e->memory;
    e->mass = kvd_device_new(m, heads * rows * sizeof *e->mass, what, err);
    e->lse = kvd_device_new(m, heads * rows * sizeof *e->lse, what, err);
    e->score = kvd_device_new(m, e->kv * rows * sizeof *e->score, what, err);
    e->kept = kvd_device_new(m, e->kv * rows * sizeof *e->kept, what, err);
    e->least = kvd_device_new(m, slices * (e->all + 1) * sizeof *e->least, what, err);
    e->vector = kvd_device_new(m, vectors * d * sizeof *e->vector, what, err);
    e->is_whole = kvd_device_new(m, vectors * sizeof *e->is_whole, what, err);
    if (!e->late.on && e->all != e->kv)
        e->rank = kvd_device_new(m, e->all * rows * sizeof *e->rank, what, err);
    if (e->rule.merge)
        (void)kvd_evict_merging_work(&e->merging, m, e->kv * rows, err);
    return m->status || (e->late.on && kvd_uneven_make_late(e, rows, slices, err)) ? -1 : 0;
}

static int describe(uneven *e, const kvd_plan *plan, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_config *const config = c->config;
    kvd_attn_heads one = {config->n_heads / config->n_kv_heads, 1, config->d_head, {0}, {0}, 0};
    one.d_qk[0] = one.d_v[0] = config->d_head;
    if (kvd_attn_map_make(&one, &e->heads.map))
        return kvd_fail(err,
                        "'%s' with heads of %d: the CUDA engine's kernels take multiples of %d",
                        plan->tokens->info.name, config->d_head, KVD_WIDTH_STEP);
    e->heads.map.scale = c->layer[0].map.scale;
    e->rule = (kvd_evict_rule){.seed = plan->seed, .smooth = 1};
    if (plan->tokens->eviction->rule)
        plan->tokens->eviction->rule(&plan->tokens_values, &e->rule);
    e->layers = (size_t)c->n_full;
    e->kv = (size_t)c->share->n_kv_heads;
    e->late.shared = e->rule.ranking == KVD_EVICT_REPEATED;
    e->joined = c->share->count > 1;
    e->all = e->joined && (e->late.shared || plan->tokens == &kvd_tokens_adakv ||
                           plan->tokens == &kvd_tokens_taskkv)
                 ? (size_t)config->n_kv_heads
                 : e->kv;
    e->whole = kvd_smaller((size_t)ceil(e->rule.whole_heads * (double)e->all), e->all);
    e->late.on = e->late.shared || plan->tokens->eviction->divide != NULL;
    e->late.spreads = e->rule.ranking == KVD_EVICT_SPREAD;
    e->late.ranks = e->rule.whole_layer ? 1 : e->all;
    e->page_bytes = (size_t)e->heads.map.page_elements * sizeof(uint16_t);
    e->heads.rows = c->batch->max_slices * e->kv;
    e->method.page_bytes = e->layers * e->kv * e->page_bytes;
    e->method.heads = &e->heads;
    return make_work(e, err);
}

static bool generates(const kvd_plan *plan)
{
    return !kvd_gpu_method_beside_tokens(plan) || kvd_host_codes_take_entries(plan);
}

static size_t head_of(const uneven *e, size_t slot, int layer, int kv_head)
{
    return (slot * e->layers + index_of(e, layer)) * e->kv + (size_t)kv_head;
}

size_t kvd_gpu_uneven_entries(const kvd_gpu_method *m, size_t slot, int layer, int kv_head)
{
    const uneven *const e = (const uneven *)m;
    return e->entries[head_of(e, slot, layer, kv_head)];
}

static uint16_t *entry_row(const kvd_gpu_method *m, size_t slot, int layer, int kv_head,
                           size_t place)
{
    const uneven *const e = (const uneven *)m;
    const kvd_page_slot *const list = &e->pages.slot[head_of(e, slot, layer, kv_head)];
    const size_t page = (size_t)list->page[place / KVD_PAGE_TOKENS], t = place % KVD_PAGE_TOKENS;
    return (uint16_t *)e->heads.pool + page * (size_t)e->heads.map.page_elements +
           t / 8 * 8 * (size_t)e->heads.map.d_qk[0] + t % 8 * 8;
}

static const kvd_host_places places = {.count = kvd_gpu_uneven_entries, .row = entry_row};

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (kvd_gpu_method_beside_tokens(plan) && !(cache->generates && generates(plan)))
        return kvd_fail(err, "the CUDA engine runs '%s' alone, not with '%s'",
                        plan->tokens->info.name, kvd_gpu_method_beside_tokens(plan));
    uneven *const e = calloc(1, sizeof *e);
    if (!e)
        return kvd_no_memory(err, what, sizeof *e);
    *m = &e->method;
    e->max_len = cache->max_len;
    e->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .skips_windows = true,
                                 .anywhere = true,
                                 .whole_prompts = true,
                                 .attended_prompts = true,
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .entries = entries,
                                 .merged = merged,
                                 .mean = mean,
                                 .drop = drop,
                                 .held = held,
                                 .appended = appended,
                                 .attended = attended,
                                 .free = release};
    if (describe(e, plan, err) || (plan->bits && kvd_host_entries_new(&e->method, &places, err)))
        return -1;
    /* Timing runs may begin without a prompt, unless tokens are merged according to the prompt's
     * keys. */
    e->method.anywhere = !e->rule.merge;
    e->method.lse = e->lse;
    return 0;
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

const kvd_gpu_kind kvd_gpu_uneven = {.computes = computes,
                                     .joins_heads = kvd_gpu_heads_apart,
                                     .generates = generates,
                                     .codes_on_host = kvd_host_codes_take_entries,
                                     .before_rope = kvd_host_codes_take_entries,
                                     .open = open_method};

size_t kvd_gpu_uneven_pages(const kvd_gpu_method *m, size_t slot, int layer, int kv_head)
{
    const uneven *const e = (const uneven *)m;
    return e->pages.slot[head_of(e, slot, layer, kv_head)].held;
}
