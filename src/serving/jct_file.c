#include "serving/jct_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/stats.h"

const kvd_schema kvd_schema_jct = {"jct", 1, "Job completion times and their parts"};

/* ---- columns --------------------------------------------------------------------------------------- */

static const kvd_column fixed[] = {
    {"kind", KVD_COL_TEXT, "1", "job, iteration or request"},
    {"method", KVD_COL_TEXT, "1", "method with its keys"},
    {"name", KVD_COL_TEXT, "1", "method without keys"},
    {"overall_p", KVD_COL_REAL, "1", "fraction of dimensions that the dims axis removes"},
    {"width_min", KVD_COL_REAL, "1", "least of the dimensions that heads keep, of K and of V"},
    {"width_max", KVD_COL_REAL, "1", "most of them"},
    {"width_cv", KVD_COL_REAL, "1", "their standard deviation over their mean"},
    {"dtype", KVD_COL_TEXT, "1", "of the cache"},
    {"engine", KVD_COL_TEXT, "1", "what ran, by its own account"},
    {"gpus", KVD_COL_INT, "1", "GPUs that share the model; 0: the CPU"},
    {"parallel", KVD_COL_TEXT, "1", "how they share it: tensor or sequence; on one GPU empty"},
    {"graphs", KVD_COL_INT, "1", "1: steps are replayed CUDA graphs"},
    {"phases", KVD_COL_INT, "1", "1: the times of the parts were taken"},
    {"fused", KVD_COL_TEXT, "1", "parts that are 0 because the one after them does their work"},
    {"chunk", KVD_COL_INT, "token", "tokens of an iteration; 0: prompts go whole"},
    {"batch", KVD_COL_INT, "1", "requests of the job; requests of the iteration"},
    {"input", KVD_COL_INT, "token", "of the prompt"},
    {"output", KVD_COL_INT, "token", "that come out, the first of them out of the prompt"},
    {"running", KVD_COL_INT, "1", "most requests that ran at once"},
    {"iterations", KVD_COL_INT, "1", "of the engine"},
    {"step_weight", KVD_COL_REAL, "1", "of a job: steps of the output for each that ran; 1: all ran"},
    {"jct_s", KVD_COL_REAL, "s", "from the arrival to the last token; of a job the median run"},
    {"jct_min_s", KVD_COL_REAL, "s", "least of the runs"},
    {"jct_max_s", KVD_COL_REAL, "s", "largest of the runs"},
    {"jct_mad_s", KVD_COL_REAL, "s", "median absolute deviation of the runs"},
    {"ttft_s", KVD_COL_REAL, "s", "from the arrival to the first token, mean over requests"},
    {"ttft_max_s", KVD_COL_REAL, "s", "the same of the last request"},
    {"tbt_mean_s", KVD_COL_REAL, "s", "between two tokens of a request, over requests and runs"},
    {"tbt_p50_s", KVD_COL_REAL, "s", "median of it"},
    {"tbt_p99_s", KVD_COL_REAL, "s", "99 % quantile of it"},
    {"tbt_max_s", KVD_COL_REAL, "s", "largest of it"},
    {"tokens_per_s", KVD_COL_REAL, "token/s", "tokens that came out over jct_s"},
    {"prefill_s", KVD_COL_REAL, "s", "iterations with a piece of a prompt, and the host's time before them"},
    {"decode_s", KVD_COL_REAL, "s", "iterations of steps alone, and the host's time before them"},
    {"prefill_residue_s", KVD_COL_REAL, "s", "prefill_s less its parts"},
    {"decode_residue_s", KVD_COL_REAL, "s", "decode_s less its parts"},
    {"residue_share", KVD_COL_REAL, "1", "residues over jct_s"},
    {"bytes_per_token", KVD_COL_REAL, "byte",
     "of the cache, all layers, as stored: of a job held_bytes over the tokens then, else what is reserved"},
    {"dense_bytes_per_token", KVD_COL_REAL, "byte", "the same without any method"},
    {"held_bytes", KVD_COL_REAL, "byte", "most that the cache held, by its own count"},
    {"cache_bytes", KVD_COL_REAL, "byte", "of the pages that a full cache has"},
    {"weight_bytes", KVD_COL_REAL, "byte", "of the weights"},
    {"peak_bytes", KVD_COL_REAL, "byte", "most that was allocated for weights, cache and activations"},
    {"sent_qkv_bytes", KVD_COL_REAL, "byte",
     "of Q, K and V that GPUs sent each other in the run, sequence parallel; 0: none"},
    {"sent_o_bytes", KVD_COL_REAL, "byte", "the same of attention's output"},
    {"energy_j", KVD_COL_REAL, "J",
     "that the GPUs took for the median run; NaN: not known, or less than a second"},
    {"piece", KVD_COL_INT, "token", "tokens of the piece of a prompt; 0: a step"},
    {"before", KVD_COL_INT, "token", "tokens in the cache before the piece"},
    {"context", KVD_COL_REAL, "token", "mean tokens in the cache before the step, over its requests"},
    {"seconds", KVD_COL_REAL, "s", "median time of the iteration"},
    {"seconds_mad", KVD_COL_REAL, "s", "median absolute deviation of it"},
    {"request", KVD_COL_INT, "1", "number of the request"},
    {"arrival_s", KVD_COL_REAL, "s", "of the request"},
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

/* Named as kvd_phase_column says; kvd_rows borrows them. */
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
        snprintf(words[i], sizeof words[i], "of %s_s: %s", i < KVD_PHASES ? "prefill" : "decode", meaning[p]);
        all[N_FIXED + i] = (kvd_column){name[i], KVD_COL_REAL, "s", words[i]};
    }
    memcpy(all, fixed, sizeof fixed);
    return all;
}

