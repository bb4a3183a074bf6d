/* CPU engine: runs prompts and decode steps of a batch of requests, with a KV cache. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/threads.h"
#include "engine/cpu/clock.h"
#include "engine/cpu/layers.h"
#include "engine/cpu/slots.h"
#include "engine/cpu/stepwise.h"
#include "engine/engine.h"
#include "model/pass/attention.h"
#include "model/pass/batch.h"
#include "model/pass/blocks.h"

enum { PAGE = 64 };

typedef struct {
    kvd_engine hook;
    kvd_pool memory;
    const kvd_config *config;
    const kvd_plan *plan;
    kvd_engine_spec spec;
    kvd_cpu_weights weights;
    /* True if the method compresses token by token and the KV cache is in `caches`. False if it
     * only removes dimensions and the KV cache is in `slots`. */
    bool stepwise;
    kvd_cpu_slots slots;
    kvd_cpu_stepwise caches;
    /* largest number of tokens in a slot, which is the cache of one running request */
    size_t tokens;
    kvd_cpu_rows rows;
    double held_bytes;
    /* [max_batch] number of tokens in the cache of each slot (running request); 0 if the slot is
     * free */
    uint32_t *held;
    /* [max_batch][d_model] residual stream of the last token of each request that emits a token */
    float *last;
    /* [max_batch][d_embed] input of the output head, if the model projects the residual stream to
     * d_embed dimensions first */
    float *narrow;
    float *logits; /* [max_batch][vocab_size] */
    /* [max_batch] for each request of the iteration, its row of `logits`; SIZE_MAX if it emits no
     * token */
    size_t *emitted;
    size_t n_slices;
} engine;

static engine *self_of(kvd_engine *e)
{
    /* The conversion is valid because the kvd_engine is the first field of `engine`. */
    return (engine *)(void *)e;
}

static int check(const engine *e, const kvd_iteration *it, const uint32_t *id, kvd_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        if (s->slot >= e->spec.limits.max_batch || !s->n || (size_t)s->before + s->n > e->tokens ||
            (s->before && e->held[s->slot] != s->before))
            return kvd_fail(
                err,
                "request %u: %u tokens after %u in slot %u, which holds %u and has room for %zu",
                s->request, s->n, s->before, s->slot,
                s->slot < e->spec.limits.max_batch ? e->held[s->slot] : 0, e->tokens);
        for (size_t k = 0; k < s->n; k++)
            if (id[n + k] >= (uint32_t)e->config->vocab_size)
                return kvd_fail(
                    err,
                    "request %u, position %zu: token id %u is not below the vocabulary size %d",
                    s->request, s->before + k, id[n + k], e->config->vocab_size);
        n += s->n;
    }
    if (n != it->n_tokens || n > e->rows.most || it->n_slices > e->spec.limits.max_batch)
        return kvd_fail(
            err, "an iteration of %zu requests and %zu tokens, the engine was made for %zu and %zu",
            it->n_slices, n, e->spec.limits.max_batch, e->rows.most);
    return 0;
}

static int not_finite(const engine *e, const kvd_iteration *it, const char *where, size_t row,
                      kvd_err *err)
{
    size_t i = 0;
    for (; row >= it->slice[i].n; i++)
        row -= it->slice[i].n;
    return kvd_fail(err, "'%s': %s: activation of request %u at position %zu is not finite",
                    e->config->path, where, it->slice[i].request, it->slice[i].before + row);
}

static int check_finite(const engine *e, const kvd_iteration *it, const char *where, const float *x,
                        size_t width, kvd_err *err)
{
    const size_t n = it->n_tokens * width, at = kvd_first_nonfinite_f32(x, n);
    return at < n ? not_finite(e, it, where, at / width, err) : 0;
}

static int attend(engine *e, int layer, const kvd_iteration *it, kvd_cpu_clock *clock, kvd_err *err)
{
    kvd_cpu_rows *const r = &e->rows;
    const kvd_cpu_layer *const l = &e->weights.layer[layer];
    kvd_cpu_rotate(r, layer, it->n_tokens);
    if (l->rotates)
        kvd_cpu_mark(clock, KVD_PHASE_ROTATE);
    if (kvd_cpu_slots_append(&e->slots, layer, it, r->k_cut, r->v, err))
        return -1;
    kvd_cpu_mark(clock, KVD_PHASE_APPEND);
    kvd_cpu_slots_decode(&e->slots, layer, it);
    if (e->slots.type != KVD_F32)
        kvd_cpu_mark(clock, KVD_PHASE_RESTORE);
    kvd_cpu_slots_step(&e->slots, layer, it, r->q_cut, r->o);
    if (it->n_steps)
        kvd_cpu_mark(clock, KVD_PHASE_DECODE);
    kvd_cpu_slots_prefill(&e->slots, layer, it, r->q_cut, r->o);
    if (it->n_steps < it->n_slices)
        kvd_cpu_mark(clock, KVD_PHASE_PREFILL);
    return 0;
}

