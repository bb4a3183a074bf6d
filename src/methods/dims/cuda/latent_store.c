/* Stores latent vectors (K or V times a projection) in pages of GPU memory, in bf16 or
 * quantised. */
#include "methods/dims/cuda/latents.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/bits/cuda/packed.h"
#include "methods/bits/levels.h"
#include "model/checkpoint/cuda/random.h"
#include "model/pass/batch.h"

static const char what[] = "latents", coding[] = "codes of latents";

int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err)
{
    const size_t layers = (size_t)c->config->n_layers, kv = (size_t)c->share->n_kv_heads;
    const size_t groups = kv / (size_t)heads, each = 2 * (groups + kv);
    *s = (kvd_latent_store){.cache = c, .heads = heads};
    s->layer = kvd_device_host(&s->memory, layers * sizeof *s->layer, what, err);
    int *const all = kvd_device_host(&s->memory, layers * each * sizeof *all, what, err);
    if (!all)
        return -1;
    for (size_t l = 0; l < layers; l++)
        for (int side = 0; side < 2; side++) {
            s->layer[l].rank[side] = all + l * each + (size_t)side * groups;
            s->layer[l].matrix[side] = all + l * each + 2 * groups + (size_t)side * kv;
        }
    return 0;
}

/* Computes the offsets of the latent vectors of layer l:
 *
 * - head: offsets in a page, one per KV head
 * - run: offsets in a page, one per run of 8 elements
 * - source: offsets in a new token's vectors, one per run of 8 elements */
static void place(kvd_latent_store *s, int l, kvd_latent_head *head, int32_t *run, int32_t *source)
{
    kvd_latent_layer *const to = &s->layer[l];
    const kvd_attn_map *const map = &s->cache->layer[l].map;
    const int kv = map->n_kv_heads, groups = kv / s->heads;
    int32_t at = 0, runs = 0;
    for (int g = 0; g < groups; g++)
        for (int side = 0; side < 2; side++) {
            const int rank = to->rank[side][g];
            at -= s->joint && side ? KVD_PAGE_TOKENS * rank : 0;
            for (int h = g * s->heads; h < (g + 1) * s->heads; h++) {
                head[h].latent[side] = at;
                head[h].rank[side] = rank;
                head[h].matrix[side] = to->matrix[side][h];
                head[h].page[side] =
                    map->kv_offset[h] + (side ? KVD_PAGE_TOKENS * map->d_qk[h] : 0);
            }
            at += KVD_PAGE_TOKENS * rank;
            to->max_rank = rank > to->max_rank ? rank : to->max_rank;
        }
    /* A new token's latent vectors are in this order: K of all groups of KV heads, then V of all
     * groups. If K and V share latent vectors (`joint`), a token has only one set. */
    for (int side = 0; side < (s->joint ? 1 : 2); side++)
        for (int g = 0; g < groups; g++)
            for (int r = 0; r < to->rank[side][g]; r += 8) {
                source[runs] = (side * groups + g) * s->wide + r;
                run[runs++] = head[g * s->heads].latent[side] + r * KVD_PAGE_TOKENS;
            }
    to->n_runs = runs;
    to->latent_pitch = (size_t)runs * 8;
    to->positions = s->positions ? at : 0;
    at += s->positions ? kv * KVD_PAGE_TOKENS * (int)(sizeof(int32_t) / sizeof *s->pool) : 0;
    to->page = (size_t)at;
}

int kvd_latent_store_init(kvd_latent_store *s, kvd_err *err)
{
    const kvd_paged_cache *const c = s->cache;
    const size_t layers = (size_t)c->config->n_layers, kv = (size_t)c->share->n_kv_heads;
    const size_t most = 2 * kv * (size_t)c->config->d_head / 8;
    kvd_latent_head *const head = calloc(layers * kv, sizeof *head);
    int32_t *const run = calloc(2 * layers * most, sizeof *run);
    int32_t *const source = run ? run + layers * most : NULL;
    const size_t bytes = layers * most * sizeof *run;
    int status = head && run ? 0 : kvd_no_memory(err, what, layers * kv * sizeof *head + 2 * bytes);
    for (size_t l = 0; l < layers && !status; l++) {
        place(s, (int)l, head + l * kv, run + l * most, source + l * most);
        s->layer[l].first_run = (int)(l * most);
        const size_t page = s->layer[l].page * sizeof *s->pool;
        size_t *const bytes_of = c->layer[l].map.window ? &s->near_page_bytes : &s->page_bytes;
        *bytes_of = s->one_layer ? kvd_larger(page, *bytes_of) : *bytes_of + page;
    }
    s->token_bytes = (double)s->page_bytes / KVD_PAGE_TOKENS;
    s->near_token_bytes = (double)s->near_page_bytes / KVD_PAGE_TOKENS;
    if (!status) {
        kvd_device_memory *const m = &s->memory;
        s->head = kvd_device_from(m, head, layers * kv * sizeof *head, what, err);
        s->run = kvd_device_from(m, run, bytes, what, err);
        s->source = s->wide ? kvd_device_from(m, source, bytes, what, err) : NULL;
        status = m->status;
    }
    free(head);
    free(run);
    return status;
}

