#include "analysis/target.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SAMPLES = 128 };

typedef enum { VALUE, LOWER, UPPER } bound;

static int keeps(const kvd_target_sample *s, bound b, double target)
{
    return (b == VALUE ? s->share.value : b == LOWER ? s->share.lo : s->share.hi) >= target;
}

/* Index of the first sample that misses the target; n when all keep it. */
static size_t first_miss(const kvd_target_sample *s, size_t n, bound b, double target)
{
    size_t i = 0;
    while (i < n && keeps(&s[i], b, target))
        i++;
    return i;
}

void kvd_target_read(const kvd_target_sample *s, size_t n, double target, kvd_target *out)
{
    assert(n > 0 && s[0].p == 0);
    int intervals = 1;
    for (size_t i = 0; i < n; i++)
        intervals &= !isnan(s[i].share.lo) && !isnan(s[i].share.hi);
    const size_t miss = first_miss(s, n, VALUE, target);
    out->target = target;
    out->p = miss ? s[miss - 1].p : NAN;
    out->p_misses = miss < n ? s[miss].p : NAN;
    out->p_last_kept = out->p;
    out->monotone = 1;
    for (size_t i = miss; i < n; i++)
        if (keeps(&s[i], VALUE, target)) {
            out->p_last_kept = s[i].p;
            out->monotone = 0;
        }
    out->p_lo = out->p_hi = NAN;
    if (intervals) {
        const size_t lo = first_miss(s, n, LOWER, target), hi = first_miss(s, n, UPPER, target);
        out->p_lo = lo ? s[lo - 1].p : NAN;
        out->p_hi = hi < n ? s[hi].p : NAN;
    }
    out->n_points = n - 1; /* p = 0 is known without evaluating */
}

typedef struct {
    kvd_evaluator *e;
    const kvd_point_source *source;
    const kvd_method_setup *setup;
    kvd_dtype type;
    uint64_t seed;
    kvd_target_point on_point;
    void *ctx;
    kvd_target_sample sample[MAX_SAMPLES];
    size_t n;
    kvd_interval *
        of_text; /* [MAX_SAMPLES][n_texts] the shares of each text, in the order of sample; NULL: not wanted */
} search;

enum { ALL_TEXTS = -1 };

/* The samples of one text (in room [MAX_SAMPLES]), or of all. */
static const kvd_target_sample *samples_of(const search *s, int text, kvd_target_sample *room)
{
    if (text == ALL_TEXTS)
        return s->sample;
    for (size_t i = 0; i < s->n; i++)
        room[i] = (kvd_target_sample){s->sample[i].p, s->of_text[i * s->e->n_texts + (size_t)text]};
    return room;
}

static void read_answer(const search *s, int text, double target, kvd_target *out)
{
    kvd_target_sample room[MAX_SAMPLES];
    kvd_target_read(samples_of(s, text, room), s->n, target, out);
}

/* Shares of each text at one point, into row `at`. */
static int compare_texts(search *s, const kvd_choice *c, size_t at, kvd_err *err)
{
    const size_t *const first = s->e->text_first;
    for (size_t t = 0; t < s->e->n_texts; t++) {
        kvd_quality_summary one;
        if (kvd_quality_compare(c->per_sequence + first[t], s->e->reference + first[t],
                                first[t + 1] - first[t], s->seed, &one, err))
            return -1;
        s->of_text[at * s->e->n_texts + t] = one.top1_share;
    }
    return 0;
}

/* Evaluates the point at wanted p unless its widths were seen; *p is where it came to lie. */
static int visit(search *s, double wanted, double *p, kvd_err *err)
{
    kvd_point point;
    if (kvd_point_at(s->source, wanted, &point, err))
        return -1;
    int status = -1;
    kvd_choice c = {.method = kvd_method_name(s->source->method),
                    .overall_p = point.overall_p,
                    .plan = {.dims = &point.dims,
                             .dims_low = point.low.head ? &point.low : NULL,
                             .type = s->type,
                             .prompt = s->e->prompt,
                             .seed = s->seed}};
    kvd_quality_summary summary;
    *p = point.overall_p;
    size_t at = 0;
    while (at < s->n && s->sample[at].p < point.overall_p)
        at++;
    if (at < s->n && s->sample[at].p == point.overall_p) {
        status = 0;
        goto done;
    }
    if (s->n == MAX_SAMPLES) {
        kvd_fail(err, "method '%s': the search for the target did not end within %d points", c.method,
                 MAX_SAMPLES);
        goto done;
    }
    kvd_method_plan(s->source->method, &c.plan);
    if (kvd_plan_open(&c.plan, s->setup, err) || kvd_evaluate(s->e, &c, 1, 0, false, NULL, err) ||
        kvd_evaluator_compare(s->e, &c, s->seed, &summary, err))
        goto done;
    if (isnan(summary.top1_share.value)) {
        kvd_fail(err,
                 "the uncompressed model predicts no token right: there is no accuracy to keep a share of");
        goto done;
    }
    if (s->on_point(s->ctx, s->source, &point, &c, &summary, err))
        goto done;
    memmove(&s->sample[at + 1], &s->sample[at], (s->n - at) * sizeof *s->sample);
    if (s->of_text) {
        const size_t texts = s->e->n_texts;
        memmove(s->of_text + (at + 1) * texts, s->of_text + at * texts,
                (s->n - at) * texts * sizeof *s->of_text);
        if (compare_texts(s, &c, at, err))
            goto done;
    }
    s->sample[at] = (kvd_target_sample){point.overall_p, summary.top1_share};
    s->n++;
    status = 0;
done:
    kvd_plan_close(&c.plan);
    kvd_choice_release(&c);
    kvd_point_release(&point);
    return status;
}

