/* Method mpcache: drops prompt tokens that get little attention. Decode steps then read only the
 * clusters of tokens whose keys are most similar to the query (Zeng et al. 2025, MPCache, arXiv
 * 2501.06807, section 4). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, THRESHOLD, ROWS, FIRST, LARGE, SMALL, ALPHA };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "entries read by a step, in small clusters: below 1 a fraction of those held, else a number"},
    {"threshold", 1e-3, 0, 1, false, "a token stays if a late row gives it this mean probability"},
    {"rows", 0.2, 0, 1, false, "fraction of the prompt's rows, its last ones, that decide"},
    {"first", 0.5, 0, 1, false, "fraction of the large clusters whose small clusters are examined"},
    {"large", 32, 1, 4096, true, "number of entries of a large cluster; a multiple of small"},
    {"small", 16, 1, 4096, true, "number of entries of a small cluster"},
    {"alpha", 0.6, 0, 1, false, "weight of the largest numbers of a cluster"},
    {NULL, 0, 0, 0, false, NULL},
};

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    if ((size_t)v->value[LARGE] % (size_t)v->value[SMALL])
        return kvd_fail(err, "large = %g is not a multiple of small = %g", v->value[LARGE],
                        v->value[SMALL]);
    return kvd_tokens_check_budget(v, err);
}

static int prompt(const void *self, void *const *state, const kvd_prompt_attention *p,
                  size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const kvd_tokens_self *const m = self;
    const size_t n = p->n, rows = (size_t)ceil(m->v->value[ROWS] * (double)n);
    const kvd_observed_prompt all = {
        .layer = p->layer, .n = n, .q = p->q, .k = p->k, .sinks = p->sinks};
    double *const a = malloc(3 * n * sizeof *a);
    (void)state;
    if (!a)
        return kvd_no_memory(err, "probabilities of a row", 3 * n * sizeof *a);
    double *const mean = a + n;
    memset(level[0], KVD_LEVEL_DROPPED, n - 1); /* the newest token always stays */
    for (size_t t = n - rows; t < n; t++) {
        memset(mean, 0, n * sizeof *mean);
        for (int h = 0; h < m->config->n_heads; h++) {
            kvd_tokens_probabilities(m->config, &all, h, t, (float *)(void *)(mean + n), a);
            for (size_t i = 0; i <= t; i++)
                mean[i] += a[i] / m->config->n_heads;
        }
        for (size_t i = 0; i <= t; i++)
            if (mean[i] >= m->v->value[THRESHOLD])
                level[0][i] = KVD_LEVEL_HIGH;
    }
    for (size_t g = 1; g < n_heads; g++)
        memcpy(level[g], level[0], n);
    free(a);
    return 0;
}

/* Returns the size in bits of what `select` reads: the extremes of each key channel in each small
 * cluster of tokens. */
static double select_bits(const void *self, const void *state, const uint32_t *position, size_t n,
                          size_t d, size_t number_bits)
{
    (void)state;
    const kvd_tokens_self *const m = self;
    const size_t small = (size_t)m->v->value[SMALL];
    (void)position;
    return 2 * (double)((n + small - 1) / small * d * number_bits);
}

/* Computes how similar each cluster of `size` adjacent tokens is to the queries (output: likeness).
 * Returns the number of clusters. */
static size_t compare(const kvd_tokens_self *m, const kvd_read_choice *c, size_t size,
                      double *likeness)
{
    const double alpha = m->v->value[ALPHA];
    size_t n = 0;
    for (size_t from = 0; from < c->n; from += size, n++) {
        const size_t to = from + size < c->n ? from + size : c->n;
        likeness[n] = 0;
        for (size_t j = 0; j < c->d; j++) {
            float low = c->k[from * c->d + j], high = low;
            double q = 0;
            for (size_t i = from + 1; i < to; i++) {
                low = fminf(low, c->k[i * c->d + j]);
                high = fmaxf(high, c->k[i * c->d + j]);
            }
            for (int g = 0; g < c->group; g++)
                q += (double)c->q[(size_t)g * c->ldq + j];
            likeness[n] += q * (alpha * (double)high + (1 - alpha) * (double)low);
        }
    }
    return n;
}

static int choose(const void *self, void *state, const kvd_read_choice *c, uint8_t *read,
                  kvd_err *err)
{
    const kvd_tokens_self *const m = self;
    const size_t large = (size_t)m->v->value[LARGE], small = (size_t)m->v->value[SMALL],
                 most = (c->n + small - 1) / small;
    const double budget = m->v->value[BUDGET];
    double *const likeness = malloc(most * sizeof *likeness);
    uint8_t *const examined = malloc(2 * most), *const chosen = examined + most;
    (void)state;
    int status = likeness && examined ? 0 : kvd_no_memory(err, "clusters", most * sizeof *likeness);
    if (!status) {
        const size_t n = compare(m, c, large, likeness);
        memset(examined, KVD_LEVEL_HIGH, n);
        status = kvd_tokens_keep_top(likeness, n, (size_t)(m->v->value[FIRST] * (double)n),
                                     examined, err);
        examined[0] = examined[n - 1] = KVD_LEVEL_HIGH;
    }
    if (!status) {
        const size_t n = compare(m, c, small, likeness),
                     wanted =
                         (size_t)(budget < 1 ? budget * (double)n : ceil(budget / (double)small));
        for (size_t i = 0; i < n; i++)
            if (examined[i * small / large] == KVD_LEVEL_DROPPED)
                likeness[i] = -INFINITY;
        memset(chosen, KVD_LEVEL_HIGH, n);
        status = kvd_tokens_keep_top(likeness, n, wanted, chosen, err);
        for (size_t i = 0; i < n && wanted < n; i++)
            if (isinf(likeness[i]))
                chosen[i] = KVD_LEVEL_DROPPED;
        chosen[0] = chosen[n - 1] = KVD_LEVEL_HIGH;
    }
    for (size_t i = 0; !status && i < c->n; i++)
        read[i] = chosen[i / small] != KVD_LEVEL_DROPPED;
    free(examined);
    free(likeness);
    return status ? -1 : 0;
}

static kvd_read_rule read_rule(const kvd_parameter_values *v)
{
    return (kvd_read_rule){.budget = v->value[BUDGET],
                           .page = (size_t)v->value[SMALL],
                           .ranking = KVD_READ_CLUSTERS,
                           .large = (int32_t)v->value[LARGE],
                           .first = v->value[FIRST],
                           .alpha = v->value[ALPHA],
                           .rows = v->value[ROWS],
                           .threshold = v->value[THRESHOLD]};
}

const kvd_tokens_method kvd_tokens_mpcache = {
    .info = {.name = "mpcache",
             .summary = "tokens that late rows attend to, of which steps read clusters",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_selection},
    .read_rule = read_rule,
    .check = check,
    .prompt_heads = prompt,
    .select = choose,
    .select_bits = select_bits,
};
