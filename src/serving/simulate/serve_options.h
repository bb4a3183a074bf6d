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
    const char *requests, *validate;
    /* compression methods to simulate, allocated; without --method, all methods that the files of
     * --costs (measured times) contain */
    char *method[KVD_SERVE_METHODS];
    size_t n_methods;
    double *rate; /* requests per second, allocated */
    size_t n_rates;
    size_t replicas;
    kvd_route route;
    int gpus; /* -1 if not given */
    /* memory: bytes of memory of each GPU; reserve: bytes of it to leave free; NaN if not given */
    double memory, reserve;
    /* limits of a batch from the options; the member `pages` is not set here */
    kvd_batching_limits limits;
    bool max_batch_given, max_tokens_given, chunk_given, admission_given;
    double slo_ttft, slo_tbt; /* service level objectives in seconds; infinite means none */
    /* largest allowed latency in seconds per output token, for the search of the highest request
     * rate; NaN for no search */
    double bound;
    size_t n_requests;   /* 0 if not given */
    double poisson_rate; /* requests per second; NaN means a recorded trace */
    const char *lengths;
} kvd_serve_options;

/* Parses the command line into *cfg. Wrong usage ends the program with status 2. */
void kvd_serve_parse(int argc, char **argv, kvd_serve_options *cfg);
/* Records the options and the number of requests as parameters of run *r, for the output file. */
int kvd_serve_record(const kvd_serve_options *cfg, size_t n_requests, kvd_run *r, kvd_err *err);
void kvd_serve_options_release(kvd_serve_options *cfg);

#endif