static int run_layer(engine *e, int layer, const kvd_iteration *it, kvd_cpu_clock *clock,
                     kvd_err *err)
{
    kvd_cpu_rows *const r = &e->rows;
    const kvd_cpu_layer *const l = &e->weights.layer[layer];
    const size_t kv = (size_t)e->config->n_kv_heads;
    char where[32];
    snprintf(where, sizeof where, "layer %d", layer);
    kvd_cpu_before_attention(r, layer, it->n_tokens, clock);
    /* Checks keys here, because an infinite key need not make the attention output infinite. */
    if (check_finite(e, it, where, r->k,
                     l->rotates ? kv * (size_t)e->config->d_head : l->cut.at_qk[kv], err) ||
        check_finite(e, it, where, r->v, l->cut.at_v[kv], err))
        return -1;
    if (e->stepwise ? kvd_cpu_stepwise_run(&e->caches, layer, it, r, clock, err)
                    : attend(e, layer, it, clock, err))
        return -1;
    kvd_cpu_behind_attention(r, l, it->n_tokens, clock);
    return check_finite(e, it, where, r->x, (size_t)e->config->d_model, err);
}

static int head(engine *e, const kvd_iteration *it, kvd_err *err)
{
    const kvd_cpu_weights *const w = &e->weights;
    const size_t d = (size_t)e->config->d_model, vocab = (size_t)e->config->vocab_size;
    const float *const gain = kvd_cpu_once(w, KVD_PART_NORM_FINAL, 0);
    const float *const out = kvd_cpu_once(w, KVD_PART_PROJECT_OUT, 0);
    size_t n = 0;
    e->n_slices = it->n_slices;
    for (size_t i = 0, row = 0; i < it->n_slices; i++) {
        row += it->slice[i].n;
        e->emitted[i] = SIZE_MAX;
        if (!it->slice[i].emits)
            continue;
        memcpy(e->last + n * d, e->rows.x + (row - 1) * d, d * sizeof *e->last);
        e->emitted[i] = n++;
    }
    if (gain)
        kvd_layer_normalise(e->config, e->last, gain, kvd_cpu_once(w, KVD_PART_NORM_FINAL, 1), n,
                            e->last);
    if (out)
        kvd_linear(e->last, out, n, d, w->d_embed, e->narrow, 0);
    kvd_linear(out ? e->narrow : e->last, w->head, n, w->d_embed, vocab, e->logits, 0);
    const size_t at = kvd_first_nonfinite_f32(e->logits, n * vocab);
    if (at < n * vocab)
        return kvd_fail(err, "'%s': logit of token %zu is not finite", e->config->path, at % vocab);
    if (e->config->logit_softcap > 0)
        kvd_softcap(e->logits, n * vocab, 1.0f, (float)e->config->logit_softcap);
    return 0;
}

static void sample(const engine *e, const kvd_iteration *it, uint32_t *next)
{
    const size_t vocab = (size_t)e->config->vocab_size;
    for (size_t i = 0; i < it->n_slices; i++) {
        if (e->emitted[i] == SIZE_MAX)
            continue;
        const float *const logit = e->logits + e->emitted[i] * vocab;
        uint32_t best = 0;
        for (uint32_t t = 1; t < vocab; t++)
            best = logit[t] > logit[best] ? t : best;
        next[i] = best;
    }
}

static double slots_bytes(const engine *e)
{
    double elements = 0;
    for (size_t i = 0; i < e->spec.limits.max_batch; i++)
        elements += (double)kvd_cpu_slot_elements(&e->weights, e->held[i]);
    return elements * (double)kvd_dtype_bytes(e->plan->type);
}

