/* Methods on the GPU whose decode steps read only a part of the cached tokens. */
#include "methods/tokens/cuda/selection_method.h"

#include <stdlib.h>

#include "kernels/cuda/decode.h"
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/tokens.h"
#include "model/pass/blocks.h"

static const char what[] = "selection of pages";

typedef kvd_selection_method selection;

/* Returns true if tokens are ranked by the attention that they got from recent queries. */
static bool recalls(const selection *e)
{
    return e->rule.ranking == KVD_READ_RECENT;
}

/* Returns true if tokens are ranked by the products of the query with the centroids nearest to
 * their keys. */
static bool looks_up(const selection *e)
{
    return e->rule.ranking == KVD_READ_CODES;
}

static bool varies(const selection *e)
{
    return kvd_selection_varies(&e->rule);
}

static size_t side_of_page(const selection *e)
{
    const size_t pages = KVD_PAGE_TOKENS / e->rule.page,
                 bounds = pages * 2 * (size_t)e->one.d_qk[0];
    /* Method shadowkv stores, for each group of `page` adjacent tokens and each KV head, a mean key
     * and a flag byte. The size in bytes is rounded up to a multiple of 16. */
    if (kvd_selection_has_shadow(e))
        return (e->kv * pages * ((size_t)e->one.d_qk[0] * sizeof(uint16_t) + 1) + 15) / 16 * 16;
    return e->kv * (recalls(e)    ? (size_t)e->rule.history * KVD_PAGE_TOKENS * sizeof(float)
                    : looks_up(e) ? KVD_PAGE_TOKENS * sizeof(uint16_t)
                                  : bounds * sizeof(uint16_t));
}

static size_t cached_in_all(const selection *e, size_t slot, size_t n)
{
    size_t sum = 0;
    for (size_t l = 0; l < e->layers; l++)
        sum += kvd_selection_cached(e, slot, l, n);
    return sum;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    selection *const e = (selection *)m;
    if (kvd_selection_has_shadow(e) && kvd_selection_shadow_ended(e, it, err))
        return -1;
    for (size_t s = 0; s < e->n_slots; s++)
        e->held[s] = e->tokens[s];
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        e->held[s->slot] = (size_t)s->before + s->n;
        if (kvd_selection_is_late(e))
            kvd_selection_late_ended(e, s, i);
        if (varies(e))
            e->unread[s->slot] =
                i < it->n_steps ? ((double)(e->kv * cached_in_all(e, s->slot, e->held[s->slot])) -
                                   (double)e->read[i]) /
                                      (double)(e->layers * e->kv)
                                : 0;
        e->tokens[s->slot] = s->last ? 0 : e->held[s->slot];
    }
    return 0;
}

static void drop(kvd_gpu_method *m, size_t slot)
{
    selection *const e = (selection *)m;
    e->tokens[slot] = e->held[slot] = 0;
    if (kvd_selection_has_shadow(e))
        kvd_selection_shadow_drop(e, slot);
}

/* Decode steps choose tokens by extra data, such as minima and maxima of keys. Returns the size in
 * bits of this data for n tokens in one layer: in GPU memory if `stored`, else as read by a
 * step. */
static double layer_bits(const selection *e, size_t n, bool stored)
{
    const kvd_plan *const p = e->method.plan;
    const size_t pages = (n + e->rule.page - 1) / e->rule.page, d = (size_t)e->one.d_qk[0],
                 number = 8 * sizeof(uint16_t);
    if (!recalls(e) && !looks_up(e))
        return (double)(e->kv * pages * 2 * d * number);
    return stored
               ? (double)(e->side / KVD_PAGE_TOKENS * 8 * n)
               : (double)e->kv * p->tokens->select_bits(p->tokens_self, NULL, NULL, n, d, number);
}

static double side_bits(const selection *e, size_t slot, size_t n, bool stored)
{
    double bits = 0;
    for (size_t l = 0; l < e->layers; l++)
        bits += layer_bits(e, kvd_selection_cached(e, slot, l, n), stored);
    return bits;
}

