/* Parses the command line of kvdim-serve. */
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
    const char *requests, *validate; /* NULL if not given */
    /*
     * Labels of the methods to simulate, allocated; if there are none, all methods of the cost
     * files are simulated.
     */
    char *method[KVD_SERVE_METHODS];
    size_t n_methods;
    double *rate; /* requests per second, allocated; n_rates 0: not given */
    size_t n_rates;
    size_t replicas;
    kvd_route route;
    int gpus;                   /* -1 if not given */
    double memory, reserve;     /* bytes of a GPU; NaN if not given */
    kvd_batching_limits limits; /* all limits except the pages */
    bool max_batch_given, max_tokens_given, chunk_given, admission_given;
    double slo_ttft, slo_tbt; /* seconds; infinite means none */
    double bound;             /* --max-rate, seconds per token; NaN means no search */
    size_t n_requests;        /* 0 if not given */
    /* Parts of the option --requests poisson:RATE[:LENGTHS]. */
    double poisson_rate; /* NaN means a recorded trace */
    const char *lengths;
} kvd_serve_options;

/* Reads argv into *cfg. Wrong usage ends the program with status 2. */
void kvd_serve_parse(int argc, char **argv, kvd_serve_options *cfg);
/*
 * Records the options in /parameters of the output. `n_requests` is the number of requests that the
 * options select.
 */
int kvd_serve_record(const kvd_serve_options *cfg, size_t n_requests, kvd_run *r, kvd_err *err);
void kvd_serve_options_release(kvd_serve_options *cfg);

#endif
