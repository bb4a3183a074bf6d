/*
 * Requests and a scheduler for the device tests of the engine. All tokens of the requests are known
 * beforehand, so that every engine and forward pass gets the same tokens. A plain scheduler serves
 * the requests in slots, and serve() runs an engine by it. Include it once per program.
 */
#ifndef KVD_TESTS_ENGINE_SCHEDULE_H
#define KVD_TESTS_ENGINE_SCHEDULE_H

#include "common/rng.h"
#include "engine/engine.h"
#include "expected.h"
#include "gpu_case.h"
#include "gpu_forward_case.h"

/* ---- requests ---- */

typedef struct {
    size_t input, output;
} request;

enum { MOST = 16 };

typedef struct {
    const kvd_checkpoint *c; /* checkpoint; not owned */
    const request *r;        /* [n] requests; not owned */
    size_t n, vocab, max_len, outputs;
    /*
     * index of each request's first token in `id`; a request has input + output tokens, of which no
     * engine reads the last
     */
    size_t offset[MOST + 1];
    size_t first[MOST + 1]; /* index of each request's first output */
    uint32_t *id;           /* [offset[n]] tokens of all requests */
    /* [offset[n]][vocab] expected logits; NULL at first, set by a test that knows them */
    float *want;
    double bar; /* largest accepted relative distance of a row of logits from `want` */
} load;

/* Returns requests with random tokens. load_release frees them. */
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
 * Returns the index of the slice's last token in arrays [offset[n]][vocab]. If the slice emits a
 * token, also sets the row in arrays [outputs][vocab].
 */
static inline size_t token_row(const load *l, const kvd_slice *s)
{
    return l->offset[s->request] + s->before + s->n - 1;
}

static inline size_t output_row(const load *l, const kvd_slice *s)
{
    return l->first[s->request] + s->before + s->n - l->r[s->request].input;
}

/* ---- the scheduler ---- */

/*
 * Scheduler. Requests enter in their order as slots become free. Without a chunk, prompts run
 * whole; decode steps wait until no prompt is left, or run together with prompts. With a chunk, an
 * iteration has at most that many tokens, decode steps first, and prompts run in pieces.
 */
typedef struct {
    size_t slots, chunk;
    bool beside;
    bool singly; /* true if an iteration has at most one whole prompt */
} serving_order;

typedef struct {
    /* number of requests that have entered; tokens of each in the cache */
    size_t arrived, done[MOST];
    int slot[MOST];        /* slot of each request; -1 after the request has ended */
    bool taken[MOST];      /* true for slots in use */
    kvd_slice slice[MOST]; /* slices of the latest iteration */
    uint32_t *id;          /* tokens of the latest iteration */
} schedule;

static inline schedule schedule_make(const load *l)
{
    return (schedule){.id = need(l->offset[l->n] * sizeof(uint32_t))};
}

static inline void schedule_release(schedule *s)
{
    free(s->id);
}

/*
 * Returns the number of prompt tokens that are still to be processed; 0 if the request decodes or
 * has ended.
 */
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
 * Returns the next iteration, with decode steps before prompts. After all requests have ended, the
 * iteration has no slices.
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

/* ---- the loop ---- */

/*
 * Callback after each iteration, with the tokens of its slices. If it returns -1 with *err set, the
 * loop ends.
 */
typedef int (*behind)(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                      const kvd_phase_times *t, kvd_err *err);

/*
 * Runs the engine until all requests are served. Returns 0, or -1 if the engine or the callback
 * fails.
 */
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

#endif
