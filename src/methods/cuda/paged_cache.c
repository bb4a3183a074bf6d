#include "methods/cuda/paged_cache.h"

#include "kernels/cuda/append.h"
#include "kernels/cuda/decode.h"
#include "methods/cuda/fold.h"
#include "model/checkpoint/cuda/random.h"
#include "model/pass/batch.h"
#include "model/pass/cuda/dense_lists.h"

static const char what[] = "cache";

enum { CTAS_MAX = 1024 };

static int check_layers(const kvd_paged_cache *c, kvd_err *err)
{
    const kvd_config *const m = c->config;
    for (int l = 0; l < m->n_layers; l++) {
        if (!c->layer[l].kernels)
            return kvd_fail(
                err,
                "%d heads of %d, %d of K and V: the CUDA engine's kernels take up to %d heads of "
                "multiples of %d up to %d",
                m->n_heads, m->d_head, m->n_kv_heads, KVD_HEADS_MAX, KVD_WIDTH_STEP, KVD_WIDTH_MAX);
    }
    return 0;
}

size_t kvd_paged_cache_window(const kvd_config *c, size_t max_len, int layer)
{
    const size_t window = kvd_config_window(c, layer);
    return window < max_len ? window : 0;
}

/* Layers with a window share a page table, so their windows must be equal. */
static int set_windows(kvd_paged_cache *c, kvd_err *err)
{
    const size_t n = (size_t)c->config->n_layers;
    int n_near = 0;
    if (!(c->kind_index = kvd_device_host(&c->memory, n * sizeof *c->kind_index, what, err)))
        return -1;
    for (int l = 0; l < c->config->n_layers; l++) {
        const size_t window = kvd_paged_cache_window(c->config, c->max_len, l);
        if (window && c->window && window != c->window)
            return kvd_fail(err, "layer %d has a window of %zu tokens, layers before it of %zu", l,
                            window, c->window);
        c->window = window ? window : c->window;
        c->layer[l].map.window = (int32_t)window;
        c->kind_index[l] = window ? n_near++ : c->n_full++;
    }
    return 0;
}

static bool shares_pages(const kvd_paged_cache *c, int layer)
{
    const kvd_gpu_method *const m = kvd_paged_method_of(c, layer);
    return m && m->one_layer;
}

static int needs_second_append(const kvd_cache_layer *l)
{
    return l->a_k != l->a_q;
}

/* Allocates the arrays of *p. `plan`: size in bytes of the table that assigns tiles to CTAs. */
static int make_prompts(kvd_paged_cache *c, kvd_paged_prompts *p, size_t plan, kvd_err *err)
{
    const size_t tiles = c->batch->max_tokens / 64 + c->batch->max_slices,
                 heads = (size_t)c->share->n_heads;
    kvd_device_memory *const m = &c->memory;
    p->tile = kvd_device_new(m, tiles * heads * sizeof *p->tile, "tiles of attention", err);
    p->plan = kvd_device_new(m, plan, "plan of attention", err);
    p->first = kvd_device_new(m, (CTAS_MAX + 1) * sizeof *p->first, "plan of attention", err);
    p->next = kvd_device_new(m, sizeof *p->next, "plan of attention", err);
    return m->status;
}

static int make_rows(kvd_paged_cache *c, kvd_err *err)
{
    const size_t n = c->batch->max_slices, tokens = c->batch->max_tokens,
                 rows = kvd_rounded_up(tokens + 7 * n, 8);
    const kvd_attn_batch most = {.batch = (int)n};
    size_t q = 0, o = 0, plan = 0;
    int twice = 0;
    for (int l = c->whole ? -1 : 0; l < c->config->n_layers; l++) {
        const kvd_cache_layer *const x = l < 0 ? c->whole : &c->layer[l];
        const kvd_attn_map *const m = &x->map;
        const size_t bytes = kvd_prefill_plan_bytes(m, &most, CTAS_MAX);
        q = kvd_larger(q, (size_t)m->q_pitch);
        o = kvd_larger(o, (size_t)m->o_pitch);
        plan = kvd_larger(plan, bytes);
        twice = twice || needs_second_append(x);
    }
    kvd_device_memory *const m = &c->memory;
    c->q_steps = kvd_device_new(m, n * q * 2, "queries of attention", err);
    c->q_prompts = kvd_device_new(m, rows * q * 2, "queries of attention", err);
    if (twice)
        c->q_unused = kvd_device_new(m, rows * q * 2, "queries of attention", err);
    c->o = kvd_device_new(m, rows * o * 2, "rows of attention", err);
    return kvd_status(make_prompts(c, &c->prompts[0], plan, err) ||
                      (c->window && make_prompts(c, &c->prompts[1], plan, err)));
}

