/* kvdim/jct files: times and memory of inference. A table row is one of these:
 *
 * - job: a batch of requests of equal lengths, from arrival to last token
 * - iteration: one forward pass over prompt tokens (column `piece`: their number), or a decode step
 * - request: one request of a trace that was served in real time */
#ifndef KVD_FORMATS_JCT_H
#define KVD_FORMATS_JCT_H

#include "formats/model_info.h"
#include "formats/rows.h"

/* Schemas of the result file OUT.h5 of kvdim-jct, and of OUT.h5.rows, which keeps the results of an
 * interrupted run. */
extern const kvd_schema kvd_schema_jct, kvd_schema_jct_rows;

/* measured values of each repetition: total seconds, and seconds to the first token */
enum { KVD_JCT_SECONDS, KVD_JCT_TTFT, KVD_JCT_SAMPLES };

/* Returns an empty table of inference times, which the caller frees. Each row has space for
 * `samples` repetitions. */
kvd_rows *kvd_jct_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_model_info *model;
    const char *sweep; /* text of the options of the sweep; a resumed run needs an equal text */
    /* methods and lengths that could not run: one per line, with the reason */
    const char *skipped;
    size_t points, points_done;
} kvd_jct_facts;

/* Writes the table of job completion times, and *facts about their measurement, into the open file
 * f. The caller closes f. */
int kvd_jct_finish(const kvd_rows *r, kvd_h5 *f, const kvd_jct_facts *facts, kvd_err *err);

/* Writes the measurements of an unfinished run to `path`, so that the run can be continued. */
int kvd_jct_save(const kvd_rows *r, const char *path, const kvd_jct_facts *facts,
                 const kvd_run *run, kvd_err *err);

/* Appends the rows of an interrupted sweep's file to *r. Fails on a bad number, or if that sweep
 * had other options than those in `sweep`. */
int kvd_jct_resume(kvd_rows *r, const char *path, const kvd_schema *schema, const char *sweep,
                   kvd_err *err);

/* Reads the table of job completion times. Fails on a missing column or bad number. The caller
 * always frees *rows. */
int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

/* Reads a file's execution times for the simulator kvdim-serve. A method NAME that was timed with
 * other attention kernels than kvdim's own (kvdim-jct --attention stock or papers) is called
 * NAME@stock or NAME@papers. */
kvd_rows *kvd_jct_costs_read(kvd_h5 *f, kvd_err *err);

/* Returns the row of the same job with the uncompressed cache, or SIZE_MAX if that job was not
 * timed. */
size_t kvd_jct_uncompressed(const kvd_rows *rows, size_t row);

/* Returns the number of input tokens (output tokens if `output` is true) from which the method in
 * `row` is faster than the uncompressed cache. Returns NaN if the method is slower at the longest
 * length. */
double kvd_jct_break_even(const kvd_rows *rows, size_t row, bool output);

typedef struct {
    double length; /* input or output length of the compared jobs in tokens */
    /* |seconds of the job with the method - seconds with the uncompressed cache| */
    double difference;
    double spread; /* seconds between the fastest and the slowest repetition */
} kvd_jct_noise;

/* Returns true if noise of measurements may have changed the result of kvd_jct_break_even. */
bool kvd_jct_break_even_noise(const kvd_rows *rows, size_t row, bool output, kvd_jct_noise *noise);

/* Returns the number of input lengths (output lengths if `output` is true) at which the compression
 * method in `row` was timed. */
size_t kvd_jct_lengths(const kvd_rows *rows, size_t row, bool output);

/* Several rows may differ only in the number of input tokens (output tokens if `output` is true).
 * Returns true if `row` is the first of them. */
bool kvd_jct_first_of_lengths(const kvd_rows *rows, size_t row, bool output);

#endif
