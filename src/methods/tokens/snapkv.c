/* Method snapkv: keeps the prompt tokens to which the prompt's last tokens attend most (Li et al.
 * 2024, SnapKV, section 4). A token's score is averaged over `kernel` neighbouring tokens. */
#include "methods/tokens/tokens.h"

static const kvd_parameter parameters[] = {
    {"budget", 0.2, 0, KVD_BUDGET_MOST, false,
     "older tokens kept: below 1 a fraction of the prompt, else a number"},
    {"window", 32, 1, 4096, true, "number of last rows of the prompt that choose"},
    {"kernel", 7, 1, 255, true, "number of neighbours averaged; odd"},
    {NULL, 0, 0, 0, false, NULL},
};

static int prompt(const void *self, void *state, const kvd_prompt_attention *p, uint8_t *level,
                  kvd_err *err)
{
    const kvd_parameter_values *const v = kvd_tokens_values(self);
    (void)state;
    return kvd_tokens_window_keep(v, p, kvd_tokens_budget(v->value[KVD_WINDOW_BUDGET], p->n), level,
                                  err);
}

const kvd_tokens_method kvd_tokens_snapkv = {
    .info = {.name = "snapkv",
             .summary = "tokens of the prompt that its last rows attend to",
             .parameter = parameters,
             .tradeoff = &(const kvd_tradeoff){"budget", 0.45, 0.02, true, NULL, 0, 0},
             .needs = KVD_NEEDS_PROBABILITIES | KVD_NEEDS_PROMPT,
             .gpu = &kvd_gpu_evict},
    .eviction = &(const kvd_tokens_eviction){.rule = kvd_tokens_window_rule,
                                             .budget = kvd_tokens_window_budget},
    .window = kvd_tokens_window_rows,
    .check = kvd_tokens_check_window,
    .prompt = prompt,
};
