#include "evaluate/target.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
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

/* Returns the last of the first n samples in which compression had an effect. */
static kvd_target_end last_of(const kvd_target_sample *s, size_t n)
{
    while (n && s[n - 1].inert)
        n--;
    return n ? end_at(&s[n - 1]) : nowhere;
}

void kvd_target_read(const kvd_target_sample *s, size_t n, double target, kvd_target *out)
{
    assert(n > 0);
    int intervals = 1;
    for (size_t i = 0; i < n; i++)
        intervals &= !isnan(s[i].share.lo) && !isnan(s[i].share.hi);
    const size_t miss = first_miss(s, n, VALUE, target);
    out->target = target;
    out->kept = last_of(s, miss);
    out->misses = miss < n ? end_at(&s[miss]) : nowhere;
    out->last_kept = out->kept;
    out->monotone = 1;
    for (size_t i = miss; i < n; i++)
        if (!s[i].inert && keeps(&s[i], VALUE, target)) {
            out->last_kept = end_at(&s[i]);
            out->monotone = 0;
        }
    out->surely_kept = out->surely_lost = nowhere;
    if (intervals) {
        const size_t lo = first_miss(s, n, LOWER, target), hi = first_miss(s, n, UPPER, target);
        out->surely_kept = last_of(s, lo);
        out->surely_lost = hi < n ? end_at(&s[hi]) : nowhere;
    }
    out->n_points = 0;
    for (size_t i = 0; i < n; i++)
        out->n_points += !s[i].inert;
    out->reads = false;
}

typedef struct {
    const kvd_target_axis *axis;
    kvd_target_sample sample[MAX_SAMPLES];
    size_t n;
    /* [MAX_SAMPLES][n_texts] score of each evaluated compression on each text, as a share of the
     * uncompressed model's score. NULL if no results for single texts are wanted. */
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

/* Inserts an evaluated compression at index `at` of s->sample. Also moves its scores on single
 * texts from index s->n of s->of_text to index `at`. */
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

/* Evaluates the method at the possible compression strength nearest to `wanted`, unless that was
 * done before. *x receives this strength. */
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
    if (found.inert) {
        found.saving = 0;
        found.share = (kvd_interval){1, 1, 1};
        for (size_t t = 0; s->of_text && t < a->n_texts; t++)
            texts_at(s, s->n)[t] = found.share;
    }
    if (isnan(found.share.value))
        return kvd_fail(
            err,
            "the uncompressed model predicts no token right: there is no accuracy to keep a share of");
    found.x = *x;
    insert(s, at, &found);
    return 0;
}

/* Finds by bisection the compression at which the score falls below the target. `b` selects the
 * score itself or an end of its confidence interval. */
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

/* Evaluates two compressions near the point where the score falls below the target, because the
 * score may have only a local dip there. */
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
    search s = {.axis = axis, .sample = {{.share = {1, 1, 1}}}, .n = axis->whole};
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

/* Returns the removed fraction p of dimensions at which the score of method `c` falls below the
 * target in one bootstrap resample. times[s]: how many times the resample has sequence s. */
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
    put(xa, pa, &out->a);
    put(xb, pb, &out->b);
    put(xd, pb - pa, &out->difference);
    free(room);
    return 0;
}

/* search for the strongest compression by one method, and the function that evaluates a
 * compression */
typedef struct {
    const kvd_method_target *t;
    const kvd_point *point;
    kvd_target_evaluate *evaluate;
    void *ctx;
} method_axis;

/* a compression method at one value of the parameter that option --target varies */
typedef struct {
    kvd_method method;
    kvd_point point;
    bool owned;
} setting;

static int set_at(const method_axis *a, double wanted, setting *s, kvd_err *err)
{
    const kvd_method *const base = a->t->method;
    const kvd_method_tradeoff *const rate = &a->t->rate;
    s->owned = false;
    if (!rate->p) {
        kvd_method_tradeoff_set(base, rate, kvd_method_tradeoff_at(rate, wanted), &s->method);
        s->point = *a->point;
        s->point.method = &s->method;
        return 0;
    }
    kvd_method_tradeoff_set(base, rate, wanted, &s->method);
    /* Restores the user's p (removed fraction of dimensions) and r (removed share of singular
     * values). */
    if (!*rate->with) {
        s->method.p = base->p;
        s->method.r = base->r;
    }
    s->owned = true;
    return kvd_point_at(&s->method, wanted, &s->point, err);
}