static double held(const kvd_gpu_method *m)
{
    const selection *const e = (const selection *)m;
    const double token =
        (double)(e->kv * (size_t)e->one.page_elements) * sizeof(uint16_t) / KVD_PAGE_TOKENS;
    double bytes = 0;
    for (size_t s = 0; s < e->n_slots; s++)
        bytes +=
            (double)cached_in_all(e, s, e->held[s]) * token + side_bits(e, s, e->held[s], true) / 8;
    return bytes;
}

static void reads(const kvd_gpu_method *m, size_t slot, double *side, double *unread)
{
    const selection *const e = (const selection *)m;
    const size_t n = e->held[slot];
    *side = side_bits(e, slot, n, false);
    *unread = varies(e) ? e->unread[slot] : n ? (double)(n - kvd_selection_tokens(&e->rule, n)) : 0;
}

static kvd_selection selection_of(const selection *e, int layer)
{
    const kvd_paged_cache *const c = e->method.cache;
    char *const side = e->sides + (size_t)c->kind_index[layer] * e->pool_pages * e->side;
    return (kvd_selection){.map = c->layer[layer].map,
                           .rule = e->rule,
                           .max_pages = (int32_t)c->pages->max_pages,
                           .n_slots = (int32_t)e->n_slots,
                           .pool = kvd_paged_cache_pool(c, layer),
                           .bounds = recalls(e) || looks_up(e) ? NULL : side,
                           .recent = recalls(e) ? (float *)(void *)side : NULL};
}

kvd_selection kvd_selection_of_rows(const selection *e, int layer, size_t from, size_t n)
{
    const kvd_paged_cache *const c = e->method.cache;
    kvd_selection s = selection_of(e, layer);
    s.batch = (int32_t)n;
    s.kv_len =
        (kvd_selection_is_late(e) ? kvd_selection_lengths_of(e, layer) : c->batch->device.kv_len) +
        from;
    s.slot = c->batch->device.slot + from;
    s.page_table = c->pages->device + from * c->pages->max_pages;
    return s;
}

static kvd_selection_codes codes_of(const selection *e, int layer)
{
    const kvd_paged_cache *const cache = e->method.cache;
    const kvd_config *const c = cache->config;
    kvd_selection_codes x = e->codes.of;
    const size_t heads =
                     (size_t)layer * (size_t)c->n_kv_heads + (size_t)cache->share->first_kv_head,
                 d = (size_t)c->d_head, centroids = heads * (size_t)x.size * d;
    x.frequency = e->codes.frequency[kvd_rope_local(c, layer)];
    x.factor += heads * d * d;
    x.moved += centroids;
    x.centroid += centroids;
    x.code =
        (uint16_t *)(void *)(e->sides + (size_t)cache->kind_index[layer] * e->pool_pages * e->side);
    return x;
}

/* Updates the data by which decode steps choose tokens (bounds of keys, or nearest centroids) after
 * new keys have been stored. Request b has q_len[b] new keys, at most `longest`. */
static int note(const selection *e, const kvd_selection *s, const kvd_paged_rows *r,
                const int32_t *q_len, int32_t longest, kvd_err *err)
{
    if (!looks_up(e))
        return kvd_cuda_check(kvd_selection_bounds(s, q_len, longest, r->stream), what, err);
    const kvd_selection_codes c = codes_of(e, r->layer);
    return kvd_cuda_check(kvd_selection_encode(s, &c, q_len, longest, r->stream), what, err);
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const selection *const e = (const selection *)m;
    const kvd_step_batch *const b = m->cache->batch;
    if (kvd_selection_has_shadow(e))
        return kvd_selection_shadow_append(e, r, err);
    if (recalls(e))
        return 0;
    if (r->steps) {
        const kvd_selection s = kvd_selection_of_rows(e, r->layer, 0, r->steps);
        if (note(e, &s, r, b->one, 1, err))
            return -1;
    }
    if (r->prompts && !kvd_selection_is_late(e)) {
        const kvd_selection s = kvd_selection_of_rows(e, r->layer, r->steps, r->prompts);
        if (note(e, &s, r, b->device.q_len + r->steps, kvd_paged_longest(r, b->host.q_len), err))
            return -1;
    }
    return kvd_clock_end(m->cache->clock, KVD_PHASE_APPEND, r->stream, err);
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const selection *const e = (const selection *)m;
    const kvd_paged_cache *const c = m->cache;
    const kvd_step_batch *const b = c->batch;
    const kvd_selection_rows rows = {.q = c->q_prompts,
                                     .lse = m->lse,
                                     .n_q8 = (int32_t)b->n_q8,
                                     .q_start = b->device.q_start + r->steps,
                                     .q_len = b->device.q_len + r->steps,
                                     .longest = kvd_paged_longest(r, b->host.kv_len)};
    if (!r->prompts)
        return 0;
    const kvd_selection s = kvd_selection_of_rows(e, r->layer, r->steps, r->prompts);
    return kvd_cuda_check(kvd_selection_recent(&s, &rows, r->stream), what, err);
}

