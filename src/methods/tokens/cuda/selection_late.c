/* Methods mpcache and shadowkv on the GPU, whose decode steps read only part of the cache. mpcache
 * also drops prompt tokens, a different number in each layer. shadowkv stores prompt keys as latent
 * vectors and rebuilds those that are read. */
#include <stdlib.h>

#include "methods/tokens/cuda/evict.h"
#include "methods/tokens/cuda/selection_method.h"
#include "methods/tokens/tokens.h"
#include "model/pass/batch.h"

static const char what[] = "compression of prompts";

typedef kvd_selection_method selection;

int32_t *kvd_selection_lengths_of(const selection *e, int layer)
{
    const kvd_paged_cache *const c = e->method.cache;
    return e->late.lengths + (size_t)c->kind_index[layer] * c->batch->max_slices;
}

size_t kvd_selection_cached(const selection *e, size_t slot, size_t layer, size_t n)
{
    return n && kvd_selection_is_late(e) ? e->late.entries[slot * e->layers + layer] : n;
}

/* Returns the number of cached tokens of a request in the layer that caches most, after `before`
 * tokens were processed. */
static size_t entries(const kvd_gpu_method *m, size_t slot, size_t before)
{
    const selection *const e = (const selection *)m;
    size_t most = 0;
    for (size_t l = 0; before && l < e->layers; l++)
        most = kvd_selection_cached(e, slot, l, before) > most
                   ? kvd_selection_cached(e, slot, l, before)
                   : most;
    return most;
}

static double mean(const kvd_gpu_method *m, size_t slot)
{
    const selection *const e = (const selection *)m;
    size_t sum = 0;
    for (size_t l = 0; l < e->layers; l++)
        sum += kvd_selection_cached(e, slot, l, e->held[slot]);
    return (double)sum / (double)e->layers;
}

/* Fails if a decode step follows tokens that this method has not processed. */
static int check_slice(const selection *e, const kvd_slice *s, bool step, kvd_err *err)
{
    return step && s->before != e->tokens[s->slot]
               ? kvd_fail(err,
                          "method '%s' cannot go on after %u tokens of request %u, which were "
                          "never computed",
                          e->method.plan->tokens->info.name, s->before, s->request)
               : 0;
}

static int begin(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    selection *const e = (selection *)m;
    const size_t rows = m->cache->batch->max_slices, n = e->layers * rows;
    for (size_t i = 0; i < n; i++)
        e->late.length[i] = 1;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        if (check_slice(e, s, i < it->n_steps, err))
            return -1;
        for (size_t l = 0; l < e->layers && i < it->n_steps; l++)
            e->late.length[l * rows + i] =
                (int32_t)kvd_selection_cached(e, s->slot, l, s->before) + 1;
    }
    return kvd_queue_put(e->late.lengths, e->late.length, n * sizeof *e->late.length, e->stream,
                         what, err);
}

void kvd_selection_late_ended(selection *e, const kvd_slice *s, size_t i)
{
    for (size_t l = 0; l < e->layers; l++)
        e->late.entries[s->slot * e->layers + l] =
            (size_t)e->late.length[l * e->method.cache->batch->max_slices + i];
    if (!s->last)
        kvd_pages_keep(e->method.cache->pages, s->slot, entries(&e->method, s->slot, 1) + 1);
}

static int append(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = m->cache;
    const kvd_paged_place at = {.pool = kvd_paged_cache_pool(c, r->layer),
                                .table = c->pages->device,
                                .kv_len = kvd_selection_lengths_of((const selection *)m, r->layer),
                                .pitch = (int32_t)c->pages->max_pages};
    return kvd_paged_cache_append_at(m->cache, r, &at, err);
}

static int drop_tokens(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    selection *const e = (selection *)m;
    const kvd_paged_cache *const c = m->cache;
    const size_t counts = e->layers * c->batch->max_slices;
    if (!r->prompts)
        return 0;
    const kvd_selection s = kvd_selection_of_rows(e, r->layer, r->steps, r->prompts);
    kvd_evict_prompts_args a = kvd_evict_prompts_of(c, r, r->layer);
    a.budget = e->late.budget;
    a.lse = m->lse;
    a.mass = e->late.mass;
    a.kept = e->late.kept;
    int32_t *const length = kvd_selection_lengths_of(e, r->layer) + r->steps;
    return kvd_status(
        kvd_cuda_check(kvd_evict_mark(&a, e->rule.rows, e->rule.threshold, r->stream), what, err) ||
        kvd_cuda_check(kvd_evict_marked(&a, length, e->late.budget, r->stream), what, err) ||
        kvd_cuda_check(kvd_selection_bounds(&s, length, a.longest, r->stream), what, err) ||
        (c->kind_index[r->layer] + 1 == (int)e->layers &&
         kvd_queue_get(e->late.length, e->late.lengths, counts * sizeof *e->late.length, r->stream,
                       what, err)));
}

