/*
 * Simulates serving (one method, one trace, one arrival rate), and finds the highest arrival rate
 * that a method sustains.
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
    /* Service level objectives for TTFT and TBT in seconds; infinite means none. */
    double slo_ttft, slo_tbt;
    uint64_t seed;
} kvd_serve_setting;

typedef struct {
    kvd_simulated simulated;
    size_t requests;
    double rate;
    kvd_latency ttft; /* time to the first token, of all requests, s */
    kvd_latency tbt;  /* time between two tokens, of all tokens, s */
    /* Time from arrival to last token over all requests, in seconds. */
    kvd_latency jct;
    /*
     * Seconds from arrival to last token, divided by the number of output tokens, over all
     * requests.
     */
    kvd_latency normalised;
    /* Mean seconds from the arrival until the model processes the request's first token. */
    double wait;
    /* Seconds from the last arrival to the end of the simulation. */
    double drain;
    /* Served requests and output tokens per second, from the first arrival to the end. */
    double served_rate, token_rate;
    /*
     * Fraction of all requests whose TTFT is at most slo_ttft and whose mean gap between tokens is
     * at most slo_tbt. A refused request counts as missing both limits.
     */
    double slo_share;
    double goodput; /* served requests per second that are within the objectives */
    /*
     * Fraction of the replicas' time that is spent in iterations, from the first arrival to the
     * end.
     */
    double utilisation;
    /* Mean fraction of the cache pages in use, from the first arrival to the end. */
    double kv_share;
    /*
     * Mean number of requests that a replica runs at once, weighted by the time of its iterations.
     */
    double running;
} kvd_serve_point;

/*
 * Simulates the requests at their own arrival times and fills *out. `rate` has no effect on the
 * simulation; it is stored in *out.
 */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/*
 * Finds the highest arrival rate, within 0.2 %, at which the mean of JCT / output tokens is at most
 * `bound` seconds per token. base_rate is the rate of the requests with their arrival times
 * unchanged.
 *
 * The search covers rates from base_rate / 2^20 to base_rate * 2^20. If the mean exceeds `bound` at
 * all these rates, *rate is 0. If the mean is below `bound` at all these rates, *rate is infinite.
 * In both cases the trace is too short to find the highest rate.
 */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

/* Copies the requests to *to with their arrival times divided by `factor`. */
int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/*
 * Sets *pages to the number of cache pages of 64 tokens that fit into GPU memory. `memory` minus
 * `reserve` (bytes per GPU) must also hold the weights. If `memory` is NaN, uses the size of the
 * cache in the measurement. Fails if not one page fits.
 */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