static int run(engine *e, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
               kvd_cpu_clock *clock, kvd_err *err)
{
    if (check(e, it, id, err))
        return -1;
    kvd_cpu_place(&e->rows, it);
    kvd_cpu_mark(clock, KVD_PHASE_HOST);
    kvd_cpu_embed(&e->rows, id, it->n_tokens);
    kvd_cpu_mark(clock, KVD_PHASE_EMBED);
    for (int l = 0; l < e->config->n_layers; l++)
        if (run_layer(e, l, it, clock, err))
            return -1;
    if (head(e, it, err))
        return -1;
    kvd_cpu_mark(clock, KVD_PHASE_HEAD);
    sample(e, it, next);
    kvd_cpu_mark(clock, KVD_PHASE_SAMPLE);
    for (size_t i = 0; i < it->n_slices; i++)
        e->held[it->slice[i].slot] = it->slice[i].before + it->slice[i].n;
    /* Counts cache bytes here, before the caches of requests that finish in this iteration are
     * freed. */
    e->held_bytes = e->stepwise ? kvd_cpu_stepwise_bytes(&e->caches) : slots_bytes(e);
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            e->held[it->slice[i].slot] = 0;
    if (e->stepwise)
        kvd_cpu_stepwise_end(&e->caches, it);
    kvd_cpu_mark(clock, KVD_PHASE_HOST);
    return 0;
}

static int step(kvd_engine *hook, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err)
{
    engine *const e = self_of(hook);
    kvd_cpu_clock clock = {.times = times, .parts = e->spec.phases, .begin = kvd_clock_s()};
    clock.last = clock.begin;
    if (times)
        *times = (kvd_phase_times){.total = 0};
    const int status = run(e, it, id, next, &clock, err);
    if (times)
        times->total = kvd_clock_s() - clock.begin;
    return status;
}

static int logits_of(kvd_engine *hook, size_t i, float *logits, kvd_err *err)
{
    const engine *const e = self_of(hook);
    const size_t vocab = (size_t)e->config->vocab_size;
    if (i >= e->n_slices || e->emitted[i] == SIZE_MAX)
        return kvd_fail(err, "slice %zu of the latest iteration has no logits", i);
    memcpy(logits, e->logits + e->emitted[i] * vocab, vocab * sizeof *logits);
    return 0;
}

static double held(const kvd_engine *hook)
{
    return ((const engine *)(const void *)hook)->held_bytes;
}

static void drop(kvd_engine *hook, size_t slot)
{
    engine *const e = self_of(hook);
    e->held[slot] = 0;
    if (e->stepwise)
        kvd_sequence_cache_end(&e->caches.running, slot);
}

static void release(kvd_engine *hook)
{
    engine *const e = self_of(hook);
    kvd_cpu_weights_release(&e->weights);
    kvd_cpu_slots_release(&e->slots);
    kvd_cpu_stepwise_release(&e->caches);
    kvd_cpu_rows_release(&e->rows);
    kvd_pool_free(&e->memory);
    free(e);
}

/* Sets facts.pages to limits.pages or, if that is 0, to the number of cache pages that fit into
 * free memory. */
static int resolve_memory(engine *e, size_t per_slot, double activations, kvd_err *err)
{
    kvd_engine_facts *const f = &e->hook.facts;
    const double weights = e->weights.own_bytes, page = f->bytes_per_token * PAGE,
                 left = kvd_memory_available().bytes - weights - activations;
    const size_t wanted = e->spec.limits.max_batch * per_slot;
    char cache[64];
    f->pages = e->spec.limits.pages ? e->spec.limits.pages : wanted;
    if (!e->spec.limits.pages && (double)wanted * page > left)
        f->pages = left > page ? (size_t)(left / page) : 1;
    f->cache_bytes = (double)f->pages * page;
    snprintf(cache, sizeof cache, f->pages == 1 ? "a page of the cache" : "cache of %zu pages",
             f->pages);
    const kvd_memory_part part[] = {
        {"weights in f32", weights}, {"activations", activations}, {cache, f->cache_bytes}};
    return kvd_memory_check(part, 3,
                            e->spec.limits.pages
                                ? "lower --pages, --max-tokens, --chunk or --max-batch, or take a "
                                  "smaller model"
                                : "lower --max-tokens, --chunk, --max-batch or the lengths, or "
                                  "take a smaller model",
                            err);
}