static kvd_decode_args decode_args(const selection *e, size_t steps)
{
    const kvd_paged_cache *const c = e->method.cache;
    return (kvd_decode_args){
        .dtype = KVD_BF16,
        .map = e->one,
        .batch = (int32_t)(steps * e->kv),
        .max_pages = (int32_t)(kvd_selection_has_shadow(e) ? e->row_pages : e->max_pages),
        .kv_len = e->len,
        .live = e->heads,
        .page_table = e->to.table,
        .piece_tokens = kvd_selection_piece(&e->rule),
        .q = c->q_steps,
        .lse = e->lse,
        .n_sinks = c->share->n_heads,
        .n_ctas = c->n_sms,
        .workspace = e->workspace};
}

static int plan(const selection *e, const kvd_decode_args *a, cudaStream_t stream, kvd_err *err)
{
    return kvd_cuda_check(
        kvd_decode_plan(a, kvd_paged_cache_schedule(e->method.cache, false), stream), what, err);
}

static int plan_steps(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err)
{
    const selection *const e = (const selection *)m;
    const kvd_selection s = kvd_selection_of_rows(e, 0, 0, n);
    const kvd_decode_args a = decode_args(e, n);
    if (kvd_selection_has_shadow(e))
        return kvd_status(kvd_selection_shadow_lengths(e, &s, stream, err) ||
                          plan(e, &a, stream, err));
    if (kvd_cuda_check(
            kvd_selection_lengths(&s, m->cache->batch->device.live, e->len, e->heads, stream), what,
            err))
        return -1;
    return varies(e) ? kvd_cuda_check(cudaMemsetAsync(e->to.read, 0, n * sizeof *e->read, stream),
                                      what, err)
                     : plan(e, &a, stream, err);
}

/* Chooses the tokens that a decode step reads. If their number varies, also divides the attention
 * among CTAs. */
static int choose(const selection *e, const kvd_selection *s, const kvd_selected *to,
                  const kvd_decode_args *a, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_clock *const clock = e->method.cache->clock;
    if (kvd_selection_has_shadow(e))
        return kvd_selection_shadow_choose(e, s, to, r, err);
    if (!varies(e))
        return kvd_status(kvd_cuda_check(kvd_selection_choose(s, to, r->stream), what, err) ||
                          kvd_clock_end(clock, KVD_PHASE_COMPRESS, r->stream, err));
    const kvd_selection_codes c = looks_up(e) ? codes_of(e, r->layer) : e->codes.of;
    const bool last = e->method.cache->kind_index[r->layer] + 1 == (int)e->layers;
    return kvd_status(kvd_cuda_check(looks_up(e) ? kvd_selection_lookup(s, &c, to, r->stream)
                                                 : kvd_selection_clusters(s, to, r->stream),
                                     what, err) ||
                      kvd_clock_end(clock, KVD_PHASE_COMPRESS, r->stream, err) ||
                      plan(e, a, r->stream, err) ||
                      kvd_clock_end(clock, KVD_PHASE_SCHEDULE, r->stream, err) ||
                      (last && kvd_queue_get(e->read, to->read, r->steps * sizeof *e->read,
                                             r->stream, what, err)));
}

