#include "common/options.h"

#include <assert.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/blas.h"
#include "common/run.h"
#include "common/utf8.h"

const char *const kvd_device_words[4] = {"auto", "cpu", "cuda", NULL};
const char *const kvd_dtype_words[4] = {"f32", "f16", "bf16", NULL};
const char *const kvd_compute_words[4] = {"f32", "", "bf16", NULL};
const char *const kvd_switch_words[3] = {"off", "on", NULL};

enum { MOST_OPTIONS = 128, LABEL = 64 };

/* values given by the user: value[i] is the text of option i, or NULL */
typedef struct {
    const kvd_program *program;
    char *config;
    const char *value[MOST_OPTIONS];
    bool early; /* parse only options marked `early` */
} reader;

static const kvd_program *current;

static void print_help(void);
static void print_version(void);
static const kvd_option builtin[] = {
    {"help", 'h', KVD_OPT_PRINT, .print = print_help, .help = "Print this text"},
    {"version", 'V', KVD_OPT_PRINT, .print = print_version,
     .help = "Print the version and the git revision"},
    {0}};

static bool at_end(const kvd_option *o)
{
    return !o->name && !o->help;
}

/* Writes the name of an option as the user types it, such as "--tokens" or "MODEL". */
static const char *label_of(const kvd_option *o, char text[LABEL])
{
    (void)snprintf(text, LABEL, "%s%s", o->positional ? "" : "--", o->name);
    return text;
}

static size_t edits(const char *a, const char *b)
{
    size_t row[LABEL], n = strlen(b);
    if (n >= LABEL)
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            const size_t other = (row[j] < row[j + 1] ? row[j] : row[j + 1]) + 1,
                         same = diagonal + (a[i] != b[j]);
            diagonal = row[j + 1];
            row[j + 1] = same < other ? same : other;
        }
    }
    return row[n];
}

void kvd_option_nearest(const char *text, const char *candidate, const char **nearest,
                        size_t *distance)
{
    const size_t length = strlen(text);
    size_t n = edits(text, candidate);
    if (length > 2 && n > 1 && strstr(candidate, text))
        /* A text that is a part of the option's name, such as rate in request-rate, gets edit
         * distance 1. */
        n = 1;
    if (n <= (length < 4 ? 1 : (length + 2) / 3) && (!*nearest || n < *distance)) {
        *nearest = candidate;
        *distance = n;
    }
}

static size_t count_words(const kvd_option *o)
{
    size_t n = 0;
    while (!(o->type == KVD_OPT_WORDS && n == o->size) && o->words[n])
        n++;
    return n;
}

static bool next_name(const char **list, char word[LABEL])
{
    *list += strspn(*list, " ");
    const size_t n = strcspn(*list, " ");
    assert(n < LABEL);
    memcpy(word, *list, n);
    word[n] = '\0';
    *list += n;
    return n > 0;
}

static const kvd_option *row_named(const kvd_option *rows, const char *name, size_t n)
{
    for (const kvd_option *o = rows; !at_end(o); o++)
        if (o->name && strlen(o->name) == n && !memcmp(o->name, name, n))
            return o;
    return NULL;
}

static const kvd_option *row_of(const kvd_program *p, const char *name)
{
    const kvd_option *const o = row_named(p->options, name, strlen(name));
    assert(o);
    return o;
}

/* Writes option names as alternatives, such as "--text, --ids or --random". */
static const char *alternatives(const kvd_program *p, const char *names, char *text, size_t size)
{
    char word[LABEL], label[LABEL];
    size_t used = 0;
    while (next_name(&names, word)) {
        const kvd_option *const o = row_of(p, word);
        const char *const between = !used ? "" : names[strspn(names, " ")] ? ", " : " or ";
        used += (size_t)snprintf(text + used, size - used, "%s%s", between,
                                 o->letter ? "-" : label_of(o, label));
        if (o->letter)
            used += (size_t)snprintf(text + used, size - used, "%c %s", o->letter, o->arg);
        assert(used < size);
    }
    return text;
}

