/* Tests the serving simulator: its results must equal those of a simpler simulator bit for bit. */
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "common/rng.h"
#include "common/stats.h"
#include "jct_fixture.h"
#include "serving/simulate/simulator.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
static kvd_costs *costs, *fixed;

static kvd_costs *make_costs(double token, double context)
{
    char path[64];
    jct_fixture x;
    snprintf(path, sizeof path, "%s/x.h5", temp_folder());
    if (jct_fixture_begin(&x, &err))
        return NULL;
    for (size_t n = 16; n <= 1024; n *= 4) {
        jct_fixture_piece(&x, n, 0, 1e-3 + token * (double)n, &err);
        jct_fixture_piece(&x, n, 500, 1e-3 + (token + 500 * context) * (double)n, &err);
        jct_fixture_step(&x, n / 16, 10, 1e-3 + token * (double)(n / 16), &err);
        jct_fixture_step(&x, n / 16, 900, 1e-3 + (token + 890 * context) * (double)(n / 16), &err);
    }
    return jct_fixture_end(&x, path, test_run(), &err) ? NULL
                                                       : kvd_costs_load(path, "none", -1, &err);
}

static int setup(void **state)
{
    (void)state;
    costs = make_costs(1.37e-5, 3e-8);
    fixed = make_costs(0, 0);
    return costs && fixed ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvd_costs_free(costs);
    kvd_costs_free(fixed);
    return 0;
}

/* A simple simulator, the reference: it scans all requests at every event. */

typedef struct {
    /* here: true if the request has arrived. running: it is in the batch. gone: it has finished.
     * now: it is in the current iteration. */
    bool here, running, gone, now;
    int replica;
    /* counts of the request's tokens: in the cache (in), emitted (out), in the current iteration
     * (piece) */
    uint32_t in, out, piece;
    uint32_t again; /* tokens emitted before a preemption, which are part of the new prompt */
    double start, first, last, longest;
} job;

typedef struct {
    const kvd_requests *q;
    kvd_batching_limits limits;
    int replicas;
    kvd_route route;
    job job[400];
    double end[8]; /* end of each replica's iteration; infinite if idle */
    size_t arrived, turn, extrapolated, iterations, refused, preempted, recomputed;
    double busy, page_seconds, request_seconds;
} plain;

static size_t pages_for(size_t tokens)
{
    return tokens / 64 + (tokens % 64 != 0);
}

static size_t room_of(const kvd_request *r)
{
    return pages_for((size_t)r->input + r->output);
}

static uint32_t prompt_of(const plain *p, const job *j)
{
    return p->q->request[j - p->job].input + j->again;
}

/* Returns the pages that a request occupies: for its tokens so far (KVD_ADMIT_STORED), or for all
 * tokens of its prompt and output. */
static size_t pages_now(const plain *p, const job *j)
{
    const size_t prompt = prompt_of(p, j), tokens = (size_t)j->in + (j->now ? j->piece : 0);
    return p->limits.admission == KVD_ADMIT_STORED ? pages_for(tokens > prompt ? tokens : prompt)
                                                   : room_of(&p->q->request[j - p->job]);
}

/* Returns the pages that the running requests on a replica occupy. *running: number of these
 * requests. */
static size_t pages_on(const plain *p, int replica, size_t *running)
{
    size_t pages = 0;
    *running = 0;
    for (size_t i = 0; i < p->q->n; i++)
        if (p->job[i].running && p->job[i].replica == replica) {
            pages += pages_now(p, &p->job[i]);
            ++*running;
        }
    return pages;
}

static bool may_enter(const plain *p, const job *j)
{
    size_t running;
    const size_t pages = pages_on(p, j->replica, &running) + pages_now(p, j);
    const size_t spare =
        p->limits.admission == KVD_ADMIT_STORED && running ? p->limits.pages / 100 : 0;
    return running < p->limits.max_batch && pages + spare <= p->limits.pages;
}

static void plain_preempt(plain *p, int replica)
{
    job *last = NULL;
    for (size_t i = 0; i < p->q->n; i++)
        if (p->job[i].running && p->job[i].replica == replica)
            last = &p->job[i];
    assert_non_null(last);
    assert_false(last->now);
    p->preempted++;
    p->recomputed += last->in;
    last->running = false;
    last->in = 0;
    last->again = last->out;
}

/* Adds a decode step of request j to the iteration. If there are too few free pages, preempts
 * requests, perhaps j itself, and returns true. */
static bool plain_step(plain *p, job *j)
{
    bool preempted = false;
    size_t running;
    j->now = true;
    j->piece = 1;
    while (pages_on(p, j->replica, &running) > p->limits.pages) {
        j->now = false;
        plain_preempt(p, j->replica);
        preempted = true;
        j->now = j->running;
    }
    return preempted;
}