static int attend_steps(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    const selection *const e = (const selection *)m;
    const kvd_selection s = kvd_selection_of_rows(e, r->layer, 0, r->steps);
    kvd_selected to = e->to;
    kvd_decode_args a = decode_args(e, r->steps);
    to.q = m->cache->q_steps;
    a.pool = kvd_selection_has_shadow(e) ? to.rows : s.pool;
    a.o = out;
    a.sinks = kvd_paged_cache_sinks(m->cache, r->layer);
    return kvd_status(
        choose(e, &s, &to, &a, r, err) ||
        kvd_cuda_check(kvd_decode(&a, r->stream), "attention of steps", err) ||
        (recalls(e) &&
         (kvd_clock_end(m->cache->clock, KVD_PHASE_DECODE, r->stream, err) ||
          kvd_cuda_check(kvd_selection_recall(&s, &to, e->lse, r->stream), what, err) ||
          kvd_clock_end(m->cache->clock, KVD_PHASE_COMPRESS, r->stream, err))));
}

/* Allocates memory. Fills e->sides with zeros, because timing runs read it although no prompt has
 * written it. */
static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    selection *const e = (selection *)m;
    e->n_slots = slots - 1; /* the last slot is padding */
    e->pool_pages = pages;
    e->max_pages = m->cache->pages->max_pages;
    const size_t bytes = e->layers * pages * e->side;
    kvd_device_memory *const d = &e->memory;
    e->tokens = kvd_device_host(d, e->n_slots * sizeof *e->tokens, what, err);
    e->held = kvd_device_host(d, e->n_slots * sizeof *e->held, what, err);
    e->unread = kvd_device_host(d, e->n_slots * sizeof *e->unread, what, err);
    e->stream = stream;
    if ((kvd_selection_is_late(e) && kvd_selection_late_make(e, err)) ||
        (kvd_selection_has_shadow(e) && kvd_selection_shadow_make(e, err)))
        return -1;
    e->sides = kvd_device_filled(d, bytes, 0, "what steps choose by", err);
    return d->status;
}

static int make_rows(selection *e, kvd_err *err)
{
    const size_t n = e->rows * e->row_pages,
                 bytes = n * (size_t)e->one.page_elements * sizeof(uint16_t);
    int32_t *const table = malloc(n * sizeof *table);
    if (!table)
        return kvd_no_memory(err, what, n * sizeof *table);
    for (size_t i = 0; i < n; i++)
        table[i] = (int32_t)i;
    e->to.rows =
        kvd_device_filled(&e->memory, bytes, 0, "the rows of a layer that steps read", err);
    const int status =
        !e->to.rows || kvd_device_put(e->to.table, table, n * sizeof *table, what, err);
    free(table);
    return status ? -1 : 0;
}

static int make_sums(selection *e, kvd_err *err)
{
    const kvd_step_batch *const b = e->method.cache->batch;
    const size_t group = (size_t)e->one.group,
                 rows = e->kv * group * (b->max_tokens + 8 * b->max_slices);
    e->lse = kvd_device_new(&e->memory, e->rows * group * sizeof *e->lse, what, err);
    e->method.lse = kvd_device_new(&e->memory, rows * sizeof *e->method.lse, what, err);
    return e->memory.status;
}

/* Copies the RoPE frequencies of a layer type to the device. base = 1: layers with a sliding
 * window; base = 0: all others. */
static int make_frequency(selection *e, int base, kvd_err *err)
{
    const kvd_config *const c = e->method.cache->config;
    const size_t pairs = (size_t)e->codes.of.dims / 2, bytes = (pairs + 1) * sizeof(double);
    double *const x = calloc(pairs + 1, sizeof *x);
    if (!x)
        return kvd_no_memory(err, what, bytes);
    for (size_t i = 0; i < pairs; i++)
        x[i] = kvd_rope_frequency(c, base, (size_t)c->max_positions, i);
    e->codes.frequency[base] = kvd_device_from(&e->memory, x, bytes, what, err);
    free(x);
    return e->memory.status;
}