static int bad_word(const char *label, const kvd_option *o, const char *text, kvd_err *err)
{
    char all[300] = "";
    const char *nearest = NULL;
    size_t distance = 0, used = 0;
    for (size_t i = 0; i < count_words(o); i++) {
        if (!*o->words[i])
            continue;
        kvd_option_nearest(text, o->words[i], &nearest, &distance);
        used +=
            (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? ", " : "", o->words[i]);
        assert(used < sizeof all);
    }
    return kvd_fail(err, "%s: '%s' is none of %s%s%s", label, text, all,
                    nearest ? "; nearest: " : "", nearest ? nearest : "");
}

static int find_word(const char *label, const kvd_option *o, const char *text, size_t *index,
                     kvd_err *err)
{
    for (*index = 0; *index < count_words(o); ++*index)
        if (*text && !strcmp(text, o->words[*index]))
            return 0;
    return bad_word(label, o, text, err);
}

static int put_words(const char *label, const kvd_option *o, const char *text, bool *field,
                     kvd_err *err)
{
    memset(field, 0, o->size);
    for (const char *at = text;; at++) {
        char word[KVD_ARG_FIELD];
        size_t index;
        const size_t n = strcspn(at, ",");
        kvd_arg_field(at, n, word);
        if (find_word(label, o, word, &index, err))
            return -1;
        if (field[index])
            return kvd_fail(err, "%s: %s is given twice", label, word);
        field[index] = true;
        at += n;
        if (!*at)
            return 0;
    }
}

static void put_integer(const kvd_option *o, void *field, size_t value)
{
    const int i = (int)value;
    const bool b = value > 0;
    assert(o->size == sizeof b || o->size == sizeof i || o->size == sizeof value);
    const void *const integer = o->size == sizeof i ? (const void *)&i : &value;
    memcpy(field, o->size == sizeof b ? &b : integer, o->size);
}

static int put_whole(const char *label, const kvd_option *o, const char *text, void *field,
                     kvd_err *err)
{
    size_t value;
    if (kvd_arg_size(label, text, (size_t)o->low, o->high > 0 ? (size_t)o->high : SIZE_MAX, &value,
                     err))
        return -1;
    put_integer(o, field, value);
    return 0;
}

static int put_number(const char *label, const kvd_option *o, const char *text, double *field,
                      kvd_err *err)
{
    double value;
    const bool any = o->high <= o->low;
    if (kvd_arg_double(label, text, any ? -HUGE_VAL : o->low, any ? HUGE_VAL : o->high, &value,
                       err))
        return -1;
    if (o->above_low && value <= o->low)
        return kvd_fail(err, "%s: '%s' is not above %g", label, text, o->low);
    if (o->below_high && value >= o->high)
        return kvd_fail(err, "%s: '%s' is not below %g", label, text, o->high);
    *field = value;
    return 0;
}

static int put_list(const char *label, const kvd_option *o, const char *text, void **list,
                    size_t *count, kvd_err *err)
{
    size_t n, *whole;
    double *number;
    if (o->type == KVD_OPT_WHOLES
            ? kvd_arg_sizes(label, text, (size_t)o->low, (size_t)o->high, &whole, &n, err)
            : kvd_arg_doubles(label, text, o->low, o->high, &number, &n, err))
        return -1;
    for (size_t i = 0; o->below_high && i < n; i++)
        if (number[i] >= o->high) {
            kvd_fail(err, "%s: %g is not below %g", label, number[i], o->high);
            free(number);
            return -1;
        }
    free(*list);
    *list = o->type == KVD_OPT_WHOLES ? (void *)whole : number;
    *count = n;
    return 0;
}

static int put_text(const char *label, const kvd_option *o, const char *text, const char **field,
                    kvd_err *err)
{
    if (text && !*text)
        return kvd_fail(err, "%s: the value is empty", label);
    if (text && o->high > 0 && strlen(text) > (size_t)o->high)
        return kvd_fail(err, "%s: '%s' has %zu bytes, at most %zu are allowed", label, text,
                        strlen(text), (size_t)o->high);
    const size_t control = text && o->high > 0 ? kvd_utf8_first_control(text) : 0;
    if (text && o->high > 0 && text[control])
        return kvd_fail(err, "%s: byte %zu is the control character %u", label, control + 1,
                        kvd_utf8_decode(text + control, &(unsigned){0}));
    *field = text;
    return 0;
}

