/*
 * Discrete-event simulation of replicas, each with a batcher and the iteration times of costs.h.
 * Equal inputs give equal bits.
 *
 * At equal times arrivals come first, then ends of iterations, then beginnings.
 */
#ifndef KVD_SERVING_SIMULATE_SIMULATOR_H
#define KVD_SERVING_SIMULATE_SIMULATOR_H

#include "serving/simulate/costs.h"

/* Rule that selects the replica of a request, the first of equal replicas. */
typedef enum {
    /* Fewest unprocessed tokens, as in the papers. */
    KVD_ROUTE_SHORTEST,
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* fewest requests, waiting and running */
    KVD_ROUTES
} kvd_route;
/* Values of --route; the list ends with NULL. */
extern const char *const kvd_route_name[KVD_ROUTES + 1];

/* Times in seconds from the start of the simulation. */
typedef struct {
    /* `start` is the begin of the request's first prefill. */
    double arrival, start;
    double first, end;  /* times of the first and last token */
    double longest_gap; /* longest time between two tokens, or 0 */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* end of the last iteration, in seconds */
    double busy; /* seconds spent in iterations, all replicas */
    size_t iterations, extrapolated;
    /* Requests that can never fit into the cache; their times are NaN. */
    size_t refused;
    kvd_err refusal; /* reason of the first refusal */
    /* Integral over time of cache pages in use, all replicas. */
    double page_seconds;
    /* Integral of running requests over the time of iterations, all replicas. */
    double request_seconds;
    /* Number of preemptions, and of tokens processed again. */
    size_t preempted, recomputed;
} kvd_simulated;

/* Returns output tokens - 1, or 0 if the request does not fit into an empty cache. */
size_t kvd_simulate_gaps(const kvd_batching_limits *limits, const kvd_request *request);

/*
 * Simulates n requests and fills served [n]. `gap`, unless NULL, receives the output - 1 seconds
 * between tokens of each request; NaN if refused. Fails if kvd_batcher_new refuses the limits or
 * the user interrupts.
 */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route, kvd_served *served,
                 double *gap, kvd_simulated *out, kvd_err *err);

#endif
