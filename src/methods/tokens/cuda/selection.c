/* Methods of the tokens axis whose decode steps read a part of the cache, in the CUDA engine. */
#include "methods/tokens/cuda/selection.h"

#include <stdlib.h>

#include "kernels/cuda/decode.h"
#include "methods/tokens/cuda/inspect.h"
#include "methods/tokens/tokens.h"

static const char what[] = "selection of pages";

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_attn_map one;      /* shape of one KV head with its query heads */
    double budget;
    /* layers: number of layers without a sliding window, on which alone the method acts. */
    size_t page, layers, kv, max_len;
    size_t n_slots, pool_pages;
    /* [n_slots] Number of tokens that a request has, between iterations. */
    size_t *tokens;
    /*
     * [n_slots] Number of tokens at the end of the latest iteration, even if the request finished
     * in that iteration.
     */
    size_t *held;
    size_t rows, row_pages, max_pages;
    uint16_t *bounds; /* device [layers][pool_pages][kv][64 / page][2][d_head] */
    int32_t *len, *heads;
    kvd_selected to;
    void *workspace;
    kvd_device_memory memory;
} selection;

static selection *of(kvd_gpu_method *m)
{
    return (selection *)(void *)m;
}

static const selection *of_const(const kvd_gpu_method *m)
{
    return (const selection *)(const void *)m;
}

static size_t bounds_of_page(const selection *e)
{
    return e->kv * (KVD_PAGE_TOKENS / e->page) * 2 * (size_t)e->one.d_qk[0];
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    selection *const e = of(m);
    (void)err;
    for (size_t s = 0; s < e->n_slots; s++)
        e->held[s] = e->tokens[s];
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        e->held[s->slot] = (size_t)s->before + s->n;
        e->tokens[s->slot] = s->last ? 0 : e->held[s->slot];
    }
    return 0;
}

static void drop(kvd_gpu_method *m, size_t slot)
{
    of(m)->tokens[slot] = of(m)->held[slot] = 0;
}

/* Returns the bits of the bounds of n tokens, over all layers and KV heads. */
static double side_bits(const selection *e, size_t n)
{
    const size_t pages = (n + e->page - 1) / e->page;
    return (double)(e->layers * e->kv * pages * 2 * (size_t)e->one.d_qk[0]) * 8 * sizeof(uint16_t);
}

static double held(const kvd_gpu_method *m)
{
    const selection *const e = of_const(m);
    const double token = (double)(e->layers * e->kv * (size_t)e->one.page_elements) *
                         sizeof(uint16_t) / KVD_PAGE_TOKENS;
    double bytes = 0;
    for (size_t s = 0; s < e->n_slots; s++)
        bytes += (double)e->held[s] * token + side_bits(e, e->held[s]) / 8;
    return bytes;
}

static void reads(const kvd_gpu_method *m, size_t slot, double *side, double *unread)
{
    const selection *const e = of_const(m);
    const size_t n = e->held[slot];
    *side = side_bits(e, n);
    *unread = n ? (double)(n - kvd_selection_tokens(e->budget, e->page, n)) : 0;
}

static kvd_selection selection_of(const selection *e, int layer)
{
    const kvd_paged_cache *const c = e->method.cache;
    return (kvd_selection){.map = c->layer[layer].map,
                           .page = (int32_t)e->page,
                           .budget = e->budget,
                           .max_pages = (int32_t)c->pages->max_pages,
                           .n_slots = (int32_t)e->n_slots,
                           .pool = kvd_paged_cache_pool(c, layer),
                           .bounds = e->bounds + (size_t)c->kind_index[layer] * e->pool_pages *
                                                     bounds_of_page(e)};
}

/* Selects rows from .. from + n-1 of the batch. */
static kvd_selection selection_of_rows(const selection *e, int layer, size_t from, size_t n)
{
    const kvd_paged_cache *const c = e->method.cache;
    kvd_selection s = selection_of(e, layer);
    s.batch = (int32_t)n;
    s.kv_len = c->batch->device.kv_len + from;
    s.slot = c->batch->device.slot + from;
    s.page_table = c->pages->device + from * c->pages->max_pages;
    return s;
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const selection *const e = of(m);
    const kvd_step_batch *const b = m->cache->batch;
    if (r->steps) {
        const kvd_selection s = selection_of_rows(e, r->layer, 0, r->steps);
        if (kvd_cuda_check(kvd_selection_bounds(&s, b->one, 1, r->stream), what, err))
            return -1;
    }
    if (r->prompts) {
        const kvd_selection s = selection_of_rows(e, r->layer, r->steps, r->prompts);
        int32_t longest = 1;
        for (size_t i = r->steps; i < r->steps + r->prompts; i++)
            longest = b->host.q_len[i] > longest ? b->host.q_len[i] : longest;
        if (kvd_cuda_check(kvd_selection_bounds(&s, b->device.q_len + r->steps, longest, r->stream),
                           what, err))
            return -1;
    }
    return kvd_clock_end(m->cache->clock, KVD_PHASE_APPEND, r->stream, err);
}

