#include "evaluate/target.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"

enum { MAX_SAMPLES = 128 };

typedef enum { VALUE, LOWER, UPPER } bound;

static const kvd_target_end nowhere = {NAN, NAN};

static int keeps(const kvd_target_sample *s, bound b, double target)
{
    return (b == VALUE ? s->share.value : b == LOWER ? s->share.lo : s->share.hi) >= target;
}

static size_t first_miss(const kvd_target_sample *s, size_t n, bound b, double target)
{
    size_t i = 0;
    while (i < n && keeps(&s[i], b, target))
        i++;
    return i;
}

static kvd_target_end end_at(const kvd_target_sample *s)
{
    return (kvd_target_end){s->value, s->saving};
}

void kvd_target_read(const kvd_target_sample *s, size_t n, double target, kvd_target *out)
{
    assert(n > 0);
    int intervals = 1;
    for (size_t i = 0; i < n; i++)
        intervals &= !isnan(s[i].share.lo) && !isnan(s[i].share.hi);
    const size_t miss = first_miss(s, n, VALUE, target);
    out->target = target;
    out->kept = miss ? end_at(&s[miss - 1]) : nowhere;
    out->misses = miss < n ? end_at(&s[miss]) : nowhere;
    out->last_kept = out->kept;
    out->monotone = 1;
    for (size_t i = miss; i < n; i++)
        if (keeps(&s[i], VALUE, target)) {
            out->last_kept = end_at(&s[i]);
            out->monotone = 0;
        }
    out->surely_kept = out->surely_lost = nowhere;
    if (intervals) {
        const size_t lo = first_miss(s, n, LOWER, target), hi = first_miss(s, n, UPPER, target);
        out->surely_kept = lo ? end_at(&s[lo - 1]) : nowhere;
        out->surely_lost = hi < n ? end_at(&s[hi]) : nowhere;
    }
    out->n_points = n;
}

typedef struct {
    const kvd_target_axis *axis;
    kvd_target_sample sample[MAX_SAMPLES];
    size_t n;
    /* [MAX_SAMPLES][n_texts] in the order of `sample`; NULL if not wanted. */
    kvd_interval *of_text;
} search;

enum { ALL_TEXTS = -1 };

static const kvd_target_sample *samples_of(const search *s, int text, kvd_target_sample *room)
{
    if (text == ALL_TEXTS)
        return s->sample;
    for (size_t i = 0; i < s->n; i++) {
        room[i] = s->sample[i];
        room[i].share = s->of_text[i * s->axis->n_texts + (size_t)text];
    }
    return room;
}

static void read_answer(const search *s, int text, double target, kvd_target *out)
{
    kvd_target_sample room[MAX_SAMPLES];
    kvd_target_read(samples_of(s, text, room), s->n, target, out);
    out->n_points -= s->axis->whole;
}

static kvd_interval *texts_at(search *s, size_t at)
{
    return s->of_text ? s->of_text + at * s->axis->n_texts : NULL;
}

/* Inserts a setting at index `at`. Its shares of single texts were written at index s->n. */
static void insert(search *s, size_t at, const kvd_target_sample *found)
{
    memmove(&s->sample[at + 1], &s->sample[at], (s->n - at) * sizeof *s->sample);
    s->sample[at] = *found;
    for (size_t t = 0; s->of_text && t < s->axis->n_texts; t++) {
        const kvd_interval share = texts_at(s, s->n)[t];
        for (size_t i = s->n; i > at; i--)
            texts_at(s, i)[t] = texts_at(s, i - 1)[t];
        texts_at(s, at)[t] = share;
    }
    s->n++;
}

/*
 * Evaluates the setting nearest to `wanted` unless it was evaluated before. Sets *x to its
 * position.
 */
