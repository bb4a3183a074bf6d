/* Discrete-event simulation of replicas (copies of a model that serve requests).
 *
 * Among events at the same time, arrivals are handled first, then ends of iterations, then
 * beginnings of iterations. */
#ifndef KVD_SERVING_SIMULATE_SIMULATOR_H
#define KVD_SERVING_SIMULATE_SIMULATOR_H

#include "serving/simulate/costs.h"

/* rule that selects the replica (copy of the model) for a request; of equally good replicas, the
 * first */
typedef enum {
    /* replica with the fewest tokens left to process */
    KVD_ROUTE_SHORTEST,
    KVD_ROUTE_ROUND_ROBIN,
    KVD_ROUTE_LEAST_LOADED, /* replica with the fewest requests */
    KVD_ROUTES
} kvd_route;
/* Names of the rules that select the replica for a request (values of --route), ended by NULL. */
extern const char *const kvd_route_name[KVD_ROUTES + 1];

/* times of a simulated request in seconds */
typedef struct {
    /* arrival: time at which the request arrives; start: time at which the model begins to process
     * it */
    double arrival, start;
    double first, end;  /* times of the first and last token */
    double longest_gap; /* longest time between two tokens, or 0 */
    int replica;
} kvd_served;

typedef struct {
    double end;  /* end of the last iteration, in seconds */
    double busy; /* seconds spent in iterations, all replicas */
    size_t iterations, extrapolated;
    /* number of requests that can never fit into the cache; their times are NaN */
    size_t refused;
    kvd_err refusal; /* reason of the first refusal */
    /* number of cache pages in use, summed over replicas and integrated over time */
    double page_seconds;
    /* number of running requests, integrated over the time of all iterations */
    double request_seconds;
    /* number of preemptions; number of tokens that had to be processed again after them */
    size_t preempted, recomputed;
} kvd_simulated;

/* Returns the number of time gaps between a request's output tokens: output - 1, or 0 if the
 * request can never fit into the cache. */
size_t kvd_simulate_gaps(const kvd_batching_limits *limits, const kvd_request *request);

/* Simulates all requests. `gap`: array for the seconds between successive output tokens of the
 * requests, or NULL. Fails on an interrupt by the user. */
int kvd_simulate(const kvd_requests *requests, const kvd_batching_limits *limits,
                 const kvd_costs *costs, int replicas, kvd_route route, kvd_served *served,
                 double *gap, kvd_simulated *out, kvd_err *err);

#endif
