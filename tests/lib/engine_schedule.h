/*
 * Requests for the GPU tests of the serving engine, and a plain scheduler. All tokens of the
 * requests are fixed beforehand, so that engines and forward passes compute the same ones. serve()
 * runs an engine until all requests are served. Include it once per program.
 */
#ifndef KVD_TESTS_ENGINE_SCHEDULE_H
#define KVD_TESTS_ENGINE_SCHEDULE_H

#include "common/rng.h"
#include "engine/engine.h"
#include "expected.h"
#include "gpu_case.h"
#include "gpu_forward_case.h"

typedef struct {
    size_t input, output;
} request;

enum { MOST = 16 };

typedef struct {
    const kvd_checkpoint *c; /* owned by the caller */
    const request *r;        /* [n] requests, owned by the caller */
    size_t n, vocab, max_len, outputs;
    /*
     * Index in `id` of each request's first token. A request has input + output tokens; the last
     * output token is never fed back to the engine.
     */
    size_t offset[MOST + 1];
    size_t first[MOST + 1]; /* index of each request's first output token among all output tokens */
    uint32_t *id;           /* [offset[n]] tokens of all requests */
    /* [offset[n]][vocab] expected logits, or NULL if the test has not set them. */
    float *want;
    double bar; /* largest accepted relative distance of one token's logits from `want` */
} load;

/* Returns n requests with random tokens. load_release frees them. */
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
 * Both functions return the index of a slice's last token: token_row among all tokens (arrays
 * [offset[n]][vocab]), output_row among output tokens (arrays [outputs][vocab]). output_row is only
 * valid if the slice emits a token.
 */
static inline size_t token_row(const load *l, const kvd_slice *s)
{
    return l->offset[s->request] + s->before + s->n - 1;
}

static inline size_t output_row(const load *l, const kvd_slice *s)
{
    return l->first[s->request] + s->before + s->n - l->r[s->request].input;
}

/*
 * How requests are served. They enter in order as slots become free. An iteration of the engine has
 * prompts, decode steps, or both.
 */
typedef struct {
    /*
     * slots: largest number of requests served at once. chunk: largest number of tokens of an
     * iteration, with decode steps first and prompts divided into pieces. If chunk is 0, prompts
     * run whole.
     */
    size_t slots, chunk;
    /*
     * True: decode steps share iterations with prompts. False: they wait until no prompt is left,
     * if chunk is 0.
     */
    bool beside;
    bool singly; /* true: at most one whole prompt per iteration */
} serving_order;

typedef struct {
    /*
     * Number of requests that have entered, and number of tokens of each that the engine has
     * computed.
     */
    size_t arrived, done[MOST];
    int slot[MOST]; /* slot of each request; -1 after it has ended */
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

/*
 * Returns the number of prompt tokens of request r that are still to be computed; 0 if the request
 * decodes or has ended.
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

/*
 * Called after each iteration with the tokens that the engine emitted. If it returns -1 with *err
 * set, serve() ends.
 */
typedef int (*behind)(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                      const kvd_phase_times *t, kvd_err *err);

/*
 * Runs the engine until all requests are served. Returns 0, or -1 with *err set if the engine or
 * the callback `f` fails.
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
