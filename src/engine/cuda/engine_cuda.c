/* Inference engine for one GPU. If several GPUs compute each layer together, each GPU has such an
 * engine. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/clock.h"
#include "engine/cuda/engine_parts.h"
#include "engine/cuda/small.h"
#include "methods/cuda/fold.h"
#include "model/pass/batch.h"

static const char what[] = "serving engine";

enum { STEP_ROWS = 8 /* larger decode batches are padded to multiples of 8 */ };

static size_t filled_up(size_t n)
{
    return n <= STEP_ROWS ? n : kvd_rounded_up(n, STEP_ROWS);
}

/* Returns the first position to which the token at `position` attends in layers with a sliding
 * window. */
static size_t first_near(const kvd_cuda_engine *e, size_t position)
{
    return position + 1 > e->cache.window ? position + 1 - e->cache.window : 0;
}

static int hold_pages(kvd_cuda_engine *e, const kvd_iteration *it, kvd_err *err)
{
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        if (kvd_pages_hold(&e->pages, s->slot, kvd_cuda_entries(e, s) + kvd_cuda_rows(e, it, i),
                           s->before == 0, err))
            return -1;
        kvd_pages_row(&e->pages, i, s->slot);
        if (!e->cache.window)
            continue;
        if (kvd_pages_hold_from(&e->near, s->slot, first_near(e, s->before),
                                s->before + kvd_cuda_rows(e, it, i), s->before == 0, err))
            return kvd_in(err, "layers with a window");
        kvd_pages_row(&e->near, i, s->slot);
    }
    return 0;
}

static int upload_pages(kvd_cuda_engine *e, kvd_err *err)
{
    return kvd_status(kvd_pages_upload(&e->pages, e->w.stream, err) ||
                      (e->cache.window && kvd_pages_upload(&e->near, e->w.stream, err)));
}

static void leave_window(kvd_cuda_engine *e, const kvd_iteration *it)
{
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        kvd_pages_pass(&e->near, s->slot, first_near(e, (size_t)s->before + s->n));
        /* If the prompt was read twice, keeps only the cache pages for one prompt and one more
         * token. */
        if (kvd_cuda_rows(e, it, i) > s->n)
            kvd_pages_keep(&e->near, s->slot, (size_t)s->before + s->n + 1);
    }
    const kvd_gpu_method *const m = e->cache.method;
    e->held = m && !m->skips_windows
                  ? 0
                  : (double)(e->near.n_pages - e->near.n_free) * (double)e->cache.near_page_bytes;
    if (!m)
        e->held += (double)(e->pages.n_pages - e->pages.n_free) * (double)e->cache.page_bytes;
}

/* Fills up a decode batch with dummy requests, from index `from` to below `to`. Their K and V go to
 * a page that belongs to no request. */
static void fill_up(kvd_cuda_engine *e, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++) {
        e->batch.host.kv_len[i] = e->batch.host.seq_len[i] = 1;
        e->batch.host.step_id[i] = e->batch.host.step_at[i] = 0;
        e->batch.host.slot[i] = (int32_t)e->spec.limits.max_batch;
        kvd_pages_row_idle(&e->pages, i);
        if (e->cache.window)
            kvd_pages_row_idle(&e->near, i);
    }
}

/* Copies to the GPU the lists that say which CTA computes which part of the attention of n decoding
 * requests. */
static int describe(kvd_cuda_engine *e, size_t n, kvd_err *err)
{
    if (n == 0 || e->described == n)
        return 0;
    if (kvd_paged_cache_describe(&e->cache, n, e->host_works, err) ||
        kvd_queue_put(e->works, e->host_works, kvd_paged_cache_works_bytes(&e->cache), e->w.stream,
                      what, err))
        return -1;
    e->described = n;
    return 0;
}

static int run_steps(kvd_cuda_engine *e, size_t n, kvd_err *err)
{
    const size_t rows = filled_up(n);
    e->batch.n_steps = e->batch.n_slices = e->batch.n_tokens = rows;
    fill_up(e, n, rows);
    if (upload_pages(e, err) || kvd_step_batch_upload_steps(&e->batch, e->w.stream, err))
        return -1;
    if (e->spec.graphs)
        return kvd_cuda_steps_replay(e, rows, err);
    return describe(e, rows, err) || kvd_cuda_steps(e, rows, e->works, err) ? -1 : 0;
}

