#include "serving/requests.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/files/csv.h"
#include "common/utf8.h"
#include "model/checkpoint/filemap.h"

static const size_t most_tokens = (size_t)1 << 31;

enum { ARRIVAL, INPUT, OUTPUT, FIELDS };

typedef struct {
    /* Name of each field's column in a trace. name[ARRIVAL] is NULL if the trace records input and
     * output lengths without arrivals. */
    const char *name[FIELDS];
    bool dates; /* true if arrivals are dates with times of day */
    /* true if arrival times count from the start of the trace; false if they count from the first
     * request */
    bool from_zero;
} layout;

static const layout csv_layouts[] = {
    {.name = {"TIMESTAMP", "ContextTokens", "GeneratedTokens"}, .dates = true},
    {.name = {"arrival_s", "input_tokens", "output_tokens"}, .from_zero = true},
    {.name = {NULL, "num_prefill_tokens", "num_decode_tokens"}},
};
enum { CSV_LAYOUTS = sizeof csv_layouts / sizeof *csv_layouts };
static const layout json_layout = {.name = {"timestamp", "input_length", "output_length"}};

/* a time as whole seconds and a fraction, because a single double cannot keep nanoseconds of a
 * date */
typedef struct {
    int64_t s;
    double fraction;
} moment;

typedef struct {
    kvd_requests *out;
    size_t room;
    const layout *of; /* NULL until the header has been read */
    size_t column[FIELDS], n_columns;
    moment start; /* time that counts as arrival 0 */
    bool lengths; /* true if only lengths are read */
} reader;

static int append(reader *r, moment at, size_t input, size_t output, kvd_err *err)
{
    kvd_requests *q = r->out;
    if (!q->n && !r->of->from_zero)
        r->start = at;
    const double arrival = (double)(at.s - r->start.s) + (at.fraction - r->start.fraction);
    if (q->n && arrival < q->request[q->n - 1].arrival)
        return kvd_fail(err, "%s: time falls, from %.9g s to %.9g s after the start",
                        r->of->name[ARRIVAL], q->request[q->n - 1].arrival, arrival);
    if (q->n == UINT32_MAX)
        return kvd_fail(err, "more than %u requests", UINT32_MAX);
    if (q->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 1024;
        kvd_request *more = realloc(q->request, room * sizeof *more);
        if (!more)
            return kvd_no_memory(err, "the requests", room * sizeof *more);
        q->request = more;
        r->room = room;
    }
    q->request[q->n++] =
        (kvd_request){.arrival = arrival, .input = (uint32_t)input, .output = (uint32_t)output};
    return 0;
}

static bool digits(const char **s, int n, int *value)
{
    *value = 0;
    for (int i = 0; i < n; i++, (*s)++) {
        if (**s < '0' || **s > '9')
            return false;
        *value = 10 * *value + (**s - '0');
    }
    return true;
}

static bool one_of(const char **s, const char *set)
{
    return **s && strchr(set, **s) && (*s)++;
}

/* Returns the number of days from 1970-01-01 to a date (Howard Hinnant's algorithm
 * days_from_civil). */
static int64_t days(int y, int m, int d)
{
    y -= m <= 2;
    const int era = y / 400, year = y - 400 * era;
    const int day = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
    return (int64_t)era * 146097 + 365 * year + year / 4 - year / 100 + day - 719468;
}

static bool in_calendar(int y, int m, int d)
{
    static const int most[12] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    const bool leap = (y % 4 == 0 && y % 100) || y % 400 == 0;
    return y > 0 && m >= 1 && m <= 12 && d >= 1 && d <= most[m - 1] && (m != 2 || d < 29 || leap);
}

/* Parses a time zone: "Z" or nothing for UTC, or an offset such as "+01:00". */
static bool parse_zone(const char **s, int *seconds_east)
{
    int hour = 0, minute = 0;
    *seconds_east = 0;
    const char sign = **s;
    if (one_of(s, "Z") || !sign)
        return true;
    if (!one_of(s, "+-") || !digits(s, 2, &hour) || !one_of(s, ":") || !digits(s, 2, &minute) ||
        hour > 14 || minute > 59)
        return false;
    *seconds_east = (sign == '-' ? -1 : 1) * (3600 * hour + 60 * minute);
    return true;
}

