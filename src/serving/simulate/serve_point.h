/*
 * Simulates one experiment of serving (one method, one trace, one arrival rate), and finds the
 * highest arrival rate that a method sustains.
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
    uint64_t seed; /* seed of the random draws for bootstrap intervals */
} kvd_serve_setting;

typedef struct {
    kvd_simulated simulated;
    size_t requests; /* number of requests that arrived during the simulation */
    /* Arrival rate in requests per second. */
    double rate;
    kvd_latency ttft; /* distribution over requests of the time to the first token, in seconds */
    kvd_latency tbt;  /* distribution over tokens of the gap between two tokens, in seconds */
    /* Distribution over requests of the time from arrival to last token, in seconds. */
    kvd_latency jct;
    /*
     * Distribution over requests of the normalised latency: time from arrival to last token divided
     * by the number of output tokens, in seconds per token.
     */
    kvd_latency normalised;
    /*
     * Mean waiting time in seconds, from the arrival until the model processes the request's first
     * token.
     */
    double wait;
    /*
     * Seconds from the last arrival to the end of the simulation. If the arrival rate is higher
     * than the service sustains, this time grows with the length of the trace.
     */
    double drain;
    /*
     * Served requests per second, and output tokens per second, from the first arrival to the end
     * of the simulation.
     */
    double served_rate, token_rate;
    /*
     * Fraction of all requests whose TTFT and mean gap between tokens are within the SLOs (service
     * level objectives). Refused requests are not within them.
     */
    double slo_share;
    double goodput; /* requests per second that are served within the service level objectives */
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
 * Simulates the requests with their arrival times unchanged and computes the statistics in *out.
 * `rate` is stored in *out as the arrival rate.
 */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/*
 * Finds the highest arrival rate, within 0.2 %, at which the mean of JCT / output tokens of the
 * requests is at most `bound` seconds per token. base_rate is the rate of the requests with their
 * arrival times unchanged. The search doubles or halves it and then bisects. *rate is 0 if the
 * mean is above the bound even at base_rate / 2^20, and infinite if it is below the bound even at
 * base_rate * 2^20. In both cases the trace is too short to tell.
 */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

/* Copies the requests to *to with their arrival times divided by `factor`. */
int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/*
 * Sets *pages to the number of cache pages of 64 tokens that fit into GPU memory. Available are,
 * over all GPUs, `memory` minus `reserve` (bytes per GPU), minus the model's weights. If `memory`
 * is NaN, uses the size of the cache in the measurement. Fails with the numbers if not one page
 * fits.
 */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
