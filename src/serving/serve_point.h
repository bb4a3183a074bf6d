/* One point of a study of serving: a trace at one rate, served by one method; and the highest rate that a
 * method sustains. */
#ifndef KVD_SERVING_SERVE_POINT_H
#define KVD_SERVING_SERVE_POINT_H

#include "serving/latency.h"
#include "serving/simulator.h"

typedef struct {
    const kvd_costs *costs;
    kvd_batching_limits limits;
    int replicas;
    kvd_route route;
    double slo_ttft, slo_tbt; /* seconds; infinite: none */
    uint64_t seed;            /* of the bootstrap */
} kvd_serve_setting;

typedef struct {
    kvd_simulated simulated;
    size_t requests;        /* that arrived */
    double rate;            /* requests a second that arrive */
    kvd_latency ttft;       /* seconds, of requests */
    kvd_latency tbt;        /* seconds, of all gaps between two tokens */
    kvd_latency jct;        /* seconds, of requests, from the arrival to the last token */
    kvd_latency normalised; /* seconds a token, of requests: JCT / output tokens */
    double wait;            /* seconds, mean, from the arrival until the first token goes through the model */
    double drain; /* seconds from the last arrival to the end: grows with the run when the rate is too high */
    double served_rate,
        token_rate;     /* requests and output tokens a second, from the first arrival to the end */
    double slo_share;   /* of all requests: TTFT and the mean gap within the SLOs; refused ones are not */
    double goodput;     /* of those, a second */
    double utilisation; /* of the replicas' time, from the first arrival to the end */
    double kv_share;    /* of the pages, mean over that time */
} kvd_serve_point;

/* `requests` arrive as they stand; rate is what they are called. */
int kvd_serve_measure(const kvd_serve_setting *s, const kvd_requests *requests, double rate,
                      kvd_serve_point *out, kvd_err *err);

/*
 * The highest rate, within 0.2 %, at which the mean normalised latency of the requests (arriving at base_rate
 * as they stand) is at most `bound` seconds a token: doubled or halved from base_rate, then bisected. 0: it
 * is above the bound even at base_rate / 2^20; infinite: it is below it even at 2^20 times that rate, so the
 * trace is too short to tell.
 */
int kvd_serve_max_rate(const kvd_serve_setting *s, const kvd_requests *requests, double base_rate,
                       double bound, double *rate, kvd_err *err);

/* A copy of the requests that arrive `factor` times as fast. */
int kvd_serve_faster(const kvd_requests *from, double factor, kvd_requests *to, kvd_err *err);

/*
 * Pages of 64 tokens that fit: memory (bytes of one GPU) less reserve, on all GPUs, less the weights; memory
 * NaN: the cache that the costs were measured with. Fails with the numbers when there is no room for one
 * page.
 */
int kvd_serve_pages(const kvd_costs *c, double memory, double reserve, size_t *pages, kvd_err *err);

#endif
