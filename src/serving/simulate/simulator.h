/*
 * Discrete-event simulation of replicas with the times of costs.h. Equal inputs give equal bits.
 *
 * At equal times: arrivals, ends of iterations, beginnings.
 */
#ifndef KVD_SERVING_SIMULATE_SIMULATOR_H
#define KVD_SERVING_SIMULATE_SIMULATOR_H

#include "serving/simulate/costs.h"

/* Rule that selects a request's replica, the first of equals. */
typedef enum {
    /* Fewest unprocessed tokens, as in the papers. */
    KVD_ROUTE_SHORTEST,
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* fewest requests, waiting and running */
    KVD_ROUTES
} kvd_route;
/* Values of --route; the list ends with NULL. */
extern const char *const kvd_route_name[KVD_ROUTES + 1];

/* Times in seconds from the simulation's start. */
typedef struct {
    /* `start`: begin of the first prefill. */
    double arrival, start;
    double first, end;  /* times of the first and last token */
    double longest_gap; /* longest time between two tokens, or 0 */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* end of the last iteration, in seconds */
    double busy; /* seconds spent in iterations, all replicas */
    size_t iterations, extrapolated;
    /* Requests that never fit; their times are NaN. */
    size_t refused;
    kvd_err refusal; /* reason of the first refusal */
    /* Integral over time of cache pages in use, all replicas. */
    double page_seconds;
    /* Integral of running requests over the time of iterations. */
    double request_seconds;
    /* Preemptions, and tokens processed again. */
    size_t preempted, recomputed;
} kvd_simulated;

/* Returns output tokens - 1, or 0 if the request never fits. */
size_t kvd_simulate_gaps(const kvd_batching_limits *limits, const kvd_request *request);

/*
 * Fills served [n] and, unless NULL, `gap`: output - 1 seconds between tokens per request, NaN if
 * refused. Fails on refused limits or interrupts.
 */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route, kvd_served *served,
                 double *gap, kvd_simulated *out, kvd_err *err);

#endif
