/* Methods zdc and think on the GPU, in which less important tokens keep fewer dimensions of K and
 * V. In layers with a sliding window, zdc treats all tokens as important, and think zeroes the
 * pruned channels of keys. */
#include <stdlib.h>

#include "kernels/cuda/decode.h"
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/cuda/zdc_method.h"
#include "methods/tokens/tokens.h"

static const char what[] = "two widths of tokens";

/* Returns the index of a layer among the layers without a sliding window. */
static int index_of(const kvd_zdc *z, int layer)
{
    return z->method.cache->kind_index[layer];
}

/* Returns true if the layer chooses its important tokens, false if it uses an earlier layer's
 * choice. */
static bool chooses(const kvd_zdc *z, int layer)
{
    return kvd_zdc_first_of(z->method.plan, index_of(z, layer)) == index_of(z, layer);
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    bool changed = false;
    for (size_t i = 0; i < it->n_steps; i++) {
        const kvd_slice *const s = &it->slice[i];
        const size_t known = z->slot[s->slot].tokens;
        /* If the slot's prompt has been processed, its number of less important tokens is already
         * set. */
        if (known && known <= s->before)
            continue;
        kvd_zdc_levels_suppose(&z->levels, m->plan, (int)kvd_zdc_layers(z), s->slot, s->before);
        changed = true;
    }
    return changed ? kvd_zdc_levels_put(&z->levels, m->cache, z->stream, err) : 0;
}

static size_t order_bytes(const kvd_zdc *z)
{
    const kvd_paged_cache *const c = z->method.cache;
    return z->window ? (size_t)(c->share->n_kv_heads * c->config->d_head) * sizeof *z->order : 0;
}

static double held_by(const kvd_zdc *z, size_t slot)
{
    double bytes = 0;
    for (size_t l = 0; l < kvd_zdc_layers(z); l++) {
        const double low = (double)z->levels.host_low[slot * kvd_zdc_layers(z) + l];
        bytes += low * z->layer[l].entry[KVD_ZDC_LOW] +
                 ((double)z->slot[slot].tokens - low) * z->layer[l].entry[KVD_ZDC_HIGH] +
                 (double)(sizeof *z->levels.n_low + order_bytes(z));
    }
    return bytes;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    (void)err;
    for (size_t i = 0; i < it->n_slices; i++) {
        kvd_zdc_slot *const to = &z->slot[it->slice[i].slot];
        to->tokens = to->counted = it->slice[i].before + it->slice[i].n;
    }
    for (size_t s = 0; s < z->levels.n_slots; s++)
        z->slot[s].held = z->slot[s].tokens ? held_by(z, s) : 0;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            z->slot[it->slice[i].slot].tokens = 0;
    return 0;
}

static double held(const kvd_gpu_method *m)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    double bytes = 0;
    for (size_t s = 0; s < z->levels.n_slots; s++)
        bytes += z->slot[s].held;
    return bytes;
}

static double bits(const kvd_gpu_method *m, size_t slot)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    double numbers = 0;
    for (size_t l = 0; z->slot[slot].counted && l < kvd_zdc_layers(z); l++) {
        const double low = (double)z->levels.host_low[slot * kvd_zdc_layers(z) + l];
        numbers += low * z->layer[l].numbers[KVD_ZDC_LOW] +
                   ((double)z->slot[slot].counted - low) * z->layer[l].numbers[KVD_ZDC_HIGH];
    }
    return 8 * sizeof *z->store * numbers;
}

static size_t lowered(const kvd_gpu_method *m, size_t slot)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    size_t tokens = 0;
    for (size_t l = 0; l < kvd_zdc_layers(z); l++)
        tokens += (size_t)z->levels.host_low[slot * kvd_zdc_layers(z) + l];
    return tokens * (size_t)m->cache->share->n_kv_heads;
}

