#include "methods/dims/cuda/latents.h"

#include <stdlib.h>
#include <string.h>

#include "methods/bits/levels.h"
#include "model/checkpoint/cuda/random.h"

static const char what[] = "latents", coding[] = "codes of latents";

int kvd_latent_store_begin(kvd_latent_store *s, kvd_paged_cache *c, int heads, kvd_err *err)
{
    const size_t layers = (size_t)c->config->n_layers, kv = (size_t)c->share->n_kv_heads;
    const size_t groups = kv / (size_t)heads, each = 2 * (groups + kv);
    *s = (kvd_latent_store){.cache = c, .heads = heads};
    s->layer = calloc(layers, sizeof *s->layer);
    int *const all = calloc(layers * each, sizeof *all);
    if (!s->layer || !all) {
        free(all);
        return kvd_no_memory(err, what, layers * each * sizeof *all);
    }
    for (size_t l = 0; l < layers; l++)
        for (int side = 0; side < 2; side++) {
            s->layer[l].rank[side] = all + l * each + (size_t)side * groups;
            s->layer[l].matrix[side] = all + l * each + 2 * groups + (size_t)side * kv;
        }
    return 0;
}

/*
 * Fills host tables of layer l: `head` for each KV head, and `run` with the page offset of every 8
 * latent elements. If s->wide, fills `source` with the offset of these elements in a new token's
 * latents.
 */
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
    /* A token's row holds the K latents of all groups, then the V latents unless s->joint. */
    for (int side = 0; side < (s->joint ? 1 : 2); side++)
        for (int g = 0; g < groups; g++)
            for (int r = 0; r < to->rank[side][g]; r += 8) {
                source[runs] = (side * groups + g) * s->wide + r;
                run[runs++] = head[g * s->heads].latent[side] + r * KVD_PAGE_TOKENS;
            }
    to->n_runs = runs;
    to->latent_pitch = (size_t)runs * 8;
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
        s->page_bytes = !s->one_layer          ? s->page_bytes + page
                        : page > s->page_bytes ? page
                                               : s->page_bytes;
    }
    s->token_bytes = (double)s->page_bytes / KVD_PAGE_TOKENS;
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

int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    const size_t n = (pages + 1) * s->page_bytes / sizeof *s->pool;
    for (int l = 1; l < s->cache->config->n_layers && !s->one_layer; l++)
        s->layer[l].at = s->layer[l - 1].at + (pages + 1) * s->layer[l - 1].page;
    if (!(s->tokens = calloc(slots, sizeof *s->tokens)))
        return kvd_no_memory(err, what, slots * sizeof *s->tokens);
    s->n_slots = slots;
    s->pool = kvd_device_new(&s->memory, n * sizeof *s->pool, "the cache", err);
    return s->pool ? kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, n, s->pool, stream),
                                    what, err)
                   : -1;
}

void kvd_latent_store_release(kvd_latent_store *s)
{
    if (s->layer)
        free(s->layer[0].rank[0]);
    free(s->layer);
    free(s->tokens);
    kvd_device_release(&s->memory);
    *s = (kvd_latent_store){0};
}

kvd_latent_slices kvd_latent_store_slices(const kvd_latent_store *s, bool prompts, size_t n)
{
    const kvd_step_batch *const b = s->cache->batch;
    const size_t first = prompts ? b->n_steps : 0, max_pages = s->cache->pages->max_pages;
    return (kvd_latent_slices){.n = (int32_t)n,
                               .max_pages = (int32_t)max_pages,
                               .most = prompts ? (int32_t)(b->n_tokens - b->n_steps) : 1,
                               .start = prompts ? b->device.start + first : b->count,
                               .q_len = prompts ? b->device.q_len + first : b->one,
                               .kv_len = b->device.kv_len + first,
                               .page_table = s->cache->pages->device + first * max_pages};
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
}

