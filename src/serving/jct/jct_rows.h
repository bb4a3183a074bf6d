/* Turns measured job completion times into a result table (kvdim/jct), and prints its rows. */
#ifndef KVD_SERVING_JCT_JCT_ROWS_H
#define KVD_SERVING_JCT_JCT_ROWS_H

#include "engine/engine.h"
#include "formats/jct.h"

/* columns that are equal in all kvdim/jct rows of a method */
typedef struct {
    /* method with parameters, "zack,p=0.5", and without, "zack" */
    const char *method, *name;
    double overall_p; /* fraction of all dimensions that the method removes */
    /* smallest and largest number of kept dimensions of a head, and its coefficient of variation */
    double width_min, width_max, width_cv;
    const kvd_engine_facts *facts;
    double dense_bytes_per_token;
    kvd_dtype type;
    int gpus;
    bool sequence; /* true if the GPUs divide the tokens of a prompt */
    bool graphs, phases;
    size_t chunk;
    kvd_admission admission;
    /* number of decode steps for which each measured one counts */
    double step_weight;
} kvd_jct_setting;

/* one run of a job: equal requests that arrive together */
typedef struct {
    /* times of iterations with prompt tokens, and of iterations with decode steps only */
    kvd_phase_times prefill, decode;
    /* seconds from the first arrival to the last token */
    double jct;
    /* mean and largest seconds to the first token, over requests */
    double ttft_mean, ttft_max;
    /* number of iterations, and largest number of requests that ran at once */
    size_t iterations, running;
    /* number of preemptions, and of tokens that were processed again */
    size_t preempted, recomputed;
    double held_bytes;  /* largest size of the KV cache */
    double held_tokens; /* tokens in the KV cache at its largest size */
    /* bytes sent between GPUs: [0] of Q, K and V; [1] of attention outputs */
    double sent[2];
    double joules; /* energy of all GPUs; NaN if not known */
} kvd_jct_run;

/* Adds a job, run n_runs times, with its median times. gap [n_gaps]: seconds between tokens. */
int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err);

/* Adds an iteration, measured n times (second), with its median. It has `piece` prompt tokens after
 * `before` cached ones, or is a decode step if `piece` is 0. */
int kvd_jct_add_iteration(kvd_rows *r, const kvd_jct_setting *s, size_t piece, size_t before,
                          size_t batch, double context, const double *second, int n, kvd_err *err);

typedef struct {
    size_t request, input, output;
    /* seconds: arrival since the start, then first (ttft) and last token (jct) since the arrival */
    double arrival, ttft, jct;
    size_t preempted, recomputed;
    const double *gap;
    size_t n_gaps;
} kvd_jct_request;
int kvd_jct_add_request(kvd_rows *r, const kvd_jct_setting *s, const kvd_jct_request *q,
                        kvd_err *err);

enum { KVD_JCT_LINE = 320 };
/* heading of the table whose lines kvd_jct_line formats */
extern const char kvd_jct_heading[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/* Formats mean, median and 99 % quantile of the latencies of a method's requests. */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method,
                                  char line[KVD_JCT_LINE]);

#endif
