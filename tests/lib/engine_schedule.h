/*
 * Requests with given tokens for tests of the serving engine, and a simple scheduler. Include it
 * once per program.
 */
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
    /* Index in `id` of the first token of each request. */
    size_t offset[MOST + 1];
    /*
     * for each request, the index of its first output token among the output tokens of all requests
     */
    size_t first[MOST + 1];
    /*
     * tokens of all requests, input then output, [offset[n]]; the last output token of a request is
     * never an input of the model
     */
    uint32_t *id;
    /* Expected logits, [offset[n]][vocab]; may be NULL. */
    float *want;
    double bar; /* largest accepted relative error of the logits */
} load;

/* Makes requests with random tokens. The caller calls load_release. */
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

/*
 * Each returns the row, in an array of logits, of a slice's last token. In token_row, the array has
 * a row for every token; in output_row, for output tokens only. output_row and is valid only if the
 * slice emits a token.
 */
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
    /*
     * `slots` is the largest number of requests at once. `chunk` is the largest number of tokens of
     * an iteration; if it is 0, each prompt is computed in one iteration.
     */
    size_t slots, chunk;
    /*
     * True if decode steps share iterations with prompts. If false and `chunk` is 0, decode steps
     * run only when no prompt is left.
     */
    bool beside;
    bool singly; /* at most one prompt per iteration */
} serving_order;

typedef struct {
    /* Number of requests that have entered, and number of computed tokens of each request. */
    size_t arrived, done[MOST];
    int slot[MOST]; /* slot of each request in the engine; -1 after the request has ended */
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

/* Number of prompt tokens that are still to be computed. */
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

/*
 * Returns the next iteration, with decode steps before prompts. It has no slices if all requests
 * have ended.
 */
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

/* Callback after each iteration. If it returns -1 with *err set, serve() fails. */
typedef int (*behind)(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                      const kvd_phase_times *t, kvd_err *err);

/* Runs the engine until all requests are served. */
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

/*
 * Returns the logits [offset[n]][vocab] of all tokens. If `plan` is NULL, attention is dense;
 * otherwise it reads the KV cache that the plan compresses.
 */
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
