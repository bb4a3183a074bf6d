/*
 * kvdim/jct files: times and memory of inference. A row is of one of three kinds:
 *
 * - job: a batch of requests of one input and one output length, from arrival to last token
 * - iteration: one forward pass: a part of a prompt (`piece` tokens after `before` tokens), `batch`
 *   prompts of `piece` tokens, or a decode step of `batch` requests with `context` cached tokens
 *   each
 * - request: one request of a trace (list of arrivals) that was served in real time
 */
#ifndef KVD_FORMATS_JCT_H
#define KVD_FORMATS_JCT_H

#include "formats/model_info.h"
#include "formats/rows.h"

/* Schemas of OUT.h5 and of OUT.h5.rows, the finished rows of an interrupted sweep. */
extern const kvd_schema kvd_schema_jct, kvd_schema_jct_rows;

/*
 * Values that are stored for each repetition: seconds to complete the job (or iteration), and to
 * the first token.
 */
enum { KVD_JCT_SECONDS, KVD_JCT_TTFT, KVD_JCT_SAMPLES };

/* Returns an empty table, which the caller frees, with `samples` repeated measurements per row. */
kvd_rows *kvd_jct_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_model_info *model;
    const char *sweep; /* text of the options of the sweep; a resumed run needs an equal text */
    /* Methods and lengths that could not run. Each line gives one and the reason. */
    const char *skipped;
    size_t points, points_done;
} kvd_jct_facts;

/* Writes the table and the facts into the open file f and completes it. The caller closes f. */
int kvd_jct_finish(const kvd_rows *r, kvd_h5 *f, const kvd_jct_facts *facts, kvd_err *err);

/* Writes the finished rows of an unfinished sweep to `path` (OUT.h5.rows). */
int kvd_jct_save(const kvd_rows *r, const char *path, const kvd_jct_facts *facts,
                 const kvd_run *run, kvd_err *err);

/*
 * Appends the rows of a file to *r. Fails on a bad number, or if the options of the file's sweep
 * differ from the text `sweep`.
 */
int kvd_jct_resume(kvd_rows *r, const char *path, const kvd_schema *schema, const char *sweep,
                   kvd_err *err);

/*
 * Reads the table of results. Fails on a missing column or a bad number. The caller always frees
 * *rows.
 */
int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

/*
 * Reads execution times for kvdim-serve. A method that was not timed with attention `ours` is
 * called NAME@ATTENTION.
 */
kvd_rows *kvd_jct_costs_read(kvd_h5 *f, kvd_err *err);

/* Returns the row of method `none` for the same job, or SIZE_MAX if there is none. */
size_t kvd_jct_uncompressed(const kvd_rows *rows, size_t row);

/*
 * Returns the break-even length: the input (or output) length from which on the method of `row` is
 * faster than method `none`, or NaN.
 */
double kvd_jct_break_even(const kvd_rows *rows, size_t row, bool output);

typedef struct {
    double length; /* input or output length of the compared jobs in tokens */
    /*
     * Difference in seconds between the job completion times of the method and of the uncompressed
     * cache.
     */
    double difference;
    double spread; /* seconds between the fastest and the slowest repetition */
} kvd_jct_noise;

/*
 * Returns true if the spread of repeated measurements may have changed the result of
 * kvd_jct_break_even.
 */
bool kvd_jct_break_even_noise(const kvd_rows *rows, size_t row, bool output, kvd_jct_noise *noise);

/* Returns at how many input (or output) lengths jobs that otherwise equal `row` were timed. */
size_t kvd_jct_lengths(const kvd_rows *rows, size_t row, bool output);

/*
 * Returns true if `row` is the first of the jobs that differ from it only in the input (or output)
 * length.
 */
bool kvd_jct_first_of_lengths(const kvd_rows *rows, size_t row, bool output);

#endif