static kvd_decode_args decode_args(const selection *e, size_t steps)
{
    const kvd_paged_cache *const c = e->method.cache;
    const bool copies = e->page < KVD_PAGE_TOKENS;
    return (kvd_decode_args){.dtype = KVD_BF16,
                             .map = e->one,
                             .batch = (int32_t)(steps * e->kv),
                             .max_pages = (int32_t)(copies ? e->row_pages : e->max_pages),
                             .kv_len = e->len,
                             .live = e->heads,
                             .page_table = e->to.table,
                             .q = c->q_steps,
                             .n_sinks = c->share->n_heads,
                             .n_ctas = c->n_sms,
                             .workspace = e->workspace};
}

static int plan_steps(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err)
{
    const selection *const e = of(m);
    const kvd_selection s = selection_of_rows(e, 0, 0, n);
    const kvd_decode_args a = decode_args(e, n);
    return kvd_cuda_check(
               kvd_selection_lengths(&s, m->cache->batch->device.live, e->len, e->heads, stream),
               what, err) ||
                   kvd_cuda_check(
                       kvd_decode_plan(&a, kvd_paged_cache_schedule(m->cache, false), stream), what,
                       err)
               ? -1
               : 0;
}

static int attend_steps(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    const selection *const e = of(m);
    const kvd_selection s = selection_of_rows(e, r->layer, 0, r->steps);
    kvd_selected to = e->to;
    kvd_decode_args a = decode_args(e, r->steps);
    to.q = m->cache->q_steps;
    a.pool = e->page < KVD_PAGE_TOKENS ? to.rows : s.pool;
    a.o = out;
    a.sinks = kvd_paged_cache_sinks(m->cache, r->layer);
    return kvd_cuda_check(kvd_selection_choose(&s, &to, r->stream), what, err) ||
                   kvd_clock_end(m->cache->clock, KVD_PHASE_COMPRESS, r->stream, err) ||
                   kvd_cuda_check(kvd_decode(&a, r->stream), "attention of steps", err)
               ? -1
               : 0;
}

/* Fills the bounds with zeros, which timing runs read if no prompt was computed. */
static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    selection *const e = of(m);
    e->n_slots = slots - 1; /* the last slot is for rows that pad a batch */
    e->pool_pages = pages;
    e->max_pages = m->cache->pages->max_pages;
    const size_t bytes = e->layers * pages * bounds_of_page(e) * sizeof *e->bounds;
    e->tokens = calloc(e->n_slots, sizeof *e->tokens);
    e->held = calloc(e->n_slots, sizeof *e->held);
    if (!e->tokens || !e->held)
        return kvd_no_memory(err, what, 2 * e->n_slots * sizeof *e->held);
    e->bounds = kvd_device_new(&e->memory, bytes, "bounds of keys", err);
    return e->bounds ? kvd_cuda_check(cudaMemsetAsync(e->bounds, 0, bytes, stream), what, err) : -1;
}

/* Allocates `rows` and writes its page table, which never changes. */
static int make_rows(selection *e, kvd_err *err)
{
    const size_t n = e->rows * e->row_pages,
                 bytes = n * (size_t)e->one.page_elements * sizeof(uint16_t);
    int32_t *const table = malloc(n * sizeof *table);
    if (!table)
        return kvd_no_memory(err, what, n * sizeof *table);
    for (size_t i = 0; i < n; i++)
        table[i] = (int32_t)i;
    e->to.rows = kvd_device_new(&e->memory, bytes, "the rows of a layer that steps read", err);
    const int status = !e->to.rows || kvd_device_zero(e->to.rows, bytes, what, err) ||
                       kvd_device_put(e->to.table, table, n * sizeof *table, what, err);
    free(table);
    return status ? -1 : 0;
}