static kvd_zdc_pages pages_of(const kvd_zdc *z, int layer, size_t first)
{
    const kvd_paged_cache *const c = z->method.cache;
    return (kvd_zdc_pages){.slot = c->batch->device.slot + first,
                           .table = c->pages->device + first * c->pages->max_pages,
                           .pitch = (int32_t)c->pages->max_pages,
                           .own = z->own,
                           .n_low = z->levels.n_low,
                           .n_layers = (int32_t)kvd_zdc_layers(z),
                           .layer = index_of(z, layer)};
}

static const kvd_zdc_head *heads_of(const kvd_zdc *z, int layer)
{
    return z->head + (size_t)index_of(z, layer) * (size_t)z->method.cache->share->n_kv_heads;
}

static int sum_attention(const kvd_zdc *z, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_evict_prompts_args a = kvd_evict_prompts_of(z->method.cache, r, r->layer);
    a.rule.ranking = KVD_EVICT_ATTENTION;
    a.lse = z->levels.lse;
    a.mass = z->mass;
    kvd_evict_prompts_whole(z->method.cache, &a);
    return kvd_cuda_check(kvd_evict_score_any(&a, r->stream), "attention received", err);
}

static int choose(kvd_zdc *z, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = z->method.cache;
    kvd_zdc_choose_args a = kvd_zdc_levels_args(&z->levels, c, z->method.plan, r);
    a.pages = pages_of(z, r->layer, r->steps);
    if (z->mass) {
        a.lse = z->mass;
        a.sums = 1;
        a.overlap = 2;
    }
    if (z->mass && sum_attention(z, r, err))
        return -1;
    if (!z->parts.n)
        return kvd_zdc_choose_by_all(c, &a, &z->levels, r->stream, err);
    /* If several GPUs process a prompt, importance is summed over the heads of each GPU, then over
     * GPUs. */
    if (kvd_cuda_check(
            kvd_zdc_value(&a, z->parts.sum + (size_t)z->parts.own * c->batch->n_q8, r->stream),
            what, err) ||
        kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, r->stream, err) ||
        z->parts.exchange(z->parts.ctx, z->parts.sum, c->batch->n_q8, err))
        return -1;
    a.lse = z->parts.sum;
    a.n_heads = z->parts.n;
    return kvd_cuda_check(kvd_zdc_choose(&a, r->stream), "importance of tokens", err);
}

static kvd_zdc_move_args move_args(const kvd_zdc *z, const kvd_paged_rows *r)
{
    const kvd_paged_cache *const c = z->method.cache;
    return (kvd_zdc_move_args){.pages = pages_of(z, r->layer, r->steps),
                               .batch = (int32_t)r->prompts,
                               .n_kv_heads = c->share->n_kv_heads,
                               .longest = kvd_paged_longest(r, c->batch->host.q_len),
                               .q_start = c->batch->device.q_start + r->steps,
                               .q_len = c->batch->device.q_len + r->steps,
                               .level = z->levels.level,
                               .place = z->levels.place,
                               .head = heads_of(z, r->layer),
                               .from = kvd_paged_cache_pool(c, r->layer),
                               .store = z->store + z->layer[index_of(z, r->layer)].at,
                               .page = (size_t)c->layer[r->layer].map.page_elements};
}

/* Zeroes the dimensions of K and V that less important prompt tokens do not keep, in layers that
 * use an earlier layer's important tokens. */
static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    if (!r->prompts || m->cache->exact_prompts || chooses(z, r->layer))
        return 0;
    const kvd_zdc_move_args a = move_args(z, r);
    return kvd_status(
        kvd_cuda_check(kvd_zdc_narrow(&a, kvd_paged_cache_pool(m->cache, r->layer), r->stream),
                       what, err) ||
        kvd_clock_end(m->cache->clock, KVD_PHASE_APPEND, r->stream, err));
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    const kvd_zdc_move_args a = move_args(z, r);
    if ((chooses(z, r->layer) && choose(z, r, err)) ||
        kvd_clock_end(m->cache->clock, KVD_PHASE_COMPRESS, r->stream, err) ||
        kvd_cuda_check(kvd_zdc_move(&a, r->stream), what, err) ||
        kvd_clock_end(m->cache->clock, KVD_PHASE_APPEND, r->stream, err))
        return -1;
    return index_of(z, r->layer) + 1 < m->cache->n_full
               ? 0
               : kvd_zdc_levels_get(&z->levels, m->cache, r->stream, err);
}