int kvd_selection_late_make(selection *e, kvd_err *err)
{
    const kvd_step_batch *const b = e->method.cache->batch;
    kvd_device_memory *const m = &e->memory;
    const size_t n = e->layers * b->max_slices, rows = b->max_tokens + 8 * b->max_slices,
                 bytes = n * sizeof *e->late.length;
    e->late.entries =
        kvd_device_host(m, e->n_slots * e->layers * sizeof *e->late.entries, what, err);
    e->late.length = kvd_device_pinned(m, bytes, what, err);
    e->late.lengths = kvd_device_new(m, bytes, what, err);
    e->late.budget = kvd_device_new(m, e->n_slots * sizeof *e->late.budget, what, err);
    e->late.mass = kvd_device_new(m, rows * sizeof *e->late.mass, what, err);
    e->late.kept = kvd_device_new(m, e->kv * rows * sizeof *e->late.kept, what, err);
    if (m->status)
        return -1;
    /* The kernels require at least one cached token. */
    for (size_t i = 0; i < n; i++)
        e->late.length[i] = 1;
    return kvd_device_put(e->late.lengths, e->late.length, bytes, what, err);
}

void kvd_selection_late_describe(selection *e)
{
    e->method.whole_prompts = true;
    e->method.begin = begin;
    e->method.entries = entries;
    e->method.mean = mean;
    e->method.append = append;
    e->method.attended = drop_tokens;
}

static size_t side_page(const selection *e)
{
    return KVD_PAGE_TOKENS * e->shadow.wide;
}

static size_t slot_outliers(const selection *e)
{
    return (size_t)e->rule.outliers * e->rule.page * e->shadow.wide;
}

static size_t index_of(const selection *e, int layer)
{
    return (size_t)e->method.cache->kind_index[layer];
}

/* Returns the kernel arguments of method shadowkv in a layer, for the requests of the batch from
 * index `from` on. */
static kvd_selection_shadow shadow_of(const selection *e, int layer, size_t from)
{
    const size_t l = index_of(e, layer), pages = l * e->pool_pages;
    kvd_selection_shadow x = e->shadow.of;
    x.latents = e->shadow.latents + pages * (size_t)(KVD_PAGE_TOKENS * x.rank);
    x.values = e->shadow.values + pages * side_page(e);
    x.keys = e->shadow.keys + pages * side_page(e);
    x.outliers = e->shadow.outliers + l * e->n_slots * slot_outliers(e);
    x.table = e->shadow.tail.device + from * e->shadow.tail.max_pages;
    return x;
}

/* Only the first tokens form groups with stored mean keys. Returns how many of n tokens follow
 * these groups, or 1 if none do. */
static size_t tail_of(const selection *e, size_t prompt, size_t n)
{
    const size_t marked = kvd_selection_marks_of(&e->rule, prompt).all * e->rule.page;
    return n > marked ? n - marked : 1;
}

static int store(const selection *e, const kvd_paged_rows *r, bool prompts, int32_t longest,
                 kvd_err *err)
{
    const kvd_step_batch *const b = e->method.cache->batch;
    const size_t from = prompts ? r->steps : 0;
    const kvd_selection s =
        kvd_selection_of_rows(e, r->layer, from, prompts ? r->prompts : r->steps);
    const kvd_selection_shadow x = shadow_of(e, r->layer, from);
    return kvd_cuda_check(kvd_selection_shadow_store(&s, &x,
                                                     prompts ? b->device.q_len + from : b->one,
                                                     longest, r->stream),
                          what, err);
}

int kvd_selection_shadow_append(const selection *e, const kvd_paged_rows *r, kvd_err *err)
{
    return kvd_status(r->steps &&
                      (store(e, r, false, 1, err) ||
                       kvd_clock_end(e->method.cache->clock, KVD_PHASE_APPEND, r->stream, err)));
}

void kvd_selection_shadow_drop(selection *e, size_t slot)
{
    kvd_pages_give_back(&e->shadow.tail, slot);
}

