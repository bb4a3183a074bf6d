#include "model/pass/routing.h"

#include <math.h>
#include <stdbool.h>

/* Computes the scores of the experts for a token: softmax or sigmoids of the router's logits. */
static void scores(const kvd_config *c, const float *logit, double *score)
{
    const size_t n = (size_t)c->n_experts;
    double top = -INFINITY, sum = 0;
    for (size_t x = 0; x < n; x++)
        top = fmax(top, (double)logit[x]);
    for (size_t x = 0; x < n; x++) {
        score[x] =
            c->route_sigmoid ? 1 / (1 + exp(-(double)logit[x])) : exp((double)logit[x] - top);
        sum += score[x];
    }
    for (size_t x = 0; x < n && !c->route_sigmoid; x++)
        score[x] /= sum;
}

static size_t best_of(const double *value, const bool *taken, size_t n)
{
    size_t best = n;
    for (size_t i = 0; i < n; i++)
        if (!taken[i] && value[i] > -INFINITY && (best == n || value[i] > value[best]))
            best = i;
    return best;
}

/* Returns the value of a group of n experts: the sum of its two largest values if `two` is true and
 * n > 1, else its largest value. */
static double value_of_group(const double *value, size_t n, bool two)
{
    double first = -INFINITY, second = -INFINITY;
    for (size_t i = 0; i < n; i++)
        if (value[i] > first) {
            second = first;
            first = value[i];
        } else if (value[i] > second) {
            second = value[i];
        }
    return two && n > 1 ? first + second : first;
}

static void limit_groups(const kvd_config *c, const double *value, double *of_group, bool *taken)
{
    const size_t n = (size_t)c->n_experts, groups = (size_t)c->expert_groups, each = n / groups;
    bool stays[KVD_CONFIG_EXPERTS] = {false};
    for (size_t g = 0; g < groups; g++)
        of_group[g] = value_of_group(value + g * each, each, c->route_sigmoid);
    for (int i = 0; i < c->groups_chosen; i++) {
        const size_t g = best_of(of_group, stays, groups);
        if (g < groups)
            stays[g] = true;
    }
    for (size_t x = 0; x < n; x++)
        taken[x] = !stays[x / each];
}

void kvd_route_groups(const kvd_config *c, const float *logit, const float *bias, double *scratch,
                      size_t *expert, float *factor)
{
    const size_t n = (size_t)c->n_experts, chosen = (size_t)c->n_chosen;
    double *const score = scratch, *const value = scratch + n, sum = 0;
    bool taken[KVD_CONFIG_EXPERTS];
    scores(c, logit, score);
    for (size_t x = 0; x < n; x++)
        value[x] = score[x] + (bias ? (double)bias[x] : 0);
    limit_groups(c, value, scratch + 2 * n, taken);
    for (size_t j = 0; j < chosen; j++) {
        const size_t best = best_of(value, taken, n);
        expert[j] = best < n ? best : 0;
        if (best < n)
            taken[best] = true;
        factor[j] = best < n ? (float)score[best] : NAN;
        sum += (double)factor[j];
    }
    /* Divides routing weights by their sum plus 1e-20, which avoids 0 / 0, as in Hugging Face's
     * code. */
    for (size_t j = 0; j < chosen; j++)
        factor[j] =
            (float)((double)factor[j] / (c->chosen_add_up ? sum + 1e-20 : 1) * c->expert_scale);
}
