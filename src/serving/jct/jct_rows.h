/* Turns the measurements of kvdim-jct into rows of the results table kvdim/jct, and prints them. */
#ifndef KVD_SERVING_JCT_JCT_ROWS_H
#define KVD_SERVING_JCT_JCT_ROWS_H

#include "engine/engine.h"
#include "formats/jct.h"

/* Values shared by all result rows of one method. */
typedef struct {
    /* Method with parameters, such as "zack,p=0.5", and its name without parameters, "zack". */
    const char *method, *name;
    double overall_p; /* fraction of all dimensions that the method removes */
    /*
     * Smallest and largest number of kept dimensions of a head, and coefficient of variation over
     * heads.
     */
    double width_min, width_max, width_cv;
    const kvd_engine_facts *facts;
    double dense_bytes_per_token;
    kvd_dtype type;
    int gpus;
    bool sequence; /* true if the GPUs divide the tokens of a prompt */
    bool graphs, phases;
    size_t chunk;
    kvd_admission admission;
    /* Number of decode steps of the job for which each measured step counts. */
    double step_weight;
} kvd_jct_setting;

/* Measurements of one run of a job: equal requests that arrive together. */
typedef struct {
    /* Times of iterations with prompt tokens, and of other iterations. */
    kvd_phase_times prefill, decode;
    /* Job completion time: seconds from the first arrival to the last token. */
    double jct;
    /* Seconds to the first token: mean and largest over requests. */
    double ttft_mean, ttft_max;
    /* Number of iterations, and largest number of requests that ran at once. */
    size_t iterations, running;
    /* Number of preemptions, and of tokens that were processed again. */
    size_t preempted, recomputed;
    double held_bytes;  /* largest size of the KV cache */
    double held_tokens; /* tokens in the KV cache at its largest size */
    /* Bytes sent between GPUs: [0] Q, K and V; [1] attention outputs. */
    double sent[2];
    double joules; /* energy of all GPUs; NaN if not known */
} kvd_jct_run;

/*
 * Adds the row of a job that was run n_runs times, with the times of the median run. gap [n_gaps]:
 * seconds between tokens, of all runs.
 */
int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err);

/*
 * Adds the row of a measured iteration. Its time is the median of second [n]. The iteration has
 * `piece` prompt tokens after `before` tokens or, if `piece` is 0, decode steps.
 */
int kvd_jct_add_iteration(kvd_rows *r, const kvd_jct_setting *s, size_t piece, size_t before,
                          size_t batch, double context, const double *second, int n, kvd_err *err);

typedef struct {
    size_t request, input, output;
    /*
     * Seconds of a request: arrival since the start, and time to the first (ttft) and last token
     * (jct) since the arrival.
     */
    double arrival, ttft, jct;
    size_t preempted, recomputed;
    const double *gap;
    size_t n_gaps;
} kvd_jct_request;
int kvd_jct_add_request(kvd_rows *r, const kvd_jct_setting *s, const kvd_jct_request *q,
                        kvd_err *err);

enum { KVD_JCT_LINE = 320 };
/* Names of the printed columns; kvd_jct_line formats a row into `line`. */
extern const char kvd_jct_heading[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/* Formats a summary of a method's requests into `line`. */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method,
                                  char line[KVD_JCT_LINE]);

#endif
