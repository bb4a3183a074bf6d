/* Derives verdicts on the papers' claims from measured values. A claim with a published number is
 * "reproduced", "trend holds" or "not reproduced"; another claim "holds" or "does not hold". A
 * verdict in doubt is "cannot tell". */
#include "report/measures/ledger.h"

#include <math.h>
#include <string.h>

#include "common/args.h"

const char *const kvd_verdict_name[KVD_N_VERDICTS] = {
    "reproduced",     "holds",         "trend holds", "cannot tell",
    "not reproduced", "does not hold", "not measured"};

int kvd_verdict_colour(kvd_verdict v)
{
    static const int colour[KVD_N_VERDICTS] = {0, 0, 1, 1, 2, 2, 3};
    return colour[v];
}

/* Answer to whether a value passes a test. For several values, the smallest answer counts. */
typedef enum { NO, UNSURE, YES } answer;

static const char loads[] = "loads-";

static bool of_loads(const char *test)
{
    return strncmp(test, loads, sizeof loads - 1) == 0;
}

/* Returns 1 if a claim says that values are larger than by chance ("above-null"), -1 if smaller
 * ("below-null"), and 0 for any other claim. */
static int of_null(const char *test)
{
    const char *const plain = of_loads(test) ? test + sizeof loads - 1 : test;
    return !strcmp(plain, "above-null") - !strcmp(plain, "below-null");
}

/* Parses the number with which a test of a paper's claim compares a measured value, such as "0.95".
 * "low" and "high" mean the ends of the range that the paper prints. */
static int limit_of(const char *text, const kvd_verdict_rule *r, double *limit, kvd_err *err)
{
    bool low = strcmp(text, "low") == 0, high = strcmp(text, "high") == 0;
    if (low || high) {
        *limit = low ? r->low : r->high;
        return isnan(*limit) ? kvd_fail(err, "limit '%s' without a published number", text) : 0;
    }
    return kvd_arg_double("limit", text, -1e300, 1e300, limit, err);
}

/* Sets *lo and *hi to the range of measured values for which a paper's claim holds. The tests
 * "above-null" and "below-null" compare with the values expected by chance. */
static int range_of(const char *test, const char *limit, const kvd_verdict_rule *r,
                    const kvd_measured *v, double *lo, double *hi, kvd_err *err)
{
    const char *const plain = of_loads(test) ? test + sizeof loads - 1 : test;
    const int side = of_null(test);
    double l;
    *lo = -INFINITY;
    *hi = INFINITY;
    if (side > 0)
        *lo = v->n ? nextafter(v->value[0].null_hi, INFINITY) : (double)NAN;
    if (side < 0)
        *hi = v->n ? nextafter(v->value[0].null_lo, -INFINITY) : (double)NAN;
    if (side)
        return 0;
    if (strcmp(plain, "at-most") == 0)
        return limit_of(limit, r, hi, err);
    if (strcmp(plain, "at-least") == 0)
        return limit_of(limit, r, lo, err);
    if (strcmp(test, "within") == 0) {
        if (limit_of(limit, r, &l, err))
            return -1;
        if (isnan(r->low) || isnan(r->high))
            return kvd_fail(err, "test 'within' without a published range");
        *lo = r->low - l;
        *hi = r->high + l;
        return 0;
    }
    if (strcmp(test, "between") == 0) {
        char first[32];
        const char *colon = strchr(limit, ':');
        if (!colon || (size_t)(colon - limit) >= sizeof first)
            return kvd_fail(err, "limit '%s' of test 'between' is not A:B", limit);
        memcpy(first, limit, (size_t)(colon - limit));
        first[colon - limit] = '\0';
        return kvd_status(limit_of(first, r, lo, err) || limit_of(colon + 1, r, hi, err));
    }
    return kvd_fail(err, "unknown test '%s'", test);
}

static double low_end(const kvd_measured_value *v)
{
    return isnan(v->lo) ? v->value : v->lo;
}

static double high_end(const kvd_measured_value *v)
{
    return isnan(v->hi) ? v->value : v->hi;
}

static answer in_range(const kvd_measured_value *v, double lo, double hi)
{
    const double a = low_end(v), b = high_end(v);
    return b < lo || a > hi ? NO : a >= lo && b <= hi && !v->grows ? YES : UNSURE;
}

static answer beyond_null(const kvd_measured_value *v, bool above)
{
    if (isnan(v->null_lo) || isnan(v->null_hi))
        return UNSURE;
    const bool over = low_end(v) > v->null_hi, under = high_end(v) < v->null_lo;
    if (above ? under : over)
        return NO;
    return (above ? over : under) && !v->grows ? YES : UNSURE;
}

static const double least_load = 0.1;

/* Returns the fraction of the straight line from value a to value b that is between lo and hi. */
static double part_between(double a, double b, double lo, double hi)
{
    if (!(a < b) && !(b < a))
        return a >= lo && a <= hi;
    const double x = (lo - a) / (b - a), y = (hi - a) / (b - a);
    const double from = fmax(0, fmin(x, y)), to = fmin(1, fmax(x, y));
    return to > from ? to - from : 0;
}

/* fractions, 0 to 1, of the tested range of request rates in which a paper's claim holds (`passed`)
 * and does not hold (`failed`) */
typedef struct {
    double passed, failed;
} held_loads;

/* Divides the request rates into rates at which a measured value is between lo and hi, and rates at
 * which it is not. Returns their fractions; skips rates at which the queue of requests grows. */
