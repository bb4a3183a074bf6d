/* Where requests come from, as --trace of kvdim-jct and kvdim-serve says it. */
#ifndef KVD_SERVING_ARRIVALS_H
#define KVD_SERVING_ARRIVALS_H

#include "common/run.h"
#include "serving/requests.h"

typedef struct {
    const char *text;    /* as given, borrowed; NULL: nothing is              */
    double rate;         /* of Poisson arrivals, a second; NaN: a recorded trace */
    const char *lengths; /* theirs, as kvd_requests_poisson takes them        */
} kvd_arrivals;

/* "FILE", a recorded trace, or "poisson:RATE[:LENGTHS]", with the lengths of "arxiv" unless given; `text` outlives *a. Fails when *a is taken. */
int kvd_arrivals_parse(const char *text, kvd_arrivals *a, kvd_err *err);

/* Adds the file of the trace, or of the lengths, to the run's inputs. */
int kvd_arrivals_inputs(const kvd_arrivals *a, kvd_run *run, kvd_err *err);

/* The first n of a trace (0: all), or n Poisson arrivals (0: `usual`) drawn from the seed. *r is the caller's: kvd_requests_release. */
int kvd_arrivals_load(const kvd_arrivals *a, size_t n, size_t usual, uint64_t seed, kvd_requests *r,
                      kvd_err *err);

#endif