static int make_work(selection *e, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    kvd_device_memory *const m = &e->memory;
    const bool copies = e->page < KVD_PAGE_TOKENS;
    const size_t max_pages = (e->max_len + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS,
                 most = max_pages * (KVD_PAGE_TOKENS / e->page),
                 read = kvd_selection_tokens(e->budget, e->page, e->max_len) + e->page,
                 work =
                     kvd_decode_workspace_bytes(&e->one, (int)e->rows, (int)e->max_len, c->n_sms);
    e->row_pages = (read + KVD_PAGE_TOKENS - 1) / KVD_PAGE_TOKENS;
    e->to.row_pages = (int32_t)e->row_pages;
    const size_t tables = e->rows * (copies ? e->row_pages : max_pages);
    return (e->to.score = kvd_device_new(m, e->rows * most * sizeof *e->to.score, what, err)) &&
                   (e->to.chosen =
                        kvd_device_new(m, e->rows * most * sizeof *e->to.chosen, what, err)) &&
                   (e->to.table = kvd_device_new(m, tables * sizeof *e->to.table, what, err)) &&
                   (e->len = kvd_device_new(m, e->rows * sizeof *e->len, what, err)) &&
                   (e->heads = kvd_device_new(m, sizeof *e->heads, what, err)) &&
                   (e->workspace = kvd_device_new(m, work, "work lists of attention", err)) &&
                   !kvd_device_zero(e->workspace, work, what, err) &&
                   !kvd_device_zero(e->to.table, tables * sizeof *e->to.table, what, err) &&
                   (!copies || !make_rows(e, err))
               ? 0
               : -1;
}

static int describe(selection *e, const kvd_plan *plan, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_attn_map *const map = &c->layer[0].map;
    kvd_attn_heads one = {map->group, 1, c->config->d_head, {map->d_qk[0]}, {map->d_v[0]}, 0};
    const kvd_read_rule rule = plan->tokens->read_rule(&plan->tokens_values);
    if (rule.page < 1 || KVD_PAGE_TOKENS % rule.page)
        return kvd_fail(err,
                        "'%s' with page = %zu: the CUDA engine has pages of %d tokens, page must "
                        "divide that",
                        plan->tokens->info.name, rule.page, KVD_PAGE_TOKENS);
    if (kvd_attn_map_make(&one, &e->one))
        return kvd_fail(err, "'%s' with heads of %d: the CUDA engine takes multiples of %d",
                        plan->tokens->info.name, c->config->d_head, KVD_WIDTH_STEP);
    e->one.scale = map->scale;
    e->budget = rule.budget;
    e->page = rule.page;
    e->layers = (size_t)c->n_full;
    e->kv = (size_t)map->n_kv_heads;
    e->rows = c->batch->max_slices * e->kv;
    e->method.page_bytes = e->layers * bounds_of_page(e) * sizeof *e->bounds;
    return make_work(e, err);
}

static void release(kvd_gpu_method *m)
{
    selection *const e = of(m);
    kvd_device_release(&e->memory);
    free(e->tokens);
    free(e->held);
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

/* True if the engine can generate text with the plan. Other plans can only be timed. */
static bool generates(const kvd_plan *plan)
{
    const size_t page = plan->tokens->read_rule(&plan->tokens_values).page;
    return !kvd_gpu_method_beside_tokens(plan) && KVD_PAGE_TOKENS % page == 0;
}

static unsigned computes(const kvd_plan *plan)
{
    return plan->tokens == &kvd_tokens_quest
               ? KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE
               : 0;
}

const kvd_gpu_kind kvd_gpu_selection = {
    .computes = computes, .generates = generates, .open = open_method};

int kvd_gpu_selection_read(const kvd_gpu_method *m, size_t step, int kv_head, int32_t *page,
                           size_t *n, kvd_err *err)
{
    const selection *const e = of_const(m);
    const size_t row = step * e->kv + (size_t)kv_head,
                 most = e->max_pages * (KVD_PAGE_TOKENS / e->page);
    int32_t tokens;
    if (kvd_cuda_check(cudaMemcpy(&tokens, e->len + row, sizeof tokens, cudaMemcpyDeviceToHost),
                       what, err))
        return -1;
    *n = ((size_t)tokens + e->page - 1) / e->page;
    return kvd_cuda_check(
        cudaMemcpy(page, e->to.chosen + row * most, *n * sizeof *page, cudaMemcpyDeviceToHost),
        what, err);
}
