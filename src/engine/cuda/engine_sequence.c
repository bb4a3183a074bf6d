/* Sequence-parallel engine: GPUs divide the tokens of a prompt (DeepSpeed-Ulysses).
 *
 * Each GPU computes Q, K and V of its part of the tokens. After an exchange, it computes the
 * attention of its part of the heads for all tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "engine/cuda/sequence.h"
#include "engine/cuda/small.h"
#include "methods/cuda/fold.h"

static const char what[] = "sequence parallel engine";

/* Describes n tokens of a prompt as a batch of one request. The last token has position len - 1. */
static void list(kvd_step_batch *b, const uint32_t *id, size_t n, size_t len)
{
    b->n_slices = 1;
    b->n_steps = 0;
    b->n_tokens = n;
    b->n_q8 = kvd_sequence_rows(n);
    b->no_gaps = 1;
    b->host.kv_len[0] = b->host.seq_len[0] = (int32_t)len;
    b->host.q_len[0] = (int32_t)n;
    b->host.start[0] = b->host.q_start[0] = b->host.slot[0] = 0;
    b->host.last[0] = (int32_t)n - 1;
    for (size_t t = 0; t < n; t++) {
        b->host.id[t] = id[len - n + t];
        b->host.at[t] = (uint32_t)(len - n + t);
    }
}

static int run_hook(kvd_gpu_attention *self, const kvd_gpu_attention_in *in, void *out,
                    kvd_err *err)
{
    return kvd_sequence_attend((kvd_sequence_rank *)self, in->layer, in, out, err);
}

static int run_layers(kvd_sequence_rank *r, kvd_err *err)
{
    kvd_cuda_engine *const e = r->slice;
    const size_t offset[2] = {0, r->n};
    const kvd_batch b = {.n_sequences = 1, .offset = offset};
    kvd_cuda_layers_begin(e, e->batch.device.id, e->batch.device.at);
    if (r->n && kvd_gpu_embedding(&e->w, r->n, err))
        return -1;
    for (int l = 0; l < e->w.config.n_layers; l++)
        if (r->n ? kvd_gpu_layer_run(&e->w, &b, l, &r->hook, 0, err)
                 : kvd_sequence_attend(r, l, NULL, NULL, err))
            return -1;
    return 0;
}

static int queue(kvd_sequence_rank *r, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    kvd_cuda_engine *const e = r->slice;
    const cudaStream_t s = e->w.stream;
    const size_t n_out = r == kvd_sequence_last(q);
    kvd_paged_cache_begin(&r->own);
    if ((r->n && kvd_step_batch_upload(&e->batch, s, err)) ||
        kvd_step_batch_upload(&r->batch, s, err) || kvd_clock_start(&e->clock, s, err) ||
        kvd_cuda_check(cudaMemsetAsync(e->w.bad, 0xff, sizeof *e->w.bad, s), what, err) ||
        run_layers(r, err))
        return -1;
    if (n_out && (kvd_cuda_check(kvd_gather_rows(e->w.x, e->batch.device.last, 1,
                                                 (size_t)e->w.config.d_model, e->rows, s),
                                 what, err) ||
                  kvd_cuda_tokens(e, e->rows, 1, err)))
        return -1;
    return kvd_cuda_fetch(e, n_out, err);
}

static int run(void *ctx, int gpu, kvd_err *err)
{
    const kvd_sequence *const q = ctx;
    kvd_sequence_rank *const r = &q->rank[gpu];
    kvd_err second;
    if (kvd_cuda_check(cudaSetDevice(r->slice->device), what, err))
        return -1;
    r->first = kvd_sequence_first(q, gpu);
    r->n = kvd_sequence_tokens(q, gpu);
    r->sent[0] = r->sent[1] = 0;
    r->slice_pages.device = r->pages + q->max_pages - kvd_sequence_first_page(q, gpu);
    list(&r->slice->batch, q->id, r->n, r->first + r->n);
    list(&r->batch, q->id, q->len, q->len);
    const int status = queue(r, err);
    if (status)
        kvd_gpu_sum_fail(q->sum, gpu);
    return kvd_status(kvd_gpu_sum_wait(q->sum, gpu, r->slice->w.stream, status ? &second : err) ||
                      status);
}

