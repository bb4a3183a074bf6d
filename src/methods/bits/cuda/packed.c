#include "methods/bits/cuda/packed.h"

#include <math.h>
#include <stdlib.h>

#include "methods/bits/cuda/streams.h"
#include "methods/bits/levels.h"

static const char what[] = "coded cache";

typedef struct {
    kvd_gpu_method method;
    /* [n_layers] Kernel arguments that are equal in all iterations. */
    kvd_packed_args *layer;
    /* [max_slices][max_pages] in device memory: page table of the ring buffers, which have the
     * newest tokens. */
    int32_t *table;
    /* [slots + 1] in device memory: number of outliers in K of each request. Last element: how many
     * outliers of the page with the most outliers did not fit, or 0. */
    uint32_t *counts;
    uint32_t *host_counts;
    /* Two arrays [max_slices + 1] in device memory, for layers without and with a sliding window.
     * Element i is the number of pages that requests 0 .. i - 1 of the batch read in such a
     * layer. */
    int32_t *pages_before[2];
    float *partial;
    void *sketched;
    size_t slots;
    uint32_t *tokens;
    uint32_t *prompt; /* [slots] tokens of the prompt of the slot's request */
    double held;
    kvd_packed_salience salience;
    kvd_device_memory memory;
} packed;

static packed *of(const kvd_gpu_method *m)
{
    return (packed *)(void *)m;
}

static double held(const kvd_gpu_method *m)
{
    return of(m)->held;
}

static size_t first_held(const packed *k, int layer, size_t n)
{
    return kvd_gpu_first_held(&k->method, (size_t)k->layer[layer].map.window, n);
}

/* Returns the number of bits of tokens `from` to n - 1 of a request in a layer with a sliding
 * window. Each token of the prompt, which is the first `prompt` <= n tokens, counts with the mean
 * number of bits of the stored prompt tokens. */
static double shared_bits(const packed *k, int layer, int g, size_t prompt, size_t from, size_t n)
{
    const kvd_packed_args *const a = &k->layer[layer];
    const size_t first = first_held(k, layer, prompt), start = kvd_larger(from, first);
    const double later = kvd_gpu_packed_bits(a, g, kvd_larger(from, prompt), n);
    return start < prompt ? later + kvd_gpu_packed_bits(a, g, first, prompt) *
                                        (double)(prompt - start) / (double)(prompt - first)
                          : later;
}

/* Returns the number of bits of tokens `from` to n - 1 of a request in KV head g, without outliers
 * of K. */
static double head_bits(const packed *k, int layer, int g, size_t slot, size_t from, size_t n)
{
    const kvd_packed_args *const a = &k->layer[layer];
    const size_t prompt = k->prompt[slot];
    return kvd_packed_in_blocks(&a->form) ? kvd_gpu_packed_block_bits(a, g, from, n, prompt)
           : a->n_sink && a->map.window && n >= prompt ? shared_bits(k, layer, g, prompt, from, n)
                                                       : kvd_gpu_packed_bits(a, g, from, n);
}

static double slot_bits(const kvd_gpu_method *m, size_t slot)
{
    const packed *const k = of(m);
    const size_t n = k->tokens[slot];
    double bits = 32.0 * k->host_counts[slot];
    for (int l = 0; l < m->cache->config->n_layers; l++)
        for (int g = 0; g < k->layer[l].map.n_kv_heads; g++)
            bits += head_bits(k, l, g, slot, first_held(k, l, n), n);
    return bits;
}

static double unseen_bits(const kvd_gpu_method *m, size_t slot)
{
    const packed *const k = of(m);
    const size_t n = k->tokens[slot], before = n ? n - 1 : 0;
    double bits = 0;
    for (int l = 0; l < m->cache->config->n_layers; l++) {
        const kvd_packed_args *const a = &k->layer[l];
        const size_t window = (size_t)a->map.window, seen = window && n > window ? n - window : 0;
        for (int g = 0; g < a->map.n_kv_heads; g++)
            bits += head_bits(k, l, g, slot, first_held(k, l, before), before) -
                    head_bits(k, l, g, slot, seen, before);
    }
    return bits;
}

