/*
 * The engine on several GPUs (tensor parallelism, as Megatron-LM cuts: Shoeybi et al. 2019): each has its KV heads with their query heads, its
 * columns of the feed-forward block (model/cuda/weights.h) and the pages of its heads; sums over the GPUs follow the output projection and
 * the feed-forward block. Every GPU runs the same iteration in a thread of its own, the first one's in the caller's; tokens, logits and times
 * are the first one's.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "serving/cuda/engine_parts.h"

static const char what[] = "serving engine";

/* What all GPUs do at once. */
typedef int (*task)(kvd_cuda_engine *e, const void *ctx, kvd_err *err);

typedef struct parallel parallel;

typedef struct {
    parallel *all;
    int gpu;
    kvd_cuda_engine *engine;
    pthread_t thread;
    kvd_err err;
} hand;

struct parallel {
    kvd_engine engine; /* first */
    int n;
    kvd_gpu_sum *sum;
    hand hand[KVD_GPUS_MAX];
    int started; /* threads, of GPUs 1 .. */
    int failed;
    pthread_mutex_t lock;
    pthread_cond_t given, ended;
    atomic_uint turn; /* counts the tasks that were given                */
    atomic_int busy;  /* threads that have not ended the latest one      */
    task task;        /* NULL: the threads end */
    const void *ctx;
};

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- threads ------------------------------------------------------------------------------------------ */

/* From one step of decoding to the next a thread stays awake: to wake it takes longer than what lies between them. */
static unsigned next_turn(parallel *p, unsigned seen)
{
    const double awake_until = now() + 5e-4;
    while (atomic_load(&p->turn) == seen && now() < awake_until)
        (void)sched_yield();
    (void)pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->turn) == seen)
        (void)pthread_cond_wait(&p->given, &p->lock);
    seen = atomic_load(&p->turn);
    (void)pthread_mutex_unlock(&p->lock);
    return seen;
}

/* An error of one ends the sums for all: none of them waits for ever. */
static void work(hand *h)
{
    if (h->all->task(h->engine, h->all->ctx, &h->err))
        kvd_gpu_sum_fail(h->all->sum, h->gpu);
}

static void *run_thread(void *ctx)
{
    hand *const h = ctx;
    parallel *const p = h->all;
    unsigned seen = 0;
    for (;;) {
        seen = next_turn(p, seen);
        if (!p->task)
            return NULL;
        work(h);
        (void)pthread_mutex_lock(&p->lock);
        atomic_fetch_sub(&p->busy, 1);
        (void)pthread_cond_signal(&p->ended);
        (void)pthread_mutex_unlock(&p->lock);
    }
}

static void give(parallel *p, task t, const void *ctx)
{
    (void)pthread_mutex_lock(&p->lock);
    p->task = t;
    p->ctx = ctx;
    atomic_store(&p->busy, p->started);
    atomic_fetch_add(&p->turn, 1);
    (void)pthread_cond_broadcast(&p->given);
    (void)pthread_mutex_unlock(&p->lock);
}

/* All GPUs; an error is that of the first to fail. */
static int on_all(parallel *p, task t, const void *ctx, kvd_err *err)
{
    give(p, t, ctx);
    work(&p->hand[0]);
    (void)pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->busy) > 0)
        (void)pthread_cond_wait(&p->ended, &p->lock);
    (void)pthread_mutex_unlock(&p->lock);
    const int failed = kvd_gpu_sum_failed(p->sum);
    if (failed < 0)
        return 0;
    *err = p->hand[failed].err;
    return kvd_in(err, "GPU %d", p->hand[failed].engine->device);
}

static int start_threads(parallel *p, kvd_err *err)
{
    for (int g = 1; g < p->n; g++, p->started++)
        if (pthread_create(&p->hand[g].thread, NULL, run_thread, &p->hand[g]))
            return kvd_fail(err, "%s: no thread for GPU %d", what, p->hand[g].engine->device);
    return 0;
}

/* ---- an iteration ------------------------------------------------------------------------------------- */

typedef struct {
    const kvd_iteration *it;
    const uint32_t *id;
} iteration;

static int run(kvd_cuda_engine *e, const void *ctx, kvd_err *err)
{
    const iteration *const i = ctx;
    return kvd_cuda_engine_run(e, i->it, i->id, err);
}

/* The first row that is not finite on any of them. */
static kvd_gpu_bad bad_of(const parallel *p)
{
    kvd_gpu_bad bad = ~0ULL;
    for (int g = 0; g < p->n; g++) {
        const kvd_gpu_bad here = *p->hand[g].engine->host_bad;
        bad = here < bad ? here : bad;
    }
    return bad;
}

static int iterate(parallel *p, const kvd_iteration *it, const uint32_t *id, uint32_t *next, kvd_err *err)
{
    const iteration i = {it, id};
    if (on_all(p, run, &i, err))
        return -1;
    const kvd_gpu_bad bad = bad_of(p);
    for (int g = 0; g < p->n; g++)
        if (kvd_cuda_engine_conclude(p->hand[g].engine, it, bad, g ? NULL : next, err))
            return -1;
    return 0;
}

