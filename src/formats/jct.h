/*
 * kvdim/jct files: times and memory of inference. A line of the results table is of one of three
 * kinds.
 *
 *   job        a batch of requests of one input and one output length, from arrival to last token
 *   iteration  one iteration (forward pass) of the engine alone: a part of a prompt (`piece` tokens
 *              after `before` tokens), `batch` whole prompts of `piece` tokens, or a decode step of
 *              `batch` requests with `context` tokens each in the cache
 *   request    one request of a trace (list of arrivals) that was served in real time
 */
#ifndef KVD_FORMATS_JCT_H
#define KVD_FORMATS_JCT_H

#include "formats/model_info.h"
#include "formats/rows.h"

/*
 * Schemas of two kinds of file: complete timing results, and OUT.h5.rows, which keeps the finished
 * lines of an interrupted sweep.
 */
extern const kvd_schema kvd_schema_jct, kvd_schema_jct_rows;

/*
 * Indices of the repeated measurements stored with each results line: job completion time (or time
 * of each iteration), and time to first token.
 */
enum { KVD_JCT_SECONDS, KVD_JCT_TTFT, KVD_JCT_SAMPLES };

/*
 * Returns an empty results table of the schema kvdim/jct. Each line holds up to `samples` repeated
 * measurements of each of two times (KVD_JCT_SECONDS, KVD_JCT_TTFT); unused ones are NaN. On
 * failure returns NULL and fills *err. The caller frees the table.
 */
kvd_rows *kvd_jct_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_model_info *model;
    /*
     * Description of the sweep's options. A resumed run may only continue a file with an equal
     * text.
     */
    const char *sweep;
    /*
     * Combinations of method, batch and lengths that could not run, one text line each with the
     * reason.
     */
    const char *skipped;
    size_t points, points_done;
} kvd_jct_facts;

/*
 * Writes the results lines and the description of the sweep into f, which kvd_h5_create made, and
 * completes the file. The caller closes f.
 */
int kvd_jct_finish(const kvd_rows *r, kvd_h5 *f, const kvd_jct_facts *facts, kvd_err *err);

/*
 * Writes the finished results lines of an unfinished sweep to the file `path` (OUT.h5.rows),
 * replacing the file.
 */
int kvd_jct_save(const kvd_rows *r, const char *path, const kvd_jct_facts *facts,
                 const kvd_run *run, kvd_err *err);

/*
 * Appends the results lines of a file to *r, which kvd_jct_rows made. Fails if the file was made
 * with another description `sweep`.
 */
int kvd_jct_resume(kvd_rows *r, const char *path, const kvd_schema *schema, const char *sweep,
                   kvd_err *err);

/*
 * Reads the results lines of the open file f. Fails if a column that the report needs is missing,
 * or a number is infinite or negative beyond rounding. The caller frees *rows, also on failure.
 */
int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

/*
 * Reads the results lines of the open file f as execution costs for kvdim-serve. If the file was
 * measured with `--attention` other than `ours`, method NAME[,KEY=VALUE...] becomes
 * NAME@ATTENTION[,KEY=VALUE...], so that one method under two attention kernels has two names. On
 * failure returns NULL and fills *err. The caller frees the table.
 */
kvd_rows *kvd_jct_costs_read(kvd_h5 *f, kvd_err *err);

/* ---- comparison of jobs with those of the uncompressed cache (method `none`) ---- */

/*
 * Returns the index of the results line of the uncompressed cache (method `none`) for the same job
 * as line `row`: same batch, lengths, chunk, GPUs, graphs, phases and dtype. Returns SIZE_MAX if
 * there is none.
 */
size_t kvd_jct_uncompressed(const kvd_rows *rows, size_t row);

/*
 * Returns the break-even length: the least input length (output length if `output`) from which on a
 * method completes jobs faster than the uncompressed cache (`none`). Compares jobs that differ from
 * that of line `row` only in this length. If the method becomes faster between two measured
 * lengths, interpolates linearly. If it is faster at all of them, returns the shortest. Returns NaN
 * if it is not faster at the longest length, or if `none` was not measured.
 */
double kvd_jct_break_even(const kvd_rows *rows, size_t row, bool output);

typedef struct {
    /*
     * Input or output length in tokens at which the job completion times of the method and of the
     * uncompressed cache were compared.
     */
    double length;
    /* Seconds between the job completion times of the method and of the uncompressed cache. */
    double difference;
    /*
     * Seconds between the fastest and the slowest repetition, of the method or of the uncompressed
     * cache, whichever is larger.
     */
    double spread;
} kvd_jct_noise;

/*
 * Returns true if measurement noise may have changed the result of kvd_jct_break_even. A length is
 * noisy if repetitions of one job differ in time by at least as much as the method and the
 * uncompressed cache. Lengths below the longest one at which the method is not faster are ignored,
 * because they do not affect the result. If the function returns true, *noise describes the
 * shortest noisy length.
 */
bool kvd_jct_break_even_noise(const kvd_rows *rows, size_t row, bool output, kvd_jct_noise *noise);

/*
 * Returns the number of lengths (output lengths if `output`, else input lengths) at which the
 * method of line `row` was timed, for jobs that are otherwise the same.
 */
size_t kvd_jct_lengths(const kvd_rows *rows, size_t row, bool output);

/*
 * Returns true if no line above `row` is for the same job of the same method, apart from the output
 * length (input length if `output` is false). Such lines share one break-even length, which a table
 * prints for the first of them only.
 */
bool kvd_jct_first_of_lengths(const kvd_rows *rows, size_t row, bool output);

#endif
