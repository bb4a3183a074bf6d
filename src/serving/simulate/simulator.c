#include "serving/simulate/simulator.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/run.h"

const char *const kvd_route_name[KVD_ROUTES + 1] = {"shortest", "round-robin", "least-loaded",
                                                    NULL};

typedef struct {
    kvd_batcher *batcher;
    kvd_iteration now; /* valid if `busy` is true */
    /* busy: true while the replica runs an iteration; touched: true if it may have new requests to
     * run */
    bool busy, touched;
} replica;

typedef struct {
    double time;
    int replica;
} event;

typedef struct {
    const kvd_requests *requests;
    const kvd_costs *costs;
    kvd_route route;
    int n, turn; /* number of replicas, and next replica in round robin */
    replica *replica;
    event *heap; /* heap of the times at which running iterations end, [n] */
    size_t n_events;
    kvd_served *served;
    /* gap: seconds between successive tokens of a request, for all requests; latest [requests]:
     * time of each request's latest token */
    double *gap, *latest;
    size_t *gap_at;
    kvd_simulated *out;
} simulation;

static bool sooner(const event *a, const event *b)
{
    if (a->time < b->time || a->time > b->time)
        return a->time < b->time;
    return a->replica < b->replica;
}

static void swap(event *a, event *b)
{
    const event x = *a;
    *a = *b;
    *b = x;
}

