/* Method pair `lower+hetero` on the GPU: lower chooses the important tokens, and hetero quantises
 * the others with fewer bits. */
#include "methods/tokens/cuda/lower.h"

#include <stdlib.h>
#include <string.h>

#include "methods/cuda/paged_cache.h"
#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/tokens.h"

static const char what[] = "cache of two levels";

enum { HEAVY, RECENT /* parameter indices, as in lower.c */ };
enum { HIGH_K, HIGH_V, LOW_K, LOW_V, BALANCE /* parameter indices, as in hetero.c */ };

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    /* [n_layers] Kernel arguments that stay the same in all iterations. Layers with a sliding
     * window have no quantised pages. */
    kvd_lower_args *layer;
    /* Bytes of one KV head in a page of the cache: quantised K and V, precision levels and
     * scores. */
    size_t head_bytes;
    /* Number of factors per layer by which key channels are multiplied before quantisation, or 0
     * for none. */
    size_t factors;
    float *mass;
    kvd_lower_budget *budget, *host_budget; /* [slots] device and pinned memory */
    size_t slots;
    uint32_t *tokens; /* [slots] number of tokens of each request, or 0 */
    double held;
    cudaStream_t stream;
    kvd_device_memory memory;
} lower;

static double value_of(const lower *k, int i)
{
    return k->method.plan->bits_values.value[i];
}

/* Returns the number of KV heads in all layers without a sliding window. */
static double heads_of(const lower *k)
{
    return (double)k->method.cache->n_full * k->layer[0].map.n_kv_heads;
}

/* Returns the number of KV heads in all layers with a sliding window. */
static double near_heads(const lower *k)
{
    const kvd_paged_cache *const c = k->method.cache;
    return (double)(c->config->n_layers - c->n_full) * k->layer[0].map.n_kv_heads;
}

static kvd_lower_args args_of(const lower *k, const kvd_paged_rows *r, bool prompts)
{
    const kvd_paged_cache *const c = k->method.cache;
    const size_t from = prompts ? r->steps : 0;
    kvd_lower_args a = k->layer[r->layer];
    a.n = (int32_t)(prompts ? r->prompts : r->steps);
    a.max_pages = (int32_t)c->pages->max_pages;
    a.n_sms = c->n_sms;
    a.kv_len = c->batch->device.kv_len + from;
    a.slot = c->batch->device.slot + from;
    a.page_table = c->pages->device + from * c->pages->max_pages;
    a.rows = kvd_paged_cache_pool(c, r->layer);
    a.budget = k->budget;
    return a;
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    if (!r->steps)
        return 0;
    const kvd_lower_args a = args_of((const lower *)m, r, false);
    return kvd_status(kvd_cuda_check(kvd_lower_restore(&a, r->stream), what, err) ||
                      kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err));
}

static int after_prompts(const lower *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_lower_args a = args_of(k, r, true);
    kvd_evict_prompts_args scores = kvd_evict_prompts_of(k->method.cache, r, r->layer);
    const kvd_lower_prompts_args p = {
        .n_q8 = scores.n_q8, .q_start = scores.q_start, .mass = k->mass, .q = scores.q};
    scores.rule = (kvd_evict_rule){.smooth = 1, .ranking = KVD_EVICT_ATTENTION};
    scores.lse = k->method.lse;
    scores.mass = k->mass;
    return kvd_status(kvd_cuda_check(kvd_evict_score_any(&scores, r->stream), what, err) ||
                      kvd_cuda_check(kvd_lower_prompts(&a, &p, r->stream), what, err));
}

static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const lower *const k = (const lower *)m;
    if (r->prompts && after_prompts(k, r, err))
        return -1;
    if (!r->steps)
        return 0;
    const kvd_lower_args a = args_of(k, r, false);
    return kvd_cuda_check(kvd_lower_steps(&a, m->cache->q_steps, k->method.lse_steps, r->stream),
                          what, err);
}

int kvd_lower_round_window(const kvd_paged_cache *c, const kvd_paged_rows *r,
                           const int32_t bits[2][KVD_LOWER_LEVELS], kvd_err *err)
{
    const kvd_step_batch *const b = c->batch;
    kvd_lower_args a = {.map = c->layer[r->layer].map,
                        .d_head = c->config->d_head,
                        .max_pages = (int32_t)c->pages->max_pages,
                        .n_sms = c->n_sms,
                        .rows = kvd_paged_cache_pool(c, r->layer)};
    memcpy(a.bits, bits, sizeof a.bits);
    for (int prompts = 0; prompts < 2; prompts++) {
        const size_t from = prompts ? r->steps : 0;
        a.n = (int32_t)(prompts ? r->prompts : r->steps);
        a.kv_len = kvd_paged_lens_of(&a.map, &b->device) + from;
        a.page_table = kvd_paged_pages_of(c, &a.map)->device + from * c->pages->max_pages;
        if (a.n && kvd_cuda_check(kvd_lower_round(&a, prompts ? b->device.q_len + from : b->one,
                                                  prompts ? a.map.window : 1, r->stream),
                                  what, err))
            return -1;
    }
    return 0;
}

