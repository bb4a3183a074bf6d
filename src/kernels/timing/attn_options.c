#include "kernels/timing/attn_options.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/files/csv.h"

static void base_name(const char *path, char *name, size_t size)
{
    const char *const slash = strrchr(path, '/'), *const from = slash ? slash + 1 : path;
    const char *const dot = strrchr(from, '.');
    const size_t n = dot && dot > from ? (size_t)(dot - from) : strlen(from);
    snprintf(name, size, "%.*s", (int)(n < size ? n : size - 1), from);
}

static void repeat(kvd_attn_heads *heads, int n)
{
    for (int g = n; g < heads->n_kv_heads; g++) {
        heads->d_qk[g] = heads->d_qk[g % n];
        heads->d_v[g] = heads->d_v[g % n];
    }
}

static int pair(kvd_attn_heads *heads, int g, const char *option, char *text, kvd_err *err)
{
    const size_t most = (size_t)heads->d_head;
    char *const colon = strchr(text, ':');
    size_t d_qk, d_v;
    if (colon)
        *colon = '\0';
    if (kvd_arg_size(option, text, 1, most, &d_qk, err) ||
        kvd_arg_size(option, colon ? colon + 1 : text, 1, most, &d_v, err))
        return -1;
    heads->d_qk[g] = (int)d_qk;
    heads->d_v[g] = (int)d_v;
    return 0;
}

static int parse_numbers(kvd_width_list *list, const char *option, const char *text, kvd_err *err)
{
    char *const copy = strdup(text);
    if (!copy)
        return kvd_no_memory(err, option, strlen(text));
    int n = 0, status = 0;
    for (char *s = copy, *next; !status && s; s = next) {
        next = strchr(s, ',');
        if (next)
            *next++ = '\0';
        if (n == list->heads.n_kv_heads)
            status = kvd_fail(err, "%s: '%s' has more widths than %d KV heads", option, text, n);
        else
            status = pair(&list->heads, n++, option, s, err);
    }
    free(copy);
    if (status)
        return -1;
    repeat(&list->heads, n);
    const size_t size = sizeof list->name, len = strlen(text);
    snprintf(list->name, size, "%.*s%s", (int)(len < size ? len : size - 4), text,
             len < size ? "" : "...");
    return 0;
}

typedef struct {
    kvd_attn_heads *heads;
    int n;
} reading;

static int read_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n_fields,
                    kvd_err *err)
{
    reading *const r = ctx;
    if (kvd_csv_check_zero_bytes(field, len, n_fields, err))
        return -1;
    if (n_fields != 2)
        return kvd_fail(err, "%zu columns, 2 are wanted: d_qk, d_v", n_fields);
    if (line == 1 && !strcmp(field[0], "d_qk") && !strcmp(field[1], "d_v"))
        return 0;
    if (r->n == r->heads->n_kv_heads)
        return kvd_fail(err, "more widths than %d KV heads", r->n);
    size_t d[2];
    for (int i = 0; i < 2; i++)
        if (kvd_arg_size(i ? "d_v" : "d_qk", field[i], 1, (size_t)r->heads->d_head, &d[i], err))
            return -1;
    r->heads->d_qk[r->n] = (int)d[0];
    r->heads->d_v[r->n] = (int)d[1];
    r->n++;
    return 0;
}

static bool are_numbers(const char *text)
{
    return text[0] && strspn(text, "0123456789:,") == strlen(text);
}

/* Returns NAME if an option value has the form "FILE.csv:NAME", otherwise NULL. */
static const char *list_name(const char *text)
{
    const char *const suffix = strstr(text, ".csv:");
    return suffix ? suffix + 5 : NULL;
}

char *kvd_width_list_path(const char *text)
{
    const char *const name = list_name(text);
    return are_numbers(text) ? NULL
                             : strndup(text, name ? (size_t)(name - text) - 1 : strlen(text));
}

static int parse_file(kvd_width_list *list, const char *option, const char *text, kvd_err *err)
{
    reading r = {&list->heads, 0};
    const char *const name = list_name(text);
    char *const path = kvd_width_list_path(text);
    if (!path)
        return kvd_no_memory(err, option, strlen(text));
    const int status = name ? kvd_csv_read_table(path, name, read_row, &r, err)
                            : kvd_csv_read(path, read_row, &r, err);
    free(path);
    if (status)
        return kvd_in(err, "%s", option);
    if (r.n == 0)
        return kvd_fail(err, "%s: '%s' has no widths", option, text);
    repeat(&list->heads, r.n);
    if (name)
        snprintf(list->name, sizeof list->name, "%s", name);
    else
        base_name(text, list->name, sizeof list->name);
    return 0;
}

int kvd_width_list_parse(kvd_width_list *list, const char *option, const char *text, kvd_err *err)
{
    return are_numbers(text) ? parse_numbers(list, option, text, err)
                             : parse_file(list, option, text, err);
}