static int run_mixed(kvd_cuda_engine *e, kvd_err *err)
{
    kvd_step_batch *const b = &e->batch;
    const cudaStream_t s = e->w.stream;
    kvd_paged_cache_begin(&e->cache);
    if (upload_pages(e, err) || kvd_step_batch_upload(b, s, err) || describe(e, b->n_steps, err) ||
        kvd_clock_start(&e->clock, s, err) ||
        kvd_cuda_check(cudaMemsetAsync(e->w.bad, 0xff, sizeof *e->w.bad, s), what, err) ||
        (b->n_steps && (kvd_paged_cache_plan(&e->cache, b->n_steps, e->works, s, err) ||
                        kvd_clock_end(&e->clock, KVD_PHASE_SCHEDULE, s, err))) ||
        kvd_cuda_layers(e, b->device.id, b->device.at, b->n_tokens, err))
        return -1;
    if (e->n_emit && kvd_cuda_has_head(e) &&
        (kvd_cuda_check(kvd_gather_rows(e->w.x, b->device.last, e->n_emit,
                                        (size_t)e->w.config.d_model, e->rows, s),
                        what, err) ||
         kvd_cuda_tokens(e, e->rows, e->n_emit, err)))
        return -1;
    return kvd_cuda_fetch(e, e->n_emit, err);
}

/* Waits for the GPU. A nonzero `status` says that queueing its work failed, and that *err already
 * contains the message. */
static int wait_for(kvd_cuda_engine *e, int status, kvd_err *err)
{
    kvd_err second = {""}, *const to = status ? &second : err;
    const int index = e->w.weights.share.index;
    if (!e->w.sum)
        return kvd_cuda_check(cudaStreamSynchronize(e->w.stream), what, to) || status ? -1 : 0;
    if (status)
        kvd_gpu_sum_fail(e->w.sum, index);
    return kvd_gpu_sum_wait(e->w.sum, index, e->w.stream, to) || status ? -1 : 0;
}

int kvd_cuda_engine_run(kvd_cuda_engine *e, const kvd_iteration *it, const uint32_t *id,
                        kvd_err *err)
{
    kvd_gpu_method *const m = e->cache.method;
    if (kvd_cuda_check(cudaSetDevice(e->device), what, err) ||
        kvd_cuda_check_iteration(e, it, id, err) || (m && kvd_gpu_method_begin(m, it, err)) ||
        hold_pages(e, it, err))
        return -1;
    kvd_cuda_list_slices(e, it, id);
    return wait_for(
        e, kvd_cuda_only_steps(e, it) ? run_steps(e, it->n_slices, err) : run_mixed(e, err), err);
}

static void give_back(kvd_cuda_engine *e, size_t slot)
{
    kvd_pages_give_back(&e->pages, slot);
    if (e->cache.window)
        kvd_pages_give_back(&e->near, slot);
}

int kvd_cuda_engine_conclude(kvd_cuda_engine *e, const kvd_iteration *it, kvd_gpu_bad bad,
                             uint32_t *next, kvd_err *err)
{
    kvd_gpu_method *const m = e->cache.method;
    if (kvd_cuda_check_finite(e, it, bad, err) || (m && kvd_gpu_method_ended(m, it, err)))
        return -1;
    if (e->cache.window)
        leave_window(e, it);
    for (size_t i = 0; i < it->n_slices; i++) {
        if (next && e->emit[i] >= 0)
            next[i] = kvd_largest_index(e->host_key[e->emit[i]]);
        if (it->slice[i].last)
            give_back(e, it->slice[i].slot);
    }
    return 0;
}

static int step(kvd_engine *self, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err)
{
    kvd_cuda_engine *const e = (kvd_cuda_engine *)self;
    const double start = kvd_clock_s();
    if (e->failed)
        return kvd_fail(err, "the engine has failed before");
    if (kvd_cuda_engine_run(e, it, id, err) ||
        kvd_cuda_engine_conclude(e, it, *e->host_bad, next, err)) {
        e->failed = 1;
        return -1;
    }
    if (times)
        kvd_clock_read(&e->clock, kvd_clock_s() - start, times);
    return 0;
}

static int finish(kvd_engine *self, kvd_err *err)
{
    kvd_gpu_method *const m = ((kvd_cuda_engine *)self)->cache.method;
    return m ? kvd_gpu_method_finish(m, err) : 0;
}