static int make_whole(kvd_paged_cache *c, kvd_err *err)
{
    const size_t n = (size_t)c->config->n_layers;
    if (!c->method)
        return 0;
    c->whole = kvd_device_host(&c->memory, n * sizeof *c->whole, what, err);
    if (!c->whole || kvd_cache_layers_make(c->config, c->share, KVD_BF16, 0, NULL, KVD_BF16,
                                           c->whole, &c->memory, err))
        return -1;
    for (size_t l = 0; l < n; l++)
        c->whole[l].map.window = c->layer[l].map.window;
    return 0;
}

/* Allocates c->offset (index of each prompt's first token). Sets the attention outputs c->o to 0,
 * because their padding is read. */
static int make_exact(kvd_paged_cache *c, kvd_err *err)
{
    const size_t n = c->batch->max_slices;
    size_t pitch = 0;
    for (int l = 0; l < c->config->n_layers; l++) {
        const kvd_cache_layer *const x = &c->layer[l];
        pitch = kvd_larger(pitch, (size_t)x->map.o_pitch);
        if (!x->b_v && x->map.o_pitch != c->share->n_heads * c->config->d_head)
            return kvd_fail(err, "layer %d cuts V without a matrix", l);
    }
    c->offset = kvd_device_host(&c->memory, (n + 1) * sizeof *c->offset, what, err);
    return c->offset ? kvd_device_zero(c->o, n * pitch * sizeof(uint16_t), what, err) : -1;
}

static int run(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err);

static int ask_device(kvd_paged_cache *c, kvd_err *err)
{
    int device = 0, major = 0;
    if (kvd_cuda_check(cudaGetDevice(&device), what, err) ||
        kvd_cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                       what, err) ||
        kvd_cuda_check(cudaDeviceGetAttribute(&c->n_sms, cudaDevAttrMultiProcessorCount, device),
                       what, err))
        return -1;
    c->hopper = major == 9;
    return 0;
}

int kvd_paged_cache_init(kvd_paged_cache *c, kvd_gpu_worker *w, const kvd_plan *plan,
                         kvd_step_batch *batch, kvd_pages *pages, kvd_pages *near, kvd_clock *clock,
                         kvd_err *err)
{
    const bool rebuilds = plan->dims && plan->dims->rebuild;
    const bool exact = c->exact_prompts && plan->dims && !rebuilds,
               exact_method = c->exact_prompts && rebuilds;
    *c = (kvd_paged_cache){
        .attention = c->attention,
        .exact_prompts = exact,
        .exact_method = exact_method,
        .generates = c->exact_prompts,
        .outliers = c->outliers,
        .hook = {.run = run,
                 .wants_raw = !exact && !exact_method && kvd_gpu_fold_packs(&w->config)},
        .worker = w,
        .config = &w->config,
        .share = &w->weights.share,
        .cosine = w->cosine,
        .sine = w->sine,
        .batch = batch,
        .pages = pages,
        .near = near,
        .clock = clock,
        .max_len = w->max_len};
    kvd_paged_cache_begin(c);
    if (plan->dims && kvd_dims_fits(plan->dims, &w->config, err))
        return -1;
    const size_t layers = (size_t)w->config.n_layers;
    if (!(c->layer = kvd_device_host(&c->memory, layers * sizeof *c->layer, what, err)))
        return -1;
    /* If K and V are rebuilt from latent vectors, pages hold all d_head dimensions, without
     * projection. */
    c->dims = rebuilds ? NULL : plan->dims;
    if (c->dims && c->attention == KVD_ATTENTION_STOCK) {
        if (kvd_dims_widest(c->dims, &c->widest, err))
            return -1;
        c->dims = &c->widest;
    }
    return kvd_status(kvd_cache_layers_make(&w->config, c->share, KVD_BF16, 0, c->dims, KVD_BF16,
                                            c->layer, &c->memory, err) ||
                      set_windows(c, err) || check_layers(c, err) || ask_device(c, err) ||
                      kvd_gpu_method_open(plan, c, &c->method, err) ||
                      (exact && make_whole(c, err)) || kvd_paged_works_number(c, err) ||
                      kvd_paged_works_make(c, w->max_len, err) || make_rows(c, err) ||
                      (exact && make_exact(c, err)));
}

