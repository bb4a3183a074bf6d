/* Method minicache on the GPU: merges K and V of a prompt in pairs of adjacent layers. Every decode
 * step restores the merged K and V. Layers with a sliding window restore them only once, after the
 * prompt, and keep them in bf16. */
#include "methods/layers/cuda/merged.h"

#include <stdlib.h>
#include <string.h>

#include "model/checkpoint/cuda/random.h"

static const char what[] = "cache of merged layers";

enum { T = 1, GAMMA /* indices in the parameter table of layers.c */ };

typedef struct {
    kvd_gpu_method method; /* must be the first member */
    /* [n_layers] First layer of the merged pair to which the layer belongs, or -1 if it is
     * unmerged. */
    int *first;
    bool *skips;              /* [n_layers] */
    int n_pairs, begin, last; /* begin, last: first and last merged layer */
    uint16_t **stored;        /* [n_layers] device pages of the layer's vectors */
    /* [n_layers] For the first layer of each merged pair: bf16 norms of the K and V vectors of the
     * two layers. */
    uint16_t **length;
    uint32_t *range; /* device, written by kvd_pair_measure */
    /* [n_pairs][slots] Number of each prompt's vectors that stayed unmerged, on device and host. */
    uint32_t *apart, *host_apart;
    size_t *apart_of; /* [n_pairs][slots] copy of host_apart */
    kvd_merged_slots slots;
    kvd_device_memory memory;
} merged;

int kvd_merged_slots_make(kvd_merged_slots *s, size_t n, kvd_err *err)
{
    s->n = n;
    s->slot = calloc(n, sizeof *s->slot);
    return s->slot ? 0 : kvd_no_memory(err, what, n * sizeof *s->slot);
}

void kvd_merged_slots_release(kvd_merged_slots *s)
{
    free(s->slot);
}

bool kvd_merged_slots_begin(kvd_merged_slots *s, const kvd_iteration *it)
{
    bool changed = false;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const x = &it->slice[i];
        struct kvd_merged_slot *const to = &s->slot[x->slot];
        if (x->before && to->tokens == x->before)
            continue;
        to->prompt = x->before ? x->before : x->n;
        changed = true;
    }
    return changed;
}

void kvd_merged_slots_end(kvd_merged_slots *s, const kvd_gpu_method *m,
                          double (*bits_of)(const kvd_gpu_method *m, size_t slot),
                          const kvd_iteration *it)
{
    double bits = 0;
    for (size_t i = 0; i < it->n_slices; i++)
        s->slot[it->slice[i].slot].tokens = it->slice[i].before + it->slice[i].n;
    for (size_t i = 0; i < s->n; i++)
        bits += s->slot[i].tokens ? bits_of(m, i) : 0;
    s->held = bits / 8;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            s->slot[it->slice[i].slot].tokens = 0;
}

uint16_t *kvd_merged_pool(kvd_device_memory *memory, size_t elements, float deviation,
                          cudaStream_t stream, kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, deviation, 0);
    uint16_t *const p = kvd_device_new(memory, elements * sizeof *p, "the cache", err);
    return p && !kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, elements, p, stream),
                                what, err)
               ? p
               : NULL;
}

static merged *of(const kvd_gpu_method *m)
{
    return (merged *)(void *)m;
}

static size_t page_elements(const merged *k)
{
    return (size_t)k->method.cache->layer[0].map.page_elements;
}

/* Returns the number of K and V vectors that a token has in one layer. */
static size_t vectors(const merged *k)
{
    return 2 * (size_t)k->method.cache->share->n_kv_heads;
}

static size_t length_elements(const merged *k)
{
    return 2 * vectors(k) * KVD_PAGE_TOKENS;
}

static bool has_window(const merged *k, int layer)
{
    return k->method.cache->layer[layer].map.window > 0;
}

/* Returns where the row of a layer pair begins in an array [layer pairs][cache slots]. `first` is
 * the first layer of the pair. */
static size_t apart_at(const merged *k, int first)
{
    return (size_t)(first - k->begin) / 2 * k->slots.n;
}

