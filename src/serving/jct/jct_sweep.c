#include "serving/jct/jct_sweep.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "methods/cache.h"
#include "serving/jct/jct_grid.h"

typedef struct {
    size_t number;
    const kvd_jct_method *method;
    kvd_plan plan;
    bool open;
    kvd_engine *engine;
    kvd_jct_setting setting;
    kvd_jct_loop loop;
} candidate;

static void skip(kvd_jct_sweep *s, const char *what, const char *why, size_t points)
{
    char *grown = NULL;
    s->left_out += points;
    if (s->progress.terminal && !s->progress.quiet)
        fputc('\n', stderr);
    fprintf(stderr, "%s: %s: left out: %s\n", s->run.program, what, why);
    if (asprintf(&grown, "%s%s%s: %s", s->skipped ? s->skipped : "", s->skipped ? "\n" : "", what,
                 why) >= 0) {
        free(s->skipped);
        s->skipped = grown;
    }
}

static kvd_jct_facts facts_of(const kvd_jct_sweep *s)
{
    return (kvd_jct_facts){.model = &s->info,
                           .sweep = s->description,
                           .skipped = s->skipped ? s->skipped : "",
                           .points = s->points,
                           .points_done = s->done};
}

static int save(kvd_jct_sweep *s, kvd_err *err)
{
    const kvd_jct_facts facts = facts_of(s);
    const bool shown = !s->cfg->common.quiet && !s->cfg->common.json && !s->cfg->requests;
    char line[KVD_JCT_LINE];
    if (kvd_rows_count(s->out) > s->saved_rows &&
        kvd_jct_save(s->out, s->rows_path, &facts, &s->run, err))
        return -1;
    s->saved = s->done;
    s->saved_rows = kvd_rows_count(s->out);
    for (; s->printed < kvd_rows_count(s->out); s->printed++) {
        if (!shown)
            continue;
        if (!s->printed)
            puts(kvd_jct_heading);
        puts(kvd_jct_line(s->out, s->printed, line));
    }
    fflush(stdout);
    return 0;
}

static int take_up(kvd_jct_sweep *s, kvd_err *err)
{
    const char *const output = s->cfg->common.output;
    const bool rows = !access(s->rows_path, F_OK);
    if (!s->cfg->resume && rows)
        fprintf(stderr, "%s: replacing what an interrupted run left in '%s'\n", s->run.program,
                s->rows_path);
    if (!s->cfg->resume || (!rows && access(output, F_OK)))
        return 0;
    if (kvd_jct_resume(s->out, rows ? s->rows_path : output,
                       rows ? &kvd_schema_jct_rows : &kvd_schema_jct, s->description, err))
        return -1;
    s->printed = s->saved_rows = s->n_before = kvd_rows_count(s->out);
    s->was_complete = !rows;
    if (s->n_before && !s->cfg->common.quiet)
        fprintf(stderr, "%s: going on after %zu rows of '%s'\n", s->run.program, s->n_before,
                rows ? s->rows_path : output);
    return 0;
}

int kvd_jct_sweep_open(kvd_jct_sweep *s, kvd_err *err)
{
    const char *const output = s->cfg->common.output;
    if (asprintf(&s->rows_path, "%s.rows", output) < 0) {
        s->rows_path = NULL;
        return kvd_no_memory(err, "a path", strlen(output) + 6);
    }
    return kvd_status(kvd_output_check_derived(s->rows_path, err) ||
                      kvd_run_not_an_input(&s->run, s->rows_path, err) ||
                      kvd_h5_create(&s->file, output, &kvd_schema_jct, &s->run, err) ||
                      take_up(s, err));
}

int kvd_jct_sweep_finish(kvd_jct_sweep *s, kvd_err *err)
{
    const kvd_jct_facts facts = facts_of(s);
    const size_t n = kvd_rows_count(s->out);
    const bool same = s->was_complete && n == s->n_before && !s->left_out;
    if (same && !s->cfg->common.quiet)
        fprintf(stderr, "%s: '%s' is complete: nothing to do\n", s->run.program,
                s->cfg->common.output);
    if (!n || same)
        return 0;
    if (kvd_jct_finish(s->out, &s->file, &facts, err))
        return -1;
    return kvd_output_remove(s->rows_path, err);
}

void kvd_jct_sweep_close(kvd_jct_sweep *s)
{
    kvd_h5_close(&s->file, false);
    free(s->rows_path);
    s->rows_path = NULL;
}

typedef struct {
    const char *column;
    double value;
} cell;

