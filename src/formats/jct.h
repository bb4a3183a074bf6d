/*
 * kvdim/jct: times and memory of inference, in rows of three kinds.
 *
 *   job        a batch of requests of one input and one output length, from arrival to last token
 *   iteration  one iteration of the engine alone: a piece of a prompt (`piece` tokens after
 *              `before` tokens), `batch` whole prompts of `piece` tokens, or a step of `batch`
 *              requests with `context` tokens each in the cache
 *   request    one request of a replayed trace
 */
#ifndef KVD_FORMATS_JCT_H
#define KVD_FORMATS_JCT_H

#include "formats/model_info.h"
#include "formats/rows.h"

/*
 * Schemas of kvdim/jct files: complete results, and OUT.h5.rows, the rows of an unfinished sweep.
 */
extern const kvd_schema kvd_schema_jct, kvd_schema_jct_rows;

/*
 * Indices of the samples of a row: the JCT (job completion time) of every run or the time of every
 * iteration, and the TTFT (time to first token) of every run.
 */
enum { KVD_JCT_SECONDS, KVD_JCT_TTFT, KVD_JCT_SAMPLES };

/*
 * Returns an empty table of the schema kvdim/jct whose rows hold `samples` values of each kind of
 * sample; unused values are NaN. On failure returns NULL and fills *err. The caller frees it.
 */
kvd_rows *kvd_jct_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_model_info *model;
    /*
     * Description of the sweep: rows of one file must have it in common, which a resumed run
     * checks.
     */
    const char *sweep;
    /*
     * Measurement points (method, batch, lengths) that could not run, one line each with the
     * reason.
     */
    const char *skipped;
    size_t points, points_done;
} kvd_jct_facts;

/*
 * Writes the rows and the facts into f, which kvd_h5_create made, and completes the file. The
 * caller closes f.
 */
int kvd_jct_finish(const kvd_rows *r, kvd_h5 *f, const kvd_jct_facts *facts, kvd_err *err);

/* Writes the rows of an unfinished sweep to the file `path` (OUT.h5.rows), replacing the file. */
int kvd_jct_save(const kvd_rows *r, const char *path, const kvd_jct_facts *facts,
                 const kvd_run *run, kvd_err *err);

/*
 * Appends the rows of a file of this schema to *r, which kvd_jct_rows made. Fails if the file's
 * `sweep` differs.
 */
int kvd_jct_resume(kvd_rows *r, const char *path, const kvd_schema *schema, const char *sweep,
                   kvd_err *err);

/*
 * Reads the rows of the open file f. Fails if a column that the report needs is missing, or a
 * number is infinite or negative beyond rounding. The caller frees *rows, also on failure.
 */
int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

/*
 * Reads the rows of the open file f as costs for kvdim-serve. If the file was measured with
 * `--attention` other than `ours`, method NAME[,KEY=VALUE...] becomes
 * NAME@ATTENTION[,KEY=VALUE...], so that costs of one method under two kernels have two names. On
 * failure returns NULL and fills *err. The caller frees the rows.
 */
kvd_rows *kvd_jct_costs_read(kvd_h5 *f, kvd_err *err);

/* ---- comparison of job rows with method `none`, for kvdim-jct and the report ---- */

/* Returns the job row of method `none` that has equal settings and equal lengths, or SIZE_MAX. */
size_t kvd_jct_uncompressed(const kvd_rows *rows, size_t row);

/*
 * Returns the least length (of the input, or of the output) from which on a method is faster than
 * `none`, among job rows that differ in that length only. If its JCT crosses the JCT of `none`
 * between two measured lengths, both are interpolated linearly. If the method is faster at the
 * shortest measured length, returns that length. Returns NaN if the method is not faster at the
 * longest length, or if there is no comparable row of `none`.
 */
double kvd_jct_break_even(const kvd_rows *rows, size_t row, bool output);

typedef struct {
    double length;
    double difference; /* seconds between the JCT of the method and of `none` */
    /*
     * seconds between the fastest and the slowest run of the method or of `none`, whichever is
     * larger
     */
    double spread;
} kvd_jct_noise;

/*
 * Returns true if the spread between runs of one job is at least as large as the difference between
 * the method and `none`, at one of the lengths that decide the result of kvd_jct_break_even. These
 * are the longest length at which the method is not faster, and all lengths above it. *noise then
 * describes the least such length.
 */
bool kvd_jct_break_even_noise(const kvd_rows *rows, size_t row, bool output, kvd_jct_noise *noise);

/*
 * Returns the number of lengths at which the method of `row` was run with otherwise equal settings.
 */
size_t kvd_jct_lengths(const kvd_rows *rows, size_t row, bool output);

/*
 * Returns true if `row` is the first job row of its method, batch and other length, so that a table
 * prints it once.
 */
bool kvd_jct_first_of_lengths(const kvd_rows *rows, size_t row, bool output);

#endif