static int visit(search *s, double wanted, double *x, kvd_err *err)
{
    const kvd_target_axis *const a = s->axis;
    kvd_target_sample found;
    if (a->place(a->ctx, wanted, x, err))
        return -1;
    size_t at = 0;
    while (at < s->n && s->sample[at].x < *x)
        at++;
    if (at < s->n && s->sample[at].x <= *x)
        return 0;
    if (s->n == MAX_SAMPLES)
        return kvd_fail(err, "method '%s': the search for the target did not end within %d points",
                        a->method, MAX_SAMPLES);
    if (a->measure(a->ctx, wanted, &found, texts_at(s, s->n), err))
        return -1;
    if (isnan(found.share.value))
        return kvd_fail(
            err,
            "the uncompressed model predicts no token right: there is no accuracy to keep a share of");
    found.x = *x;
    insert(s, at, &found);
    return 0;
}

/*
 * Bisects until the last setting that meets the target and the first that misses it are
 * neighbours. `b` selects the share or an end of its interval. If the setting nearest to the
 * middle is one of the two, nothing is evaluated and bisection continues in the half that can
 * hold another setting.
 */
static int bisect(search *s, int text, bound b, double target, kvd_err *err)
{
    kvd_target_sample room[MAX_SAMPLES];
    for (;;) {
        const size_t miss = first_miss(samples_of(s, text, room), s->n, b, target);
        if (miss == 0 || miss == s->n)
            return 0;
        if (fabs(s->sample[miss].saving - s->sample[miss - 1].saving) <= KVD_TARGET_STEP)
            return 0;
        const double kept = s->sample[miss - 1].x, missed = s->sample[miss].x;
        double lo = kept, hi = missed, x = kept;
        while (hi - lo > s->axis->step) {
            const double mid = lo + (hi - lo) / 2;
            if (visit(s, mid, &x, err))
                return -1;
            if (x <= kept)
                lo = mid;
            else if (x >= missed)
                hi = mid;
            else
                break;
        }
        if (!(x > kept && x < missed))
            return 0;
    }
}

/* Evaluates one setting on each side of the crossing, which shows a dip or a peak close by. */
static int look_around(search *s, double target, kvd_err *err)
{
    const double step = 2 * s->axis->step, largest = s->axis->largest;
    const size_t miss = first_miss(s->sample, s->n, VALUE, target);
    double x;
    if (miss == 0 || miss == s->n)
        return 0;
    const double kept = s->sample[miss - 1].x, missed = s->sample[miss].x;
    if (kept > step && visit(s, kept - step, &x, err))
        return -1;
    return missed + step < largest && visit(s, missed + step, &x, err) ? -1 : 0;
}

static int run_search(search *s, double target, kvd_target *out, kvd_target *of_text, kvd_err *err)
{
    const kvd_target_axis *const a = s->axis;
    double x;
    if ((!a->whole && visit(s, 0, &x, err)) || visit(s, a->largest, &x, err) ||
        bisect(s, ALL_TEXTS, VALUE, target, err) || look_around(s, target, err) ||
        bisect(s, ALL_TEXTS, VALUE, target, err))
        return -1;
    read_answer(s, ALL_TEXTS, target, out);
    if (!isnan(out->surely_kept.value) &&
        (bisect(s, ALL_TEXTS, LOWER, target, err) || bisect(s, ALL_TEXTS, UPPER, target, err)))
        return -1;
    for (size_t t = 0; of_text && t < a->n_texts; t++)
        if (bisect(s, (int)t, VALUE, target, err))
            return -1;
    read_answer(s, ALL_TEXTS, target, out);
    for (size_t t = 0; of_text && t < a->n_texts; t++)
        read_answer(s, (int)t, target, &of_text[t]);
    return 0;
}

int kvd_target_search(const kvd_target_axis *axis, double target, kvd_target *out,
                      kvd_target *of_text, kvd_err *err)
{
    search s = {.axis = axis, .sample = {{0, 0, 0, {1, 1, 1}}}, .n = axis->whole};
    if (of_text) {
        const size_t room = MAX_SAMPLES * axis->n_texts;
        if (!(s.of_text = malloc(room * sizeof *s.of_text)))
            return kvd_no_memory(err, "shares of the texts", room * sizeof *s.of_text);
        for (size_t t = 0; t < axis->n_texts; t++)
            s.of_text[t] = s.sample[0].share;
    }
    const int status = run_search(&s, target, out, of_text, err);
    free(s.of_text);
    return status;
}