/* Returns the arguments for the attention of a decode step with n requests. Layer index l counts
 * only layers without a sliding window. */
static kvd_decode_args decode_args(const kvd_zdc *z, int l, size_t n)
{
    const kvd_paged_cache *const c = z->method.cache;
    const size_t row = (size_t)l * c->batch->max_slices;
    return (kvd_decode_args){.dtype = KVD_BF16,
                             .map = z->layer[l].both,
                             .batch = (int32_t)n,
                             .max_pages = (int32_t)c->pages->max_pages + 1,
                             .kv_len = z->end + row,
                             .second_len = z->low_len + row,
                             .live = c->batch->device.live,
                             .page_table = z->table,
                             .q = c->q_steps,
                             .pool = z->store + z->layer[l].at,
                             .o = z->o,
                             .lse = z->lse_steps,
                             .n_ctas = c->n_sms,
                             .workspace = z->layer[l].workspace};
}

/* Divides the decode attention of n requests among CTAs, unless an earlier call did so for the same
 * n. Must not be called during CUDA graph capture. */
static int describe(kvd_zdc *z, size_t n, cudaStream_t stream, kvd_err *err)
{
    const size_t each = kvd_decode_plan_layer_bytes();
    const kvd_schedule schedule = kvd_paged_cache_schedule(z->method.cache, false);
    if (z->works[n])
        return 0;
    for (size_t l = 0; l < kvd_zdc_layers(z); l++) {
        const kvd_decode_args a = decode_args(z, (int)l, n);
        if (kvd_cuda_check(kvd_decode_plan_describe(&a, schedule, (char *)z->host_works + l * each),
                           what, err))
            return -1;
    }
    z->works[n] = kvd_device_copy(&z->memory, z->host_works, kvd_zdc_layers(z) * each, "work lists",
                                  stream, err);
    return z->works[n] ? kvd_cuda_check(cudaStreamSynchronize(stream), what, err) : -1;
}

static int plan_steps(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    const kvd_zdc_lists_args lists = {.pages = pages_of(z, 0, 0),
                                      .batch = (int32_t)n,
                                      .rows = (int32_t)m->cache->batch->max_slices,
                                      .kv_len = m->cache->batch->device.kv_len,
                                      .end = z->end,
                                      .low_len = z->low_len,
                                      .table = z->table};
    if (describe(z, n, stream, err) || kvd_cuda_check(kvd_zdc_lists(&lists, stream), what, err))
        return -1;
    const kvd_decode_args a = decode_args(z, 0, n);
    return kvd_cuda_check(kvd_decode_plan_layers(&a, kvd_paged_cache_schedule(m->cache, false),
                                                 z->works[n], (int)kvd_zdc_layers(z), stream),
                          what, err);
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    if (!r->steps)
        return kvd_paged_cache_append(m->cache, r, NULL, NULL, err);
    const kvd_decode_args a = decode_args(z, index_of(z, r->layer), r->steps);
    const kvd_paged_place at = {.pool = z->store + z->layer[index_of(z, r->layer)].at,
                                .table = a.page_table,
                                .kv_len = a.kv_len,
                                .pitch = a.max_pages};
    return kvd_paged_cache_append_at(m->cache, r, &at, err);
}