static kvd_merged_args args_of(const merged *k, int layer, const kvd_paged_rows *r, bool prompts)
{
    const kvd_paged_cache *const c = k->method.cache;
    const size_t from = prompts ? r->steps : 0;
    const int first = k->first[layer];
    return (kvd_merged_args){.n = (int32_t)(prompts ? r->prompts : r->steps),
                             .max_pages = (int32_t)c->pages->max_pages,
                             .n_sms = c->n_sms,
                             .n_kv_heads = c->share->n_kv_heads,
                             .d_head = c->config->d_head,
                             .kv_len = c->batch->device.kv_len + from,
                             .slot = c->batch->device.slot + from,
                             .page_table = c->pages->device + from * c->pages->max_pages,
                             .rows = kvd_paged_cache_pool(c, layer),
                             .rows_table = kvd_paged_pages_of(c, &c->layer[layer].map)->device +
                                           from * c->pages->max_pages,
                             .prompts = prompts,
                             .first = k->stored[first],
                             .second = k->stored[first + 1],
                             .length = k->length[first]};
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    return kvd_paged_cache_append(m->cache, r, of(m)->stored[r->layer], m->cache->pages->device,
                                  err);
}

static int appended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const merged *const k = of(m);
    if (!r->steps)
        return 0;
    const kvd_merged_args a = args_of(k, r->layer, r, false);
    return kvd_cuda_check(kvd_pair_restore(&a, r->layer > k->first[r->layer], r->stream), what,
                          err) ||
                   kvd_clock_end(m->cache->clock, KVD_PHASE_RESTORE, r->stream, err)
               ? -1
               : 0;
}

/* Saves K and V that the first layer of a pair computed for prompts. The second layer later merges
 * its own K and V with them. */
static int keep(const merged *k, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_merged_args a = args_of(k, r->layer, r, true);
    uint32_t *const apart = k->apart + apart_at(k, r->layer);
    for (size_t i = 0; i < r->prompts; i++)
        if (kvd_cuda_check(cudaMemsetAsync(apart + k->method.cache->batch->host.slot[r->steps + i],
                                           0, sizeof *apart, r->stream),
                           what, err))
            return -1;
    return kvd_cuda_check(kvd_pair_keep(&a, r->stream), what, err);
}

/* Merges the K of two layers, and their V, for the tokens of prompts. Layers with a sliding window
 * also get the merged values in their bf16 pages. */
static int merge(const merged *k, const kvd_paged_rows *r, kvd_err *err)
{
    const double *const v = k->method.plan->layers_values.value;
    const kvd_merged_args a = args_of(k, r->layer, r, true);
    const int first = k->first[r->layer];
    if (kvd_cuda_check(kvd_pair_measure(&a, k->range, r->stream), what, err) ||
        kvd_cuda_check(
            kvd_pair_merge(&a, k->range, v[T], v[GAMMA], k->apart + apart_at(k, first), r->stream),
            what, err))
        return -1;
    for (int l = first; l < first + 2; l++) {
        const kvd_merged_args own = args_of(k, l, r, true);
        if (has_window(k, l) &&
            kvd_cuda_check(kvd_pair_restore(&own, l > first, r->stream), what, err))
            return -1;
    }
    return 0;
}

/* Called after the attention of each layer. In the first of two layers to be merged, stores the K
 * and V of prompts; in the second, merges them. */
static int attended(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const merged *const k = of(m);
    if (!r->prompts || k->first[r->layer] < 0)
        return 0;
    if (r->layer == k->first[r->layer])
        return keep(k, r, err);
    return kvd_status(
        merge(k, r, err) ||
        (r->layer == k->last &&
         kvd_queue_get(k->host_apart, k->apart, (size_t)k->n_pairs * k->slots.n * sizeof *k->apart,
                       r->stream, what, err)));
}

static double held(const kvd_gpu_method *m)
{
    return of(m)->slots.held;
}

/* Returns the number of bits of the uncompressed K and V of one token in one layer. */
static double row_bits(const merged *k)
{
    return 8.0 * sizeof(uint16_t) * k->method.cache->config->d_head * (double)vectors(k);
}

/* Returns the number of bits that K and V of a request's prompt take in one of two merged layers:
 * half of the number for both layers. */
static double prompt_bits(const merged *k, size_t slot, int first)
{
    const double d = k->method.cache->config->d_head, number = 8.0 * sizeof(uint16_t),
                 pairs = (double)(k->slots.slot[slot].prompt * vectors(k)),
                 apart = (double)k->apart_of[apart_at(k, first) + slot];
    return (number * ((pairs - apart) * (d + 2) + apart * 2 * d) + pairs) / 2;
}