static void push(simulation *s, event e)
{
    size_t i = s->n_events++;
    s->heap[i] = e;
    for (; i > 0 && sooner(&s->heap[i], &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&s->heap[i], &s->heap[(i - 1) / 2]);
}

static event pop(simulation *s)
{
    const event top = s->heap[0];
    s->heap[0] = s->heap[--s->n_events];
    for (size_t i = 0, least = 0;; i = least) {
        for (size_t k = 2 * i + 1; k <= 2 * i + 2; k++)
            if (k < s->n_events && sooner(&s->heap[k], &s->heap[least]))
                least = k;
        if (least == i)
            return top;
        swap(&s->heap[i], &s->heap[least]);
    }
}

static size_t load_of(const simulation *s, int r)
{
    const kvd_batcher_load load = kvd_batcher_ask(s->replica[r].batcher);
    return s->route == KVD_ROUTE_SHORTEST ? load.tokens : load.waiting + load.running;
}

static int choose(simulation *s)
{
    int best = 0;
    if (s->n == 1)
        return 0;
    if (s->route == KVD_ROUTE_ROUND_ROBIN) {
        best = s->turn;
        s->turn = (s->turn + 1) % s->n;
        return best;
    }
    for (int r = 1; r < s->n; r++)
        if (load_of(s, r) < load_of(s, best))
            best = r;
    return best;
}

static void arrive(simulation *s, uint32_t i)
{
    const int r = choose(s);
    kvd_err why;
    s->served[i] = (kvd_served){.arrival = s->requests->request[i].arrival,
                                .start = NAN,
                                .first = NAN,
                                .end = NAN,
                                .replica = r};
    if (!kvd_batcher_arrive(s->replica[r].batcher, i, &why)) {
        s->replica[r].touched = true;
        return;
    }
    if (!s->out->refused++)
        s->out->refusal = why;
    s->served[i] = (kvd_served){
        .arrival = NAN, .start = NAN, .first = NAN, .end = NAN, .longest_gap = NAN, .replica = -1};
}

static void token_out(simulation *s, const kvd_slice *slice, double now)
{
    const uint32_t i = slice->request;
    kvd_served *served = &s->served[i];
    if (isnan(served->first))
        served->first = now;
    else {
        const double gap = now - s->latest[i];
        served->longest_gap = fmax(served->longest_gap, gap);
        if (s->gap)
            s->gap[s->gap_at[i]++] = gap;
    }
    s->latest[i] = now;
    if (slice->last)
        served->end = now;
}

static void finish(simulation *s, event e)
{
    replica *r = &s->replica[e.replica];
    for (size_t i = 0; i < r->now.n_slices; i++)
        if (r->now.slice[i].emits)
            token_out(s, &r->now.slice[i], e.time);
    r->busy = false;
    r->touched = true;
    s->out->end = e.time;
}

static void begin(simulation *s, int index, double now)
{
    replica *r = &s->replica[index];
    int extrapolated;
    r->touched = false;
    r->now = kvd_batcher_next(r->batcher);
    size_t n;
    const kvd_preempted *const preempted = kvd_batcher_preempted(r->batcher, &n);
    s->out->preempted += n;
    for (size_t i = 0; i < n; i++)
        s->out->recomputed += preempted[i].tokens;
    if (!r->now.n_slices)
        return;
    const double seconds = kvd_costs_of(s->costs, &r->now, &extrapolated);
    for (size_t i = r->now.n_steps; i < r->now.n_slices; i++)
        if (!r->now.slice[i].before && isnan(s->served[r->now.slice[i].request].start))
            s->served[r->now.slice[i].request].start = now;
    r->busy = true;
    s->out->iterations++;
    s->out->extrapolated += extrapolated != 0;
    s->out->busy += seconds;
    const kvd_batcher_load load = kvd_batcher_ask(r->batcher);
    s->out->page_seconds += seconds * (double)load.pages_used;
    s->out->request_seconds += seconds * (double)load.running;
    push(s, (event){.time = now + seconds, .replica = index});
}

static int run(simulation *s, kvd_err *err)
{
    const kvd_requests *q = s->requests;
    for (size_t next = 0; next < q->n || s->n_events;) {
        const bool arrival =
            next < q->n && (!s->n_events || q->request[next].arrival <= s->heap[0].time);
        const double now = arrival ? q->request[next].arrival : s->heap[0].time;
        for (; next < q->n && q->request[next].arrival <= now; next++)
            arrive(s, (uint32_t)next);
        while (s->n_events && s->heap[0].time <= now)
            finish(s, pop(s));
        for (int r = 0; r < s->n; r++)
            if (s->replica[r].touched && !s->replica[r].busy)
                begin(s, r, now);
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
    }
    return 0;
}

static int prepare(simulation *s, const kvd_batching_limits *limits, kvd_err *err)
{
    const size_t n = s->requests->n ? s->requests->n : 1;
    s->replica = calloc((size_t)s->n, sizeof *s->replica);
    s->heap = calloc((size_t)s->n, sizeof *s->heap);
    s->latest = calloc(n, sizeof *s->latest);
    s->gap_at = calloc(n, sizeof *s->gap_at);
    if (!s->replica || !s->heap || !s->latest || !s->gap_at)
        return kvd_no_memory(err, "a simulation", n * (sizeof *s->latest + sizeof *s->gap_at));
    for (size_t i = 0, at = 0; i < s->requests->n; i++) {
        if (!isfinite(s->requests->request[i].arrival))
            return kvd_fail(err, "request %zu arrives at %g s", i, s->requests->request[i].arrival);
        s->gap_at[i] = at;
        at += kvd_simulate_gaps(limits, &s->requests->request[i]);
    }
    for (int r = 0; r < s->n; r++)
        if (!(s->replica[r].batcher = kvd_batcher_new(s->requests, limits, err)))
            return -1;
    return 0;
}

size_t kvd_simulate_gaps(const kvd_batching_limits *limits, const kvd_request *request)
{
    return kvd_batching_fits(limits, request) ? request->output - 1 : 0;
}

int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route, kvd_served *served,
                 double *gap, kvd_simulated *out, kvd_err *err)
{
    simulation s = {.requests = requests,
                    .costs = costs,
                    .route = route,
                    .n = replicas,
                    .served = served,
                    .gap = gap,
                    .out = out};
    *out = (kvd_simulated){.end = 0};
    if (replicas < 1)
        return kvd_fail(err, "%d replicas", replicas);
    const int status = prepare(&s, limits, err) || run(&s, err) ? -1 : 0;
    for (int r = 0; s.replica && r < replicas; r++)
        kvd_batcher_free(s.replica[r].batcher);
    free(s.replica);
    free(s.heap);
    free(s.latest);
    free(s.gap_at);
    return status;
}
