/* Turns the measurements of kvdim-jct into rows of the results table kvdim/jct, and prints them. */
#ifndef KVD_SERVING_JCT_JCT_ROWS_H
#define KVD_SERVING_JCT_JCT_ROWS_H

#include "engine/engine.h"
#include "formats/jct.h"

/* Values that are equal in all rows of one method in the results table. */
typedef struct {
    /* `method` includes the parameters ("zack,p=0.5"), `name` does not ("zack"). */
    const char *method, *name;
    /* Fraction of the dimensions that the method removes, over all heads (overall p). */
    double overall_p;
    /*
     * Smallest and largest number of kept dimensions, and their coefficient of variation, over all
     * heads and both Q-K and V. NaN if the method keeps all dimensions.
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
     * Total number of decode steps of a job divided by the number of measured steps; 1 if all steps
     * were run.
     */
    double step_weight;
} kvd_jct_setting;

/* Measurements of one run of a job: requests of one size that arrive together. */
typedef struct {
    /*
     * Times of the iterations with prompt tokens, and of those with decode steps only. Both times
     * include the host time between iterations.
     */
    kvd_phase_times prefill, decode;
    /* Job completion time: seconds from the first arrival to the last token. */
    double jct;
    /* Seconds to the first token of a request: mean and largest over requests. */
    double ttft_mean, ttft_max;
    /* `running` is the largest number of requests that ran at one time. */
    size_t iterations, running;
    /* Number of preemptions, and number of tokens that the model processed again after them. */
    size_t preempted, recomputed;
    double held_bytes;  /* largest size of the KV cache during the run */
    double held_tokens; /* number of tokens in the KV cache when it was largest */
    /* Bytes that were sent between GPUs: [0] of Q, K and V, [1] of attention outputs. */
    double sent[2];
    /* Energy that the GPUs used during the run, in joules; NaN if not known. */
    double joules;
} kvd_jct_run;

/*
 * Adds the result row of a job that was run n_runs times. The row describes the run with the median
 * JCT; its samples are the JCTs of all runs. gap [n_gaps] holds the seconds between tokens of all
 * runs.
 */
int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err);

/*
 * Adds the result row of a timed iteration: `piece` prompt tokens after `before` tokens or, if
 * `piece` is 0, a decode step of `batch` requests with `context` tokens in the cache. The row holds
 * the median of the times `second` [n].
 */
int kvd_jct_add_iteration(kvd_rows *r, const kvd_jct_setting *s, size_t piece, size_t before,
                          size_t batch, double context, const double *second, int n, kvd_err *err);

typedef struct {
    size_t request, input, output;
    /*
     * Times in seconds. `arrival` is counted from the start of the run, `ttft` (to the first token)
     * and `jct` (to the last token) from the request's arrival.
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
 * kvd_jct_heading names the columns of the printed table. kvd_jct_line formats one row of it into
 * `line`, and returns `line`.
 */
extern const char kvd_jct_heading[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/* Formats a summary of all requests of a method into `line`, and returns `line`. */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method,
                                  char line[KVD_JCT_LINE]);

#endif
