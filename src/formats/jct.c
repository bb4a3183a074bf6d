#include "formats/jct.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/phases.h"

const kvd_schema kvd_schema_jct = {"jct", 1, "Job completion times and their parts"};
const kvd_schema kvd_schema_jct_rows = {"jct-rows", 1, "Rows of a kvdim-jct that has not finished"};

static const kvd_column fixed[] = {
    {"kind", KVD_COL_TEXT, "1", "job, iteration or request"},
    {"method", KVD_COL_TEXT, "1", "method with its keys"},
    {"name", KVD_COL_TEXT, "1", "method without keys"},
    {"overall_p", KVD_COL_REAL, "1", "fraction of dimensions that the dims axis removes"},
    {"width_min", KVD_COL_REAL, "1",
     "smallest number of dimensions that a head keeps, of K or of V"},
    {"width_max", KVD_COL_REAL, "1",
     "largest number of dimensions that a head keeps, of K or of V"},
    {"width_cv", KVD_COL_REAL, "1",
     "standard deviation over mean of the dimensions that heads keep"},
    {"dtype", KVD_COL_TEXT, "1", "type of the cache"},
    {"engine", KVD_COL_TEXT, "1", "description of the engine that ran"},
    {"gpus", KVD_COL_INT, "1", "GPUs that share the model; 0: the CPU"},
    {"parallel", KVD_COL_TEXT, "1",
     "how GPUs share the model: tensor or sequence; empty for one GPU"},
    {"graphs", KVD_COL_INT, "1", "1: steps are replayed CUDA graphs"},
    {"phases", KVD_COL_INT, "1", "1: the times of the parts were measured"},
    {"fused", KVD_COL_TEXT, "1", "parts that are 0 because the one after them does their work"},
    {"chunk", KVD_COL_INT, "token", "tokens of an iteration; 0: prompts are not divided"},
    {"admission", KVD_COL_TEXT, "1",
     "whole: a request reserves pages for all its tokens; stored: for those that it stores, with "
     "preemption"},
    {"batch", KVD_COL_INT, "1", "requests of the job; requests of the iteration"},
    {"input", KVD_COL_INT, "token", "tokens of the prompt"},
    {"output", KVD_COL_INT, "token", "output tokens; the first is the prediction of the prompt"},
    {"running", KVD_COL_INT, "1", "largest number of requests that ran at once"},
    {"preempted", KVD_COL_INT, "1",
     "times that a running request was preempted; for a request, that it was"},
    {"recomputed", KVD_COL_INT, "token", "tokens that preempted requests computed again"},
    {"iterations", KVD_COL_INT, "1", "iterations of the engine"},
    {"step_weight", KVD_COL_REAL, "1",
     "job: number of output steps that each step that ran represents; 1: all ran"},
    {"jct_s", KVD_COL_REAL, "s",
     "time from the arrival to the last token; for a job, of the median run"},
    {"jct_min_s", KVD_COL_REAL, "s", "smallest jct_s of the runs"},
    {"jct_max_s", KVD_COL_REAL, "s", "largest jct_s of the runs"},
    {"jct_mad_s", KVD_COL_REAL, "s", "median absolute deviation of jct_s over the runs"},
    {"ttft_s", KVD_COL_REAL, "s", "time from the arrival to the first token, mean over requests"},
    {"ttft_max_s", KVD_COL_REAL, "s",
     "time from the arrival to the first token of the last request"},
    {"tbt_mean_s", KVD_COL_REAL, "s",
     "time between two tokens of a request, mean over requests and runs"},
    {"tbt_p50_s", KVD_COL_REAL, "s", "median time between two tokens of a request"},
    {"tbt_p99_s", KVD_COL_REAL, "s", "99 % quantile of the time between two tokens of a request"},
    {"tbt_max_s", KVD_COL_REAL, "s", "largest time between two tokens of a request"},
    {"tokens_per_s", KVD_COL_REAL, "token/s", "output tokens over jct_s"},
    {"prefill_s", KVD_COL_REAL, "s",
     "time of iterations with a piece of a prompt, and of the host before them"},
    {"decode_s", KVD_COL_REAL, "s",
     "time of iterations with steps alone, and of the host before them"},
    {"prefill_residue_s", KVD_COL_REAL, "s", "prefill_s less its parts"},
    {"decode_residue_s", KVD_COL_REAL, "s", "decode_s less its parts"},
    {"residue_share", KVD_COL_REAL, "1", "residues over jct_s"},
    {"bytes_per_token", KVD_COL_REAL, "byte",
     "bytes that the cache stores per token, all layers; for a job held_bytes over the tokens at that time, else the reserved bytes"},
    {"dense_bytes_per_token", KVD_COL_REAL, "byte", "bytes per token of the uncompressed cache"},
    {"held_bytes", KVD_COL_REAL, "byte",
     "largest number of bytes that the cache held, as it counts them"},
    {"cache_bytes", KVD_COL_REAL, "byte", "bytes of the pages of a full cache"},
    {"weight_bytes", KVD_COL_REAL, "byte", "bytes of the weights"},
    {"peak_bytes", KVD_COL_REAL, "byte",
     "largest number of bytes allocated for weights, cache and activations"},
    {"sent_qkv_bytes", KVD_COL_REAL, "byte",
     "bytes of Q, K and V that GPUs sent each other in the run, sequence parallel; 0: none"},
    {"sent_o_bytes", KVD_COL_REAL, "byte",
     "bytes of the attention output that GPUs sent each other in the run"},
    {"energy_j", KVD_COL_REAL, "J",
     "energy that the GPUs used for the median run; NaN: not known, or less than a second"},
    {"piece", KVD_COL_INT, "token", "tokens of the piece of a prompt; 0: a step"},
    {"before", KVD_COL_INT, "token", "tokens in the cache before the piece"},
    {"context", KVD_COL_REAL, "token",
     "mean tokens in the cache before the step, over its requests"},
    {"seconds", KVD_COL_REAL, "s", "median time of the iteration"},
    {"seconds_mad", KVD_COL_REAL, "s", "median absolute deviation of the time of the iteration"},
    {"request", KVD_COL_INT, "1", "number of the request"},
    {"arrival_s", KVD_COL_REAL, "s", "time at which the request arrived"},
};
enum { N_FIXED = sizeof fixed / sizeof *fixed, N_COLUMNS = N_FIXED + 2 * KVD_PHASES };

