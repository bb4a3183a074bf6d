#include "engine/cuda/engine_parts.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/clock.h"

typedef struct {
    kvd_gpu_threads *all;
    int gpu;
    pthread_t thread;
    kvd_err err;
} hand;

struct kvd_gpu_threads {
    int first_gpu, n;
    kvd_gpu_sum *sum;
    hand hand[KVD_GPUS_MAX];
    /* number of threads that were started; the first GPU has none, because its task runs in the
     * caller */
    int started;
    pthread_mutex_t lock;
    pthread_cond_t given, ended;
    atomic_uint turn; /* number of the current task */
    /* number of threads that have not yet finished the current task */
    int busy;
    kvd_gpu_threads_task task; /* NULL ends the threads */
    void *ctx;
};

/* Waits until a task with another number than `seen` is given. Polls for 0.5 ms, then sleeps.
 * Returns the task's number. */
static unsigned next_turn(kvd_gpu_threads *p, unsigned seen)
{
    const double awake_until = kvd_clock_s() + 5e-4;
    while (atomic_load(&p->turn) == seen && kvd_clock_s() < awake_until)
        (void)sched_yield();
    (void)pthread_mutex_lock(&p->lock);
    while (atomic_load(&p->turn) == seen)
        (void)pthread_cond_wait(&p->given, &p->lock);
    seen = atomic_load(&p->turn);
    (void)pthread_mutex_unlock(&p->lock);
    return seen;
}

static void work(hand *h)
{
    if (h->all->task(h->all->ctx, h->gpu, &h->err))
        kvd_gpu_sum_fail(h->all->sum, h->gpu);
}

static void *run_thread(void *ctx)
{
    hand *const h = ctx;
    kvd_gpu_threads *const p = h->all;
    unsigned seen = 0;
    for (;;) {
        seen = next_turn(p, seen);
        if (!p->task)
            return NULL;
        work(h);
        (void)pthread_mutex_lock(&p->lock);
        p->busy--;
        (void)pthread_cond_signal(&p->ended);
        (void)pthread_mutex_unlock(&p->lock);
    }
}

static void give(kvd_gpu_threads *p, kvd_gpu_threads_task task, void *ctx)
{
    (void)pthread_mutex_lock(&p->lock);
    p->task = task;
    p->ctx = ctx;
    p->busy = p->started;
    (void)atomic_fetch_add(&p->turn, 1);
    (void)pthread_cond_broadcast(&p->given);
    (void)pthread_mutex_unlock(&p->lock);
}

int kvd_gpu_threads_run(kvd_gpu_threads *p, kvd_gpu_threads_task task, void *ctx, kvd_err *err)
{
    give(p, task, ctx);
    work(&p->hand[0]);
    (void)pthread_mutex_lock(&p->lock);
    while (p->busy > 0)
        (void)pthread_cond_wait(&p->ended, &p->lock);
    (void)pthread_mutex_unlock(&p->lock);
    const int failed = kvd_gpu_sum_failed(p->sum);
    if (failed < 0)
        return 0;
    *err = p->hand[failed].err;
    return kvd_in(err, "GPU %d", p->first_gpu + failed);
}

kvd_gpu_threads *kvd_gpu_threads_new(int first_gpu, int n, kvd_gpu_sum *sum, kvd_err *err)
{
    kvd_gpu_threads *const p = kvd_new(1, sizeof *p, "threads of the GPUs", err);
    if (!p)
        return NULL;
    p->first_gpu = first_gpu;
    p->n = n;
    p->sum = sum;
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->given, NULL);
    (void)pthread_cond_init(&p->ended, NULL);
    for (int g = 0; g < n; g++)
        p->hand[g] = (hand){.all = p, .gpu = g};
    for (int g = 1; g < n; g++, p->started++)
        if (pthread_create(&p->hand[g].thread, NULL, run_thread, &p->hand[g])) {
            kvd_fail(err, "no thread for GPU %d", first_gpu + g);
            kvd_gpu_threads_free(p);
            return NULL;
        }
    return p;
}

void kvd_gpu_threads_free(kvd_gpu_threads *p)
{
    if (!p)
        return;
    give(p, NULL, NULL);
    for (int g = 1; g <= p->started; g++)
        (void)pthread_join(p->hand[g].thread, NULL);
    (void)pthread_cond_destroy(&p->given);
    (void)pthread_cond_destroy(&p->ended);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}
