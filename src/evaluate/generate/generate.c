#include "evaluate/generate/generate.h"

#include <stdlib.h>

#include "common/threads.h"
#include "evaluate/generate/generate_path.h"

/* worker that generates tokens: a GPU with its copy of the model, or a CPU thread */
typedef struct {
    kvd_generator_spec spec; /* specification for this worker's GPU alone */
    /* text generator that keeps the KV cache in host memory; NULL if it is not open */
    kvd_generate_path *rows;
#ifdef KVD_CUDA
    struct kvd_gpu_weights *weights; /* weights in GPU memory, or NULL until the first call */
#endif
} worker;

struct kvd_generator {
    const kvd_checkpoint *checkpoint;
    const kvd_config *config;
    kvd_generator_spec spec;
    worker *worker; /* [spec.n_gpus] one for each GPU or CPU thread */
    size_t n_calls; /* number of earlier kvd_generate calls */
};

int kvd_sequences_end(kvd_sequences *s, size_t n_new, kvd_err *err)
{
    size_t *const offset = realloc(s->offset, (s->n + 2) * sizeof *offset);
    if (offset)
        s->offset = offset;
    size_t *const end = realloc(s->end, (s->n + 2) * sizeof *end);
    if (end)
        s->end = end;
    if (!offset || !end)
        return kvd_no_memory(err, "a list of lengths", 2 * (s->n + 2) * sizeof *end);
    if (!s->n)
        s->offset[0] = s->end[0] = 0;
    s->n++;
    s->offset[s->n] = s->prompt.n;
    s->end[s->n] = s->forced.n ? s->forced.n : s->end[s->n - 1] + n_new;
    return 0;
}

kvd_continuations kvd_sequences_take(kvd_sequences *s)
{
    const kvd_continuations c = {.n_sequences = s->n,
                                 .offset = s->offset,
                                 .id = s->prompt.id,
                                 .end = s->end,
                                 .forced = s->forced.id};
    *s = (kvd_sequences){.n = 0};
    return c;
}

void kvd_sequences_release(kvd_sequences *s)
{
    kvd_continuations c = kvd_sequences_take(s);
    kvd_continuations_release(&c);
}

void kvd_continuations_release(kvd_continuations *c)
{
    free((void *)(uintptr_t)c->offset);
    free((void *)(uintptr_t)c->id);
    free((void *)(uintptr_t)c->end);
    free((void *)(uintptr_t)c->forced);
    *c = (kvd_continuations){.n_sequences = 0};
}

size_t kvd_continuations_longest(const kvd_continuations *c)
{
    size_t longest = 0;
    for (size_t s = 0; s < c->n_sequences; s++) {
        const size_t n = c->offset[s + 1] - c->offset[s] + c->end[s + 1] - c->end[s];
        longest = n > longest ? n : longest;
    }
    return longest;
}

const char *kvd_generator_name(const kvd_generator_spec *s)
{
    return !s->gpu ? "CPU, f32, row by row" : s->compute == KVD_BF16 ? "GPU, bf16" : "GPU, f32";
}

const char *kvd_generator_path(const kvd_generator *g, const kvd_plan *plan,
                               char why[KVD_GENERATOR_WHY])
{
    (void)plan;
    why[0] = '\0';
#ifdef KVD_CUDA
    if (g->spec.gpu && kvd_generate_engine_runs(g->config, &g->spec, plan, why))
        return kvd_generate_engine_name(g->config, &g->spec, plan);
#endif
    return g->spec.gpu ? "products on the GPU, cache on the CPU" : "CPU";
}

void kvd_generator_free(kvd_generator *g)
{
    if (!g)
        return;
    for (int i = 0; g->worker && i < g->spec.n_gpus; i++) {
        worker *const w = &g->worker[i];
        if (w->rows)
            w->rows->free(w->rows);
#ifdef KVD_CUDA
        kvd_generate_weights_free(w->weights, &w->spec);
#endif
    }
    free(g->worker);
    free(g);
}