static const char *const meaning[KVD_PHASES] = {"embedding",
                                                "norms of the residual stream",
                                                "QKV generation",
                                                "norms of Q and K, RoPE",
                                                "rotation and cut of Q and K",
                                                "compression of the cache",
                                                "storing into the cache",
                                                "work lists of attention",
                                                "attention of prompts",
                                                "attention of steps",
                                                "decompression",
                                                "output projection",
                                                "feed-forward block",
                                                "final norm and logits",
                                                "choice of the next token",
                                                "sums and exchanges between GPUs",
                                                "the host alone"};

static const kvd_column *columns(void)
{
    static kvd_column all[N_COLUMNS];
    static char name[2 * KVD_PHASES][32], words[2 * KVD_PHASES][80];
    if (all[0].name)
        return all;
    for (int i = 0; i < 2 * KVD_PHASES; i++) {
        const int p = i % KVD_PHASES;
        snprintf(name[i], sizeof name[i], "%s_%s_s", i < KVD_PHASES ? "prefill" : "decode",
                 kvd_phase_column((kvd_phase)p));
        snprintf(words[i], sizeof words[i], "of %s_s: %s", i < KVD_PHASES ? "prefill" : "decode",
                 meaning[p]);
        all[N_FIXED + i] = (kvd_column){name[i], KVD_COL_REAL, "s", words[i]};
    }
    memcpy(all, fixed, sizeof fixed);
    return all;
}

kvd_rows *kvd_jct_rows(int samples, kvd_err *err)
{
    const kvd_h5_spec all[KVD_JCT_SAMPLES] = {
        {.path = "/rows/samples_s",
         .long_name = "jct_s of every run, seconds of every iteration; NaN: none"},
        {.path = "/rows/samples_ttft_s", .long_name = "ttft_s of every run; NaN: none"}};
    kvd_rows *r = kvd_rows_new(columns(), N_COLUMNS, err);
    for (int i = 0; r && i < KVD_JCT_SAMPLES; i++) {
        kvd_h5_spec spec = all[i];
        spec.units = "s";
        spec.rank = 2;
        spec.dims[1] = (hsize_t)samples;
        spec.axes[0] = "row";
        spec.axes[1] = "sample";
        if (kvd_rows_add_samples(r, &spec, err)) {
            kvd_rows_free(r);
            r = NULL;
        }
    }
    return r;
}

int kvd_jct_finish(const kvd_rows *r, kvd_h5 *f, const kvd_jct_facts *facts, kvd_err *err)
{
    return kvd_status(kvd_model_info_write(f, facts->model, err) ||
                      kvd_h5_put_text(f, "/", "sweep", facts->sweep, err) ||
                      kvd_h5_put_text(f, "/", "skipped", facts->skipped, err) ||
                      kvd_h5_put_int(f, "/", "points", (int64_t)facts->points, err) ||
                      kvd_h5_put_int(f, "/", "points_done", (int64_t)facts->points_done, err) ||
                      kvd_rows_write(f, r, err) || kvd_h5_finish(f, err));
}

