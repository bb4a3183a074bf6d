/*
 * Simulates serving one method at one arrival rate, and finds the highest rate that a method
 * sustains.
 */
#ifndef KVD_SERVING_SIMULATE_SERVE_POINT_H
#define KVD_SERVING_SIMULATE_SERVE_POINT_H

#include "serving/simulate/latency.h"
#include "serving/simulate/simulator.h"

typedef struct {
    const kvd_costs *costs;
    kvd_batching_limits limits;
    int replicas;
    kvd_route route;
    /* Service level objectives in seconds; infinite means none. */
    double slo_ttft, slo_tbt;
    uint64_t seed;
} kvd_serve_setting;

typedef struct {
    kvd_simulated simulated;
    size_t requests;
    double rate;
    kvd_latency ttft; /* seconds to the first token, all requests */
    kvd_latency tbt;  /* seconds between two tokens, all tokens */
    /* Seconds from arrival to last token, all requests. */
    kvd_latency jct;
    /* Seconds from arrival to last token, per output token, all requests. */
    kvd_latency normalised;
    /* Mean seconds from arrival to the start of the prefill. */
    double wait;
    /* Seconds from the last arrival to the end of the simulation. */
    double drain;
    /* Served requests and output tokens per second. */
    double served_rate, token_rate;
    /*
     * Fraction of requests with TTFT and mean token gap within both objectives; refused requests
     * miss.
     */
    double slo_share;
    double goodput; /* requests per second within the objectives */
    /* Fraction of the replicas' time spent in iterations. */
    double utilisation;
    /* Mean fraction of the cache pages in use. */
    double kv_share;
    /* Mean requests running on a replica, weighted by iteration time. */
    double running;
} kvd_serve_point;

/* Simulates the requests at their own arrival times. `rate` is only stored in *out. */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/*
 * Finds the highest rate, within 0.2 %, with a mean of JCT / output tokens of at most `bound`
 * seconds. base_rate is the trace's own rate.
 *
 * Searches base_rate / 2^20 .. base_rate * 2^20. *rate is 0 if all these rates exceed `bound`,
 * infinite if none does; the trace is then too short.
 */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

/* Copies the requests to *to with arrival times divided by `factor`. */
int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/*
 * Sets *pages to the 64-token cache pages that fit into `memory` minus `reserve` minus the weights,
 * in bytes per GPU. If `memory` is NaN, uses the measured cache size. Fails if none fits.
 */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