static uint16_t *basis_of(const selection *e, size_t slot, int layer)
{
    return e->shadow.basis +
           (slot * e->layers + index_of(e, layer)) * e->shadow.wide * (size_t)e->shadow.of.rank;
}

static int begin_shadow(kvd_gpu_method *m, const kvd_iteration *it, kvd_err *err)
{
    selection *const e = (selection *)m;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        const size_t prompt = i < it->n_steps ? e->shadow.prompt[s->slot] : s->n;
        if (check_slice(e, s, i < it->n_steps, err) ||
            kvd_pages_hold(&e->shadow.tail, s->slot, tail_of(e, prompt, (size_t)s->before + s->n),
                           s->before == 0, err))
            return kvd_in(err, "exact keys of request %u", s->request);
        kvd_pages_row(&e->shadow.tail, i, s->slot);
    }
    e->shadow.prompts = it->n_slices - it->n_steps;
    return kvd_pages_upload(&e->shadow.tail, e->stream, err);
}

int kvd_selection_shadow_ended(selection *e, const kvd_iteration *it, kvd_err *err)
{
    const size_t most = e->method.cache->batch->max_slices;
    for (size_t i = 0; i < e->shadow.prompts; i++)
        for (size_t l = 0; l < e->layers; l++)
            if (kvd_latent_span_check(e->shadow.captured[l * most + i], err))
                return kvd_in(err, "layer %zu, request %u", l, it->slice[it->n_steps + i].request);
    for (size_t i = it->n_steps; i < it->n_slices; i++)
        e->shadow.prompt[it->slice[i].slot] = it->slice[i].n;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            kvd_pages_give_back(&e->shadow.tail, it->slice[i].slot);
    return 0;
}

/* Multiplies keys x [wide][tokens] by basis [rank][wide], to get latent vectors [rank][tokens]. All
 * matrices are column-major bf16. */
static int project(const selection *e, size_t tokens, const uint16_t *basis, const uint16_t *x,
                   size_t ld, uint16_t *latents, kvd_err *err)
{
    const kvd_gpu_worker *const w = e->method.cache->worker;
    const float one = 1, zero = 0;
    const int rank = e->shadow.of.rank;
    return kvd_cublas_check(w->lib->cublasGemmEx(w->blas, CUBLAS_OP_N, CUBLAS_OP_N, rank,
                                                 (int)tokens, (int)e->shadow.wide, &one, basis,
                                                 CUDA_R_16BF, rank, x, CUDA_R_16BF, (int)ld, &zero,
                                                 latents, CUDA_R_16BF, rank, CUBLAS_COMPUTE_32F,
                                                 CUBLAS_GEMM_DEFAULT),
                            what, err);
}

/* Factorises keys before RoPE at low rank, for the `batch` prompts from index `first` on. These
 * prompts must have equal lengths. */
static int decompose(selection *e, const kvd_paged_rows *r, size_t first, size_t batch,
                     kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_step_batch *const b = c->batch;
    const size_t ld = r->k_pre ? r->ld_pre : r->ld, rank = (size_t)e->shadow.of.rank,
                 start = (size_t)b->host.start[r->steps + first],
                 n = (size_t)b->host.q_len[r->steps + first], wide = e->shadow.wide,
                 most = n < wide ? n : wide;
    const uint16_t *const x =
        (r->k_pre ? (const uint16_t *)r->k_pre
                  : (const uint16_t *)r->x + c->share->n_heads * c->config->d_head) +
        (r->steps + start) * ld;
    kvd_latent_span_rows rows = {.x = x,
                                 .ld = ld,
                                 .n = n,
                                 .wide = wide,
                                 .batch = batch,
                                 .width = e->shadow.kept < most ? e->shadow.kept : most,
                                 .rank = rank,
                                 .captured = e->shadow.captured +
                                             index_of(e, r->layer) * b->max_slices + first};
    for (size_t i = 0; i < batch; i++)
        rows.basis[i] = basis_of(e, (size_t)b->host.slot[r->steps + first + i], r->layer);
    if (kvd_latent_span_run(&e->shadow.span, &rows, r->stream, err))
        return -1;
    for (size_t i = 0; i < batch; i++)
        if (project(e, n, rows.basis[i], x + i * n * ld, ld,
                    e->shadow.rows + (start + i * n) * rank, err))
            return -1;
    return 0;
}