int kvd_jct_save(const kvd_rows *r, const char *path, const kvd_jct_facts *facts,
                 const kvd_run *run, kvd_err *err)
{
    kvd_h5 f;
    /* Checks the path first, because kvd_h5_create would replace the target of a symbolic link. */
    if (kvd_output_check_derived(path, err) ||
        kvd_h5_create(&f, path, &kvd_schema_jct_rows, run, err))
        return -1;
    const int status = kvd_jct_finish(r, &f, facts, err);
    kvd_h5_close(&f, false);
    return status;
}

/* Returns how far rounding may change the measured seconds of a table row. CUDA events round the
 * time of each decode step to 0.5 us. */
static double rounding(const kvd_rows *r, size_t row)
{
    const double jct = kvd_row_real(r, row, "jct_s");
    return 1e-3 + (jct > 0 ? 1e-4 * jct : 0);
}

static bool refused(const kvd_rows *r, size_t row, const char *column, double x)
{
    if (!strcmp(column, "jct_s") || !strcmp(column, "jct_min_s") || !strcmp(column, "jct_max_s"))
        return isinf(x) || x <= 0;
    const bool noise = strstr(column, "_s") || strstr(column, "residue");
    return isinf(x) || x < (noise ? -rounding(r, row) : 0);
}

int kvd_jct_read(kvd_rows **rows, kvd_h5 *f, kvd_err *err)
{
    static const char *const needed[] = {"kind",     "method",  "name",  "engine", "batch",
                                         "input",    "output",  "jct_s", "ttft_s", "prefill_s",
                                         "decode_s", "seconds", NULL};
    *rows = kvd_rows_load(f, err);
    return *rows ? kvd_rows_check(*rows, f->path, columns(), N_COLUMNS, needed, refused, err) : -1;
}

int kvd_jct_resume(kvd_rows *r, const char *path, const kvd_schema *schema, const char *sweep,
                   kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_rows *rows = NULL;
    char *was = NULL;
    bool other = false;
    int status = -1;
    if (kvd_h5_open(&f, path, schema, err) || kvd_h5_get_text(&f, "/", "sweep", &was, err))
        goto done;
    if (strcmp(was, sweep)) {
        kvd_fail(err, "--resume: '%s' is of another sweep: '%s', not '%s'", path, was, sweep);
        other = true;
        goto done;
    }
    if (kvd_jct_read(&rows, &f, err))
        goto done;
    for (int i = 0; i < KVD_JCT_SAMPLES; i++)
        if (kvd_rows_load_samples(&f, rows, kvd_rows_samples_spec(r, i), err))
            goto done;
    for (size_t i = 0; i < kvd_rows_count(rows); i++)
        if (kvd_rows_take(r, rows, i, err)) {
            kvd_in(err, "'%s'", path);
            goto done;
        }
    status = 0;
done:
    if (status && !other) {
        const kvd_err why = *err;
        kvd_fail(err, "cannot resume: %s; remove '%s' or run without --resume", why.msg, path);
    }
    free(was);
    kvd_rows_free(rows);
    kvd_h5_close(&f, false);
    return status;
}

static int name_attention(kvd_rows *r, const char *attention, kvd_err *err)
{
    const int column = kvd_rows_find(r, "method");
    if (column < 0 || kvd_rows_column(r, column)->kind != KVD_COL_TEXT)
        return 0;
    for (size_t i = 0; i < kvd_rows_count(r); i++) {
        const char *const method = kvd_rows_get_text(r, i, column);
        const int name = (int)strcspn(method, ",");
        char *label = NULL;
        if (asprintf(&label, "%.*s@%s%s", name, method, attention, method + name) < 0)
            return kvd_no_memory(err, "the name of a method", strlen(method));
        const int status = kvd_rows_replace_text(r, i, column, label, err);
        free(label);
        if (status)
            return -1;
    }
    return 0;
}

kvd_rows *kvd_jct_costs_read(kvd_h5 *f, kvd_err *err)
{
    char *attention = NULL;
    kvd_rows *r = kvd_rows_load(f, err);
    if (r && (kvd_h5_get_text_or_none(f, "/parameters", "attention", &attention, err) ||
              (attention && *attention && strcmp(attention, "ours") &&
               name_attention(r, attention, err)))) {
        kvd_rows_free(r);
        r = NULL;
    }
    free(attention);
    return r;
}

static bool equal(double a, double b)
{
    return !(a < b) && !(b < a);
}

static const char *admission(const kvd_rows *r, size_t row)
{
    const char *const text = kvd_row_text(r, row, "admission");
    return *text ? text : "whole";
}

