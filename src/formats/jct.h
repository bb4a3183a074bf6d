/*
 * kvdim/jct files: times and memory of inference. Rows are of three kinds:
 *
 * - job: a batch of requests of one input and output length, from arrival to last token
 * - iteration: one forward pass: a part of a prompt (`piece` tokens after `before`), `batch`
 *   prompts of `piece` tokens, or a decode step of `batch` requests with `context` cached tokens
 *   each
 * - request: one request of a trace served in real time
 */
#ifndef KVD_FORMATS_JCT_H
#define KVD_FORMATS_JCT_H

#include "formats/model_info.h"
#include "formats/rows.h"

/* Schemas of OUT.h5 and of OUT.h5.rows, the finished rows of an interrupted sweep. */
extern const kvd_schema kvd_schema_jct, kvd_schema_jct_rows;

/* Times per repetition: job completion (or iteration), and first token. */
enum { KVD_JCT_SECONDS, KVD_JCT_TTFT, KVD_JCT_SAMPLES };

/*
 * Returns an empty table, which the caller frees, with `samples` measurements per row (unused:
 * NaN). On failure returns NULL and fills *err.
 */
kvd_rows *kvd_jct_rows(int samples, kvd_err *err);

typedef struct {
    const kvd_model_info *model;
    /* The sweep's options; a resumed run continues only a file with the same text. */
    const char *sweep;
    /* methods and lengths that could not run, a line with the reason each */
    const char *skipped;
    size_t points, points_done;
} kvd_jct_facts;

/* Writes everything into the file f of kvd_h5_create and completes it. The caller closes f. */
int kvd_jct_finish(const kvd_rows *r, kvd_h5 *f, const kvd_jct_facts *facts, kvd_err *err);

/*
 * Writes the finished rows of an unfinished sweep to `path` (OUT.h5.rows), replacing an earlier
 * file.
 */
int kvd_jct_save(const kvd_rows *r, const char *path, const kvd_jct_facts *facts,
                 const kvd_run *run, kvd_err *err);

/* Appends the rows of a file to *r. Fails if the sweep's options differ from `sweep`. */
int kvd_jct_resume(kvd_rows *r, const char *path, const kvd_schema *schema, const char *sweep,
                   kvd_err *err);

/*
 * Reads the table, which the caller frees, also on failure. Fails if a needed column is missing, or
 * a number is infinite or clearly negative.
 */
int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err);

/*
 * Reads execution times for kvdim-serve. With --attention ATTENTION other than `ours`, method NAME
 * becomes NAME@ATTENTION. On failure returns NULL and fills *err. The caller frees the table.
 */
kvd_rows *kvd_jct_costs_read(kvd_h5 *f, kvd_err *err);

/*
 * Returns the row of method `none` for the same job (batch, lengths, chunk, GPUs, graphs, phases,
 * dtype), or SIZE_MAX.
 */
size_t kvd_jct_uncompressed(const kvd_rows *rows, size_t row);

/*
 * Returns the length beyond which the row's method is faster than method `none`, for jobs that
 * differ only in the input length (`output`: output length), interpolated; the shortest if always
 * faster; NaN if not faster at the longest, or without method `none`.
 */
double kvd_jct_break_even(const kvd_rows *rows, size_t row, bool output);

typedef struct {
    /* compared input or output length, in tokens */
    double length;
    /* job completion times: method minus uncompressed, seconds */
    double difference;
    /* larger of the two ranges between fastest and slowest repetition, seconds */
    double spread;
} kvd_jct_noise;

/*
 * Returns true if at some length the spread of repetitions is at least the difference from method
 * `none`, from the longest length on at which the method is not faster. *noise: the shortest such
 * length.
 */
bool kvd_jct_break_even_noise(const kvd_rows *rows, size_t row, bool output, kvd_jct_noise *noise);

/*
 * Returns the timed lengths of jobs that differ from `row` only in the input length (`output`:
 * output length).
 */
size_t kvd_jct_lengths(const kvd_rows *rows, size_t row, bool output);

/*
 * Returns true if `row` is a job and no earlier row differs only in the input length (`output`:
 * output length).
 */
bool kvd_jct_first_of_lengths(const kvd_rows *rows, size_t row, bool output);

#endif
