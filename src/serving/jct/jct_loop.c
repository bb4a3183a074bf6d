#include "serving/jct/jct_loop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/run.h"

#if defined(KVD_CUDA) && defined(__has_include)
/* cppcheck-suppress preprocessorErrorDirective ; cppcheck cannot evaluate __has_include */
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define KVD_NVTX 1
#endif
#endif

double kvd_jct_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint32_t kvd_jct_id(uint64_t seed, size_t r, size_t p, size_t vocab)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + ((uint64_t)r << 32) + p + 1;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % vocab);
}

typedef struct {
    const kvd_jct_loop *loop;
    const kvd_requests *requests;
    kvd_batcher *batcher;
    kvd_jct_served *out;
    /* token ids of an iteration: id [capacity] goes in, next [max_batch] comes out */
    uint32_t *id, *next;
    size_t capacity;
    /* [sum of output lengths] output tokens of all requests, one request after another */
    uint32_t *token;
    size_t *emitted; /* output tokens of each request so far, [n] */
    size_t arrived, held;
    /* clock readings in seconds: at the start of the run, and at the end of the latest iteration */
    double zero, last_end;
} serving;

void kvd_jct_served_release(kvd_jct_served *s)
{
    free(s->first);
    free(s->last);
    free(s->gap);
    free(s->gap_at);
    free(s->preempted);
    free(s->recomputed);
    memset(s, 0, sizeof *s);
}

static int prepare(serving *v, kvd_err *err)
{
    kvd_jct_served *const o = v->out;
    const size_t n = v->requests->n;
    size_t gaps = 0;
    *o = (kvd_jct_served){.n = n, .run = {.joules = (double)NAN}};
    o->gap_at = calloc(n + 1, sizeof *o->gap_at);
    for (size_t r = 0; o->gap_at && r < n; r++) {
        gaps += v->requests->request[r].output - 1;
        o->gap_at[r + 1] = gaps;
    }
    o->first = calloc(n, sizeof *o->first);
    o->last = calloc(n, sizeof *o->last);
    o->gap = calloc(gaps ? gaps : 1, sizeof *o->gap);
    o->preempted = calloc(n, sizeof *o->preempted);
    o->recomputed = calloc(n, sizeof *o->recomputed);
    v->token = calloc(gaps + n, sizeof *v->token);
    v->emitted = calloc(n, sizeof *v->emitted);
    v->next = calloc(v->loop->limits.max_batch, sizeof *v->next);
    if (!o->gap_at || !o->first || !o->last || !o->gap || !o->preempted || !o->recomputed ||
        !v->token || !v->emitted || !v->next)
        return kvd_no_memory(err, "times of all tokens",
                             (unsigned long long)(2 * gaps + 6 * n) * sizeof(double));
    return (v->batcher = kvd_batcher_new(v->requests, &v->loop->limits, err)) ? 0 : -1;
}

static uint32_t *tokens_of(const serving *v, size_t r)
{
    return v->token + v->out->gap_at[r] + r;
}

static int fill(serving *v, const kvd_iteration *it, kvd_err *err)
{
    if (it->n_tokens > v->capacity) {
        uint32_t *const grown = realloc(v->id, it->n_tokens * sizeof *grown);
        if (!grown)
            return kvd_no_memory(err, "ids of an iteration", it->n_tokens * sizeof *grown);
        v->id = grown;
        v->capacity = it->n_tokens;
    }
    size_t n = 0;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        const size_t input = v->requests->request[s->request].input;
        for (size_t p = s->before; p < (size_t)s->before + s->n; p++)
            v->id[n++] = p < input ? kvd_jct_id(v->loop->seed, s->request, p, v->loop->vocab)
                                   : tokens_of(v, s->request)[p - input];
    }
    return 0;
}

static void take(serving *v, const kvd_iteration *it, double end)
{
    kvd_jct_served *const o = v->out;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        v->held += s->n;
        if (s->emits) {
            const size_t k = v->emitted[s->request]++;
            tokens_of(v, s->request)[k] = v->next[i];
            if (k == 0)
                o->first[s->request] = end - v->zero;
            else
                o->gap[o->gap_at[s->request] + k - 1] = end - v->zero - o->last[s->request];
            o->last[s->request] = end - v->zero;
        }
    }
}

static void account(serving *v, const kvd_iteration *it, const kvd_phase_times *times)
{
    const kvd_engine *const e = v->loop->engine;
    kvd_jct_run *const r = &v->out->run;
    const kvd_batcher_load load = kvd_batcher_ask(v->batcher);
    const double held = e->held ? e->held(e) : (double)v->held * e->facts.bytes_per_token;
    if (e->sent) {
        double bytes[2];
        e->sent(e, bytes);
        r->sent[0] += bytes[0];
        r->sent[1] += bytes[1];
    }
    kvd_phase_add(it->n_steps < it->n_slices ? &r->prefill : &r->decode, times);
    if (held > r->held_bytes) {
        r->held_bytes = held;
        r->held_tokens = (double)v->held;
    }
    r->running = load.running > r->running ? load.running : r->running;
    r->iterations++;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            v->held -= (size_t)it->slice[i].before + it->slice[i].n;
}

