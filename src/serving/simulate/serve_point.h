/*
 * Simulates one measurement point of a study of serving (one method, one trace, one arrival rate),
 * and finds the highest rate that a method sustains.
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
    double slo_ttft, slo_tbt; /* seconds; infinite means none */
    uint64_t seed;            /* seed of the bootstrap */
} kvd_serve_setting;

typedef struct {
    kvd_simulated simulated;
    size_t requests; /* number of requests that arrived */
    /* Arrival rate in requests per second. */
    double rate;
    kvd_latency ttft;       /* times to the first token, in seconds */
    kvd_latency tbt;        /* gaps between two tokens, in seconds */
    kvd_latency jct;        /* times from the arrival to the last token, in seconds */
    kvd_latency normalised; /* JCT / output tokens of a request, in seconds per token */
    /*
     * Mean waiting time in seconds, from the arrival until the model processes the request's first
     * token.
     */
    double wait;
    /*
     * Seconds from the last arrival to the end of the simulation. If the rate is too high, it grows
     * with the length of the trace.
     */
    double drain;
    /*
     * Served requests and output tokens per second, from the first arrival to the end of the
     * simulation.
     */
    double served_rate, token_rate;
    /*
     * Fraction of all requests whose TTFT and mean gap between tokens are within the SLOs (service
     * level objectives). Refused requests are not within them.
     */
    double slo_share;
    double goodput;     /* requests per second that are within the SLOs */
    double utilisation; /* fraction of the replicas' time in iterations, first arrival to the end */
    double kv_share;    /* mean fraction of the cache pages in use over that time */
    double running;     /* requests that a replica runs at once, mean over its iterations' time */
} kvd_serve_point;

/*
 * Simulates the requests with their arrival times unchanged and computes the statistics in *out.
 * `rate` is the rate that is reported.
 */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/*
 * Finds the highest arrival rate, within 0.2 %, at which the mean normalised latency of the
 * requests is at most `bound` seconds per token. base_rate is the rate of the requests with their
 * arrival times unchanged; the search doubles or halves it and then bisects. *rate is 0 if the
 * latency is above the bound even at base_rate / 2^20, and infinite if it is below the bound even
 * at base_rate * 2^20; the trace is then too short to tell.
 */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

/* Copies the requests to *to with their arrival times divided by `factor`. */
int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/*
 * Sets *pages to the number of cache pages of 64 tokens that fit into `memory` (bytes of one GPU)
 * minus `reserve`, on all GPUs, minus the weights. If `memory` is NaN, uses the size of the cache
 * in the measurement. Fails with the numbers if not one page fits.
 */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
