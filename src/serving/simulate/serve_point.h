/* Simulates a method at one arrival rate, and finds the highest rate that it sustains. */
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
    /* Seconds from arrival to last token. */
    kvd_latency jct;
    /* Seconds from arrival to last token, per output token. */
    kvd_latency normalised;
    /* Mean seconds from arrival to the start of the prefill. */
    double wait;
    /* Seconds from the last arrival to the end. */
    double drain;
    /* Served requests and output tokens, per second. */
    double served_rate, token_rate;
    /* Fraction of requests within both objectives; refused requests miss. */
    double slo_share;
    double goodput; /* requests per second within the objectives */
    /* Fraction of the replicas' time in iterations. */
    double utilisation;
    /* Mean fraction of the cache pages in use. */
    double kv_share;
    /* Mean requests running on a replica, weighted by iteration time. */
    double running;
} kvd_serve_point;

/* Simulates requests at their own arrival times; `rate` is only stored in *out. */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/*
 * Finds the highest rate, within 0.2 %, with mean JCT / output tokens <= `bound` seconds, in
 * base_rate / 2^20 .. base_rate * 2^20 (base_rate: the trace's own).
 *
 * *rate is 0 or infinite if all or none exceed `bound`.
 */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/*
 * Sets *pages to the 64-token pages that fit into `memory` - `reserve` - weights, in bytes per GPU;
 * NaN `memory`: measured cache size. Fails if none fits.
 */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