/* Sets the RoPE positions stored in all pages to 0. Layers with a sliding window have `near` pages,
 * other layers have `pages` pages. */
static int clear_positions(const kvd_latent_store *s, size_t pages, size_t near,
                           cudaStream_t stream, kvd_err *err)
{
    int status = 0;
    for (int l = 0; l < s->cache->config->n_layers && s->positions && !status; l++) {
        const kvd_latent_layer *const k = &s->layer[l];
        const size_t pitch = k->page * sizeof *s->pool, before = (size_t)k->positions;
        status = kvd_cuda_check(
            cudaMemset2DAsync(s->pool + k->at + before, pitch, 0, pitch - before * sizeof *s->pool,
                              s->cache->layer[l].map.window ? near : pages, stream),
            what, err);
    }
    return status;
}

int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    const kvd_paged_cache *const c = s->cache;
    const size_t near = c->window ? c->near->n_pages + 1 : 0,
                 n = ((pages + 1) * s->page_bytes + near * s->near_page_bytes) / sizeof *s->pool;
    size_t at = 0;
    for (int l = 0; l < c->config->n_layers && !s->one_layer; l++) {
        s->layer[l].at = at;
        at += (c->layer[l].map.window ? near : pages + 1) * s->layer[l].page;
    }
    s->tokens = kvd_device_host(&s->memory, slots * sizeof *s->tokens, what, err);
    s->n_slots = slots;
    s->pool = kvd_device_new(&s->memory, n * sizeof *s->pool, "the cache", err);
    return kvd_status(
        !s->pool ||
        kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, n, s->pool, stream), what, err) ||
        clear_positions(s, pages + 1, near, stream, err));
}

void kvd_latent_store_release(kvd_latent_store *s)
{
    kvd_device_release(&s->memory);
    *s = (kvd_latent_store){0};
}

kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, int layer, bool prompts,
                                          size_t n)
{
    const kvd_paged_cache *const c = s->cache;
    const kvd_step_batch *const b = c->batch;
    const kvd_attn_map *const map = &c->layer[layer].map;
    const size_t first = prompts ? b->n_steps : 0, max_pages = c->pages->max_pages;
    return (kvd_latent_slices){.n = (int32_t)n,
                               .max_pages = (int32_t)max_pages,
                               .most = prompts ? (int32_t)(b->n_tokens - b->n_steps) : 1,
                               .start = prompts ? b->device.start + first : b->count,
                               .q_len = prompts ? b->device.q_len + first : b->one,
                               .kv_len = kvd_paged_lens_of(map, &b->device) + first,
                               .page_table =
                                   kvd_paged_pages_of(c, map)->device + first * max_pages};
}

void *kvd_latent_store_pool(const kvd_latent_store *s, int layer)
{
    return s->pool + s->layer[layer].at;
}

void kvd_latent_store_describe(const kvd_latent_store *s, int layer, kvd_latent_put_args *a)
{
    const kvd_latent_layer *const l = &s->layer[layer];
    a->run = s->run + l->first_run;
    a->source = s->source ? s->source + l->first_run : NULL;
    a->n_runs = l->n_runs;
    a->pool = kvd_latent_store_pool(s, layer);
    a->page_elements = l->page;
    a->positions = l->positions;
    a->n_kv_heads = s->cache->share->n_kv_heads;
}

kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n)
{
    const kvd_paged_cache *const c = s->cache;
    const kvd_latent_layer *const l = &s->layer[layer];
    const kvd_latent_slices at = kvd_latent_store_slices(s, layer, prompts, n);
    const size_t first = prompts ? c->batch->n_steps : 0,
                 table = kvd_batch_rope_layer(c->config, c->max_len, layer) *
                         ((size_t)c->config->d_head / 2);
    const bool turns = l->applies_rope && c->cosine;
    return (kvd_latent_restore_args){.n = at.n,
                                     .max_pages = at.max_pages,
                                     .n_kv_heads = c->share->n_kv_heads,
                                     .d_head = c->config->d_head,
                                     .max_rank = l->max_rank,
                                     .kv_len = at.kv_len,
                                     .page_table = at.page_table,
                                     .positions = l->positions,
                                     .window = c->layer[layer].map.window,
                                     .q_len = at.q_len,
                                     .slot = s->of_slots ? c->batch->device.slot + first : NULL,
                                     .matrix_slot = s->matrix_slot,
                                     .head = s->head + (size_t)layer * (size_t)c->share->n_kv_heads,
                                     .latents = kvd_latent_store_pool(s, layer),
                                     .matrix = l->up,
                                     .columns = l->columns,
                                     .latent_page = l->page,
                                     .page = (size_t)c->layer[layer].map.page_elements,
                                     .cosine = turns ? c->cosine + table : NULL,
                                     .sine = turns ? c->sine + table : NULL,
                                     .interleaved = c->config->rope_layout == KVD_ROPE_INTERLEAVED,
                                     .pages = kvd_paged_cache_pool(c, layer),
                                     .n_sms = c->n_sms};
}

int kvd_latent_store_share(const kvd_dims *all, const kvd_gpu_share *share, kvd_dims *own,
                           kvd_err *err)
{
    const size_t layers = (size_t)all->n_layers, n = (size_t)share->n_kv_heads;
    if (share->n_kv_heads % all->heads)
        return kvd_fail(err,
                        "%d KV heads of a layer on each of %d GPUs are no groups of %d that share "
                        "a latent: give a key heads that divides %d, such as heads=%d",
                        share->n_kv_heads, share->count, all->heads, share->n_kv_heads,
                        share->n_kv_heads < all->heads ? share->n_kv_heads : 1);
    *own = *all;
    own->n_kv_heads = share->n_kv_heads;
    if (!(own->head = malloc(layers * n * sizeof *own->head)))
        return kvd_no_memory(err, what, layers * n * sizeof *own->head);
    for (size_t l = 0; l < layers; l++)
        memcpy(own->head + l * n,
               all->head + l * (size_t)all->n_kv_heads + (size_t)share->first_kv_head,
               n * sizeof *own->head);
    return 0;
}

static int write_latents(void *store, int layer, const kvd_paged_rewrite *w, kvd_err *err)
{
    const kvd_latent_store *const s = store;
    kvd_latent_put_args a = {.s = {.n = w->n,
                                   .max_pages = (int32_t)s->cache->pages->max_pages,
                                   .most = w->n_rows,
                                   .start = w->start,
                                   .q_len = w->q_len,
                                   .kv_len = w->kv_len,
                                   .page_table = w->table},
                             .latent = w->x,
                             .ld_latent = w->ld};
    kvd_latent_store_describe(s, layer, &a);
    return kvd_cuda_check(kvd_latent_put(&a, s->cache->worker->stream), "decoded latents", err);
}

int kvd_latent_store_host(kvd_latent_store *s, kvd_gpu_method *m, const kvd_dims *dims, size_t ld,
                          kvd_err *err)
{
    const size_t groups = (size_t)(dims->n_kv_heads / dims->heads), parts = 2 * groups,
                 n = (size_t)dims->n_layers * parts;
    kvd_host_part *const part = malloc(n * sizeof *part);
    if (!part)
        return kvd_no_memory(err, coding, n * sizeof *part);
    for (size_t i = 0, at = 0; i < n; i++) {
        const size_t layer = i / parts, side = i / groups % 2, g = i % groups;
        const int head = (int)g * dims->heads;
        const kvd_dims_head *const h = &dims->head[layer * (size_t)dims->n_kv_heads + (size_t)head];
        at = i % parts ? at : 0;
        part[i] = (kvd_host_part){.side = side ? KVD_VALUES : KVD_KEYS,
                                  .kv_head = head,
                                  .at = at,
                                  .d = (size_t)(side ? h->d_v : h->d_qk)};
        at += (size_t)s->layer[layer].rank[side][g];
    }
    const kvd_host_rows rows = {
        .width = ld, .n_parts = parts, .part = part, .write = write_latents, .ctx = s, .ld = ld};
    const int status = kvd_host_codes_new(m, &rows, err);
    free(part);
    return status;
}