static int check_iteration(const kvd_sequence *q, const kvd_iteration *it, const uint32_t *id,
                           kvd_err *err)
{
    const kvd_slice *const s = it->slice;
    if (it->n_steps || it->n_slices != 1 || s->before || !s->emits || s->n != it->n_tokens ||
        s->n < 1 || s->n > q->max_pages * KVD_PAGE_TOKENS)
        return kvd_fail(
            err, "the sequence parallel engine takes whole prompts alone, of up to %zu tokens",
            q->max_pages * KVD_PAGE_TOKENS);
    const uint32_t vocab = (uint32_t)kvd_checkpoint_config(q->checkpoint)->vocab_size;
    for (size_t t = 0; t < s->n; t++)
        if (id[t] >= vocab)
            return kvd_fail(err, "token %zu of the iteration has id %u, the vocabulary has %u", t,
                            id[t], vocab);
    return 0;
}

static int check_finite(const kvd_sequence *q, const kvd_iteration *it, kvd_err *err)
{
    const kvd_config *const c = &q->rank[0].slice->w.config;
    kvd_gpu_bad first = ~0ULL;
    char where[32];
    for (int g = 0; g < q->n; g++) {
        const kvd_sequence_rank *const r = &q->rank[g];
        const kvd_gpu_bad bad = *r->slice->host_bad;
        const unsigned stage = (unsigned)(bad >> 40);
        const size_t row = stage >= kvd_gpu_stage_before(c->n_layers) && r == kvd_sequence_last(q)
                               ? q->len - 1
                               : r->first + (size_t)(bad & ((1ULL << 40) - 1));
        if (bad != ~0ULL && kvd_gpu_bad_at(stage, row) < first)
            first = kvd_gpu_bad_at(stage, row);
    }
    if (first == ~0ULL)
        return 0;
    kvd_gpu_stage_name(c, (unsigned)(first >> 40), where, sizeof where);
    return kvd_fail(err, "'%s': %s: activation of request %u at position %zu is not finite",
                    c->path, where, it->slice->request, (size_t)(first & ((1ULL << 40) - 1)));
}

static int step(kvd_engine *self, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err)
{
    kvd_sequence *const q = (kvd_sequence *)self;
    const double start = kvd_clock_s();
    if (q->failed)
        return kvd_fail(err, "the engine has failed before");
    q->failed = 1;
    if (check_iteration(q, it, id, err))
        return -1;
    q->id = id;
    q->len = it->n_tokens;
    if (kvd_gpu_threads_run(q->gpu_threads, run, q, err) || check_finite(q, it, err))
        return -1;
    for (int g = 0; g < q->n; g++)
        if (q->rank[g].own.method && q->rank[g].own.method->ended(q->rank[g].own.method, it, err))
            return -1;
    q->failed = 0;
    next[0] = kvd_largest_index(*kvd_sequence_last(q)->slice->host_key);
    if (times)
        kvd_clock_read(&kvd_sequence_last(q)->slice->clock, kvd_clock_s() - start, times);
    return 0;
}

static int logits(kvd_engine *self, size_t i, float *to, kvd_err *err)
{
    const kvd_cuda_engine *const e = kvd_sequence_last((kvd_sequence *)self)->slice;
    const size_t vocab = (size_t)e->w.config.vocab_size;
    return i ? kvd_fail(err, "slice %zu of the latest iteration gives out no token", i)
             : kvd_cuda_check(cudaMemcpy(to, e->logits, vocab * sizeof *to, cudaMemcpyDeviceToHost),
                              what, err);
}

static double held(const kvd_engine *self)
{
    const kvd_sequence *const q = (const kvd_sequence *)self;
    double bytes = 0;
    for (int g = 0; g < q->n; g++)
        bytes += q->rank[g].own.method->held(q->rank[g].own.method);
    return bytes;
}