bool kvd_cuda_engine_counts_held(const kvd_cuda_engine *e)
{
    const kvd_gpu_method *const m = e->cache.method;
    return e->cache.window || (m && (m->held || m->codes || m->kept));
}

double kvd_cuda_engine_held(const kvd_engine *self)
{
    const kvd_cuda_engine *const e = (const kvd_cuda_engine *)self;
    const kvd_gpu_method *const m = e->cache.method;
    return (e->cache.window ? e->held : 0) + (m ? kvd_gpu_method_held(m) : 0);
}

int kvd_cuda_engine_logits(kvd_engine *self, size_t i, float *to, kvd_err *err)
{
    const kvd_cuda_engine *const e = (const kvd_cuda_engine *)self;
    const size_t vocab = (size_t)e->w.config.vocab_size;
    if (i >= e->n_slices || e->emit[i] < 0)
        return kvd_fail(err, "slice %zu of the latest iteration gives out no token", i);
    return kvd_cuda_check(cudaMemcpy(to, e->logits + (size_t)e->emit[i] * vocab, vocab * sizeof *to,
                                     cudaMemcpyDeviceToHost),
                          what, err);
}

static void count(const kvd_engine *self, size_t slot, size_t tokens, kvd_engine_count *to)
{
    const kvd_paged_cache *const c = &((const kvd_cuda_engine *)self)->cache;
    const kvd_gpu_method *const m = c->method;
    *to = (kvd_engine_count){.bits = m ? kvd_gpu_method_bits(m, slot) : (double)NAN,
                             .unseen = m ? kvd_gpu_method_unseen(m, slot) : 0};
    to->entries = m && m->mean      ? m->mean(m, slot)
                  : m && m->entries ? (double)m->entries(m, slot, tokens)
                                    : (double)tokens;
    if (m && m->merged)
        to->merged = m->merged(m, slot);
    if (m && m->lowered)
        to->lowered = m->lowered(m, slot);
    if (m && m->pruned)
        to->pruned = m->pruned(m, slot);
    if (m && m->reads)
        m->reads(m, slot, &to->side, &to->unread);
}

static size_t lacking(const kvd_engine *self)
{
    const kvd_gpu_method *const m = ((const kvd_cuda_engine *)self)->cache.method;
    return m && m->lacking ? m->lacking(m) : 0;
}

void kvd_cuda_engine_drop(kvd_engine *self, size_t slot)
{
    kvd_cuda_engine *const e = (kvd_cuda_engine *)self;
    kvd_gpu_method *const m = e->cache.method;
    give_back(e, slot);
    if (m)
        kvd_gpu_method_drop(m, slot);
}

int kvd_cuda_engine_check_several(const kvd_plan *plan, const kvd_engine_spec *s, kvd_err *err)
{
    int devices = 0;
    const kvd_gpu_kind *const kind = kvd_gpu_kind_of(plan);
    if (kvd_cuda_check(cudaGetDeviceCount(&devices), what, err))
        return -1;
    if (s->n_gpus > KVD_GPUS_MAX || s->first_gpu < 0 || s->first_gpu > devices - s->n_gpus)
        return kvd_fail(err, "%d GPUs from number %d on were asked for, there are %d", s->n_gpus,
                        s->first_gpu, devices);
    if (!kvd_gpu_method_name(plan))
        return 0;
    const char *const joined = !s->sequence ? kvd_gpu_heads_joined(plan)
                               : kind && kind->shares_prompts
                                   ? NULL
                                   : "GPUs that divide the tokens of a prompt run methods with "
                                     "widths and zdc";
    return joined ? kvd_fail(err,
                             "the CUDA engine runs '%s' on one GPU, %d were asked for: %s; use "
                             "--gpus 1",
                             kvd_gpu_method_name(plan), s->n_gpus, joined)
                  : 0;
}

int kvd_cuda_engine_check(const kvd_config *c, const kvd_engine_spec *s, size_t positions,
                          kvd_err *err)
{
    const kvd_batching_limits *const l = &s->limits;
    if (s->type != KVD_BF16)
        return kvd_fail(err, "the CUDA engine runs in bf16, %s was asked for",
                        kvd_dtype_name(s->type));
    if (l->max_batch < 1 || l->max_batch > 4096 || s->max_len < 1 ||
        (!l->chunk && l->max_tokens < 1))
        return kvd_fail(
            err, "an engine for %zu requests of up to %zu tokens, %zu of prompts in an iteration",
            l->max_batch, s->max_len, l->chunk ? l->chunk : l->max_tokens);
    if (c->positions == KVD_POSITIONS_ROPE && c->rope_scaling == KVD_ROPE_LONGROPE &&
        positions > (size_t)c->rope_original_positions)
        return kvd_fail(
            err,
            "requests of up to %zu tokens: the CUDA engine turns keys once, and longrope turns those "
            "of more than %d tokens otherwise",
            positions, c->rope_original_positions);
    return 0;
}