void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it)
{
    for (size_t i = 0; i < it->n_slices; i++)
        s->tokens[it->slice[i].slot] = it->slice[i].before + it->slice[i].n;
    s->held = s->near_held = 0;
    for (size_t i = 0; i < s->n_slots; i++) {
        const uint32_t n = s->tokens[i], sink = n < s->n_sink ? n : s->n_sink;
        s->held += sink * s->sink_bytes + (n - sink) * s->token_bytes;
        s->near_held += (double)(n < s->cache->window ? n : s->cache->window) * s->near_token_bytes;
        s->held += n ? (double)s->slot_bytes : 0;
        s->held += n && s->apart ? (double)s->apart[i] * sizeof *s->apart : 0;
    }
    s->held += s->near_held;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            s->tokens[it->slice[i].slot] = 0;
}

enum { LEVELS = 2 * (KVD_LATENT_CODE_BITS + 1) << KVD_LATENT_CODE_BITS /* of a layer */ };

/* Tables of the quantisation method (allot or kvquant) in host memory, and tables for GPU kernels,
 * which are computed from the method's tables. */
typedef struct {
    const kvd_plan *plan;
    kvd_allot_tables allot;
    kvd_kvquant_tables kvquant;
    int bits;                  /* bits of each number with kvquant; 0: the method is allot */
    kvd_latent_code *code;     /* [n] of all layers */
    kvd_latent_vector *vector; /* [n_layers][n_groups] */
    float *level, *decoded;    /* [n_layers][LEVELS] */
} code_tables;

/* Sets how element r of a head's latent K (side 0) or V (side 1) is quantised: its number of bits,
 * mean and deviation. `head` counts all KV heads of the model, not only those of this GPU. */
static void set_code(const code_tables *t, int l, int head, int side, int r, kvd_latent_code *to)
{
    if (!t->bits) {
        const kvd_allot_tables *const a = &t->allot;
        const size_t at =
            ((((size_t)l * a->n_kv_heads + (size_t)head) * 2) + (size_t)side) * a->wide + (size_t)r;
        to->bits = a->given[at];
        to->mean = a->scale[2 * at];
        to->deviation = a->scale[2 * at + 1];
        return;
    }
    const kvd_kvquant_tables *const k = &t->kvquant;
    const size_t heads = (size_t)t->plan->dims->n_kv_heads,
                 at = ((size_t)l * heads + (size_t)head) * k->range_width + (size_t)r;
    to->bits = t->bits;
    to->mean = side ? 0 : k->range[2 * at];
    to->deviation = side ? 0 : k->range[2 * at + 1];
}

/* Sets how each latent element of layer l is quantised. Returns the number of 32-bit words per
 * quantised token. */
static int32_t fill_codes(kvd_latent_codes *c, int l, const code_tables *t, const kvd_dims *dims,
                          size_t first)
{
    const kvd_latent_store *const s = c->store;
    const int groups = dims->n_kv_heads / dims->heads, near = s->cache->layer[l].map.window > 0;
    kvd_latent_code *to = t->code + first;
    kvd_latent_vector *const vector = t->bits ? t->vector + l * groups : NULL;
    int32_t place = 0, bit = 0;
    for (int g = 0; g < groups; g++)
        for (int side = 0; side < 2; side++) {
            const int head = g * dims->heads, rank = s->layer[l].rank[side][g];
            const kvd_dims_head *const h = &dims->head[l * dims->n_kv_heads + head];
            const int width = side ? h->d_v : h->d_qk;
            if (vector) {
                vector[g].first[side] = (int32_t)(to - t->code - (ptrdiff_t)first);
                vector[g].n[side] = width;
            }
            for (int r = 0; r < rank; r++, to++) {
                *to = (kvd_latent_code){.place = place + r / 8 * 8 * KVD_PAGE_TOKENS + r % 8,
                                        .bit = bit,
                                        .side = side,
                                        .group = g};
                if (r >= width)
                    continue;
                set_code(t, l, s->cache->share->first_kv_head + head, side, r, to);
                bit += to->bits;
                c->sink_bits[near] += 16;
            }
            place += KVD_PAGE_TOKENS * rank;
        }
    c->token_bits[near] += bit;
    int32_t words = bit / 32 + 1;
    for (int g = 0; vector && g < groups; g++) {
        vector[g].v_apart =
            (int32_t)kvd_kvquant_apart(&t->plan->bits_values, (size_t)vector[g].n[1]);
        vector[g].v_at = words;
        words += 1 + 2 * vector[g].v_apart;
        c->token_bits[near] += 32 * (1 + 2 * vector[g].v_apart);
    }
    for (int g = 0; vector && g < groups; g++)
        vector[g].k_at = KVD_PAGE_TOKENS * words + g * (1 + c->room);
    return words;
}