void kvd_gpu_packed_count(const kvd_gpu_method *m, const kvd_iteration *it, size_t slots,
                          uint32_t *tokens, double *held_bytes)
{
    double bits = 0;
    for (size_t i = 0; i < it->n_slices; i++)
        tokens[it->slice[i].slot] = it->slice[i].before + it->slice[i].n;
    for (size_t s = 0; s < slots; s++)
        bits += tokens[s] ? m->bits(m, s) : 0;
    *held_bytes = bits / 8;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            tokens[it->slice[i].slot] = 0;
}

int kvd_gpu_packed_begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    for (size_t i = it->n_steps; i < it->n_slices; i++)
        if (it->slice[i].before || !it->slice[i].emits)
            return kvd_fail(err,
                            "method '%s' compresses a prompt in one piece: it goes without chunks",
                            m->plan->bits->info.name);
    return 0;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    packed *const k = of(m);
    const kvd_packed_args *const a = &k->layer[0];
    if (k->host_counts[k->slots])
        return kvd_fail(
            err,
            "method '%s': a page of 64 tokens has %u outliers among its keys, there is room for %d: "
            "outliers=0 has none",
            m->plan->bits->info.name, (uint32_t)a->form.k_apart + k->host_counts[k->slots],
            a->form.k_apart);
    for (size_t i = 0; i < it->n_slices; i++)
        if (!it->slice[i].before)
            k->prompt[it->slice[i].slot] = it->slice[i].n;
    kvd_gpu_packed_count(m, it, k->slots, k->tokens, &k->held);
    return 0;
}

static size_t lacking(const kvd_gpu_method *m)
{
    const packed *const k = of(m);
    const uint32_t beyond = k->host_counts ? k->host_counts[k->slots] : 0;
    return beyond ? (size_t)k->layer[0].form.k_apart + beyond : 0;
}

static int32_t side_by_side(const kvd_paged_cache *c, const kvd_packed_args *a, size_t n,
                            size_t times)
{
    const size_t ctas = n * (size_t)a->map.n_kv_heads,
                 want = (times * (size_t)c->n_sms + ctas - 1) / ctas;
    return (int32_t)(want < c->pages->max_pages ? want : c->pages->max_pages);
}

static kvd_packed_args steps_of(const kvd_gpu_method *m, const kvd_paged_rows *r)
{
    const kvd_paged_cache *const c = m->cache;
    kvd_packed_args a = of(m)->layer[r->layer];
    a.n = (int32_t)r->steps;
    a.max_pages = (int32_t)c->pages->max_pages;
    a.kv_len = c->batch->device.kv_len;
    a.slot = c->batch->device.slot;
    a.page_table = kvd_paged_pages_of(c, &a.map)->device;
    a.rows = kvd_paged_cache_pool(c, r->layer);
    a.x = r->x;
    a.ld = r->ld;
    a.pages_side_by_side = 2;
    return a;
}

static kvd_packed_args prompts_of(const kvd_gpu_method *m, const kvd_paged_rows *r)
{
    const kvd_paged_cache *const c = m->cache;
    kvd_packed_args a = steps_of(m, r);
    a.n = (int32_t)r->prompts;
    a.kv_len += r->steps;
    a.slot += r->steps;
    a.q_len = c->batch->device.q_len + r->steps;
    a.start = c->batch->device.start + r->steps;
    a.page_table += r->steps * c->pages->max_pages;
    a.x += r->steps * r->ld;
    a.pages_side_by_side = side_by_side(c, &a, r->prompts, 8);
    return a;
}

int kvd_gpu_packed_rings(const kvd_paged_cache *c, const kvd_paged_rows *r, int32_t ring_pages,
                         int32_t *table, kvd_err *err)
{
    return r->layer == 0 && r->steps
               ? kvd_cuda_check(kvd_packed_ring_table(c->batch->device.slot, (int32_t)r->steps,
                                                      (int32_t)c->pages->max_pages, ring_pages,
                                                      table, r->stream),
                                what, err)
               : 0;
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    packed *const k = of(m);
    const kvd_packed_args *const a = &k->layer[r->layer];
    return kvd_gpu_packed_rings(m->cache, r, a->ring_pages, k->table, err)
               ? -1
               : kvd_paged_cache_append(m->cache, r, a->ring, k->table, err);
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    if (!r->steps)
        return 0;
    kvd_packed_args a = steps_of(m, r);
    a.pages_side_by_side = side_by_side(m->cache, &a, r->steps, 16);
    return kvd_status(kvd_cuda_check(kvd_packed_restore(&a, r->stream), what, err) ||
                      kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err));
}