/* Returns true if a result row with this method and `kind` has the n column values in x. */
static bool has_row(const kvd_jct_sweep *s, const candidate *c, const char *kind, const cell *x,
                    size_t n)
{
    for (size_t i = 0; i < kvd_rows_count(s->out); i++) {
        size_t same = 0;
        while (same < n && fabs(kvd_row_real(s->out, i, x[same].column) - x[same].value) < 0.5)
            same++;
        if (same == n && !strcmp(kvd_row_text(s->out, i, "kind"), kind) &&
            !strcmp(kvd_row_text(s->out, i, "method"), c->method->label))
            return true;
    }
    return false;
}

static bool has_job(const kvd_jct_sweep *s, const candidate *c, size_t batch, size_t input,
                    size_t output)
{
    const cell x[] = {
        {"batch", (double)batch}, {"input", (double)input}, {"output", (double)output}};
    return has_row(s, c, "job", x, 3);
}

static bool has_iteration(const kvd_jct_sweep *s, const candidate *c, const kvd_jct_point *p)
{
    const double tokens = (double)p->tokens;
    const cell last = p->piece ? (cell){"before", tokens}
                               : (cell){"context", tokens + (double)(s->cfg->repeats + 1) / 2};
    const cell x[] = {{"batch", (double)p->batch}, {"piece", (double)p->piece}, last};
    return has_row(s, c, "iteration", x, 3);
}

static double dense_bytes(const kvd_jct_sweep *s, size_t length)
{
    kvd_cache_bytes bytes;
    kvd_cache_count_bytes(s->config, NULL, kvd_dtype_bytes(s->cfg->type), &bytes);
    return bytes.dense * kvd_cache_window_share(s->config, length);
}

static int open_engine(kvd_jct_sweep *s, candidate *c, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    const kvd_engine_spec spec = {.limits = {.max_batch = s->max_batch,
                                             .max_tokens = s->max_tokens,
                                             .chunk = cfg->chunk,
                                             .pages = cfg->pages,
                                             .admission = cfg->admission},
                                  .max_len = s->max_len,
                                  .type = cfg->type,
                                  .n_gpus = (int)cfg->gpus,
                                  .sequence = cfg->sequence,
                                  .graphs = cfg->graphs,
                                  .attention = cfg->attention,
                                  .weight_bits = c->method->weight_bits,
                                  .phases = cfg->phases};
    if (kvd_jct_method_plan(&s->methods, c->number, s->checkpoint, s->run.gpu[0], cfg->type,
                            s->longest_input, s->run.seed, &c->plan, err))
        return -1;
    c->open = true;
    if (s->run.gpu[0] && cfg->admission == KVD_ADMIT_STORED && kvd_plan_beyond_widths(&c->plan))
        return kvd_fail(err, "--admission stored: on a GPU this method keeps a state of every "
                             "request that cannot be dropped before the request ends");
#ifdef KVD_CUDA
    if (s->run.gpu[0])
        c->engine = kvd_engine_open_cuda(s->checkpoint, &c->plan, &spec, err);
    else
#endif
        c->engine = kvd_engine_open_cpu(s->checkpoint, &c->plan, &spec, err);
    if (!c->engine)
        return -1;
    c->setting = (kvd_jct_setting){.method = c->method->label,
                                   .name = c->method->name,
                                   .overall_p = c->method->point->overall_p,
                                   .width_min = c->method->width_min,
                                   .width_max = c->method->width_max,
                                   .width_cv = c->method->width_cv,
                                   .facts = &c->engine->facts,
                                   .dense_bytes_per_token = dense_bytes(s, spec.max_len),
                                   .type = cfg->type,
                                   .gpus = s->run.gpu[0] ? (int)cfg->gpus : 0,
                                   .sequence = cfg->sequence,
                                   .graphs = s->run.gpu[0] && cfg->graphs,
                                   .phases = cfg->phases,
                                   .chunk = cfg->chunk,
                                   .admission = cfg->admission,
                                   .step_weight = 1};
    c->loop = (kvd_jct_loop){.engine = c->engine,
                             .limits = spec.limits,
                             .vocab = (size_t)s->config->vocab_size,
                             .seed = s->run.seed,
                             .energy = &s->energy};
    c->loop.limits.pages = c->engine->facts.pages;
    c->loop.limits.window_pages = c->engine->facts.window_pages;
    c->loop.limits.window_share = c->engine->facts.window_share;
    return 0;
}

