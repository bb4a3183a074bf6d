/* Requests with given tokens for the serving engine, and a simple scheduler. */
#ifndef KVD_TESTS_ENGINE_SCHEDULE_H
#define KVD_TESTS_ENGINE_SCHEDULE_H

#include "common/rng.h"
#include "engine/engine.h"
#include "expected.h"
#include "gpu_case.h"
#include "gpu_forward_case.h"
#include "methods/cuda/cache.h"

typedef struct {
    size_t input, output;
} request;

enum { MOST = 16 };

typedef struct {
    const kvd_checkpoint *c; /* owned by the caller */
    const request *r;        /* [n] requests, owned by the caller */
    size_t n, vocab, max_len, outputs;
    /* index in `id` of each request's first token */
    size_t offset[MOST + 1];
    /* index of each request's first output token among all output tokens */
    size_t first[MOST + 1];
    /* [offset[n]] tokens of all requests, input then output */
    uint32_t *id;
    /* expected logits [offset[n]][vocab], or NULL */
    float *want;
    double bar; /* largest accepted relative error of logits */
} load;

static inline load load_make(const kvd_checkpoint *c, const request *r, size_t n, uint64_t seed)
{
    load l = {.c = c, .r = r, .n = n, .vocab = (size_t)kvd_checkpoint_config(c)->vocab_size};
    for (size_t i = 0; i < n; i++) {
        const size_t len = r[i].input + r[i].output;
        l.offset[i + 1] = l.offset[i] + len;
        l.first[i + 1] = l.first[i] + r[i].output;
        l.max_len = len > l.max_len ? len : l.max_len;
    }
    l.outputs = l.first[n];
    l.id = some_ids(l.offset[n], l.vocab, seed);
    return l;
}

static inline void load_release(load *l)
{
    free(l->id);
    free(l->want);
}

/* Returns the index of a slice's last token among all tokens. */
static inline size_t token_row(const load *l, const kvd_slice *s)
{
    return l->offset[s->request] + s->before + s->n - 1;
}

static inline size_t output_row(const load *l, const kvd_slice *s)
{
    return l->first[s->request] + s->before + s->n - l->r[s->request].input;
}

/* Rules of the scheduler. Requests enter in order as slots become free. */
typedef struct {
    /* slots: most requests at once; chunk: most tokens of an iteration, 0: whole prompts */
    size_t slots, chunk;
    /* decode steps share iterations with prompts; if false and chunk is 0, prompts run first */
    bool beside;
    bool singly; /* at most one prompt per iteration */
} serving_order;

typedef struct {
    /* number of requests that have entered; computed tokens of each request */
    size_t arrived, done[MOST];
    int slot[MOST]; /* slot of each request; -1 after the end */
    bool taken[MOST];
    kvd_slice slice[MOST];
    uint32_t *id;
} schedule;

static inline schedule schedule_make(const load *l)
{
    return (schedule){.id = need(l->offset[l->n] * sizeof(uint32_t))};
}

static inline void schedule_release(schedule *s)
{
    free(s->id);
}

static inline size_t schedule_left(const schedule *s, const load *l, size_t r)
{
    return s->slot[r] >= 0 && s->done[r] < l->r[r].input ? l->r[r].input - s->done[r] : 0;
}

static inline void schedule_take(schedule *s, const load *l, size_t r, size_t n, kvd_iteration *it)
{
    const size_t before = s->done[r], end = before + n, whole = l->r[r].input + l->r[r].output;
    s->slice[it->n_slices++] = (kvd_slice){.request = (uint32_t)r,
                                           .slot = (uint32_t)s->slot[r],
                                           .before = (uint32_t)before,
                                           .n = (uint32_t)n,
                                           .whole = (uint32_t)whole,
                                           .emits = end >= l->r[r].input,
                                           .last = end == whole - 1};
    memcpy(s->id + it->n_tokens, l->id + l->offset[r] + before, n * sizeof *s->id);
    it->n_tokens += n;
    s->done[r] = end;
}

