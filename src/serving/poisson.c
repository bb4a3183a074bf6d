/* Generates Poisson arrivals of requests with random input and output lengths.
 *
 * Lengths are log-normal, with the mean and the range that a paper states for a data set. */
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/args.h"
#include "common/datadir.h"
#include "common/files/csv.h"
#include "common/rng.h"
#include "serving/requests.h"

/* identifiers of two random number generators: one for gaps between arrivals, one for request
 * lengths */
enum { GAPS = 1, LENGTHS = 2 };

static const struct {
    const char *name, *table, *trace;
} tables[] = {
    {"imdb", "zack_table03_traces", "IMDb classification"},
    {"arxiv", "zack_table03_traces", "arXiv summarization"},
    {"cocktail", "zack_table03_traces", "Cocktail for IR"},
    {"humaneval", "zack_table03_traces", "HumanEval"},
    {"cocktail-fdc", "fdc_table06_traces", "Cocktail for IR"},
    {"pg19", "fdc_table06_traces", "Google PG-19"},
    {"pile", "zdc_table02_traces", "The Pile"},
    {"sharegpt", "zdc_table02_traces", "ShareGPT"},
};
enum { TABLES = sizeof tables / sizeof *tables };

typedef struct {
    /* mean, smallest and largest input (or output) length of a data set in tokens, from a paper's
     * table */
    double mean, least, greatest;
    /* mean and standard deviation of ln(length), before lengths outside `least` to `greatest` are
     * excluded */
    double mu, sigma;
} lognormal;

static double normal_below(double z)
{
    return 0.5 * erfc(-z * M_SQRT1_2);
}

/* Returns P(a < Z < b) of a standard normal variable Z. Uses the upper or lower tail, whichever has
 * the smaller rounding error. */
static double normal_between(double a, double b)
{
    return a > 0 ? normal_below(-a) - normal_below(-b) : normal_below(b) - normal_below(a);
}

static double cut_mean(const lognormal *l)
{
    const double a = (log(l->least) - l->mu) / l->sigma, b = (log(l->greatest) - l->mu) / l->sigma;
    return exp(l->mu + l->sigma * l->sigma / 2) * normal_between(a - l->sigma, b - l->sigma) /
           normal_between(a, b);
}

static int centre(lognormal *l, kvd_err *err)
{
    if (!(l->least >= 1 && l->mean > l->least && l->greatest > l->mean))
        return kvd_fail(err, "mean %g is not between the least, %g, and the greatest, %g", l->mean,
                        l->least, l->greatest);
    l->sigma = log(l->greatest / l->least) / 6;
    /* Finds mu by bisection: the mean of the truncated log-normal lengths rises with mu. */
    double lo = log(l->least) - 12 * l->sigma, hi = log(l->greatest) + 12 * l->sigma;
    for (int i = 0; i < 200; i++) {
        l->mu = 0.5 * (lo + hi);
        *(cut_mean(l) < l->mean ? &lo : &hi) = l->mu;
    }
    return fabs(cut_mean(l) - l->mean) < 1e-6 * l->mean
               ? 0
               : kvd_fail(err, "mean %g is too near to %g or %g", l->mean, l->least, l->greatest);
}

static uint32_t draw(const lognormal *l, kvd_rng *rng)
{
    const double a = (log(l->least) - l->mu) / l->sigma, b = (log(l->greatest) - l->mu) / l->sigma;
    const double share = kvd_rng_uniform(rng) * normal_between(a, b);
    double lo = a, hi = b;
    for (int i = 0; i < 60; i++) {
        const double z = 0.5 * (lo + hi);
        *(normal_between(a, z) < share ? &lo : &hi) = z;
    }
    return (uint32_t)lround(exp(l->mu + l->sigma * lo));
}

typedef struct {
    const char *trace;
    lognormal side[2]; /* input length, output length */
    size_t column[6];
    bool found;
} table_row;

static int read_row(void *ctx, size_t line, char *const *field, const size_t *len, size_t n,
                    kvd_err *err)
{
    static const char *const name[6] = {"input_avg_tokens",  "input_min_tokens",
                                        "input_max_tokens",  "output_avg_tokens",
                                        "output_min_tokens", "output_max_tokens"};
    table_row *t = ctx;
    double v[6];
    (void)len;
    if (line == 1) {
        for (int i = 0; i < 6; i++) {
            for (t->column[i] = 0; t->column[i] < n && strcmp(field[t->column[i]], name[i]);
                 t->column[i]++)
                ;
            if (t->column[i] == n)
                return kvd_fail(err, "no column '%s'", name[i]);
        }
        return 0;
    }
    if (!n || strcmp(field[0], t->trace))
        return 0;
    for (int i = 0; i < 6; i++) {
        if (t->column[i] >= n)
            return kvd_fail(err, "no field '%s'", name[i]);
        if (kvd_arg_double(name[i], field[t->column[i]], 1, 1e9, &v[i], err))
            return -1;
    }
    t->found = true;
    for (int s = 0; s < 2; s++) {
        t->side[s] = (lognormal){.mean = v[3 * s], .least = v[3 * s + 1], .greatest = v[3 * s + 2]};
        if (centre(&t->side[s], err))
            return kvd_in(err, "%s", s ? "output" : "input");
    }
    return 0;
}