int kvd_paged_cache_make_pool(kvd_paged_cache *c, size_t pages, size_t near_pages, size_t slots,
                              cudaStream_t stream, kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    const size_t copies = c->method ? kvd_plan_copies(c->method->plan) : 1;
    size_t at = 0, shared = 0;
    for (int l = 0; l < c->config->n_layers; l++) {
        const kvd_attn_map *const map = &c->layer[l].map;
        const size_t bytes = ((map->window ? near_pages : copies * pages) + 1) *
                             (size_t)map->page_elements * sizeof(uint16_t);
        c->pool_at[l] = at;
        if (shares_pages(c, l))
            shared = kvd_larger(shared, bytes);
        else
            at += bytes;
    }
    for (int l = 0; l < c->config->n_layers; l++)
        if (shares_pages(c, l))
            c->pool_at[l] = at;
    at += shared;
    if (!(c->pool = kvd_device_new(&c->memory, at, "the cache", err)) ||
        kvd_cuda_check(
            kvd_gpu_random_fill(KVD_BF16, &normal, 0, at / sizeof(uint16_t), c->pool, stream), what,
            err))
        return -1;
    const size_t whole = c->whole ? (kvd_larger(pages, near_pages) + 1) *
                                        (size_t)c->whole->map.page_elements * sizeof(uint16_t)
                                  : 0;
    if (whole)
        c->whole_pool = kvd_device_filled(&c->memory, whole, 0, "whole prompts", err);
    if (c->memory.status)
        return -1;
    return c->method ? kvd_gpu_method_make(c->method, pages, slots, stream, err) : 0;
}

void kvd_paged_cache_release(kvd_paged_cache *c)
{
    kvd_gpu_method_free(c->method);
    kvd_device_release(&c->memory);
    kvd_dims_release(&c->widest);
    *c = (kvd_paged_cache){0};
}

const char *kvd_paged_cache_kernels(const kvd_paged_cache *c)
{
    return c->hopper ? "sm_90a kernels" : "mma.sync kernels";
}

void *kvd_paged_cache_pool(const kvd_paged_cache *c, int layer)
{
    return (char *)c->pool + c->pool_at[layer];
}

uint16_t *kvd_paged_cache_row(const kvd_paged_cache *c, size_t slot, int layer, int kv_head,
                              size_t place)
{
    const kvd_attn_map *const map = &c->layer[layer].map;
    const kvd_pages *const pages = kvd_paged_pages_of(c, map);
    const kvd_page_slot *const list = &pages->slot[slot];
    const size_t p = place / KVD_PAGE_TOKENS, t = place % KVD_PAGE_TOKENS,
                 page = p < list->first ? pages->n_pages : (size_t)list->page[p];
    return (uint16_t *)kvd_paged_cache_pool(c, layer) + page * (size_t)map->page_elements +
           map->kv_offset[kv_head] + t / 8 * 8 * (size_t)map->d_qk[kv_head] + t % 8 * 8;
}

const float *kvd_paged_cache_sinks(const kvd_paged_cache *c, int layer)
{
    return c->worker->weights.layer[layer].sinks;
}

