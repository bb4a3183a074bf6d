#include "methods/dims/cuda/latent_store.h"

#include <stdlib.h>

#include "model/checkpoint/cuda/random.h"

static const char what[] = "latents";

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
 * Writes the layout of layer l in a page to two host tables. `head` has one entry per KV head.
 * `run` has one page offset per 8 consecutive elements of a token's latents. If s->wide is set,
 * `source` receives the offset of each 8 elements in the array from which latents are copied.
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
    /* A row of a new token has the latents of K of all groups, then those of V of all groups. */
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

int kvd_latent_store_init(kvd_latent_store *s, cudaStream_t stream, kvd_err *err)
{
    const kvd_paged_cache *const c = s->cache;
    const size_t layers = (size_t)c->config->n_layers, kv = (size_t)c->share->n_kv_heads;
    const size_t most = 2 * kv * (size_t)c->config->d_head / 8;
    kvd_latent_head *const head = calloc(layers * kv, sizeof *head);
    int32_t *const run = calloc(2 * layers * most, sizeof *run), *const source =
                                                                     run ? run + layers * most
                                                                         : NULL;
    const size_t bytes = layers * most * sizeof *run;
    int status = head && run ? 0 : kvd_no_memory(err, what, layers * kv * sizeof *head + 2 * bytes);
    for (size_t l = 0; l < layers && !status; l++) {
        place(s, (int)l, head + l * kv, run + l * most, source + l * most);
        s->layer[l].first_run = (int)(l * most);
        s->page_bytes += s->layer[l].page * sizeof *s->pool;
    }
    if (!status && (!(s->head = kvd_device_copy(&s->memory, head, layers * kv * sizeof *head, what,
                                                stream, err)) ||
                    !(s->run = kvd_device_copy(&s->memory, run, bytes, what, stream, err)) ||
                    (s->wide && !(s->source = kvd_device_copy(&s->memory, source, bytes, what,
                                                              stream, err))) ||
                    kvd_cuda_check(cudaStreamSynchronize(stream), what, err)))
        status = -1;
    free(head);
    free(run);
    return status;
}

int kvd_latent_store_make(kvd_latent_store *s, size_t pages, size_t slots, cudaStream_t stream,
                          kvd_err *err)
{
    const kvd_random_tensor normal = kvd_random_tensor_of(1, what, 1, 0);
    size_t n = 0;
    for (int l = 0; l < s->cache->config->n_layers; l++) {
        s->layer[l].at = n;
        n += (pages + 1) * s->layer[l].page;
    }
    if (!(s->tokens = calloc(slots, sizeof *s->tokens)))
        return kvd_no_memory(err, what, slots * sizeof *s->tokens);
    s->n_slots = slots;
    return (s->pool = kvd_device_new(&s->memory, n * sizeof *s->pool, "the cache", err)) &&
                   !kvd_cuda_check(kvd_gpu_random_fill(KVD_BF16, &normal, 0, n, s->pool, stream),
                                   what, err)
               ? 0
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

void kvd_latent_store_note(kvd_latent_store *s, const kvd_iteration *it)
{
    const double token = (double)s->page_bytes / KVD_PAGE_TOKENS;
    for (size_t i = 0; i < it->n_slices; i++)
        s->tokens[it->slice[i].slot] = it->slice[i].before + it->slice[i].n;
    /* s->held counts requests that end in this iteration, too. */
    s->held = 0;
    for (size_t i = 0; i < s->n_slots; i++)
        s->held += s->tokens[i] ? (double)s->tokens[i] * token + (double)s->slot_bytes : 0;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            s->tokens[it->slice[i].slot] = 0;
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
    return (s->value = kvd_device_new(memory, numbers * sizeof *s->value, what, err)) &&
                   (s->info = kvd_device_new(memory, (size_t)n * sizeof *s->info, what, err)) &&
                   (s->work = kvd_device_new(memory, s->work_bytes, what, err))
               ? 0
               : -1;
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
    return solved(s->lib->cusolverDnXsyevBatched(
                      s->handle, s->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, s->d,
                      CUDA_R_32F, matrix, s->d, CUDA_R_32F, s->value, CUDA_R_32F, s->work,
                      s->work_bytes, s->host_work, s->host_bytes, s->info, s->n),
                  err) ||
                   kvd_queue_get(host_info, s->info, (size_t)s->n * sizeof *s->info, stream, what,
                                 err)
               ? -1
               : 0;
}