static void close_engine(candidate *c)
{
    if (c->engine)
        c->engine->free(c->engine);
    if (c->open)
        kvd_plan_close(&c->plan);
    c->engine = NULL;
    c->open = false;
}

static int warm_up(const kvd_jct_loop *l, kvd_requests *job, kvd_err *err)
{
    enum { STEPS = 4 };
    const uint32_t output = job->request[0].output;
    kvd_jct_served served;
    kvd_jct_loop quiet = *l;
    quiet.trace = NULL;
    for (size_t i = 0; i < job->n; i++)
        job->request[i].output = output < STEPS ? output : STEPS;
    const int status = kvd_jct_serve(&quiet, job, &served, err);
    kvd_jct_served_release(&served);
    for (size_t i = 0; i < job->n; i++)
        job->request[i].output = output;
    return status;
}

/* Returns how many decode steps of a job to compute: the number given by --steps, or all steps if
 * --steps is not given or the engine cannot leave out steps. */
static size_t steps_of(const kvd_jct_sweep *s, const candidate *c, size_t output)
{
    const size_t some = c->engine->facts.anywhere ? s->cfg->steps : 0;
    return some && some < output - 1 ? some : output - 1;
}

static void say_nothing_saved(const kvd_jct_sweep *s, const candidate *c, const char *what,
                              size_t length, const kvd_jct_run *r)
{
    const double held = r->held_bytes / r->held_tokens, dense = dense_bytes(s, length);
    if (kvd_method_is_none(c->method->point->method) || held < dense * (1 - 1e-9))
        return;
    if (s->progress.terminal && !s->progress.quiet)
        fputc('\n', stderr);
    fprintf(
        stderr,
        "%s: %s: NOTHING SAVED: its cache held %.6g bytes a token, an uncompressed one holds %.6g\n",
        s->run.program, what, held, dense);
}

static int run_job(kvd_jct_sweep *s, candidate *c, const char *what, kvd_requests *job,
                   kvd_err *err)
{
    const size_t input = job->request[0].input, output = job->request[0].output;
    const size_t repeats = s->cfg->repeats, steps = steps_of(s, c, output), gaps = job->n * steps;
    kvd_jct_run *const run = calloc(repeats, sizeof *run);
    double *const gap = calloc(repeats * gaps + 1, sizeof *gap);
    int status = run && gap ? warm_up(&c->loop, job, err)
                            : kvd_no_memory(err, "a job's times", (repeats * gaps) * sizeof *gap);
    for (size_t i = 0; !status && i < repeats; i++) {
        kvd_jct_served served;
        kvd_jct_loop loop = c->loop;
        loop.trace = i == 0 && s->cfg->timeline ? &s->trace : NULL;
        status = steps < output - 1
                     ? kvd_jct_serve_sampled(&loop, job->n, input, output, steps, &served, err)
                     : kvd_jct_serve(&loop, job, &served, err);
        run[i] = served.run;
        kvd_progress_step(&s->progress, (double)s->done + (double)(i + 1) / (double)(repeats + 1));
        if (!status)
            memcpy(gap + i * gaps, served.gap, gaps * sizeof *gap);
        kvd_jct_served_release(&served);
    }
    c->setting.step_weight = steps ? (double)(output - 1) / (double)steps : 1;
    if (!status)
        status = kvd_jct_add_job(s->out, &c->setting, job->n, input, output, run, (int)repeats, gap,
                                 repeats * gaps, err);
    c->setting.step_weight = 1;
    if (!status)
        say_nothing_saved(s, c, what, input + output, &run[0]);
    free(run);
    free(gap);
    return status;
}

/* Returns true if the cache has room for `batch` requests at once. Otherwise reports that the
 * measurement `what` is skipped. */
static bool fit_at_once(kvd_jct_sweep *s, const candidate *c, const char *what, const char *option,
                        size_t batch, size_t tokens)
{
    char why[160];
    const kvd_batching_limits *const l = &c->loop.limits;
    const size_t each = (tokens + 63) / 64, pages = batch * each, room = l->pages;
    const size_t near = batch * (each < l->window_share ? each : l->window_share);
    if (batch <= l->max_batch && pages <= room && near <= l->window_pages)
        return true;
    snprintf(why, sizeof why,
             "%s: its requests must run at once, in %zu pages (%zu in layers with a window); "
             "there are %zu (%zu), for %zu",
             option, pages, near, room, l->window_pages, l->max_batch);
    skip(s, what, why, 1);
    return false;
}

/* Returns true if a job can run. With --steps, which runs only some decode steps, all requests of
 * the job must fit into the cache at once. */