static int attend_steps(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    const kvd_attn_map *const high = &m->cache->layer[r->layer].map;
    const kvd_decode_args a = decode_args(z, index_of(z, r->layer), r->steps);
    const kvd_zdc_merge_args merge = {.pages = pages_of(z, r->layer, 0),
                                      .batch = (int32_t)r->steps,
                                      .n_kv_heads = high->n_kv_heads,
                                      .group = high->group,
                                      .hopper = m->cache->hopper,
                                      .head = heads_of(z, r->layer),
                                      .pitch = a.map.o_pitch,
                                      .out_pitch = high->o_pitch,
                                      .o = z->o,
                                      .lse = z->lse_steps,
                                      .sinks = kvd_paged_cache_sinks(m->cache, r->layer),
                                      .out = out};
    return kvd_status(kvd_cuda_check(kvd_decode(&a, r->stream), "attention of steps", err) ||
                      kvd_cuda_check(kvd_zdc_merge(&merge, r->stream), "attention of steps", err));
}

static void release(kvd_gpu_method *m)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    kvd_device_release(&z->memory);
    free(z);
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    return kvd_zdc_make_pool((kvd_zdc *)m, pages, slots, stream, err);
}

static bool runs(const kvd_plan *p)
{
    return p->dims && p->dims_low;
}

static const char *other_member(const kvd_plan *p)
{
    return p->layers     ? p->layers->info.name
           : p->maker    ? p->maker->info.name
           : p->channels ? p->channels->info.name
           : p->bits     ? p->bits->info.name
                         : NULL;
}

static int open_zdc(kvd_zdc *z, kvd_err *err)
{
    kvd_gpu_method *const m = &z->method;
    z->layer = kvd_device_host(&z->memory, kvd_zdc_layers(z) * sizeof *z->layer, what, err);
    if (!z->layer || kvd_dims_fits(z->dims_low, m->cache->config, err) || kvd_zdc_make(z, err))
        return -1;
    for (size_t l = 0; l < kvd_zdc_layers(z); l++)
        m->page_bytes += (size_t)z->layer[l].low.page_elements * sizeof(uint16_t);
    m->slot_bytes = m->page_bytes + kvd_zdc_layers(z) * sizeof *z->levels.n_low;
    m->lse = z->levels.lse;
    return 0;
}

static kvd_zdc *create(const kvd_plan *plan, kvd_paged_cache *c, kvd_gpu_method **m, kvd_err *err)
{
    if (2 * c->share->n_heads > KVD_HEADS_MAX) {
        kvd_fail(err,
                 "two widths of tokens: the CUDA engine takes up to %d heads, the model has %d",
                 KVD_HEADS_MAX / 2, c->share->n_heads);
        return NULL;
    }
    kvd_zdc *const z = calloc(1, sizeof *z);
    if (!z) {
        kvd_no_memory(err, what, sizeof *z);
        return NULL;
    }
    *m = &z->method; /* the cache releases *m, even after a failure */
    z->method = (kvd_gpu_method){.cache = c,
                                 .plan = plan,
                                 .one_layer = true,
                                 .skips_windows = true,
                                 .anywhere = true,
                                 .whole_prompts = true,
                                 .attended_prompts = true,
                                 .kernels = "steps over two stores",
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .held = held,
                                 .bits = bits,
                                 .appended = appended,
                                 .attended = attended,
                                 .plan_steps = plan_steps,
                                 .append = append,
                                 .attend_steps = attend_steps,
                                 .free = release};
    return z;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *c, kvd_gpu_method **m, kvd_err *err)
{
    if (other_member(plan))
        return kvd_fail(
            err, "the CUDA engine runs '%s' with methods of the dims axis alone, not with '%s'",
            plan->tokens->info.name, other_member(plan));
    kvd_zdc *const z = create(plan, c, m, err);
    if (!z)
        return -1;
    z->dims_low = plan->dims_low;
    z->method.lowered = lowered;
    return open_zdc(z, err);
}

static bool generates(const kvd_plan *plan)
{
    return !other_member(plan);
}

