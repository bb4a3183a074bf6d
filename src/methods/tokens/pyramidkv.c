/*
 * Method pyramidkv: snapkv with budgets that fall linearly with the layer (PyramidKV, Cai et al.
 * 2024, arXiv 2406.02069, section 3.2 and its code). Without the last `window` tokens, they fall
 * from 2 * budget - budget / beta to budget / beta.
 */
#include <math.h>
#include <stdlib.h>

#include "methods/tokens/tokens.h"

enum { BETA = KVD_WINDOW_KEYS };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept, mean over layers: below 1 a fraction of the prompt, else a number"},
    {"window", 32, 1, 4096, true, "number of last rows of the prompt that choose"},
    {"kernel", 7, 1, 255, true, "number of neighbours averaged; odd"},
    {"beta", 20, 1, 1e6, false, "the last layer keeps budget / beta older tokens"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_tradeoff tradeoff = {"budget", 0.45, 0.02, true, NULL, 0, 0};

typedef struct {
    const kvd_parameter_values *v;
    int n_layers;
} pyramid;

static int open(const kvd_parameter_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    if (kvd_tokens_open_window(v, s, self, err))
        return -1;
    pyramid *const p = malloc(sizeof *p);
    if (!p)
        return kvd_no_memory(err, "a method", sizeof *p);
    *p = (pyramid){v, s->config->n_layers};
    *self = p;
    return 0;
}

static size_t budget_of(const pyramid *s, int layer, double budget, size_t old)
{
    double least = budget / s->v->value[BETA], most = 2 * budget - least;
    if (most > (double)old) {
        most = (double)old;
        least = 2 * budget - most;
    }
    if (s->n_layers < 2 || least >= most)
        return (size_t)budget;
    return (size_t)nearbyint(most - layer * (most - least) / (s->n_layers - 1));
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const pyramid *const s = self;
    const size_t old = kvd_tokens_window_old(s->v, p),
                 budget = kvd_tokens_budget(s->v->value[KVD_WINDOW_BUDGET], p->n);
    double *const score = malloc((old + 1) * sizeof *score);
    (void)state;
    if (!score)
        return kvd_no_memory(err, "scores of a prompt", old * sizeof *score);
    kvd_tokens_window_scores(s->v, p, score);
    const int status =
        kvd_tokens_keep_top(score, old, budget_of(s, p->layer, (double)budget, old), level, err);
    free(score);
    return status;
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const pyramid all = {v, r->n_layers};
    const size_t rows = kvd_tokens_window_rows(v), old = r->prompt > rows ? r->prompt - rows : 0,
                 mean = kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], r->prompt);
    return kvd_evict_once(budget_of(&all, r->layer, (double)mean, old), rows);
}

static const kvd_tokens_eviction eviction = {.rule = kvd_tokens_window_rule,
                                             .budget = evict_budget};

const kvd_tokens_method kvd_tokens_pyramidkv = {
    .info =
        {
            .name = "pyramidkv",
            .summary = "snapkv with budgets that fall from layer to layer",
            .parameter = parameters,
            .tradeoff = &tradeoff,
            .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
            .gpu = &kvd_gpu_uneven,
        },
    .eviction = &eviction,
    .window = kvd_tokens_window_rows,
    .open = open,
    .close = free,
    .prompt = prompt,
};