static int turn_steps(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    if (!r->steps)
        return 0;
    const kvd_packed_args a = steps_of(m, r);
    return kvd_status(
        kvd_cuda_check(kvd_packed_turn_steps(&a, m->cache->q_steps, of(m)->sketched, r->stream),
                       what, err) ||
        kvd_clock_end(m->cache->clock, KVD_PHASE_COMPRESS, r->stream, err));
}

static bool has_window(const packed *k, int layer)
{
    return k->layer[layer].map.window > 0;
}

static kvd_packed_decode_args decode_args(const kvd_gpu_method *m, int layer, void *out)
{
    const packed *const k = of(m);
    return (kvd_packed_decode_args){.q = m->cache->q_steps,
                                    .sketched = k->sketched,
                                    .o = out,
                                    .pages_before = k->pages_before[has_window(k, layer)],
                                    .sinks = kvd_paged_cache_sinks(m->cache, layer),
                                    .live = m->cache->batch->device.live,
                                    .partial = k->partial,
                                    .n_ctas = m->cache->n_sms};
}

static int plan_steps(kvd_gpu_method *m, size_t n, cudaStream_t stream, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    for (int l = 0; l < c->config->n_layers; l++) {
        const kvd_packed_decode_args d = decode_args(m, l, NULL);
        kvd_packed_args a = of(m)->layer[l];
        a.n = (int32_t)n;
        a.kv_len = c->batch->device.kv_len;
        if (c->kind_index[l] == 0 &&
            kvd_cuda_check(kvd_packed_decode_plan(&a, &d, stream), what, err))
            return -1;
    }
    return 0;
}

static int attend_steps(kvd_gpu_method *m, const kvd_paged_rows *r, void *out, kvd_err *err)
{
    const kvd_packed_args a = steps_of(m, r);
    const kvd_packed_decode_args d = decode_args(m, r->layer, out);
    return kvd_status(
        kvd_cuda_check(kvd_packed_decode(&a, &d, r->stream), "attention of steps", err) ||
        (a.form.norms &&
         kvd_cuda_check(kvd_packed_turn_outputs(&a, out, r->stream), "outputs of steps", err)));
}

static int forget_outliers(packed *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_step_batch *const b = k->method.cache->batch;
    for (size_t i = 0; k->layer[0].form.k_apart && i < r->prompts; i++)
        if (kvd_cuda_check(cudaMemsetAsync(k->counts + b->host.slot[r->steps + i], 0,
                                           sizeof *k->counts, r->stream),
                           what, err))
            return -1;
    return 0;
}

static int turned(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    if (!r->prompts)
        return 0;
    const kvd_packed_args a = prompts_of(m, r);
    return kvd_cuda_check(kvd_packed_turn_prompts(&a, r->stream), what, err);
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    packed *const k = of(m);
    if (r->prompts) {
        kvd_packed_args a = prompts_of(m, r);
        if ((r->layer == 0 && forget_outliers(k, r, err)) ||
            (a.form.classes && kvd_gpu_packed_weigh_prompts(m, &k->salience, r, &a, err)) ||
            kvd_cuda_check(kvd_packed_code(&a, r->stream), what, err))
            return -1;
    }
    if (r->steps) {
        const kvd_packed_args a = steps_of(m, r);
        if ((a.form.classes &&
             kvd_cuda_check(kvd_packed_receive(&a, m->cache->q_steps, m->lse_steps, r->stream),
                            "probabilities of steps", err)) ||
            kvd_cuda_check(kvd_packed_code(&a, r->stream), what, err))
            return -1;
    }
    if (r->layer + 1 < m->cache->config->n_layers || !k->layer[0].form.k_apart)
        return 0;
    return kvd_queue_get(k->host_counts, k->counts, (k->slots + 1) * sizeof *k->counts, r->stream,
                         what, err);
}

/* Returns the bytes of the right low-rank factors of one prompt in all KV heads (method gear). */
static size_t right_bytes(const kvd_packed_args *a)
{
    return a->form.low_rank ? (size_t)a->map.page_elements / KVD_PAGE_TOKENS *
                                  (size_t)kvd_gear_columns(a->gear.of.rank) * sizeof(uint16_t)
                            : 0;
}

static size_t received_bytes(const kvd_packed_args *a)
{
    return a->form.classes ? (size_t)(a->map.n_kv_heads * a->ring_pages) * KVD_PAGE_TOKENS *
                                 sizeof *a->classes.received
                           : 0;
}

