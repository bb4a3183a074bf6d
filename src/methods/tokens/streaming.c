/* Method streaming: keeps the first tokens of the sequence and the newest ones (Xiao et al.
 * 2024). */
#include "methods/tokens/tokens.h"

enum { SINK, RECENT };
static const kvd_parameter parameters[] = {
    {"sink", 4, 0, 1 << 20, true, "first tokens kept"},
    {"recent", 0.2, 0, KVD_BUDGET_MOST, false,
     "newest tokens kept: below 1 a fraction of the sequence, else a number"},
    {NULL, 0, 0, 0, false, NULL},
};

static int check(const kvd_parameter_values *v, kvd_err *err)
{
    return v->value[RECENT] <= 0
               ? kvd_fail(err, "recent = 0 drops every token before its own row can read it")
               : 0;
}

static void drop(const kvd_parameter_values *v, size_t n, size_t n_expected, uint8_t *level)
{
    const size_t sink = (size_t)v->value[SINK],
                 recent = kvd_tokens_budget(v->value[RECENT], n_expected);
    for (size_t i = sink; i + recent < n; i++)
        level[i] = KVD_LEVEL_DROPPED;
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    (void)state, (void)err;
    drop(kvd_tokens_values(self), p->n, p->n_expected, level);
    return 0;
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    (void)state, (void)err;
    drop(kvd_tokens_values(self), a->n, a->n_expected, level);
    return 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    (void)v;
    rule->ranking = KVD_EVICT_FIRST;
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    return kvd_evict_always((size_t)v->value[SINK], kvd_tokens_budget(v->value[RECENT], r->whole),
                            r);
}

const kvd_tokens_method kvd_tokens_streaming = {
    .info = {.name = "streaming",
             .summary = "the first tokens and the newest",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"recent", 0.9, 0.02, true, NULL, 0, 0},
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget},
    .check = check,
    .prompt = prompt,
    .step = step,
};
