/* Computes measures from accuracy results, such as the fraction of the cache that a method saves at
 * equal accuracy. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/measures/measures.h"
#include "report/results.h"
#include "report/rows.h"

static bool set_to(const kvd_rows *rows, size_t row, const char *setting)
{
    const char *at = kvd_row_text(rows, row, "settings");
    const size_t len = strlen(setting);
    while ((at = strstr(at, setting)) && at[len] && at[len] != ',')
        at += len;
    return at != NULL;
}

/* Returns true if result row `row` is of `method`, and was measured under the same conditions as
 * row `none`, that of the uncompressed cache. */
static bool is(const kvd_result *x, size_t row, size_t none, const char *method)
{
    const kvd_rows *const rows = x->accuracy.rows;
    return !strcmp(kvd_row_text(rows, row, "method"), method) &&
           strcmp(kvd_row_text(rows, row, "purpose"), "target-search") != 0 &&
           !kvd_rows_differ(x, none, x, row, "method,settings,rule,widths,bases");
}

/* Finds results *a and *b of the quantisation method hetero with the given numbers of bits.
 *
 * - none: uncompressed result of the same model and text
 * - bits: required parameters, such as "hetero.k=2": of K and V in *a, then of K and V in *b */
static bool find_mirrored(const kvd_result *x, size_t none, const char *const bits[4], size_t *a,
                          size_t *b)
{
    const kvd_rows *const rows = x->accuracy.rows;
    for (*a = 0; *a < kvd_rows_count(rows); ++*a) {
        if (!is(x, *a, none, "hetero") || !set_to(rows, *a, bits[0]) || !set_to(rows, *a, bits[1]))
            continue;
        for (*b = 0; *b < kvd_rows_count(rows); ++*b)
            if (is(x, *b, none, "hetero") && set_to(rows, *b, bits[2]) &&
                set_to(rows, *b, bits[3]) && !kvd_rows_differ(x, *a, x, *b, "hetero.k,hetero.v"))
                return true;
    }
    return false;
}

/* Returns the KL divergence of one result of the method hetero divided by the KL divergence of
 * another. bits: parameters, such as "hetero.k=2", of K and V in the first result, then in the
 * second. */
static double mirrored(const kvd_result *x, size_t none, const char *const bits[4])
{
    size_t a, b;
    return find_mirrored(x, none, bits, &a, &b)
               ? kvd_row_real(x->accuracy.rows, a, "kl") / kvd_row_real(x->accuracy.rows, b, "kl")
               : (double)NAN;
}

static const char *const low_bits[4] = {"hetero.k=2", "hetero.v=4", "hetero.k=4", "hetero.v=2"},
                         *const high_bits[4] = {"hetero.k=4", "hetero.v=8", "hetero.k=8",
                                                "hetero.v=4"};

static double mirror_kl(const kvd_result *x, size_t none)
{
    return mirrored(x, none, low_bits);
}

static double mirror_kl_high(const kvd_result *x, size_t none)
{
    return mirrored(x, none, high_bits);
}

/* Returns the size of the smallest cache of method leankv, in percent of a 16-bit cache, that keeps
 * the fraction `least` of the uncompressed accuracy. */
static double smallest(const kvd_result *x, size_t none, double least, double least_hi)
{
    const kvd_rows *const rows = x->accuracy.rows;
    double best = NAN;
    for (size_t i = 0; i < kvd_rows_count(rows); i++)
        if (is(x, i, none, "leankv") && kvd_row_real(rows, i, "top1_share") >= least &&
            kvd_row_real(rows, i, "top1_share_hi") >= least_hi)
            best = fmin(best, 100 * kvd_row_real(rows, i, "cache_share"));
    return best;
}

static double neutral_cache(const kvd_result *x, size_t none)
{
    return smallest(x, none, 0.99, 1);
}

static double five_percent_cache(const kvd_result *x, size_t none)
{
    return smallest(x, none, 0.95, 0);
}

/* Removed fractions of dimensions count as equal if they differ by less than this, about one of 128
 * dimensions. */
static const double equal_p = 0.008;

/* Divides the perplexity after removing dimensions of V by the perplexity after removing equally
 * many dimensions of Q and K. */
