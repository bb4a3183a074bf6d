/* Rows of a kvdim/jct file from what kvdim-jct measured, and the table on stdout. */
#ifndef KVD_SERVING_JCT_JCT_ROWS_H
#define KVD_SERVING_JCT_JCT_ROWS_H

#include "engine/engine.h"
#include "formats/jct.h"

/* Values that all rows of one method share. */
typedef struct {
    /* Label that the rows print, "zack,p=0.5"; and name without keys, "zack". */
    const char *method, *name;
    /* Overall p of the dims axis. */
    double overall_p;
    /*
     * Least and greatest width that the method keeps, and coefficient of variation of the widths,
     * over heads and both sides; NaN if the method has no dims axis.
     */
    double width_min, width_max, width_cv;
    const kvd_engine_facts *facts;
    double dense_bytes_per_token;
    kvd_dtype type;
    int gpus;
    /* True if the GPUs share prompts by tokens (sequence parallel). */
    bool sequence;
    bool graphs, phases;
    size_t chunk;
    kvd_admission admission;
    /* Number of decode steps of a job that each measured step represents; 1: all steps ran. */
    double step_weight;
} kvd_jct_setting;

/* One run of a job. */
typedef struct {
    /*
     * prefill: times of iterations with a piece of a prompt; decode: of iterations with steps only.
     * Both include the host time between iterations.
     */
    kvd_phase_times prefill, decode;
    /* Seconds from the first arrival to the last token. */
    double jct;
    double ttft_mean, ttft_max; /* mean and largest over requests */
    /* Number of iterations, and largest number of requests that ran at once. */
    size_t iterations, running;
    size_t preempted, recomputed; /* preemptions, and tokens that they made the model repeat */
    /* Largest number of bytes that the cache held, by its own count. */
    double held_bytes;
    /* Number of tokens in the cache when it held most. */
    double held_tokens;
    /* Bytes sent between GPUs: [0] in exchanges of Q, K and V, [1] of attention outputs. */
    double sent[2];
    /* Energy in joules; NaN if not known. */
    double joules;
} kvd_jct_run;

/*
 * Adds a job. run [n_runs]: the row describes the run with the median JCT, and its samples are the
 * JCTs of all runs. gap [n_gaps]: seconds between tokens, of all runs.
 */
int kvd_jct_add_job(kvd_rows *r, const kvd_jct_setting *s, size_t batch, size_t input,
                    size_t output, const kvd_jct_run *run, int n_runs, const double *gap,
                    size_t n_gaps, kvd_err *err);

/*
 * Adds an iteration. piece 0: a decode step of `batch` requests at `context` tokens. second [n]:
 * samples; the row has their median.
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

/* The table on stdout: its heading, and a line per row. */
enum { KVD_JCT_LINE = 320 };
extern const char kvd_jct_heading[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/* Writes one line that summarises the request rows of a method, and returns it. */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method,
                                  char line[KVD_JCT_LINE]);

#endif