static int step(kvd_engine *self, const kvd_iteration *it, const uint32_t *id, uint32_t *next,
                kvd_phase_times *times, kvd_err *err)
{
    parallel *const p = (parallel *)(void *)self;
    const double start = now();
    if (p->failed)
        return kvd_fail(err, "the engine has failed before");
    if (iterate(p, it, id, next, err)) {
        p->failed = 1;
        return -1;
    }
    if (times)
        kvd_clock_read(&p->hand[0].engine->clock, now() - start, times);
    return 0;
}

static int logits(kvd_engine *self, size_t i, float *to, kvd_err *err)
{
    return kvd_cuda_engine_logits(((parallel *)(void *)self)->hand[0].engine, i, to, err);
}

/* ---- life --------------------------------------------------------------------------------------------- */

static int check_gpus(const kvd_engine_spec *s, kvd_err *err)
{
    int devices = 0;
    if (kvd_cuda_check(cudaGetDeviceCount(&devices), what, err))
        return -1;
    return s->n_gpus <= KVD_GPUS_MAX && s->first_gpu >= 0 && s->first_gpu <= devices - s->n_gpus
               ? 0
               : kvd_fail(err, "%d GPUs from number %d on were asked for, there are %d", s->n_gpus,
                          s->first_gpu, devices);
}

static int ready(kvd_cuda_engine *e, const void *pages, kvd_err *err)
{
    return kvd_cuda_engine_ready(e, *(const size_t *)pages, err);
}

/* Bytes of all of them. */
static void describe(parallel *p)
{
    const kvd_engine_facts *const first = &p->hand[0].engine->engine.facts;
    kvd_engine_facts *const f = &p->engine.facts;
    *f = *first;
    for (int g = 1; g < p->n; g++) {
        const kvd_engine_facts *const other = &p->hand[g].engine->engine.facts;
        f->cache_bytes += other->cache_bytes;
        f->bytes_per_token += other->bytes_per_token;
        f->weight_bytes += other->weight_bytes;
        f->peak_bytes += other->peak_bytes;
    }
    (void)snprintf(f->what, sizeof f->what, "%d x %.200s, %.32s", p->n, first->what,
                   kvd_gpu_sum_engine(p->sum));
}

/* Weights GPU by GPU, since they come from one file; the rest at once, since graphs run with sums in them. */
static int open_all(parallel *p, const kvd_checkpoint *c, const kvd_plan *plan, const kvd_engine_spec *s,
                    kvd_err *err)
{
    size_t pages = (size_t)-1, here;
    kvd_gpu_share share;
    if (check_gpus(s, err) || kvd_gpu_share_of(kvd_checkpoint_config(c), 0, s->n_gpus, &share, err))
        return -1;
    for (int g = 0; g < s->n_gpus; g++, p->n++) {
        p->hand[g] = (hand){.all = p, .gpu = g, .engine = kvd_cuda_engine_new(s, g, err)};
        if (!p->hand[g].engine)
            return -1;
    }
    if (!(p->sum = kvd_gpu_sum_new(s->first_gpu, s->n_gpus, err)))
        return -1;
    for (int g = 0; g < p->n; g++) {
        if (kvd_cuda_engine_load(p->hand[g].engine, c, plan, p->sum, &here, err))
            return -1;
        pages = here < pages ? here : pages;
    }
    if (start_threads(p, err) || on_all(p, ready, &pages, err))
        return -1;
    describe(p);
    return 0;
}

static void free_parallel(kvd_engine *self)
{
    parallel *const p = (parallel *)(void *)self;
    give(p, NULL, NULL);
    for (int g = 1; g <= p->started; g++)
        (void)pthread_join(p->hand[g].thread, NULL);
    /* Graphs before the sums in them, and those before their streams. */
    for (int g = 0; g < p->n; g++)
        if (!cudaSetDevice(p->hand[g].engine->device))
            kvd_cuda_graphs_destroy(p->hand[g].engine);
    kvd_gpu_sum_free(p->sum);
    for (int g = p->n - 1; g >= 0; g--)
        kvd_cuda_engine_free(p->hand[g].engine);
    (void)pthread_cond_destroy(&p->given);
    (void)pthread_cond_destroy(&p->ended);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

kvd_engine *kvd_engine_open_parallel(const kvd_checkpoint *c, const kvd_plan *plan, const kvd_engine_spec *s,
                                     kvd_err *err)
{
    parallel *const p = calloc(1, sizeof *p);
    if (!p) {
        kvd_no_memory(err, what, sizeof *p);
        return NULL;
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->given, NULL);
    (void)pthread_cond_init(&p->ended, NULL);
    p->engine = (kvd_engine){.step = step, .logits = logits, .free = free_parallel};
    if (open_all(p, c, plan, s, err)) {
        free_parallel(&p->engine);
        return NULL;
    }
    return &p->engine;
}
