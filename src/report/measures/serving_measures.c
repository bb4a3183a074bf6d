/* Computes measures from result files of simulated serving, such as the mean request time of one
 * method relative to another's at a range of request rates. */
#include "report/measures/measures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/rows.h"

static const char *const words[] = {"rate", "top", "ttft", "tbt", "jct", "throughput", "running"};

/* parts of the name of a measure, such as "serving-ttft-zack-over-none:arxiv": quantity, methods a
 * and b, request trace */
typedef struct {
    char what[12], a[48], b[48], trace[32];
} question;

static bool parse(const char *name, question *q)
{
    static const char prefix[] = "serving-", over[] = "-over-";
    if (strncmp(name, prefix, sizeof prefix - 1))
        return false;
    name += sizeof prefix - 1;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = strlen(words[i]);
        const char *a = name + n + 1, *end = strstr(name, over);
        if (strncmp(name, words[i], n) || name[n] != '-' || !end || end <= a)
            continue;
        snprintf(q->what, sizeof q->what, "%s", words[i]);
        snprintf(q->a, sizeof q->a, "%.*s", (int)(end - a < 47 ? end - a : 47), a);
        snprintf(q->b, sizeof q->b, "%.47s", end + sizeof over - 1);
        return *q->b != '\0';
    }
    return false;
}

bool kvd_serving_measure_known(const char *name)
{
    question q;
    return parse(name, &q);
}

static bool has_item(const char *text, const char *item, size_t n)
{
    for (const char *at = strchr(text, ','); at; at = strchr(at + 1, ','))
        if (!strncmp(at + 1, item, n) && (item[n - 1] == '=' || !at[n + 1] || at[n + 1] == ','))
            return true;
    return false;
}

/* Returns 1 if a method's parameters include "online=1", 2 if they include "explicit=1", else 0. */
static int rebuilds(const char *method)
{
    return has_item(method, "online=1", 8) ? 1 : has_item(method, "explicit=1", 10) ? 2 : 0;
}

bool kvd_report_is_method(const char *text, const char *asked)
{
    size_t n = strcspn(asked, ",");
    if (n != strcspn(text, ",") || strncmp(text, asked, n) || rebuilds(text) != rebuilds(asked))
        return false;
    for (asked += n; *asked; asked += n) {
        char key[48];
        n = strcspn(++asked, ",");
        if (*asked != '!' && !has_item(text, asked, n))
            return false;
        snprintf(key, sizeof key, "%.*s=", (int)n - 1, asked + 1);
        if (*asked == '!' && has_item(text, key, n))
            return false;
    }
    return true;
}

static bool is_of(const kvd_report_row *e, const char *kind, const char *method, const char *trace)
{
    const char *const m = kvd_report_text(e, "method"), *const t = kvd_report_text(e, "trace");
    const size_t all = strlen(t), end = strlen(trace);
    return !strcmp(e->kind, kind) && kvd_report_real(e, "gpus") > 0 &&
           kvd_report_is_method(m, method) && all > end && !strcmp(t + all - end, trace);
}

static bool same(const kvd_report_row *a, const kvd_report_row *b, const char *but)
{
    return !strcmp(a->place, b->place) && !kvd_rows_differ(a->file, a->row, b->file, b->row, but);
}

/* Returns true if requests arrive faster than the simulated server completes them, so that its
 * queue grows. */
static bool grows(const kvd_report_row *e)
{
    const double served = kvd_report_real(e, "served_per_s"), drain = kvd_report_real(e, "drain_s"),
                 n = kvd_report_real(e, "requests") - kvd_report_real(e, "refused"),
                 service = kvd_report_real(e, "jct_mean_s") - kvd_report_real(e, "wait_mean_s");
    return served < 0.9 * kvd_report_real(e, "rate") ||
           drain - service > 0.05 * (n / served - drain);
}

