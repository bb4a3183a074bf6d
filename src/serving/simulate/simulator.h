/*
 * Discrete-event simulation of replicas (copies of the model that serve requests). Every replica
 * has a batcher, and every iteration takes the time that costs.h predicts. There is one event
 * queue, so equal inputs give equal bits.
 *
 * Events at the same time are handled in this order: all arrivals are routed, iterations that end
 * are booked, then replicas that have work begin their next iteration. So a request that arrives
 * while an iteration ends takes part in the next one.
 */
#ifndef KVD_SERVING_SIMULATE_SIMULATOR_H
#define KVD_SERVING_SIMULATE_SIMULATOR_H

#include "serving/simulate/costs.h"

/* Rule that selects the replica for a request. Of equal replicas the first is selected. */
typedef enum {
    /* replica with the fewest tokens that are not yet processed, as in the papers */
    KVD_ROUTE_SHORTEST,
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* replica with the fewest requests, waiting and running */
    KVD_ROUTES
} kvd_route;
extern const char *const kvd_route_name[KVD_ROUTES + 1]; /* ends with NULL */

/* Simulated times of one request, in seconds. */
typedef struct {
    double arrival, start; /* start: the model begins to process the request */
    double first, end;     /* times of the first and of the last token */
    double longest_gap;    /* longest time between two tokens; 0 with one token */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* end of the last iteration */
    double busy; /* sum over replicas of seconds in iterations */
    size_t iterations, extrapolated;
    size_t refused;         /* requests that can never fit; all times of their kvd_served are NaN */
    kvd_err refusal;        /* reason for the first refused request */
    double page_seconds;    /* integral of pages in use, all replicas */
    double request_seconds; /* integral of running requests over iterations, all replicas */
    size_t preempted, recomputed; /* preemptions, and tokens that they made the model repeat */
} kvd_simulated;

/*
 * Simulates serving the requests on a number of replicas. `gap` receives the seconds between
 * tokens, output - 1 for every request, one request after another; NaN for refused requests. Fails
 * if memory runs out, on limits that no batcher accepts, and if the user interrupts.
 */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route,
                 kvd_served *served /* [n] */, double *gap /* [sum of output - 1], or NULL */,
                 kvd_simulated *out, kvd_err *err);

#endif