static int put_texts(const char *label, const kvd_option *o, const char *text, const char **field,
                     size_t *count, kvd_err *err)
{
    const size_t most = o->size / sizeof *field;
    if (*count == most)
        return kvd_fail(err, "%s: more than %zu are given", label, most);
    return put_text(label, o, text, &field[(*count)++], err);
}

static int put_value(const kvd_option *o, char *config, const char *text, kvd_err *err)
{
    char label[LABEL];
    void *const field = config + o->at;
    size_t *const count = (size_t *)(void *)(config + o->count), index;
    (void)label_of(o, label);
    if (o->typed)
        *(const char **)(void *)(config + o->typed) = text;
    switch (o->type) {
    case KVD_OPT_FLAG:
        *(bool *)field = true;
        return 0;
    case KVD_OPT_WHOLE:
        return put_whole(label, o, text, field, err);
    case KVD_OPT_NUMBER:
        return put_number(label, o, text, field, err);
    case KVD_OPT_TEXT:
        return put_text(label, o, text, field, err);
    case KVD_OPT_TEXTS:
        return put_texts(label, o, text, field, count, err);
    case KVD_OPT_WORD:
        if (find_word(label, o, text, &index, err))
            return -1;
        put_integer(o, field, index);
        return 0;
    case KVD_OPT_WORDS:
        return put_words(label, o, text, field, err);
    case KVD_OPT_WHOLES:
    case KVD_OPT_NUMBERS:
        return put_list(label, o, text, field, count, err);
    case KVD_OPT_CALL:
        return o->call(config, text, err);
    default:
        return 0;
    }
}

static bool takes_value(const kvd_option *o)
{
    return o->type != KVD_OPT_FLAG && o->type != KVD_OPT_PRINT;
}

static int take(reader *r, const kvd_option *o, const char *text, kvd_err *err)
{
    char label[LABEL];
    if (o->early != r->early)
        return 0;
    if (o->type == KVD_OPT_PRINT) {
        o->print();
        exit(kvd_run_exit(r->program->name, 0, err));
    }
    const char **const value = &r->value[o - r->program->options];
    const bool again = o->type == KVD_OPT_WHOLE || o->type == KVD_OPT_NUMBER ||
                       o->type == KVD_OPT_WORD || o->type == KVD_OPT_TEXTS || o->repeatable;
    if (*value && takes_value(o) && !again)
        return kvd_fail(err, "%s is given twice, '%s' and '%s'", label_of(o, label), *value,
                        text ? text : "");
    *value = text ? text : "";
    if (o->given)
        *(bool *)(void *)(r->config + o->given) = true;
    return put_value(o, r->config, text, err);
}

static int take_positional(reader *r, const char *text, kvd_err *err)
{
    for (const kvd_option *o = r->program->options; !at_end(o); o++)
        if (o->positional && (o->type == KVD_OPT_TEXTS || !r->value[o - r->program->options]))
            return take(r, o, text, err);
    return kvd_fail(err, "argument '%s' is one too many", text);
}

static int unknown(const kvd_program *p, const char *text, size_t n, kvd_err *err)
{
    char word[LABEL], moved[LABEL];
    const char *nearest = NULL;
    size_t distance = 0;
    (void)snprintf(word, sizeof word, "%.*s", (int)n, text);
    for (const char *list = p->moved; n > 1 && list && next_name(&list, moved);)
        if (!strcmp(moved, word))
            return kvd_fail(err, "%s has no option '--%s': %s has it; see %s --help", p->name, word,
                            p->moved_to, p->moved_to);
    for (const kvd_option *o = p->options; n > 1 && !at_end(o); o++)
        if (o->name && !o->positional)
            kvd_option_nearest(word, o->name, &nearest, &distance);
    return kvd_fail(err, "unknown option '%s%s'%s%s; see %s --help", n > 1 ? "--" : "-", word,
                    nearest ? ", nearest: --" : "", nearest ? nearest : "", p->name);
}