static int put(const kvd_report_row *a, const kvd_report_row *b, double value, double load,
               kvd_measured *out, kvd_err *err)
{
    const size_t first = out->n;
    if (kvd_values_put(out, value, err, "%.60s against %.60s at %.3g requests a second, %.80s",
                       kvd_report_text(a, "method"), kvd_report_text(b, "method"),
                       kvd_report_real(b, "rate"), a->place))
        return -1;
    kvd_values_timed_on(out, first, kvd_report_text(a, "engine"));
    for (size_t i = first; i < out->n; i++) {
        out->value[i].grows = grows(a) || grows(b);
        out->value[i].load = load;
    }
    return 0;
}

static int of_highest_rates(const kvd_report_rows *all, const question *q,
                            const kvd_report_row *top, kvd_measured *out, kvd_err *err)
{
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const e = &all->item[i];
        if (is_of(e, "max-rate", q->a, q->trace) && same(e, top, "method,rate") &&
            put(e, top, kvd_report_real(e, "rate") / kvd_report_real(top, "rate"), NAN, out, err))
            return -1;
    }
    return 0;
}

static int of_short_memory(const kvd_report_rows *all, const question *q, const kvd_report_row *b,
                           kvd_measured *out, kvd_err *err)
{
    const char *const column = strcmp(q->what, "running") ? "tokens_per_s" : "running_mean";
    if (!grows(b) || !(kvd_report_real(b, "running_mean") <= 0.5 * kvd_report_real(b, "max_batch")))
        return 0;
    for (size_t i = 0; i < all->n; i++) {
        const kvd_report_row *const a = &all->item[i];
        if (!is_of(a, "point", q->a, q->trace) || !same(a, b, "method"))
            continue;
        const size_t first = out->n;
        if (put(a, b, kvd_report_real(a, column) / kvd_report_real(b, column), NAN, out, err))
            return -1;
        /* Growing request queues are intended in this comparison, and need no warning. */
        for (size_t k = first; k < out->n; k++)
            out->value[k].grows = false;
    }
    return 0;
}

typedef struct {
    const kvd_report_row **at;
    size_t n;
} curve;

static int by_rate(const void *a, const void *b)
{
    const double x = kvd_report_real(*(const kvd_report_row *const *)a, "rate"),
                 y = kvd_report_real(*(const kvd_report_row *const *)b, "rate");
    return (x > y) - (x < y);
}

/* Collects the simulations that differ from `row` only in the request rate, ordered by rate. The
 * caller frees c->at. */
static int points_like(const kvd_report_rows *all, const kvd_report_row *row, curve *c,
                       kvd_err *err)
{
    *c = (curve){.at = malloc(all->n * sizeof *c->at)};
    if (!c->at)
        return kvd_no_memory(err, "points of a sweep", all->n * sizeof *c->at);
    for (size_t i = 0; i < all->n; i++)
        if (!strcmp(all->item[i].kind, "point") &&
            same(&all->item[i], row, "kind,rate,latency_bound_s,requests,refused"))
            c->at[c->n++] = &all->item[i];
    qsort(c->at, c->n, sizeof *c->at, by_rate);
    return 0;
}

/* Returns the largest request rate, interpolated, at which the mean latency is at most `latency`,
 * or 0 if there is none. */
static double rate_at_latency(const curve *c, double latency)
{
    double rate = 0;
    for (size_t i = 0; i < c->n; i++) {
        const double x = kvd_report_real(c->at[i], "rate"),
                     y = kvd_report_real(c->at[i], "latency_mean_s");
        if (grows(c->at[i]))
            break;
        if (y <= latency) {
            rate = x;
            continue;
        }
        if (i > 0) {
            const double x0 = kvd_report_real(c->at[i - 1], "rate"),
                         y0 = kvd_report_real(c->at[i - 1], "latency_mean_s");
            rate = y0 <= latency && y > y0 ? x0 + (x - x0) * (latency - y0) / (y - y0) : rate;
        }
        break;
    }
    return rate;
}

