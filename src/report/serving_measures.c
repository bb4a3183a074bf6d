#include "report/serving_measures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/serving_rows.h"

static const char *const words[] = {"rate", "ttft", "tbt", "jct"};

/* What is asked for. */
typedef struct {
    char what[8], a[48], b[48], trace[32]; /* trace: " of arxiv" */
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

/* Whether the row is of that method, whatever its keys, and of the trace, and its costs were measured on a GPU: the papers' machines
 * have some, and a CPU's seconds say nothing of theirs. */
static bool is_of(const kvd_serving_entry *e, const char *kind, const char *method, const char *trace)
{
    const char *const m = kvd_serving_text(e, "method"), *const t = kvd_serving_text(e, "trace");
    const size_t n = strcspn(m, ","), all = strlen(t), end = strlen(trace);
    return !strcmp(e->kind, kind) && kvd_serving_real(e, "gpus") > 0 && strlen(method) == n &&
           !strncmp(m, method, n) && all > end && !strcmp(t + all - end, trace);
}

static bool equal(double a, double b)
{
    return a <= b && a >= b;
}

/* As kvdim-serve says it of the highest rate. */
static bool grows(const kvd_serving_entry *e)
{
    return kvd_serving_real(e, "served_per_s") < 0.9 * kvd_serving_real(e, "rate");
}

static int put(const kvd_serving_entry *a, const kvd_serving_entry *b, double value, double rate,
               kvd_values *out, kvd_err *err)
{
    const size_t first = out->n;
    if (kvd_values_put(out, value, err, "%.60s against %.60s at %.3g requests a second, %.80s",
                       kvd_serving_text(a, "method"), kvd_serving_text(b, "method"), rate, a->place))
        return -1;
    kvd_values_timed_on(out, first, kvd_serving_text(a, "engine"));
    for (size_t i = first; i < out->n; i++)
        out->value[i].grows = grows(a) || grows(b);
    return 0;
}

static int of_rates(const kvd_serving_entries *all, const question *q, const kvd_serving_entry *top,
                    kvd_values *out, kvd_err *err)
{
    const double rate = kvd_serving_real(top, "rate"), bound = kvd_serving_real(top, "latency_bound_s");
    for (size_t i = 0; i < all->n; i++) {
        const kvd_serving_entry *const e = &all->item[i];
        if (is_of(e, "max-rate", q->a, q->trace) && !strcmp(e->place, top->place) &&
            equal(kvd_serving_real(e, "latency_bound_s"), bound) &&
            put(e, top, kvd_serving_real(e, "rate") / rate, rate, out, err))
            return -1;
    }
    return 0;
}

/* The point of the very method with the highest rate that it sustains. */
static const kvd_serving_entry *busiest(const kvd_serving_entries *all, const kvd_serving_entry *top)
{
    const kvd_serving_entry *best = NULL;
    /* Two searches of the highest rate end within 0.2 % of it each, and sweeps have theirs to four digits. */
    const double most = kvd_serving_real(top, "rate") * 1.005;
    for (size_t i = 0; i < all->n; i++) {
        const kvd_serving_entry *const e = &all->item[i];
        const double rate = kvd_serving_real(e, "rate");
        if (!strcmp(e->kind, "point") && !strcmp(e->place, top->place) && !strcmp(e->series, top->series) &&
            rate <= most && (!best || rate > kvd_serving_real(best, "rate")))
            best = e;
    }
    return best;
}

static int of_times(const kvd_serving_entries *all, const question *q, const kvd_serving_entry *top,
                    kvd_values *out, kvd_err *err)
{
    char column[24];
    const kvd_serving_entry *const b = busiest(all, top);
    snprintf(column, sizeof column, "%s_mean_s", q->what);
    for (size_t i = 0; b && i < all->n; i++) {
        const kvd_serving_entry *const e = &all->item[i];
        const double rate = kvd_serving_real(b, "rate");
        if (is_of(e, "point", q->a, q->trace) && !strcmp(e->place, top->place) &&
            equal(kvd_serving_real(e, "rate"), rate) &&
            put(e, b, 100 * (kvd_serving_real(e, column) / kvd_serving_real(b, column) - 1), rate, out, err))
            return -1;
    }
    return 0;
}

int kvd_serving_measure(const kvd_results *r, const char *name, const char *trace, kvd_values *out,
                        kvd_err *err)
{
    kvd_serving_entries all;
    question q;
    if (!parse(name, &q))
        return kvd_fail(err, "unknown measure '%s'", name);
    snprintf(q.trace, sizeof q.trace, " of %.24s", trace);
    if (kvd_serving_collect(r, &all, err))
        return -1;
    int status = 0;
    for (size_t i = 0; !status && i < all.n; i++)
        if (is_of(&all.item[i], "max-rate", q.b, q.trace))
            status = (strcmp(q.what, "rate") ? of_times : of_rates)(&all, &q, &all.item[i], out, err);
    kvd_serving_entries_release(&all);
    return status;
}