int kvd_jct_init(kvd_jct *j, int samples, kvd_err *err)
{
    memset(j, 0, sizeof *j);
    j->samples = samples;
    j->rows = kvd_rows_new(columns(), N_COLUMNS, err);
    return j->rows ? 0 : -1;
}

void kvd_jct_release(kvd_jct *j)
{
    kvd_rows_free(j->rows);
    free(j->second);
    free(j->ttft);
    memset(j, 0, sizeof *j);
}

/* ---- rows ------------------------------------------------------------------------------------------ */

static int grow(double **x, size_t n, kvd_err *err)
{
    double *const grown = realloc(*x, n * sizeof *grown);
    if (!grown)
        return kvd_no_memory(err, "samples of all rows", (unsigned long long)n * sizeof *grown);
    *x = grown;
    return 0;
}

/* A row of samples, NaN as yet. */
static int begin(kvd_jct *j, kvd_err *err)
{
    const size_t n = (size_t)j->samples;
    if (j->n == j->capacity) {
        const size_t more = j->capacity ? 2 * j->capacity : 64;
        if (grow(&j->second, more * n, err) || grow(&j->ttft, more * n, err))
            return -1;
        j->capacity = more;
    }
    for (size_t i = j->n * n; i < (j->n + 1) * n; i++)
        j->second[i] = j->ttft[i] = NAN;
    j->n++;
    return kvd_rows_begin(j->rows, err);
}

static void put_setting(kvd_rows *r, const char *kind, const kvd_jct_setting *s)
{
    char fused[256] = "";
    for (int p = 0; p < KVD_PHASES; p++)
        if (s->facts->fused & 1u << p) {
            const size_t used = strlen(fused);
            snprintf(fused + used, sizeof fused - used, "%s%s", used ? " " : "",
                     kvd_phase_column((kvd_phase)p));
        }
    kvd_rows_text(r, "kind", kind);
    kvd_rows_text(r, "method", s->method);
    kvd_rows_text(r, "name", s->name);
    kvd_rows_real(r, "overall_p", s->overall_p);
    kvd_rows_real(r, "width_min", s->width_min);
    kvd_rows_real(r, "width_max", s->width_max);
    kvd_rows_real(r, "width_cv", s->width_cv);
    kvd_rows_text(r, "dtype", kvd_dtype_name(s->type));
    kvd_rows_text(r, "engine", s->facts->what);
    kvd_rows_int(r, "gpus", s->gpus);
    kvd_rows_text(r, "parallel", s->gpus < 2 ? "" : s->sequence ? "sequence" : "tensor");
    kvd_rows_int(r, "graphs", s->graphs);
    kvd_rows_int(r, "phases", s->phases);
    kvd_rows_text(r, "fused", fused);
    kvd_rows_int(r, "chunk", (int64_t)s->chunk);
    kvd_rows_real(r, "bytes_per_token", s->facts->bytes_per_token);
    kvd_rows_real(r, "dense_bytes_per_token", s->dense_bytes_per_token);
    kvd_rows_real(r, "cache_bytes", s->facts->cache_bytes);
    kvd_rows_real(r, "weight_bytes", s->facts->weight_bytes);
    kvd_rows_real(r, "peak_bytes", s->facts->peak_bytes);
}

static void put_gaps(kvd_rows *r, const double *gap, size_t n)
{
    if (!n)
        return; /* one token a request */
    kvd_rows_real(r, "tbt_mean_s", kvd_mean(gap, n));
    kvd_rows_real(r, "tbt_p50_s", kvd_quantile(gap, n, 0.5));
    kvd_rows_real(r, "tbt_p99_s", kvd_quantile(gap, n, 0.99));
    kvd_rows_real(r, "tbt_max_s", kvd_quantile(gap, n, 1));
}