static const char *next_value(const reader *r, const kvd_option *o, int *i, int argc, char **argv,
                              kvd_err *err)
{
    char label[LABEL];
    (void)label_of(o, label);
    if (*i + 1 >= argc) {
        kvd_fail(err, "%s needs a value; see %s --help", label, r->program->name);
        return NULL;
    }
    const char *const text = argv[++*i];
    if (!strncmp(text, "--", 2) && row_named(r->program->options, text + 2, strlen(text + 2))) {
        kvd_fail(err, "%s needs a value, and '%s' is an option", label, text);
        return NULL;
    }
    return text;
}

static int read_long(reader *r, int *i, int argc, char **argv, kvd_err *err)
{
    char label[LABEL];
    const char *const name = argv[*i] + 2, *const equals = strchr(name, '='), *text = NULL;
    const size_t n = equals ? (size_t)(equals - name) : strlen(name);
    const kvd_option *o = row_named(r->program->options, name, n);
    if (!o || o->positional)
        o = row_named(builtin, name, n);
    if (!o)
        return unknown(r->program, name, n, err);
    if (equals && !takes_value(o))
        return kvd_fail(err, "%s takes no value", label_of(o, label));
    if (equals)
        text = equals + 1;
    else if (takes_value(o) && !o->optional && !(text = next_value(r, o, i, argc, argv, err)))
        return -1;
    return take(r, o, text, err);
}

static const kvd_option *row_with(const kvd_option *rows, char letter)
{
    for (const kvd_option *o = rows; !at_end(o); o++)
        if (o->letter && o->letter == letter)
            return o;
    return NULL;
}

/* Parses one-letter options: -q, -qV, -oFILE or -o FILE. */
static int read_letters(reader *r, int *i, int argc, char **argv, kvd_err *err)
{
    for (const char *at = argv[*i] + 1; *at; at++) {
        const kvd_option *o = row_with(r->program->options, *at);
        o = o ? o : row_with(builtin, *at);
        if (!o)
            return unknown(r->program, at, 1, err);
        if (takes_value(o)) {
            const char *const text = at[1] ? at + 1 : next_value(r, o, i, argc, argv, err);
            return text ? take(r, o, text, err) : -1;
        }
        if (take(r, o, NULL, err))
            return -1;
    }
    return 0;
}

static bool is_given(const reader *r, const char *name)
{
    return r->value[row_of(r->program, name) - r->program->options] != NULL;
}

static bool any_given(const reader *r, const char *names)
{
    char word[LABEL];
    bool found = false;
    while (next_name(&names, word))
        found |= is_given(r, word);
    return found;
}

static int check_together(const reader *r, kvd_err *err)
{
    const kvd_program *const p = r->program;
    char label[LABEL], word[LABEL], all[400];
    for (int i = 0; i < KVD_OPTION_ANY_OF && p->any_of[i]; i++)
        if (!any_given(r, p->any_of[i]))
            return kvd_fail(err, "no %s given; see %s --help",
                            alternatives(p, p->any_of[i], all, sizeof all), p->name);
    for (const kvd_option *o = p->options; !at_end(o); o++) {
        if (!o->name || !r->value[o - p->options])
            continue;
        if (o->requires && !any_given(r, o->requires) && o->positional)
            return kvd_fail(err, "argument '%s' is one too many, or %s is missing",
                            r->value[o - p->options],
                            alternatives(p, o->requires, all, sizeof all));
        if (o->requires && !any_given(r, o->requires))
            return kvd_fail(err, "%s requires %s", label_of(o, label),
                            alternatives(p, o->requires, all, sizeof all));
        for (const char *names = o->excludes ? o->excludes : ""; next_name(&names, word);)
            if (is_given(r, word))
                return kvd_fail(err, "%s cannot be used with %s", label_of(o, label),
                                label_of(row_of(p, word), all));
    }
    return 0;
}