kvd_generator *kvd_generator_new(const kvd_checkpoint *c, const kvd_generator_spec *s, kvd_err *err)
{
    kvd_generator *const g = kvd_new(1, sizeof *g, "a generator", err);
    if (!g)
        return NULL;
    *g = (kvd_generator){.checkpoint = c, .config = kvd_checkpoint_config(c), .spec = *s};
    if (g->spec.max_tokens < s->max_len)
        g->spec.max_tokens = s->max_len;
    g->spec.n_gpus = s->n_gpus > 1 ? s->n_gpus : 1;
    if (!(g->worker = calloc((size_t)g->spec.n_gpus, sizeof *g->worker))) {
        kvd_no_memory(err, "a generator", (size_t)g->spec.n_gpus * sizeof *g->worker);
        kvd_generator_free(g);
        return NULL;
    }
    for (int i = 0; i < g->spec.n_gpus; i++) {
        g->worker[i].spec = g->spec;
        g->worker[i].spec.first_gpu += i;
        g->worker[i].spec.n_gpus = 1;
    }
    /* If no GPU is used, opens the generator that keeps the KV cache in host memory. */
    worker *const w = g->worker;
    if (kvd_batch_limits(c, g->spec.max_tokens, s->max_len, err) ||
        (!s->gpu && !(w->rows = kvd_generate_rows(c, &w->spec, NULL, err)))) {
        kvd_generator_free(g);
        return NULL;
    }
    return g;
}

static int check(const kvd_generator *g, const kvd_continuations *c, kvd_err *err)
{
    for (size_t s = 0; s < c->n_sequences; s++) {
        const size_t n = c->offset[s + 1] - c->offset[s];
        const size_t after = c->end[s + 1] - c->end[s];
        if (n == 0 || after == 0)
            return kvd_fail(err, "sequence %zu: a prompt of %zu tokens and %zu after it", s, n,
                            after);
        if (n + after > g->spec.max_len)
            return kvd_fail(err,
                            "sequence %zu: a prompt of %zu tokens and %zu after it, room for %zu",
                            s, n, after, g->spec.max_len);
        for (size_t i = c->end[s]; c->forced && i < c->end[s + 1]; i++)
            if (c->forced[i] != KVD_FREE_TOKEN && c->forced[i] >= (uint32_t)g->config->vocab_size)
                return kvd_fail(err,
                                "sequence %zu: token id %u is not below the vocabulary size %d", s,
                                (unsigned)c->forced[i], g->config->vocab_size);
    }
    return 0;
}

typedef struct {
    kvd_generator *g;
    const kvd_plan *plan;
    const kvd_continuations *c;
    const kvd_continued *out;
    kvd_generate_step step;
    void *ctx;
    /* [c->n_sequences] cache statistics of a batch of sequences that ran together, at the index of
     * the batch's first sequence; 0 at all other indices */
    kvd_stepwise_account *account;
    pthread_mutex_t lock;
    size_t next;
    /* number of the next group of sequences that run together; with --part, which divides the work
     * among processes, this number decides which process runs the group */
    size_t group;
    bool failed;
    kvd_err err;
} job;

/* Returns a generator for the compression methods of job *j. It is the GPU engine, which the caller
 * frees, or w->rows, which keeps the KV cache in host memory. Returns NULL on failure. */
static kvd_generate_path *path_of(const job *j, worker *w, kvd_err *err)
{
    const kvd_generator *const g = j->g;
    const struct kvd_gpu_weights *weights = NULL;
#ifdef KVD_CUDA
    char why[KVD_GENERATOR_WHY];
    if (g->spec.gpu && !w->weights &&
        !(w->weights = kvd_generate_weights_new(g->checkpoint, &w->spec, err)))
        return NULL;
    weights = w->weights;
    if (g->spec.gpu && kvd_generate_engine_runs(g->config, &w->spec, j->plan, why)) {
        if (w->rows)
            w->rows->free(w->rows);
        w->rows = NULL;
        return kvd_generate_engine(g->checkpoint, &w->spec, weights, j->plan, j->c->n_sequences,
                                   j->out->log_p || j->out->rank, err);
    }
#endif
    if (!w->rows)
        w->rows = kvd_generate_rows(g->checkpoint, &w->spec, weights, err);
    return w->rows;
}

/* Takes the next group of sequences that this process must run; --part divides the groups among
 * processes. Returns false if no group is left or a worker has failed. */
static bool take_group(job *j, const kvd_generate_path *path, size_t *first, size_t *n)
{
    const kvd_generator_spec *const s = &j->g->spec;
    bool mine = false;
    (void)pthread_mutex_lock(&j->lock);
    while (!mine && !j->failed && j->next < j->c->n_sequences) {
        *first = j->next;
        *n = path->together(path, j->c, *first);
        j->next += *n;
        mine = s->n_parts < 2 || j->group % s->n_parts == s->part;
        j->group++;
    }
    (void)pthread_mutex_unlock(&j->lock);
    return mine;
}