/* Allocates an array of prompt lengths and, for method gear, a buffer for the power method. */
static int make_prompts(packed *k, size_t slots, kvd_err *err)
{
    const size_t room =
        k->layer->form.low_rank ? 8 * (size_t)k->method.cache->n_sms * KVD_GEAR_PART : 0;
    const size_t bytes = slots * sizeof *k->layer->prompt;
    if (!kvd_packed_in_blocks(&k->layer->form))
        return 0;
    int32_t *const prompt = kvd_device_filled(&k->memory, bytes, 0x7f, what, err);
    float *const partial = kvd_device_new(&k->memory, room * sizeof *partial, what, err);
    for (int l = 0; l < k->method.cache->config->n_layers; l++) {
        k->layer[l].prompt = prompt;
        k->layer[l].gear.partial = partial;
        k->layer[l].gear.partial_room = room;
    }
    return k->memory.status;
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    packed *const k = of(m);
    const kvd_paged_cache *const c = m->cache;
    const size_t near = c->window ? c->near->n_pages + 1 : 0;
    const size_t bytes = m->page_bytes * (pages + 1) + m->near_page_bytes * near;
    char *const codes = kvd_stream_pool(&k->memory, bytes, stream, err);
    char *const rings = kvd_stream_pool(&k->memory, m->slot_bytes * slots, stream, err);
    size_t at = 0, in_slots = 0;
    k->slots = slots;
    k->tokens = calloc(slots, sizeof *k->tokens);
    k->prompt = calloc(slots, sizeof *k->prompt);
    if (!codes || !rings || !k->tokens || !k->prompt)
        return codes && rings ? kvd_no_memory(err, what, slots * sizeof *k->tokens) : -1;
    /* Fills the pages with 0, because random numbers would be invalid positions of outliers (method
     * gear). */
    if (kvd_packed_in_blocks(&k->layer->form) &&
        kvd_cuda_check(cudaMemsetAsync(codes, 0, bytes, stream), what, err))
        return -1;
    for (int l = 0; l < c->config->n_layers; l++) {
        kvd_packed_args *const a = &k->layer[l];
        const size_t there = has_window(k, l) ? near : pages + 1;
        const size_t row = (size_t)a->map.page_elements / KVD_PAGE_TOKENS * sizeof(uint16_t);
        a->codes = codes + at;
        a->ring = (uint16_t *)(void *)(rings + in_slots);
        in_slots += slots * (size_t)a->ring_pages * KVD_PAGE_TOKENS * row;
        a->sink = (uint16_t *)(void *)(rings + in_slots);
        in_slots += slots * (size_t)a->n_sink * row;
        a->gear.right = (uint16_t *)(void *)(rings + in_slots);
        in_slots += slots * right_bytes(a);
        a->classes.received = (float *)(void *)(rings + in_slots);
        in_slots += slots * received_bytes(a);
        at += a->page_bytes * there;
        if ((a->form.k_apart || a->form.v_apart || a->form.exponent) &&
            kvd_cuda_check(
                kvd_packed_make_plausible(
                    a, there, (int32_t)ceil(kvd_gpu_packed_outliers(m->plan, c->config)), stream),
                what, err))
            return -1;
    }
    k->counts = kvd_device_filled(&k->memory, (slots + 1) * sizeof *k->counts, 0, what, err);
    k->table = kvd_device_new(
        &k->memory, c->batch->max_slices * c->pages->max_pages * sizeof *k->table, what, err);
    k->host_counts = kvd_device_pinned(&k->memory, (slots + 1) * sizeof *k->host_counts, what, err);
    if (k->memory.status)
        return -1;
    for (int l = 0; l < c->config->n_layers; l++) {
        k->layer[l].apart = k->counts;
        k->layer[l].beyond = k->counts + slots;
    }
    return make_prompts(k, slots, err);
}

static void release(kvd_gpu_method *m)
{
    packed *const k = of(m);
    kvd_device_release(&k->memory);
    free(k->layer);
    free(k->tokens);
    free(k->prompt);
    free(k);
}

static bool codes_before_rope(const kvd_plan *plan, const kvd_paged_cache *c)
{
    return plan->bits->keys_before_rope && c->cosine && !plan->dims;
}