static void fill_levels(const code_tables *t, int l)
{
    const size_t n = (size_t)1 << t->bits;
    for (size_t side = 0; side < 2; side++) {
        const float *const from = t->kvquant.levels + ((size_t)l * 2 + side) * 2 * n;
        const size_t at =
            (size_t)l * LEVELS +
            ((side * (KVD_LATENT_CODE_BITS + 1) + (size_t)t->bits) << KVD_LATENT_CODE_BITS);
        memcpy(t->level + at, from, n * sizeof *from);
        memcpy(t->decoded + at, from + n, n * sizeof *from);
    }
}

/* Returns the largest number of elements of a latent vector of K. */
static int widest_k(const kvd_dims *dims)
{
    int most = 0;
    for (int i = 0; i < dims->n_layers * dims->n_kv_heads; i++)
        most = dims->head[i].d_qk > most ? dims->head[i].d_qk : most;
    return most;
}

static int make_codes(kvd_latent_codes *c, code_tables *t, const kvd_dims *dims, size_t n,
                      kvd_err *err)
{
    kvd_latent_store *const s = c->store;
    const size_t layers = (size_t)s->cache->config->n_layers, levels = layers * LEVELS,
                 vectors = layers * (size_t)c->n_groups;
    size_t at = 0;
    for (size_t l = 0; l < layers; l++) {
        const size_t pitch = s->layer[l].latent_pitch;
        const int32_t words = fill_codes(c, (int)l, t, dims, at);
        const size_t page =
            KVD_PAGE_TOKENS * (size_t)words + (c->room ? (size_t)(c->n_groups * (1 + c->room)) : 0);
        c->layer[l] = (kvd_latent_codes_layer){
            .n = (int32_t)pitch, .words = words, .page_words = page, .code = at};
        at += pitch;
        if (s->cache->layer[l].map.window) {
            s->near_token_bytes += (double)words * sizeof *c->words;
            c->near_page_bytes += page * sizeof *c->words;
        } else {
            s->sink_bytes += (double)(pitch * sizeof *c->exact);
            s->token_bytes += (double)words * sizeof *c->words;
            c->page_bytes += page * sizeof *c->words;
        }
        if (t->bits)
            fill_levels(t, (int)l);
    }
    c->slot_bytes = s->n_sink * n * sizeof *c->exact;
    c->code = kvd_device_from(&s->memory, t->code, n * sizeof *c->code, what, err);
    c->level = kvd_device_from(&s->memory, t->bits ? t->level : t->allot.levels,
                               levels * sizeof *c->level, what, err);
    c->decoded =
        t->bits ? kvd_device_from(&s->memory, t->decoded, levels * sizeof *c->decoded, what, err)
                : c->level;
    c->vector = t->bits
                    ? kvd_device_from(&s->memory, t->vector, vectors * sizeof *c->vector, what, err)
                    : NULL;
    return s->memory.status;
}