static void put_parts(kvd_rows *r, const char *of, const kvd_phase_times *t, bool phases)
{
    char column[48];
    snprintf(column, sizeof column, "%s_s", of);
    kvd_rows_real(r, column, t->total);
    if (!phases)
        return;
    snprintf(column, sizeof column, "%s_residue_s", of);
    kvd_rows_real(r, column, kvd_phase_residue(t));
    for (int p = 0; p < KVD_PHASES; p++) {
        snprintf(column, sizeof column, "%s_%s_s", of, kvd_phase_column((kvd_phase)p));
        kvd_rows_real(r, column, t->part[p]);
    }
}

/* The run in the middle; of an even number the faster one of the two. */
static int median_run(const kvd_jct_run *run, int n)
{
    for (int i = 0; i < n; i++) {
        int before = 0;
        for (int k = 0; k < n; k++)
            before += run[k].jct < run[i].jct || (k < i && !(run[i].jct < run[k].jct));
        if (before == (n - 1) / 2)
            return i;
    }
    return 0;
}

int kvd_jct_add_job(kvd_jct *j, const kvd_jct_setting *s, size_t batch, size_t input, size_t output,
                    const kvd_jct_run *run, int n_runs, const double *gap, size_t n_gaps, kvd_err *err)
{
    kvd_rows *const r = j->rows;
    if (begin(j, err))
        return -1;
    double *const second = j->second + (j->n - 1) * (size_t)j->samples, *const ttft =
                                                                            j->ttft +
                                                                            (j->n - 1) * (size_t)j->samples;
    for (int i = 0; i < n_runs && i < j->samples; i++) {
        second[i] = run[i].jct;
        ttft[i] = run[i].ttft_mean;
    }
    const kvd_jct_run *const m = &run[median_run(run, n_runs)];
    put_setting(r, "job", s);
    kvd_rows_int(r, "batch", (int64_t)batch);
    kvd_rows_int(r, "input", (int64_t)input);
    kvd_rows_int(r, "output", (int64_t)output);
    kvd_rows_int(r, "running", (int64_t)m->running);
    kvd_rows_int(r, "iterations", (int64_t)m->iterations);
    kvd_rows_real(r, "step_weight", s->step_weight);
    kvd_rows_real(r, "jct_s", m->jct);
    kvd_rows_real(r, "jct_min_s", kvd_quantile(second, (size_t)n_runs, 0));
    kvd_rows_real(r, "jct_max_s", kvd_quantile(second, (size_t)n_runs, 1));
    kvd_rows_real(r, "jct_mad_s", kvd_mad(second, (size_t)n_runs));
    kvd_rows_real(r, "ttft_s", m->ttft_mean);
    kvd_rows_real(r, "ttft_max_s", m->ttft_max);
    put_gaps(r, gap, n_gaps);
    kvd_rows_real(r, "tokens_per_s", (double)(batch * output) / m->jct);
    put_parts(r, "prefill", &m->prefill, s->phases);
    put_parts(r, "decode", &m->decode, s->phases);
    if (s->phases)
        kvd_rows_real(r, "residue_share",
                      (kvd_phase_residue(&m->prefill) + kvd_phase_residue(&m->decode)) / m->jct);
    kvd_rows_real(r, "held_bytes", m->held_bytes);
    kvd_rows_real(r, "bytes_per_token", m->held_bytes / m->held_tokens);
    kvd_rows_real(r, "sent_qkv_bytes", m->sent[0]);
    kvd_rows_real(r, "sent_o_bytes", m->sent[1]);
    kvd_rows_real(r, "energy_j", m->joules);
    return 0;
}

int kvd_jct_add_iteration(kvd_jct *j, const kvd_jct_setting *s, size_t piece, size_t before, size_t batch,
                          double context, const double *second, int n, kvd_err *err)
{
    kvd_rows *const r = j->rows;
    if (begin(j, err))
        return -1;
    memcpy(j->second + (j->n - 1) * (size_t)j->samples, second,
           (size_t)(n < j->samples ? n : j->samples) * sizeof *second);
    put_setting(r, "iteration", s);
    kvd_rows_int(r, "batch", (int64_t)batch);
    kvd_rows_int(r, "piece", (int64_t)piece);
    kvd_rows_int(r, "before", (int64_t)before);
    if (!piece)
        kvd_rows_real(r, "context", context);
    kvd_rows_real(r, "seconds", kvd_quantile(second, (size_t)n, 0.5));
    kvd_rows_real(r, "seconds_mad", kvd_mad(second, (size_t)n));
    return 0;
}