/* Returns true if sequence s can run together with others: it is not yet generated, and LongRoPE's
 * factors do not change within it. */
static bool follows(const job *j, size_t s)
{
    return !(j->c->done && j->c->done[s]) && !kvd_generate_outgrows(j->g->config, j->c, s);
}

static int run_group(job *j, kvd_generate_path *path, size_t first, size_t n, kvd_err *err)
{
    const bool *const done = j->c->done;
    for (size_t s = first, end; s < first + n; s = end) {
        end = s + 1;
        if (done && done[s])
            continue;
        while (follows(j, s) && end < first + n && follows(j, end))
            end++;
        if (kvd_generate_group(path, j->g->config, j->plan, j->c, j->out, s, end - s, &j->lock,
                               &j->account[s], err))
            return -1;
        (void)pthread_mutex_lock(&j->lock);
        const int status = j->step ? j->step(j->ctx, s, end - s, &j->account[s], err) : 0;
        (void)pthread_mutex_unlock(&j->lock);
        if (status)
            return -1;
    }
    return 0;
}

static void run_worker(job *j, worker *w)
{
    size_t first, n;
    kvd_err err = {""};
#ifdef KVD_CUDA
    if (w->spec.gpu)
        kvd_generate_use_gpu(&w->spec);
#endif
    kvd_generate_path *const path = path_of(j, w, &err);
    int status = path ? 0 : -1;
    while (!status && take_group(j, path, &first, &n))
        status = run_group(j, path, first, n, &err);
    if (path && path != w->rows)
        path->free(path);
    if (!status)
        return;
    (void)pthread_mutex_lock(&j->lock);
    if (!j->failed)
        j->err = err;
    j->failed = true;
    (void)pthread_mutex_unlock(&j->lock);
}

typedef struct {
    job *job;
    worker *worker;
    int threads; /* number of OpenMP threads */
    pthread_t thread;
} hand;

static void *run_thread(void *ctx)
{
    const hand *const h = ctx;
    kvd_threads_limit(h->threads);
    run_worker(h->job, h->worker);
    return NULL;
}

/* Runs n workers: the first in this thread, each other one in a new thread. */
static void run_workers(job *j, size_t n)
{
    hand *const h = calloc(n, sizeof *h);
    size_t started = 1;
    if (!h) {
        j->failed = kvd_no_memory(&j->err, "threads of a generator", n * sizeof *h) != 0;
        return;
    }
    const int blas = kvd_blas_serial(), threads = (int)kvd_thread_count(),
              each = threads > (int)n ? threads / (int)n : 1;
    for (; started < n; started++) {
        h[started] = (hand){.job = j, .worker = &j->g->worker[started], .threads = each};
        if (pthread_create(&h[started].thread, NULL, run_thread, &h[started]))
            break;
    }
    kvd_threads_limit(each);
    run_worker(j, j->g->worker);
    kvd_threads_limit(threads);
    for (size_t i = 1; i < started; i++)
        (void)pthread_join(h[i].thread, NULL);
    kvd_blas_restore(blas);
    free(h);
}

int kvd_generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                 const kvd_continued *out, kvd_stepwise_account *account, kvd_generate_step step,
                 void *ctx, kvd_err *err)
{
    size_t left = 0;
    job j = {
        .g = g, .plan = plan, .c = c, .out = out, .step = step, .ctx = ctx, .group = g->n_calls++};
    if (check(g, c, err))
        return -1;
    for (size_t s = 0; s < c->n_sequences; s++) {
        if (c->done && c->done[s])
            continue;
        left++;
        if (out->cost)
            out->cost[s] = (kvd_continued_cost){0};
    }
    if (!left)
        return 0;
    if (!(j.account = calloc(c->n_sequences, sizeof *j.account)))
        return kvd_no_memory(err, "accounts of groups", c->n_sequences * sizeof *j.account);
    (void)pthread_mutex_init(&j.lock, NULL);
    const size_t n = left < (size_t)g->spec.n_gpus ? left : (size_t)g->spec.n_gpus;
    if (n > 1)
        run_workers(&j, n);
    else
        run_worker(&j, g->worker);
    (void)pthread_mutex_destroy(&j.lock);
    /* Adds the statistics of sequences in a fixed order, so that rounding does not depend on
     * timing. */
    for (size_t s = 0; account && !j.failed && s < c->n_sequences; s++)
        kvd_stepwise_account_add(account, &j.account[s]);
    free(j.account);
    if (j.failed)
        *err = j.err;
    return j.failed ? -1 : 0;
}
