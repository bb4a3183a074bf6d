/* Computes statistics from kvdim/tokens files: attention scores, and how far layers agree on
 * important tokens. */
#include "report/measures/measures.h"

#include <math.h>
#include <string.h>

/* index of 0.95 in the array kvd_critical_level, whose values are fractions of the total
 * attention */
enum { P95 = 1 };

static double score_range(const kvd_tokens *t)
{
    const int last = t->n_layers - 1;
    const double *lo = t->data[KVD_T_SCORE_MIN], *hi = t->data[KVD_T_SCORE_MAX];
    return last > 0 && hi[0] > lo[0] ? 100 * (hi[last] - lo[last]) / (hi[0] - lo[0]) : (double)NAN;
}

/* Returns the percentage of tokens in `set` (a layer's most or least important tokens) that are
 * also in the next layer's set, averaged over layers. */
static double near(const kvd_tokens *t, kvd_t set, kvd_ranking by)
{
    return t->n_layers > 1 ? 100 * kvd_tokens_at_distance(t, set, by, 1).mean : (double)NAN;
}

/* Returns a - b in percent. a: tokens of `set` that neighbouring layers share; b: tokens of `set`
 * that the first and last layer share. */
static double rise(const kvd_tokens *t, kvd_t set, kvd_ranking by)
{
    return t->n_layers > 2
               ? near(t, set, by) - 100 * kvd_tokens_at_distance(t, set, by, t->n_layers - 1).mean
               : (double)NAN;
}

static double received_decades(const kvd_tokens *t)
{
    double sum = 0;
    for (int l = 0; l < t->n_layers; l++)
        sum += t->data[KVD_T_RECEIVED_DECADES][l];
    return sum / t->n_layers;
}

static double value_decades(const kvd_tokens *t)
{
    double most = 0;
    for (int l = 0; l < t->n_layers; l++)
        most = fmax(most, t->data[KVD_T_VALUE_DECADES][l]);
    return most;
}

static double more_decades(const kvd_tokens *t)
{
    double least = INFINITY;
    for (int l = 0; l < t->n_layers; l++)
        least = fmin(least, t->data[KVD_T_RECEIVED_DECADES][l] - t->data[KVD_T_VALUE_DECADES][l]);
    return least;
}

static double ratio(const double *x, int n)
{
    double least = x[0], most = x[0];
    for (int i = 1; i < n; i++) {
        least = fmin(least, x[i]);
        most = fmax(most, x[i]);
    }
    return most / least;
}

static double critical_layers(const kvd_tokens *t)
{
    return t->n_layers > 1 ? ratio(t->data[KVD_T_LAYER_MEAN] + P95 * t->n_layers, t->n_layers)
                           : (double)NAN;
}

static double critical_heads(const kvd_tokens *t)
{
    const int kv = t->model.n_kv_heads;
    double sum = 0;
    for (int l = 0; l < t->n_layers; l++)
        sum += ratio(t->data[KVD_T_KV_MEAN] + (P95 * t->n_layers + l) * kv, kv);
    return kv > 1 ? sum / t->n_layers : (double)NAN;
}

/* Returns the p-quantile of the standard normal distribution, for 0.5 <= p < 1. */
static double normal_quantile(double p)
{
    double lo = 0, hi = 40;
    for (int i = 0; i < 100; i++) {
        const double x = (lo + hi) / 2;
        *(0.5 * erfc(-x / sqrt(2)) < p ? &lo : &hi) = x;
    }
    return lo;
}

/* Returns a limit for the ratio of the largest to the smallest of n measured means. If the true
 * means are equal, the ratio exceeds this limit with a probability of at most 5 %. */
static double ratio_of_equals(const double *mean, const double *sd, int n, size_t n_requests)
{
    double all = 0, worst = 0;
    for (int i = 0; i < n; i++) {
        all += mean[i] / n;
        worst = fmax(worst, sd[i]);
    }
    const double z = normal_quantile(1 - 0.025 / n),
                 error = z * worst / sqrt((double)n_requests) / all;
    return error < 1 ? (1 + error) / (1 - error) : INFINITY;
}

static double layers_of_equals(const kvd_tokens *t)
{
    return ratio_of_equals(t->data[KVD_T_LAYER_MEAN] + P95 * t->n_layers,
                           t->data[KVD_T_LAYER_SD] + P95 * t->n_layers, t->n_layers, t->n_requests);
}

static double heads_of_equals(const kvd_tokens *t)
{
    const int kv = t->model.n_kv_heads;
    double most = 1;
    for (int l = 0; l < t->n_layers; l++) {
        const int at = (P95 * t->n_layers + l) * kv;
        most = fmax(most, ratio_of_equals(t->data[KVD_T_KV_MEAN] + at, t->data[KVD_T_KV_SD] + at,
                                          kv, t->n_requests));
    }
    return most;
}

static double critical_requests(const kvd_tokens *t)
{
    const int n = t->n_layers * t->model.n_kv_heads;
    double sum = 0;
    for (int i = P95 * n; i < (P95 + 1) * n; i++)
        sum += t->data[KVD_T_KV_SD][i] / t->data[KVD_T_KV_MEAN][i];
    return t->n_requests > 1 ? 100 * sum / n : (double)NAN;
}

