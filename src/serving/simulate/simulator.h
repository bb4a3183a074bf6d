/*
 * Discrete-event simulation of replicas (copies of a model that serve requests).
 *
 * At equal times, arrivals are processed first, then ends of iterations, then beginnings of
 * iterations. Equal inputs give equal bits.
 */
#ifndef KVD_SERVING_SIMULATE_SIMULATOR_H
#define KVD_SERVING_SIMULATE_SIMULATOR_H

#include "serving/simulate/costs.h"

/* Rule that selects the replica for a request. If replicas are equal, the first is taken. */
typedef enum {
    /* Takes the replica with the fewest unprocessed tokens, as in the papers. */
    KVD_ROUTE_SHORTEST,
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* replica with the fewest requests */
    KVD_ROUTES
} kvd_route;
/* Values of --route; the list ends with NULL. */
extern const char *const kvd_route_name[KVD_ROUTES + 1];

/* Times of a simulated request in seconds from the start of the simulation. */
typedef struct {
    /* `start`: time at which the model begins to process the request. */
    double arrival, start;
    double first, end;  /* times of the first and last token */
    double longest_gap; /* longest time between two tokens, or 0 */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* end of the last iteration, in seconds */
    double busy; /* seconds spent in iterations, all replicas */
    size_t iterations, extrapolated;
    /* Number of refused requests, which can never fit into the cache. Their times are NaN. */
    size_t refused;
    kvd_err refusal; /* reason of the first refusal */
    /* Integral over time of the number of cache pages in use, over all replicas. */
    double page_seconds;
    /* Integral of the number of running requests over the time of iterations. */
    double request_seconds;
    /* Number of preemptions, and of tokens that were processed again. */
    size_t preempted, recomputed;
} kvd_simulated;

/*
 * Returns the number of gaps between a request's output tokens: output - 1, or 0 if the request
 * never fits into the cache.
 */
size_t kvd_simulate_gaps(const kvd_batching_limits *limits, const kvd_request *request);

/*
 * Simulates the serving of n requests. Fills served [n] and, unless NULL, `gap` with the seconds
 * between tokens (output - 1 per request). Fails if the user interrupts.
 */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route, kvd_served *served,
                 double *gap, kvd_simulated *out, kvd_err *err);

#endif
