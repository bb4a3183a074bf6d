/*
 * kvdim/jct: what inference costs, in rows of three kinds.
 *
 *   job        a batch of requests of one input and one output length, from arrival to last token
 *   iteration  one iteration of the engine alone: a piece of a prompt (`piece` tokens behind `before`), `batch` whole prompts of `piece`
 *              tokens, or a step of `batch` requests with `context` tokens each in the cache
 *   request    one request of a replayed trace
 */
#ifndef KVD_SERVING_JCT_FILE_H
#define KVD_SERVING_JCT_FILE_H

#include "formats/model_info.h"
#include "formats/rows.h"
#include "serving/engine.h"

extern const kvd_schema kvd_schema_jct;

/* What all rows of one method share. */
typedef struct {
    const char *method, *name; /* as the rows print it, "zack,p=0.5"; without keys, "zack" */
    double overall_p;          /* of the dims axis                                            */
    double width_min, width_max,
        width_cv; /* of what it keeps, over heads and both sides; NaN: no such axis  */
    const kvd_engine_facts *facts;
    double dense_bytes_per_token;
    kvd_dtype type;
    int gpus;
    bool sequence; /* they share prompts by tokens */
    bool graphs, phases;
    size_t chunk;
    double step_weight; /* of a job: steps for each that ran; 1: all did */
} kvd_jct_setting;

/* One run of a job. */
typedef struct {
    kvd_phase_times prefill,
        decode; /* iterations with a piece of a prompt; of steps alone. Host time between is in them */
    double jct; /* from the first arrival to the last token                                          */
    double ttft_mean,
        ttft_max; /* over requests                                                                     */
    size_t iterations,
        running;       /* running: most requests at once                                                    */
    double held_bytes; /* most that the cache held, by its own count                                        */
    double held_tokens; /* in the cache then */
    double sent[2];     /* bytes from GPU to GPU in exchanges: of Q, K and V, and of attention's output */
    double joules; /* NaN: not known                                                                    */
} kvd_jct_run;

typedef struct {
    kvd_rows *rows;
    int samples; /* of every row, the others NaN */
    size_t n, capacity;
    double *second, *ttft; /* [n][samples] */
} kvd_jct;

int kvd_jct_init(kvd_jct *j, int samples, kvd_err *err);
void kvd_jct_release(kvd_jct *j);

/* run [n_runs]: the row is the run with the median JCT, its samples are those of all; gap [n_gaps]: seconds between tokens of all runs. */
int kvd_jct_add_job(kvd_jct *j, const kvd_jct_setting *s, size_t batch, size_t input, size_t output,
                    const kvd_jct_run *run, int n_runs, const double *gap, size_t n_gaps, kvd_err *err);

/* piece 0: a step of batch at context. second [n]: samples, of which the row has the median. */
int kvd_jct_add_iteration(kvd_jct *j, const kvd_jct_setting *s, size_t piece, size_t before, size_t batch,
                          double context, const double *second, int n, kvd_err *err);

typedef struct {
    size_t request, input, output;
    double arrival, ttft, jct; /* seconds; ttft and jct from the arrival */
    const double *gap;
    size_t n_gaps;
} kvd_jct_request;
int kvd_jct_add_request(kvd_jct *j, const kvd_jct_setting *s, const kvd_jct_request *r, kvd_err *err);

typedef struct {
    const kvd_model_info *model;
    const char *sweep;   /* what rows of one file must have in common: a resumed run checks it */
    const char *skipped; /* what could not run and why, a line each                                         */
    size_t points, points_done;
} kvd_jct_facts;

/* Writes PATH whole. */
int kvd_jct_write(const kvd_jct *j, const char *path, const kvd_jct_facts *facts, const kvd_run *run,
                  kvd_err *err);

/* The rows of a file of an unfinished sweep, into *j, which kvd_jct_init made. 1: there is no such file. Fails when its
 * `sweep` is another. */
int kvd_jct_resume(kvd_jct *j, const char *path, const char *sweep, kvd_err *err);

/* The table on stdout: its heading, and a line per row. */
enum { KVD_JCT_LINE = 320 };
extern const char kvd_jct_heading[];
const char *kvd_jct_line(const kvd_rows *rows, size_t row, char line[KVD_JCT_LINE]);
/* The request rows of a method in one line. */
const char *kvd_jct_requests_line(const kvd_rows *rows, const char *method, char line[KVD_JCT_LINE]);

#endif
