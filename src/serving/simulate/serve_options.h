#ifndef KVD_SERVING_SIMULATE_SERVE_OPTIONS_H
#define KVD_SERVING_SIMULATE_SERVE_OPTIONS_H

#include "common/options.h"
#include "common/run.h"
#include "serving/simulate/simulator.h"

enum { KVD_SERVE_METHODS = 64, KVD_SERVE_COSTS = 64 };

typedef struct {
    kvd_common_options common;
    const char *costs[KVD_SERVE_COSTS];
    size_t n_costs;
    const char *requests, *validate; /* paths; NULL if not given */
    /*
     * Labels of the methods to simulate, allocated. Without labels, all methods of the files
     * --costs are simulated.
     */
    char *method[KVD_SERVE_METHODS];
    size_t n_methods;
    double *rate; /* requests per second, allocated */
    size_t n_rates;
    size_t replicas;
    kvd_route route;
    int gpus; /* uses measurements on this number of GPUs; -1 if not given */
    /* Bytes of a GPU's memory, and bytes of it that are not used; NaN if not given. */
    double memory, reserve;
    /* Limits given as options. Their member `pages` is not set. */
    kvd_batching_limits limits;
    bool max_batch_given, max_tokens_given, chunk_given, admission_given;
    double slo_ttft, slo_tbt; /* service level objectives in seconds; infinite means none */
    /*
     * Value of --max-rate: the greatest mean latency in seconds per output token, for which the
     * highest request rate is searched. NaN means no search.
     */
    double bound;
    size_t n_requests; /* 0 if not given */
    /* Arrival rate in requests per second; NaN means that a recorded trace is used. */
    double poisson_rate;
    const char *lengths;
} kvd_serve_options;

/* Parses the command line into *cfg. Wrong usage ends the program with status 2. */
void kvd_serve_parse(int argc, char **argv, kvd_serve_options *cfg);
/*
 * Records the options in /parameters of the output file. `n_requests` is the number of requests
 * that the options select.
 */
int kvd_serve_record(const kvd_serve_options *cfg, size_t n_requests, kvd_run *r, kvd_err *err);
void kvd_serve_options_release(kvd_serve_options *cfg);

#endif