static const struct {
    const char *name;
    double (*compute)(const kvd_tokens *t);
    /* returns the largest value that chance alone gives if all layers, or heads, are alike; NULL if
     * unknown */
    double (*most_of_equals)(const kvd_tokens *t);
} measures[] = {
    {"score-range", score_range, NULL},
    {"received-decades", received_decades, NULL},
    {"value-decades", value_decades, NULL},
    {"more-decades", more_decades, NULL},
    {"critical-layers", critical_layers, layers_of_equals},
    {"critical-heads", critical_heads, heads_of_equals},
    {"critical-requests", critical_requests, NULL},
};
enum { N_MEASURES = sizeof measures / sizeof *measures };

/* Measures of the important (or unimportant) tokens that two layers have in common. `by` says how
 * tokens were ranked by importance. */
static const struct {
    const char *name;
    double (*compute)(const kvd_tokens *t, kvd_t set, kvd_ranking by);
    kvd_t set;
    kvd_ranking by;
} shares[] = {
    {"near-unimportant", near, KVD_T_UNIMPORTANT, KVD_RANK_SCORE},
    {"near-important", near, KVD_T_IMPORTANT, KVD_RANK_SCORE},
    {"near-unimportant-as-key", near, KVD_T_UNIMPORTANT, KVD_RANK_SCORE_AS_KEY},
    {"near-important-as-key", near, KVD_T_IMPORTANT, KVD_RANK_SCORE_AS_KEY},
    {"near-unimportant-denominator", near, KVD_T_UNIMPORTANT, KVD_RANK_DENOMINATOR},
    {"near-important-denominator", near, KVD_T_IMPORTANT, KVD_RANK_DENOMINATOR},
    {"rise-unimportant", rise, KVD_T_UNIMPORTANT, KVD_RANK_SCORE},
    {"rise-important", rise, KVD_T_IMPORTANT, KVD_RANK_SCORE},
};
enum { N_SHARES = sizeof shares / sizeof *shares };

static int find(const char *name)
{
    for (int i = 0; i < N_MEASURES; i++)
        if (!strcmp(measures[i].name, name))
            return i;
    for (int i = 0; i < N_SHARES; i++)
        if (!strcmp(shares[i].name, name))
            return N_MEASURES + i;
    return -1;
}

bool kvd_token_measure_known(const char *name)
{
    return find(name) >= 0;
}

static double value_of(const kvd_tokens *t, int which)
{
    const int i = which - N_MEASURES;
    return i < 0 ? measures[which].compute(t) : shares[i].compute(t, shares[i].set, shares[i].by);
}

/* Finds the smallest and largest value of measure number `which` in results of *trained's model
 * with random weights. Returns false if there are no such results. */
static bool untrained(const kvd_results *r, const kvd_tokens *trained, int which, double *least,
                      double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_tokens *t = &r->item[i].tokens;
        if (r->item[i].kind != KVD_RESULT_TOKENS || !kvd_model_info_untrained(&t->model) ||
            strcmp(t->model.name, trained->model.name) || t->seq_len != trained->seq_len)
            continue;
        *least = fmin(*least, value_of(t, which));
        *most = fmax(*most, value_of(t, which));
    }
    return *least <= *most;
}

/* Returns the quantile of Student's t distribution for probability p (Abramowitz and Stegun
 * 26.7.5). The relative error is at most 0.1 % for 7 or more degrees of freedom. */
static double student_quantile(double p, double degrees)
{
    const double z = normal_quantile(p), z3 = z * z * z, z5 = z3 * z * z;
    return z + (z3 + z) / (4 * degrees) + (5 * z5 + 16 * z3 + 3 * z) / (96 * degrees * degrees);
}

/* Sets the 95 % interval of `value`, the percentage of tokens shared by neighbouring layers. */
static void interval_of_near(const kvd_tokens *t, kvd_t set, kvd_ranking by, double value,
                             kvd_measured *out)
{
    /* with fewer requests than this, no 95 % interval is given */
    enum { FEWEST = 8 };
    const kvd_t sd = set == KVD_T_IMPORTANT ? KVD_T_IMPORTANT_SD : KVD_T_UNIMPORTANT_SD;
    const size_t n = (size_t)t->n_layers;
    double sum = 0;
    if (t->n_kept < FEWEST)
        return;
    for (size_t l = 0; l + 1 < n; l++)
        sum += t->data[sd][((size_t)by * n + l) * n + l + 1] / (double)(n - 1);
    const double half =
        100 * student_quantile(0.975, (double)t->n_kept - 1) * sum / sqrt((double)t->n_kept);
    kvd_values_interval(out, value - half, value + half);
}

int kvd_token_measure(const kvd_results *r, const char *name, kvd_measured *out, kvd_err *err)
{
    const int which = find(name), share = which - N_MEASURES;
    for (size_t i = 0; i < r->n; i++) {
        const kvd_tokens *const t = &r->item[i].tokens;
        double least, most;
        if (r->item[i].kind != KVD_RESULT_TOKENS || kvd_model_info_untrained(&t->model))
            continue;
        const double value = value_of(t, which);
        if (kvd_values_put(out, value, err, "%s", r->item[i].name))
            return -1;
        if (!isfinite(value))
            continue;
        const bool random = untrained(r, t, which, &least, &most);
        if (share >= 0 && shares[share].compute == near)
            interval_of_near(t, shares[share].set, shares[share].by, value, out);
        if (share >= 0 && random)
            kvd_values_null(out, least, most);
        if (share < 0 && measures[which].most_of_equals) {
            const double equal = measures[which].most_of_equals(t);
            kvd_values_null(out, 1, random ? fmax(equal, most) : equal);
            if (!random)
                out->value[out->n - 1].null_name = "equal means, by their spread over requests";
        }
    }
    return 0;
}