static int make_codes(selection *e, kvd_err *err)
{
    const kvd_config *const c = e->method.cache->config;
    const kvd_plan *const p = e->method.plan;
    const kvd_read_codes from = p->tokens->read_codes(p->tokens_self);
    kvd_selection_codes *const x = &e->codes.of;
    const size_t d = (size_t)c->d_head, size = (size_t)from.size, group = (size_t)e->one.group,
                 bytes = (size_t)(c->n_layers * c->n_kv_heads) * d * sizeof *x->factor;
    static const char keys[] = "centroids of keys";
    kvd_device_memory *const m = &e->memory;
    if (c->positions == KVD_POSITIONS_ROPE && c->rope_scaling == KVD_ROPE_LONGROPE)
        return kvd_fail(err, "'%s' in a model with longrope: the CUDA engine does not run it",
                        p->tokens->info.name);
    *x = (kvd_selection_codes){
        .size = from.size,
        .relative = from.relative,
        .dims = c->positions == KVD_POSITIONS_ROPE ? (int32_t)kvd_config_rope_dims(c) : 0,
        .interleaved = c->rope_layout == KVD_ROPE_INTERLEAVED};
    if (make_frequency(e, 0, err) || (c->rope_local_theta > 0 && make_frequency(e, 1, err)))
        return -1;
    x->factor = kvd_device_from(m, from.factor, d * bytes, keys, err);
    x->moved = kvd_device_from(m, from.moved, size * bytes, keys, err);
    x->centroid = kvd_device_from(m, from.centroid, size * bytes, keys, err);
    x->product = kvd_device_new(m, e->rows * group * size * sizeof *x->product, what, err);
    return m->status;
}

static int make_read(selection *e, kvd_err *err)
{
    const size_t bytes = e->method.cache->batch->max_slices * sizeof *e->read;
    e->to.read = kvd_device_new(&e->memory, bytes, what, err);
    e->read = kvd_device_pinned(&e->memory, bytes, what, err);
    return e->memory.status;
}

static int make_work(selection *e, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    kvd_device_memory *const m = &e->memory;
    const size_t max_pages = kvd_pages_of(e->max_len),
                 most = max_pages * (KVD_PAGE_TOKENS / e->rule.page),
                 read =
                     kvd_selection_most(&e->rule, (size_t)e->one.group, e->max_len) + e->rule.page,
                 work =
                     kvd_decode_workspace_bytes(&e->one, (int)e->rows, (int)e->max_len, c->n_sms);
    e->row_pages = kvd_pages_of(read);
    e->to.row_pages = (int32_t)e->row_pages;
    const size_t scores = e->rows * most *
                          (looks_up(e) || kvd_selection_has_shadow(e) ? (size_t)e->one.group
                           : kvd_selection_is_late(e)                 ? 2
                                                                      : 1);
    const size_t tables = e->rows * (kvd_selection_has_shadow(e) ? e->row_pages : most);
    e->to.score = kvd_device_new(m, scores * sizeof *e->to.score, what, err);
    e->to.chosen = kvd_device_new(m, e->rows * most * sizeof *e->to.chosen, what, err);
    e->to.table = kvd_device_filled(m, tables * sizeof *e->to.table, 0, what, err);
    e->len = e->to.len = kvd_device_new(m, e->rows * sizeof *e->len, what, err);
    e->heads = kvd_device_new(m, sizeof *e->heads, what, err);
    e->workspace = kvd_device_filled(m, work, 0, "work lists of attention", err);
    return kvd_status(m->status || (kvd_selection_has_shadow(e) && make_rows(e, err)) ||
                      ((recalls(e) || kvd_selection_is_late(e)) && make_sums(e, err)) ||
                      (varies(e) && make_read(e, err)) || (looks_up(e) && make_codes(e, err)) ||
                      (kvd_selection_has_shadow(e) && kvd_selection_shadow_work(e, err)));
}