static double v_over_qk(const kvd_result *x, size_t none)
{
    const kvd_rows *const rows = x->accuracy.rows;
    double p = 0, ratio = NAN;
    for (size_t i = 0; i < kvd_rows_count(rows); i++) {
        const double v = kvd_row_real(rows, i, "overall_p_v");
        if (!is(x, i, none, "zack") || kvd_row_real(rows, i, "overall_p_qk") > 0)
            continue;
        for (size_t j = 0; j < kvd_rows_count(rows); j++) {
            const double qk = kvd_row_real(rows, j, "overall_p_qk");
            if (!(fabs(v - qk) < equal_p) || !(v > p) || !is(x, j, none, "zack") ||
                kvd_row_real(rows, j, "overall_p_v") > 0 ||
                kvd_rows_differ(x, i, x, j, "zack.p.qk,zack.p.v,cut,widths"))
                continue;
            p = v;
            ratio = kvd_row_real(rows, i, "perplexity") / kvd_row_real(rows, j, "perplexity");
        }
    }
    return ratio;
}

/* Returns by how many percent the perplexity with 4-bit K and V exceeds that with 4-bit weights and
 * an uncompressed cache. If `prompt`, uses results in which prompts attend to uncompressed K and
 * V. */
static double kv_over_weights_of(const kvd_result *x, size_t none, bool prompt)
{
    const kvd_rows *const rows = x->accuracy.rows;
    for (size_t i = 0; i < kvd_rows_count(rows); i++) {
        if (!is(x, i, none, "hetero") || !set_to(rows, i, "hetero.k=4") ||
            !set_to(rows, i, "hetero.v=4") || (kvd_row_real(rows, i, "prompt") > 0) != prompt)
            continue;
        for (size_t j = 0; j < kvd_rows_count(rows); j++)
            if (kvd_row_is_weights(rows, j) && set_to(rows, j, "weights.bits=4") &&
                !kvd_rows_differ(x, i, x, j, "method,settings,rule,widths"))
                return 100 *
                       (kvd_row_real(rows, i, "perplexity") / kvd_row_real(rows, j, "perplexity") -
                        1);
    }
    return NAN;
}

static double kv_over_weights(const kvd_result *x, size_t none)
{
    return kv_over_weights_of(x, none, false);
}

static double kv_over_weights_prompt(const kvd_result *x, size_t none)
{
    return kv_over_weights_of(x, none, true);
}

static double number_of(const kvd_rows *rows, size_t row, const char *key)
{
    const char *const settings = kvd_row_text(rows, row, "settings"), *const at =
                                                                          strstr(settings, key);
    return at && (at == settings || at[-1] == ',') && at[strlen(key)] == '='
               ? strtod(at + strlen(key) + 1, NULL)
               : (double)NAN;
}

typedef struct {
    double value, lo, hi;
} divergence;

static double between(double a, double b, double part)
{
    return exp(log(a) + part * (log(b) - log(a)));
}

/* Returns the KL divergence of method h2o at the cache size of result i, interpolated between h2o
 * results with smaller and larger caches. Returns NaN if a smaller or larger one is missing. */
static divergence h2o_at(const kvd_result *x, size_t none, size_t i)
{
    const kvd_rows *const rows = x->accuracy.rows;
    const double share = kvd_row_real(rows, i, "cache_share");
    size_t below = SIZE_MAX, above = SIZE_MAX;
    for (size_t j = 0; j < kvd_rows_count(rows); j++) {
        const double at = kvd_row_real(rows, j, "cache_share");
        if (!is(x, j, none, "h2o") || !(kvd_row_real(rows, j, "kl_lo") > 0) ||
            kvd_rows_differ(x, i, x, j, "method,settings,rule,widths"))
            continue;
        if (at <= share && (below == SIZE_MAX || at > kvd_row_real(rows, below, "cache_share")))
            below = j;
        if (at >= share && (above == SIZE_MAX || at < kvd_row_real(rows, above, "cache_share")))
            above = j;
    }
    if (below == SIZE_MAX || above == SIZE_MAX)
        return (divergence){NAN, NAN, NAN};
    const double from = kvd_row_real(rows, below, "cache_share"),
                 to = kvd_row_real(rows, above, "cache_share"),
                 part = to > from ? (share - from) / (to - from) : 0;
    return (divergence){
        between(kvd_row_real(rows, below, "kl"), kvd_row_real(rows, above, "kl"), part),
        between(kvd_row_real(rows, below, "kl_lo"), kvd_row_real(rows, above, "kl_lo"), part),
        between(kvd_row_real(rows, below, "kl_hi"), kvd_row_real(rows, above, "kl_hi"), part)};
}