int kvd_width_list_rates(kvd_width_list *list, const char *path, const kvd_rates *rates,
                         size_t point, size_t layer, kvd_err *err)
{
    const kvd_widths *const w = &rates->widths[point];
    kvd_attn_heads *const h = &list->heads;
    if (w->d_head != h->d_head)
        return kvd_fail(err, "'%s' has d_head %d, --d-head is %d", path, w->d_head, h->d_head);
    if (layer >= (size_t)w->n_layers)
        return kvd_fail(err, "--layer %zu: '%s' has %d layers", layer, path, w->n_layers);
    const size_t all = (size_t)w->n_layers * (size_t)w->n_kv_heads,
                 first = layer * (size_t)w->n_kv_heads;
    for (int g = 0; g < h->n_kv_heads; g++) {
        const size_t i = (first + (size_t)g) % all;
        h->d_qk[g] = (int)kvd_pad16(w->kept[0][i], w->d_head);
        h->d_v[g] = (int)kvd_pad16(w->kept[1][i], w->d_head);
    }
    char base[40];
    base_name(path, base, sizeof base);
    snprintf(list->name, sizeof list->name, "%s p=%.3g", base, rates->overall_p[point]);
    return 0;
}

int kvd_rates_point(const char *path, const kvd_rates *rates, double p, size_t *point, kvd_err *err)
{
    *point = 0;
    for (size_t i = 1; i < rates->n_points; i++)
        if (fabs(rates->overall_p[i] - p) < fabs(rates->overall_p[*point] - p))
            *point = i;
    if (fabs(rates->overall_p[*point] - p) > 0.01)
        return kvd_fail(err, "--overall-p %g: the nearest point of '%s' has p = %.4f", p, path,
                        rates->overall_p[*point]);
    return 0;
}

static int each(const char *text, kvd_attn_options *cfg,
                int (*put)(kvd_attn_options *, const char *, kvd_err *), kvd_err *err)
{
    for (const char *at = text;; at++) {
        char element[KVD_ARG_FIELD];
        const size_t n = strcspn(at, ",");
        kvd_arg_field(at, n, element);
        if (put(cfg, element, err))
            return -1;
        at += n;
        if (!*at)
            return 0;
    }
}

static int put_impl(kvd_attn_options *cfg, const char *text, kvd_err *err)
{
    const kvd_impl *const impl = kvd_impl_find(text, err);
    if (!impl)
        return -1;
    for (int i = 0; i < cfg->n_impls; i++)
        if (cfg->impl[i] == impl)
            return kvd_fail(err, "--impl: %s is given twice", text);
    if (cfg->n_impls == KVD_ATTN_IMPLS)
        return kvd_fail(err, "--impl: more than %d are given", (int)KVD_ATTN_IMPLS);
    cfg->impl[cfg->n_impls++] = impl;
    return 0;
}

static int read_impls(void *config, const char *text, kvd_err *err)
{
    return each(text, config, put_impl, err);
}

enum { MOST_BATCH = 65535, MOST_TOKENS = 1 << 27 };

static int add_size(kvd_attn_options *cfg, size_t batch, size_t seq_len, kvd_err *err)
{
    for (int i = 0; i < cfg->n_sizes; i++)
        if (cfg->size[i].batch == batch && cfg->size[i].seq_len == seq_len)
            return kvd_fail(err, "--size: %zux%zu is given twice", batch, seq_len);
    if (cfg->n_sizes == KVD_ATTN_SIZES)
        return kvd_fail(err, "more than %d sizes are given", (int)KVD_ATTN_SIZES);
    cfg->size[cfg->n_sizes++] = (kvd_attn_size){batch, seq_len};
    return 0;
}

static int put_size(kvd_attn_options *cfg, const char *text, kvd_err *err)
{
    char batch[KVD_ARG_FIELD];
    kvd_attn_size s;
    const size_t n = strcspn(text, "x");
    kvd_arg_field(text, n, batch);
    if (!text[n])
        return kvd_fail(err, "--size: '%s' is not of the form 64x8192", text);
    if (kvd_arg_size("--size", batch, 1, MOST_BATCH, &s.batch, err) ||
        kvd_arg_size("--size", text + n + 1, 1, MOST_TOKENS, &s.seq_len, err))
        return -1;
    return add_size(cfg, s.batch, s.seq_len, err);
}

static int read_sizes(void *config, const char *text, kvd_err *err)
{
    return each(text, config, put_size, err);
}