static bool fits(const kvd_plan *plan, const kvd_config *config)
{
    (void)plan;
    return 2 * config->n_heads <= KVD_HEADS_MAX;
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

/* From here on, all functions belong to method think, which removes key channels (prunes them). */

enum { P, WINDOW }; /* p and window in think.c */

static size_t low_of(const kvd_zdc *z, size_t prompt)
{
    return prompt > z->window ? prompt - z->window : 0;
}

static int begin_think(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    const size_t layers = kvd_zdc_layers(z);
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        const size_t known = z->slot[s->slot].tokens;
        int32_t *const n_low = z->levels.host_low + s->slot * layers;
        if (i < it->n_steps && known && known <= s->before)
            continue;
        for (size_t l = 0; l < layers; l++)
            n_low[l] = (int32_t)low_of(z, i < it->n_steps ? s->before : s->n);
        if (i < it->n_steps && kvd_queue_put(z->levels.n_low + s->slot * layers, n_low,
                                             layers * sizeof *n_low, z->stream, what, err))
            return -1;
    }
    return 0;
}

static int append_think(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    if (append(m, r, err))
        return -1;
    if (!r->steps)
        return 0;
    const kvd_decode_args d = decode_args(z, index_of(z, r->layer), r->steps);
    const kvd_zdc_reorder_args a = {.pages = pages_of(z, r->layer, 0),
                                    .map = m->cache->layer[r->layer].map,
                                    .batch = (int32_t)r->steps,
                                    .pitch = d.max_pages,
                                    .end = d.kv_len,
                                    .table = d.page_table,
                                    .order = z->order,
                                    .q = m->cache->q_steps,
                                    .store = z->store + z->layer[index_of(z, r->layer)].at};
    return kvd_status(kvd_cuda_check(kvd_zdc_reorder(&a, r->stream), "order of channels", err) ||
                      kvd_clock_end(m->cache->clock, KVD_PHASE_ROTATE, r->stream, err));
}

static kvd_zdc_channels_args channels_args(const kvd_zdc *z, const kvd_paged_rows *r)
{
    const kvd_paged_cache *const c = z->method.cache;
    return (kvd_zdc_channels_args){.pages = pages_of(z, r->layer, r->steps),
                                   .map = c->layer[r->layer].map,
                                   .batch = (int32_t)r->prompts,
                                   .n_q8 = (int32_t)c->batch->n_q8,
                                   .window = (int32_t)z->window,
                                   .q_start = c->batch->device.q_start + r->steps,
                                   .q_len = c->batch->device.q_len + r->steps,
                                   .q = c->q_prompts,
                                   .from = kvd_paged_cache_pool(c, r->layer),
                                   .order = z->order,
                                   .level = z->levels.level,
                                   .place = z->levels.place};
}

static int prune_window(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    const kvd_paged_cache *const c = m->cache;
    kvd_zdc_channels_args a = channels_args(z, r);
    a.pages.table = c->near->device + r->steps * c->pages->max_pages;
    return kvd_cuda_check(kvd_zdc_prune(&a, a.map.window, (int32_t)z->kept,
                                        kvd_paged_cache_pool(c, r->layer), r->stream),
                          "channels of keys in a window", err);
}

static int attended_think(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    const kvd_paged_cache *const c = m->cache;
    kvd_zdc_move_args move = move_args(z, r);
    const kvd_zdc_channels_args a = channels_args(z, r);
    move.order = z->order;
    return kvd_status(
        kvd_cuda_check(kvd_zdc_channels(&a, r->stream), "importance of channels", err) ||
        kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, r->stream, err) ||
        kvd_cuda_check(kvd_zdc_move(&move, r->stream), what, err) ||
        kvd_clock_end(c->clock, KVD_PHASE_APPEND, r->stream, err));
}

/* Returns how many tokens of a request have pruned keys in a layer without a sliding window. All
 * these layers have equally many. */
static size_t pruned_of(const kvd_zdc *z, size_t slot)
{
    return (size_t)z->levels.host_low[slot * kvd_zdc_layers(z)];
}

