/*
 * Discrete-event simulation of replicas: every replica has a batcher, every iteration the time that costs.h
 * says. One event queue, so equal inputs give equal bits.
 *
 * At one moment first all arrivals are routed, then iterations that end are booked, then replicas that have
 * work begin their next iteration: who arrives while an iteration ends takes part in the next.
 */
#ifndef KVD_SERVING_SIMULATOR_H
#define KVD_SERVING_SIMULATOR_H

#include "serving/costs.h"

typedef enum {
    KVD_ROUTE_SHORTEST, /* fewest tokens still to go through the model, as the papers */
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* fewest requests, waiting and running */
    KVD_ROUTES
} kvd_route;                                         /* ties: the first replica */
extern const char *const kvd_route_name[KVD_ROUTES]; /* "shortest", "round-robin", "least-loaded" */

/* Of one request, seconds. */
typedef struct {
    double arrival, start; /* start: its first token goes through the model  */
    double first, end;     /* first and last token out                       */
    double longest_gap;    /* between two tokens; 0 with one token           */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* of the last iteration */
    double busy; /* sum over replicas of seconds in iterations */
    size_t iterations, extrapolated;
    size_t refused;      /* requests that can never fit; all times of their kvd_served are NaN */
    kvd_err refusal;     /* why, of the first of them */
    double page_seconds; /* integral of pages in use, all replicas */
} kvd_simulated;

/*
 * gap: seconds between tokens, output - 1 of every request, one request after another; NaN of those refused.
 * Fails on memory, on limits that no batcher takes, and when asked to stop.
 */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits, const kvd_costs *costs,
                 int replicas, kvd_route route, kvd_served *served /* [n] */,
                 double *gap /* [sum of output - 1], or NULL */, kvd_simulated *out, kvd_err *err);

#endif