static void plain_begin(plain *p, int r, double now)
{
    kvd_slice slice[400];
    kvd_iteration it = {.slice = slice};
    size_t budget = p->limits.chunk;
    bool blocked = false, preempted = false;
    size_t prompt_tokens = 0;
    for (size_t i = 0; i < p->q->n && !p->limits.chunk && !blocked; i++) {
        job *j = &p->job[i];
        if (!j->here || j->replica != r || j->running || j->gone)
            continue;
        const uint32_t input = prompt_of(p, j);
        blocked =
            !may_enter(p, j) || (prompt_tokens && prompt_tokens + input > p->limits.max_tokens);
        if (blocked)
            break;
        j->running = j->now = true;
        j->piece = input;
        if (isnan(j->start))
            j->start = now;
        prompt_tokens += input;
    }
    for (size_t i = 0; i < p->q->n; i++) {
        job *j = &p->job[i];
        if (j->running && j->replica == r && j->in >= prompt_of(p, j) && !prompt_tokens) {
            preempted |= plain_step(p, j);
            if (!j->running)
                continue;
            slice[it.n_slices++] = (kvd_slice){.before = j->in, .n = 1};
            budget -= p->limits.chunk != 0;
        }
    }
    it.n_steps = it.n_slices;
    blocked = false;
    for (size_t i = 0; i < p->q->n && p->limits.chunk && budget && !blocked; i++) {
        job *j = &p->job[i];
        if (!j->here || j->replica != r || j->gone || j->in >= prompt_of(p, j))
            continue;
        if (!j->running && (preempted || !may_enter(p, j))) {
            blocked = true;
            continue;
        }
        if (!j->running && isnan(j->start))
            j->start = now;
        j->running = j->now = true;
        const uint32_t rest = prompt_of(p, j) - j->in;
        j->piece = rest < budget ? rest : (uint32_t)budget;
        budget -= j->piece;
    }
    for (size_t i = 0; i < p->q->n; i++)
        if (p->job[i].now && p->job[i].replica == r && p->job[i].in < prompt_of(p, &p->job[i]))
            slice[it.n_slices++] = (kvd_slice){.before = p->job[i].in, .n = p->job[i].piece};
    if (!it.n_slices)
        return;
    int beyond;
    const double seconds = kvd_costs_of(costs, &it, &beyond);
    p->extrapolated += beyond != 0;
    p->iterations++;
    size_t running;
    const size_t pages = pages_on(p, r, &running);
    assert_true(pages <= p->limits.pages);
    p->busy += seconds;
    p->page_seconds += seconds * (double)pages;
    p->request_seconds += seconds * (double)running;
    p->end[r] = now + seconds;
}

static void plain_end(plain *p, int r, double now)
{
    for (size_t i = 0; i < p->q->n; i++) {
        job *j = &p->job[i];
        const kvd_request *q = &p->q->request[i];
        if (!j->now || j->replica != r)
            continue;
        j->now = false;
        j->in += j->piece;
        if (j->in < prompt_of(p, j))
            continue;
        if (j->out++)
            j->longest = now - j->last > j->longest ? now - j->last : j->longest;
        else
            j->first = now;
        j->last = now;
        if (j->out == q->output) {
            j->running = false;
            j->gone = true;
        }
    }
    p->end[r] = INFINITY;
}

static double load_on(const plain *p, int r)
{
    double load = 0;
    for (size_t i = 0; i < p->q->n; i++) {
        const job *j = &p->job[i];
        if (j->here && !j->gone && j->replica == r)
            load += p->route == KVD_ROUTE_SHORTEST
                        ? p->q->request[i].input + p->q->request[i].output - 1 - j->in
                        : 1;
    }
    return load;
}

static void plain_arrive(plain *p, size_t i)
{
    job *j = &p->job[i];
    int best = 0;
    for (int r = 1; r < p->replicas; r++)
        if (load_on(p, r) < load_on(p, best))
            best = r;
    if (p->route == KVD_ROUTE_ROUND_ROBIN)
        best = (int)(p->turn++ % (size_t)p->replicas);
    j->replica = best;
    if (room_of(&p->q->request[i]) > p->limits.pages)
        p->refused++;
    else
        j->here = true;
}

static void plain_run(plain *p)
{
    size_t next = 0;
    for (;;) {
        double now = next < p->q->n ? p->q->request[next].arrival : INFINITY;
        for (int r = 0; r < p->replicas; r++)
            now = p->end[r] < now ? p->end[r] : now;
        if (isinf(now))
            return;
        while (next < p->q->n && p->q->request[next].arrival <= now)
            plain_arrive(p, next++);
        for (int r = 0; r < p->replicas; r++)
            if (p->end[r] <= now)
                plain_end(p, r, now);
        for (int r = 0; r < p->replicas; r++)
            if (isinf(p->end[r]))
                plain_begin(p, r, now);
    }
}