static void drop(setting *s)
{
    if (s->owned)
        kvd_point_release(&s->point);
}

static int place(void *ctx, double wanted, double *x, kvd_err *err)
{
    const method_axis *const a = ctx;
    const kvd_method_tradeoff *const rate = &a->t->rate;
    setting s;
    if (!rate->p) {
        *x = kvd_method_tradeoff_share(rate, kvd_method_tradeoff_at(rate, wanted));
        return 0;
    }
    const int status = set_at(a, wanted, &s, err);
    *x = status ? NAN : s.point.overall_p;
    drop(&s);
    return status;
}

static int measure(void *ctx, double wanted, kvd_target_sample *out, kvd_interval *of_text,
                   kvd_err *err)
{
    const method_axis *const a = ctx;
    setting s;
    *out = (kvd_target_sample){0};
    const int status =
        set_at(a, wanted, &s, err) || a->evaluate(a->ctx, a->t, &s.point, out, of_text, err);
    if (!status)
        out->value =
            a->t->rate.p ? s.point.overall_p : kvd_method_tradeoff_value(&s.method, &a->t->rate);
    drop(&s);
    return status ? -1 : 0;
}

static int largest_p(const kvd_method_target *t, double *p, kvd_err *err)
{
    if (kvd_point_largest(t->method, p, err))
        return -1;
    /* If a second parameter varies along with p, the largest p is t->rate.least, the p of the
     * smallest cache. */
    *p = *t->rate.with && t->rate.least < *p ? t->rate.least : *p;
    return 0;
}

static int needs_point(const kvd_method_target *t, kvd_err *err)
{
    return t->rate.p ? 0
                     : kvd_fail(err, "method '%s': --target searches %s, so dims need p= or r=",
                                t->method->name, t->rate.name);
}

int kvd_target_check_value(const kvd_method *m, const char *key,
                           int (*check)(void *ctx, const kvd_point *point, kvd_err *err), void *ctx,
                           kvd_err *err)
{
    kvd_method_target t = {.method = m};
    const method_axis a = {.t = &t};
    setting s;
    double p;
    if (kvd_method_tradeoff_find(m, key, &t.rate, err) || needs_point(&t, err) ||
        largest_p(&t, &p, err))
        return -1;
    const int status = set_at(&a, p / 2, &s, err) || check(ctx, &s.point, err);
    drop(&s);
    return status ? -1 : 0;
}

int kvd_method_target_search(kvd_method_target *t, const kvd_point *point, double target,
                             size_t n_texts, kvd_target *of_text, kvd_target_evaluate *evaluate,
                             void *ctx, kvd_err *err)
{
    method_axis a = {t, point, evaluate, ctx};
    kvd_target_axis axis = {.ctx = &a,
                            .largest = 1,
                            .step = t->rate.p ? KVD_TARGET_STEP : 1.0 / 128,
                            .whole = t->whole,
                            .place = place,
                            .measure = measure,
                            .n_texts = n_texts,
                            .method = kvd_method_name(t->method)};
    if (!point && needs_point(t, err))
        return -1;
    if ((t->rate.p && largest_p(t, &axis.largest, err)) ||
        kvd_target_search(&axis, target, &t->found, of_text, err))
        return -1;
    t->found.reads = kvd_method_selects(t->method);
    for (size_t i = 0; of_text && i < n_texts; i++)
        of_text[i].reads = t->found.reads;
    return 0;
}

static bool equal(double a, double b)
{
    return isnan(a) ? isnan(b) : a <= b && a >= b;
}

bool kvd_method_same_but_key(const kvd_method *a, const kvd_method *b,
                             const kvd_method_tradeoff *rate)
{
    kvd_method x, y;
    if (strcmp(a->name, b->name) != 0)
        return false;
    kvd_method_tradeoff_set(a, rate, rate->most, &x);
    kvd_method_tradeoff_set(b, rate, rate->most, &y);
    return !strcmp(x.settings, y.settings) && x.ranks == y.ranks && equal(x.p, y.p) &&
           equal(x.r, y.r) && equal(x.p_low, y.p_low);
}