/* Parses a date with time of day, such as "2023-11-16 18:15:46.6805900". */
static int parse_date(const char *name, const char *text, moment *at, kvd_err *err)
{
    const char *s = text;
    int y, mo, d, h, mi, sec, east;
    double fraction = 0;
    bool good = digits(&s, 4, &y) && one_of(&s, "-") && digits(&s, 2, &mo) && one_of(&s, "-") &&
                digits(&s, 2, &d) && one_of(&s, " T") && digits(&s, 2, &h) && one_of(&s, ":") &&
                digits(&s, 2, &mi) && one_of(&s, ":") && digits(&s, 2, &sec);
    if (good && *s == '.') {
        const size_t n = strspn(s + 1, "0123456789");
        fraction = n ? strtod(s, NULL) : 0;
        good = n > 0;
        s += n + 1;
    }
    if (!good || !parse_zone(&s, &east) || *s || !in_calendar(y, mo, d) || h > 23 || mi > 59 ||
        sec > 59)
        return kvd_fail(err, "%s: '%s' is not a time like 2023-11-16 18:15:46.68", name, text);
    *at = (moment){.s = days(y, mo, d) * 86400 + 3600 * h + 60 * mi + sec - east,
                   .fraction = fraction};
    return 0;
}

static int find_columns(reader *r, char *const *field, size_t n, const layout *of)
{
    for (int i = 0; i < FIELDS; i++) {
        size_t found = 0;
        for (size_t j = 0; j < n; j++)
            if (of->name[i] && !strcmp(field[j], of->name[i])) {
                r->column[i] = j;
                found++;
            }
        if (found != (of->name[i] != NULL))
            return -1;
    }
    r->of = of;
    r->n_columns = n;
    return 0;
}

static int read_header(reader *r, char *const *field, size_t n, kvd_err *err)
{
    for (int i = 0; i < CSV_LAYOUTS; i++)
        if (!find_columns(r, field, n, &csv_layouts[i])) {
            if (!r->of->name[ARRIVAL] && !r->lengths)
                return kvd_fail(err, "lengths without arrivals: say when with poisson:RATE:FILE");
            return 0;
        }
    return kvd_fail(err,
                    "no header of a trace: 'TIMESTAMP,ContextTokens,GeneratedTokens' or "
                    "'arrival_s,input_tokens,output_tokens'%s, each once",
                    r->lengths ? " or 'num_prefill_tokens,num_decode_tokens'" : "");
}

static int csv_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n,
                   kvd_err *err)
{
    (void)line;
    reader *r = ctx;
    moment at = {0, 0};
    size_t input, output;
    if (kvd_csv_check_zero_bytes(field, len, n, err))
        return -1;
    if (!r->of)
        return read_header(r, field, n, err);
    if (n != r->n_columns)
        return kvd_fail(err, "%zu fields, the header has %zu", n, r->n_columns);
    if (!r->lengths) {
        const char *name = r->of->name[ARRIVAL], *text = field[r->column[ARRIVAL]];
        if (r->of->dates ? parse_date(name, text, &at, err)
                         : kvd_arg_double(name, text, 0, 1e12, &at.fraction, err))
            return -1;
    }
    if (kvd_arg_size(r->of->name[INPUT], field[r->column[INPUT]], 1, most_tokens, &input, err) ||
        kvd_arg_size(r->of->name[OUTPUT], field[r->column[OUTPUT]], 1, most_tokens, &output, err))
        return -1;
    return append(r, at, input, output, err);
}

static int json_tokens(const json_t *object, const char *name, size_t *tokens, kvd_err *err)
{
    const json_t *v = json_object_get(object, name);
    if (!json_is_integer(v))
        return kvd_fail(err, "%s: %s", name, v ? "not a whole number" : "missing");
    const json_int_t x = json_integer_value(v);
    if (x < 1 || (unsigned long long)x > most_tokens)
        return kvd_fail(err, "%s: '%lld' is not within 1 .. %zu", name, (long long)x, most_tokens);
    *tokens = (size_t)x;
    return 0;
}

/* Reads a time in milliseconds, which may have decimals. */
static int json_moment(const json_t *object, const char *name, moment *at, kvd_err *err)
{
    const json_t *v = json_object_get(object, name);
    if (!json_is_number(v))
        return kvd_fail(err, "%s: %s", name, v ? "not a number" : "missing");
    const double ms = json_number_value(v);
    if (!(ms >= 0 && ms <= 1e15))
        return kvd_fail(err, "%s: '%g' is not within 0 .. 1e15", name, ms);
    at->fraction = ms / 1000;
    return 0;
}

