#include "common/args.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kvd_arg_size(const char *option, const char *text, size_t lo, size_t hi, size_t *out,
                 kvd_err *err)
{
    const size_t n = strlen(text);
    if (n == 0 || strspn(text, "0123456789") != n)
        return kvd_fail(err, "%s: '%s' is not a whole number", option, text);
    errno = 0;
    const unsigned long long v = strtoull(text, NULL, 10);
    if (errno == ERANGE || v < lo || v > hi)
        return kvd_fail(err, "%s: '%s' is not within %zu .. %zu", option, text, lo, hi);
    *out = (size_t)v;
    return 0;
}

/* Prints a limit of an option's value with all its digits: 1048576, not 1.04858e+06. */
static void print_bound(double v, char text[40])
{
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, 40, "%.*g", digits, v);
        const double read = strtod(text, NULL);
        if (read <= v && read >= v)
            return;
    }
}

int kvd_arg_double(const char *option, const char *text, double lo, double hi, double *out,
                   kvd_err *err)
{
    /* Refuses what strtod would also accept: white space, hexadecimal numbers, inf and nan. */
    const size_t n = strlen(text);
    char *end = NULL;
    const double v = n && strspn(text, "0123456789+-.eE") == n ? strtod(text, &end) : 0;
    if (!end || end == text || *end)
        return kvd_fail(err, "%s: '%s' is not a number", option, text);
    if (!(v >= lo && v <= hi) || !isfinite(v)) {
        char least[40], most[40];
        print_bound(lo, least);
        print_bound(hi, most);
        return kvd_fail(err, "%s: '%s' is not within %s .. %s", option, text, least, most);
    }
    *out = v;
    return 0;
}

enum { MAX_LIST = 1000000 };

void kvd_arg_field(const char *text, size_t n, char field[KVD_ARG_FIELD])
{
    if (n < KVD_ARG_FIELD)
        (void)snprintf(field, KVD_ARG_FIELD, "%.*s", (int)n, text);
    else
        (void)snprintf(field, KVD_ARG_FIELD, "%.*s...", KVD_ARG_FIELD - 4, text);
}

static bool next_field(const char **s, char sep, char field[KVD_ARG_FIELD])
{
    if (!*s)
        return false;
    const char *end = strchr(*s, sep);
    kvd_arg_field(*s, end ? (size_t)(end - *s) : strlen(*s), field);
    *s = end ? end + 1 : NULL;
    return true;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int all_differ(const char *option, const double *x, size_t n, kvd_err *err)
{
    double *const sorted = malloc(n * sizeof *sorted);
    int rc = 0;
    if (!sorted)
        return kvd_no_memory(err, option, n * sizeof *sorted);
    memcpy(sorted, x, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    for (size_t i = 1; !rc && i < n; i++)
        if (!by_value(&sorted[i - 1], &sorted[i])) {
            char twice[40];
            print_bound(sorted[i], twice);
            rc = kvd_fail(err, "%s: %s is given twice", option, twice);
        }
    free(sorted);
    return rc;
}

static size_t count_char(const char *s, char c)
{
    size_t n = 0;
    for (; *s; s++)
        n += *s == c;
    return n;
}

/* Rounds v to 12 decimal digits, so that the list 0.1:0.5:0.1 contains exactly 0.3. */
static double typed(double v)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.12g", v);
    return strtod(text, NULL);
}

static int range(const char *option, const char *text, double lo, double hi, double **out,
                 size_t *n, kvd_err *err)
{
    char field[KVD_ARG_FIELD];
    double v[3] = {0, 0, 0};
    const char *s = text;
    for (int i = 0; i < 3; i++) {
        (void)next_field(&s, ':', field);
        if (kvd_arg_double(option, field, i < 2 ? lo : -HUGE_VAL, i < 2 ? hi : HUGE_VAL, &v[i],
                           err))
            return -1;
    }
    if (!(v[2] > 0) || v[1] < v[0])
        return kvd_fail(err, "%s: '%s' needs first <= last and step > 0", option, text);
    const double steps = floor((v[1] - v[0]) / v[2] + 0.5);
    if (!(steps < MAX_LIST))
        return kvd_fail(err, "%s: '%s' has more than %d values", option, text, MAX_LIST);
    const size_t count = (size_t)steps + 1;
    double *x = malloc(count * sizeof *x);
    if (!x)
        return kvd_no_memory(err, option, count * sizeof *x);
    for (size_t i = 0; i < count; i++) {
        x[i] = typed(v[0] + (double)i * v[2]);
        if (x[i] > hi) {
            free(x);
            return kvd_fail(err, "%s: '%s' ends above %g", option, text, hi);
        }
    }
    *out = x;
    *n = count;
    return 0;
}

int kvd_arg_doubles(const char *option, const char *text, double lo, double hi, double **out,
                    size_t *n, kvd_err *err)
{
    if (count_char(text, ':') == 2 && !strchr(text, ','))
        return range(option, text, lo, hi, out, n, err);
    const size_t count = count_char(text, ',') + 1;
    if (count > MAX_LIST)
        return kvd_fail(err, "%s: more than %d values", option, MAX_LIST);
    double *x = malloc(count * sizeof *x);
    if (!x)
        return kvd_no_memory(err, option, count * sizeof *x);
    char field[KVD_ARG_FIELD];
    const char *s = text;
    for (size_t i = 0; next_field(&s, ',', field); i++)
        if (kvd_arg_double(option, field, lo, hi, &x[i], err)) {
            free(x);
            return -1;
        }
    if (all_differ(option, x, count, err)) {
        free(x);
        return -1;
    }
    *out = x;
    *n = count;
    return 0;
}

int kvd_arg_sizes(const char *option, const char *text, size_t lo, size_t hi, size_t **out,
                  size_t *n, kvd_err *err)
{
    const size_t count = count_char(text, ',') + 1;
    if (count > MAX_LIST)
        return kvd_fail(err, "%s: more than %d values", option, MAX_LIST);
    size_t *x = malloc(count * sizeof *x);
    /* Parses whole numbers as doubles, which are exact up to 2^53. */
    double *value = malloc(count * sizeof *value);
    int rc = x && value ? 0 : kvd_no_memory(err, option, count * sizeof *x);
    char field[KVD_ARG_FIELD];
    const char *s = text;
    for (size_t i = 0; !rc && next_field(&s, ',', field); i++) {
        rc = kvd_arg_size(option, field, lo, hi, &x[i], err);
        value[i] = rc ? 0 : (double)x[i];
    }
    if (!rc)
        rc = all_differ(option, value, count, err);
    free(value);
    if (rc) {
        free(x);
        return -1;
    }
    *out = x;
    *n = count;
    return 0;
}
