/* Method taskkv (He et al. 2025, Task-KV, arXiv 2501.15113). KV heads whose attention outputs
 * differ most from the mean over heads keep all prompt tokens; the other heads keep only `budget`
 * tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, WINDOW = KVD_WINDOW_ROWS, HEADS, SINK, MIDDLE };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "tokens that most heads keep: below 1 a fraction of the prompt, else a number"},
    {"window", 32, 1, 4096, true, "number of last rows of the prompt that choose"},
    {"heads", 0.25, 0, 1, false, "fraction of the KV heads of a layer that keep all tokens"},
    {"sink", 4, 0, 4096, true, "first tokens kept"},
    {"middle", 0.5, 0, 1, false,
     "fraction of the budget for tokens that are neither first nor last"},
    {NULL, 0, 0, 0, false, NULL},
};

/* For each KV head g: writes to x [g][d] its attention output, averaged over the prompt's last
 * `rows` queries, and to distance[g] the squared distance of this output from the mean over
 * heads. */
static void find_distances(const kvd_prompt_attention *p, size_t n_heads, size_t rows, double *x,
                           double *distance)
{
    const size_t d = p->d, n = p->n;
    memset(x, 0, n_heads * d * sizeof *x);
    for (size_t g = 0; g < n_heads; g++)
        for (int j = 0; j < p[g].group; j++)
            for (size_t t = 0; t < n; t++)
                for (size_t c = 0; c < d; c++)
                    x[g * d + c] += p[g].recent[(size_t)j * n + t] *
                                    (double)p[g].v[t * p[g].ld + c] / (double)rows / p[g].group;
    for (size_t g = 0; g < n_heads; g++) {
        distance[g] = 0;
        /* Two heads are always equally far from their mean; their distances are left at 0. */
        for (size_t c = 0; n_heads > 2 && c < d; c++) {
            double centre = 0;
            for (size_t i = 0; i < n_heads; i++)
                centre += x[i * d + c] / (double)n_heads;
            distance[g] += (x[g * d + c] - centre) * (x[g * d + c] - centre);
        }
    }
}

static void divide(const kvd_parameter_values *v, size_t budget, size_t *sink, size_t *middle,
                   size_t *last)
{
    const size_t asked = (size_t)v->value[SINK],
                 wanted = (size_t)(v->value[MIDDLE] * (double)budget);
    *sink = asked < budget ? asked : budget;
    *middle = wanted < budget - *sink ? wanted : budget - *sink;
    *last = budget - *sink - *middle;
}

static int drop(const kvd_parameter_values *v, const kvd_prompt_attention *p, double *score,
                uint8_t *level, kvd_err *err)
{
    const size_t n = p->n, budget = kvd_tokens_budget(v->value[BUDGET], n);
    size_t sink, middle, last;
    divide(v, budget, &sink, &middle, &last);
    if (budget >= n)
        return 0;
    for (size_t t = sink; t + last < n; t++) {
        score[t] = 0;
        for (int j = 0; j < p->group; j++)
            score[t] += p->recent[(size_t)j * n + t];
    }
    return kvd_tokens_keep_top(score + sink, n - last - sink, middle, level + sink, err);
}

static int prompt(const void *self, void *const *state, const kvd_prompt_attention *p,
                  size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t n = p->n, rows = kvd_tokens_window_rows(v) < n ? kvd_tokens_window_rows(v) : n,
                 whole = (size_t)ceil(v->value[HEADS] * (double)n_heads);
    double *const x = malloc((n_heads * (p->d + 1) + n) * sizeof *x);
    uint8_t *const head = malloc(n_heads);
    (void)state;
    int status = x && head ? 0 : kvd_no_memory(err, "semantic vectors", n * sizeof *x);
    double *const distance = x + n_heads * p->d;
    if (!status) {
        memset(head, KVD_LEVEL_HIGH, n_heads);
        find_distances(p, n_heads, rows, x, distance);
        status = kvd_tokens_keep_top(distance, n_heads, whole, head, err);
    }
    for (size_t g = 0; !status && g < n_heads; g++)
        if (head[g] == KVD_LEVEL_DROPPED)
            status = drop(v, &p[g], distance + n_heads, level[g], err);
    free(x);
    free(head);
    return status;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->window = (int32_t)v->value[WINDOW];
    rule->sink = (int32_t)v->value[SINK];
    rule->whole_heads = v->value[HEADS];
}

/* Returns the token budget of those KV heads that do not keep all prompt tokens. */
static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    size_t sink, middle, last;
    divide(v, kvd_tokens_budget(v->value[BUDGET], r->prompt), &sink, &middle, &last);
    return kvd_evict_once(sink + middle, last);
}

const kvd_tokens_method kvd_tokens_taskkv = {
    .info = {.name = "taskkv",
             .summary = "the whole prompt in KV heads that differ most, few tokens in others",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.02, true, NULL, 0, 0},
             .gpu = &kvd_gpu_uneven,
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget},
    .window = kvd_tokens_window_rows,
    .check = kvd_tokens_check_budget,
    .prompt_heads = prompt,
};