static void describe_layer(packed *k, const kvd_plan *plan, int l)
{
    const kvd_paged_cache *const c = k->method.cache;
    kvd_packed_args *const a = &k->layer[l];
    const kvd_dims_head *const head =
        c->dims ? &c->dims->head[l * c->dims->n_kv_heads + c->share->first_kv_head] : NULL;
    kvd_gpu_packed_describe(plan, c->config, &c->layer[l].map, head, c->outliers, a);
    if (a->form.allotted)
        kvd_gpu_packed_allot(plan, l, c->share->first_kv_head, a, NULL);
    a->x_key = c->share->n_heads * c->config->d_head;
    a->before_rope = codes_before_rope(plan, c);
    a->cosine = c->cosine;
    a->sine = c->sine;
    *(has_window(k, l) ? &k->method.near_page_bytes : &k->method.page_bytes) += a->page_bytes;
    k->method.slot_bytes += (size_t)(a->ring_pages * KVD_PAGE_TOKENS + a->n_sink) *
                                (size_t)a->map.page_elements / KVD_PAGE_TOKENS * sizeof(uint16_t) +
                            right_bytes(a) + received_bytes(a);
}

static bool has_group(const kvd_plan *plan)
{
    const kvd_bits_method *const m = plan->bits;
    const int group = (int)kvd_gpu_packed_value(plan, "group");
    if (m == &kvd_bits_rotatekv)
        return group % 32 == 0;
    return kvd_gpu_packed_has_levels(plan) || kvd_gpu_packed_has_floats(plan) ||
           m == &kvd_bits_allot || m == &kvd_bits_gear || m == &kvd_bits_hetero ||
           m == &kvd_bits_zipcache || group == 16 || group == 32 || group == 64 ||
           (m == &kvd_bits_comet && group % 64 == 0);
}

/* Returns false if the rank or the number of tokens per block of method gear is too large for the
 * kernels. */
static bool has_ranks(const kvd_plan *plan)
{
    if (plan->bits != &kvd_bits_gear)
        return true;
    const kvd_gear s = kvd_gear_of(&plan->bits_values);
    return s.rank <= KVD_GEAR_RANK && s.rank_later <= KVD_GEAR_RANK && s.buffer <= KVD_GEAR_TOKENS;
}

static int check_gear(const kvd_plan *plan, const kvd_paged_cache *c, kvd_err *err)
{
    if (!has_ranks(plan))
        return kvd_fail(err,
                        "gear,rank=%g,rank2=%g,buffer=%g: the CUDA engine has ranks up to %d and "
                        "blocks of up to %d tokens",
                        kvd_gpu_packed_value(plan, "rank"), kvd_gpu_packed_value(plan, "rank2"),
                        kvd_gpu_packed_value(plan, "buffer"), KVD_GEAR_RANK, KVD_GEAR_TOKENS);
    return plan->bits == &kvd_bits_gear && kvd_gpu_packed_value(plan, "outliers") > 0 &&
                   c->max_len > KVD_GEAR_TOKENS
               ? kvd_fail(err,
                          "'gear' in the CUDA engine: requests of at most %d tokens, not %zu, "
                          "because places of outliers have 16 bits (outliers=0 has none)",
                          KVD_GEAR_TOKENS, c->max_len)
               : 0;
}

static int check(const kvd_plan *plan, const kvd_paged_cache *c, kvd_err *err)
{
    const char *const name = plan->bits->info.name;
    if (check_gear(plan, c, err))
        return -1;
    if (plan->dims && plan->bits == &kvd_bits_turboquant)
        return kvd_fail(err,
                        "'%s' after a method of the dims axis: the CUDA engine rotates whole heads "
                        "alone, use another method of codes, such as kivi or kvquant",
                        name);
    if (kvd_gpu_packed_is_turned(plan))
        return c->config->d_head % 32
                   ? kvd_fail(err, "'%s' in the CUDA engine: heads of multiples of 32 dims, not %d",
                              name, c->config->d_head)
                   : 0;
    if (!has_group(plan))
        return kvd_fail(err, "%s,group=%g: the CUDA engine codes groups of %s", name,
                        kvd_gpu_packed_value(plan, "group"),
                        plan->bits == &kvd_bits_comet      ? "16, 32 or 64, and multiples of 64"
                        : plan->bits == &kvd_bits_rotatekv ? "multiples of 32"
                                                           : "16, 32 or 64");
    return codes_before_rope(plan, c) && !c->hook.wants_raw
               ? kvd_fail(
                     err,
                     "'%s' codes keys before RoPE, which the CUDA engine does not have in models with "
                     "biases or norms of Q and K, or with partial RoPE",
                     name)
               : 0;
}

