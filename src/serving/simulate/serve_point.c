#include "serving/simulate/serve_point.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    kvd_served *served;
    double *x;
    uint8_t *block; /* bootstrap block of each request, [n] */
    double *gap;
    uint8_t *gap_block; /* bootstrap block of each gap, [n_gaps] */
    size_t n, n_gaps;
} samples;

static void release(samples *s)
{
    free(s->served);
    free(s->x);
    free(s->block);
    free(s->gap);
    free(s->gap_block);
}

static int allocate(samples *s, const kvd_requests *q, const kvd_batching_limits *limits,
                    kvd_err *err)
{
    memset(s, 0, sizeof *s);
    s->n = q->n;
    for (size_t i = 0; i < q->n; i++)
        s->n_gaps += kvd_simulate_gaps(limits, &q->request[i]);
    s->served = calloc(q->n, sizeof *s->served);
    s->x = calloc(q->n, sizeof *s->x);
    s->block = calloc(q->n, 1);
    s->gap = calloc(s->n_gaps + 1, sizeof *s->gap);
    s->gap_block = calloc(s->n_gaps + 1, 1);
    if (!s->served || !s->x || !s->block || !s->gap || !s->gap_block)
        return kvd_no_memory(err, "the times of all tokens", s->n_gaps * (sizeof *s->gap + 1));
    /* number of bootstrap blocks, each of at least two consecutive requests; 1 if there is only one
     * request */
    const size_t blocks =
        q->n / 2 < KVD_LATENCY_BLOCKS ? (q->n > 1 ? q->n / 2 : 1) : KVD_LATENCY_BLOCKS;
    for (size_t i = 0, at = 0; i < q->n; i++) {
        s->block[i] = (uint8_t)(i * blocks / q->n);
        const size_t gaps = kvd_simulate_gaps(limits, &q->request[i]);
        memset(s->gap_block + at, s->block[i], gaps);
        at += gaps;
    }
    return 0;
}

static double ttft(const kvd_served *s)
{
    return s->first - s->arrival;
}

static double jct(const kvd_served *s)
{
    return s->end - s->arrival;
}

static int summarise(samples *s, const kvd_requests *q, uint64_t seed, kvd_serve_point *out,
                     kvd_err *err)
{
    for (size_t i = 0; i < s->n; i++)
        s->x[i] = ttft(&s->served[i]);
    if (kvd_latency_summarise(s->x, s->block, s->n, seed, &out->ttft, err))
        return -1;
    for (size_t i = 0; i < s->n; i++)
        s->x[i] = jct(&s->served[i]);
    if (kvd_latency_summarise(s->x, s->block, s->n, seed, &out->jct, err))
        return -1;
    for (size_t i = 0; i < s->n; i++)
        s->x[i] /= q->request[i].output;
    return kvd_latency_summarise(s->x, s->block, s->n, seed, &out->normalised, err) ||
           kvd_latency_summarise(s->gap, s->gap_block, s->n_gaps, seed, &out->tbt, err);
}

static void count(const kvd_serve_setting *s, const kvd_requests *q, const kvd_served *served,
                  kvd_serve_point *out)
{
    double wait = 0, tokens = 0;
    size_t good = 0;
    const size_t n = q->n - out->simulated.refused;
    for (size_t i = 0; i < q->n; i++) {
        const kvd_served *v = &served[i];
        const uint32_t output = q->request[i].output;
        if (isnan(v->end))
            continue;
        wait += v->start - v->arrival;
        tokens += output;
        good += ttft(v) <= s->slo_ttft &&
                (output == 1 || (v->end - v->first) / (output - 1) <= s->slo_tbt);
    }
    const kvd_simulated *m = &out->simulated;
    const double time = m->end - q->request[0].arrival;
    out->requests = q->n;
    out->wait = n ? wait / (double)n : NAN;
    /* seconds from the last arrival to the end of the last iteration; 0 if the last request was
     * refused after all iterations had ended */
    out->drain = fmax(0, m->end - q->request[q->n - 1].arrival);
    out->served_rate = (double)n / time;
    out->token_rate = tokens / time;
    out->slo_share = (double)good / (double)q->n;
    out->goodput = (double)good / time;
    out->utilisation = m->busy / (time * s->replicas);
    out->kv_share = m->page_seconds / (time * s->replicas * (double)s->limits.pages);
    out->running = m->request_seconds / m->busy;
}