static int round_window(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_lower_args *const a = &((const lower *)m)->layer[r->layer];
    return kvd_lower_round_window(m->cache, r, a->bits, err);
}

/* Sets the token budgets of requests that begin with this iteration. In timing runs, a request may
 * begin with a decode step. */
static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    lower *const k = (lower *)m;
    const double *const v = m->plan->tokens_values.value;
    bool changed = false;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        const size_t whole = s->whole ? s->whole : m->cache->max_len;
        if (s->before && k->tokens[s->slot] == s->before)
            continue;
        k->host_budget[s->slot] = (kvd_lower_budget){(int32_t)kvd_tokens_budget(v[HEAVY], whole),
                                                     (int32_t)kvd_tokens_budget(v[RECENT], whole)};
        changed = true;
    }
    return changed ? kvd_queue_put(k->budget, k->host_budget, k->slots * sizeof *k->budget,
                                   k->stream, what, err)
                   : 0;
}

static size_t low_of(const lower *k, size_t slot)
{
    const kvd_lower_budget *const b = &k->host_budget[slot];
    const size_t high = (size_t)b->heavy + (size_t)b->recent;
    return k->tokens[slot] > high ? k->tokens[slot] - high : 0;
}

/* Returns the number of bits of a token's quantised K and V in one KV head. Each of the two vectors
 * has 32 bits for its step and its zero point. */
static double token_bits(const lower *k, int bits_k, int bits_v)
{
    const double d = k->layer[0].d_head;
    return d * (value_of(k, bits_k) + value_of(k, bits_v)) +
           32.0 * ((value_of(k, bits_k) < 16) + (value_of(k, bits_v) < 16));
}

/* Returns how many bits a request of n tokens takes in all layers with a sliding window. */
static double near_bits(const lower *k, size_t n)
{
    const size_t window = k->method.cache->window;
    return window
               ? near_heads(k) * (double)(n < window ? n : window) * token_bits(k, HIGH_K, HIGH_V)
               : 0;
}

/* Returns the storage size, in bits, of a request's K and V in layers without a sliding window.
 * Returns 0 if `slot` is free. */
static double full_bits(const lower *k, size_t slot)
{
    const double low = (double)low_of(k, slot), n = k->tokens[slot];
    if (!k->tokens[slot])
        return 0;
    return heads_of(k) *
           ((n - low) * token_bits(k, HIGH_K, HIGH_V) + low * token_bits(k, LOW_K, LOW_V) +
            (k->factors ? 16.0 * k->layer[0].d_head : 0));
}

static double bits(const kvd_gpu_method *m, size_t slot)
{
    const lower *const k = (const lower *)m;
    return full_bits(k, slot) + near_bits(k, k->tokens[slot]);
}

/* Returns the storage size, in bits, of the token that left the sliding windows in the latest
 * decode step. */
static double unseen(const kvd_gpu_method *m, size_t slot)
{
    const lower *const k = (const lower *)m;
    const size_t window = m->cache->window, n = k->tokens[slot];
    return window && n > window ? near_bits(k, 1) : 0;
}

static size_t lowered(const kvd_gpu_method *m, size_t slot)
{
    return low_of((const lower *)m, slot) * (size_t)heads_of((const lower *)m);
}

static double held(const kvd_gpu_method *m)
{
    return ((const lower *)m)->held;
}

static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    lower *const k = (lower *)m;
    const kvd_lower_args *const a = &k->layer[0];
    (void)err;
    for (size_t i = 0; i < it->n_slices; i++)
        k->tokens[it->slice[i].slot] = it->slice[i].before + it->slice[i].n;
    k->held = 0;
    for (size_t i = 0; i < k->slots; i++)
        k->held += full_bits(k, i) / 8 +
                   k->tokens[i] * heads_of(k) * (double)(sizeof *a->level + sizeof *a->score);
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            k->tokens[it->slice[i].slot] = 0;
    return 0;
}

/* Allocates the pages of all layers, and fills them with valid low-precision tokens, which timing
 * runs read. */
static int make_layers(lower *k, size_t pages, size_t slots, kvd_err *err)
{
    const kvd_paged_cache *const c = k->method.cache;
    const size_t layers = (size_t)c->n_full,
                 heads = (pages + 1) * (size_t)k->layer[0].map.n_kv_heads,
                 places = heads * KVD_PAGE_TOKENS, words = k->head_bytes / sizeof(uint32_t) * heads,
                 factors = slots * k->factors;
    kvd_device_memory *const m = &k->memory;
    uint32_t *const codes =
        kvd_device_filled(m, layers * words * sizeof *codes, 0x2c, "the cache", err);
    float *const score = kvd_device_filled(m, layers * places * sizeof *score, 0, "the cache", err);
    uint8_t *const level = kvd_device_filled(m, layers * places, KVD_LOWER_LOW, "the cache", err);
    uint16_t *const factor =
        kvd_device_filled(m, layers * factors * sizeof *factor, 0x3c, what, err);
    if (m->status)
        return -1;
    for (size_t l = 0; l < layers; l++) {
        kvd_lower_args *const a = &k->layer[kvd_paged_full_layer(c, l)];
        a->codes = codes + l * words;
        a->score = score + l * places;
        a->level = level + l * places;
        a->factor = k->factors ? factor + l * factors : NULL;
    }
    return 0;
}

