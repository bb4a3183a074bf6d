#ifndef KVD_TESTS_CODE_ROWS_H
#define KVD_TESTS_CODE_ROWS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "methods/head.h"
#include "methods/method.h"
#include "model/checkpoint/safetensors.h"
#include "unit.h"

static inline kvd_method parsed(const char *text)
{
    kvd_method m;
    kvd_err err = {""};
    OK(kvd_method_parse(text, &m, &err));
    return m;
}

/* Prepares compression method `text`, such as "kivi,bits=4". The caller closes *p. */
static inline void open_plan(kvd_plan *p, const char *text, size_t prompt,
                             const kvd_method_setup *setup)
{
    kvd_err err = {""};
    *p = parsed(text).plan;
    p->prompt = prompt;
    if (kvd_plan_open(p, setup, &err))
        fail_msg("%s: %s", text, err.msg);
}

/* Checks that preparing compression method `text` fails with `message`. */
static inline void refuse_plan(const char *text, size_t prompt, const kvd_method_setup *setup,
                               const char *message)
{
    kvd_err err = {""};
    kvd_plan p = parsed(text).plan;
    p.prompt = prompt;
    assert_int_equal(kvd_plan_open(&p, setup, &err), -1);
    if (!strstr(err.msg, message))
        fail_msg("%s: %s", text, err.msg);
}

/* Returns the n elements of the tensor `name`. The caller must know their type. */
static inline const void *tensor_of(const kvd_safetensors *file, const char *name, size_t n)
{
    kvd_tensor t;
    kvd_err err = {""};
    if (kvd_safetensors_find(file, name, &t, &err))
        fail_msg("%s: %s", name, err.msg);
    assert_int_equal(t.n, n);
    return t.data;
}

/* Returns the sum of the squares of a - b, or of a if b is NULL. */
static inline double squares(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += pow((double)a[i] - (b ? (double)b[i] : 0), 2);
    return sum;
}

/* Quantises and restores the vectors b.x by the method `text`. If b.position is NULL, positions are
 * 0, 1, ...; if b.level is NULL, all tokens get high precision. */
static inline void code_rows(const char *text, const kvd_method_setup *setup, kvd_bits_block b,
                             float *decoded, kvd_bits_count *count)
{
    uint32_t *const position = malloc(b.n * sizeof *position);
    uint8_t *const level = malloc(b.n);
    const kvd_method m = parsed(text);
    void *self = NULL;
    kvd_err err = {""};
    assert_true(position && level);
    for (size_t i = 0; i < b.n; i++) {
        position[i] = (uint32_t)i;
        level[i] = KVD_LEVEL_HIGH;
    }
    b.position = b.position ? b.position : position;
    b.level = b.level ? b.level : level;
    const kvd_bits_method *const bits = m.plan.bits;
    OK(kvd_bits_open(bits, &m.plan.bits_values, setup, &self, &err) ||
       bits->code(self, &b, decoded, count, &err));
    kvd_bits_close(bits, self);
    free(position);
    free(level);
}

enum { KEPT_HEADS = 8 };

/* Sets kept [KV head][prompt or decode step][token] to 1 for tokens that the method `text` stores.
 * If the method selects tokens in each step, a 1 marks a token that it reads. */
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