static int compress(kvd_gpu_method *m, const kvd_paged_rows *r, kvd_err *err)
{
    selection *const e = (selection *)m;
    const kvd_paged_cache *const c = m->cache;
    const kvd_step_batch *const b = c->batch;
    if (!r->prompts)
        return 0;
    const kvd_selection s = kvd_selection_of_rows(e, r->layer, r->steps, r->prompts);
    const kvd_selection_shadow x = shadow_of(e, r->layer, r->steps);
    const size_t vectors = (size_t)(KVD_PAGE_TOKENS * x.rank);
    int32_t longest = 1;
    for (size_t i = 0, n; i < r->prompts; i += n) {
        const int32_t *const q_len = b->host.q_len + r->steps + i;
        longest = *q_len > longest ? *q_len : longest;
        n = kvd_latent_span_equal(q_len, r->prompts - i);
        if (decompose(e, r, i, n, err))
            return -1;
    }
    const kvd_latent_put_args put = {.s = {.n = (int32_t)r->prompts,
                                           .max_pages = (int32_t)c->pages->max_pages,
                                           .most = longest,
                                           .start = b->device.start + r->steps,
                                           .q_len = b->device.q_len + r->steps,
                                           .kv_len = s.kv_len,
                                           .page_table = s.page_table},
                                     .latent = e->shadow.rows,
                                     .ld_latent = (size_t)x.rank,
                                     .run = e->shadow.run,
                                     .n_runs = x.rank / 8,
                                     .pool = e->shadow.latents +
                                             index_of(e, r->layer) * e->pool_pages * vectors,
                                     .page_elements = vectors};
    return kvd_status(
        kvd_cuda_check(kvd_latent_put(&put, r->stream), what, err) ||
        kvd_cuda_check(kvd_selection_landmarks(&s, &x, e->to.score, longest, r->stream), what,
                       err) ||
        store(e, r, true, longest, err));
}

int kvd_selection_shadow_lengths(const selection *e, const kvd_selection *s, cudaStream_t stream,
                                 kvd_err *err)
{
    const kvd_selection_shadow x = shadow_of(e, 0, 0);
    return kvd_cuda_check(kvd_selection_landmark_lengths(s, &x, e->method.cache->batch->device.live,
                                                         e->len, e->heads, stream),
                          what, err);
}

int kvd_selection_shadow_choose(const selection *e, const kvd_selection *s, const kvd_selected *to,
                                const kvd_paged_rows *r, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    const kvd_selection_shadow x = shadow_of(e, r->layer, 0);
    const size_t angles =
        kvd_batch_rope_layer(c->config, c->max_len, r->layer) * ((size_t)c->config->d_head / 2);
    const kvd_latent_restore_args a = {
        .n = (int32_t)(r->steps * e->kv),
        .max_pages = to->row_pages,
        .n_kv_heads = 1,
        .d_head = c->config->d_head,
        .max_rank = x.rank,
        .kv_len = to->len,
        .page_table = to->table,
        .position = x.position,
        .slot = x.matrix,
        .matrix_slot = (size_t)(c->config->d_head * x.rank),
        .head = e->shadow.head,
        .latents = x.gathered,
        .matrix = e->shadow.basis + index_of(e, r->layer) * e->shadow.wide * (size_t)x.rank,
        .latent_page = (size_t)(KVD_PAGE_TOKENS * x.rank),
        .page = (size_t)e->one.page_elements,
        .cosine = c->cosine ? c->cosine + angles : NULL,
        .sine = c->sine ? c->sine + angles : NULL,
        .interleaved = c->config->rope_layout == KVD_ROPE_INTERLEAVED,
        .pages = to->rows,
        .n_sms = c->n_sms};
    return kvd_status(
        kvd_cuda_check(kvd_selection_choose_landmarks(s, &x, to, r->stream), what, err) ||
        kvd_clock_end(c->clock, KVD_PHASE_COMPRESS, r->stream, err) ||
        kvd_cuda_check(kvd_latent_restore(&a, r->stream), "keys from latents", err) ||
        kvd_clock_end(c->clock, KVD_PHASE_RESTORE, r->stream, err));
}

/* Returns for how many tokens of a request the keys are stored as latent vectors. */
static size_t in_low_rank(const selection *e, size_t slot)
{
    const kvd_selection_marks m = kvd_selection_marks_of(&e->rule, e->shadow.prompt[slot]);
    return (m.all - m.outliers) * e->rule.page;
}

static size_t unread_of(const selection *e, size_t slot)
{
    const size_t n = e->held[slot];
    return n ? n - kvd_selection_marked(&e->rule, e->shadow.prompt[slot], n) : 0;
}

/* Returns how many bits a request takes in the cache, including the singular vectors of its
 * keys. */