static void name_target(const kvd_method_target *t, size_t n, const kvd_method *m, char *name,
                        size_t size)
{
    int same = 1;
    const bool plain = m->ranks == KVD_WIDTH_RULE_EQ6;
    snprintf(name, size, "%s%s%s", kvd_method_name(m), plain ? "" : "-",
             plain ? "" : kvd_width_rule_name[m->ranks]);
    const size_t used = strlen(name);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(t[i].name, name)) {
            snprintf(name + used, size - used, "-%d", ++same);
            /* Restarts the loop, because the changed name may also be taken. */
            i = (size_t)-1;
        }
}

int kvd_method_target_add(kvd_method_target *t, size_t *n, const kvd_method *m, const char *key,
                          kvd_err *err)
{
    kvd_method_target *const to = &t[*n];
    *to = (kvd_method_target){.method = m};
    if (kvd_method_tradeoff_find(m, key, &to->rate, err))
        return -1;
    for (size_t i = 0; i < *n; i++)
        if (!strcmp(t[i].rate.name, to->rate.name) &&
            kvd_method_same_but_key(t[i].method, m, &to->rate))
            return 0;
    to->whole = to->rate.p && !kvd_plan_beyond_widths(&m->plan);
    name_target(t, *n, m, to->name, sizeof to->name);
    ++*n;
    return 0;
}

int kvd_target_check_methods(const kvd_method *m, const char *const *text, size_t n,
                             const char *key, kvd_err *err)
{
    size_t searched = 0;
    for (size_t i = 0; i < n; i++) {
        kvd_method_tradeoff rate;
        if (kvd_method_is_none(&m[i]))
            continue;
        searched++;
        if (kvd_method_tradeoff_find(&m[i], key, &rate, err))
            return -1;
        if (rate.p && m[i].cut != KVD_CUT_BOTH)
            return kvd_fail(err, "--target searches p of both sides, --method %s leaves one whole",
                            text[i]);
        if (rate.p && kvd_method_has_sides(&m[i]))
            return kvd_fail(
                err, "--target takes one p for both pairs, --method %s has one for each", text[i]);
    }
    return !n || searched ? 0
                          : kvd_fail(err, "--target of nothing: the uncompressed model has no key "
                                          "that trades bytes for quality");
}

static int put_end(kvd_h5 *f, const char *where, const char *suffix, bool p,
                   const kvd_target_end *e, kvd_err *err)
{
    char name[3][40];
    snprintf(name[0], sizeof name[0], "p%s", suffix);
    snprintf(name[1], sizeof name[1], "value%s", suffix);
    snprintf(name[2], sizeof name[2], "saving%s", suffix);
    return kvd_h5_put_double(f, where, name[0], p ? e->value : NAN, err) ||
           kvd_h5_put_double(f, where, name[1], e->value, err) ||
           kvd_h5_put_double(f, where, name[2], e->saving, err);
}

int kvd_method_target_write(kvd_h5 *f, const kvd_method_target *t, const char *metric, bool own,
                            kvd_err *err)
{
    char where[100];
    const kvd_method *const m = t->method;
    const kvd_target *const x = &t->found;
    const bool p = t->rate.p;
    const char *const rule = !m->dims         ? "none"
                             : m->dims->one_p ? "uniform"
                                              : kvd_width_rule_name[m->ranks];
    snprintf(where, sizeof where, "/target/%s", t->name);
    return kvd_status(kvd_h5_put_text(f, where, "method", kvd_method_name(m), err) ||
                      kvd_h5_put_text(f, where, "settings", m->settings, err) ||
                      kvd_h5_put_text(f, where, "rule", rule, err) ||
                      kvd_h5_put_text(f, where, "key", t->rate.name, err) ||
                      kvd_h5_put_text(f, where, "metric", metric, err) ||
                      kvd_h5_put_int(f, where, "own", own, err) ||
                      kvd_h5_put_double(f, where, "target", x->target, err) ||
                      put_end(f, where, "", p, &x->kept, err) ||
                      put_end(f, where, "_misses", p, &x->misses, err) ||
                      put_end(f, where, "_lo", p, &x->surely_kept, err) ||
                      put_end(f, where, "_hi", p, &x->surely_lost, err) ||
                      put_end(f, where, "_last_kept", p, &x->last_kept, err) ||
                      kvd_h5_put_int(f, where, "monotone", x->monotone, err) ||
                      kvd_h5_put_int(f, where, "n_points", (int64_t)x->n_points, err));
}