static bool can_sample(kvd_jct_sweep *s, const candidate *c, const char *what, size_t batch,
                       size_t input, size_t output)
{
    return steps_of(s, c, output) == output - 1 ||
           fit_at_once(s, c, what, "--steps", batch, input + output);
}

/* Returns true if one request of `tokens` tokens fits into the cache. Otherwise reports that the
 * measurement `what` is skipped. */
static bool fits(kvd_jct_sweep *s, const candidate *c, const char *what, size_t tokens)
{
    char why[160];
    if ((tokens + 63) / 64 <= c->loop.limits.pages)
        return true;
    snprintf(why, sizeof why, "a request of %zu tokens takes %zu pages of the cache, there are %zu",
             tokens, (tokens + 63) / 64, c->loop.limits.pages);
    skip(s, what, why, 1);
    return false;
}

static int job(kvd_jct_sweep *s, candidate *c, size_t batch, size_t input, size_t output,
               kvd_err *err)
{
    char what[400];
    snprintf(what, sizeof what, "%s, %zu x (%zu + %zu)", c->method->label, batch, input, output);
    if (has_job(s, c, batch, input, output) || !fits(s, c, what, input + output) ||
        !can_sample(s, c, what, batch, input, output))
        return 0;
    kvd_requests requests = {.n = batch, .request = calloc(batch, sizeof *requests.request)};
    if (!requests.request)
        return kvd_no_memory(err, "requests", batch * sizeof *requests.request);
    for (size_t i = 0; i < batch; i++)
        requests.request[i] = (kvd_request){0, (uint32_t)input, (uint32_t)output};
    if (s->cfg->timeline)
        kvd_jct_trace_job(&s->trace, what);
    const int status = run_job(s, c, what, &requests, err);
    free(requests.request);
    return status ? kvd_in(err, "%s", what) : 0;
}

static void say_all_steps(const kvd_jct_sweep *s, const candidate *c)
{
    if (!s->cfg->steps || c->engine->facts.anywhere)
        return;
    if (s->progress.terminal && !s->progress.quiet)
        fputc('\n', stderr);
    fprintf(stderr, "%s: %s: all steps run, --steps %zu is not possible: %s\n", s->run.program,
            c->method->label, s->cfg->steps,
            s->run.gpu[0] ? "each needs every token before it" : "no GPU is used");
}

static int jobs(kvd_jct_sweep *s, candidate *c, kvd_err *err)
{
    const kvd_jct_options *const cfg = s->cfg;
    say_all_steps(s, c);
    for (size_t b = 0; b < cfg->n_batches; b++)
        for (size_t i = 0; i < cfg->n_inputs; i++)
            for (size_t o = 0; o < cfg->n_outputs; o++) {
                if (job(s, c, cfg->batch[b], cfg->input[i], cfg->output[o], err))
                    return -1;
                kvd_progress_step(&s->progress, (double)++s->done);
                if (save(s, err))
                    return -1;
            }
    return 0;
}

static int iterations(kvd_jct_sweep *s, candidate *c, kvd_err *err)
{
    const size_t samples = s->cfg->repeats;
    const bool longest = s->cfg->n_step_batches > 0;
    kvd_jct_point *point = NULL;
    size_t n = s->cfg->n_step_batches;
    double *const second = calloc(samples, sizeof *second), context;
    int status =
        !second   ? kvd_no_memory(err, "samples", samples * sizeof *second)
        : longest ? kvd_jct_longest_steps(s->max_len, s->cfg->step_batch, n, samples, &point, err)
                  : kvd_jct_grid(s->longest_input, s->max_len, &c->loop.limits,
                                 kvd_plan_beyond_widths(&c->plan), samples, &point, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        char what[400];
        kvd_progress_step(&s->progress, (double)s->done + (double)i / (double)n);
        snprintf(what, sizeof what, "%s, a step of %zu after %zu", c->method->label, point[i].batch,
                 point[i].tokens);
        if (has_iteration(s, c, &point[i]) ||
            (longest && !fit_at_once(s, c, what, "--step-batch", point[i].batch, s->max_len)))
            continue;
        status = kvd_jct_grid_run(&c->loop, &point[i], samples, second, &context, err) ||
                 kvd_jct_add_iteration(s->out, &c->setting, point[i].piece,
                                       point[i].piece ? point[i].tokens : 0, point[i].batch,
                                       context, second, (int)samples, err) ||
                 save(s, err);
        if (status)
            kvd_in(err, "%s, %s of %zu after %zu", c->method->label,
                   point[i].piece ? "a piece" : "a step",
                   point[i].piece ? point[i].piece : point[i].batch, point[i].tokens);
    }
    free(point);
    free(second);
    kvd_progress_step(&s->progress, (double)++s->done);
    return status ? -1 : save(s, err);
}