static double shadow_bits(const kvd_gpu_method *m, size_t slot)
{
    const selection *const e = (const selection *)m;
    const size_t n = e->held[slot], wide = e->shadow.wide, kept = e->shadow.kept,
                 low = n ? in_low_rank(e, slot) : 0;
    return n ? 16.0 * (double)e->layers *
                   ((double)(low * kept) + (double)((n - low) * wide) + (double)(n * wide) +
                    (double)(wide * kept))
             : 0;
}

/* Returns minus the number of bits that low-rank keys save for tokens that a decode step does not
 * read. */
static double shadow_unseen(const kvd_gpu_method *m, size_t slot)
{
    const selection *const e = (const selection *)m;
    return -16.0 * (double)(e->layers * unread_of(e, slot)) *
           ((double)e->shadow.wide - (double)e->shadow.kept);
}

static void shadow_reads(const kvd_gpu_method *m, size_t slot, double *side, double *unread)
{
    const selection *const e = (const selection *)m;
    *side = e->held[slot] ? 16.0 * (double)(e->layers * in_low_rank(e, slot) / e->rule.page) *
                                (double)e->shadow.wide
                          : 0;
    *unread = (double)unread_of(e, slot);
}

/* Returns the device bytes of V, exact keys, latent vectors of keys and singular vectors. */
static double shadow_held(const kvd_gpu_method *m)
{
    const selection *const e = (const selection *)m;
    const double wide = 2.0 * (double)e->shadow.wide, rank = (double)e->shadow.of.rank;
    double bytes = 0;
    for (size_t s = 0; s < e->n_slots; s++) {
        const double n = (double)e->held[s], prompt = (double)e->shadow.prompt[s];
        if (n > 0)
            bytes += (2 * n - (double)in_low_rank(e, s)) * wide +
                     prompt * (2 * rank + (double)e->side / KVD_PAGE_TOKENS) + wide * rank;
    }
    return (double)e->layers * bytes;
}

static int make_tables(selection *e, kvd_err *err)
{
    const int32_t rank = e->shadow.of.rank;
    kvd_device_memory *const m = &e->memory;
    const kvd_latent_head head = {.matrix = {0, -1}, .rank = {rank, 0}};
    int32_t *const run = malloc((size_t)rank / 8 * sizeof *run);
    if (!run)
        return kvd_no_memory(err, what, (size_t)rank / 8 * sizeof *run);
    for (int32_t i = 0; i < rank / 8; i++)
        run[i] = 8 * i * KVD_PAGE_TOKENS;
    const size_t bytes = (size_t)rank / 8 * sizeof *run;
    const int status = !(e->shadow.head = kvd_device_new(m, sizeof head, what, err)) ||
                       kvd_device_put(e->shadow.head, &head, sizeof head, what, err) ||
                       !(e->shadow.run = kvd_device_new(m, bytes, what, err)) ||
                       kvd_device_put(e->shadow.run, run, bytes, what, err);
    free(run);
    return status ? -1 : 0;
}

int kvd_selection_shadow_work(selection *e, kvd_err *err)
{
    const kvd_paged_cache *const c = e->method.cache;
    kvd_device_memory *const m = &e->memory;
    kvd_selection_shadow *const x = &e->shadow.of;
    const size_t wide = e->shadow.wide, rank = (size_t)x->rank,
                 tokens = e->rows * e->row_pages * KVD_PAGE_TOKENS,
                 captured = c->batch->max_slices * e->layers * sizeof *e->shadow.captured;
    if (!(x->gathered = kvd_device_new(m, tokens * rank * sizeof *x->gathered, what, err)) ||
        !(x->position = kvd_device_new(m, tokens * sizeof *x->position, what, err)) ||
        !(x->matrix = kvd_device_new(m, e->rows * sizeof *x->matrix, what, err)) ||
        kvd_device_zero(x->position, tokens * sizeof *x->position, what, err) ||
        kvd_device_zero(x->matrix, e->rows * sizeof *x->matrix, what, err) ||
        !(e->shadow.rows =
              kvd_device_new(m, c->batch->max_tokens * rank * sizeof *e->shadow.rows, what, err)) ||
        !(e->shadow.captured = kvd_pinned_new(captured, what, err)))
        return -1;
    return make_tables(e, err) ||
                   kvd_latent_span_make(&e->shadow.span, c->worker, c->batch->max_tokens, wide,
                                        e->shadow.kept, m, err)
               ? -1
               : 0;
}