static int set_defaults(const reader *r, kvd_err *err)
{
    for (const kvd_option *o = r->program->options; !at_end(o); o++) {
        assert(o - r->program->options < MOST_OPTIONS);
        if (o->type == KVD_OPT_NUMBER)
            *(double *)(void *)(r->config + o->at) = NAN;
        if (o->initial && put_value(o, r->config, o->initial, err))
            return -1;
    }
    return 0;
}

static int read_all(reader *r, bool early, int argc, char **argv, kvd_err *err)
{
    bool named = true;
    r->early = early;
    for (int i = 1; i < argc; i++) {
        const char *const text = argv[i];
        if (named && !strcmp(text, "--"))
            named = false;
        else if (named && !strncmp(text, "--", 2)   ? read_long(r, &i, argc, argv, err)
                 : named && *text == '-' && text[1] ? read_letters(r, &i, argc, argv, err)
                                                    : take_positional(r, text, err))
            return -1;
    }
    return 0;
}

int kvd_options_read(const kvd_program *p, int argc, char **argv, void *config, kvd_err *err)
{
    reader r = {.program = p, .config = config};
    current = p;
    if (set_defaults(&r, err) || read_all(&r, true, argc, argv, err) ||
        read_all(&r, false, argc, argv, err) || check_together(&r, err))
        return -1;
    return p->check ? p->check(config, err) : 0;
}

/* Opens /dev/null for closed standard streams, so that no other file takes their numbers. */
static void fill_standard_streams(void)
{
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
            exit(1);
}

void kvd_options_parse(const kvd_program *p, int argc, char **argv, void *config)
{
    kvd_err err = {""};
    fill_standard_streams();
    kvd_blas_choose_core(argv);
    for (int i = 1; i < argc; i++) {
        const size_t length = strlen(argv[i]), bad = kvd_utf8_first_bad(argv[i], length);
        if (bad < length) {
            fprintf(
                stderr,
                "%s: argument %d is not valid UTF-8 at byte %zu, and results record it as text\n",
                p->name, i, bad);
            exit(2);
        }
    }
    if (kvd_options_read(p, argc, argv, config, &err)) {
        fprintf(stderr, "%s: %s\n", p->name, err.msg);
        exit(2);
    }
}

void kvd_options_release(const kvd_program *p, void *config)
{
    for (const kvd_option *o = p->options; !at_end(o); o++)
        if (o->type == KVD_OPT_WHOLES || o->type == KVD_OPT_NUMBERS) {
            void **const list = (void **)(void *)((char *)config + o->at);
            free(*list);
            *list = NULL;
        }
}

enum { HELP_COLUMN = 26, RIGHT = 80 };

/* Prints a text with line breaks. New lines begin at `column`; `at` is the current column. */
static void print_wrapped(const char *text, int column, int at)
{
    while (*text) {
        const int n = (int)strcspn(text, " \n");
        if (at + 1 + n > RIGHT && at > column) {
            printf("\n%*s", column, "");
            at = column;
        }
        const bool space = at > column;
        printf("%s%.*s", space ? " " : "", n, text);
        at += n + space;
        text += n;
        if (*text == '\n') {
            printf("\n%*s", text[1] == '\n' ? 0 : column, "");
            at = column;
        }
        text += *text != '\0';
    }
    putchar('\n');
}

static void join_words(const kvd_option *o, const char *between, FILE *f)
{
    const char *before = "";
    for (size_t i = 0; i < count_words(o); i++)
        if (*o->words[i]) {
            fprintf(f, "%s%s", before, o->words[i]);
            before = between;
        }
}

static void put_arg(const kvd_option *o, FILE *f)
{
    static const char *const usual[] = {
        [KVD_OPT_WHOLE] = "N",        [KVD_OPT_NUMBER] = "X",
        [KVD_OPT_TEXT] = "TEXT",      [KVD_OPT_TEXTS] = "TEXT",
        [KVD_OPT_WHOLES] = "N,N,...", [KVD_OPT_NUMBERS] = "X,X,...|FIRST:LAST:STEP",
        [KVD_OPT_CALL] = "TEXT"};
    fputs(o->optional ? "[=" : "=", f);
    if (o->arg)
        fputs(o->arg, f);
    else if (o->type == KVD_OPT_WORD || o->type == KVD_OPT_WORDS)
        join_words(o, o->type == KVD_OPT_WORD ? "|" : ",", f);
    else
        fputs(usual[o->type], f);
    fputs(o->optional ? "]" : "", f);
}