static held_loads held_at(const kvd_measured_value *v, size_t n, double lo, double hi)
{
    held_loads held = {0, 0};
    for (size_t i = 0; i + 1 < n; i++) {
        const double from = fmax(v[i].load, least_load), to = fmin(v[i + 1].load, 1),
                     wide = v[i + 1].load - v[i].load;
        if (!(to > from) || v[i].grows || v[i + 1].grows || v[i + 1].gap)
            continue;
        const double slope = (v[i + 1].value - v[i].value) / wide,
                     part = part_between(v[i].value + slope * (from - v[i].load),
                                         v[i].value + slope * (to - v[i].load), lo, hi);
        held.passed += part * (to - from) / (1 - least_load);
        held.failed += (1 - part) * (to - from) / (1 - least_load);
    }
    return held;
}

double kvd_share_of_loads(const kvd_measured_value *v, size_t n, double lo, double hi)
{
    return fmin(1, held_at(v, n, lo, hi).passed);
}

static size_t end_of_curve(const kvd_measured *v, size_t i)
{
    size_t end = i + 1;
    while (end < v->n && v->value[end].curve == v->value[i].curve)
        end++;
    return end;
}

/* A test passes "at all request rates" if it passes at this fraction of them. */
static const double all_loads = 0.99;

/* Answers whether the values measured at all request rates are between lo and hi. Answers UNSURE if
 * rates are missing or if the queue of requests grows. */
static answer curve_at_loads(const kvd_measured_value *v, size_t n, double lo, double hi)
{
    const held_loads held = held_at(v, n, lo, hi);
    bool grows = false;
    for (size_t i = 0; i < n; i++)
        grows = grows || v[i].grows;
    if (held.failed > 1 - all_loads || (n == 1 && !grows && in_range(v, lo, hi) == NO))
        return NO;
    return held.passed > all_loads && !grows ? YES : UNSURE;
}

static answer at_loads(const kvd_measured *v, double lo, double hi)
{
    answer all = v->n ? YES : NO;
    for (size_t i = 0; i < v->n; i = end_of_curve(v, i)) {
        const answer one = curve_at_loads(v->value + i, end_of_curve(v, i) - i, lo, hi);
        all = one < all ? one : all;
    }
    return all;
}

/* For each curve of *v, computes in which fraction of the range of request rates its value is
 * between lo and hi. *least, *most: smallest and largest of these fractions. Returns the number of
 * curves. */
static size_t shares(const kvd_measured *v, double lo, double hi, double *least, double *most)
{
    size_t n = 0;
    *least = INFINITY;
    *most = -INFINITY;
    for (size_t i = 0; i < v->n; i = end_of_curve(v, i), n++) {
        const double x = kvd_share_of_loads(v->value + i, end_of_curve(v, i) - i, lo, hi);
        *least = fmin(*least, x);
        *most = fmax(*most, x);
    }
    return n;
}

size_t kvd_verdict_loads(const kvd_verdict_rule *rule, const kvd_measured *v, double *least,
                         double *most)
{
    double lo, hi;
    kvd_err unused;
    *least = *most = (double)NAN;
    if (!of_loads(rule->test) || v->n == 0 ||
        range_of(rule->test, rule->limit, rule, v, &lo, &hi, &unused) || isnan(lo) || isnan(hi))
        return 0;
    return shares(v, lo, hi, least, most);
}

static int answer_of(const char *test, const char *limit, const kvd_verdict_rule *r,
                     const kvd_measured *v, answer *out, kvd_err *err)
{
    double lo, hi;
    *out = NO;
    if (!*test)
        return 0;
    if (of_null(test) && !of_loads(test)) {
        *out = v->n ? YES : NO;
        for (size_t i = 0; i < v->n; i++) {
            const answer one = beyond_null(&v->value[i], of_null(test) > 0);
            *out = one < *out ? one : *out;
        }
        return 0;
    }
    if (range_of(test, limit, r, v, &lo, &hi, err))
        return -1;
    if (of_loads(test)) {
        *out = isnan(lo) || isnan(hi) ? UNSURE : at_loads(v, lo, hi);
        return 0;
    }
    *out = v->n ? YES : NO;
    for (size_t i = 0; i < v->n; i++) {
        const answer one = in_range(&v->value[i], lo, hi);
        *out = one < *out ? one : *out;
    }
    return 0;
}

int kvd_verdict_judge(const kvd_verdict_rule *rule, const kvd_measured *main,
                      const kvd_measured *trend, kvd_verdict *verdict, kvd_err *err)
{
    const bool printed = !isnan(rule->low) || !isnan(rule->high);
    answer yes, trend_yes;
    if (!printed && !of_null(rule->test))
        return kvd_fail(err,
                        "test '%s': the paper prints no number, so the test must be above-null or "
                        "below-null, or either with loads-",
                        rule->test);
    if (answer_of(rule->test, rule->limit, rule, main, &yes, err) ||
        answer_of(rule->trend_test, rule->trend_limit, rule, trend, &trend_yes, err))
        return -1;
    if (main->n == 0)
        *verdict = KVD_NOT_MEASURED;
    else if (!printed)
        *verdict = yes == YES ? KVD_HOLDS : yes == NO ? KVD_DOES_NOT_HOLD : KVD_CANNOT_TELL;
    else
        *verdict = yes == YES         ? KVD_REPRODUCED
                   : trend_yes == YES ? KVD_TREND_HOLDS
                   : yes == UNSURE    ? KVD_CANNOT_TELL
                                      : KVD_NOT_REPRODUCED;
    return 0;
}