static bool same(double a, double b)
{
    return (a <= b && a >= b) || (isnan(a) && isnan(b));
}

static size_t compare(uint64_t seed, kvd_admission admission)
{
    static plain p;
    static kvd_request request[400];
    static kvd_served served[400];
    kvd_rng rng;
    kvd_rng_seed(&rng, seed, 0);
    kvd_requests q = {.n = 1 + kvd_rng_below(&rng, 400), .request = request};
    const double pause = 0.05 * kvd_rng_uniform(&rng);
    double now = 0;
    for (size_t i = 0; i < q.n; i++) {
        now += kvd_rng_below(&rng, 3) ? pause * kvd_rng_uniform(&rng) : 0;
        request[i] = (kvd_request){now, 1 + (uint32_t)kvd_rng_below(&rng, 900),
                                   1 + (uint32_t)kvd_rng_below(&rng, seed % 4 ? 60 : 2)};
    }
    memset(&p, 0, sizeof p);
    p.q = &q;
    p.limits.admission = admission;
    p.limits.max_batch = 1 + kvd_rng_below(&rng, 24);
    p.limits.max_tokens = 1 + kvd_rng_below(&rng, 2000);
    p.limits.chunk = seed % 2 ? p.limits.max_batch + kvd_rng_below(&rng, 300) : 0;
    p.limits.pages = 8 + kvd_rng_below(&rng, 100);
    p.replicas = 1 + (int)kvd_rng_below(&rng, 4);
    p.route = (kvd_route)kvd_rng_below(&rng, 3);
    for (int r = 0; r < 8; r++)
        p.end[r] = INFINITY;
    for (size_t i = 0; i < q.n; i++)
        p.job[i].start = p.job[i].first = NAN;
    plain_run(&p);

    kvd_simulated out;
    size_t gaps = 0, at = 0;
    double end = 0;
    for (size_t i = 0; i < q.n; i++)
        gaps += kvd_simulate_gaps(&p.limits, &request[i]);
    double *gap = unit_alloc((gaps + 1) * sizeof *gap);
    OK(kvd_simulate(&q, &p.limits, costs, p.replicas, p.route, served, gap, &out, &err));
    assert_int_equal(out.refused, p.refused);
    assert_int_equal(out.iterations, p.iterations);
    assert_int_equal(out.extrapolated, p.extrapolated);
    assert_int_equal(out.preempted, p.preempted);
    assert_int_equal(out.recomputed, p.recomputed);
    assert_true(fabs(out.busy - p.busy) <= 1e-12 * p.busy);
    assert_true(fabs(out.page_seconds - p.page_seconds) <= 1e-9 * p.page_seconds);
    assert_true(fabs(out.request_seconds - p.request_seconds) <= 1e-9 * p.request_seconds);
    for (size_t i = 0; i < q.n; i++) {
        const job *j = &p.job[i];
        double sum = 0, longest = 0;
        const size_t of = kvd_simulate_gaps(&p.limits, &request[i]);
        for (size_t k = 0; k < of; k++, at++) {
            sum += gap[at];
            longest = gap[at] > longest ? gap[at] : longest;
        }
        assert_true(same(served[i].first, j->first) && same(served[i].start, j->start));
        if (isnan(j->first)) {
            assert_int_equal(served[i].replica, -1);
            assert_true(isnan(served[i].end) && isnan(served[i].arrival));
            assert_int_equal(of, 0);
            continue;
        }
        assert_int_equal(of, request[i].output - 1);
        assert_true(same(served[i].end, j->last));
        assert_true(same(served[i].longest_gap, j->longest) && same(longest, j->longest));
        assert_true(same(served[i].arrival, request[i].arrival));
        assert_int_equal(served[i].replica, j->replica);
        assert_true(fabs(served[i].first + sum - served[i].end) <= 1e-9 * served[i].end);
        end = served[i].end > end ? served[i].end : end;
    }
    assert_true(same(out.end, end));
    assert_true(out.busy <= p.replicas * out.end * (1 + 1e-12));
    return p.preempted;
}

TEST(test_against_the_obvious)
{
    size_t preempted = 0, with = 0;
    for (uint64_t seed = 1; seed <= 150; seed++) {
        assert_int_equal(compare(seed, KVD_ADMIT_WHOLE), 0);
        const size_t n = compare(seed, KVD_ADMIT_STORED);
        preempted += n;
        with += n > 0;
    }
    /* Some of the 150 simulated traces need many preemptions, others need none. */
    assert_true(preempted > 300 && with > 30 && with < 150);
}

/* With enough memory, both rules of admission (pages for all tokens, or for stored tokens) must
 * give equal times. */