static void sent(const kvd_engine *self, double bytes[2])
{
    const kvd_sequence *const q = (const kvd_sequence *)self;
    bytes[0] = bytes[1] = 0;
    for (int g = 0; g < q->n; g++)
        for (int kind = 0; kind < 2; kind++)
            bytes[kind] += q->rank[g].sent[kind];
}

/* Fails if the compression method chooses important tokens in each layer separately, instead of
 * once for several layers. */
static int check_sets(const kvd_plan *plan, kvd_err *err)
{
    return plan->tokens && kvd_tokens_layers(&plan->tokens_values) < 2
               ? kvd_fail(
                     err,
                     "'%s' among several GPUs: how many layers share sets must be known before, give "
                     "layers=N",
                     plan->tokens->info.name)
               : 0;
}

static int check_limits(const kvd_batching_limits *l, kvd_err *err)
{
    return l->max_batch == 1 && !l->chunk
               ? 0
               : kvd_fail(
                     err,
                     "the sequence parallel engine takes whole prompts one at a time, not %zu%s",
                     l->max_batch, l->chunk ? ", and not in pieces" : "");
}

static int check_model(const kvd_config *c, size_t max_len, kvd_err *err)
{
    if (c->sinks)
        return kvd_fail(err,
                        "a %s model has attention sinks, which the sequence parallel engine "
                        "does not compute",
                        c->family);
    for (int l = 0; l < c->n_layers; l++)
        if (kvd_paged_cache_window(c, max_len, l))
            return kvd_fail(err,
                            "layer %d has a window of %zu tokens, prompts have up to %zu: the "
                            "sequence parallel engine knows no window",
                            l, kvd_paged_cache_window(c, max_len, l), max_len);
    return 0;
}

static int load_slice(kvd_sequence_rank *r, size_t tokens, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    kvd_cuda_engine *const e = r->slice;
    const kvd_gpu_forward_spec pass = {.type = e->spec.type,
                                       .first_gpu = e->device,
                                       .n_gpus = 1,
                                       .max_tokens = tokens,
                                       .max_len = e->spec.max_len,
                                       .steps = 1,
                                       .resident = true};
    kvd_gpu_share all;
    if (kvd_gpu_share_of(kvd_checkpoint_config(q->checkpoint), KVD_GPU_SERVING, 0, 1, &all, err) ||
        kvd_gpu_worker_open(&e->w, q->checkpoint, &pass, &all, false, err) ||
        kvd_step_batch_init(&e->batch, 1, tokens, err) ||
        kvd_clock_init(&e->clock, e->spec.phases, 64 + 21 * (size_t)e->w.config.n_layers, err))
        return -1;
    r->slice_pages.max_pages = r->own_pages.max_pages = q->max_pages;
    if (kvd_paged_cache_init(&e->cache, &e->w, q->plan, &e->batch, &r->slice_pages, NULL, &e->clock,
                             err))
        return -1;
    r->hook = (kvd_gpu_attention){.run = run_hook, .wants_raw = e->cache.hook.wants_raw};
    return kvd_gpu_fold(&e->w, q->plan->dims, e->cache.layer, err);
}

static int load_share(kvd_sequence_rank *r, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    kvd_cuda_engine *const e = r->slice;
    r->of_share = e->w;
    return kvd_status(kvd_gpu_share_of(&e->w.config, KVD_GPU_SERVING, r->gpu, q->n,
                                       &r->of_share.weights.share, err) ||
                      kvd_step_batch_init(&r->batch, 1, q->max_pages * KVD_PAGE_TOKENS, err) ||
                      kvd_paged_cache_init(&r->own, &r->of_share, q->plan, &r->batch, &r->own_pages,
                                           NULL, &e->clock, err));
}

/* Makes two page tables in one array. One table maps page j of the prompt to j. The other table
 * maps it to j - f, where f is the first page of this GPU's part of the prompt. */