kvd_latent_restore_args kvd_latent_store_restored(const kvd_latent_store *s, int layer,
                                                  bool prompts, size_t n)
{
    const kvd_paged_cache *const c = s->cache;
    const kvd_latent_layer *const l = &s->layer[layer];
    const kvd_latent_slices at = kvd_latent_store_slices(s, prompts, n);
    const size_t first = prompts ? c->batch->n_steps : 0;
    return (kvd_latent_restore_args){.n = at.n,
                                     .max_pages = at.max_pages,
                                     .n_kv_heads = c->share->n_kv_heads,
                                     .d_head = c->config->d_head,
                                     .max_rank = l->max_rank,
                                     .kv_len = at.kv_len,
                                     .page_table = at.page_table,
                                     .slot = s->of_slots ? c->batch->device.slot + first : NULL,
                                     .matrix_slot = s->matrix_slot,
                                     .head = s->head + (size_t)layer * (size_t)c->share->n_kv_heads,
                                     .latents = kvd_latent_store_pool(s, layer),
                                     .matrix = l->up,
                                     .latent_page = l->page,
                                     .page = (size_t)c->layer[layer].map.page_elements,
                                     .cosine = l->applies_rope ? c->cosine : NULL,
                                     .sine = l->applies_rope ? c->sine : NULL,
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
    s->held = 0;
    for (size_t i = 0; i < s->n_slots; i++) {
        const uint32_t n = s->tokens[i], sink = n < s->n_sink ? n : s->n_sink;
        s->held += sink * s->sink_bytes + (n - sink) * s->token_bytes;
        s->held += n ? (double)s->slot_bytes : 0;
    }
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            s->tokens[it->slice[i].slot] = 0;
}

/* Fills codes in page order. Returns a token's bits, and adds them to c's sums. */
static int32_t fill_codes(kvd_latent_codes *c, int l, const kvd_allot_tables *t,
                          const kvd_dims *dims, kvd_latent_code *to)
{
    const kvd_latent_store *const s = c->store;
    const size_t first = (size_t)s->cache->share->first_kv_head;
    int32_t place = 0, bit = 0;
    for (int g = 0; g < dims->n_kv_heads; g += dims->heads)
        for (int side = 0; side < 2; side++) {
            const kvd_dims_head *const h = &dims->head[l * dims->n_kv_heads + g];
            const size_t at =
                (((size_t)l * t->n_kv_heads + first + (size_t)g) * 2 + (size_t)side) * t->wide;
            const int rank = s->layer[l].rank[side][g / dims->heads],
                      width = side ? h->d_v : h->d_qk;
            for (int r = 0; r < rank; r++, to++) {
                *to = (kvd_latent_code){
                    .place = place + r / 8 * 8 * KVD_PAGE_TOKENS + r % 8, .bit = bit, .side = side};
                if (r >= width)
                    continue;
                to->bits = t->given[at + (size_t)r];
                to->mean = t->scale[2 * (at + (size_t)r)];
                to->deviation = t->scale[2 * (at + (size_t)r) + 1];
                bit += to->bits;
                c->sink_bits += 16;
            }
            place += KVD_PAGE_TOKENS * rank;
        }
    c->token_bits += bit;
    return bit;
}

int kvd_latent_codes_init(kvd_latent_codes *c, kvd_latent_store *store, const kvd_plan *plan,
                          const kvd_dims *dims, kvd_err *err)
{
    const int layers = store->cache->config->n_layers;
    const size_t levels = (size_t)layers * 2 * (KVD_LATENT_CODE_BITS + 1) << KVD_LATENT_CODE_BITS;
    size_t n = 0;
    kvd_allot_tables t;
    kvd_allot_tables_of(plan->bits_self, &t);
    *c = (kvd_latent_codes){.store = store};
    c->layer = calloc((size_t)layers, sizeof *c->layer);
    for (int l = 0; l < layers; l++)
        n += store->layer[l].latent_pitch;
    kvd_latent_code *const code = malloc(n * sizeof *code);
    if (!c->layer || !code) {
        free(code);
        return kvd_no_memory(err, what, n * sizeof *code);
    }
    store->n_sink = (uint32_t)t.sink;
    store->sink_bytes = store->token_bytes = 0;
    n = 0;
    for (int l = 0; l < layers; l++) {
        const size_t pitch = store->layer[l].latent_pitch;
        const int32_t words = fill_codes(c, l, &t, dims, code + n) / 32 + 1;
        c->layer[l] = (kvd_latent_codes_layer){.n = (int32_t)pitch, .words = words, .code = n};
        n += pitch;
        store->sink_bytes += (double)(pitch * sizeof *c->exact);
        store->token_bytes += (double)words * sizeof *c->words;
        c->page_bytes += KVD_PAGE_TOKENS * (size_t)words * sizeof *c->words;
    }
    c->slot_bytes = store->n_sink * n * sizeof *c->exact;
    c->code = kvd_device_from(&store->memory, code, n * sizeof *code, what, err);
    c->level = kvd_device_from(&store->memory, t.levels, levels * sizeof *c->level, what, err);
    free(code);
    return store->memory.status;
}

int kvd_latent_codes_make(kvd_latent_codes *c, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    const size_t bytes = (pages + 1) * c->page_bytes, exact = slots * c->slot_bytes;
    const int layers = c->store->cache->config->n_layers;
    for (int l = 1; l < layers; l++) {
        const kvd_latent_codes_layer *const last = &c->layer[l - 1];
        c->layer[l].store = last->store + (pages + 1) * KVD_PAGE_TOKENS * (size_t)last->words;
        c->layer[l].exact = last->exact + slots * c->store->n_sink * (size_t)last->n;
    }
    c->words = kvd_device_new(&c->store->memory, bytes, "the cache", err);
    c->exact = kvd_device_filled(&c->store->memory, exact, 0, "the cache", err);
    return c->store->memory.status
               ? -1
               : kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, bytes / sizeof(uint16_t),
                                                    c->words, stream),
                                what, err);
}

