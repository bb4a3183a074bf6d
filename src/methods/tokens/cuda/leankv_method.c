/* Method leankv on the GPU: drops insignificant tokens, and quantises the others at high or low
 * precision. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/cuda/paged_cache.h"
#include "methods/tokens/cuda/leankv.h"
#include "methods/tokens/cuda/lower.h"

static const char what[] = "leankv";

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    kvd_leankv_pool pool;
    kvd_device_memory memory;
    cudaStream_t stream;
    double th, tl;
    size_t room;                       /* largest number of cached tokens of a KV head */
    int32_t bits[2][KVD_LOWER_LEVELS]; /* bits per number of K and V, high and low precision */
    float *score, *lse2, *partial, *mass;
    uint32_t *arrived;
    int32_t *source, *leaving, window;
    /* [2][n_slots] in pinned memory: slots of requests that have finished, then slots of requests
     * that are about to begin. */
    int32_t *host_leaving;
    uint32_t *known;
    /* State of the page pool after the latest iteration, copied to pinned memory. */
    kvd_leankv_state *seen;
    kvd_leankv_head *record; /* [n_layers][n_kv_heads] scratch */
} leankv;

static double value_of(const kvd_parameter *p, const kvd_parameter_values *v, const char *key)
{
    size_t i = 0;
    while (strcmp(p[i].key, key) != 0)
        i++;
    return v->value[i];
}

/* Frees the pages of n requests. `slot` is pinned and must not change until the iteration ends. */
static int give_back(leankv *k, const int32_t *slot, size_t n, kvd_err *err)
{
    if (n == 0)
        return 0;
    return kvd_status(
        kvd_queue_put(k->leaving, slot, n * sizeof *k->leaving, k->stream, what, err) ||
        kvd_cuda_check(kvd_leankv_give_back(&k->pool, k->leaving, (int)n, k->stream), what, err));
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    leankv *const k = (leankv *)m;
    /* Uses the second half of host_leaving, because a copy to the GPU may still read the first
     * half. */
    int32_t *const slot = k->host_leaving + k->pool.n_slots;
    size_t n = 0;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        if (i < it->n_steps && (s->before != k->known[s->slot] || s->before == 0))
            return kvd_fail(
                err,
                "request %u: %u tokens after %u in slot %u, which has seen %u; method 'leankv' takes "
                "a prompt in one piece",
                s->request, s->n, s->before, s->slot, k->known[s->slot]);
        if (s->before == 0 && k->known[s->slot])
            slot[n++] = (int32_t)s->slot;
    }
    return give_back(k, slot, n, err);
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    leankv *const k = (leankv *)m;
    size_t n = 0;
    if (k->seen->wanted)
        return kvd_fail(err, "leankv: heads want %llu pages more, %llu of %d are free",
                        (unsigned long long)k->seen->wanted, (unsigned long long)k->seen->left,
                        k->pool.n_pages);
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        k->known[s->slot] = s->last ? 0 : s->before + s->n;
        if (s->last)
            k->host_leaving[n++] = (int32_t)s->slot;
    }
    return give_back(k, k->host_leaving, n, err);
}

/* Returns how many tokens stay in bf16 pages: none. */
static size_t entries(const kvd_gpu_method *m, size_t slot, size_t before)
{
    (void)m, (void)slot, (void)before;
    return 0;
}

static double held(const kvd_gpu_method *m)
{
    const leankv *const k = (const leankv *)m;
    double bytes = 0;
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
        const kvd_leankv_precision *const p = &k->pool.layout.level[l];
        bytes += (double)k->seen->entries[l] *
                 (double)kvd_leankv_entry_bytes(k->pool.layout.d, p->k_bits, p->v_bits);
    }
    return bytes;
}

/* Counts a request's cached tokens at each precision, summed over KV heads and layers, into n.
 * Returns false on failure. */
static bool count(const leankv *k, size_t slot, double n[KVD_LEANKV_LEVELS])
{
    const size_t heads = (size_t)k->pool.n_layers * (size_t)k->pool.n_kv_heads;
    if (cudaMemcpy(k->record, k->pool.head + slot * heads, heads * sizeof *k->record,
                   cudaMemcpyDeviceToHost))
        return false;
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++) {
        n[l] = 0;
        for (size_t h = 0; h < heads; h++)
            n[l] += k->record[h].n[l];
    }
    return true;
}

