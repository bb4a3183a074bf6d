#include "common/args.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/blas.h"
#include "common/run.h"
#include "common/utf8.h"

enum { KEY_SEED = 0x1000, KEY_THREADS, KEY_DEVICE, KEY_JSON };

static const struct argp_option options[] = {
    {"output", 'o', "FILE", 0, "Write the result to FILE, whole or not at all", 1},
    {"seed", KEY_SEED, "N", 0, "Seed of every random choice (default 1)", 2},
    {"threads", KEY_THREADS, "N", 0, "CPU threads (default: every core allowed)", 2},
    {"device", KEY_DEVICE, "auto|cpu|cuda", 0, "Where to compute (default: auto)", 2},
    {"quiet", 'q', NULL, 0, "No progress and no summary; errors are still printed", 3},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object on stdout instead of the summary", 3},
    {NULL, 0, NULL, 0, NULL, 0},
};

static int parse_device(const char *text, kvd_device *out, kvd_err *err)
{
    static const char *const names[] = {"auto", "cpu", "cuda"};
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            *out = (kvd_device)i;
            return 0;
        }
    return kvd_fail(err, "--device: '%s' is none of auto, cpu, cuda", text);
}

static error_t parse_common(int key, char *arg, struct argp_state *state)
{
    kvd_common_options *o = state->input;
    kvd_err err = {""};
    size_t n;
    switch (key) {
    case 'o':
        if (!*arg)
            kvd_fail(&err, "--output: the name is empty");
        o->output = arg;
        break;
    case KEY_SEED:
        (void)kvd_arg_u64("--seed", arg, &o->seed, &err);
        break;
    case KEY_THREADS:
        if (!kvd_arg_size("--threads", arg, 1, 4096, &n, &err))
            o->threads = (int)n;
        break;
    case KEY_DEVICE:
        (void)parse_device(arg, &o->device, &err);
        break;
    case 'q':
        o->quiet = true;
        break;
    case KEY_JSON:
        o->json = true;
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    if (err.msg[0])
        argp_error(state, "%s", err.msg);
    return 0;
}

static const struct argp common = {.options = options, .parser = parse_common};
const struct argp_child kvd_common_options_child[2] = {{&common, 0, "Common options:", 9}, {0}};

error_t kvd_args_answer(struct argp_state *state, int status, const kvd_err *err)
{
    if (status && status != ARGP_ERR_UNKNOWN)
        argp_error(state, "%s", err->msg);
    return status == ARGP_ERR_UNKNOWN ? ARGP_ERR_UNKNOWN : 0;
}

static const char *program_name;

static void print_version(FILE *stream, struct argp_state *state)
{
    (void)state;
    fprintf(stream, "%s %s\n", program_name, kvd_git_revision());
}

/*
 * A program may be started with standard streams closed. The next file opened would take their place, and
 * messages would be written into it; so they are opened the wrong way round, where every use fails as before.
 */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            exit(1);
}

void kvd_args_parse(const char *name, const struct argp *argp, int argc, char **argv, void *config)
{
    fill_standard_streams();
    kvd_blas_choose_core(argv);
    /* argp reorders its argument vector and takes its name from argv[0]; a copy
     * leaves the caller's as typed, for the recorded command line. It lives as
     * long as the process, since parsers may keep pointers into it. */
    static char **copy;
    static char *own_name;
    free(copy);
    free(own_name);
    copy = calloc((size_t)argc + 2, sizeof *copy);
    own_name = strdup(name);
    if (!copy || !own_name) {
        fprintf(stderr, "%s: cannot allocate memory for %d arguments\n", name, argc);
        exit(1);
    }
    copy[0] = own_name;
    for (int i = 1; i < argc; i++) {
        /* Files and summaries hold the command line, paths and labels as texts. */
        const size_t length = strlen(argv[i]), bad = kvd_utf8_first_bad(argv[i], length);
        if (bad < length) {
            fprintf(stderr, "%s: argument %d is not valid UTF-8 at byte %zu, and results record it as text\n",
                    name, i, bad);
            exit(2);
        }
        copy[i] = argv[i];
    }
    program_name = own_name;
    argp_err_exit_status = 2;
    argp_program_version_hook = print_version;
    argp_parse(argp, argc > 0 ? argc : 1, copy, 0, NULL, config);
}