int kvd_jct_add_request(kvd_jct *j, const kvd_jct_setting *s, const kvd_jct_request *q, kvd_err *err)
{
    kvd_rows *const r = j->rows;
    if (begin(j, err))
        return -1;
    put_setting(r, "request", s);
    kvd_rows_int(r, "request", (int64_t)q->request);
    kvd_rows_int(r, "input", (int64_t)q->input);
    kvd_rows_int(r, "output", (int64_t)q->output);
    kvd_rows_real(r, "arrival_s", q->arrival);
    kvd_rows_real(r, "ttft_s", q->ttft);
    kvd_rows_real(r, "jct_s", q->jct);
    put_gaps(r, q->gap, q->n_gaps);
    return 0;
}

/* ---- the file -------------------------------------------------------------------------------------- */

static int put_samples(kvd_h5 *f, const kvd_jct *j, const char *path, const char *words, const double *x,
                       kvd_err *err)
{
    const kvd_h5_spec spec = {.path = path,
                              .long_name = words,
                              .units = "s",
                              .type = H5T_IEEE_F64LE,
                              .rank = 2,
                              .dims = {j->n, (hsize_t)j->samples},
                              .axes = {"row", "sample"}};
    return kvd_h5_write(f, &spec, H5T_NATIVE_DOUBLE, x, err);
}

int kvd_jct_write(const kvd_jct *j, const char *path, const kvd_jct_facts *facts, const kvd_run *run,
                  kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    int status = -1;
    if (kvd_h5_create(&f, path, &kvd_schema_jct, run, err) || kvd_model_info_write(&f, facts->model, err) ||
        kvd_h5_put_text(&f, "/", "sweep", facts->sweep, err) ||
        kvd_h5_put_text(&f, "/", "skipped", facts->skipped, err) ||
        kvd_h5_put_int(&f, "/", "points", (int64_t)facts->points, err) ||
        kvd_h5_put_int(&f, "/", "points_done", (int64_t)facts->points_done, err) ||
        kvd_rows_write(&f, j->rows, err) ||
        put_samples(&f, j, "/rows/samples_s", "jct_s of every run, seconds of every iteration; NaN: none",
                    j->second, err) ||
        put_samples(&f, j, "/rows/samples_ttft_s", "ttft_s of every run; NaN: none", j->ttft, err) ||
        kvd_h5_finish(&f, err))
        goto done;
    status = 0;
done:
    kvd_h5_close(&f, false);
    return status;
}

static int read_samples(kvd_h5 *f, const char *path, size_t n, size_t samples, double *x, kvd_err *err)
{
    const hsize_t dims[2] = {n, samples};
    return kvd_h5_read(f, path, 2, dims, H5T_NATIVE_DOUBLE, x, err);
}

/* Row i of another table, whose columns are ours. */
static int copy_row(kvd_jct *j, const kvd_rows *from, size_t i, kvd_err *err)
{
    if (begin(j, err))
        return -1;
    for (int c = 0; c < N_COLUMNS; c++) {
        const kvd_column *const column = &columns()[c];
        const int at = kvd_rows_find(from, column->name);
        if (at < 0 || kvd_rows_column(from, at)->kind != column->kind)
            return kvd_fail(err, "column '%s' is missing", column->name);
        switch (column->kind) {
        case KVD_COL_TEXT:
            kvd_rows_text(j->rows, column->name, kvd_rows_get_text(from, i, at));
            break;
        case KVD_COL_INT:
            kvd_rows_int(j->rows, column->name, kvd_rows_get_int(from, i, at));
            break;
        case KVD_COL_REAL:
            kvd_rows_real(j->rows, column->name, kvd_rows_get_real(from, i, at));
            break;
        }
    }
    return 0;
}

int kvd_jct_resume(kvd_jct *j, const char *path, const char *sweep, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_rows *rows = NULL;
    char *was = NULL;
    int status = -1;
    if (access(path, F_OK) && errno == ENOENT)
        return 1;
    if (kvd_h5_open(&f, path, &kvd_schema_jct, err) || kvd_h5_get_text(&f, "/", "sweep", &was, err))
        goto done;
    if (strcmp(was, sweep)) {
        kvd_fail(err, "--resume: '%s' is of another sweep: '%s', not '%s'", path, was, sweep);
        goto done;
    }
    if (!(rows = kvd_rows_load(&f, err)))
        goto done;
    for (size_t i = 0; i < kvd_rows_count(rows); i++)
        if (copy_row(j, rows, i, err)) {
            kvd_in(err, "--resume: '%s'", path);
            goto done;
        }
    if (j->n && (read_samples(&f, "/rows/samples_s", j->n, (size_t)j->samples, j->second, err) ||
                 read_samples(&f, "/rows/samples_ttft_s", j->n, (size_t)j->samples, j->ttft, err)))
        goto done;
    status = 0;
done:
    free(was);
    kvd_rows_free(rows);
    kvd_h5_close(&f, false);
    return status;
}
