/*
 * Turns the measurements of kvdim-jct (job completion times) into rows of a file of schema
 * kvdim/jct, and prints them as a table.
 */
#ifndef KVD_SERVING_JCT_JCT_ROWS_H
#define KVD_SERVING_JCT_JCT_ROWS_H

#include "engine/engine.h"
#include "formats/jct.h"

/* Settings that all rows of one method share. */
typedef struct {
    /* Label of the method in rows, such as "zack,p=0.5"; its name without parameters, "zack". */
    const char *method, *name;
    /* Fraction of the dimensions that the method removes, over all heads (overall p). */
    double overall_p;
    /*
     * Least and greatest kept width, and coefficient of variation (CV) of the widths, over all
     * heads and both sides (K and V). NaN if the method does not shorten the dims axis.
     */
    double width_min, width_max, width_cv;
    const kvd_engine_facts *facts;
    double dense_bytes_per_token;
    kvd_dtype type;
    int gpus;
    /* True if the GPUs divide the tokens of a prompt (sequence parallel). */
    bool sequence;
    bool graphs, phases;
    size_t chunk;
    kvd_admission admission;
    /*
     * Number of decode steps of a job that each sampled step represents; 1 if all steps were run.
     */
    double step_weight;
} kvd_jct_setting;

/* Measurements of one run of a job (a group of requests). */
typedef struct {
    /*
     * Times of the iterations with a piece of a prompt (prefill) and of those with decode steps
     * only. Both include the host time between iterations.
     */
    kvd_phase_times prefill, decode;
    /* Job completion time: seconds from the first arrival to the last token. */
    double jct;
    double ttft_mean, ttft_max; /* time to first token, mean and largest over requests */
    /* Number of iterations, and largest number of requests that ran at the same time. */
    size_t iterations, running;
    size_t preempted, recomputed; /* preemptions, and tokens that they made the model repeat */
    /* Largest size of the KV cache in bytes, as the cache counts it. */
    double held_bytes;
    /* Number of tokens in the KV cache when it was largest. */
    double held_tokens;
    /* Bytes that were sent between GPUs: [0] of Q, K and V, [1] of attention outputs. */
    double sent[2];
    /* Energy of the GPUs in joules; NaN if not known. */
    double joules;
} kvd_jct_run;

/*
 * Adds the row of a job that was run n_runs times, run [n_runs]. The row describes the run with the
 * median JCT; its samples are the JCTs of all runs. gap [n_gaps] holds the seconds between tokens,
 * of all runs.
 */
int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err);

/*
 * Adds the row of a timed iteration: a piece of a prompt after `before` tokens or, if `piece` is 0,
 * a decode step of `batch` requests with `context` tokens in the cache. second [n] holds the
 * sampled times; the row has their median.
 */
int kvd_jct_add_iteration(kvd_rows *r, const kvd_jct_setting *s, size_t piece, size_t before,
                          size_t batch, double context, const double *second, int n, kvd_err *err);

typedef struct {
    size_t request, input, output;
    double arrival, ttft, jct; /* seconds; ttft and jct from the arrival */
    size_t preempted, recomputed;
    const double *gap;
    size_t n_gaps;
} kvd_jct_request;
int kvd_jct_add_request(kvd_rows *r, const kvd_jct_setting *s, const kvd_jct_request *q,
                        kvd_err *err);

/* Printed table: heading of its columns, and one line per row. */
enum { KVD_JCT_LINE = 320 };
extern const char kvd_jct_heading[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/*
 * Writes one line that summarises the rows of a method's requests (kind "request") to `line`, and
 * returns it.
 */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method,
                                  char line[KVD_JCT_LINE]);

#endif