static double mean(const kvd_gpu_method *m, size_t slot)
{
    const leankv *const k = (const leankv *)m;
    double n[KVD_LEANKV_LEVELS];
    return count(k, slot, n) ? (n[KVD_LEANKV_HIGH] + n[KVD_LEANKV_LOW]) /
                                   ((double)k->pool.n_layers * k->pool.n_kv_heads)
                             : (double)NAN;
}

/* Returns the number of bits of one token in one KV head at precision `level`: quantised K and V,
 * and for each a 16-bit step and a 16-bit zero point. */
static double token_bits(const leankv *k, int level)
{
    return k->pool.layout.d * (k->bits[0][level] + k->bits[1][level]) + 64.0;
}

/* Returns how many bits a request of n tokens takes in all layers with a sliding window. */
static double near_bits(const leankv *k, size_t n)
{
    const kvd_paged_cache *const c = k->method.cache;
    const double heads = (double)(c->config->n_layers - c->n_full) * k->pool.n_kv_heads;
    return c->window ? heads * (double)(n < c->window ? n : c->window) * token_bits(k, 0) : 0;
}

static double bits(const kvd_gpu_method *m, size_t slot)
{
    const leankv *const k = (const leankv *)m;
    double n[KVD_LEANKV_LEVELS], sum = near_bits(k, k->known[slot]);
    if (!count(k, slot, n))
        return (double)NAN;
    for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
        sum += n[l] * token_bits(k, l);
    return sum;
}

/* Returns the storage size, in bits, of the token that left the sliding windows in the latest
 * decode step. */
static double unseen(const kvd_gpu_method *m, size_t slot)
{
    const leankv *const k = (const leankv *)m;
    return m->cache->window && k->known[slot] > m->cache->window ? near_bits(k, 1) : 0;
}

static size_t lowered(const kvd_gpu_method *m, size_t slot)
{
    double n[KVD_LEANKV_LEVELS];
    return count((const leankv *)m, slot, n) ? (size_t)n[KVD_LEANKV_LOW] : 0;
}

static kvd_leankv_steps steps_of(const leankv *k, const kvd_paged_rows *r)
{
    const kvd_paged_cache *const c = k->method.cache;
    const kvd_attn_map *const map = &c->layer[r->layer].map;
    return (kvd_leankv_steps){.pool = k->pool,
                              .layer = c->kind_index[r->layer],
                              .n = (int32_t)r->steps,
                              .group = map->group,
                              .room = (int32_t)k->room,
                              .splits = kvd_leankv_splits((int)r->steps, map->n_kv_heads, c->n_sms),
                              .scale = map->scale,
                              .slot = c->batch->device.slot,
                              .at = c->batch->device.step_at,
                              .page_table = c->pages->device,
                              .max_pages = (int32_t)c->pages->max_pages,
                              .fresh = kvd_paged_cache_pool(c, r->layer),
                              .q = c->q_steps,
                              .score = k->score,
                              .lse2 = k->lse2,
                              .partial = k->partial,
                              .arrived = k->arrived,
                              .window = k->window,
                              .sinks = kvd_paged_cache_sinks(c, r->layer)};
}

static int attend_steps(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    kvd_leankv_steps s = steps_of((leankv *)m, r);
    s.o = out;
    return kvd_cuda_check(kvd_leankv_attend(&s, r->stream), what, err);
}

static int plan_steps(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err)
{
    const leankv *const k = (leankv *)m;
    return kvd_cuda_check(kvd_leankv_grow(&k->pool, m->cache->batch->device.slot, (int)n, 0,
                                          k->pool.n_layers, 1, stream),
                          what, err);
}

static int compress_prompts(const leankv *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const kvd_step_batch *const b = c->batch;
    const kvd_attn_map *const map = &c->layer[r->layer].map;
    const kvd_leankv_prompts p = {.pool = k->pool,
                                  .layer = c->kind_index[r->layer],
                                  .n = (int32_t)r->prompts,
                                  .group = map->group,
                                  .n_q8 = (int32_t)b->n_q8,
                                  .longest = kvd_paged_longest(r, b->host.q_len),
                                  .window = k->window,
                                  .scale = map->scale,
                                  .th = k->th,
                                  .tl = k->tl,
                                  .slot = b->device.slot + r->steps,
                                  .q_start = b->device.q_start + r->steps,
                                  .q_len = b->device.q_len + r->steps,
                                  .page_table = c->pages->device + r->steps * c->pages->max_pages,
                                  .max_pages = (int32_t)c->pages->max_pages,
                                  .fresh = kvd_paged_cache_pool(c, r->layer),
                                  .q = c->q_prompts,
                                  .lse = k->method.lse,
                                  .mass = k->mass,
                                  .source = k->source};
    return kvd_status(kvd_cuda_check(kvd_leankv_masses(&p, r->stream), what, err) ||
                      kvd_cuda_check(kvd_leankv_compress(&p, r->stream), what, err));
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const leankv *const k = (leankv *)m;
    if (r->prompts && compress_prompts(k, r, err))
        return -1;
    if (r->steps) {
        const kvd_leankv_steps s = steps_of(k, r);
        if (kvd_cuda_check(kvd_leankv_update(&s, r->stream), what, err))
            return -1;
    }
    if (m->cache->kind_index[r->layer] < k->pool.n_layers - 1)
        return 0;
    return kvd_queue_get(k->seen, k->pool.state, sizeof *k->seen, r->stream, what, err);
}

