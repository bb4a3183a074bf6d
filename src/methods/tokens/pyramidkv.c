/* Method pyramidkv: like method snapkv, but token budgets fall from the first to the last layer
 * (Cai et al. 2024). */
#include <math.h>

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

static size_t budget_of(const kvd_parameter_values *v, int layer, int n_layers, double budget,
                        size_t old)
{
    double least = budget / v->value[BETA], most = 2 * budget - least;
    if (most > (double)old) {
        most = (double)old;
        least = 2 * budget - most;
    }
    if (n_layers < 2 || least >= most)
        return (size_t)budget;
    return (size_t)nearbyint(most - layer * (most - least) / (n_layers - 1));
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_tokens_self *const s = self;
    const size_t mean = kvd_tokens_budget(s->v->value[KVD_WINDOW_BUDGET], p->n),
                 old = kvd_tokens_window_old(s->v, p->n);
    (void)state;
    return kvd_tokens_window_keep(
        s->v, p, budget_of(s->v, p->layer, s->config->n_layers, (double)mean, old), level, err);
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const size_t mean = kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], r->prompt),
                 old = kvd_tokens_window_old(v, r->prompt);
    return kvd_evict_once(budget_of(v, r->layer, r->n_layers, (double)mean, old),
                          kvd_tokens_window_rows(v));
}

const kvd_tokens_method kvd_tokens_pyramidkv = {
    .info = {.name = "pyramidkv",
             .summary = "snapkv with budgets that fall from layer to layer",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.45, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_uneven},
    .eviction =
        &(const kvd_tokens_eviction){.rule = kvd_tokens_window_rule, .budget = evict_budget},
    .window = kvd_tokens_window_rows,
    .check = kvd_tokens_check_window,
    .prompt = prompt,
};