/* Returns the largest number of tokens in an iteration, if the model reads each prompt `copies`
 * times. */
static size_t most_tokens(const kvd_engine_spec *s, size_t copies)
{
    const size_t prompts =
        s->limits.chunk ? s->limits.chunk : kvd_larger(s->limits.max_tokens, s->max_len);
    return kvd_larger(copies * prompts, filled_up(s->limits.max_batch));
}

/* Returns the largest number of positions that a request uses, if the model reads its prompt
 * `copies` times. */
static size_t most_positions(const kvd_config *c, size_t max_len, size_t copies)
{
    return kvd_smaller(copies * max_len, kvd_larger((size_t)c->max_positions, max_len));
}

static int make_arrays(kvd_cuda_engine *e, kvd_err *err)
{
    const size_t n = e->batch.max_slices, vocab = (size_t)e->w.config.vocab_size;
    const size_t works = kvd_paged_cache_works_bytes(&e->cache);
    kvd_device_memory *const m = &e->memory;
    e->emit = kvd_device_host(m, n * sizeof *e->emit, what, err);
    e->graph = kvd_device_host(m, (n + 1) * sizeof *e->graph, what, err);
    if (kvd_cuda_has_head(e))
        e->logits = kvd_device_new(m, n * vocab * sizeof *e->logits, "logits", err);
    e->rows = kvd_device_new(m, n * (size_t)e->w.config.d_model * sizeof *e->rows, "rows", err);
    e->key = kvd_device_new(m, n * sizeof *e->key, "tokens", err);
    e->works = kvd_device_new(m, works, "work lists", err);
    e->host_works = kvd_device_pinned(m, works, what, err);
    e->host_key = kvd_device_pinned(m, n * sizeof *e->host_key, what, err);
    e->host_bad = kvd_device_pinned(m, sizeof *e->host_bad, what, err);
    return m->status;
}

/* Returns how many pages every layer with a sliding window gets if other layers get `pages`
 * pages. */
static size_t near_pages(const kvd_cuda_engine *e, size_t pages)
{
    const size_t most = e->spec.limits.max_batch * e->near_share;
    const size_t share = e->spec.limits.pages ? pages
                                              : (pages * e->near_share + e->pages.max_pages - 1) /
                                                    e->pages.max_pages;
    return e->cache.window ? kvd_smaller(share, most) : 0;
}

/* Returns the bytes of a cache page, summed over the layers with a sliding window. */
static size_t near_page(const kvd_cuda_engine *e)
{
    const kvd_gpu_method *const m = e->cache.method;
    return e->cache.near_page_bytes + (m ? m->near_page_bytes : 0);
}

/* Returns how many cache pages fit into `bytes`, at most `useful`. Leaves room for the pages of
 * layers with a sliding window. `page`: bytes of one page, summed over the other layers. */
static size_t pages_in(const kvd_cuda_engine *e, size_t bytes, size_t page, size_t useful)
{
    /* Binary search: `low` pages fit into `bytes`; `above` pages do not fit, or exceed `useful`. */
    size_t low = 0, above = useful + 1;
    while (above - low > 1) {
        const size_t n = low + (above - low) / 2;
        const size_t near = near_pages(e, n) + e->near_spare + 1;
        if ((n + 1) * page + near * near_page(e) <= bytes)
            low = n;
        else
            above = n;
    }
    return low;
}

/* For layers with a sliding window, sets how many pages a request keeps (near_share), and how many
 * pages the new tokens of an iteration can add (near_spare). */
static void share_near(kvd_cuda_engine *e)
{
    const size_t window = e->cache.window, slots = e->spec.limits.max_batch,
                 tokens = e->batch.max_tokens;
    if (!window)
        return;
    e->near.max_pages = e->pages.max_pages;
    e->near_share = kvd_smaller(kvd_pages_of(window - 1) + 1, e->pages.max_pages);
    e->near_spare = tokens / KVD_PAGE_TOKENS + kvd_smaller(slots, tokens);
}