int kvd_latent_codes_init(kvd_latent_codes *c, kvd_latent_store *store, const kvd_plan *plan,
                          const kvd_dims *dims, kvd_err *err)
{
    const size_t layers = (size_t)store->cache->config->n_layers, levels = layers * LEVELS,
                 groups = (size_t)(dims->n_kv_heads / dims->heads);
    size_t n = 0;
    code_tables t = {.plan = plan};
    *c = (kvd_latent_codes){.store = store};
    if (kvd_gpu_packed_has_levels(plan)) {
        const size_t room = store->cache->outliers;
        t.bits = (int)kvd_gpu_packed_value(plan, "bits");
        kvd_kvquant_tables_of(plan->bits_self, &t.kvquant);
        c->n_groups = (int)groups;
        c->share = kvd_gpu_packed_value(plan, "outliers");
        /* A page has room for four times the expected number of outliers of K, plus 64. */
        c->room = c->share <= 0 ? 0
                  : room        ? (int32_t)room
                         : (int32_t)ceil(c->share * KVD_PAGE_TOKENS * widest_k(dims) + 16) * 4;
    } else {
        kvd_allot_tables_of(plan->bits_self, &t.allot);
    }
    store->n_sink = (uint32_t)(t.bits ? kvd_gpu_packed_value(plan, "sink") : (double)t.allot.sink);
    store->sink_bytes = store->token_bytes = store->near_token_bytes = 0;
    if (!(c->layer = kvd_device_host(&store->memory, layers * sizeof *c->layer, what, err)))
        return -1;
    for (size_t l = 0; l < layers; l++)
        n += store->layer[l].latent_pitch;
    t.code = malloc(n * sizeof *t.code);
    t.vector = calloc(layers * groups, sizeof *t.vector);
    t.level = calloc(2 * levels, sizeof *t.level);
    t.decoded = t.level ? t.level + levels : NULL;
    const int status = t.code && t.vector && t.level ? make_codes(c, &t, dims, n, err)
                                                     : kvd_no_memory(err, what, n * sizeof *t.code);
    free(t.code);
    free(t.vector);
    free(t.level);
    return status;
}

/* Returns the arguments that the quantisation kernels need for one layer, except those that depend
 * on the requests. */
static kvd_latent_code_args layer_codes(const kvd_latent_codes *c, int layer)
{
    const kvd_latent_store *const s = c->store;
    const kvd_latent_codes_layer *const l = &c->layer[layer];
    return (kvd_latent_code_args){.n_codes = l->n,
                                  .words = l->words,
                                  .n_sink = (int32_t)s->n_sink,
                                  .code = c->code + l->code,
                                  .level = c->level + (size_t)layer * LEVELS,
                                  .decoded = c->decoded + (size_t)layer * LEVELS,
                                  .store = c->words + l->store,
                                  .page_words = l->page_words,
                                  .exact = c->exact + l->exact,
                                  .pool = kvd_latent_store_pool(s, layer),
                                  .page_elements = s->layer[layer].page,
                                  .window = s->cache->layer[layer].map.window,
                                  .n_groups = c->n_groups,
                                  .vector = c->vector ? c->vector + layer * c->n_groups : NULL,
                                  .room = c->room,
                                  .idle = (int32_t)s->n_slots - 1,
                                  .apart = c->apart,
                                  .beyond = c->apart ? c->apart + s->n_slots : NULL};
}

int kvd_latent_codes_make(kvd_latent_codes *c, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    const kvd_paged_cache *const cache = c->store->cache;
    const size_t near = cache->window ? cache->near->n_pages + 1 : 0,
                 bytes = (pages + 1) * c->page_bytes + near * c->near_page_bytes,
                 exact = slots * c->slot_bytes;
    const int layers = cache->config->n_layers;
    for (int l = 1; l < layers; l++) {
        const kvd_latent_codes_layer *const last = &c->layer[l - 1];
        c->layer[l].store =
            last->store + (cache->layer[l - 1].map.window ? near : pages + 1) * last->page_words;
        c->layer[l].exact = last->exact + slots * c->store->n_sink * (size_t)last->n;
    }
    c->prompt = kvd_device_host(&c->store->memory, slots * sizeof *c->prompt, what, err);
    c->words = kvd_device_new(&c->store->memory, bytes, "the cache", err);
    c->exact = kvd_device_filled(&c->store->memory, exact, 0, "the cache", err);
    if (c->room) {
        const size_t counts = (slots + 1) * sizeof *c->apart;
        c->apart = kvd_device_filled(&c->store->memory, counts, 0, what, err);
        c->host_apart = kvd_device_pinned(&c->store->memory, counts, what, err);
        c->store->apart = c->host_apart;
    }
    if (c->store->memory.status ||
        kvd_cuda_check(
            kvd_gpu_random_fill(KVD_BF16, &normal, 0, bytes / sizeof(uint16_t), c->words, stream),
            what, err))
        return -1;
    for (int l = 0; c->n_groups && l < layers; l++) {
        const kvd_latent_code_args a = layer_codes(c, l);
        if (kvd_cuda_check(
                kvd_latent_code_make_plausible(&a, a.window ? near : pages + 1, c->share, stream),
                coding, err))
            return -1;
    }
    return 0;
}

