/* Turns measured job completion times into rows of a result table (schema kvdim/jct) and formats
 * these rows for printing. */
#ifndef KVD_SERVING_JCT_JCT_ROWS_H
#define KVD_SERVING_JCT_JCT_ROWS_H

#include "engine/engine.h"
#include "formats/jct.h"

/* values that are equal in all rows of a method in a kvdim/jct table */
typedef struct {
    /* method: name with parameters, such as "zack,p=0.5"; name: without them, such as "zack" */
    const char *method, *name;
    double overall_p; /* fraction of all dimensions that the compression method removes */
    /* smallest and largest number of dimensions that a head keeps, and the coefficient of variation
     * of this number over heads */
    double width_min, width_max, width_cv;
    const kvd_engine_facts *facts;
    double dense_bytes_per_token;
    kvd_dtype type;
    int gpus;
    bool sequence; /* true if the GPUs divide the tokens of a prompt */
    bool graphs, phases;
    size_t chunk;
    kvd_admission admission;
    /* number of decode steps of a job divided by the number of decode steps that were computed; 1
     * if all were computed */
    double step_weight;
} kvd_jct_setting;

/* measurements of one run of a job: requests of equal lengths that arrive together */
typedef struct {
    /* times of all iterations that process prompt tokens, and of all iterations with decode steps
     * only */
    kvd_phase_times prefill, decode;
    /* job completion time: seconds from the first arrival to the last token */
    double jct;
    /* mean and largest time to first token of the requests, in seconds */
    double ttft_mean, ttft_max;
    /* number of iterations; largest number of requests that ran at once */
    size_t iterations, running;
    /* number of preemptions; number of tokens that had to be processed again after them */
    size_t preempted, recomputed;
    double held_bytes;  /* largest size of the KV cache */
    double held_tokens; /* tokens in the KV cache at its largest size */
    /* bytes sent between GPUs: sent[0] for Q, K and V; sent[1] for attention outputs */
    double sent[2];
    double joules; /* energy of all GPUs; NaN if not known */
} kvd_jct_run;

/* Adds a row for a job that was run n_runs times, with the medians of its times. gap [n_gaps]:
 * seconds between successive output tokens. */
int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err);

/* Adds a row for an iteration: `piece` prompt tokens after `before` cached tokens, or a decode step
 * if `piece` is 0. second [n]: measured seconds, of which the row contains the median. */
int kvd_jct_add_iteration(kvd_rows *r, const kvd_jct_setting *s, size_t piece, size_t before,
                          size_t batch, double context, const double *second, int n, kvd_err *err);

typedef struct {
    size_t request, input, output;
    /* arrival: seconds from the start of the run; ttft and jct: seconds from the arrival to the
     * first and to the last token */
    double arrival, ttft, jct;
    size_t preempted, recomputed;
    const double *gap;
    size_t n_gaps;
} kvd_jct_request;
int kvd_jct_add_request(kvd_rows *r, const kvd_jct_setting *s, const kvd_jct_request *q,
                        kvd_err *err);

enum { KVD_JCT_LINE = 720 };
/* heading of the printed table whose lines kvd_jct_line formats */
extern const char kvd_jct_heading[], kvd_jct_legend[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/* Formats a line with mean, median and 99 % quantile of the latencies over all requests of a
 * method. */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method,
                                  char line[KVD_JCT_LINE]);

#endif