/* Returns true if jobs a and b differ only in the compression method and in column `length`. */
static bool comparable(const kvd_rows *r, size_t a, size_t b, const char *length)
{
    static const char *const same[] = {"batch", "input",  "output", "chunk",
                                       "gpus",  "graphs", "phases"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (strcmp(same[i], length) &&
            !equal(kvd_row_real(r, a, same[i]), kvd_row_real(r, b, same[i])))
            return false;
    return !strcmp(kvd_row_text(r, a, "kind"), "job") &&
           !strcmp(kvd_row_text(r, b, "kind"), "job") &&
           !strcmp(kvd_row_text(r, a, "dtype"), kvd_row_text(r, b, "dtype")) &&
           !strcmp(kvd_row_text(r, a, "parallel"), kvd_row_text(r, b, "parallel")) &&
           !strcmp(admission(r, a), admission(r, b));
}

size_t kvd_jct_uncompressed(const kvd_rows *r, size_t row)
{
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        if (!strcmp(kvd_row_text(r, i, "name"), "none") && comparable(r, row, i, ""))
            return i;
    return SIZE_MAX;
}

/* Returns the seconds that the job of `row` saves against the same job with the uncompressed cache,
 * or NaN if that job was not timed. */
static double gain(const kvd_rows *r, size_t row)
{
    const size_t none = kvd_jct_uncompressed(r, row);
    return none == SIZE_MAX ? (double)NAN
                            : kvd_row_real(r, none, "jct_s") - kvd_row_real(r, row, "jct_s");
}

/* Compares jobs that equal job `row` except in column `length`, the number of input or output
 * tokens. Returns the row of the shortest job that is longer than `from`, or SIZE_MAX if there is
 * none. */
static size_t next_length(const kvd_rows *r, size_t row, const char *length, double from)
{
    size_t next = SIZE_MAX;
    for (size_t i = 0; i < kvd_rows_count(r); i++) {
        const double at = kvd_row_real(r, i, length);
        if (comparable(r, row, i, length) &&
            !strcmp(kvd_row_text(r, i, "method"), kvd_row_text(r, row, "method")) &&
            !isnan(gain(r, i)) && (isnan(from) || at > from) &&
            (next == SIZE_MAX || at < kvd_row_real(r, next, length)))
            next = i;
    }
    return next;
}

double kvd_jct_break_even(const kvd_rows *r, size_t row, bool output)
{
    const char *const length = output ? "output" : "input";
    double from = (double)NAN, before = (double)NAN, answer = (double)NAN;
    /* Finds the number of tokens from which on the method is always faster than the uncompressed
     * cache. */
    for (size_t i; (i = next_length(r, row, length, from)) != SIZE_MAX;) {
        const double at = kvd_row_real(r, i, length), won = gain(r, i);
        if (!(won > 0))
            answer = (double)NAN;
        else if (isnan(answer))
            answer = isnan(from) ? at : from + (at - from) * -before / (won - before);
        from = at;
        before = won;
    }
    return answer;
}

/* Returns the time of a row's slowest repetition minus the time of its fastest, in seconds. Returns
 * 0 if the times are unknown. */
static double spread(const kvd_rows *r, size_t row)
{
    const double x = kvd_row_real(r, row, "jct_max_s") - kvd_row_real(r, row, "jct_min_s");
    return isnan(x) ? 0 : x;
}

bool kvd_jct_break_even_noise(const kvd_rows *r, size_t row, bool output, kvd_jct_noise *noise)
{
    const char *const length = output ? "output" : "input";
    bool found = false;
    double from = (double)NAN;
    for (size_t i; (i = next_length(r, row, length, from)) != SIZE_MAX;) {
        const double won = gain(r, i),
                     widest = fmax(spread(r, i), spread(r, kvd_jct_uncompressed(r, i)));
        from = kvd_row_real(r, i, length);
        if (!(won > 0))
            /* Discards results at smaller lengths: at this length, compression is slower than no
             * compression. */
            found = false;
        if (found || !(widest > 0) || widest < fabs(won))
            continue;
        *noise = (kvd_jct_noise){.length = from, .difference = fabs(won), .spread = widest};
        found = true;
    }
    return found;
}

size_t kvd_jct_lengths(const kvd_rows *r, size_t row, bool output)
{
    size_t n = 0;
    for (size_t i = 0; i < kvd_rows_count(r); i++)
        n += comparable(r, row, i, output ? "output" : "input") &&
             !strcmp(kvd_row_text(r, i, "method"), kvd_row_text(r, row, "method"));
    return n;
}

bool kvd_jct_first_of_lengths(const kvd_rows *r, size_t row, bool output)
{
    const char *const length = output ? "output" : "input";
    if (strcmp(kvd_row_text(r, row, "kind"), "job"))
        return false;
    for (size_t i = 0; i < row; i++)
        if (comparable(r, row, i, length) &&
            !strcmp(kvd_row_text(r, i, "method"), kvd_row_text(r, row, "method")))
            return false;
    return true;
}