/* Returns the next iteration, decode steps first, without slices after the last request. */
static inline kvd_iteration schedule_next(schedule *s, const load *l, const serving_order *o)
{
    kvd_iteration it = {.slice = s->slice};
    bool prompts = false;
    for (size_t slot = 0; slot < o->slots && s->arrived < l->n && !(o->singly && prompts); slot++)
        if (!s->taken[slot]) {
            s->taken[slot] = prompts = true;
            s->slot[s->arrived++] = (int)slot;
        }
    for (size_t r = 0; r < s->arrived; r++)
        prompts = prompts || schedule_left(s, l, r);
    for (size_t r = 0; r < s->arrived && (o->chunk || o->beside || !prompts); r++)
        if (s->slot[r] >= 0 && !schedule_left(s, l, r))
            schedule_take(s, l, r, 1, &it);
    it.n_steps = it.n_slices;
    for (size_t r = 0; r < s->arrived; r++) {
        const size_t left = schedule_left(s, l, r),
                     room = o->chunk > it.n_tokens ? o->chunk - it.n_tokens : 0;
        if (left && (!o->chunk || room))
            schedule_take(s, l, r, !o->chunk || left < room ? left : room, &it);
    }
    for (size_t i = 0; i < it.n_slices; i++)
        if (s->slice[i].last) {
            s->taken[s->slice[i].slot] = false;
            s->slot[s->slice[i].request] = -1;
        }
    return it;
}

/* Callback after each iteration. If the callback returns -1 with *err set, serve() fails. */
typedef int (*behind)(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                      const kvd_phase_times *t, kvd_err *err);

static inline int serve(kvd_engine *e, const load *l, const serving_order *o, behind f, void *ctx,
                        kvd_err *err)
{
    schedule s = schedule_make(l);
    int status = 0;
    for (kvd_iteration it = schedule_next(&s, l, o); it.n_slices && !status;
         it = schedule_next(&s, l, o)) {
        kvd_phase_times t;
        uint32_t token[MOST];
        status = e->step(e, &it, s.id, token, &t, err) || f(ctx, e, &it, token, &t, err) ? -1 : 0;
    }
    schedule_release(&s);
    return status;
}

/* Returns logits [offset[n]][vocab] of all tokens, with dense attention if plan is NULL. */
static inline float *run_pass(const load *l, const kvd_checkpoint *c, const kvd_plan *plan,
                              kvd_dtype type, kvd_err *err)
{
    const kvd_config *const config = kvd_checkpoint_config(c);
    const size_t n = l->offset[l->n], vocab = (size_t)config->vocab_size,
                 size = n * vocab * sizeof(float);
    kvd_gpu_forward *const f = open_pass(c, type, 1, n);
    const kvd_batch b = {.n_sequences = l->n, .offset = l->offset, .id = l->id};
    float *const hidden = on_device(NULL, n * (size_t)config->d_model * sizeof *hidden);
    float *const logits = on_device(NULL, size), *const to = need(size);
    const kvd_gpu_share share = kvd_gpu_forward_weights(f, 0)->share;
    kvd_gpu_caches *const caches =
        plan ? kvd_gpu_caches_new(config, &share, type, n, n, err) : NULL;
    kvd_gpu_cache *const cache = caches ? kvd_gpu_cache_new(caches, plan, err) : NULL;
    kvd_gpu_attention *const hook = cache ? kvd_gpu_cache_hook(cache) : NULL;
    int status = plan && !cache;
    if (!status)
        status = kvd_gpu_forward_run(f, &b, hook ? &hook : NULL, -1, hidden, err) ||
                 kvd_gpu_forward_logits(f, hidden, n, logits, err);
    check(cudaDeviceSynchronize(), "the pass");
    check(cudaMemcpy(to, logits, size, cudaMemcpyDeviceToHost), "logits");
    kvd_gpu_cache_free(cache);
    kvd_gpu_caches_free(caches);
    device_free(hidden, logits);
    kvd_gpu_forward_free(f);
    if (!status)
        return to;
    free(to);
    return NULL;
}

#endif