static int round_window(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    return kvd_lower_round_window(m->cache, r, ((const leankv *)m)->bits, err);
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    leankv *const k = (leankv *)m;
    kvd_leankv_pool *const p = &k->pool;
    const size_t heads = (slots - 1) * (size_t)p->n_layers * (size_t)p->n_kv_heads;
    const size_t n =
        pages * (size_t)p->n_layers * (size_t)p->n_kv_heads + KVD_LEANKV_SPARE_PAGES * heads;
    if (n > INT32_MAX)
        return kvd_fail(err, "leankv: %zu pages, the page list takes %d", n, INT32_MAX);
    p->n_pages = (int32_t)n;
    p->n_slots = (int32_t)(slots - 1);
    k->stream = stream;
    kvd_device_memory *const d = &k->memory;
    k->known = kvd_device_host(d, slots * sizeof *k->known, what, err);
    k->record = kvd_device_host(d, (size_t)p->n_layers * (size_t)p->n_kv_heads * sizeof *k->record,
                                what, err);
    p->list = kvd_device_new(d, n * sizeof *p->list, "leankv's list of pages", err);
    p->table = kvd_device_new(d, heads * (size_t)p->table_length * sizeof *p->table,
                              "leankv's page tables", err);
    p->head = kvd_device_new(d, heads * sizeof *p->head, "leankv's heads", err);
    p->state = kvd_device_new(d, sizeof *p->state, "leankv's state", err);
    p->page = kvd_device_new(d, n * (size_t)p->layout.page_bytes, "leankv's pages", err);
    k->leaving = kvd_device_new(d, slots * sizeof *k->leaving, what, err);
    k->host_leaving = kvd_device_pinned(d, 2 * slots * sizeof *k->leaving, what, err);
    k->seen = kvd_device_pinned(d, sizeof *k->seen, what, err);
    return d->status || kvd_cuda_check(kvd_leankv_reset(p, stream), what, err) ? -1 : 0;
}

static void release(kvd_gpu_method *m)
{
    leankv *const k = (leankv *)m;
    kvd_device_release(&k->memory);
    free(k);
}

static int make_scratch(leankv *k, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const size_t slices = c->batch->max_slices, kv = (size_t)k->pool.n_kv_heads,
                 heads = slices * kv, group = (size_t)c->layer[0].map.group,
                 columns = (group + 1) / 2 * 2;
    size_t splits = 0;
    for (size_t n = 1; n <= slices; n++) {
        const size_t parts = n * (size_t)kvd_leankv_splits((int)n, (int)kv, c->n_sms);
        splits = parts > splits ? parts : splits;
    }
    const size_t rows = kv * ((c->batch->max_tokens + 7 * slices + 7) / 8 * 8);
    kvd_device_memory *const d = &k->memory;
    k->score = kvd_device_new(d, heads * k->room * columns * sizeof *k->score, "scores", err);
    k->lse2 = kvd_device_new(d, heads * 8 * sizeof *k->lse2, "scores", err);
    k->partial =
        kvd_device_new(d, splits * kv * 8 * (size_t)(k->pool.layout.d + 2) * sizeof *k->partial,
                       "parts of attention", err);
    k->arrived = kvd_device_filled(d, heads * sizeof *k->arrived, 0, "parts of attention", err);
    k->mass = kvd_device_new(d, rows * group * sizeof *k->mass, "significances", err);
    k->source = kvd_device_new(d, rows * sizeof *k->source, "significances", err);
    k->method.lse = kvd_device_new(d, rows * group * sizeof(float), "denominators", err);
    return d->status;
}