static int from_table(kvd_requests *r, int table, kvd_rng *rng, kvd_err *err)
{
    char folder[2 * PATH_MAX], path[3 * PATH_MAX];
    table_row t = {.trace = tables[table].trace};
    if (kvd_data_folder(NULL, NULL, "data/paper", "paper", "tables.csv", folder, err))
        return -1;
    snprintf(path, sizeof path, "%s/tables.csv", folder);
    if (kvd_csv_read_table(path, tables[table].table, read_row, &t, err))
        return -1;
    if (!t.found)
        return kvd_fail(err, "'%s' has no row '%s' in the table '%s'", path, t.trace,
                        tables[table].table);
    for (size_t i = 0; i < r->n; i++) {
        r->request[i].input = draw(&t.side[0], rng);
        r->request[i].output = draw(&t.side[1], rng);
    }
    return 0;
}

static int from_file(kvd_requests *r, const char *path, kvd_rng *rng, kvd_err *err)
{
    kvd_requests pool;
    if (kvd_requests_lengths(&pool, path, err))
        return -1;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_request *q = &pool.request[kvd_rng_below(rng, pool.n)];
        r->request[i].input = q->input;
        r->request[i].output = q->output;
    }
    kvd_requests_release(&pool);
    return 0;
}

static int from_numbers(kvd_requests *r, const char *text, kvd_err *err)
{
    char input[KVD_ARG_FIELD];
    size_t in, out;
    const char *colon = strchr(text, ':');
    if (!colon)
        return kvd_fail(err, "lengths 'fixed:%s' are not 'fixed:INPUT:OUTPUT'", text);
    kvd_arg_field(text, (size_t)(colon - text), input);
    if (kvd_arg_size("fixed:INPUT", input, 1, (size_t)1 << 31, &in, err) ||
        kvd_arg_size("fixed:INPUT:OUTPUT", colon + 1, 1, (size_t)1 << 31, &out, err))
        return -1;
    for (size_t i = 0; i < r->n; i++) {
        r->request[i].input = (uint32_t)in;
        r->request[i].output = (uint32_t)out;
    }
    return 0;
}

static int table_named(const char *name)
{
    for (int i = 0; i < TABLES; i++)
        if (!strcmp(name, tables[i].name))
            return i;
    return -1;
}

static bool are_numbers(const char *lengths)
{
    return !strncmp(lengths, "fixed:", 6);
}

bool kvd_requests_lengths_from_file(const char *lengths)
{
    return !are_numbers(lengths) && table_named(lengths) < 0;
}

static int set_lengths(kvd_requests *r, const char *lengths, uint64_t seed, kvd_err *err)
{
    kvd_rng rng;
    kvd_rng_seed(&rng, seed, LENGTHS);
    if (are_numbers(lengths))
        return from_numbers(r, lengths + 6, err);
    const int table = table_named(lengths);
    return table >= 0 ? from_table(r, table, &rng, err) : from_file(r, lengths, &rng, err);
}

int kvd_requests_poisson(kvd_requests *r, double rate, size_t n, const char *lengths, uint64_t seed,
                         kvd_err *err)
{
    char before[48];
    *r = (kvd_requests){.n = n};
    if (!(rate > 0) || !isfinite(rate) || !n || n > UINT32_MAX)
        return kvd_fail(err, "%zu requests at %g a second", n, rate);
    r->request = calloc(n, sizeof *r->request);
    if (!r->request)
        return kvd_no_memory(err, "the requests", n * sizeof *r->request);
    snprintf(before, sizeof before, "poisson:%g of ", rate);
    kvd_requests_set_name(r, before, lengths);
    kvd_rng rng;
    kvd_rng_seed(&rng, seed, GAPS);
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum -= log1p(-kvd_rng_uniform(&rng));
        r->request[i].arrival = sum / rate;
    }
    if (set_lengths(r, lengths, seed, err)) {
        kvd_requests_release(r);
        return -1;
    }
    return 0;
}
