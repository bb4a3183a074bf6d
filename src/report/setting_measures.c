#include "report/setting_measures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/results.h"

/* Whether "key=value" stands in the settings, between commas or ends. */
static bool set_to(const kvd_rows *rows, size_t row, const char *setting)
{
    const char *at = kvd_row_text(rows, row, "settings");
    const size_t len = strlen(setting);
    while ((at = strstr(at, setting)) && at[len] && at[len] != ',')
        at += len;
    return at != NULL;
}

static bool is(const kvd_rows *rows, size_t row, const char *label, const char *method)
{
    return !strcmp(kvd_row_text(rows, row, "label"), label) &&
           !strcmp(kvd_row_text(rows, row, "method"), method) &&
           strcmp(kvd_row_text(rows, row, "purpose"), "target-search") != 0;
}

/* KL of hetero with these bits; NaN: not tried. */
static double kl_of(const kvd_rows *rows, const char *label, const char *k, const char *v)
{
    for (size_t i = 0; i < kvd_rows_count(rows); i++)
        if (is(rows, i, label, "hetero") && set_to(rows, i, k) && set_to(rows, i, v))
            return kvd_row_real(rows, i, "kl");
    return NAN;
}

static double mirror_kl(const kvd_rows *rows, const char *label)
{
    return kl_of(rows, label, "hetero.k=2", "hetero.v=4") / kl_of(rows, label, "hetero.k=4", "hetero.v=2");
}

static double mirror_kl_high(const kvd_rows *rows, const char *label)
{
    return kl_of(rows, label, "hetero.k=4", "hetero.v=8") / kl_of(rows, label, "hetero.k=8", "hetero.v=4");
}

/* Smallest cache of leankv, percent, with the top-1 share and its upper end at least that; NaN: none. */
static double smallest(const kvd_rows *rows, const char *label, double least, double least_hi)
{
    double best = NAN;
    for (size_t i = 0; i < kvd_rows_count(rows); i++)
        if (is(rows, i, label, "leankv") && kvd_row_real(rows, i, "top1_share") >= least &&
            kvd_row_real(rows, i, "top1_share_hi") >= least_hi)
            best = fmin(best, 100 * kvd_row_real(rows, i, "cache_share")); /* of NaN and x: x */
    return best;
}

static double neutral_cache(const kvd_rows *rows, const char *label)
{
    return smallest(rows, label, 0.99, 1);
}

static double five_percent_cache(const kvd_rows *rows, const char *label)
{
    return smallest(rows, label, 0.95, 0);
}

static double v_over_qk(const kvd_rows *rows, const char *label)
{
    double p = -1, ratio = NAN;
    for (size_t i = 0; i < kvd_rows_count(rows); i++)
        for (size_t j = 0; is(rows, i, label, "zack") && set_to(rows, i, "cut=v") && j < kvd_rows_count(rows);
             j++) {
            const double wanted = kvd_row_real(rows, i, "p_wanted");
            const double other = kvd_row_real(rows, j, "p_wanted");
            if (!is(rows, j, label, "zack") || !set_to(rows, j, "cut=qk") || wanted < other ||
                wanted > other || wanted <= p)
                continue;
            p = wanted;
            ratio = kvd_row_real(rows, i, "perplexity") / kvd_row_real(rows, j, "perplexity");
        }
    return ratio;
}

/* Perplexity with keys and values of 4 bits over that with 4-bit weights, less 1, percent; with or without a prompt that attends
 * uncompressed. NaN: not both of them were run. */
static double kv_over_weights_of(const kvd_rows *rows, const char *label, bool prompt)
{
    double kv = NAN, weights = NAN;
    for (size_t i = 0; i < kvd_rows_count(rows); i++) {
        if (strcmp(kvd_row_text(rows, i, "label"), label) != 0 ||
            (kvd_row_real(rows, i, "prompt") > 0) != prompt)
            continue;
        if (is(rows, i, label, "hetero") && set_to(rows, i, "hetero.k=4") && set_to(rows, i, "hetero.v=4"))
            kv = kvd_row_real(rows, i, "perplexity");
        if (kvd_row_is_weights(rows, i) && set_to(rows, i, "weights.bits=4"))
            weights = kvd_row_real(rows, i, "perplexity");
    }
    return 100 * (kv / weights - 1);
}

static double kv_over_weights(const kvd_rows *rows, const char *label)
{
    return kv_over_weights_of(rows, label, false);
}

static double kv_over_weights_prompt(const kvd_rows *rows, const char *label)
{
    return kv_over_weights_of(rows, label, true);
}

static const struct {
    const char *name;
    double (*compute)(const kvd_rows *rows, const char *label);
} measures[] = {{"mirror-kl", mirror_kl},
                {"mirror-kl-high", mirror_kl_high},
                {"neutral-cache", neutral_cache},
                {"five-percent-cache", five_percent_cache},
                {"v-over-qk", v_over_qk},
                {"kv-over-weights", kv_over_weights},
                {"kv-over-weights-prompt", kv_over_weights_prompt}};
enum { N_MEASURES = sizeof measures / sizeof *measures };

static int find(const char *name)
{
    for (int i = 0; i < N_MEASURES; i++)
        if (!strcmp(measures[i].name, name))
            return i;
    return -1;
}

bool kvd_setting_measure_known(const char *name)
{
    return find(name) >= 0;
}

/* A label stands in a file's rows from its uncompressed model on. */
static int of_file(const kvd_result *x, int which, kvd_values *out, kvd_err *err)
{
    const kvd_rows *const rows = x->accuracy.rows;
    for (size_t i = 0; i < kvd_rows_count(rows); i++) {
        const char *const label = kvd_row_text(rows, i, "label");
        if (!is(rows, i, label, "none"))
            continue;
        const double value = measures[which].compute(rows, label);
        if (!isnan(value) && kvd_values_put(out, value, err, "%s", label))
            return -1;
    }
    return 0;
}

int kvd_setting_measure(const kvd_results *r, const char *name, kvd_values *out, kvd_err *err)
{
    const int which = find(name);
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_ACCURACY && of_file(&r->item[i], which, out, err))
            return -1;
    return 0;
}
