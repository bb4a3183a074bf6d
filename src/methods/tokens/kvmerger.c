/* Method kvmerger: merges each run of prompt tokens with similar keys into its token with the most
 * attention (Wang et al. 2024, KVMerger, arXiv 2407.08454, section 4). Merging weights are Gaussian
 * functions of the distance between keys. */
#include <math.h>
#include <stdlib.h>

#include "methods/tokens/tokens.h"

enum { THRESHOLD, HEAVY, RECENT };
static const kvd_parameter parameters[] = {
    {"threshold", 0.75, -1, 1, false, "neighbours whose keys have a larger cosine are merged"},
    {"heavy", 0.12, 0, KVD_BUDGET_MOST, false,
     "heavy hitters left whole: below 1 a fraction of the prompt, else a number"},
    {"recent", 0.17, 0, KVD_BUDGET_MOST, false, "newest tokens left whole, as heavy"},
    {NULL, 0, 0, 0, false, NULL},
};

/* Returns the bytes of a KV head's state for n tokens. It has, for each token, the index of the
 * token into which it merges. */
static size_t state_bytes(const void *self, size_t n)
{
    (void)self;
    return n * sizeof(size_t);
}

static double cosine(const float *a, const float *b, size_t d)
{
    const double lengths = sqrt(kvd_tokens_dot(a, a, d) * kvd_tokens_dot(b, b, d));
    return kvd_tokens_dot(a, b, d) / fmax(lengths, 1e-30);
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t recent = kvd_tokens_budget(v->value[RECENT], p->n),
                 old = p->n > recent ? p->n - recent : 0;
    size_t *const pivot = state;
    uint8_t *const heavy = malloc(old + 1);
    if (!heavy)
        return kvd_no_memory(err, "heavy hitters", old);
    for (size_t t = 0; t < old; t++)
        heavy[t] = KVD_LEVEL_HIGH;
    if (kvd_tokens_keep_top(p->mass, old, kvd_tokens_budget(v->value[HEAVY], p->n), heavy, err)) {
        free(heavy);
        return -1;
    }
    for (size_t t = old; t < p->n; t++)
        pivot[t] = t;
    for (size_t from = 0, to; from < old; from = to) {
        size_t most = from;
        for (to = from + 1;
             to < old && heavy[to - 1] == KVD_LEVEL_DROPPED && heavy[to] == KVD_LEVEL_DROPPED &&
             cosine(p->k + (to - 1) * p->ld, p->k + to * p->ld, p->d) > v->value[THRESHOLD];
             to++)
            most = p->mass[to] > p->mass[most] ? to : most;
        for (size_t t = from; t < to; t++) {
            pivot[t] = most;
            level[t] = t == most ? KVD_LEVEL_HIGH : KVD_LEVEL_DROPPED;
        }
    }
    free(heavy);
    return 0;
}

static double distance(const kvd_merge_choice *c, size_t i, size_t j)
{
    double sum = 0;
    for (size_t a = 0; a < c->d_k; a++) {
        const double x = (double)c->k[i * c->d_k + a] - (double)c->k[j * c->d_k + a];
        sum += x * x;
    }
    return sqrt(sum);
}

static int merge(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err)
{
    const size_t *const pivot = state;
    (void)self, (void)err;
    for (size_t from = 0, to; from < c->n; from = to) {
        double mean = 0;
        for (to = from + 1; to < c->n && pivot[to] == pivot[from];)
            to++;
        for (size_t i = from; i < to; i++)
            mean += distance(c, i, pivot[from]) / (double)(to - from);
        for (size_t i = from; i < to; i++) {
            const double x = distance(c, i, pivot[from]);
            weight[i] = mean > 0 ? exp(-x * x / (mean * mean)) : 1;
            into[i] = i == pivot[from] ? c->n : pivot[from];
        }
    }
    return 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->merge = KVD_MERGE_RUNS;
    rule->cosine = v->value[THRESHOLD];
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    return kvd_evict_once(kvd_tokens_budget(v->value[HEAVY], r->prompt),
                          kvd_tokens_budget(v->value[RECENT], r->prompt));
}

const kvd_tokens_method kvd_tokens_kvmerger = {
    .info = {.name = "kvmerger",
             .summary = "runs of tokens with similar keys merged into one each",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"threshold", 0.95, 0.05, false, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_uneven},
    .eviction = &(
        const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget, .whole_keys = true},
    .state_bytes = state_bytes,
    .prompt = prompt,
    .merge = merge,
};
