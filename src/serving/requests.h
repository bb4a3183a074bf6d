/* Requests to a language model: arrival times, and numbers of input and output tokens. */
#ifndef KVD_SERVING_REQUESTS_H
#define KVD_SERVING_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    double arrival; /* seconds from the start, not decreasing */
    /* number of input tokens and number of output tokens. Each number is at least 1. Processing the
     * input already yields the first output token. */
    uint32_t input, output;
} kvd_request;

typedef struct {
    /* name of the source of arrivals and lengths, such as "poisson:2.5 of arxiv"; written into
     * results */
    char name[128];
    size_t n;
    kvd_request *request;
    size_t n_skipped; /* requests removed by kvd_requests_first */
} kvd_requests;

void kvd_requests_release(kvd_requests *r); /* safe on a zeroed struct */

/* Sets the name of the requests to `before`, followed by the last component of `path`. */
void kvd_requests_set_name(kvd_requests *r, const char *before, const char *path);

/* Reads a trace of requests. Its first line tells which of three formats it has:
 *
 * Azure CSV            TIMESTAMP, ContextTokens, GeneratedTokens
 * Mooncake JSON lines  timestamp (ms), input_length, output_length
 * kvdim CSV            arrival_s, input_tokens, output_tokens
 *
 * Fails if a field is missing, a number of tokens is 0 or above 2^31, or arrival times decrease. */
int kvd_requests_read(kvd_requests *r, const char *path, kvd_err *err);
/* Parses a trace that is in memory. `name`: its name in messages and results. */
int kvd_requests_parse(kvd_requests *r, const char *name, const char *text, size_t len,
                       kvd_err *err);

/* Reads only input and output lengths of requests, from a trace or a CSV file of the simulator
 * Vidur. */
int kvd_requests_lengths(kvd_requests *r, const char *path, kvd_err *err);

/* Draws n requests with Poisson arrivals at `rate` per second. `lengths` gives the numbers of input
 * and output tokens:
 *
 * FILE                drawn from the lengths in a file
 * fixed:INPUT:OUTPUT  equal for all requests
 * NAME                distribution in a paper's table: imdb, arxiv, cocktail or humaneval (ZACK),
 *                     cocktail-fdc or pg19 (FDC), pile or sharegpt (ZDC)
 *
 * The same seed gives the same lengths at every rate. */
int kvd_requests_poisson(kvd_requests *r, double rate, size_t n, const char *lengths, uint64_t seed,
                         kvd_err *err);

bool kvd_requests_lengths_from_file(const char *lengths);

void kvd_requests_faster(kvd_requests *r, double factor);
/* Keeps the first n requests and counts the removed ones in r->n_skipped. Fails if there are fewer
 * than n. */
int kvd_requests_first(kvd_requests *r, size_t n, kvd_err *err);
/* Returns the mean rate in requests per second: (n - 1) / time from first to last arrival. */
double kvd_requests_rate(const kvd_requests *r);

#endif
