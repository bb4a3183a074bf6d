#include "serving/simulate/replay.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/stats.h"
#include "formats/jct.h"

typedef struct {
    kvd_request request;
    double ttft, jct;
    size_t row;
} served;

/* Reads an option of the kvdim-jct run that wrote the file, such as max-batch. If the file lacks
 * the option, sets *n to 0. */
static int read_option(kvd_h5 *f, const char *name, size_t *n, kvd_err *err)
{
    char *value = NULL;
    *n = 0;
    const int status = kvd_h5_get_text_or_none(f, "/parameters", name, &value, err) ||
                       (value && *value && kvd_arg_size(name, value, 0, (size_t)1 << 30, n, err));
    free(value);
    return kvd_status(status);
}

/* Reads the rule for admitting requests that the file records (--admission). Older files record
 * none; their runs used KVD_ADMIT_WHOLE. */
static int read_admission(kvd_h5 *f, kvd_admission *admission, kvd_err *err)
{
    char *value = NULL;
    if (kvd_h5_get_text_or_none(f, "/parameters", "admission", &value, err))
        return -1;
    const bool stored = value && !strcmp(value, kvd_admission_name[KVD_ADMIT_STORED]);
    free(value);
    *admission = stored ? KVD_ADMIT_STORED : KVD_ADMIT_WHOLE;
    return 0;
}

static kvd_rows *read_rows(const char *path, kvd_replay *r, kvd_err *err)
{
    kvd_h5 f = {.id = H5I_INVALID_HID};
    kvd_rows *rows = NULL;
    if (!kvd_h5_open(&f, path, &kvd_schema_jct, err) &&
        !read_option(&f, "max-batch", &r->limits.max_batch, err) &&
        !read_option(&f, "max-tokens", &r->limits.max_tokens, err) &&
        !read_admission(&f, &r->limits.admission, err))
        rows = kvd_jct_costs_read(&f, err);
    kvd_h5_close(&f, false);
    if (!rows)
        kvd_in(err, "'%s'", path);
    else if (kvd_costs_columns(rows, path, "kind method engine",
                               "gpus chunk input output arrival_s ttft_s jct_s bytes_per_token "
                               "cache_bytes",
                               err)) {
        kvd_rows_free(rows);
        rows = NULL;
    }
    return rows;
}

static int take_row(served *to, const kvd_rows *s, size_t row, kvd_err *err)
{
    const double in = kvd_row_real(s, row, "input"), out = kvd_row_real(s, row, "output"),
                 at = kvd_row_real(s, row, "arrival_s");
    const double most = (double)((size_t)1 << 31);
    to->ttft = kvd_row_real(s, row, "ttft_s");
    to->jct = kvd_row_real(s, row, "jct_s");
    to->row = row;
    if (!(in >= 1 && in <= most && out >= 1 && out <= most && at >= 0 && at < 1e12 &&
          to->ttft > 0 && to->jct >= to->ttft && to->jct < 1e12))
        return kvd_fail(err, "row %zu: a request of %g + %g tokens at %g s, TTFT %g s, JCT %g s",
                        row, in, out, at, to->ttft, to->jct);
    to->request = (kvd_request){at, (uint32_t)in, (uint32_t)out};
    return 0;
}

static int same(const kvd_rows *s, size_t first, size_t row, const char *column, kvd_err *err)
{
    const double a = kvd_row_real(s, first, column), b = kvd_row_real(s, row, column);
    return a < b || a > b
               ? kvd_fail(err, "rows %zu and %zu differ in %s: %g and %g", first, row, column, a, b)
               : 0;
}

static int take_facts(kvd_replay *r, const kvd_rows *s, size_t row, kvd_err *err)
{
    const double pages =
        kvd_row_real(s, row, "cache_bytes") / (64 * kvd_row_real(s, row, "bytes_per_token"));
    if (!(pages >= 1 && pages < 1e15))
        return kvd_fail(err, "row %zu: a cache of %g pages", row, pages);
    r->limits.pages = (size_t)(pages + 1e-6);
    r->limits.chunk = (size_t)kvd_row_real(s, row, "chunk");
    r->gpus = (int)kvd_row_real(s, row, "gpus");
    snprintf(r->engine, sizeof r->engine, "%s", kvd_row_text(s, row, "engine"));
    return 0;
}

