/* Requests: when they arrive, how many tokens they bring, how many they ask for. */
#ifndef KVD_SERVING_REQUESTS_H
#define KVD_SERVING_REQUESTS_H

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

void kvd_requests_release(kvd_requests *r);

/*
 * A recorded trace: Azure's CSV (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake's JSON lines (timestamp in ms, input_length,
 * output_length), or our own CSV (arrival_s, input_tokens, output_tokens), told apart by the header or the first line. A bad row (missing
 * field, no number, 0 or more than 2^31 tokens, time that falls) is an error that names file, row, field and value. Gzip is not read.
 */
int kvd_requests_read(kvd_requests *r, const char *path, kvd_err *err);

/* Lengths without arrivals, drawn with replacement by poisson: a CSV with num_prefill_tokens, num_decode_tokens (vidur), any trace, or one
 * of the papers' tables by name ("imdb", "arxiv", "cocktail", "humaneval", "pg19", "sharegpt", "pile"), whose mean, least and greatest
 * are published: drawn log-normal, cut to the range, with the published mean. */
int kvd_requests_poisson(kvd_requests *r, double rate, size_t n, const char *lengths, uint64_t seed,
                         kvd_err *err);

/* Arrivals `factor` times as fast; lengths stay. */
void kvd_requests_faster(kvd_requests *r, double factor);

#endif
