/* Method elasticcache: merges dropped prompt tokens into the nearest kept tokens. Decode steps drop
 * the cached token at a fixed index, `distance` tokens before the end of the compressed prompt (Liu
 * et al. 2024, Elastic Cache, arXiv 2407.18121, section 3). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, SINK, DISTANCE };
static const kvd_parameter parameters[] = {
    {"budget", 0.5, 0, KVD_BUDGET_MOST, false,
     "tokens kept: below 1 a fraction of those so far, else a number"},
    {"sink", 1, 0, 4096, true, "first tokens kept, which nothing is merged into"},
    {"distance", 25, 1, 1 << 20, true,
     "entries between the one that a step drops and the end of the compressed prompt"},
    {NULL, 0, 0, 0, false, NULL},
};

typedef struct {
    size_t at; /* index that a step drops if the cache is over budget */
} state_of_head;

static size_t state_bytes(const void *self, size_t n)
{
    (void)self, (void)n;
    return sizeof(state_of_head);
}

typedef struct {
    /* sink: number of first prompt tokens, which always stay. wanted: number of tokens to keep
     * between these and the last token. */
    size_t sink, wanted;
    size_t at; /* index that a decode step drops */
} choice;

static choice choose(const kvd_parameter_values *v, size_t n)
{
    const size_t asked = (size_t)v->value[SINK], budget = kvd_tokens_budget(v->value[BUDGET], n),
                 sink = asked + 1 < n ? asked : n - 1, anchors = n - 1 - sink,
                 wanted = budget > sink + 1 ? budget - sink - 1 : 1,
                 kept = sink + 1 + (wanted < anchors ? wanted : anchors),
                 distance = (size_t)v->value[DISTANCE];
    return (choice){sink, wanted, kept > distance ? kept - distance : kept / 2};
}

static int prompt(const void *self, void *const *state, const kvd_prompt_attention *p,
                  size_t n_heads, uint8_t *const *level, kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t n = p->n;
    const choice c = choose(v, n);
    double *const score = calloc(n, sizeof *score);
    if (!score)
        return kvd_no_memory(err, "scores of a layer", n * sizeof *score);
    for (size_t g = 0; g < n_heads; g++)
        for (size_t t = 0; t < n; t++)
            score[t] += p[g].mass[t];
    const int status =
        kvd_tokens_keep_top(score + c.sink, n - 1 - c.sink, c.wanted, level[0] + c.sink, err);
    for (size_t g = 0; g < n_heads; g++) {
        state_of_head *const s = state[g];
        memmove(level[g], level[0], n);
        s->at = c.at;
    }
    free(score);
    return status;
}

static int merge(const void *self, void *state, const kvd_merge_choice *c, size_t *into,
                 double *weight, kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const size_t sink = (size_t)v->value[SINK], none = c->n;
    size_t before = none, after = none;
    (void)state, (void)weight, (void)err;
    for (size_t i = sink; i + 1 < c->n; i++) {
        if (c->level[i] != KVD_LEVEL_DROPPED) {
            before = i;
            continue;
        }
        for (after = i + 1; after + 1 < c->n && c->level[after] == KVD_LEVEL_DROPPED;)
            after++;
        if (after + 1 >= c->n)
            after = none;
        into[i] = before == none || (after != none && after - i < i - before) ? after : before;
    }
    return 0;
}

static int step(const void *self, void *state, const kvd_step_attention *a, uint8_t *level,
                kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    const state_of_head *const s = state;
    const double budget = v->value[BUDGET],
                 most = budget < 1 ? ceil(budget * (double)(a->now + 1)) : budget;
    (void)err;
    if ((double)a->n > most && s->at + 1 < a->n)
        level[s->at] = KVD_LEVEL_DROPPED;
    return 0;
}

static void evict_rule(const kvd_parameter_values *v, kvd_evict_rule *rule)
{
    rule->whole_layer = 1;
    rule->sink = (int32_t)v->value[SINK];
    rule->merge = KVD_MERGE_NEAREST;
    rule->fixed = 1;
}

static kvd_evict_budget evict_budget(const kvd_parameter_values *v, const kvd_evict_request *r)
{
    const choice c = choose(v, r->prompt);
    const double budget = v->value[BUDGET];
    kvd_evict_budget b = kvd_evict_once(c.sink + c.wanted, 1);
    b.at = kvd_evict_count(c.at);
    b.share = budget < 1 ? budget : 0;
    b.limit = budget < 1 ? INT32_MAX : (int32_t)budget;
    return b;
}

const kvd_tokens_method kvd_tokens_elasticcache = {
    .info = {.name = "elasticcache",
             .summary = "tokens merged into the nearest important one, then a moving window",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.9, 0.05, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = evict_rule, .budget = evict_budget},
    .check = kvd_tokens_check_budget,
    .state_bytes = state_bytes,
    .prompt_heads = prompt,
    .step = step,
    .merge = merge,
};