static int check_usage(void *config, kvd_err *err)
{
    kvd_attn_options *const cfg = config;
    int status = 0;
    cfg->plan.cold = !cfg->hot;
    if (cfg->n_heads % cfg->n_kv_heads)
        return kvd_fail(err, "--heads %zu is not a multiple of --kv-heads %zu", cfg->n_heads,
                        cfg->n_kv_heads);
    if (cfg->lengths_file || cfg->n_sizes)
        return 0;
    for (size_t i = 0; i < cfg->n_batches; i++)
        for (size_t j = 0; !status && j < cfg->n_seq_lens; j++)
            status = add_size(cfg, cfg->batch[i], cfg->seq_len[j], err);
    return status;
}

static void print_list(void)
{
    printf("%-15s %-5s %-15s %-12s %-20s %s\n", "impl", "on", "phases", "types", "schedules",
           "computes");
    for (int i = 0; i < kvd_impl_count(); i++) {
        const kvd_impl *const m = kvd_impl_at(i);
        char phases[32] = "", types[32] = "", schedulers[32] = "";
        for (int k = 0; k < KVD_N_ATTN_PHASES; k++)
            if (m->phases & 1u << k)
                snprintf(phases + strlen(phases), sizeof phases - strlen(phases), "%s%s",
                         phases[0] ? "," : "", kvd_attn_phase_name[k]);
        for (int k = 0; k < 3; k++)
            if (m->dtypes & 1u << k)
                snprintf(types + strlen(types), sizeof types - strlen(types), "%s%s",
                         types[0] ? "," : "", kvd_dtype_name((kvd_dtype)k));
        for (int k = 0; k < KVD_N_SCHEDULERS; k++)
            if (m->schedulers & 1u << k)
                snprintf(schedulers + strlen(schedulers), sizeof schedulers - strlen(schedulers),
                         "%s%s", schedulers[0] ? "," : "", kvd_scheduler_name[k]);
        printf("%-15s %-5s %-15s %-12s %-20s %s\n", m->name, m->cuda ? "GPU" : "CPU", phases, types,
               schedulers, m->summary);
    }
}

static const char *const checks[] = {"auto", "rows", "all", "none", NULL},
                         *const data[] = {"normal", "sharp", NULL},
                         *const ragged[] = {"equal", "lognormal", "one-long", NULL};

#define T kvd_attn_options

