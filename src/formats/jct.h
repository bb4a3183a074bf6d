/*
 * kvdim/jct files: times and memory of inference. A row of the table is of one of three kinds.
 *
 *   job        a batch of requests of one input and one output length, from arrival to last token
 *   iteration  one forward pass of the engine alone: a part of a prompt (`piece` tokens after
 *              `before` tokens), `batch` whole prompts of `piece` tokens, or a decode step of
 *              `batch` requests with `context` tokens each in the cache
 *   request    one request of a trace (list of arrivals) that was served in real time
 */
#ifndef KVD_FORMATS_JCT_H
#define KVD_FORMATS_JCT_H

#include "formats/model_info.h"
#include "formats/rows.h"

/*
 * Schemas of the result OUT.h5, and of OUT.h5.rows, which holds the finished rows of an interrupted
 * sweep.
 */
extern const kvd_schema kvd_schema_jct, kvd_schema_jct_rows;

/*
 * Times stored for each repetition of a measurement: job completion time (or iteration time), and
 * time to first token.
 */
enum { KVD_JCT_SECONDS, KVD_JCT_TTFT, KVD_JCT_SAMPLES };

/*
 * Returns an empty table with up to `samples` repeated measurements per row; unused ones are NaN.
 * On failure returns NULL and fills *err. The caller frees the table.
 */
kvd_rows *kvd_jct_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_model_info *model;
    /*
     * Text of the options of the sweep. A resumed run may only continue a file with an equal text.
     */
    const char *sweep;
    /* Methods and lengths that could not run: one text line each, with the reason. */
    const char *skipped;
    size_t points, points_done;
} kvd_jct_facts;

/*
 * Writes everything into the file f, which kvd_h5_create made, and completes it. The caller closes
 * f.
 */
int kvd_jct_finish(const kvd_rows *r, kvd_h5 *f, const kvd_jct_facts *facts, kvd_err *err);

/*
 * Writes the finished rows of an unfinished sweep to `path` (OUT.h5.rows), replacing an earlier
 * file.
 */
int kvd_jct_save(const kvd_rows *r, const char *path, const kvd_jct_facts *facts,
                 const kvd_run *run, kvd_err *err);

/*
 * Appends the rows of a file to *r. Fails if the options of the sweep that made the file differ
 * from `sweep`.
 */
int kvd_jct_resume(kvd_rows *r, const char *path, const kvd_schema *schema, const char *sweep,
                   kvd_err *err);

/*
 * Reads the table of a file. Fails if a needed column is missing, or a number is infinite or
 * negative beyond rounding. The caller frees *rows, also on failure.
 */
int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

/*
 * Reads the table of execution times for kvdim-serve. If kvdim-jct was run with a value ATTENTION
 * of --attention other than `ours`, the method NAME becomes NAME@ATTENTION. On failure returns NULL
 * and fills *err. The caller frees the table.
 */
kvd_rows *kvd_jct_costs_read(kvd_h5 *f, kvd_err *err);

/*
 * Returns the row of the uncompressed cache (method `none`) for the same job: same batch, lengths,
 * chunk, GPUs, graphs, phases and dtype. Returns SIZE_MAX if there is none.
 */
size_t kvd_jct_uncompressed(const kvd_rows *rows, size_t row);

/*
 * Returns the break-even length: at all longer inputs (longer outputs if `output`) the method of
 * `row` completes jobs faster than the uncompressed cache. Compares jobs that differ only in this
 * length, and interpolates linearly between two measured lengths. If the method is faster at all
 * measured lengths, returns the shortest of them. If the method is not faster at the longest
 * length, or if method `none` was not measured, returns NaN.
 */
double kvd_jct_break_even(const kvd_rows *rows, size_t row, bool output);

typedef struct {
    /* Input or output length, in tokens, of the jobs whose completion times were compared. */
    double length;
    /* Seconds between the job completion times of the method and of the uncompressed cache. */
    double difference;
    /*
     * Seconds between the fastest and slowest repetition, of the method or of the uncompressed
     * cache, whichever is larger.
     */
    double spread;
} kvd_jct_noise;

/*
 * Returns true if noise may have changed the result of kvd_jct_break_even. This is so if, at some
 * length, the spread of the times of repeated jobs is at least the difference between the method
 * and the uncompressed cache. Lengths below the longest one at which the method is slower or
 * equally fast are not considered. *noise describes the shortest noisy length.
 */
bool kvd_jct_break_even_noise(const kvd_rows *rows, size_t row, bool output, kvd_jct_noise *noise);

/*
 * Considers the jobs that differ from `row` only in the input length (output length if `output`).
 * Returns the number of lengths at which such jobs were timed.
 */
size_t kvd_jct_lengths(const kvd_rows *rows, size_t row, bool output);

/*
 * Returns true if `row` is a job and no earlier row differs from it only in the input length
 * (output length if `output`). Rows that differ only in this length share one break-even length,
 * which a table prints once.
 */
bool kvd_jct_first_of_lengths(const kvd_rows *rows, size_t row, bool output);

#endif