enum { RESAMPLES = 2000, SERIES = 3 };

double kvd_target_crossing(const double *p, const double *share, size_t n, double target)
{
    double kept = 0, at = 1;
    for (size_t i = 0; i < n; i++) {
        if (share[i] < target)
            return at <= target ? kept : kept + (p[i] - kept) * (at - target) / (at - share[i]);
        kept = p[i];
        at = share[i];
    }
    return kept;
}

/*
 * Returns the crossing of curve `c` in a resample that counts sequence s times[s] times. share
 * [c->n] is scratch memory.
 */
static double crossing_of(const kvd_target_curve *c, const double *reference, const double *times,
                          const size_t *first, size_t n_texts, double target, double *share)
{
    for (size_t i = 0; i < c->n; i++)
        share[i] = 0;
    for (size_t t = 0; t < n_texts; t++) {
        double right = 0;
        for (size_t s = first[t]; s < first[t + 1]; s++)
            right += times[s] * reference[s];
        for (size_t i = 0; i < c->n; i++) {
            double kept = 0;
            for (size_t s = first[t]; s < first[t + 1]; s++)
                kept += times[s] * c->top1[i][s];
            share[i] += kept / right / (double)n_texts;
        }
    }
    return kvd_target_crossing(c->p, share, c->n, target);
}

static void draw(kvd_rng *r, const size_t *first, size_t n_texts, double *times)
{
    for (size_t s = 0; s < first[n_texts]; s++)
        times[s] = 0;
    for (size_t t = 0; t < n_texts; t++) {
        const size_t n = first[t + 1] - first[t];
        for (size_t i = 0; i < n; i++)
            times[first[t] + (size_t)kvd_rng_below(r, n)]++;
    }
}

static void put(const double *x, double value, kvd_interval *out)
{
    *out =
        (kvd_interval){value, kvd_quantile(x, RESAMPLES, 0.025), kvd_quantile(x, RESAMPLES, 0.975)};
}

int kvd_target_difference(const kvd_target_curve *a, const kvd_target_curve *b,
                          const double *reference, const size_t *first, size_t n_texts,
                          double target, uint64_t seed, kvd_target_difference_result *out,
                          kvd_err *err)
{
    const size_t n = first[n_texts], longest = a->n > b->n ? a->n : b->n;
    if (!a->n || !b->n)
        return kvd_fail(err, "no point of a method was evaluated: its target cannot be compared");
    for (size_t t = 0; t < n_texts; t++) {
        double right = 0;
        for (size_t s = first[t]; s < first[t + 1]; s++)
            right += reference[s];
        if (!(right > 0))
            return kvd_fail(err, "the uncompressed model predicts no token of text %zu right", t);
    }
    double *const room = malloc((n + longest + (size_t)SERIES * RESAMPLES) * sizeof *room);
    if (!room)
        return kvd_no_memory(err, "resamples of targets", (n + longest) * sizeof *room);
    double *const times = room, *const share = room + n, *const xa = share + longest,
                  *const xb = xa + RESAMPLES, *const xd = xb + RESAMPLES;
    for (size_t s = 0; s < n; s++)
        times[s] = 1;
    const double pa = crossing_of(a, reference, times, first, n_texts, target, share),
                 pb = crossing_of(b, reference, times, first, n_texts, target, share);
    kvd_rng r;
    kvd_rng_seed(&r, seed, 0);
    for (size_t k = 0; k < RESAMPLES; k++) {
        draw(&r, first, n_texts, times);
        xa[k] = crossing_of(a, reference, times, first, n_texts, target, share);
        xb[k] = crossing_of(b, reference, times, first, n_texts, target, share);
        xd[k] = xb[k] - xa[k];
    }
    /*
     * A resample in which the uncompressed model has no correct prediction gives NaN, and then
     * both interval ends are NaN.
     */
    put(xa, pa, &out->a);
    put(xb, pb, &out->b);
    put(xd, pb - pa, &out->difference);
    free(room);
    return 0;
}