int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err)
{
    samples all;
    memset(out, 0, sizeof *out);
    out->rate = rate;
    int status = allocate(&all, requests, &s->limits, err) ||
                 kvd_simulate(requests, &s->limits, s->costs, s->replicas, s->route, all.served,
                              all.gap, &out->simulated, err);
    if (!status && out->simulated.refused == requests->n)
        status = kvd_fail(err, "no request can be served: %s", out->simulated.refusal.msg);
    if (!status)
        status = summarise(&all, requests, s->seed, out, err);
    if (!status)
        count(s, requests, all.served, out);
    release(&all);
    return status ? -1 : 0;
}

int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err)
{
    *to = *from;
    to->request = malloc((from->n ? from->n : 1) * sizeof *to->request);
    if (!to->request)
        return kvd_no_memory(err, "the requests", from->n * sizeof *to->request);
    memcpy(to->request, from->request, from->n * sizeof *to->request);
    kvd_requests_faster(to, factor);
    return 0;
}

/* Computes the mean over requests of job completion time / output tokens, if the requests arrive
 * `factor` times as fast. */
static int latency_at(const kvd_serve_setting *s, const kvd_requests *q, double factor,
                      double *mean, kvd_err *err)
{
    kvd_requests fast;
    kvd_simulated out;
    if (kvd_serve_faster(q, factor, &fast, err))
        return -1;
    kvd_served *served = calloc(q->n, sizeof *served);
    int status = served ? kvd_simulate(&fast, &s->limits, s->costs, s->replicas, s->route, served,
                                       NULL, &out, err)
                        : kvd_no_memory(err, "the times of requests", q->n * sizeof *served);
    if (!status && out.refused == q->n)
        status = kvd_fail(err, "no request can be served: %s", out.refusal.msg);
    double sum = 0;
    for (size_t i = 0; !status && i < q->n; i++)
        sum += isnan(served[i].end) ? 0 : jct(&served[i]) / q->request[i].output;
    if (!status)
        *mean = sum / (double)(q->n - out.refused);
    free(served);
    kvd_requests_release(&fast);
    return status;
}

int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err)
{
    const double most = 1 << 20;
    double mean, lo = 1, hi = 1;
    if (latency_at(s, requests, 1, &mean, err))
        return -1;
    const bool rise = mean <= bound;
    while (rise ? mean <= bound : mean > bound) {
        if (rise ? hi >= most : lo <= 1 / most) {
            *rate = rise ? INFINITY : 0;
            return 0;
        }
        lo = rise ? hi : lo / 2;
        hi = 2 * lo;
        if (latency_at(s, requests, rise ? hi : lo, &mean, err))
            return -1;
    }
    while (hi > 1.002 * lo) {
        const double mid = sqrt(lo * hi);
        if (latency_at(s, requests, mid, &mean, err))
            return -1;
        *(mean <= bound ? &lo : &hi) = mid;
    }
    *rate = lo * base_rate;
    return 0;
}

int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err)
{
    const double gib = 1 << 30, page = 64 * kvd_costs_bytes_per_token(c);
    const double gpus = kvd_costs_gpus(c) > 0 ? kvd_costs_gpus(c) : 1;
    const double room = isnan(memory) ? kvd_costs_cache_bytes(c)
                                      : (memory - reserve) * gpus - kvd_costs_weight_bytes(c);
    if (isnan(room))
        return kvd_fail(err, "the costs do not say how large their cache was: give --memory");
    if (!(room >= page))
        return isnan(memory)
                   ? kvd_fail(err, "a cache of %.4g GiB has no room for a page of %.4g MiB",
                              room / gib, page / (1 << 20))
                   : kvd_fail(
                         err,
                         "%g GPUs of %.4g GiB less %.4g GiB hold %.4g GiB of weights and no page of %.4g "
                         "MiB",
                         gpus, memory / gib, reserve / gib, kvd_costs_weight_bytes(c) / gib,
                         page / (1 << 20));
    *pages = room / page < 1e15 ? (size_t)(room / page + 1e-6) : (size_t)1e15;
    return 0;
}
