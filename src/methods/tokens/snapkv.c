/*
 * snapkv: the prompt's tokens that the last rows of the prompt look at (Li et al. 2024, "SnapKV: LLM Knows What You are Looking for
 * Before Generation", section 4 and its public code).
 *
 * The probabilities of the last `window` rows are summed for every older token, smoothed by averaging over `kernel` neighbours,
 * so that clusters stay together, and the `budget` largest stay beside the window itself. Query heads that read one KV head are
 * summed. Nothing is evicted after the prompt.
 */
#include <stdlib.h>

#include "methods/tokens/tokens.h"

enum { BUDGET, WINDOW, KERNEL };
static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, 1 << 24, false, "older tokens that stay: a share of the prompt below 1, else tokens"},
    {"window", 32, 1, 4096, true, "last rows of the prompt that choose"},
    {"kernel", 7, 1, 255, true, "neighbours that are averaged; odd"},
    {NULL, 0, 0, 0, false, NULL},
};
static const kvd_rate rate = {"budget", 0.45, 0.02, true, NULL, 0, 0};

static size_t window(const kvd_values *v)
{
    return (size_t)v->value[WINDOW];
}

static int open(const kvd_values *v, const kvd_method_setup *s, void **self, kvd_err *err)
{
    (void)s;
    if (kvd_tokens_check_budget("budget", v->value[BUDGET], err))
        return -1;
    if ((size_t)v->value[KERNEL] % 2 == 0)
        return kvd_fail(err, "kernel = %g is not odd", v->value[KERNEL]);
    *self = (void *)(uintptr_t)v;
    return 0;
}

static size_t state_bytes(const void *self, size_t n)
{
    (void)self, (void)n;
    return 0;
}

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level, kvd_err *err)
{
    const kvd_values *const v = self;
    const size_t newest = (size_t)v->value[WINDOW], old = p->n > newest ? p->n - newest : 0;
    const size_t half = (size_t)v->value[KERNEL] / 2;
    double *const smooth = malloc((old + 1) * sizeof *smooth);
    (void)state;
    if (!smooth)
        return kvd_no_memory(err, "scores of a prompt", old * sizeof *smooth);
    for (size_t t = 0; t < old; t++) {
        const size_t from = t > half ? t - half : 0, to = t + half + 1 < old ? t + half + 1 : old;
        smooth[t] = 0;
        for (int j = 0; j < p->group; j++)
            for (size_t i = from; i < to; i++)
                smooth[t] += p->recent[(size_t)j * p->n + i];
    }
    const int status =
        kvd_tokens_keep_top(smooth, old, kvd_tokens_budget(v->value[BUDGET], p->n), level, err);
    free(smooth);
    return status;
}

const kvd_tokens_method kvd_tokens_snapkv = {.name = "snapkv",
                                             .summary = "tokens of the prompt that its last rows attend to",
                                             .parameter = parameters,
                                             .rate = &rate,
                                             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
                                             .window = window,
                                             .open = open,
                                             .state_bytes = state_bytes,
                                             .prompt = prompt};