static kvd_append_args append_args(const kvd_paged_cache *c, int layer, const void *x)
{
    const kvd_cache_layer *const l = &c->layer[layer];
    const int turns = c->hook.wants_raw && c->cosine;
    const size_t table =
        kvd_batch_rope_layer(c->config, c->max_len, layer) * ((size_t)c->config->d_head / 2);
    return (kvd_append_args){.dtype = KVD_BF16,
                             .map = l->map,
                             .d_head = c->config->d_head,
                             .max_pages = (int32_t)c->pages->max_pages,
                             .x = x,
                             .v_is_cut = c->hook.wants_raw,
                             .rope_cos = turns ? c->cosine + table : NULL,
                             .rope_sin = turns ? c->sine + table : NULL,
                             .rope_dim = turns ? c->config->d_head : 0,
                             .rope_interleaved = c->config->rope_layout == KVD_ROPE_INTERLEAVED,
                             .r_qk = l->a_q,
                             .r_v = c->exact_prompts ? l->a_v : NULL,
                             .pool = kvd_paged_cache_pool(c, layer)};
}

/* Stores new K and V. The first launch projects Q and K by the matrix of Q. If K has another
 * matrix, a second launch stores K again, projected by the matrix of K. */
static int append(const kvd_paged_cache *c, int layer, kvd_append_args *a, cudaStream_t stream,
                  kvd_err *err)
{
    const kvd_cache_layer *const l = &c->layer[layer];
    unsigned long long *const ended = a->ended;
    const int twice = needs_second_append(l);
    a->ended = twice ? NULL : ended;
    if (kvd_cuda_check(kvd_append(a, stream), "append", err))
        return -1;
    if (!twice)
        return 0;
    a->r_qk = l->a_k;
    a->q = c->q_unused;
    a->began = NULL;
    a->ended = ended;
    return kvd_cuda_check(kvd_append(a, stream), "append", err);
}

kvd_phase kvd_paged_cache_behind(const kvd_paged_cache *c)
{
    return c->hook.wants_raw ? KVD_PHASE_QKV : KVD_PHASE_ROPE;
}

static int append_steps(kvd_paged_cache *c, const kvd_paged_rows *r, bool marks,
                        const kvd_paged_place *at, kvd_err *err)
{
    kvd_append_args a = append_args(c, r->layer, r->x);
    a.batch = a.n_tokens = (int32_t)r->steps;
    a.token_start = c->batch->count;
    a.q_len = c->batch->one;
    a.kv_len = at->kv_len;
    a.position = c->batch->device.step_at;
    a.lists_ready = at->uploaded;
    a.page_table = at->table;
    a.max_pages = at->pitch;
    a.pool = at->pool;
    a.q = c->q_steps;
    if (marks) {
        a.began = kvd_clock_end_by(c->clock, kvd_paged_cache_behind(c));
        a.ended = kvd_clock_end_by(c->clock, KVD_PHASE_APPEND);
    }
    return append(c, r->layer, &a, r->stream, err);
}

static kvd_append_args prompt_args(const kvd_paged_cache *c, int layer, const void *x)
{
    const kvd_step_batch *const b = c->batch;
    kvd_append_args a = append_args(c, layer, x);
    a.batch = (int32_t)(b->n_slices - b->n_steps);
    a.n_tokens = (int32_t)(b->n_tokens - b->n_steps);
    a.token_start = b->device.start + b->n_steps;
    a.q_len = b->device.q_len + b->n_steps;
    a.kv_len = kvd_paged_lens_of(&a.map, &b->device) + b->n_steps;
    a.q_start = b->device.q_start + b->n_steps;
    a.n_q8 = (int32_t)b->n_q8;
    a.page_table = kvd_paged_pages_of(c, &a.map)->device + b->n_steps * c->pages->max_pages;
    a.q = c->q_prompts;
    return a;
}

static int append_prompts(const kvd_paged_cache *c, int layer, const void *x, cudaStream_t stream,
                          kvd_err *err)
{
    kvd_append_args a = prompt_args(c, layer, x);
    return append(c, layer, &a, stream, err);
}

static int append_whole(const kvd_paged_cache *c, int layer, const void *x, cudaStream_t stream,
                        kvd_err *err)
{
    kvd_append_args a = prompt_args(c, layer, x);
    a.map = c->whole[layer].map;
    a.r_qk = a.r_v = NULL;
    a.pool = c->whole_pool;
    return kvd_cuda_check(kvd_append(&a, stream), "append", err);
}