static int allocate(engine *e, kvd_err *err)
{
    const size_t n = e->spec.limits.max_batch, d = (size_t)e->config->d_model,
                 vocab = (size_t)e->config->vocab_size;
    kvd_pool *const m = &e->memory;
    e->held = kvd_pool_new(m, n * sizeof *e->held);
    e->emitted = kvd_pool_new(m, n * sizeof *e->emitted);
    e->last = kvd_pool_new(m, n * d * sizeof *e->last);
    e->narrow = kvd_pool_new(m, n * e->weights.d_embed * sizeof *e->narrow);
    e->logits = kvd_pool_new(m, n * vocab * sizeof *e->logits);
    return kvd_pool_check(m, "logits of a batch", err);
}

static int open_engine(engine *e, const kvd_checkpoint *c, kvd_err *err)
{
    const kvd_batching_limits *const l = &e->spec.limits;
    kvd_engine_facts *const f = &e->hook.facts;
    const size_t pages = (e->spec.max_len + PAGE - 1) / PAGE;
    size_t rows = l->chunk                          ? l->chunk
                  : l->max_tokens > e->spec.max_len ? l->max_tokens
                                                    : e->spec.max_len;
    rows = rows < l->max_batch ? l->max_batch : rows;
    const unsigned needs = e->stepwise ? kvd_plan_needs(e->plan) : 0;
    if (e->spec.weight_bits)
        return kvd_fail(err, "the CPU engine has no product with weights of %d bits: use a GPU",
                        e->spec.weight_bits);
    e->tokens = pages * PAGE;
    if (kvd_batch_limits(c, rows, e->spec.max_len, err) ||
        kvd_cpu_weights_find(&e->weights, c, e->stepwise ? NULL : e->plan->dims, err))
        return -1;
    /* Cache bytes per token, averaged over the tokens of the longest possible request. Layers with
     * a sliding window store only the newest tokens. */
    f->bytes_per_token = (double)kvd_cpu_slot_elements(&e->weights, e->tokens) *
                         (double)kvd_dtype_bytes(e->plan->type) / (double)e->tokens;
    f->weight_bytes = e->weights.bytes;
    const double scores =
                     (double)(kvd_thread_count() * KVD_ATTEND_ROWS * e->tokens) * sizeof(float),
                 logits =
                     (double)(l->max_batch * (size_t)(e->config->vocab_size + e->config->d_model)) *
                     sizeof(float);
    if (resolve_memory(
            e, pages,
            kvd_cpu_rows_bytes(&e->weights, rows, e->spec.max_len, needs) + scores + logits, err) ||
        kvd_cpu_weights_load(&e->weights, c, err) || allocate(e, err) ||
        kvd_cpu_rows_init(&e->rows, &e->weights, rows, e->spec.max_len, needs, err) ||
        (e->stepwise ? kvd_cpu_stepwise_init(&e->caches, e->config, e->plan, l->max_batch,
                                             e->spec.max_len, l->chunk, err)
                     : kvd_cpu_slots_init(&e->slots, &e->weights, e->plan->type, l->max_batch,
                                          e->tokens, err)))
        return -1;
    f->peak_bytes = f->weight_bytes + f->cache_bytes + e->rows.bytes + scores + logits;
    snprintf(f->what, sizeof f->what, "%.120s, f32, cache %s, %zu threads", kvd_cpu_name(),
             kvd_dtype_name(e->plan->type), kvd_thread_count());
    return 0;
}

kvd_engine *kvd_engine_open_cpu(const kvd_checkpoint *c, const kvd_plan *plan,
                                const kvd_engine_spec *s, kvd_err *err)
{
    if (s->exact_prompts) {
        kvd_fail(err, "the CPU engine has no prompts that attend whole (exact_prompts)");
        return NULL;
    }
    if (s->type != plan->type) {
        kvd_fail(err, "an engine of %s for a cache of %s", kvd_dtype_name(s->type),
                 kvd_dtype_name(plan->type));
        return NULL;
    }
    engine *const e = kvd_new(1, sizeof *e, "the engine", err);
    if (!e)
        return NULL;
    e->stepwise = kvd_plan_beyond_widths(plan);
    e->hook = (kvd_engine){
        .step = step, .held = held, .drop = drop, .logits = logits_of, .free = release};
    e->config = kvd_checkpoint_config(c);
    e->plan = plan;
    e->spec = *s;
    if (!s->limits.max_batch || open_engine(e, c, err)) {
        release(&e->hook);
        return NULL;
    }
    return &e->hook;
}