static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    lower *const k = (lower *)m;
    const size_t bytes = slots * sizeof *k->budget;
    k->stream = stream;
    k->slots = slots;
    k->tokens = kvd_device_host(&k->memory, slots * sizeof *k->tokens, what, err);
    k->budget = kvd_device_filled(&k->memory, bytes, 0, what, err);
    k->host_budget = kvd_device_pinned(&k->memory, bytes, what, err);
    return make_layers(k, pages, slots, err);
}

static void release(kvd_gpu_method *m)
{
    lower *const k = (lower *)m;
    kvd_device_release(&k->memory);
    free(k);
}

static void describe(lower *k)
{
    const kvd_paged_cache *const c = k->method.cache;
    const int32_t sides[2][KVD_LOWER_LEVELS] = {
        {(int32_t)value_of(k, HIGH_K), (int32_t)value_of(k, LOW_K)},
        {(int32_t)value_of(k, HIGH_V), (int32_t)value_of(k, LOW_V)}};
    for (int l = 0; l < c->config->n_layers; l++) {
        k->layer[l] = (kvd_lower_args){.map = c->layer[l].map, .d_head = c->config->d_head};
        memcpy(k->layer[l].bits, sides, sizeof sides);
    }
    const size_t layers = (size_t)c->n_full, kv = (size_t)k->layer[0].map.n_kv_heads,
                 d = (size_t)c->config->d_head;
    k->head_bytes = 0;
    for (int side = 0; side < 2; side++)
        k->head_bytes += KVD_PAGE_TOKENS * sizeof(uint32_t) *
                         (size_t)kvd_lower_words(sides[side], c->config->d_head);
    k->factors = value_of(k, BALANCE) > 0 ? kv * d : 0;
    k->method.page_bytes =
        layers * kv * (k->head_bytes + KVD_PAGE_TOKENS * (sizeof(uint8_t) + sizeof(float)));
    k->method.slot_bytes = layers * k->factors * sizeof(uint16_t) + sizeof *k->budget;
    /* Timing runs may begin without a prompt (`anywhere`), on pages with random bits. This is
     * impossible if K or V is stored as float16, because random float16 numbers may be infinite or
     * NaN. */
    k->method.anywhere = true;
    for (int i = 0; i < 4; i++)
        k->method.anywhere = k->method.anywhere && sides[i / 2][i % 2] < 16;
}

static int make_scratch(lower *k, kvd_err *err)
{
    const kvd_step_batch *const b = k->method.cache->batch;
    const size_t heads = (size_t)k->layer[0].map.n_heads,
                 rows = (b->max_tokens + 7 * b->max_slices + 7) / 8 * 8;
    kvd_device_memory *const m = &k->memory;
    k->mass = kvd_device_new(m, heads * rows * sizeof *k->mass, what, err);
    k->method.lse = kvd_device_new(m, heads * rows * sizeof(float), what, err);
    k->method.lse_steps = kvd_device_new(m, heads * b->max_slices * sizeof(float), what, err);
    return m->status;
}

static bool generates(const kvd_plan *p)
{
    static const int key[] = {HIGH_K, HIGH_V, LOW_K, LOW_V};
    if (p->bits != &kvd_bits_hetero || p->dims || p->maker || p->channels || p->layers)
        return false;
    for (size_t i = 0; i < sizeof key / sizeof *key; i++) {
        const double n = p->bits_values.value[key[i]];
        if (n > 8 && n < 16)
            return false;
    }
    return true;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    if (!generates(plan))
        return kvd_fail(err,
                        "the CUDA engine runs '%s' with hetero of up to 8 or of 16 bits alone, as "
                        "mikv or lower+hetero",
                        plan->tokens->info.name);
    lower *const k = calloc(1, sizeof *k);
    if (!k)
        return kvd_no_memory(err, what, sizeof *k);
    k->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .skips_windows = true,
                                 .whole_prompts = true,
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .lowered = lowered,
                                 .held = held,
                                 .bits = bits,
                                 .unseen = unseen,
                                 .appended = appended,
                                 .attended = attended,
                                 .attended_window = round_window,
                                 .free = release};
    /* From here on the caller owns *m, even after a failure. */
    *m = &k->method;
    const size_t bytes = (size_t)cache->config->n_layers * sizeof *k->layer;
    if (!(k->layer = kvd_device_host(&k->memory, bytes, what, err)))
        return -1;
    describe(k);
    return make_scratch(k, err);
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

const kvd_gpu_kind kvd_gpu_lower = {.joins_heads = kvd_gpu_heads_apart,
                                    .computes = computes,
                                    .generates = generates,
                                    .open = open_method};