static kvd_paged_place place_in(const kvd_paged_cache *c, int layer, void *pool,
                                const int32_t *table)
{
    return (kvd_paged_place){.pool = pool,
                             .table = table,
                             .kv_len = kvd_paged_lens_of(&c->layer[layer].map, &c->batch->device),
                             .pitch = (int32_t)c->pages->max_pages};
}

int kvd_paged_cache_append(kvd_paged_cache *c, const kvd_paged_rows *r, void *pool,
                           const int32_t *table, kvd_err *err)
{
    const kvd_paged_place at = place_in(c, r->layer, pool, table);
    return kvd_paged_cache_append_at(c, r, &at, err);
}

int kvd_paged_cache_append_at(kvd_paged_cache *c, const kvd_paged_rows *r,
                              const kvd_paged_place *at, kvd_err *err)
{
    if (!r->prompts)
        return append_steps(c, r, true, at, err);
    return kvd_status(
        kvd_clock_end(c->clock, kvd_paged_cache_behind(c), r->stream, err) ||
        (r->steps && append_steps(c, r, false, at, err)) ||
        append_prompts(c, r->layer, (const uint16_t *)r->x + r->steps * r->ld, r->stream, err) ||
        kvd_clock_end(c->clock, KVD_PHASE_APPEND, r->stream, err));
}

int kvd_paged_cache_rewrite(kvd_paged_cache *c, int layer, const kvd_paged_rewrite *r, kvd_err *err)
{
    kvd_append_args a = append_args(c, layer, r->x);
    a.batch = r->n;
    a.n_tokens = r->n_rows;
    a.token_start = r->start;
    a.q_len = r->q_len;
    a.kv_len = r->kv_len;
    a.q_start = r->q_start;
    a.n_q8 = r->n_q8;
    a.page_table = r->table;
    a.q = c->q_prompts;
    if (r->turned)
        a.rope_cos = a.rope_sin = NULL;
    if (r->cut)
        a.r_qk = a.r_v = NULL;
    return kvd_cuda_check(kvd_append(&a, c->worker->stream), "append", err);
}

kvd_schedule kvd_paged_cache_schedule(const kvd_paged_cache *c, bool prompts)
{
    return c->attention == KVD_ATTENTION_PAPERS             ? KVD_SCHEDULE_PAPERS
           : c->attention == KVD_ATTENTION_STOCK && prompts ? KVD_SCHEDULE_NONE
                                                            : KVD_SCHEDULE_OURS;
}

static int attend_steps(const kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    kvd_gpu_method *const m = kvd_paged_method_of(c, r->layer);
    if (m && m->attend_steps)
        return m->attend_steps(m, r, out, err);
    kvd_decode_args a = kvd_paged_works_args(c, kvd_paged_works_of(c, r->layer), r->steps);
    a.pool = m && m->heads ? m->heads->pool : kvd_paged_cache_pool(c, r->layer);
    a.o = out;
    a.sinks = kvd_paged_cache_sinks(c, r->layer);
    a.lse = m ? m->lse_steps : NULL;
    return kvd_cuda_check(kvd_decode(&a, r->stream), "attention of steps", err);
}

void kvd_paged_cache_begin(kvd_paged_cache *c)
{
    c->prompts[0].prepared = c->prompts[1].prepared = -1;
}

/* Returns the tiles (blocks of query rows of one head) into which the attention of prompts is
 * divided. work: index of a group of layers with equal head dimensions, which share the tiles. */