/* ---- numbers ---- */

int kvd_arg_u64(const char *option, const char *text, uint64_t *out, kvd_err *err)
{
    const size_t n = strlen(text);
    if (n == 0 || strspn(text, "0123456789") != n)
        return kvd_fail(err, "%s: '%s' is not a whole number", option, text);
    errno = 0;
    const unsigned long long v = strtoull(text, NULL, 10);
    if (errno == ERANGE || v > UINT64_MAX)
        return kvd_fail(err, "%s: '%s' is more than %llu", option, text, (unsigned long long)UINT64_MAX);
    *out = v;
    return 0;
}

int kvd_arg_size(const char *option, const char *text, size_t lo, size_t hi, size_t *out, kvd_err *err)
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

/* A bound with as many digits as it takes: 1048576 and not 1.04858e+06, and what lies below 1 not as 1. */
static void print_bound(double v, char text[40])
{
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(text, 40, "%.*g", digits, v);
        const double read = strtod(text, NULL);
        if (read <= v && read >= v)
            return;
    }
}

int kvd_arg_double(const char *option, const char *text, double lo, double hi, double *out, kvd_err *err)
{
    /* The character set keeps out what strtod also takes: white space, hexadecimal, inf and nan. */
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

int kvd_arg_once(const char *option, const char *text, const char **slot, kvd_err *err)
{
    if (*slot)
        return kvd_fail(err, "%s is given twice, '%s' and '%s'", option, *slot, text);
    *slot = text;
    return 0;
}

int kvd_arg_add(const char *option, const char *text, const char **list, size_t *n, size_t most, kvd_err *err)
{
    if (*n == most)
        return kvd_fail(err, "%s: more than %zu are given", option, most);
    list[(*n)++] = text;
    return 0;
}

/* ---- lists ---- */

enum { MAX_LIST = 1000000 };

void kvd_arg_field(const char *text, size_t n, char field[KVD_ARG_FIELD])
{
    if (n < KVD_ARG_FIELD)
        (void)snprintf(field, KVD_ARG_FIELD, "%.*s", (int)n, text);
    else
        (void)snprintf(field, KVD_ARG_FIELD, "%.*s...", KVD_ARG_FIELD - 4, text);
}

/* Copies the field at *s up to `sep` into field[], moves *s behind the separator; false at the end. */
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

/* A value that stands twice in a list is a slip: it would be computed twice, or once where two are counted. */
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

/* first + i * step in binary prints as 0.30000000000000004; the nearest number of 12 digits is what
 * the user would have typed. */
static double typed(double v)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.12g", v);
    return strtod(text, NULL);
}

static int range(const char *option, const char *text, double lo, double hi, double **out, size_t *n,
                 kvd_err *err)
{
    char field[KVD_ARG_FIELD];
    double v[3] = {0, 0, 0};
    const char *s = text;
    for (int i = 0; i < 3; i++) {
        (void)next_field(&s, ':', field);
        if (kvd_arg_double(option, field, i < 2 ? lo : -HUGE_VAL, i < 2 ? hi : HUGE_VAL, &v[i], err))
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

int kvd_arg_doubles(const char *option, const char *text, double lo, double hi, double **out, size_t *n,
                    kvd_err *err)
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

int kvd_arg_sizes(const char *option, const char *text, size_t lo, size_t hi, size_t **out, size_t *n,
                  kvd_err *err)
{
    const size_t count = count_char(text, ',') + 1;
    if (count > MAX_LIST)
        return kvd_fail(err, "%s: more than %d values", option, MAX_LIST);
    size_t *x = malloc(count * sizeof *x);
    double *value = malloc(count * sizeof *value); /* exact: no list has numbers above 2^53 */
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

int kvd_device_cpu_only(kvd_common_options *opt, kvd_err *err)
{
    if (opt->device == KVD_DEVICE_CUDA)
        return kvd_fail(err, "--device: this program runs on the CPU only, 'cuda' is not available");
    opt->device = KVD_DEVICE_CPU;
    return 0;
}