static kvd_latent_code_args codes_of(const kvd_latent_codes *c, int layer, bool prompts, size_t n)
{
    const kvd_latent_store *const s = c->store;
    const kvd_latent_codes_layer *const l = &c->layer[layer];
    const kvd_step_batch *const b = s->cache->batch;
    const size_t levels = (size_t)2 * (KVD_LATENT_CODE_BITS + 1) << KVD_LATENT_CODE_BITS;
    return (kvd_latent_code_args){.s = kvd_latent_store_slices(s, prompts, n),
                                  .slot = b->device.slot + (prompts ? b->n_steps : 0),
                                  .n_codes = l->n,
                                  .words = l->words,
                                  .n_sink = (int32_t)s->n_sink,
                                  .code = c->code + l->code,
                                  .level = c->level + (size_t)layer * levels,
                                  .store = c->words + l->store,
                                  .exact = c->exact + l->exact,
                                  .pool = kvd_latent_store_pool(s, layer),
                                  .page_elements = s->layer[layer].page};
}

int kvd_latent_codes_put(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_latent_code_args steps = codes_of(c, r->layer, false, r->steps),
                               prompts = codes_of(c, r->layer, true, r->prompts);
    return kvd_status(
        (r->steps && kvd_cuda_check(kvd_latent_code_put(&steps, r->stream), coding, err)) ||
        (r->prompts && kvd_cuda_check(kvd_latent_code_put(&prompts, r->stream), coding, err)));
}

int kvd_latent_codes_restore(const kvd_latent_codes *c, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_latent_code_args a = codes_of(c, r->layer, false, r->steps);
    return kvd_cuda_check(kvd_latent_code_restore(&a, c->store->cache->n_sms, r->stream), coding,
                          err);
}

double kvd_latent_codes_bits(const kvd_latent_codes *c, size_t slot)
{
    const uint32_t n = c->store->tokens[slot], sink = n < c->store->n_sink ? n : c->store->n_sink;
    return sink * c->sink_bits + (n - sink) * c->token_bits;
}

static int solved(cusolverStatus_t s, kvd_err *err)
{
    return s == CUSOLVER_STATUS_SUCCESS
               ? 0
               : kvd_fail(err, "decompositions of prompts: cuSOLVER status %d", (int)s);
}

int kvd_latent_solver_open(kvd_latent_solver *s, int d, int n, kvd_device_memory *memory,
                           cudaStream_t stream, kvd_err *err)
{
    const size_t numbers = (size_t)n * (size_t)d;
    s->d = d;
    s->n = n;
    if (!(s->lib = kvd_cusolver_load(err)) || solved(s->lib->cusolverDnCreate(&s->handle), err) ||
        solved(s->lib->cusolverDnCreateParams(&s->params), err) ||
        solved(s->lib->cusolverDnSetStream(s->handle, stream), err) ||
        solved(s->lib->cusolverDnXsyevBatched_bufferSize(
                   s->handle, s->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, d,
                   CUDA_R_32F, NULL, d, CUDA_R_32F, NULL, CUDA_R_32F, &s->work_bytes,
                   &s->host_bytes, n),
               err))
        return -1;
    if (!(s->host_work = malloc(s->host_bytes ? s->host_bytes : 1)))
        return kvd_no_memory(err, what, s->host_bytes);
    s->value = kvd_device_new(memory, numbers * sizeof *s->value, what, err);
    s->info = kvd_device_new(memory, (size_t)n * sizeof *s->info, what, err);
    s->work = kvd_device_new(memory, s->work_bytes, what, err);
    return memory->status;
}

void kvd_latent_solver_close(kvd_latent_solver *s)
{
    if (s->params)
        (void)s->lib->cusolverDnDestroyParams(s->params);
    if (s->handle)
        (void)s->lib->cusolverDnDestroy(s->handle);
    free(s->host_work);
    *s = (kvd_latent_solver){0};
}

int kvd_latent_solver_run(const kvd_latent_solver *s, float *matrix, int *host_info,
                          cudaStream_t stream, kvd_err *err)
{
    return kvd_status(
        solved(s->lib->cusolverDnXsyevBatched(
                   s->handle, s->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, s->d,
                   CUDA_R_32F, matrix, s->d, CUDA_R_32F, s->value, CUDA_R_32F, s->work,
                   s->work_bytes, s->host_work, s->host_bytes, s->info, s->n),
               err) ||
        kvd_queue_get(host_info, s->info, (size_t)s->n * sizeof *s->info, stream, what, err));
}