/* Appends the ratio KL divergence of method h2o / KL divergence of method sparsity, at equal cache
 * size. A ratio of 1 means that both methods are equally good. */
static int pruned(const kvd_result *x, size_t none, kvd_measured *out, kvd_err *err)
{
    const kvd_rows *const rows = x->accuracy.rows;
    for (size_t i = 0; i < kvd_rows_count(rows); i++) {
        const double th = number_of(rows, i, "sparsity.th"), tl = number_of(rows, i, "sparsity.tl");
        if (!is(x, i, none, "sparsity") || !(fabs(th - tl) < 1e-12) ||
            !(kvd_row_real(rows, i, "kl_lo") > 0))
            continue;
        const divergence h2o = h2o_at(x, none, i);
        const double ratio = h2o.value / kvd_row_real(rows, i, "kl");
        if (!isfinite(ratio))
            continue;
        if (kvd_values_put(out, ratio, err, "%s, tl = %g", kvd_row_text(rows, i, "label"), tl))
            return -1;
        kvd_values_interval(out, h2o.lo / kvd_row_real(rows, i, "kl_hi"),
                            h2o.hi / kvd_row_real(rows, i, "kl_lo"));
        kvd_values_null(out, 1, 1);
    }
    return 0;
}

static const struct {
    const char *name;
    double (*compute)(const kvd_result *x, size_t none);
    const char *const (*bits)[4]; /* bits of K and V in numerator and denominator, or NULL */
    /* Function that appends several values per text. NULL if the measure has one value per text,
     * which `compute` returns. */
    int (*append)(const kvd_result *x, size_t none, kvd_measured *out, kvd_err *err);
} measures[] = {{"mirror-kl", mirror_kl, &low_bits, NULL},
                {"mirror-kl-high", mirror_kl_high, &high_bits, NULL},
                {"neutral-cache", neutral_cache, NULL, NULL},
                {"five-percent-cache", five_percent_cache, NULL, NULL},
                {"v-over-qk", v_over_qk, NULL, NULL},
                {"kv-over-weights", kv_over_weights, NULL, NULL},
                {"kv-over-weights-prompt", kv_over_weights_prompt, NULL, NULL},
                {"h2o-over-sparsity-kl", NULL, NULL, pruned}};
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

static void kl_interval(const kvd_result *x, size_t none, const char *const bits[4],
                        kvd_measured *out)
{
    const kvd_rows *const rows = x->accuracy.rows;
    size_t a, b;
    if (!find_mirrored(x, none, bits, &a, &b))
        return;
    kvd_values_interval(out, kvd_row_real(rows, a, "kl_lo") / kvd_row_real(rows, b, "kl_hi"),
                        kvd_row_real(rows, a, "kl_hi") / kvd_row_real(rows, b, "kl_lo"));
    kvd_values_null(out, 1, 1);
}

static int of_file(const kvd_result *x, int which, kvd_measured *out, kvd_err *err)
{
    const kvd_rows *const rows = x->accuracy.rows;
    for (size_t none = 0; none < kvd_rows_count(rows); none++) {
        const char *const label = kvd_row_text(rows, none, "label");
        if (!is(x, none, none, "none"))
            continue;
        if (measures[which].append) {
            if (measures[which].append(x, none, out, err))
                return -1;
            continue;
        }
        const double value = measures[which].compute(x, none);
        if (!isfinite(value))
            continue;
        if (kvd_values_put(out, value, err, "%s", label))
            return -1;
        if (measures[which].bits)
            kl_interval(x, none, *measures[which].bits, out);
    }
    return 0;
}

int kvd_setting_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err)
{
    const int which = find(name);
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].kind == KVD_RESULT_ACCURACY && of_file(&r->item[i], which, out, err))
            return -1;
    return 0;
}

static const char prefix[] = "p99-", less[] = "-less-", by[] = "-by-";

bool kvd_rate_measure_known(const char *name)
{
    return strncmp(name, prefix, sizeof prefix - 1) == 0 && name[sizeof prefix - 1];
}

/* Finds a recorded search for the strongest compression at which `method` keeps 99 % of score
 * `metric`. If `metric` is "", any score counts. Returns NULL if there is none. */
static const kvd_target_result *search_of(const kvd_result *x, const char *method, size_t len,
                                          const char *metric)
{
    for (size_t i = 0; i < x->accuracy.n_targets; i++) {
        const kvd_target_result *const t = &x->accuracy.target[i];
        if (strlen(t->name) == len && !strncmp(t->name, method, len) &&
            fabs(t->target - 0.99) < 1e-6 && !t->own && (!*metric || !strcmp(metric, t->metric)))
            return t;
    }
    return NULL;
}

