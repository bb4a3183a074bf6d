/* Simulates a method at one rate, and finds the highest rate within a latency bound. */
#ifndef KVD_SERVING_SIMULATE_SERVE_POINT_H
#define KVD_SERVING_SIMULATE_SERVE_POINT_H

#include "serving/simulate/latency.h"
#include "serving/simulate/simulator.h"

typedef struct {
    const kvd_costs *costs;
    kvd_batching_limits limits;
    int replicas;
    kvd_route route;
    /* limits to meet: seconds to first token (TTFT) and between tokens (TBT); infinite: none */
    double slo_ttft, slo_tbt;
    uint64_t seed;
} kvd_serve_setting;

typedef struct {
    kvd_simulated simulated;
    size_t requests;
    double rate;
    kvd_latency ttft; /* seconds to the first token, over all requests */
    kvd_latency tbt;  /* seconds between two tokens, over all tokens */
    kvd_latency jct;  /* seconds from arrival to last token */
    /* seconds from arrival to last token, per output token */
    kvd_latency normalised;
    double wait; /* mean seconds from arrival to the start of the prefill */
    /* seconds from the last arrival to the end of the last iteration */
    double drain;
    /* number of requests and of output tokens served per second */
    double served_rate, token_rate;
    /* fraction of requests that meet both limits: time to first token, and between tokens */
    double slo_share;
    double goodput; /* requests per second that meet the objectives */
    /* fraction of time that replicas spend in iterations */
    double utilisation;
    double kv_share; /* mean fraction of the cache pages in use */
    double running;  /* mean number of requests that a replica runs at once */
} kvd_serve_point;

/* Simulates the requests with their own arrivals. `rate` is only stored in the result. */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/* Finds the highest request rate, within 0.2 %, with a mean latency (job completion time / output
 * tokens) of at most `bound` seconds. base_rate: rate of `requests`.
 *
 * *rate is 0 if every rate exceeds `bound`, infinite if none does. */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/* Computes how many pages of 64 tokens fit into memory - reserve (bytes per GPU) next to the
 * weights. NaN `memory`: as many as measured. */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