static void bits_of(const kvd_plan *plan, int of[2][KVD_LEANKV_LEVELS])
{
    static const char *const key[2][KVD_LEANKV_LEVELS] = {{"k", "lk"}, {"v", "lv"}};
    for (int side = 0; side < 2; side++)
        for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
            of[side][l] =
                (int)value_of(plan->bits->info.parameter, &plan->bits_values, key[side][l]);
}

static bool balances(const kvd_plan *plan)
{
    return value_of(plan->bits->info.parameter, &plan->bits_values, "balance") > 0;
}

static bool other_axes(const kvd_plan *plan)
{
    return plan->dims || plan->maker || plan->channels || plan->layers;
}

static int set_up(leankv *k, kvd_err *err)
{
    const kvd_plan *const plan = k->method.plan;
    const kvd_paged_cache *const c = k->method.cache;
    const kvd_parameter *const t = plan->tokens->info.parameter;
    const kvd_parameter_values *const tv = &plan->tokens_values;
    int of[2][KVD_LEANKV_LEVELS];
    bits_of(plan, of);
    kvd_leankv_pool *const p = &k->pool;
    k->th = value_of(t, tv, "th");
    k->tl = value_of(t, tv, "tl");
    k->window = (int32_t)value_of(t, tv, "window");
    if (other_axes(plan))
        return kvd_fail(
            err, "the CUDA engine runs leankv on whole heads, without methods of other axes");
    if (balances(plan))
        return kvd_fail(err, "the CUDA engine runs leankv without balance");
    if (kvd_leankv_layout_make(c->config->d_head, of[0], of[1], &p->layout) ||
        c->layer[0].map.group > 8)
        return kvd_fail(
            err,
            "K%dV%d and K%dV%d on heads of %d, %d to a KV head: the CUDA engine runs leankv with keys of "
            "8 or 4 bits, values of 8, 4 or 2, no more at the low level, heads of 32, 64 or 128, up "
            "to 8 to a KV head",
            of[0][0], of[1][0], of[0][1], of[1][1], c->config->d_head, c->layer[0].map.group);
    p->n_layers = c->n_full;
    for (int side = 0; side < 2; side++)
        for (int l = 0; l < KVD_LEANKV_LEVELS; l++)
            k->bits[side][l] = of[side][l];
    p->n_kv_heads = c->layer[0].map.n_kv_heads;
    k->room = c->max_len;
    p->table_length = (int32_t)(c->max_len / KVD_LEANKV_PAGE_TOKENS + KVD_LEANKV_SPARE_PAGES);
    k->method.page_bytes = (size_t)p->n_layers * (size_t)p->n_kv_heads *
                           ((size_t)p->layout.page_bytes + sizeof(int32_t));
    k->method.slot_bytes = kvd_leankv_slot_bytes(p);
    return make_scratch(k, err);
}

static bool runs(const kvd_plan *plan)
{
    return plan->bits == &kvd_bits_hetero;
}

static int open_method(const kvd_plan *plan, struct kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    leankv *const k = calloc(1, sizeof *k);
    if (!k)
        return kvd_no_memory(err, what, sizeof *k);
    k->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .skips_windows = true,
                                 .whole_prompts = true,
                                 .kernels = "steps on unified pages",
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .entries = entries,
                                 .mean = mean,
                                 .lowered = lowered,
                                 .bits = bits,
                                 .unseen = unseen,
                                 .held = held,
                                 .plan_steps = plan_steps,
                                 .attend_steps = attend_steps,
                                 .attended = attended,
                                 .attended_window = round_window,
                                 .free = release};
    *m = &k->method; /* the caller's cache frees *m, even after a failure */
    return set_up(k, err);
}

static bool generates(const kvd_plan *plan)
{
    return runs(plan) && !other_axes(plan) && !balances(plan);
}

static bool fits(const kvd_plan *plan, const kvd_config *c)
{
    kvd_leankv_layout layout;
    int of[2][KVD_LEANKV_LEVELS];
    bits_of(plan, of);
    return !kvd_leankv_layout_make(c->d_head, of[0], of[1], &layout) &&
           c->n_heads / c->n_kv_heads <= 8;
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE;
}

const kvd_gpu_kind kvd_gpu_leankv = {.computes = computes,
                                     .joins_heads = kvd_gpu_heads_apart,
                                     .runs = runs,
                                     .generates = generates,
                                     .fits = fits,
                                     .open = open_method};
