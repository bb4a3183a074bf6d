/* Discrete-event simulation of replicas (copies of a model that serve requests).
 *
 * At equal times, arrivals come first, then ends, then beginnings of iterations. */
#ifndef KVD_SERVING_SIMULATE_SIMULATOR_H
#define KVD_SERVING_SIMULATE_SIMULATOR_H

#include "serving/simulate/costs.h"

/* rule that selects a request's replica; of equal ones, the first */
typedef enum {
    /* replica with the fewest unprocessed tokens, as in the papers of the methods */
    KVD_ROUTE_SHORTEST,
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* replica with the fewest requests */
    KVD_ROUTES
} kvd_route;
/* Names of the rules that choose a request's replica (values of --route), ended by NULL. */
extern const char *const kvd_route_name[KVD_ROUTES + 1];

/* times of a simulated request in seconds */
typedef struct {
    /* start: time at which the model begins to process the request */
    double arrival, start;
    double first, end;  /* times of the first and last token */
    double longest_gap; /* longest time between two tokens, or 0 */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* end of the last iteration, in seconds */
    double busy; /* seconds spent in iterations, all replicas */
    size_t iterations, extrapolated;
    /* number of requests that can never fit; their times are NaN */
    size_t refused;
    kvd_err refusal; /* reason of the first refusal */
    /* pages in use, integrated over time and replicas */
    double page_seconds;
    /* number of running requests, integrated over iterations */
    double request_seconds;
    /* number of preemptions, and of tokens that were processed again */
    size_t preempted, recomputed;
} kvd_simulated;

/* Returns a request's gaps between output tokens: output - 1, or 0 if it can never fit. */
size_t kvd_simulate_gaps(const kvd_batching_limits *limits, const kvd_request *request);

/* Simulates all requests. `gap`, or NULL: their seconds between tokens. Fails on an interrupt. */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route, kvd_served *served,
                 double *gap, kvd_simulated *out, kvd_err *err);

#endif