static bool runs(const kvd_plan *plan)
{
    return !plan->layers && !plan->tokens && !plan->maker && !plan->channels && !plan->dims_low;
}

static bool generates(const kvd_plan *plan)
{
    if (!runs(plan))
        return false;
    if (!kvd_gpu_packed_is_turned(plan))
        return has_group(plan) && has_ranks(plan) &&
               !(plan->dims && kvd_gpu_packed_is_parted(plan));
    return !plan->dims && plan->bits_self && kvd_turboquant_d_head(plan->bits_self) % 32 == 0;
}

static int choose_attention(packed *k, kvd_err *err)
{
    kvd_gpu_method *const m = &k->method;
    const kvd_paged_cache *const c = m->cache;
    for (int l = 0; l < c->config->n_layers; l++)
        if (!kvd_packed_decodes(&k->layer[l])) {
            m->appended = appended;
            return 0;
        }
    if (kvd_gpu_packed_is_turned(m->plan)) {
        size_t pitch = 0;
        for (int l = 0; l < c->config->n_layers; l++)
            pitch =
                (size_t)k->layer[l].map.q_pitch > pitch ? (size_t)k->layer[l].map.q_pitch : pitch;
        if (k->layer[0].form.sketch)
            k->sketched =
                kvd_device_new(&k->memory, c->batch->max_slices * pitch * sizeof(uint16_t),
                               "sketched queries", err);
        m->appended = turn_steps;
        m->attended = turned;
        m->attended_prompts = true;
    }
    m->plan_steps = plan_steps;
    m->attend_steps = attend_steps;
    const size_t sums = (c->batch->max_slices + 1) * sizeof **k->pages_before;
    for (int near = 0; near < 1 + (c->window > 0); near++)
        k->pages_before[near] = kvd_device_new(&k->memory, sums, what, err);
    k->partial = kvd_device_new(&k->memory, kvd_packed_decode_bytes(c->n_sms),
                                "partial results of attention", err);
    return k->memory.status;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (check(plan, cache, err))
        return -1;
    packed *const k = calloc(1, sizeof *k);
    const size_t bytes = (size_t)cache->config->n_layers * sizeof *k->layer;
    if (!k || !(k->layer = calloc(1, bytes))) {
        free(k);
        return kvd_no_memory(err, what, bytes);
    }
    k->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .anywhere = true,
                                 .make = make,
                                 .begin = kvd_gpu_packed_begin,
                                 .ended = ended,
                                 .lacking = lacking,
                                 .held = held,
                                 .bits = slot_bits,
                                 .unseen = cache->window ? unseen_bits : NULL,
                                 .append = append,
                                 .attended = attended,
                                 .free = release};
    for (int l = 0; l < cache->config->n_layers; l++)
        describe_layer(k, plan, l);
    /* Only if tokens are quantised one by one can timing runs skip the prompt of a request. */
    k->method.anywhere = !kvd_packed_in_blocks(&k->layer->form);
    if ((k->layer->form.classes &&
         kvd_gpu_packed_salience_make(&k->method, &k->salience, &k->memory, err)) ||
        kvd_gpu_packed_tables(plan, cache, k->layer, &k->memory, err) || choose_attention(k, err)) {
        release(&k->method);
        return -1;
    }
    *m = &k->method;
    return 0;
}

static const char *joins_heads(const kvd_plan *plan)
{
    return plan->bits->all_heads ? "a code holds all KV heads of a layer" : NULL;
}

static unsigned computes(const kvd_plan *plan)
{
    const bool whole = kvd_gpu_packed_value(plan, "outliers") > 0 || plan->bits == &kvd_bits_gear ||
                       plan->bits == &kvd_bits_zipcache;
    return (unsigned)KVD_GPU_SINKS | (unsigned)KVD_GPU_SCALE |
           (whole ? 0 : (unsigned)KVD_GPU_WINDOWS) |
           (kvd_gpu_packed_takes_wide(plan) ? (unsigned)KVD_GPU_WIDE : 0);
}

const kvd_gpu_kind kvd_gpu_packed = {.computes = computes,
                                     .joins_heads = joins_heads,
                                     .runs = runs,
                                     .generates = generates,
                                     .open = open_method};