/* Returns the label of the text on which a result was measured, or the name of its task. NULL if it
 * has several tasks. */
static const char *searched_text(const kvd_result *x)
{
    const kvd_rows *const rows = x->accuracy.rows;
    if (x->kind != KVD_RESULT_ACCURACY && x->kind != KVD_RESULT_TASKS)
        return NULL;
    if (x->kind == KVD_RESULT_ACCURACY || !rows || !kvd_rows_count(rows))
        return x->corpus_label;
    for (size_t i = 1; i < kvd_rows_count(rows); i++)
        if (strcmp(kvd_row_text(rows, i, "label"), kvd_row_text(rows, 0, "label")))
            return NULL;
    return kvd_row_text(rows, 0, "label");
}

/* Returns the fraction of the cache that the found compression removes, with its 95 % interval. An
 * unknown lower end becomes 0, an unknown upper end 1. */
static kvd_interval removed(const kvd_target_result *t)
{
    const bool elements = isnan(t->saving);
    const double lo = elements ? t->value_lo : t->saving_lo,
                 hi = elements ? t->value_hi : t->saving_hi;
    return (kvd_interval){elements ? t->value : t->saving, isnan(lo) ? 0 : lo, isnan(hi) ? 1 : hi};
}

int kvd_rate_measure(const kvd_results *r, const char *name, const char *text, kvd_measured *out,
                     kvd_err *err)
{
    const char *const a = name + sizeof prefix - 1, *const m = strstr(a, by),
                      *const metric = m ? m + sizeof by - 1 : "", *const l = strstr(a, less),
                      *const b = l ? l + sizeof less - 1 : NULL;
    const size_t n = m ? (size_t)(m - a) : strlen(a);
    for (size_t i = 0; i < r->n; i++) {
        const kvd_result *const x = &r->item[i];
        const char *const label = searched_text(x);
        if (!label || !strcasestr(label, text))
            continue;
        const kvd_target_result *const t = search_of(x, a, l ? (size_t)(l - a) : n, metric);
        const kvd_target_result *const u = b ? search_of(x, b, n - (size_t)(b - a), metric) : NULL;
        if (!t || (b && !u))
            continue;
        kvd_interval p = removed(t);
        if (u) {
            const kvd_interval q = removed(u);
            p = (kvd_interval){p.value - q.value, p.lo - q.hi, p.hi - q.lo};
        }
        if (!isfinite(p.value))
            continue;
        if (kvd_values_put(out, p.value, err, "%s, %s, %s", x->model.name, label, t->metric))
            return -1;
        kvd_values_interval(out, p.lo, p.hi);
        snprintf(out->value[out->n - 1].metric, sizeof out->value->metric, "%s", t->metric);
    }
    return 0;
}

/* Returns true if `settings`, a list of method parameters, has parameter `key` equal to `value` to
 * four significant digits. */
static bool is_set_to(const char *settings, const char *key, double value)
{
    char wanted[64];
    const int n = snprintf(wanted, sizeof wanted, ".%s=%.4g", key, value);
    for (const char *at = settings; (at = strstr(at, wanted)); at += n)
        if (!at[n] || at[n] == ',')
            return true;
    return false;
}

static bool is_proposal(const kvd_rows *proposals, size_t i, const kvd_rows *rows, size_t row)
{
    static const char *const key[] = {"g", "rise", "p.qk", "p.v", "p_u.qk", "p_u.v"};
    static const char *const column[] = {"g", "rise", "p_qk", "p_v", "p_u_qk", "p_u_v"};
    const char *const settings = kvd_row_text(rows, row, "settings");
    for (size_t k = 0; k < sizeof key / sizeof *key; k++)
        if (!is_set_to(settings, key[k], kvd_row_real(proposals, i, column[k])))
            return false;
    return !strcmp(kvd_row_text(rows, row, "purpose"), "point");
}

static bool is_any(const kvd_results *r, const kvd_rows *rows, size_t row)
{
    for (size_t f = 0; f < r->n; f++)
        for (size_t i = 0; r->item[f].proposals && i < kvd_rows_count(r->item[f].proposals); i++)
            if (is_proposal(r->item[f].proposals, i, rows, row))
                return true;
    return false;
}