/* Returns the storage size, in bits, of a request's K and V in layers without a sliding window. */
static double full_bits(const kvd_gpu_method *m, size_t slot)
{
    const merged *const k = of(m);
    const struct kvd_merged_slot *const s = &k->slots.slot[slot];
    double sum = 0;
    for (int l = 0; l < m->cache->config->n_layers; l++)
        if (!has_window(k, l))
            sum += k->first[l] < 0 ? row_bits(k) * (double)s->tokens
                                   : prompt_bits(k, slot, k->first[l]) +
                                         row_bits(k) * (double)(s->tokens - s->prompt);
    return sum;
}

/* Returns how many bits merging saves in layers with a sliding window, for a request of n
 * tokens. */
static double saved_near(const merged *k, size_t slot, size_t n)
{
    const double prompt = (double)k->slots.slot[slot].prompt;
    double sum = 0;
    for (int l = 0; l < k->method.cache->config->n_layers; l++)
        if (has_window(k, l) && k->first[l] >= 0)
            sum += row_bits(k) * prompt - prompt_bits(k, slot, k->first[l]);
    return sum * kvd_merged_near(&k->slots, slot, k->method.cache->window, n);
}

static double bits(const kvd_gpu_method *m, size_t slot)
{
    const merged *const k = of(m);
    return full_bits(m, slot) - saved_near(k, slot, k->slots.slot[slot].tokens);
}

/* Returns the bits that merging saves in sliding-window layers after the latest step, minus the
 * bits that it saved before the step. */
static double unseen(const kvd_gpu_method *m, size_t slot)
{
    const merged *const k = of(m);
    const size_t n = k->slots.slot[slot].tokens;
    return n ? saved_near(k, slot, n) - saved_near(k, slot, n - 1) : 0;
}

static size_t n_merged(const kvd_gpu_method *m, size_t slot)
{
    const merged *const k = of(m);
    size_t sum = k->slots.slot[slot].prompt * vectors(k) * (size_t)k->n_pairs;
    for (int i = 0; i < k->n_pairs; i++)
        sum -= k->apart_of[(size_t)i * k->slots.n + slot];
    return sum;
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    (void)err;
    (void)kvd_merged_slots_begin(&of(m)->slots, it);
    return 0;
}

/* After an iteration, records how many K and V vectors of each new prompt were not merged across
 * layers. */
static int ended(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    merged *const k = of(m);
    (void)err;
    for (size_t i = 0; i < it->n_slices * (size_t)k->n_pairs; i++) {
        const kvd_slice *const s = &it->slice[i % it->n_slices];
        const size_t at = i / it->n_slices * k->slots.n + s->slot;
        k->apart_of[at] = s->before ? k->apart_of[at] : k->host_apart[at];
    }
    kvd_merged_slots_end(&k->slots, m, full_bits, it);
    for (size_t i = 0; i < it->n_slices * (size_t)k->n_pairs; i++) {
        const kvd_slice *const s = &it->slice[i % it->n_slices];
        if (s->last)
            k->apart_of[i / it->n_slices * k->slots.n + s->slot] = 0;
    }
    return 0;
}

static int make_slots(merged *k, size_t slots, kvd_err *err)
{
    const size_t counts = (size_t)k->n_pairs * slots, bytes = counts * sizeof *k->apart,
                 range = 4 * k->method.cache->batch->max_slices * sizeof *k->range;
    if (!(k->apart_of = calloc(counts, sizeof *k->apart_of)))
        return kvd_no_memory(err, what, counts * sizeof *k->apart_of);
    if (kvd_merged_slots_make(&k->slots, slots, err) ||
        !(k->range = kvd_device_new(&k->memory, range, what, err)) ||
        !(k->apart = kvd_device_new(&k->memory, bytes, what, err)) ||
        kvd_device_zero(k->apart, bytes, what, err) ||
        !(k->host_apart = kvd_pinned_new(bytes, what, err)))
        return -1;
    memset(k->host_apart, 0, bytes);
    return 0;
}

/* Allocates the pages of K and V of merged layers, and the norms of their vectors. Fills the pages
 * with random numbers, which timing runs read. */