static FILE *next_fact(FILE *f, bool *open)
{
    fputs(*open ? "; " : " (", f);
    *open = true;
    return f;
}

/* Writes an option's range, default and unit, such as "(2 .. 8; default 4 bits)". */
static void put_facts(const kvd_option *o, FILE *f)
{
    char all[400];
    bool open = false;
    const bool number = o->type != KVD_OPT_TEXT && o->high > o->low;
    if (number && o->high <= 4096 && (o->above_low || o->below_high))
        fprintf(next_fact(f, &open), "%g <%s X <%s %g", o->low, o->above_low ? "" : "=",
                o->below_high ? "" : "=", o->high);
    else if (number && o->high <= 4096)
        fprintf(next_fact(f, &open), "%g .. %g", o->low, o->high);
    else if (o->above_low)
        fprintf(next_fact(f, &open), "above %g", o->low);
    if (o->type == KVD_OPT_WORDS && o->arg) {
        fputs("comma list of ", next_fact(f, &open));
        join_words(o, ", ", f);
    }
    if (o->initial || o->otherwise)
        fprintf(next_fact(f, &open), "default%s %s%s%s", o->initial ? "" : ":",
                o->initial ? o->initial : o->otherwise, o->unit ? " " : "", o->unit ? o->unit : "");
    if ((o->type == KVD_OPT_TEXTS || o->repeatable) && !o->positional)
        fputs("may be repeated", next_fact(f, &open));
    if (o->requires && !o->positional)
        fprintf(next_fact(f, &open), "requires %s",
                alternatives(current, o->requires, all, sizeof all));
    if (o->excludes)
        fprintf(next_fact(f, &open), "not with %s",
                alternatives(current, o->excludes, all, sizeof all));
    fputs(open ? ")" : "", f);
}

static void print_row(const kvd_option *o)
{
    char *head = NULL, *text = NULL;
    size_t n;
    FILE *const h = open_memstream(&head, &n), *const t = open_memstream(&text, &n);
    if (!h || !t)
        exit(1);
    if (o->letter)
        fprintf(h, "  -%c, --%s", o->letter, o->name);
    else
        fprintf(h, "%s%s", o->positional ? "  " : "      --", o->name);
    if (takes_value(o) && !o->positional)
        put_arg(o, h);
    fputs(o->help, t);
    put_facts(o, t);
    if (fclose(h) || fclose(t))
        exit(1);
    const int length = (int)strlen(head);
    printf("%s%*s", head, length < HELP_COLUMN - 1 ? HELP_COLUMN - length : 0, "");
    if (length >= HELP_COLUMN - 1)
        printf("\n%*s", HELP_COLUMN, "");
    print_wrapped(text, HELP_COLUMN, HELP_COLUMN);
    free(head);
    free(text);
}

static void print_help(void)
{
    const kvd_program *const p = current;
    for (int i = 0; i < 4 && p->usage[i]; i++)
        printf("%s %s %s\n", i ? "   or:" : "Usage:", p->name, p->usage[i]);
    putchar('\n');
    print_wrapped(p->summary, 0, 0);
    for (const kvd_option *o = p->options; !at_end(o); o++)
        if (o->type == KVD_OPT_GROUP)
            printf("\n%s:\n", o->help);
        else if (o->help)
            print_row(o);
    for (const kvd_option *o = builtin; !at_end(o); o++)
        print_row(o);
    if (p->examples[0])
        printf("\nExample%s:\n", p->examples[1] ? "s" : "");
    for (int i = 0; i < KVD_OPTION_EXAMPLES && p->examples[i]; i++)
        printf("  %s\n", p->examples[i]);
    if (p->notes) {
        putchar('\n');
        print_wrapped(p->notes, 0, 0);
    }
}

static void print_version(void)
{
    printf("%s %s (%s)\n", current->name, kvd_version(), kvd_git_revision());
}
