/* Simulates serving with a method at one request rate, and finds the highest request rate within a
 * latency bound. */
#ifndef KVD_SERVING_SIMULATE_SERVE_POINT_H
#define KVD_SERVING_SIMULATE_SERVE_POINT_H

#include "serving/simulate/latency.h"
#include "serving/simulate/simulator.h"

typedef struct {
    const kvd_costs *costs;
    kvd_batching_limits limits;
    int replicas;
    kvd_route route;
    /* largest acceptable time to first token (ttft) and between tokens (tbt), in seconds; infinite:
     * no limit */
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
    /* seconds from a request's arrival to its last token, divided by its number of output tokens */
    kvd_latency normalised;
    double wait; /* mean seconds from arrival to the start of the prefill */
    /* seconds from the last arrival to the end of the last iteration */
    double drain;
    /* served_rate: requests served per second; token_rate: output tokens produced per second */
    double served_rate, token_rate;
    /* fraction of requests that meet the limits on time to first token and on time between
     * tokens */
    double slo_share;
    double goodput; /* requests per second that meet the objectives */
    /* fraction of the simulated time that replicas (copies of the model) spend in iterations */
    double utilisation;
    double kv_share; /* mean fraction of the cache pages in use */
    double running;  /* mean number of requests that a replica runs at once */
} kvd_serve_point;

/* Simulates the requests with the arrival times that they have. `rate` is only copied to the
 * result. */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/* Finds the highest request rate, within 0.2 %, with a mean job completion time per output token of
 * at most `bound` seconds. base_rate: rate of `requests`, per second.
 *
 * *rate is 0 if every rate is too high, and infinite if no rate is too high. */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/* Computes how many cache pages of 64 tokens fit into memory next to the weights. memory: bytes per
 * GPU; reserve: bytes per GPU that stay free. If `memory` is NaN, the cache is as large as when the
 * times in `c` were measured. */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
