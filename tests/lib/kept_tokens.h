/* Records which tokens a method keeps after prompt and decode steps. */
#ifndef KVD_TESTS_KEPT_TOKENS_H
#define KVD_TESTS_KEPT_TOKENS_H

#include "code_rows.h"
#include "methods/head.h"

enum { KEPT_HEADS = 8 };

/* Runs n tokens through the method `text`. kept [n_kv_heads][1 + n - prompt][n]: 1 for tokens
 * stored (or read) after the prompt (index 0), then after each step. */
static inline kvd_stepwise_account kept_tokens(const char *text, const kvd_attention_in *in,
                                               size_t prompt, uint8_t *kept, float *out)
{
    static kvd_head h[KEPT_HEADS];
    const size_t n = in->n_tokens, n_kv = (size_t)in->config->n_kv_heads, steps = 1 + n - prompt;
    const kvd_method_setup setup = {.config = in->config, .drawn = true, .seed = 1};
    kvd_stepwise_account account[KEPT_HEADS] = {{0}}, sum = {0};
    kvd_plan plan;
    kvd_err err = {""};
    open_plan(&plan, text, prompt, &setup);
    assert_true(n_kv <= KEPT_HEADS);
    memset(kept, 0, n_kv * steps * n);
    for (size_t g = 0; g < n_kv; g++) {
        h[g] = (kvd_head){.p = &plan,
                          .n = n,
                          .n0 = prompt,
                          .g = (int)g,
                          .in = in,
                          .room = prompt,
                          .step_room = 1,
                          .account = &account[g]};
        kvd_head_describe(&h[g], in);
        if (kvd_head_allocate(&h[g], &err))
            fail_msg("%s", err.msg);
    }
    const size_t together = kvd_plan_heads_together(&plan) ? n_kv : 1;
    for (size_t end = prompt, from = 0; end <= n; from = end++)
        for (size_t g = 0; g < n_kv; g += together) {
            for (size_t i = g; i < g + together; i++) {
                h[i].base = h[i].first = from;
                h[i].end = end;
            }
            if (kvd_heads_take(&h[g], together, out, &err))
                fail_msg("%s", err.msg);
            for (size_t i = g; i < g + together; i++)
                for (size_t e = 0; e < h[i].m; e++)
                    kept[(i * steps + end - prompt) * n + h[i].position[e]] =
                        !plan.tokens->select || end == prompt || h[i].prob[e] > 0;
        }
    for (size_t g = 0; g < n_kv; g++) {
        kvd_stepwise_account_add(&sum, &account[g]);
        kvd_head_release(&h[g]);
    }
    kvd_plan_close(&plan);
    return sum;
}

#endif
