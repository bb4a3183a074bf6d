/* Makes test requests for inference engines, and schedules these requests in batches. */
#ifndef KVD_TESTS_ENGINE_SCHEDULE_H
#define KVD_TESTS_ENGINE_SCHEDULE_H

#include <math.h>

#include "common/stats.h"
#include "engine/engine.h"
#include "gpu_forward_case.h"
#include "methods/cuda/cache.h"
#include "worst.h"

typedef struct {
    size_t input, output;
} request;

enum { MOST = 16 };

typedef struct {
    const kvd_checkpoint *c; /* owned by the caller */
    const request *r;        /* [n] requests, owned by the caller */
    size_t n, vocab, max_len, outputs;
    /* index of each request's first token in the array `id` */
    size_t offset[MOST + 1];
    /* index of each request's first output token, counted over the output tokens of all requests */
    size_t first[MOST + 1];
    /* token ids of all requests: input of request 0, output of request 0, input of request 1, and
     * so on */
    uint32_t *id;
    /* logits [tokens of all requests][vocab] of the reference forward pass; NULL before the pass */
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

/* Returns the index of the last token of *s, a range of one request's tokens, in the concatenation
 * of all requests. */
static inline size_t token_row(const load *l, const kvd_slice *s)
{
    return l->offset[s->request] + s->before + s->n - 1;
}

static inline size_t output_row(const load *l, const kvd_slice *s)
{
    return l->first[s->request] + s->before + s->n - l->r[s->request].input;
}

/* Order in which requests are served. A new request starts when a running one ends. */
typedef struct {
    /* slots: maximum number of running requests. chunk: maximum number of tokens in an iteration;
     * 0: prompts are not split. */
    size_t slots, chunk;
    /* true if prompts and decode steps may be in one iteration; false if prompts have iterations of
     * their own */
    bool beside;
    bool singly; /* at most one prompt per iteration */
} serving_order;

typedef struct {
    /* arrived: number of requests that have started. done: number of processed tokens of each
     * request. */
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

/* Returns the next iteration: first its decode steps, then its prompts. After the last request, the
 * iteration is empty. */
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

typedef struct {
    const char *name;
    /* max_batch: maximum number of running requests. chunk: maximum number of tokens in an
     * iteration; 0: prompts are not split. */
    size_t max_batch, chunk;
    /* mixed: prompts and decode steps may share an iteration. graphs: decode runs as CUDA graphs.
     * phases: the engine measures the time of each phase. sequence: each GPU processes a part of a
     * prompt's tokens. */
    bool mixed, graphs, phases, sequence;
    kvd_attention_choice attention;
} setting;

static inline serving_order order_of(const setting *set)
{
    return (serving_order){.slots = set->max_batch, .chunk = set->chunk, .beside = set->mixed};
}

static inline kvd_engine_spec spec_of(const setting *set, size_t max_len, size_t max_tokens)
{
    return (kvd_engine_spec){
        .limits = {.max_batch = set->max_batch, .max_tokens = max_tokens, .chunk = set->chunk},
        .max_len = max_len,
        .type = KVD_BF16,
        .n_gpus = 1,
        .sequence = set->sequence,
        .graphs = set->graphs,
        .phases = set->phases,
        .attention = set->attention};
}

/* Frees an engine, which may be NULL. */
static inline void engine_free(kvd_engine *e)
{
    if (e)
        e->free(e);
}

static inline void engine_refused(const kvd_checkpoint *c, const kvd_plan *plan,
                                  const kvd_engine_spec *s, const char *why)
{
    kvd_err err = {""};
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, s, &err);
    test_result(!e && strstr(err.msg, why), "refused", "%s", e ? why : err.msg);
    engine_free(e);
}

/* Runs a decode step of two requests. Their 999 and 500 preceding tokens were never processed, so
 * the cache holds whatever its memory contained. */
static inline int step_uncomputed(kvd_engine *e, uint32_t token[2], kvd_err *err)
{
    static const kvd_slice slice[] = {{.slot = 0, .before = 999, .n = 1, .emits = 1},
                                      {.slot = 2, .before = 500, .n = 1, .emits = 1}};
    static const kvd_iteration it = {.n_slices = 2, .n_steps = 2, .slice = slice, .n_tokens = 2};
    static const uint32_t id[] = {5, 6};
    return e->step(e, &it, id, token, NULL, err);
}

/* Tests that running a decode step twice gives the same tokens, even if K and V of earlier tokens
 * were never computed. A NULL engine fails the test with the message in err. */
static inline void test_uncomputed(kvd_engine *e, const char *name, kvd_err *err)
{
    uint32_t first[2] = {0}, second[2] = {1};
    const int status = !e || step_uncomputed(e, first, err) || step_uncomputed(e, second, err);
    test_result(!status && !memcmp(first, second, sizeof first), name, "%s",
                status ? err->msg : "the same tokens twice");
}

/* Function that serve() calls after each iteration. If the function returns -1, serve() fails. */
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

/* results of requests that an engine served; the caller frees `logits` */
typedef struct {
    float *logits;     /* logits of emitted tokens, [outputs][vocab] */
    double held[4096]; /* bytes after each iteration, if the engine counts them */
    size_t n_held;
    kvd_phase_times sum;
} served;

typedef struct {
    const load *l;
    served *to;
} recorder;

static inline int record_iteration(void *ctx, kvd_engine *e, const kvd_iteration *it,
                                   const uint32_t *token, const kvd_phase_times *t, kvd_err *err)
{
    const recorder *const r = ctx;
    served *const to = r->to;
    int status = 0;
    (void)token;
    kvd_phase_add(&to->sum, t);
    if (e->held && to->n_held < sizeof to->held / sizeof *to->held)
        to->held[to->n_held++] = e->held(e);
    for (size_t i = 0; i < it->n_slices && !status; i++)
        if (it->slice[i].emits)
            status =
                e->logits(e, i, to->logits + output_row(r->l, &it->slice[i]) * r->l->vocab, err);
    return status;
}

static inline int serve_recorded(kvd_engine *e, const load *l, const serving_order *o, served *to,
                                 kvd_err *err)
{
    recorder r = {l, to};
    if (!to->logits)
        to->logits = need(l->outputs * l->vocab * sizeof *to->logits);
    to->n_held = 0;
    return serve(e, l, o, record_iteration, &r, err);
}

/* Compares the bytes that the cache occupies after each iteration in runs a and b. Returns the
 * largest relative difference, or infinity if the runs differ in their number of iterations. */
static inline double held_off(const served *a, const served *b)
{
    double most = a->n_held == b->n_held && a->n_held ? 0 : INFINITY;
    for (size_t i = 0; i < a->n_held && i < b->n_held; i++)
        most = worse(most, fabs(a->held[i] / b->held[i] - 1));
    return most;
}

/* Computes the relative distance between logits a and b of each output token. Returns the median,
 * and writes the largest to *most. */
static inline double logits_off(const load *l, const float *a, const float *b, double *most)
{
    const size_t n = l->outputs;
    double *const d = need(n * sizeof *d);
    for (size_t i = 0; i < n; i++)
        d[i] = distance(a + i * l->vocab, b + i * l->vocab, l->vocab);
    kvd_sort(d, n);
    const double median = d[n / 2];
    *most = d[n - 1];
    free(d);
    return median;
}

/* Computes logits [offset[n]][vocab] by a forward pass. A NULL `plan` means uncompressed. */
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
    to_host(to, logits, size);
    kvd_gpu_cache_free(cache);
    kvd_gpu_caches_free(caches);
    device_free(hidden, logits);
    kvd_gpu_forward_free(f);
    if (!status)
        return to;
    free(to);
    return NULL;
}

/* Computes the reference logits l->want in float32, and l->bar, the largest accepted error: twice
 * (with routed experts three times) the largest error of a forward pass in bf16. */
static inline int expect(load *l, const kvd_checkpoint *c, const kvd_plan *plan, kvd_err *err)
{
    const size_t vocab = (size_t)kvd_checkpoint_config(c)->vocab_size;
    l->want = run_pass(l, c, plan, KVD_F32, err);
    float *const narrow = l->want ? run_pass(l, c, plan, KVD_BF16, err) : NULL;
    const double times = kvd_checkpoint_config(c)->n_experts ? 3 : 2;
    const size_t n = l->offset[l->n];
    double mean = 0;
    l->bar = 0;
    for (size_t t = 0; narrow && t < n; t++) {
        const double off = distance(narrow + t * vocab, l->want + t * vocab, vocab);
        l->bar = fmax(l->bar, times * off);
        mean += off / (double)n;
    }
    free(narrow);
    /* Fails if bf16 rounding errors are so large that they would hide errors of the engine. */
    if (narrow && mean > 0.1)
        return kvd_fail(err, "the bf16 pass is off by %.2g on average", mean);
    return narrow ? 0 : -1;
}

static inline uint32_t largest(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return (uint32_t)best;
}

#endif