static int by_arrival(const void *a, const void *b)
{
    const served *x = a, *y = b;
    if (x->request.arrival < y->request.arrival || x->request.arrival > y->request.arrival)
        return x->request.arrival < y->request.arrival ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

static int gather(kvd_replay *r, const kvd_rows *s, const char *method, int gpus, served *all,
                  kvd_err *err)
{
    static const char *const alike[] = {"gpus", "chunk", "bytes_per_token", "cache_bytes"};
    size_t n = 0;
    for (size_t i = 0; i < kvd_rows_count(s); i++) {
        if (strcmp(kvd_row_text(s, i, "kind"), "request") ||
            strcmp(kvd_row_text(s, i, "method"), method) ||
            (gpus >= 0 && (gpus < kvd_row_real(s, i, "gpus") || gpus > kvd_row_real(s, i, "gpus"))))
            continue;
        if (take_row(&all[n], s, i, err) || (!n && take_facts(r, s, i, err)))
            return -1;
        for (size_t k = 0; k < sizeof alike / sizeof *alike; k++)
            if (same(s, all[0].row, i, alike[k], err))
                return -1;
        n++;
    }
    if (!n)
        return 1;
    qsort(all, n, sizeof *all, by_arrival);
    r->requests.n = n;
    r->requests.request = calloc(n, sizeof *r->requests.request);
    r->ttft = calloc(n, sizeof *r->ttft);
    r->jct = calloc(n, sizeof *r->jct);
    if (!r->requests.request || !r->ttft || !r->jct)
        return kvd_no_memory(err, "a replay", n * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        r->requests.request[i] = all[i].request;
        r->ttft[i] = all[i].ttft;
        r->jct[i] = all[i].jct;
    }
    return 0;
}

int kvd_replay_load(kvd_replay *r, const char *path, const char *method, int gpus, kvd_err *err)
{
    memset(r, 0, sizeof *r);
    kvd_rows *const rows = read_rows(path, r, err);
    if (!rows)
        return -1;
    kvd_requests_set_name(&r->requests, "replay ", path);
    const size_t n = kvd_rows_count(rows);
    served *all = calloc(n ? n : 1, sizeof *all);
    int status = all ? gather(r, rows, method, gpus, all, err)
                     : kvd_no_memory(err, "a replay", n * sizeof *all);
    if (status)
        kvd_replay_release(r);
    if (status < 0)
        kvd_in(err, "'%s': %s", path, method);
    free(all);
    kvd_rows_free(rows);
    return status;
}

void kvd_replay_release(kvd_replay *r)
{
    kvd_requests_release(&r->requests);
    free(r->ttft);
    free(r->jct);
    memset(r, 0, sizeof *r);
}

static void compare(const char *quantity, const double *measured, const double *simulated, size_t n,
                    kvd_serve_comparison *c)
{
    c[0] = (kvd_serve_comparison){quantity, "mean", NAN, NAN};
    c[1] = (kvd_serve_comparison){quantity, "p90", NAN, NAN};
    if (!n)
        return;
    c[0].measured = kvd_mean(measured, n);
    c[0].simulated = kvd_mean(simulated, n);
    c[1].measured = kvd_quantile(measured, n, 0.9);
    c[1].simulated = kvd_quantile(simulated, n, 0.9);
}

int kvd_replay_compare(const kvd_replay *r, const kvd_serve_setting *s, kvd_serve_comparison *c,
                       kvd_err *err)
{
    const size_t n = r->requests.n;
    kvd_simulated out;
    kvd_served *of = calloc(n, sizeof *of);
    double *a = calloc(n, sizeof *a), *b = calloc(n, sizeof *b);
    int status = -1;
    if (!of || !a || !b) {
        kvd_no_memory(err, "a comparison", n * (sizeof *of + 2 * sizeof *a));
        goto done;
    }
    if (kvd_simulate(&r->requests, &s->limits, s->costs, s->replicas, s->route, of, NULL, &out,
                     err))
        goto done;
    if (out.refused) {
        kvd_fail(err, "the replay served a request that the simulation refuses: %s",
                 out.refusal.msg);
        goto done;
    }
    for (size_t i = 0; i < n; i++)
        a[i] = of[i].first - of[i].arrival;
    compare("TTFT", r->ttft, a, n, c);
    size_t several = 0;
    for (size_t i = 0; i < n; i++) {
        const uint32_t output = r->requests.request[i].output;
        if (output < 2)
            continue;
        a[several] = (r->jct[i] - r->ttft[i]) / (output - 1);
        b[several++] = (of[i].end - of[i].first) / (output - 1);
    }
    compare("TBT of a request", a, b, several, c + 2);
    for (size_t i = 0; i < n; i++)
        a[i] = of[i].end - of[i].arrival;
    compare("JCT", r->jct, a, n, c + 4);
    status = 0;
done:
    free(of);
    free(a);
    free(b);
    return status;
}
