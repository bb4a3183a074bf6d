/* The command line of kvdim-serve. */
#ifndef KVD_SERVING_SERVE_OPTIONS_H
#define KVD_SERVING_SERVE_OPTIONS_H

#include "common/args.h"
#include "common/run.h"
#include "serving/simulator.h"

enum { KVD_SERVE_METHODS = 64, KVD_SERVE_COSTS = 64 };

typedef struct {
    kvd_common_options common;
    const char *costs[KVD_SERVE_COSTS];
    size_t n_costs;
    const char *trace, *validate;
    char *method[KVD_SERVE_METHODS]; /* allocated; none: all that the costs have */
    size_t n_methods;
    double *rate; /* allocated; n_rates 0: not given */
    size_t n_rates;
    size_t replicas;
    kvd_route route;
    bool replicas_given, route_given;
    int gpus;                   /* -1: not given */
    double memory, reserve;     /* bytes of a GPU; NaN: not given */
    kvd_batching_limits limits; /* pages: not of the options */
    bool max_batch_given, max_tokens_given, chunk_given;
    double slo_ttft, slo_tbt; /* seconds; infinite: none */
    double bound;             /* of --max-rate, seconds a token; NaN: no search */
    size_t n_requests;        /* 0: not given */
    /* of --trace poisson:RATE[:LENGTHS] */
    double poisson_rate; /* NaN: a recorded trace */
    const char *lengths;
} kvd_serve_options;

/* Parses argv; wrong usage ends the program with status 2. */
void kvd_serve_parse(const char *program, int argc, char **argv, kvd_serve_options *cfg);
/* Into /parameters, with the number of requests that came of it. */
int kvd_serve_record(const kvd_serve_options *cfg, size_t n_requests, kvd_run *r, kvd_err *err);
void kvd_serve_options_release(kvd_serve_options *cfg);

#endif