/* Returns how many tokens in a sliding window have pruned keys, for a request that has n tokens. */
static size_t pruned_near(const kvd_zdc *z, size_t slot, size_t n)
{
    const size_t window = z->method.cache->window, gone = n > window ? n - window : 0,
                 low = pruned_of(z, slot);
    return low > gone ? low - gone : 0;
}

/* Returns how many tokens in a layer's sliding window have pruned keys when decoding begins. */
static size_t pruned_first(const kvd_zdc *z, size_t slot)
{
    return pruned_near(z, slot, pruned_of(z, slot) + z->window);
}

/* Returns the number of KV heads in all layers with a sliding window. */
static size_t near_heads(const kvd_zdc *z)
{
    const kvd_paged_cache *const c = z->method.cache;
    return (size_t)(c->config->n_layers - c->n_full) * (size_t)c->share->n_kv_heads;
}

/* Returns the number of bits that channel pruning saves for `tokens` keys, in all layers with a
 * sliding window. */
static double pruned_bits(const kvd_zdc *z, size_t tokens)
{
    const size_t d = (size_t)z->method.cache->config->d_head;
    return 8.0 * sizeof *z->store * (double)(near_heads(z) * tokens * (d - z->kept));
}

/* Returns the number of bits of a request's K and V in the cache, including a mask of the pruned
 * key channels. In layers with a sliding window, pruned key channels count as not stored. */
static double think_bits(const kvd_gpu_method *m, size_t slot)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    const size_t d = (size_t)m->cache->config->d_head, n = z->slot[slot].counted,
                 heads = kvd_zdc_layers(z) * (size_t)m->cache->share->n_kv_heads;
    if (!n || !pruned_of(z, slot))
        return bits(m, slot);
    return bits(m, slot) + (double)(d * heads) +
           (pruned_first(z, slot) ? (double)(d * near_heads(z)) : 0) -
           pruned_bits(z, pruned_near(z, slot, n));
}

/* Returns minus the bits that pruning saved on keys that left the sliding window in the latest
 * step. */
static double think_unseen(const kvd_gpu_method *m, size_t slot)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    const size_t n = z->slot[slot].counted;
    return n ? -pruned_bits(z, pruned_near(z, slot, n - 1) - pruned_near(z, slot, n)) : 0;
}

static size_t think_pruned(const kvd_gpu_method *m, size_t slot)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    const size_t heads = kvd_zdc_layers(z) * (size_t)m->cache->share->n_kv_heads;
    return z->kept < (size_t)m->cache->config->d_head
               ? pruned_of(z, slot) * heads + pruned_first(z, slot) * near_heads(z)
               : 0;
}

static int make_think(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream,
                      kvd_err *err)
{
    kvd_zdc *const z = (kvd_zdc *)m;
    const size_t d = (size_t)m->cache->config->d_head,
                 bytes = slots * kvd_zdc_layers(z) * order_bytes(z), n = bytes / sizeof *z->order;
    int16_t *const order = malloc(bytes);
    if (!order)
        return kvd_no_memory(err, what, bytes);
    /* If no prompt has been computed in a slot, its key channels are in their original order. */
    for (size_t i = 0; i < n; i++)
        order[i] = (int16_t)(i % d);
    z->order = kvd_device_from(&z->memory, order, bytes, what, err);
    free(order);
    return z->order ? kvd_zdc_make_pool(z, pages, slots, stream, err) : -1;
}

/* Sets the number of dimensions of K and V that each KV head stores for less important tokens.
 * Their keys keep only the channels that are not pruned. */
