/*
 * Turns the measurements of kvdim-jct (job completion times) into lines of the results table of
 * schema kvdim/jct, and prints them.
 */
#ifndef KVD_SERVING_JCT_JCT_ROWS_H
#define KVD_SERVING_JCT_JCT_ROWS_H

#include "engine/engine.h"
#include "formats/jct.h"

/* Values that are equal in all lines of one method in the results table. */
typedef struct {
    /*
     * Label of the method in results, such as "zack,p=0.5", and its name without parameters,
     * "zack".
     */
    const char *method, *name;
    /* Fraction of the dimensions that the method removes, over all heads (overall p). */
    double overall_p;
    /*
     * Least and greatest number of kept dimensions, and coefficient of variation (CV) of these
     * numbers, over all heads and both Q-K and V. NaN if the method keeps all dimensions.
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
     * Number of decode steps of a job for which each measured step counts; 1 if all steps were run.
     */
    double step_weight;
} kvd_jct_setting;

/* Measurements of one run of a job, that is of requests of one size that arrive together. */
typedef struct {
    /*
     * Times of the iterations with prompt tokens (prefill), and of those with decode steps only.
     * Both include the host time between iterations.
     */
    kvd_phase_times prefill, decode;
    /* Job completion time: seconds from the first arrival to the last token. */
    double jct;
    /* Seconds to the first token of a request: mean and largest over requests. */
    double ttft_mean, ttft_max;
    /*
     * Number of iterations (forward passes), and largest number of requests that ran at one time.
     */
    size_t iterations, running;
    /* Number of preemptions, and number of tokens that the model processed again after them. */
    size_t preempted, recomputed;
    /* Largest size of the KV cache during the run, in bytes. */
    double held_bytes;
    /* Number of tokens in the KV cache when it was largest. */
    double held_tokens;
    /* Bytes that were sent between GPUs: [0] of Q, K and V, [1] of attention outputs. */
    double sent[2];
    /* Energy that the GPUs used during the run, in joules; NaN if not known. */
    double joules;
} kvd_jct_run;

/*
 * Adds the line of a job that was run n_runs times, run [n_runs], to the results table. The line
 * describes the run with the median JCT; its samples are the JCTs of all runs. gap [n_gaps] holds
 * the seconds between tokens, of all runs.
 */
int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err);

/*
 * Adds the line of a timed iteration to the results table. The iteration is a part of a prompt,
 * `piece` tokens after `before` tokens. If `piece` is 0, it is a decode step of `batch` requests
 * with `context` tokens in the cache. second [n] holds the measured times; the line has their
 * median.
 */
int kvd_jct_add_iteration(kvd_rows *r, const kvd_jct_setting *s, size_t piece, size_t before,
                          size_t batch, double context, const double *second, int n, kvd_err *err);

typedef struct {
    size_t request, input, output;
    /*
     * Seconds: arrival from the start of the run; time to first token and completion time from the
     * arrival.
     */
    double arrival, ttft, jct;
    size_t preempted, recomputed;
    const double *gap;
    size_t n_gaps;
} kvd_jct_request;
int kvd_jct_add_request(kvd_rows *r, const kvd_jct_setting *s, const kvd_jct_request *q,
                        kvd_err *err);

enum { KVD_JCT_LINE = 320 };
/*
 * Printed table: kvd_jct_heading names the columns; kvd_jct_line writes one line of results to
 * `line` and returns it.
 */
extern const char kvd_jct_heading[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/*
 * Writes one line that summarises all requests of a method (table lines of kind "request") to
 * `line`, and returns it.
 */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method,
                                  char line[KVD_JCT_LINE]);

#endif