static const kvd_report_row *at_rate(const curve *c, const kvd_report_row *b)
{
    for (size_t i = 0; i < c->n; i++)
        if (same(c->at[i], b, "method"))
            return c->at[i];
    return NULL;
}

/* Largest ratio of a request rate to the highest sustained rate at which the two rates count as
 * equal. Two searches for the highest rate differ by up to 0.4 %. */
static const double last_load = 1.005;

static void end_at_highest_rate(kvd_measured *v, size_t first)
{
    kvd_measured_value *const x = &v->value[v->n - 1];
    if (x->load <= last_load)
        return;
    if (v->n - first < 2 || x[-1].load > 1 / last_load) {
        v->n--;
        return;
    }
    x->value = x[-1].value + (x->value - x[-1].value) * (1 - x[-1].load) / (x->load - x[-1].load);
    x->grows = x->grows || x[-1].grows;
    x->load = 1;
}

static int of_loads(const kvd_report_rows *all, const question *q, const kvd_report_row *top,
                    const kvd_report_row *other, kvd_measured *out, kvd_err *err)
{
    char column[24];
    curve a = {0}, b = {0};
    int status = kvd_status(points_like(all, other, &a, err) || points_like(all, top, &b, err));
    const size_t first = out->n, number = first ? out->value[first - 1].curve + 1 : 0;
    bool gap = false; /* q->a has no value at the load before */
    snprintf(column, sizeof column, "%s_mean_s", q->what);
    for (size_t i = 0; !status && i < b.n; i++) {
        const double rate = kvd_report_real(b.at[i], "rate"),
                     load = rate / kvd_report_real(top, "rate");
        const kvd_report_row *e = at_rate(&a, b.at[i]);
        double value = (double)NAN;
        if (!strcmp(q->what, "rate"))
            value = rate_at_latency(&a, kvd_report_real(b.at[i], "latency_mean_s")) / rate;
        else if (e)
            value = 100 * (kvd_report_real(e, column) / kvd_report_real(b.at[i], column) - 1);
        const size_t before = out->n;
        status = put(e ? e : b.at[i], b.at[i], value, load, out, err);
        if (out->n > before)
            out->value[before].gap = gap;
        gap = out->n == before;
        if (load > last_load)
            break;
    }
    if (!status && out->n > first)
        end_at_highest_rate(out, first);
    for (size_t i = first; i < out->n; i++)
        out->value[i].curve = number;
    free(a.at);
    free(b.at);
    return status;
}

/* Appends curves that compare two methods, A and B, at different request rates. Uses results of A
 * with the model, GPU and trace of `top`, which is the result of B at the highest request rate that
 * it sustains. */
static int of_curves(const kvd_report_rows *all, const question *q, const kvd_report_row *top,
                     kvd_measured *out, kvd_err *err)
{
    for (size_t i = 0; i < all->n; i++)
        if (is_of(&all->item[i], "max-rate", q->a, q->trace) &&
            same(&all->item[i], top, "method,rate") &&
            of_loads(all, q, top, &all->item[i], out, err))
            return -1;
    return 0;
}

int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace,
                        kvd_measured *out, kvd_err *err)
{
    kvd_report_rows all;
    question q;
    if (!parse(name, &q))
        return kvd_fail(err, "unknown measure '%s'", name);
    snprintf(q.trace, sizeof q.trace, " of %.24s", trace);
    if (kvd_serving_collect(r, &all, err))
        return -1;
    int status = 0;
    const bool memory = !strcmp(q.what, "throughput") || !strcmp(q.what, "running");
    for (size_t i = 0; !status && i < all.n; i++)
        if (memory && is_of(&all.item[i], "point", q.b, q.trace))
            status = of_short_memory(&all, &q, &all.item[i], out, err);
        else if (!memory && is_of(&all.item[i], "max-rate", q.b, q.trace))
            status = (strcmp(q.what, "top") ? of_curves : of_highest_rates)(&all, &q, &all.item[i],
                                                                            out, err);
    kvd_report_rows_release(&all);
    return status;
}