static kvd_paged_prompts *prepare(kvd_paged_cache *c, int work, int layer, const kvd_attn_map *map,
                                  cudaStream_t stream, kvd_err *err)
{
    const kvd_step_batch *const b = c->batch;
    const kvd_gpu_method *const m = kvd_paged_method_of(c, layer);
    kvd_paged_prompts *const p = &c->prompts[map->window > 0];
    if (p->prepared == work)
        return kvd_cuda_check(cudaMemsetAsync(p->next, 0, sizeof *p->next, stream), what, err)
                   ? NULL
                   : p;
    const size_t from = b->n_steps;
    p->args = (kvd_prefill_args){.dtype = KVD_BF16,
                                 .map = *map,
                                 .batch = (int32_t)(b->n_slices - from),
                                 .max_pages = (int32_t)c->pages->max_pages,
                                 .n_q8 = (int32_t)b->n_q8,
                                 .q_start = b->device.q_start + from,
                                 .q_len = b->device.q_len + from,
                                 .kv_len = kvd_paged_lens_of(map, &b->device) + from,
                                 .page_table = kvd_paged_pages_of(c, map)->device +
                                               from * c->pages->max_pages,
                                 .q = c->q_prompts,
                                 .lse = m ? m->lse : NULL,
                                 .work = {.n_ctas = c->n_sms}};
    const kvd_attn_batch batch = {p->args.batch, b->host.q_len + from,
                                  kvd_paged_lens_of(map, &b->host) + from};
    const kvd_prefill_cost *const cost = c->hopper ? &kvd_prefill_cost_sm90 : &kvd_prefill_cost_mma;
    p->prepared = -1;
    if (kvd_cuda_check(kvd_prefill_plan(&p->args, &batch, kvd_paged_cache_schedule(c, true), cost,
                                        p->tile, p->first, p->next, p->plan, stream),
                       what, err))
        return NULL;
    p->prepared = work;
    return p;
}

static int attend_prompts(kvd_paged_cache *c, kvd_paged_prompts *p, int layer, const void *pool,
                          void *out, cudaStream_t stream, kvd_err *err)
{
    const kvd_step_batch *const b = c->batch;
    const size_t row = (size_t)p->args.map.o_pitch * sizeof(uint16_t);
    p->args.pool = pool;
    p->args.sinks = kvd_paged_cache_sinks(c, layer);
    p->args.o = b->no_gaps ? out : c->o;
    if (kvd_cuda_check(c->hopper ? kvd_prefill_sm90(&p->args, stream)
                                 : kvd_prefill_mma(&p->args, stream),
                       "attention of prompts", err))
        return -1;
    return b->no_gaps
               ? 0
               : kvd_cuda_check(kvd_dense_rows_back(c->o, b->device.start + b->n_steps,
                                                    b->device.q_start + b->n_steps, p->args.batch,
                                                    b->n_tokens - b->n_steps, row, out, stream),
                                "attention of prompts", err);
}

int kvd_paged_cache_put(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_gpu_method *const m = kvd_paged_method_of(c, r->layer);
    kvd_paged_place at = place_in(c, r->layer, kvd_paged_cache_pool(c, r->layer),
                                  kvd_paged_pages_of(c, &c->layer[r->layer].map)->device);
    at.uploaded = true;
    return kvd_status(
        (m && m->append ? m->append(m, r, err) : kvd_paged_cache_append_at(c, r, &at, err)) ||
        (m && m->appended && m->appended(m, r, err)));
}

static int attend_rest(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    kvd_paged_prompts *const p =
        prepare(c, c->work_of[r->layer], r->layer, &c->layer[r->layer].map, r->stream, err);
    return kvd_status(
        !p || kvd_clock_end(c->clock, KVD_PHASE_SCHEDULE, r->stream, err) ||
        attend_prompts(c, p, r->layer, kvd_paged_cache_pool(c, r->layer), out, r->stream, err));
}

/* Returns true if the compression method has a callback that must run after the attention of this
 * layer. */
static bool works_after(const kvd_paged_cache *c, const kvd_paged_rows *r)
{
    const kvd_gpu_method *const m = c->method;
    if (!m || (m->attended_prompts && !r->prompts))
        return false;
    return kvd_paged_method_of(c, r->layer)
               ? m->attended != NULL
               : c->layer[r->layer].map.window && m->attended_window != NULL;
}

static int work_after(kvd_paged_cache *c, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_gpu_method *const m = c->method;
    return kvd_paged_method_of(c, r->layer) ? m->attended(m, r, err)
                                            : m->attended_window(m, r, err);
}