static int make_tables(kvd_sequence_rank *r, kvd_err *err)
{
    const size_t n = r->all->max_pages;
    int32_t *const host = malloc(2 * n * sizeof *host);
    if (!host)
        return kvd_no_memory(err, what, 2 * n * sizeof *host);
    for (size_t i = 0; i < 2 * n; i++)
        host[i] = (int32_t)i - (int32_t)n;
    r->pages = kvd_device_from(&r->slice->memory, host, 2 * n * sizeof *host, "page tables", err);
    free(host);
    r->own_pages.device = r->pages + n;
    return r->slice->memory.status;
}

static int make_arrays(kvd_sequence_rank *r, size_t tokens, kvd_err *err)
{
    kvd_cuda_engine *const e = r->slice;
    kvd_device_memory *const m = &e->memory;
    const kvd_config *const c = &e->w.config;
    const size_t pieces = 2 * (size_t)r->all->n;
    size_t page = 0, rows = 0;
    for (int l = 0; l < c->n_layers; l++) {
        const kvd_attn_map *const all = &e->cache.layer[l].map, *const own = &r->own.layer[l].map;
        page = kvd_larger(page, (size_t)all->page_elements * sizeof(uint16_t));
        rows = kvd_larger(rows, tokens * (size_t)all->o_pitch * sizeof(uint16_t));
        rows = kvd_larger(rows, r->batch.max_tokens * (size_t)own->q_pitch * sizeof(uint16_t));
    }
    r->out = kvd_device_host(m, pieces * sizeof *r->out, what, err);
    r->in = kvd_device_host(m, pieces * sizeof *r->in, what, err);
    const size_t pages = tokens / KVD_PAGE_TOKENS * page;
    e->cache.pool = kvd_device_new(m, pages, "pages of a slice", err);
    r->out_pages = kvd_device_new(m, pages, "pages of a slice", err);
    r->in_rows = kvd_device_new(m, rows, "rows of attention", err);
    e->rows = kvd_device_new(m, (size_t)c->d_model * sizeof *e->rows, "rows", err);
    e->logits = kvd_device_new(m, (size_t)c->vocab_size * sizeof *e->logits, "logits", err);
    e->key = kvd_device_new(m, sizeof *e->key, "tokens", err);
    e->host_key = kvd_device_pinned(m, sizeof *e->host_key, what, err);
    e->host_bad = kvd_device_pinned(m, sizeof *e->host_bad, what, err);
    return m->status;
}

static int describe(kvd_sequence_rank *r, kvd_err *err)
{
    size_t left = 0, total = 0;
    kvd_engine_facts *const f = &r->all->engine.facts;
    if (kvd_cuda_check(cudaStreamSynchronize(r->slice->w.stream), what, err) ||
        kvd_cuda_check(cudaMemGetInfo(&left, &total), what, err))
        return -1;
    f->pages = r->all->max_pages;
    const size_t page = r->own.method ? r->own.method->page_bytes : r->own.page_bytes;
    f->bytes_per_token += (double)page / KVD_PAGE_TOKENS;
    f->cache_bytes += (double)page * (double)r->all->max_pages;
    f->weight_bytes += (double)r->slice->w.weights.bytes;
    f->peak_bytes += r->slice->left_before > left ? (double)(r->slice->left_before - left) : 0;
    return 0;
}

static int load(kvd_sequence_rank *r, kvd_err *err)
{
    const kvd_sequence *const q = r->all;
    const size_t tokens =
        kvd_rounded_up(q->max_pages, (size_t)q->n) / (size_t)q->n * KVD_PAGE_TOKENS;
    return kvd_status(
        kvd_cuda_check(cudaSetDevice(r->slice->device), what, err) || load_slice(r, tokens, err) ||
        load_share(r, err) || make_tables(r, err) || make_arrays(r, tokens, err) ||
        kvd_sequence_sets_make(r, err) ||
        kvd_paged_cache_make_pool(&r->own, q->max_pages, 0, 1, r->slice->w.stream, err) ||
        describe(r, err));
}

static int connect(void *ctx, int gpu, kvd_err *err)
{
    const kvd_sequence *const q = ctx;
    return kvd_status(kvd_cuda_check(cudaSetDevice(q->rank[gpu].slice->device), what, err) ||
                      kvd_sequence_connect(&q->rank[gpu], err));
}