int kvd_selection_shadow_describe(selection *e, kvd_err *err)
{
    kvd_paged_cache *const c = e->method.cache;
    const kvd_config *const m = c->config;
    const size_t wide = e->kv * (size_t)m->d_head, rank = (size_t)e->rule.rank,
                 kept = rank < wide ? rank : wide;
    const bool partial =
        m->rope_dims && m->rope_dims < m->d_head && m->rope_layout != KVD_ROPE_INTERLEAVED;
    if (e->rule.page == KVD_PAGE_TOKENS)
        return kvd_fail(err,
                        "shadowkv,chunk=%zu: the CUDA engine takes chunks of 1, 2, 4, 8, 16 or 32 "
                        "tokens",
                        e->rule.page);
    if (e->rule.outliers > 254)
        return kvd_fail(err, "shadowkv,outliers=%d: the CUDA engine takes up to 254 outliers",
                        e->rule.outliers);
    if (kept > 768)
        return kvd_fail(err, "shadowkv,rank=%zu: the CUDA engine has keys of rank up to 768", kept);
    if (partial)
        return kvd_fail(err, "'shadowkv' in a model with partial RoPE: the CUDA engine does not "
                             "run it");
    c->hook.wants_pre = !c->hook.wants_raw;
    e->shadow.wide = wide;
    e->shadow.kept = kept;
    e->shadow.of.rank = (int32_t)((kept + 15) / 16 * 16);
    e->shadow.of.side = e->side;
    e->shadow.of.n_layers = (int32_t)e->layers;
    const size_t latent = (size_t)e->shadow.of.rank * sizeof(uint16_t);
    e->method.one_layer = true;
    e->method.whole_prompts = true;
    e->method.anywhere = false;
    e->method.page_bytes +=
        e->layers * (KVD_PAGE_TOKENS * latent + 2 * side_page(e) * sizeof(uint16_t));
    e->method.slot_bytes = e->layers * (wide * latent + slot_outliers(e) * sizeof(uint16_t));
    e->method.begin = begin_shadow;
    e->method.attended = compress;
    e->method.bits = shadow_bits;
    e->method.unseen = shadow_unseen;
    e->method.reads = shadow_reads;
    e->method.held = shadow_held;
    return 0;
}

int kvd_selection_shadow_make(selection *e, kvd_err *err)
{
    kvd_device_memory *const m = &e->memory;
    const size_t rank = (size_t)e->shadow.of.rank,
                 basis = e->n_slots * e->layers * e->shadow.wide * rank,
                 latents = e->layers * e->pool_pages * KVD_PAGE_TOKENS * rank,
                 rows = e->layers * e->pool_pages * side_page(e) * sizeof(uint16_t),
                 outliers = e->layers * e->n_slots * slot_outliers(e) * sizeof(uint16_t);
    if (!(e->shadow.prompt = calloc(e->n_slots, sizeof *e->shadow.prompt)))
        return kvd_no_memory(err, what, e->n_slots * sizeof *e->shadow.prompt);
    if (kvd_pages_init(&e->shadow.tail, e->pool_pages, e->n_slots,
                       e->method.cache->batch->max_slices, e->max_pages, err) ||
        !(e->shadow.values = kvd_device_new(m, rows, "values", err)) ||
        !(e->shadow.keys = kvd_device_new(m, rows, "exact keys", err)) ||
        !(e->shadow.outliers = kvd_device_new(m, outliers, "exact keys", err)))
        return -1;
    return (e->shadow.of.prompt =
                kvd_device_new(m, e->n_slots * sizeof *e->shadow.of.prompt, what, err)) &&
                   !kvd_device_zero(e->shadow.of.prompt, e->n_slots * sizeof *e->shadow.of.prompt,
                                    what, err) &&
                   (e->shadow.basis =
                        kvd_device_new(m, basis * sizeof *e->shadow.basis, "bases of keys", err)) &&
                   !kvd_device_zero(e->shadow.basis, basis * sizeof *e->shadow.basis, what, err) &&
                   (e->shadow.latents = kvd_device_new(m, latents * sizeof *e->shadow.latents,
                                                       "latents of keys", err)) &&
                   !kvd_device_zero(e->shadow.latents, latents * sizeof *e->shadow.latents, what,
                                    err)
               ? 0
               : -1;
}

void kvd_selection_shadow_free(selection *e)
{
    (void)cudaFreeHost(e->shadow.captured);
    kvd_pages_release(&e->shadow.tail);
    free(e->shadow.prompt);
}