int kvd_paged_cache_attend(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_phase *open,
                           kvd_err *err)
{
    kvd_gpu_method *const m = kvd_paged_method_of(c, r->layer);
    const size_t behind = r->steps * (size_t)c->layer[r->layer].map.o_pitch;
    uint16_t *const rest = (uint16_t *)out + behind;
    if (r->prompts && ((m && m->attend_prompts ? m->attend_prompts(m, r, rest, err)
                                               : attend_rest(c, r, rest, err)) ||
                       kvd_clock_end(c->clock, KVD_PHASE_PREFILL, r->stream, err)))
        return -1;
    if (r->steps && attend_steps(c, r, out, err))
        return -1;
    *open = r->steps ? KVD_PHASE_DECODE : KVD_PHASE_PREFILL;
    if (!works_after(c, r))
        return 0;
    if (kvd_clock_end(c->clock, *open, r->stream, err))
        return -1;
    *open = KVD_PHASE_COMPRESS;
    return work_after(c, r, err);
}

static int attend_exactly(kvd_paged_cache *c, const kvd_gpu_attention_in *in, size_t prompts,
                          void *out, kvd_err *err)
{
    kvd_gpu_attention *const dense = kvd_gpu_dense_hook(c->worker->dense);
    kvd_gpu_attention_in rows = *in;
    rows.longest = 0;
    for (size_t i = 0; i < prompts; i++) {
        const size_t n = (size_t)c->batch->host.q_len[i];
        c->offset[i + 1] = c->offset[i] + n;
        rows.longest = kvd_larger(rows.longest, n);
    }
    rows.n_sequences = prompts;
    rows.offset = c->offset;
    return dense->run(dense, &rows, out, err);
}

static int attend_whole(kvd_paged_cache *c, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    if (append_whole(c, r->layer, r->x, r->stream, err))
        return -1;
    kvd_paged_prompts *const p =
        prepare(c, c->n_works, r->layer, &c->whole[r->layer].map, r->stream, err);
    return p ? attend_prompts(c, p, r->layer, c->whole_pool, out, r->stream, err) : -1;
}

static int run_exact(kvd_paged_cache *c, const kvd_gpu_attention_in *in, const kvd_paged_rows *r,
                     void *out, kvd_err *err)
{
    const kvd_cache_layer *const l = &c->layer[in->layer];
    kvd_gpu_method *const m = kvd_paged_method_of(c, r->layer);
    if (r->steps && r->prompts)
        return kvd_fail(err, "prompts that attend whole and steps in one iteration");
    if (kvd_paged_cache_put(c, r, err))
        return -1;
    if (r->prompts) {
        if (c->whole && m ? attend_whole(c, r, out, err)
                          : attend_exactly(c, in, r->prompts, out, err))
            return -1;
    } else if (attend_steps(c, r, l->b_v ? c->o : out, err) ||
               (l->b_v && kvd_cache_project_back(in, l, c->o, out, err))) {
        return -1;
    }
    if (kvd_clock_end(c->clock, r->prompts ? KVD_PHASE_PREFILL : KVD_PHASE_DECODE, r->stream, err))
        return -1;
    if (!works_after(c, r))
        return 0;
    return kvd_status(work_after(c, r, err) ||
                      kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, r->stream, err));
}

static int run(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out, kvd_err *err)
{
    kvd_paged_cache *const c = (kvd_paged_cache *)(void *)self;
    const kvd_paged_rows r = {.layer = in->layer,
                              .x = in->q,
                              .ld = in->ld,
                              .q_pre = in->q_pre,
                              .k_pre = in->k_pre,
                              .ld_pre = in->ld_pre,
                              .input = in->input,
                              .steps = c->batch->n_steps,
                              .prompts = c->batch->n_slices - c->batch->n_steps,
                              .stream = in->stream};
    kvd_phase open;
    if (c->exact_prompts)
        return run_exact(c, in, &r, out, err);
    return kvd_status(kvd_paged_cache_put(c, &r, err) ||
                      kvd_paged_cache_attend(c, &r, out, &open, err) ||
                      kvd_clock_end(c->clock, open, r.stream, err));
}