static int json_row(reader *r, const char *text, size_t len, kvd_err *err)
{
    json_error_t why;
    json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    moment at = {0, 0};
    size_t input, output;
    int status = -1;
    if (!object)
        return kvd_fail(err, "not JSON: %s, byte %d", why.text, why.position);
    if (!json_is_object(object))
        kvd_fail(err, "not a JSON object");
    else if ((r->lengths || !json_moment(object, r->of->name[ARRIVAL], &at, err)) &&
             !json_tokens(object, r->of->name[INPUT], &input, err) &&
             !json_tokens(object, r->of->name[OUTPUT], &output, err))
        status = append(r, at, input, output, err);
    json_decref(object);
    return status;
}

static bool is_json(const char *text, size_t len)
{
    size_t at = kvd_utf8_mark(text, len);
    while (at < len && memchr(" \t\r\n", text[at], 4))
        at++;
    return at < len && text[at] == '{';
}

static int json_lines(reader *r, const char *name, const char *text, size_t len, kvd_err *err)
{
    r->of = &json_layout;
    for (size_t at = kvd_utf8_mark(text, len), row = 1; at < len; row++) {
        const char *end = memchr(text + at, '\n', len - at);
        const size_t n = end ? (size_t)(end - (text + at)) : len - at;
        bool blank = true;
        for (size_t i = 0; i < n && blank; i++)
            blank = text[at + i] == ' ' || text[at + i] == '\t' || text[at + i] == '\r';
        if (!blank && json_row(r, text + at, n, err))
            return kvd_in(err, "'%s' row %zu", name, row);
        at += n + 1;
    }
    return 0;
}

void kvd_requests_set_name(kvd_requests *r, const char *before, const char *path)
{
    const char *const slash = strrchr(path, '/');
    const int n = snprintf(r->name, sizeof r->name, "%s%s", before, slash ? slash + 1 : path);
    if (n >= (int)sizeof r->name)
        memcpy(r->name + kvd_utf8_first_bad(r->name, sizeof r->name - 4), "...", 4);
}

static int parse(kvd_requests *out, const char *name, const char *text, size_t len, bool lengths,
                 kvd_err *err)
{
    reader r = {.out = out, .lengths = lengths};
    *out = (kvd_requests){.n = 0};
    kvd_requests_set_name(out, "", name);
    int status = is_json(text, len) ? json_lines(&r, name, text, len, err)
                                    : kvd_csv_parse(name, text, len, csv_row, &r, err);
    if (!status && !out->n)
        status = kvd_fail(err, "'%s' holds no request", name);
    if (status)
        kvd_requests_release(out);
    return status;
}

static int read_file(kvd_requests *out, const char *path, bool lengths, kvd_err *err)
{
    kvd_filemap m;
    *out = (kvd_requests){.n = 0};
    if (kvd_filemap_load(&m, path, err))
        return -1;
    const int status = parse(out, path, m.bytes, m.len, lengths, err);
    kvd_filemap_release(&m);
    return status;
}

int kvd_requests_parse(kvd_requests *r, const char *name, const char *text, size_t len,
                       kvd_err *err)
{
    return parse(r, name, text, len, false, err);
}

int kvd_requests_read(kvd_requests *r, const char *path, kvd_err *err)
{
    return read_file(r, path, false, err);
}

int kvd_requests_lengths(kvd_requests *r, const char *path, kvd_err *err)
{
    return read_file(r, path, true, err);
}

void kvd_requests_release(kvd_requests *r)
{
    free(r->request);
    *r = (kvd_requests){.n = 0};
}

void kvd_requests_faster(kvd_requests *r, double factor)
{
    for (size_t i = 0; i < r->n; i++)
        r->request[i].arrival /= factor;
}

int kvd_requests_first(kvd_requests *r, size_t n, kvd_err *err)
{
    if (n > r->n)
        return kvd_fail(err, "'%s' holds %zu requests, fewer than the %zu asked for", r->name, r->n,
                        n);
    r->n_skipped += r->n - n;
    r->n = n;
    return 0;
}

double kvd_requests_rate(const kvd_requests *r)
{
    const double time = r->n ? r->request[r->n - 1].arrival - r->request[0].arrival : 0;
    return time > 0 ? (double)(r->n - 1) / time : 0;
}