static kvd_latent_code_args codes_of(const kvd_latent_codes *c, int layer, bool prompts, size_t n)
{
    const kvd_step_batch *const b = c->store->cache->batch;
    kvd_latent_code_args a = layer_codes(c, layer);
    a.s = kvd_latent_store_slices(c->store, layer, prompts, n);
    a.slot = b->device.slot + (prompts ? b->n_steps : 0);
    a.prompts = prompts;
    a.recounts = layer == 0;
    return a;
}

int kvd_latent_codes_put(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_latent_code_args steps = codes_of(c, r->layer, false, r->steps),
                               prompts = codes_of(c, r->layer, true, r->prompts);
    return kvd_status(
        (r->steps && kvd_cuda_check(kvd_latent_code_put(&steps, r->stream), coding, err)) ||
        (r->prompts && kvd_cuda_check(kvd_latent_code_put(&prompts, r->stream), coding, err)) ||
        (c->room && r->layer + 1 == c->store->cache->config->n_layers &&
         kvd_queue_get(c->host_apart, c->apart, (c->store->n_slots + 1) * sizeof *c->apart,
                       r->stream, coding, err)));
}

int kvd_latent_codes_restore(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_latent_code_args a = codes_of(c, r->layer, false, r->steps);
    return kvd_cuda_check(kvd_latent_code_restore(&a, c->store->cache->n_sms, r->stream), coding,
                          err);
}

void kvd_latent_codes_note(kvd_latent_codes *c, const kvd_iteration *it)
{
    for (size_t i = 0; i < it->n_slices; i++)
        if (!it->slice[i].before)
            c->prompt[it->slice[i].slot] = it->slice[i].n;
}

/* Returns the number of stored bits of a request's tokens `from` .. `end` - 1 in layers without a
 * sliding window (near = 0) or with one (near = 1). Outliers of K are not counted. */
static double range_bits(const kvd_latent_codes *c, int near, size_t from, size_t end)
{
    const size_t last = kvd_smaller(end, c->store->n_sink), sink = last > from ? last - from : 0;
    return (double)sink * c->sink_bits[near] + (double)(end - from - sink) * c->token_bits[near];
}

static size_t first_in(size_t window, size_t n)
{
    return n > window ? n - window : 0;
}

/* Returns the number of stored bits of a request's tokens `from` .. n - 1 in layers with a sliding
 * window. Assumes that all stored prompt tokens have equally many bits. n must be at least the
 * prompt's length. */
static double near_bits(const kvd_latent_codes *c, size_t slot, size_t from, size_t n)
{
    const size_t prompt = c->prompt[slot], first = first_in(c->store->cache->window, prompt),
                 start = kvd_larger(from, first);
    const double later = range_bits(c, 1, kvd_larger(from, prompt), n);
    return start < prompt ? later + range_bits(c, 1, first, prompt) * (double)(prompt - start) /
                                        (double)(prompt - first)
                          : later;
}

double kvd_latent_codes_bits(const kvd_latent_codes *c, size_t slot)
{
    const size_t n = c->store->tokens[slot], window = c->store->cache->window;
    return range_bits(c, 0, 0, n) + (c->room ? 32.0 * c->host_apart[slot] : 0) +
           (window && n ? near_bits(c, slot, first_in(window, n), n) : 0);
}

double kvd_latent_codes_unseen(const kvd_latent_codes *c, size_t slot)
{
    const size_t n = c->store->tokens[slot], window = c->store->cache->window;
    return n > c->prompt[slot] ? near_bits(c, slot, first_in(window, n - 1), n - 1) -
                                     near_bits(c, slot, first_in(window, n), n - 1)
                               : 0;
}

size_t kvd_latent_codes_lacking(const kvd_latent_codes *c)
{
    const uint32_t beyond = c->room ? c->host_apart[c->store->n_slots] : 0;
    return beyond ? (size_t)c->room + beyond : 0;
}