static int name_engine(kvd_sequence *q, kvd_err *err)
{
    struct cudaDeviceProp prop;
    int version = 0;
    const kvd_cuda_engine *const e = q->rank[0].slice;
    kvd_engine_facts *const f = &q->engine.facts;
    if (kvd_cuda_check(cudaGetDeviceProperties(&prop, e->device), what, err) ||
        kvd_cublas_check(e->w.lib->cublasGetVersion_v2(e->w.blas, &version), what, err))
        return -1;
    f->fused = 1u << KVD_PHASE_ROTATE | (e->cache.hook.wants_raw ? 1u << KVD_PHASE_ROPE : 0);
    (void)snprintf(f->what, sizeof f->what,
                   "%d x %.100s, prompts cut along tokens, bf16, cuBLAS %d.%d.%d, %s, %s", q->n,
                   prop.name, version / 10000, version / 100 % 100, version % 100,
                   kvd_paged_cache_kernels(&e->cache), kvd_gpu_sum_engine(q->sum));
    return 0;
}

static int open_all(kvd_sequence *q, const kvd_engine_spec *s, kvd_err *err)
{
    const kvd_config *const c = kvd_checkpoint_config(q->checkpoint);
    kvd_gpu_share share;
    if (kvd_cuda_engine_check_several(q->plan, s, err) || check_sets(q->plan, err) ||
        check_limits(&s->limits, err) || kvd_cuda_engine_check(c, s, s->max_len, err) ||
        check_model(c, s->max_len, err) ||
        kvd_batch_limits(q->checkpoint, s->max_len, s->max_len, err) ||
        kvd_gpu_share_of(c, KVD_GPU_SERVING, 0, s->n_gpus, &share, err))
        return -1;
    if (!(q->rank = calloc((size_t)s->n_gpus, sizeof *q->rank)))
        return kvd_no_memory(err, what, (size_t)s->n_gpus * sizeof *q->rank);
    q->max_pages = kvd_pages_of(s->max_len);
    for (; q->n < s->n_gpus; q->n++) {
        q->rank[q->n] =
            (kvd_sequence_rank){.all = q, .gpu = q->n, .slice = kvd_cuda_engine_new(s, q->n, err)};
        if (!q->rank[q->n].slice)
            return -1;
    }
    if (!(q->sum = kvd_gpu_sum_new(s->first_gpu, s->n_gpus, err)) ||
        !(q->gpu_threads = kvd_gpu_threads_new(s->first_gpu, s->n_gpus, q->sum, err)))
        return -1;
    for (int g = 0; g < q->n; g++)
        if (load(&q->rank[g], err))
            return -1;
    return kvd_gpu_threads_run(q->gpu_threads, connect, q, err) ? -1 : name_engine(q, err);
}

static void free_sequence(kvd_engine *self)
{
    kvd_sequence *const q = (kvd_sequence *)self;
    kvd_gpu_threads_free(q->gpu_threads);
    kvd_gpu_sum_free(q->sum);
    for (int g = q->n - 1; g >= 0; g--) {
        kvd_sequence_rank *const r = &q->rank[g];
        (void)cudaSetDevice(r->slice->device);
        kvd_paged_cache_release(&r->own);
        kvd_step_batch_release(&r->batch);
        kvd_cuda_engine_free((kvd_engine *)r->slice);
    }
    free(q->rank);
    free(q);
}

kvd_engine *kvd_engine_open_sequence(const kvd_checkpoint *c, const kvd_plan *plan,
                                     const kvd_engine_spec *s, kvd_err *err)
{
    kvd_sequence *const q = kvd_new(1, sizeof *q, what, err);
    if (!q)
        return NULL;
    q->engine = (kvd_engine){.step = step, .sent = sent, .logits = logits, .free = free_sequence};
    q->checkpoint = c;
    q->plan = plan;
    if (open_all(q, s, err)) {
        free_sequence(&q->engine);
        return NULL;
    }
    q->engine.held = q->rank[0].own.method ? held : NULL;
    return &q->engine;
}