/* Begins a named range in the profiler Nsight Systems. Without the profiler's library NVTX, does
 * nothing. */
static void range_push(const char *name)
{
#ifdef KVD_NVTX
    nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static void range_pop(void)
{
#ifdef KVD_NVTX
    nvtxRangePop();
#endif
}

static int iterate(serving *v, const kvd_iteration *it, kvd_err *err)
{
    kvd_engine *const e = v->loop->engine;
    kvd_phase_times times;
    char name[64];
    snprintf(name, sizeof name, "%zu steps, %zu tokens of prompts", it->n_steps,
             it->n_tokens - it->n_steps);
    if (fill(v, it, err))
        return -1;
    range_push(name);
    const int status = e->step(e, it, v->id, v->next, &times, err);
    range_pop();
    if (status)
        return -1;
    const double end = kvd_jct_now(), whole = end - v->last_end;
    /* The rest of the iteration's time, outside all timed phases, is host (CPU) time. */
    times.part[KVD_PHASE_HOST] += whole - times.total;
    times.total = whole;
    take(v, it, end);
    account(v, it, &times);
    if (v->loop->trace)
        kvd_jct_trace_iteration(v->loop->trace, it, v->last_end, &times);
    v->last_end = end;
    return 0;
}

static int give_way(serving *v, kvd_err *err)
{
    kvd_engine *const e = v->loop->engine;
    size_t n;
    const kvd_preempted *const p = kvd_batcher_preempted(v->batcher, &n);
    if (n && !e->drop)
        return kvd_fail(err,
                        "request %u was preempted, and this engine frees no slot before its "
                        "request ends",
                        p->request);
    for (size_t i = 0; i < n; i++) {
        e->drop(e, p[i].slot);
        v->held -= p[i].tokens;
        v->out->preempted[p[i].request]++;
        v->out->recomputed[p[i].request] += p[i].tokens;
    }
    return 0;
}

static int arrive(serving *v, kvd_err *err)
{
    const double now = kvd_jct_now() - v->zero;
    for (; v->arrived < v->requests->n && !(v->requests->request[v->arrived].arrival > now);
         v->arrived++)
        if (kvd_batcher_arrive(v->batcher, (uint32_t)v->arrived, err))
            return -1;
    return 0;
}

/* Sleeps until 1 ms before the next arrival, then polls the clock. */
static void wait_for_arrival(serving *v)
{
    const double left = v->requests->request[v->arrived].arrival - (kvd_jct_now() - v->zero) - 1e-3;
    const double some = left < 0.1 ? left : 0.1;
    if (some > 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(some * 1e9)}, NULL);
    v->last_end = kvd_jct_now();
}

static int serve(serving *v, kvd_err *err)
{
    v->zero = v->last_end = kvd_jct_now();
    for (;;) {
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
        if (arrive(v, err))
            return -1;
        const kvd_iteration it = kvd_batcher_next(v->batcher);
        if (give_way(v, err))
            return -1;
        if (it.n_slices) {
            if (iterate(v, &it, err))
                return -1;
        } else if (v->arrived == v->requests->n)
            return 0;
        else
            wait_for_arrival(v);
    }
}

static void summarise(serving *v)
{
    kvd_jct_run *const r = &v->out->run;
    for (size_t i = 0; i < v->out->n; i++) {
        const double ttft = v->out->first[i] - v->requests->request[i].arrival;
        r->ttft_mean += ttft / (double)v->out->n;
        r->ttft_max = ttft > r->ttft_max ? ttft : r->ttft_max;
        r->jct = v->out->last[i] > r->jct ? v->out->last[i] : r->jct;
        r->preempted += v->out->preempted[i];
        r->recomputed += v->out->recomputed[i];
        if (v->loop->trace)
            kvd_jct_trace_request(v->loop->trace, i, v->zero + v->requests->request[i].arrival,
                                  v->zero + v->out->first[i], v->zero + v->out->last[i]);
    }
}

int kvd_jct_serve(const kvd_jct_loop *l, const kvd_requests *requests, kvd_jct_served *out,
                  kvd_err *err)
{
    serving v = {.loop = l, .requests = requests, .out = out};
    int status = prepare(&v, err);
    const double before = l->energy ? kvd_energy_joules(l->energy) : (double)NAN;
    status = status || serve(&v, err);
    if (!status) {
        summarise(&v);
        /* Reports energy only for runs longer than 1 s, because GPUs update the energy counter
         * every 0.1 s. */
        if (l->energy && out->run.jct > 1)
            out->run.joules = kvd_energy_joules(l->energy) - before;
    }
    kvd_batcher_free(v.batcher);
    free(v.id);
    free(v.next);
    free(v.token);
    free(v.emitted);
    return status ? -1 : 0;
}
