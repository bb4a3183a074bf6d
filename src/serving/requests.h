/* Requests to a language model: arrival times, and numbers of input and output tokens. */
#ifndef KVD_SERVING_REQUESTS_H
#define KVD_SERVING_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    /* In seconds from the start; does not decrease from one request to the next. */
    double arrival;
    /* Numbers of tokens, each at least 1. The prefill produces the first output token. */
    uint32_t input, output;
} kvd_request;

typedef struct {
    /* Name of the trace in results, such as "poisson:2.5 of arxiv". */
    char name[128];
    size_t n;
    kvd_request *request;
    /* Number of requests that kvd_requests_first has removed from the end of the trace. */
    size_t n_skipped;
} kvd_requests;

void kvd_requests_release(kvd_requests *r); /* safe on a zeroed struct */

/*
 * Sets the name of the trace to `before` followed by the last component of the path. A name that is
 * too long is cut and ends in "...".
 */
void kvd_requests_set_name(kvd_requests *r, const char *before, const char *path);

/*
 * Reads a recorded trace in one of three formats, which the first line tells:
 *
 *   Azure CSV            TIMESTAMP, ContextTokens, GeneratedTokens
 *   Mooncake JSON lines  timestamp (ms), input_length, output_length
 *   kvdim CSV            arrival_s, input_tokens, output_tokens
 *
 * Time 0 is the first request or, in kvdim CSV, 0 s. Other columns and keys are ignored. Fails on a
 * row in which a field is missing or not a number, a number of tokens is 0 or above 2^31, or the
 * time is earlier than in the row before.
 */
int kvd_requests_read(kvd_requests *r, const char *path, kvd_err *err);
/*
 * Parses a trace in memory, as kvd_requests_read does for a file. `name` is for messages and
 * results.
 */
int kvd_requests_parse(kvd_requests *r, const char *name, const char *text, size_t len,
                       kvd_err *err);

/*
 * Reads only the lengths of requests, from any trace or from a CSV file of the simulator Vidur
 * (num_prefill_tokens, num_decode_tokens). Every arrival is 0.
 */
int kvd_requests_lengths(kvd_requests *r, const char *path, kvd_err *err);

/*
 * Draws n requests with Poisson arrivals at `rate` requests per second. `lengths` gives the
 * distribution of the input and output lengths:
 *
 *   FILE                lengths drawn with replacement from a file that kvd_requests_lengths reads
 *   fixed:INPUT:OUTPUT  the same INPUT and OUTPUT length for all requests
 *   NAME                a table in a paper: imdb, arxiv, cocktail or humaneval (ZACK paper),
 *                       cocktail-fdc or pg19 (FDC paper), pile or sharegpt (ZDC paper)
 *
 * Lengths of NAME are log-normal with the published mean, cut to the published range. The same seed
 * gives the same lengths at every rate. Arrival times at two rates differ only by a factor, the
 * ratio of the rates.
 */
int kvd_requests_poisson(kvd_requests *r, double rate, size_t n, const char *lengths, uint64_t seed,
                         kvd_err *err);

/* Returns true if `lengths`, an argument of kvd_requests_poisson, names a file. */
bool kvd_requests_lengths_from_file(const char *lengths);

/* Divides all arrival times by `factor`. */
void kvd_requests_faster(kvd_requests *r, double factor);
/*
 * Keeps only the first n requests and adds the number of the others to n_skipped. Fails if there
 * are fewer than n.
 */
int kvd_requests_first(kvd_requests *r, size_t n, kvd_err *err);
/*
 * Returns requests per second: (n - 1) / time between the first and the last arrival; 0 if that
 * time is 0.
 */
double kvd_requests_rate(const kvd_requests *r);

#endif
