/* Q, K and V of a layer, and tokens that public implementations of methods such as SnapKV keep
 * (tests/data/token_methods.safetensors). */
#ifndef KVD_TESTS_TOKEN_ROWS_H
#define KVD_TESTS_TOKEN_ROWS_H

#include <math.h>
#include <string.h>

#include "code_rows.h"
#include "model/checkpoint/safetensors.h"

enum { N = 96, PROMPT = 64, STEPS = 1 + N - PROMPT, HEADS = 4, KV = 2, D = 16, LAYERS = 4 };

static kvd_safetensors *file;
static const kvd_config config = {.n_layers = LAYERS,
                                  .n_heads = HEADS,
                                  .n_kv_heads = KV,
                                  .d_head = D,
                                  .max_positions = 256,
                                  .rope_theta = 1e4};
static const size_t offset[] = {0, N};
static uint8_t kept[KV * STEPS * N];
static float out[N * HEADS * D];

static inline kvd_attention_in rows(int layer)
{
    return (kvd_attention_in){.config = &config,
                              .layer = layer,
                              .n_sequences = 1,
                              .offset = offset,
                              .n_tokens = N,
                              .q = tensor_of(file, "q", N * HEADS * D),
                              .k = tensor_of(file, "k", N * KV * D),
                              .v = tensor_of(file, "v", N * KV * D)};
}

static inline kvd_stepwise_account run(const char *text, int layer, size_t prompt)
{
    const kvd_attention_in in = rows(layer);
    return kept_tokens(text, &in, prompt, kept, out);
}

/* Returns tensor `name` [n] of the test file, whose float16 elements are 1 for kept tokens and 0
 * for others. */
static inline const uint16_t *set(const char *name, size_t n)
{
    return tensor_of(file, name, n);
}

/* Checks which tokens the compression method keeps after each decode step. Tensor `name` [KV
 * heads][STEPS][N] holds the tokens that a public implementation keeps. */
static inline void same_steps(const char *text, const char *name)
{
    const uint16_t *const want = set(name, KV * STEPS * N);
    for (size_t i = 0; i < (size_t)KV * STEPS * N; i++)
        if (kept[i] != (want[i] != 0))
            fail_msg("%s, KV head %zu, step %zu, token %zu: %d", text, i / (STEPS * N),
                     i / N % STEPS, i % N, kept[i]);
}

/* Checks the outputs of tokens after the prompt against the tensor `name` of the test file. */
static inline kvd_stepwise_account same_outputs(const char *text, const char *name)
{
    const size_t size = (size_t)(N - PROMPT) * HEADS * D;
    const float *const want = tensor_of(file, name, size), *const got = out + PROMPT * HEADS * D;
    const kvd_stepwise_account a = run(text, 0, PROMPT);
    for (size_t i = 0; i < size; i++)
        if (!(fabsf(got[i] - want[i]) < 1e-5f))
            fail_msg("%s, step %zu, number %zu: %g, not %g", text, i / (HEADS * D), i % (HEADS * D),
                     (double)got[i], (double)want[i]);
    return a;
}

/* Checks that the method `text` keeps exactly the prompt tokens whose element of want [KV
 * heads][PROMPT] is not 0. */
static inline void same_prompt(const char *text, int layer, const uint16_t *want)
{
    run(text, layer, PROMPT);
    for (size_t g = 0; g < KV; g++)
        for (size_t t = 0; t < PROMPT; t++)
            if (kept[g * STEPS * N + t] != (want[g * PROMPT + t] != 0))
                fail_msg("%s, layer %d, KV head %zu, token %zu: %d", text, layer, g, t,
                         kept[g * STEPS * N + t]);
    for (size_t g = 0; g < KV; g++)
        for (size_t t = 0; t < N; t++)
            assert_int_equal(kept[(g * STEPS + STEPS - 1) * N + t],
                             t < PROMPT ? want[g * PROMPT + t] != 0 : 1);
}

/* Checks that the method `text` keeps the tokens for which want [LAYERS][KV heads][prompt] is not
 * 0. The method sees the prompt `times` times in a row. */
static inline void first_pass_keeps(const char *text, const uint16_t *want, size_t prompt,
                                    size_t times)
{
    static float q[N * HEADS * D], exact[N * HEADS * D];
    const size_t first[] = {0, times * prompt}, length[] = {prompt}, whole[] = {N};
    const kvd_method_setup setup = {.config = &config};
    kvd_err err = {""};
    kvd_plan plan;
    kvd_prompts p;
    open_plan(&plan, text, prompt, &setup);
    assert_int_equal(kvd_prompts_init(&p, &config, &plan, length, whole, 1, &err), 0);
    for (int l = 0; l < LAYERS; l++) {
        kvd_attention_in in = rows(l);
        for (size_t j = 0; j < times * prompt * HEADS * D; j++)
            q[j] = ldexpf(in.q[j], l - 1);
        in.q = q;
        in.offset = first;
        in.n_tokens = times * prompt;
        assert_int_equal(p.hook.run(&p.hook, &in, exact, &err), 0);
    }
    assert_int_equal(kvd_prompts_finish(&p, whole, &err), 0);
    for (int l = 0; l < LAYERS; l++)
        for (int g = 0; g < KV; g++) {
            const uint8_t *const level = kvd_prompts_levels(&p, l, g, 0);
            for (size_t t = 0; t < prompt; t++)
                if ((level[t] == KVD_LEVEL_HIGH) !=
                    (want[((size_t)l * KV + (size_t)g) * prompt + t] != 0))
                    fail_msg("%s, layer %d, KV head %d, token %zu: %d", text, l, g, t, level[t]);
        }
    kvd_prompts_release(&p);
    kvd_plan_close(&plan);
}

/* Checks that the method `text` keeps the prompt tokens that a public implementation keeps (tensor
 * `name`). The method sees the prompt `times` times in a row. */
static inline void same_first_pass(const char *text, const char *name, size_t prompt, size_t times)
{
    first_pass_keeps(text, set(name, LAYERS * KV * prompt), prompt, times);
}

static inline size_t stored(size_t g, size_t step)
{
    size_t n = 0;
    for (size_t t = 0; t < N; t++)
        n += kept[(g * STEPS + step) * N + t];
    return n;
}

/* Checks that the method `text` drops no token and that its outputs equal those of dense
 * attention. */
static inline void same_as_dense(const char *text)
{
    static float want[N * HEADS * D];
    const kvd_attention_in in = rows(0);
    kvd_dense_attention dense;
    kvd_err err = {""};
    kvd_dense_attention_init(&dense);
    assert_int_equal(dense.hook.run(&dense.hook, &in, want, &err), 0);
    kvd_dense_attention_release(&dense);
    const kvd_stepwise_account a = run(text, 0, PROMPT);
    assert_int_equal(a.dropped, 0);
    assert_true(a.payload >= a.dense && a.payload <= a.dense);
    for (size_t j = 0; j < (size_t)N * HEADS * D; j++)
        if (!(fabsf(out[j] - want[j]) < 2e-6f))
            fail_msg("%s: %g, not %g", text, (double)out[j], (double)want[j]);
}

static inline void refused(const char *text, const char *message)
{
    const kvd_method_setup setup = {.config = &config};
    refuse_plan(text, PROMPT, &setup, message);
}

static inline int open_rows(const char *path)
{
    kvd_err err = {""};
    return (file = kvd_safetensors_open(path, &err)) ? 0 : -1;
}

static inline int close_rows(void **state)
{
    (void)state;
    kvd_safetensors_close(file);
    return 0;
}

#endif