/* Sets *pages to limits.pages or, if that is 0, to the number of cache pages that fit into GPU
 * memory. */
static int count_pages(const kvd_cuda_engine *e, size_t *pages, kvd_err *err)
{
    size_t left = 0, total = 0;
    if (kvd_cuda_check(cudaMemGetInfo(&left, &total), what, err))
        return -1;
    const size_t spare = kvd_smaller(left / 8, (size_t)1 << 30);
    const kvd_gpu_method *const m = e->cache.method;
    const size_t slots = m ? m->slot_bytes * (e->spec.limits.max_batch + 1) : 0;
    const size_t page = e->copies * e->cache.page_bytes + (m ? m->page_bytes : 0),
                 asked = e->spec.limits.pages;
    const size_t useful = e->spec.limits.max_batch * kvd_pages_of(e->spec.max_len);
    const size_t most = left > spare + slots
                            ? pages_in(e, left - spare - slots, page, kvd_larger(asked, useful))
                            : 0;
    if (most < 1 || asked > most)
        return kvd_fail(err,
                        "a cache of %zu pages of %zu bytes: the device has %zu of %zu bytes left, "
                        "%zu pages",
                        asked, page + near_page(e), left, total, most);
    *pages = asked ? asked : kvd_smaller(most, useful);
    return 0;
}

/* Captures the CUDA graphs of decode steps before requests arrive, so that no request waits for the
 * capture. */
static int make_graphs(kvd_cuda_engine *e, kvd_err *err)
{
    for (size_t n = 1; e->spec.graphs && n <= e->batch.max_slices; n = filled_up(n + 1)) {
        e->batch.n_steps = e->batch.n_slices = e->batch.n_tokens = n;
        e->batch.host.live[0] = (int32_t)n;
        fill_up(e, 0, n);
        if (upload_pages(e, err) || kvd_step_batch_upload_steps(&e->batch, e->w.stream, err) ||
            wait_for(e, kvd_cuda_steps_replay(e, n, err), err))
            return -1;
    }
    return 0;
}

static int describe_engine(kvd_cuda_engine *e, kvd_err *err)
{
    struct cudaDeviceProp prop;
    int version = 0;
    size_t left = 0, total = 0;
    kvd_engine_facts *const f = &e->engine.facts;
    const kvd_gpu_method *const m = e->cache.method;
    const size_t page = (m && m->one_layer ? e->cache.kept_page_bytes : e->cache.page_bytes) +
                        (m ? m->page_bytes : 0),
                 near = m && !m->skips_windows ? m->near_page_bytes : near_page(e);
    if (kvd_cuda_check(cudaGetDeviceProperties(&prop, e->device), what, err) ||
        kvd_cublas_check(e->w.lib->cublasGetVersion_v2(e->w.blas, &version), what, err) ||
        kvd_cuda_check(cudaMemGetInfo(&left, &total), what, err))
        return -1;
    f->pages = e->pages.n_pages / e->copies;
    f->window_pages = e->near.n_pages > e->near_spare ? e->near.n_pages - e->near_spare : 0;
    f->window_share = e->near_share;
    f->bytes_per_token =
        ((double)page + (double)near * (double)e->near_share / (double)e->pages.max_pages) /
        KVD_PAGE_TOKENS;
    f->cache_bytes = (double)page * (double)f->pages + (double)near * (double)e->near.n_pages +
                     (m ? (double)(m->slot_bytes * e->spec.limits.max_batch) : 0);
    f->weight_bytes = (double)e->w.weights.bytes;
    if (e->codes)
        f->weight_bytes += (double)e->codes_bytes - kvd_cuda_codes_replace(e);
    f->peak_bytes = e->left_before > left ? (double)(e->left_before - left) : 0;
    f->anywhere = !m || m->anywhere;
    f->fused = e->cache.hook.wants_raw ? 1u << KVD_PHASE_ROPE | 1u << KVD_PHASE_ROTATE
                                       : 1u << KVD_PHASE_ROTATE;
    static const char *const choices[KVD_N_ATTENTIONS] = {"", ", work shared out as the papers say",
                                                          ", stock attention"};
    const char *const attention = choices[e->spec.attention];
    f->fused &= ~(m ? m->apart : 0);
    const bool experts = e->w.experts.most_few > 0, few = kvd_cuda_few(e, 1);
    const char *const products = few && experts ? " (few rows: own products with norms and experts)"
                                 : few          ? " (few rows: own products with norms)"
                                 : experts      ? " (experts of few rows: own products)"
                                                : "";
    (void)snprintf(f->what, sizeof f->what, "%.100s, bf16, cuBLAS %d.%d.%d%s%s, %s%s%s%s%s",
                   prop.name, version / 10000, version / 100 % 100, version % 100, products,
                   e->codes                ? ", weights of 4 bits"
                   : e->w.weights.streamed ? ", experts streamed"
                                           : "",
                   kvd_paged_cache_kernels(&e->cache), m && m->kernels ? ", " : "",
                   m && m->kernels ? m->kernels : "", attention,
                   e->spec.graphs ? ", CUDA graphs" : "");
    return 0;
}