static int longest_first(const void *a, const void *b)
{
    const kvd_request *const p = a, *const q = b;
    return (p->input < q->input) - (p->input > q->input);
}

/* Warms up before requests are replayed: runs a prompt of each length, because on an H200 the first
 * prompt of a length takes up to 14 ms longer. */
static int warm_up_replay(const kvd_jct_sweep *s, const kvd_jct_loop *l, kvd_err *err)
{
    const size_t most = s->run.gpu[0] && !l->limits.chunk ? s->requests.n : 1;
    kvd_jct_loop alone = *l;
    kvd_requests each = {.request = calloc(s->requests.n, sizeof *each.request)};
    if (!each.request)
        return kvd_no_memory(err, "requests", s->requests.n * sizeof *each.request);
    memcpy(each.request, s->requests.request, s->requests.n * sizeof *each.request);
    qsort(each.request, s->requests.n, sizeof *each.request, longest_first);
    for (size_t i = 0; i < s->requests.n && each.n < most; i++)
        if (!i || each.request[i].input < each.request[each.n - 1].input)
            each.request[each.n++] = (kvd_request){.input = each.request[i].input,
                                                   .output = i ? 1 : each.request[i].output};
    alone.limits.max_tokens = 1;
    const int status = warm_up(&alone, &each, err);
    free(each.request);
    return status;
}

static int replay(kvd_jct_sweep *s, candidate *c, kvd_err *err)
{
    kvd_jct_served served = {0};
    if (has_row(s, c, "request", NULL, 0)) {
        s->done++;
        return 0;
    }
    if (!fits(s, c, c->method->label, s->max_len)) {
        kvd_progress_step(&s->progress, (double)++s->done);
        return save(s, err);
    }
    int status = warm_up_replay(s, &c->loop, err);
    c->loop.trace = s->cfg->timeline ? &s->trace : NULL;
    if (s->cfg->timeline)
        kvd_jct_trace_job(&s->trace, c->method->label);
    status = status || kvd_jct_serve(&c->loop, &s->requests, &served, err);
    for (size_t i = 0; !status && i < served.n; i++) {
        const kvd_request *const r = &s->requests.request[i];
        const kvd_jct_request row = {.request = i,
                                     .input = r->input,
                                     .output = r->output,
                                     .arrival = r->arrival,
                                     .ttft = served.first[i] - r->arrival,
                                     .jct = served.last[i] - r->arrival,
                                     .preempted = served.preempted[i],
                                     .recomputed = served.recomputed[i],
                                     .gap = served.gap + served.gap_at[i],
                                     .n_gaps = served.gap_at[i + 1] - served.gap_at[i]};
        status = kvd_jct_add_request(s->out, &c->setting, &row, err);
    }
    kvd_jct_served_release(&served);
    kvd_progress_step(&s->progress, (double)++s->done);
    if (status || save(s, err))
        return kvd_in(err, "%s", c->method->label);
    char line[KVD_JCT_LINE];
    if (!s->cfg->common.quiet && !s->cfg->common.json)
        puts(kvd_jct_requests_line(s->out, c->method->label, line));
    return 0;
}

static int run_method(kvd_jct_sweep *s, size_t i, kvd_err *err)
{
    candidate c = {.number = i, .method = &s->methods.item[i]};
    kvd_err why = {""};
    int status = 0;
    if (open_engine(s, &c, &why)) {
        const size_t points = s->points / s->methods.n;
        skip(s, c.method->label, why.msg, points);
        s->done += points;
        kvd_progress_step(&s->progress, (double)s->done);
        status = save(s, err);
    } else if (s->cfg->requests)
        status = replay(s, &c, err);
    else
        status = jobs(s, &c, err) || (s->cfg->iterations && iterations(s, &c, err));
    close_engine(&c);
    return status ? -1 : 0;
}

int kvd_jct_sweep_run(kvd_jct_sweep *s, kvd_err *err)
{
    kvd_progress_start(&s->progress, "jct", "points", (double)s->points, s->cfg->common.quiet);
    int status = 0;
    for (size_t i = 0; !status && i < s->methods.n; i++)
        status = run_method(s, i, err);
    kvd_progress_end(&s->progress);
    return status;
}