static int set_widths(kvd_zdc *z, kvd_err *err)
{
    const kvd_config *const c = z->method.cache->config;
    const size_t heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    z->own_low = (kvd_dims){.n_layers = c->n_layers,
                            .n_kv_heads = c->n_kv_heads,
                            .d_head = c->d_head,
                            .heads = 1,
                            .method = "think"};
    z->own_low.head = kvd_device_host(&z->memory, heads * sizeof *z->own_low.head, what, err);
    if (!z->own_low.head)
        return -1;
    for (size_t i = 0; i < heads; i++) {
        z->own_low.head[i].d_qk = (int)z->kept;
        z->own_low.head[i].d_v = c->d_head;
    }
    z->dims_low = &z->own_low;
    return 0;
}

static const char *think_beside(const kvd_plan *plan)
{
    return plan->layers   ? plan->layers->info.name
           : plan->tokens ? plan->tokens->info.name
           : plan->bits   ? plan->bits->info.name
           : plan->dims   ? plan->dims->method
                          : NULL;
}

static int open_think(const kvd_plan *plan, kvd_paged_cache *c, kvd_gpu_method **m, kvd_err *err)
{
    const char *const other = think_beside(plan);
    if (other)
        return kvd_fail(err, "the CUDA engine runs 'think' alone, not with '%s'", other);
    kvd_zdc *const z = create(plan, c, m, err);
    if (!z)
        return -1;
    const double *const v = plan->channels_values.value;
    const size_t d = (size_t)c->config->d_head;
    z->window = (size_t)v[WINDOW];
    z->kept = d - (size_t)(v[P] * (double)d);
    z->method.make = make_think;
    z->method.begin = begin_think;
    z->method.bits = think_bits;
    z->method.unseen = think_unseen;
    z->method.pruned = think_pruned;
    z->method.append = append_think;
    z->method.appended = NULL;
    z->method.attended = attended_think;
    z->method.attended_window = prune_window;
    z->method.apart = 1u << KVD_PHASE_ROTATE;
    if (set_widths(z, err) || open_zdc(z, err))
        return -1;
    z->method.lse = NULL;
    z->method.slot_bytes += kvd_zdc_layers(z) * order_bytes(z);
    return 0;
}

static bool think_generates(const kvd_plan *plan)
{
    return !think_beside(plan);
}

size_t kvd_gpu_zdc_low(const kvd_gpu_method *m, size_t slot, int layer)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    return (size_t)z->levels.host_low[slot * kvd_zdc_layers(z) + (size_t)index_of(z, layer)];
}

int kvd_gpu_zdc_together(const kvd_gpu_method *m)
{
    return kvd_tokens_layers(&m->plan->tokens_values);
}

void kvd_gpu_zdc_share(kvd_gpu_method *m, const kvd_zdc_parts *parts)
{
    ((kvd_zdc *)m)->parts = *parts;
}

const kvd_zdc_head *kvd_gpu_zdc_heads(const kvd_gpu_method *m, int layer)
{
    return heads_of((const kvd_zdc *)m, layer);
}

const kvd_attn_map *kvd_gpu_zdc_low_map(const kvd_gpu_method *m, int layer)
{
    return &((const kvd_zdc *)m)->layer[index_of((const kvd_zdc *)m, layer)].low;
}

kvd_zdc_sets kvd_gpu_zdc_sets(const kvd_gpu_method *m)
{
    const kvd_zdc *const z = (const kvd_zdc *)m;
    return (kvd_zdc_sets){z->levels.level, z->levels.place};
}

const kvd_gpu_kind kvd_gpu_zdc = {.computes = computes,
                                  .shares_prompts = true,
                                  .joins_heads = kvd_gpu_heads_apart,
                                  .runs = runs,
                                  .generates = generates,
                                  .fits = fits,
                                  .open = open_method},
                   kvd_gpu_zdc_received = {.computes = computes,
                                           .joins_heads = kvd_gpu_heads_apart,
                                           .runs = runs,
                                           .generates = generates,
                                           .fits = fits,
                                           .open = open_method},
                   kvd_gpu_think = {.computes = computes,
                                    .joins_heads = kvd_gpu_heads_apart,
                                    .generates = think_generates,
                                    .fits = fits,
                                    .open = open_think};