kvd_cuda_engine *kvd_cuda_engine_new(const kvd_engine_spec *s, int index, kvd_err *err)
{
    kvd_cuda_engine *const e = calloc(1, sizeof *e);
    size_t total = 0;
    if (!e) {
        kvd_no_memory(err, what, sizeof *e);
        return NULL;
    }
    e->spec = *s;
    e->device = s->first_gpu + index;
    if (kvd_cuda_check(cudaSetDevice(e->device), what, err) ||
        kvd_cuda_check(cudaMemGetInfo(&e->left_before, &total), what, err)) {
        free(e);
        return NULL;
    }
    return e;
}

/* Fails if the CPU must read, in each decode step, which experts the router chose. A CUDA graph
 * cannot wait for the CPU. */
static int check_graphs(const kvd_config *c, const kvd_gpu_forward_spec *pass,
                        const kvd_gpu_share *share, kvd_err *err)
{
    const bool streamed = pass->weights && pass->weights->streamed;
    return c->n_experts && (streamed || kvd_gpu_experts_few(c, pass, share) < pass->steps)
               ? kvd_fail(err,
                          "%d experts of %d hidden units in a model of width %d: CUDA graphs hold "
                          "up to %d experts whose sizes are multiples of 8; use --graphs off",
                          c->n_experts, share->n_expert, c->d_model, KVD_FEW_EXPERTS)
               : 0;
}

/* Fails if CUDA graphs are used and the CPU computes the quantised codes of the method, because a
 * graph cannot contain work of the CPU. */
static int check_codes(const kvd_cuda_engine *e, kvd_err *err)
{
    const kvd_gpu_method *const m = e->cache.method;
    return e->spec.graphs && m && m->codes
               ? kvd_fail(err, "the CPU computes codes of '%s', which CUDA graphs cannot contain",
                          kvd_gpu_method_name(m->plan))
               : 0;
}

int kvd_cuda_engine_load(kvd_cuda_engine *e, const kvd_checkpoint *c, const kvd_plan *plan,
                         kvd_gpu_sum *sum, size_t *pages, kvd_err *err)
{
    const kvd_engine_spec *const s = &e->spec;
    e->copies = kvd_plan_copies(plan);
    e->positions = most_positions(kvd_checkpoint_config(c), s->max_len, e->copies);
    const size_t slices = filled_up(s->limits.max_batch), tokens = most_tokens(s, e->copies);
    const kvd_gpu_forward_spec pass = {.type = s->type,
                                       .first_gpu = s->first_gpu,
                                       .n_gpus = s->n_gpus,
                                       .max_tokens = tokens,
                                       .max_len = e->positions,
                                       .weights = s->weights,
                                       .steps = slices,
                                       .resident = true};
    const bool exact_dims = s->exact_prompts && plan->dims && !plan->dims->rebuild;
    kvd_gpu_share share;
    e->cache.attention = s->attention;
    e->cache.exact_prompts = s->exact_prompts;
    e->cache.outliers = s->outliers;
    if (s->weights && (!s->exact_prompts || s->weight_bits))
        return kvd_fail(err, "an engine that changes its weights cannot borrow them");
    if (kvd_cuda_engine_check(kvd_checkpoint_config(c), s, e->positions, err) ||
        kvd_batch_limits(c, tokens, s->max_len, err) ||
        kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_SERVING, e->device - s->first_gpu,
                         s->n_gpus, &share, err) ||
        (s->graphs && check_graphs(kvd_checkpoint_config(c), &pass, &share, err)) ||
        kvd_gpu_worker_open(&e->w, c, &pass, &share, exact_dims, err))
        return -1;
    if ((e->w.sum = sum))
        kvd_gpu_sum_graphs(sum, share.index, kvd_cuda_graphs_destroy, e);
    if (kvd_step_batch_init(&e->batch, slices, tokens, err) ||
        kvd_clock_init(&e->clock, s->phases, 64 + 28 * (size_t)e->w.config.n_layers, err) ||
        kvd_paged_cache_init(&e->cache, &e->w, plan, &e->batch, &e->pages, &e->near, &e->clock,
                             err) ||
        kvd_cuda_check_whole(e, s->limits.chunk, err) || check_codes(e, err) ||
        kvd_gpu_fold(&e->w, e->cache.exact_prompts ? NULL : e->cache.dims, e->cache.layer, err) ||
        make_arrays(e, err) || (s->weight_bits && kvd_cuda_codes_make(e, err)))
        return -1;
    e->pages.max_pages = kvd_pages_of(e->positions);
    share_near(e);
    return count_pages(e, pages, err);
}