/* Narrows the bracket of one bound. Widths are whole numbers, so a wanted p may land on an end of the
 * bracket: then nothing lies between the two, and the wanted range alone shrinks. */
static int bisect(search *s, int text, bound b, double target, kvd_err *err)
{
    kvd_target_sample room[MAX_SAMPLES];
    for (;;) {
        const size_t miss = first_miss(samples_of(s, text, room), s->n, b, target);
        if (miss == 0 || miss == s->n)
            return 0;
        const double kept = s->sample[miss - 1].p, missed = s->sample[miss].p;
        double lo = kept, hi = missed, p = kept;
        while (hi - lo > KVD_TARGET_STEP) {
            const double mid = lo + (hi - lo) / 2;
            if (visit(s, mid, &p, err))
                return -1;
            if (p <= kept)
                lo = mid;
            else if (p >= missed)
                hi = mid;
            else
                break;
        }
        if (!(p > kept && p < missed))
            return 0;
    }
}

static int run_search(search *s, double target, kvd_target *out, kvd_target *of_text, kvd_err *err)
{
    const kvd_method *const m = s->source->method;
    double largest, p;
    if (m->tokens || m->bits || m->layers ||
        m->channels) { /* what they cost is not known without dims cut either */
        s->n = 0;
        if (visit(s, 0, &p, err))
            return -1;
    }
    if (kvd_point_largest(s->source, &largest, err) || visit(s, largest, &p, err) ||
        bisect(s, ALL_TEXTS, VALUE, target, err))
        return -1;
    read_answer(s, ALL_TEXTS, target, out);
    /* Neighbours on both sides of the crossing: a dip or a bump beside it shows. */
    const double step = 2 * KVD_TARGET_STEP;
    if (out->p > step && visit(s, out->p - step, &p, err))
        return -1;
    if (out->p_misses + step < largest && visit(s, out->p_misses + step, &p, err))
        return -1;
    if (bisect(s, ALL_TEXTS, VALUE, target, err))
        return -1;
    read_answer(s, ALL_TEXTS, target, out);
    if (!isnan(out->p_lo) &&
        (bisect(s, ALL_TEXTS, LOWER, target, err) || bisect(s, ALL_TEXTS, UPPER, target, err)))
        return -1;
    for (size_t t = 0; of_text && t < s->e->n_texts; t++)
        if (bisect(s, (int)t, VALUE, target, err))
            return -1;
    read_answer(s, ALL_TEXTS, target, out);
    for (size_t t = 0; of_text && t < s->e->n_texts; t++)
        read_answer(s, (int)t, target, &of_text[t]);
    return 0;
}

int kvd_target_search(kvd_evaluator *e, const kvd_point_source *source, const kvd_method_setup *setup,
                      kvd_dtype type, double target, uint64_t seed, kvd_target_point on_point, void *ctx,
                      kvd_target *out, kvd_target *of_text, kvd_err *err)
{
    search s = {.e = e,
                .source = source,
                .setup = setup,
                .type = type,
                .seed = seed,
                .on_point = on_point,
                .ctx = ctx,
                .sample = {{0, {1, 1, 1}}},
                .n = 1};
    if (of_text) {
        const size_t room = MAX_SAMPLES * e->n_texts;
        if (!(s.of_text = malloc(room * sizeof *s.of_text)))
            return kvd_no_memory(err, "shares of the texts", room * sizeof *s.of_text);
        for (size_t t = 0; t < e->n_texts; t++)
            s.of_text[t] = s.sample[0].share;
    }
    const int status = run_search(&s, target, out, of_text, err);
    free(s.of_text);
    return status;
}