TEST(test_enough_memory)
{
    kvd_requests q;
    OK(kvd_requests_poisson(&q, 400, 300, "fixed:100:150", 3, &err));
    kvd_served *a = unit_alloc(q.n * sizeof *a), *b = unit_alloc(q.n * sizeof *b);
    for (size_t chunk = 0; chunk <= 256; chunk += 256) {
        kvd_batching_limits limits = {
            .max_batch = 64, .max_tokens = 2048, .chunk = chunk, .pages = 400};
        kvd_simulated x, y;
        OK(kvd_simulate(&q, &limits, costs, 1, KVD_ROUTE_SHORTEST, a, NULL, &x, &err));
        limits.admission = KVD_ADMIT_STORED;
        OK(kvd_simulate(&q, &limits, costs, 1, KVD_ROUTE_SHORTEST, b, NULL, &y, &err));
        assert_true(!y.preempted && !y.recomputed);
        for (size_t i = 0; i < q.n; i++)
            assert_true(same(a[i].start, b[i].start) && same(a[i].first, b[i].first) &&
                        same(a[i].end, b[i].end));
        assert_true(same(x.end, y.end) && y.page_seconds < x.page_seconds);
        limits.pages = 60;
        limits.admission = KVD_ADMIT_WHOLE;
        OK(kvd_simulate(&q, &limits, costs, 1, KVD_ROUTE_SHORTEST, a, NULL, &x, &err));
        limits.admission = KVD_ADMIT_STORED;
        OK(kvd_simulate(&q, &limits, costs, 1, KVD_ROUTE_SHORTEST, b, NULL, &y, &err));
        assert_true(y.preempted && y.recomputed >= 100 * y.preempted);
        assert_true(y.request_seconds / y.busy > x.request_seconds / x.busy);
    }
    kvd_requests_release(&q);
}

TEST(test_again)
{
    kvd_requests q;
    OK(kvd_requests_poisson(&q, 40, 500, "humaneval", 5, &err));
    kvd_served *a = unit_alloc(q.n * sizeof *a), *b = unit_alloc(q.n * sizeof *b);
    const kvd_batching_limits limits = {.max_batch = 16, .max_tokens = 2048, .pages = 300};
    kvd_simulated x, y;
    OK(kvd_simulate(&q, &limits, costs, 2, KVD_ROUTE_SHORTEST, a, NULL, &x, &err));
    OK(kvd_simulate(&q, &limits, costs, 2, KVD_ROUTE_SHORTEST, b, NULL, &y, &err));
    for (size_t i = 0; i < q.n; i++)
        assert_true(same(a[i].first, b[i].first) && same(a[i].end, b[i].end));
    assert_true(same(x.end, y.end) && same(x.busy, y.busy));
    FAILS(kvd_simulate(&q, &limits, costs, 0, KVD_ROUTE_SHORTEST, a, NULL, &x, &err), "0 replicas");
    kvd_requests_release(&q);
}

/* In an M/D/1 queue with load rho and service time s, requests wait rho s / (2 (1 - rho)) on
 * average. */
TEST(test_md1)
{
    enum { N = 200000, STRETCHES = 100 };
    static const double rho[] = {0.3, 0.6, 0.8};
    const kvd_batching_limits limits = {.max_batch = 1, .max_tokens = 1, .pages = 1000};
    kvd_served *served = unit_alloc(N * sizeof *served);
    for (int k = 0; k < 3; k++) {
        kvd_requests q;
        kvd_simulated out;
        double mean[STRETCHES] = {0};
        const double s = 1e-3; /* constant time of an iteration in seconds */
        OK(kvd_requests_poisson(&q, rho[k] / s, N, "fixed:100:1", 11 + (uint64_t)k, &err));
        OK(kvd_simulate(&q, &limits, fixed, 1, KVD_ROUTE_SHORTEST, served, NULL, &out, &err));
        for (size_t i = 0; i < N; i++) {
            assert_true(fabs(served[i].first - served[i].start - s) < 1e-9);
            mean[i / (N / STRETCHES)] += (served[i].start - served[i].arrival) / (N / STRETCHES);
        }
        const double want = rho[k] * s / (2 * (1 - rho[k])), got = kvd_mean(mean, STRETCHES);
        const double error = kvd_stddev(mean, STRETCHES) / sqrt(STRETCHES);
        /* The standard error of the mean wait must be small compared with the wait that theory
         * gives. */
        assert_true(error < 0.05 * want);
        if (fabs(got - want) > 3 * error)
            fail_msg("rho %g: mean wait %g, theory %g, standard error %g", rho[k], got, want,
                     error);
        assert_true(fabs(out.busy / out.end - rho[k]) < 0.01);
        kvd_requests_release(&q);
    }
}

TEST_MAIN(setup, teardown)