static int make(kvd_gpu_method *m, size_t pages, size_t slots, cudaStream_t stream, kvd_err *err)
{
    merged *const k = of(m);
    const size_t page = (pages + 1) * page_elements(k), length = (pages + 1) * length_elements(k),
                 n = (size_t)k->n_pairs * 2 * page, n_lengths = (size_t)k->n_pairs * length;
    uint16_t *at = kvd_merged_pool(&k->memory, n, 1, stream, err),
             *at_length =
                 at ? kvd_device_new(&k->memory, n_lengths * sizeof *at, "the cache", err) : NULL;
    if (!at_length ||
        kvd_cuda_check(cudaMemsetAsync(at_length, 0x3f, n_lengths * sizeof *at, stream), what, err))
        return -1;
    for (int l = 0; l < m->cache->config->n_layers; l++) {
        if (k->skips[l])
            continue;
        k->stored[l] = at;
        at += page;
        if (k->first[l] < l)
            continue;
        k->length[l] = at_length;
        at_length += length;
    }
    return make_slots(k, slots, err);
}

static void release(kvd_gpu_method *m)
{
    merged *const k = of(m);
    kvd_device_release(&k->memory);
    (void)cudaFreeHost(k->host_apart);
    free(k->first);
    free(k->skips);
    free(k->stored);
    free(k->length);
    free(k->apart_of);
    kvd_merged_slots_release(&k->slots);
    free(k);
}

static int describe(merged *k, kvd_err *err)
{
    kvd_gpu_method *const m = &k->method;
    const kvd_config *const c = m->cache->config;
    const kvd_plan *const p = m->plan;
    const size_t layers = (size_t)c->n_layers;
    k->first = calloc(layers, sizeof *k->first);
    k->skips = calloc(layers, sizeof *k->skips);
    k->stored = calloc(layers, sizeof *k->stored);
    k->length = calloc(layers, sizeof *k->length);
    if (!k->first || !k->skips || !k->stored || !k->length)
        return kvd_no_memory(err, what, layers * sizeof *k->stored);
    for (int l = 0, n; l < c->n_layers; l += n) {
        n = p->layers->group(&p->layers_values, c, l);
        for (int i = l; i < l + n; i++)
            k->first[i] = n > 1 ? l : -1;
        k->skips[l] = n == 1;
        k->begin = n > 1 && !k->n_pairs ? l : k->begin;
        k->n_pairs += n > 1;
        k->last = n > 1 ? l + 1 : k->last;
    }
    m->skips = k->skips;
    m->page_bytes =
        (size_t)k->n_pairs * (2 * page_elements(k) + length_elements(k)) * sizeof(uint16_t);
    return 0;
}

static int open_method(const kvd_plan *plan, kvd_paged_cache *cache, kvd_gpu_method **m,
                       kvd_err *err)
{
    merged *const k = calloc(1, sizeof *k);
    if (!k)
        return kvd_no_memory(err, what, sizeof *k);
    k->method = (kvd_gpu_method){.cache = cache,
                                 .plan = plan,
                                 .one_layer = true,
                                 .skips_windows = true,
                                 .anywhere = true,
                                 .whole_prompts = true,
                                 .attended_prompts = true,
                                 .make = make,
                                 .begin = begin,
                                 .ended = ended,
                                 .merged = n_merged,
                                 .held = held,
                                 .bits = bits,
                                 .unseen = unseen,
                                 .append = append,
                                 .appended = appended,
                                 .attended = attended,
                                 .attended_window = attended,
                                 .free = release};
    *m = &k->method;
    return describe(k, err);
}

static bool runs(const kvd_plan *plan)
{
    return !plan->tokens;
}

static unsigned computes(const kvd_plan *plan)
{
    (void)plan;
    return KVD_GPU_WINDOWS | KVD_GPU_SINKS | KVD_GPU_SCALE | KVD_GPU_WIDE;
}

static const char *joins_heads(const kvd_plan *plan)
{
    return plan->layers_values.value[GAMMA] > 0
               ? "the range of angles is that of all KV heads of a layer (gamma=0 has none)"
               : NULL;
}

const kvd_gpu_kind kvd_gpu_minicache = {.computes = computes,
                                        .joins_heads = joins_heads,
                                        .runs = runs,
                                        .generates = runs,
                                        .open = open_method};
