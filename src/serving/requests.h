/* Requests: when they arrive, how many tokens they bring, how many they ask for. */
#ifndef KVD_SERVING_REQUESTS_H
#define KVD_SERVING_REQUESTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

typedef struct {
    double arrival;         /* seconds from the start, rising over the list */
    uint32_t input, output; /* tokens, both at least 1; the first of the output comes out of the prefill */
} kvd_request;

typedef struct {
    char name[128]; /* for results: "AzureLLMInferenceTrace_conv.csv", "poisson:2.5 of arxiv" */
    size_t n;
    kvd_request *request;
    size_t n_skipped; /* rows left out on request (rate, window) — never silently */
} kvd_requests;

void kvd_requests_release(kvd_requests *r); /* safe on a zeroed struct */

/* Names it `before` and the last part of the path; too long, it ends in "..." behind a whole character. */
void kvd_requests_set_name(kvd_requests *r, const char *before, const char *path);

/*
 * A recorded trace: Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake's JSON lines (timestamp
 * in ms, input_length, output_length), or our own CSV (arrival_s, input_tokens, output_tokens), told apart by
 * the header or the first line; other columns and keys are passed over. Time starts with the first request of
 * Azure's and Mooncake's, and at 0 in our own. A bad row (missing field, no number, 0 or more than 2^31
 * tokens, time that falls) is an error that names file, row, field and value. Gzip is not read.
 */
int kvd_requests_read(kvd_requests *r, const char *path, kvd_err *err);
/* The same over memory; `name` is for messages and results. */
int kvd_requests_parse(kvd_requests *r, const char *name, const char *text, size_t len, kvd_err *err);

/* Lengths alone: a CSV with num_prefill_tokens and num_decode_tokens (vidur), or any trace. Every arrival
 * is 0. */
int kvd_requests_lengths(kvd_requests *r, const char *path, kvd_err *err);

/*
 * n requests at exponential distances (Poisson arrivals, `rate` requests a second) with lengths drawn with
 * replacement from `lengths`: a file as above, "fixed:INPUT:OUTPUT", or one of the papers' tables by name
 * ("imdb", "arxiv", "cocktail", "humaneval" of ZACK, "cocktail-fdc", "pg19" of FDC, "pile", "sharegpt" of
 * ZDC), whose mean, least and greatest are published: drawn log-normal, cut to the range, with the published
 * mean (poisson.c says how wide). The same seed gives the same lengths at every rate, and the same gaps but
 * for their scale.
 */
int kvd_requests_poisson(kvd_requests *r, double rate, size_t n, const char *lengths, uint64_t seed,
                         kvd_err *err);

/* Whether such lengths are those of a file. */
bool kvd_requests_lengths_from_file(const char *lengths);

/* Arrivals `factor` times as fast; lengths stay. */
void kvd_requests_faster(kvd_requests *r, double factor);
/* Keeps the first n and counts the others as skipped; fewer than n is an error. */
int kvd_requests_first(kvd_requests *r, size_t n, kvd_err *err);
/* Requests a second, (n - 1) / time between the first and the last; 0 when no time passes. */
double kvd_requests_rate(const kvd_requests *r);

#endif