static const kvd_option options[] = {
    {.help = "Kept dimensions (each value is timed as one case)"},
    {"dims", .type = KVD_OPT_TEXTS, .arg = "WIDTHS", KVD_INTO_LIST(T, dims, n_dims),
     .otherwise = "--d-head",
     .help =
         "Kept dimensions of the heads: one number for all, such as 128; d_qk:d_v for different "
         "numbers in Q, K and in V, such as 64:48; a comma list with one entry per KV head, "
         "repeated if it is shorter; a CSV file with the columns d_qk,d_v and one line per KV "
         "head; or FILE.csv:NAME, one list of a file with the columns name,d_qk,d_v, whose last "
         "row is end,N with the number N of rows before it"},
    {"rates", .type = KVD_OPT_TEXT, .arg = "R.h5", KVD_INTO(T, rates),
     .help =
         "Kept dimensions from kvdim-fit, rounded up to multiples of 16; heads are taken in order "
         "from --layer on"},
    {"overall-p", .type = KVD_OPT_NUMBERS, .arg = "LIST|A:B:STEP",
     KVD_INTO_LIST(T, overall_p, n_overall_p), .high = 1, .requires = "rates", .otherwise = "all",
     .help = "Fractions of all dimensions removed, of those that --rates was fitted for"},
    {"layer", .type = KVD_OPT_WHOLE, .arg = "L", KVD_INTO(T, layer), .high = 1000000,
     .initial = "0", .requires = "rates", .help = "First layer whose heads are taken"},

    {.help = "Sizes"},
    {"phase", .type = KVD_OPT_WORDS, .words = kvd_attn_phase_name, KVD_INTO(T, phase),
     .help = "One phase or both"},
    {"batch", .type = KVD_OPT_WHOLES, .arg = "LIST", KVD_INTO_LIST(T, batch, n_batches), .low = 1,
     .high = MOST_BATCH, .initial = "1",
     .help = "Number of requests; each number is timed with each --seq-len"},
    {"seq-len", .type = KVD_OPT_WHOLES, .arg = "LIST", KVD_INTO_LIST(T, seq_len, n_seq_lens),
     .low = 1, .high = MOST_TOKENS, .initial = "4096", .unit = "tokens",
     .help = "Number of tokens per request"},
    {"size", .type = KVD_OPT_CALL, .arg = "BxS,...", .call = read_sizes,
     .excludes = "batch seq-len",
     .help = "Requests x tokens of each case, such as 64x8192,1x131072, in place of --batch and "
             "--seq-len"},
    {"ragged", .type = KVD_OPT_WORD, .words = ragged, KVD_INTO(T, lengths), .initial = "equal",
     .help =
         "Lengths of the requests. equal: all have --seq-len tokens. lognormal: random with that "
         "mean. one-long: one request has that length, the others 1/16 of it"},
    {"lengths", .type = KVD_OPT_TEXT, .arg = "FILE.csv", KVD_INTO(T, lengths_file),
     .excludes = "batch seq-len size ragged",
     .help = "File with the length of one request per line"},
    {"heads", .type = KVD_OPT_WHOLE, KVD_INTO(T, n_heads), .low = 1, .high = KVD_HEADS_MAX,
     .initial = "32", .help = "Number of query heads"},
    {"kv-heads", .type = KVD_OPT_WHOLE, KVD_INTO(T, n_kv_heads), .low = 1, .high = KVD_HEADS_MAX,
     .initial = "8", .help = "Number of KV heads"},
    {"window", .type = KVD_OPT_WHOLE, .arg = "N", KVD_INTO(T, window), .high = MOST_TOKENS,
     .initial = "0", .unit = "tokens",
     .help = "Newest tokens that a query attends to, including its own; 0: all"},
    {"d-head", .type = KVD_OPT_WHOLE, KVD_INTO(T, d_head), KVD_GIVEN(T, d_head_given), .low = 1,
     .high = KVD_WIDTH_MAX, .initial = "128", .unit = "dimensions, or that of --rates",
     .help = "Dimensions of an uncut head"},

    {.help = "Implementations"},
    {"impl", .type = KVD_OPT_CALL, .arg = "LIST", .call = read_impls,
     .otherwise = "cuda,cudnn on a GPU, else cpu",
     .help = "Implementations to time; --list prints the names"},
    {"list", .type = KVD_OPT_PRINT, .print = print_list,
     .help = "Print the implementations with the types and sizes that each supports, and stop"},
    {"schedule", .type = KVD_OPT_WORDS, .words = kvd_scheduler_name, KVD_INTO(T, scheduler),
     KVD_GIVEN(T, scheduler_given), .otherwise = "ours",
     .help =
         "How work is divided over the GPU, for implementations with several ways. none: not by "
         "cost. papers: as the papers describe. ours: by the cost of each head"},
    {"dtype", .type = KVD_OPT_WORDS, .words = kvd_dtype_words, KVD_INTO(T, dtype),
     KVD_GIVEN(T, dtype_given), .otherwise = "bf16 on a GPU, else f32",
     .help = "Types of Q, K and V"},
    {"data", .type = KVD_OPT_WORD, .words = data, KVD_INTO(T, sharp), .initial = "normal",
     .help = "Values of Q and K. normal: normally distributed. sharp: with outliers, so that few "
             "tokens dominate the softmax"},

    {.help = "Measurement"},
    {"samples", .type = KVD_OPT_WHOLE, KVD_INTO(T, plan.samples), .low = 1, .high = 100000,
     .initial = "30", .help = "Number of timed launches of each case"},
    {"warmup", .type = KVD_OPT_WHOLE, KVD_INTO(T, plan.warmup), .high = 100000, .initial = "5",
     .help = "Number of launches before the timed ones"},
    {"cold", .type = KVD_OPT_FLAG, KVD_INTO(T, cold), .excludes = "hot",
     .help = "Fill the caches of the processor with other data before every launch, which is the "
             "default"},
    {"hot", .type = KVD_OPT_FLAG, KVD_INTO(T, hot),
     .help = "Leave the data of the last launch in the caches"},
    {"check", .type = KVD_OPT_WORD, .words = checks, KVD_INTO(T, check), .initial = "auto",
     .help =
         "Query tokens whose results are compared with the reference. auto: all if that is quick, "
         "or else a sample"},
    KVD_OPTIONS_COMMON(T, "OUT.h5", "Write the result to OUT.h5, which is whole after every case"),
    {0}};

static const kvd_program program = {
    .name = "kvdim-attn",
    .summary = "Time implementations of attention on heads of unequal width against each other, "
               "check each against the reference, and compare it with the limits of the machine.",
    .usage = {"--phase PHASE [--dims WIDTHS | --rates R.h5] -o OUT.h5 [OPTION...]", "--list"},
    .any_of = {"phase", "output"},
    .examples =
        {"kvdim-attn --phase prefill,decode --dims 64:48 --seq-len 512 -o attention.h5",
         "kvdim-attn --phase decode --size 64x8192 --dims data/widths/lists.csv:kvdim25m-p50 "
         "--impl cuda,cudnn -o decode.h5"},
    .notes = "The exit status is also 1 when a row is wrong.",
    .options = options,
    .check = check_usage};

void kvd_attn_parse(int argc, char **argv, kvd_attn_options *cfg)
{
    kvd_options_parse(&program, argc, argv, cfg);
}

void kvd_attn_options_release(kvd_attn_options *cfg)
{
    kvd_options_release(&program, cfg);
}