static double loss_of(const kvd_result *x, size_t row)
{
    return x->accuracy.ratio[row].value - 1;
}

static bool comparable(const kvd_result *a, size_t i, const kvd_result *b, size_t j)
{
    return !isnan(kvd_row_real(b->accuracy.rows, j, "low_p_qk")) &&
           !kvd_rows_differ(a, i, b, j, "settings,widths");
}

static void find_oracle(const kvd_results *r, kvd_judged_proposal *p)
{
    p->oracle_asked = p->oracle_measured = p->oracle_lo = p->oracle_hi = NAN;
    for (size_t f = 0; f < r->n; f++) {
        const kvd_result *const x = &r->item[f];
        for (size_t i = 0; x->kind == KVD_RESULT_ACCURACY && i < kvd_rows_count(x->accuracy.rows);
             i++) {
            if (!comparable(p->accuracy, p->row, x, i) || is_any(r, x->accuracy.rows, i))
                continue;
            const double share = kvd_row_real(x->accuracy.rows, i, "cache_share"),
                         loss = loss_of(x, i);
            if (loss <= p->asked)
                p->oracle_asked = fmin(share, p->oracle_asked);
            if (loss <= p->measured.value)
                p->oracle_measured = fmin(share, p->oracle_measured);
            if (loss <= p->measured.lo)
                p->oracle_lo = fmin(share, p->oracle_lo);
            if (loss <= p->measured.hi)
                p->oracle_hi = fmin(share, p->oracle_hi);
        }
    }
}

/* Returns the number of results measured with parameters that kvdim-fit proposed. If `all` is not
 * NULL, lists the results in it. */
static size_t list(const kvd_results *r, kvd_judged_proposal *all)
{
    size_t n = 0;
    for (size_t f = 0; f < r->n; f++)
        for (size_t i = 0; r->item[f].proposals && i < kvd_rows_count(r->item[f].proposals); i++)
            for (size_t a = 0; a < r->n; a++) {
                const kvd_result *const x = &r->item[a];
                if (x->kind != KVD_RESULT_ACCURACY || strcmp(x->model.hash, r->item[f].model.hash))
                    continue;
                for (size_t k = 0; k < kvd_rows_count(x->accuracy.rows); k++) {
                    if (!is_proposal(r->item[f].proposals, i, x->accuracy.rows, k))
                        continue;
                    const kvd_interval *const ratio = &x->accuracy.ratio[k];
                    if (all)
                        all[n] = (kvd_judged_proposal){
                            .file = &r->item[f],
                            .proposal = i,
                            .accuracy = x,
                            .row = k,
                            .asked = kvd_row_real(r->item[f].proposals, i, "loss"),
                            .measured = {ratio->value - 1, ratio->lo - 1, ratio->hi - 1},
                            .share = kvd_row_real(x->accuracy.rows, k, "cache_share")};
                    n++;
                }
            }
    return n;
}

int kvd_proposals_judge(const kvd_results *r, kvd_judged_proposal **all, size_t *n, kvd_err *err)
{
    *n = list(r, NULL);
    *all = calloc(*n ? *n : 1, sizeof **all);
    if (!*all)
        return kvd_no_memory(err, "proposals", *n * sizeof **all);
    list(r, *all);
    for (size_t i = 0; i < *n; i++)
        find_oracle(r, *all + i);
    return 0;
}

int kvd_proposals_measure(const kvd_results *r, kvd_measured *out, kvd_err *err)
{
    kvd_judged_proposal *all = NULL;
    size_t n;
    int status = kvd_proposals_judge(r, &all, &n, err);
    for (size_t i = 0; !status && i < n; i++) {
        const kvd_judged_proposal *const p = &all[i];
        const double over = 100 * (p->share / p->oracle_measured - 1);
        if (!isfinite(over) || !p->file->proposals_measured ||
            kvd_row_real(p->file->proposals, p->proposal, "extrapolated") > 0)
            continue;
        status = kvd_values_put(
            out, over, err, "%s on %s, asked for a loss of %g", p->accuracy->model.name,
            kvd_row_text(p->accuracy->accuracy.rows, p->row, "label"), p->asked);
        /* Dividing by the larger cache size, oracle_lo, gives the lower end of the interval. */
        kvd_values_interval(out, isnan(p->oracle_lo) ? -100 : 100 * (p->share / p->oracle_lo - 1),
                            100 * (p->share / p->oracle_hi - 1));
    }
    free(all);
    return status;
}