static int describe(selection *e, const kvd_plan *plan, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_attn_map *const map = &c->layer[0].map;
    kvd_attn_heads one = {map->group, 1, c->config->d_head, {map->d_qk[0]}, {map->d_v[0]}, 0};
    const kvd_read_rule rule = plan->tokens->read_rule(&plan->tokens_values);
    const char *const key = rule.ranking == KVD_READ_CLUSTERS    ? "small"
                            : rule.ranking == KVD_READ_LANDMARKS ? "chunk"
                                                                 : "page";
    if (rule.page < 1 || KVD_PAGE_TOKENS % rule.page)
        return kvd_fail(err,
                        "'%s' with %s = %zu: the CUDA engine has pages of %d tokens, %s must "
                        "divide that",
                        plan->tokens->info.name, key, rule.page, KVD_PAGE_TOKENS, key);
    if (kvd_attn_map_make(&one, &e->one))
        return kvd_fail(err, "'%s' with heads of %d: the CUDA engine takes multiples of %d",
                        plan->tokens->info.name, c->config->d_head, KVD_WIDTH_STEP);
    e->one.scale = map->scale;
    e->rule = rule;
    e->layers = (size_t)c->n_full;
    e->kv = (size_t)map->n_kv_heads;
    e->rows = c->batch->max_slices * e->kv;
    e->side = side_of_page(e);
    /* Timing runs may begin without a prompt, unless the number of tokens read varies with the
     * queries. */
    e->method.anywhere = !varies(e);
    e->method.page_bytes = e->layers * e->side;
    e->method.attended_prompts = true;
    if (recalls(e))
        e->method.attended = attended;
    if (kvd_selection_is_late(e))
        kvd_selection_late_describe(e);
    if (kvd_selection_has_shadow(e) && kvd_selection_shadow_describe(e, err))
        return -1;
    return make_work(e, err);
}

static void release(kvd_gpu_method *m)
{
    selection *const e = (selection *)m;
    kvd_device_release(&e->memory);
    kvd_selection_shadow_free(e);
    free(e);
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (kvd_gpu_method_beside_tokens(plan))
        return kvd_fail(err, "the CUDA engine runs '%s' alone, not with '%s'",
                        plan->tokens->info.name, kvd_gpu_method_beside_tokens(plan));
    selection *const e = calloc(1, sizeof *e);
    if (!e)
        return kvd_no_memory(err, what, sizeof *e);
    *m = &e->method;
    e->max_len = cache->max_len;
    e->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .skips_windows = true,
                                 .anywhere = true,
                                 .make = make,
                                 .ended = ended,
                                 .drop = drop,
                                 .held = held,
                                 .reads = reads,
                                 .appended = appended,
                                 .plan_steps = plan_steps,
                                 .attend_steps = attend_steps,
                                 .free = release};
    return describe(e, plan, err);
}

static bool generates(const kvd_plan *plan)
{
    const kvd_read_rule rule = plan->tokens->read_rule(&plan->tokens_values);
    return !kvd_gpu_method_beside_tokens(plan) && KVD_PAGE_TOKENS % rule.page == 0 &&
           (rule.ranking != KVD_READ_LANDMARKS || rule.page < KVD_PAGE_TOKENS);
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

static bool before_rope(const kvd_plan *plan)
{
    return plan->tokens == &kvd_tokens_shadowkv;
}

static const char *joins_heads(const kvd_plan *plan)
{
    return plan->tokens == &kvd_tokens_mpcache    ? "all KV heads of a layer keep the same tokens"
           : plan->tokens == &kvd_tokens_shadowkv ? "the keys of all KV heads have one basis"
                                                  : NULL;
}

const kvd_gpu_kind kvd_gpu_selection = {.computes = computes,
                                        .joins_heads = joins_heads,
                                        .generates = generates,
                                        .before_rope = before_rope,
                                        .open = open_method};

int kvd_gpu_selection_read(const kvd_gpu_method *m, size_t step, int kv_head, int32_t *page,
                           size_t *n, size_t *tokens, kvd_err *err)
{
    const selection *const e = (const selection *)m;
    const size_t row = step * e->kv + (size_t)kv_head,
                 most = e->max_pages * (KVD_PAGE_TOKENS / e->rule.page);
    int32_t read;
    if (kvd_cuda_check(cudaMemcpy(&read, e->len + row, sizeof read, cudaMemcpyDeviceToHost), what,
                       err))
        return -1;
    *tokens = (size_t)read;
    *n = (*tokens + e->rule.page - 1) / e->rule.page;
    return kvd_cuda_check(
        cudaMemcpy(page, e->to.chosen + row * most, *n * sizeof *page, cudaMemcpyDeviceToHost),
        what, err);
}