/* Zeroes the input of W_O. Matrix products also read its rows for the dummy requests that fill up a
 * batch. */
static int clear_rows(const kvd_cuda_engine *e, kvd_err *err)
{
    size_t width = 0;
    for (int l = 0; l < e->w.config.n_layers; l++)
        width = kvd_larger(width, (size_t)e->w.weights.layer[l].n_o);
    return kvd_cuda_check(cudaMemsetAsync(e->w.narrow, 0,
                                          e->batch.max_slices * width * sizeof(uint16_t),
                                          e->w.stream),
                          what, err);
}

int kvd_cuda_engine_ready(kvd_cuda_engine *e, size_t pages, kvd_err *err)
{
    const size_t slots = e->spec.limits.max_batch, near = near_pages(e, pages) + e->near_spare;
    return kvd_status(
        kvd_cuda_check(cudaSetDevice(e->device), what, err) ||
        kvd_pages_init(&e->pages, e->copies * pages, slots, e->batch.max_slices, e->pages.max_pages,
                       err) ||
        (e->cache.window &&
         kvd_pages_init(&e->near, near, slots, e->batch.max_slices, e->near.max_pages, err)) ||
        kvd_paged_cache_make_pool(&e->cache, pages, near, slots + 1, e->w.stream, err) ||
        clear_rows(e, err) || make_graphs(e, err) || describe_engine(e, err));
}

void kvd_cuda_engine_free(kvd_engine *self)
{
    kvd_cuda_engine *const e = (kvd_cuda_engine *)self;
    if (!e)
        return;
    (void)cudaSetDevice(e->device);
    if (e->w.stream)
        (void)cudaStreamSynchronize(e->w.stream);
    kvd_cuda_graphs_release(e);
    kvd_paged_cache_release(&e->cache);
    kvd_step_batch_release(&e->batch);
    kvd_pages_release(&e->pages);
    kvd_pages_release(&e->near);
    kvd_clock_release(&e->clock);
    kvd_device_release(&e->memory);
    kvd_gpu_worker_close(&e->w);
    free(e);
}

kvd_engine *kvd_engine_open_cuda(const kvd_checkpoint *c, const kvd_plan *plan,
                                 const kvd_engine_spec *s, kvd_err *err)
{
    size_t pages = 0;
    if (s->sequence && s->weight_bits) {
        kvd_fail(err,
                 "weights of %d bits: GPUs that divide the tokens of a prompt have weights of "
                 "16 bits",
                 s->weight_bits);
        return NULL;
    }
    if (s->n_gpus > 1)
        return s->sequence ? kvd_engine_open_sequence(c, plan, s, err)
                           : kvd_engine_open_parallel(c, plan, s, err);
    kvd_cuda_engine *const e = kvd_cuda_engine_new(s, 0, err);
    if (!e || kvd_cuda_engine_load(e, c, plan, NULL, &pages, err) ||
        kvd_cuda_engine_ready(e, pages, err)) {
        kvd_cuda_engine_free((kvd_engine *)e);
        return NULL;
    }
    e->engine.step = step;
    e->engine.finish = finish;
    e->engine.logits = kvd_cuda_engine_logits;
    e->engine.count = count;
    e->engine.drop = kvd_cuda_engine_drop;
    e->engine.lacking = lacking;
    e->engine.held = kvd_cuda_engine_counts_held(e) ? kvd_cuda_engine_held : NULL;
    e->engine.free = kvd_cuda_engine_free;
    return &e->engine;
}
