/*
 * Discrete-event simulation of replicas (copies of the model that serve requests). Every replica
 * has a batcher, and every iteration takes the time that costs.h predicts. Equal inputs give equal
 * bits.
 *
 * At equal times, all arrivals are handled first, then ends of iterations, then beginnings. A
 * request that arrives while an iteration ends takes part in the next one.
 */
#ifndef KVD_SERVING_SIMULATE_SIMULATOR_H
#define KVD_SERVING_SIMULATE_SIMULATOR_H

#include "serving/simulate/costs.h"

/* Rule that selects the replica for a request. Among equal replicas the first is selected. */
typedef enum {
    /* The replica with the fewest tokens that are not yet processed, as in the papers. */
    KVD_ROUTE_SHORTEST,
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* fewest requests, waiting and running */
    KVD_ROUTES
} kvd_route;
/* Names of the values of --route; the list ends with NULL. */
extern const char *const kvd_route_name[KVD_ROUTES + 1];

/* Times in seconds from the start of the simulation. */
typedef struct {
    /* `start` is the time at which the model begins to process the request's tokens. */
    double arrival, start;
    double first, end;  /* times of the request's first and last token */
    double longest_gap; /* longest time between two tokens; 0 if there is one token */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* time at which the last iteration ends, in seconds */
    double busy; /* sum over replicas of the seconds spent in iterations */
    size_t iterations, extrapolated;
    /*
     * Number of requests that can never fit into the cache. All times in their kvd_served are NaN.
     */
    size_t refused;
    kvd_err refusal; /* reason why the first refused request can never fit */
    /* Integral over time of cache pages in use, in page seconds, all replicas. */
    double page_seconds;
    /* Integral of the number of running requests over the time of iterations, all replicas. */
    double request_seconds;
    /* Number of preemptions, and number of tokens that the model processed again after them. */
    size_t preempted, recomputed;
} kvd_simulated;

/*
 * Returns the number of gaps between the tokens of a request: its output tokens - 1, or 0 if the
 * request is refused because it does not fit into an empty cache.
 */
size_t kvd_simulate_gaps(const kvd_batching_limits *limits, const kvd_request *request);

/*
 * Simulates serving n requests on a number of replicas. served [n] receives the times of each
 * request. `gap`, if not NULL, receives the seconds between successive tokens: output - 1 values of
 * each request, one request after another. The values of refused requests are NaN. Fails if memory
 * runs out, if kvd_batcher_new refuses the limits, or if the user interrupts.
 */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route, kvd_served *served,
                 double *gap, kvd_simulated *out, kvd_err *err);

#endif
