/* Tests the pass over prompts that precedes the actual forward pass, so that methods can choose
 * tokens. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "methods/prompts.h"
#include "unit.h"

enum { LAYERS = 3, HEADS = 4, KV_HEADS = 2, D = 8, N = 90 + 7 };
static const size_t length[] = {90, 0, 7}, whole[] = {120, 1, 9}, offset[] = {0, 90, 90, 97};
static kvd_config config = {.n_layers = LAYERS,
                            .n_heads = HEADS,
                            .n_kv_heads = KV_HEADS,
                            .d_head = D,
                            .d_model = HEADS * D,
                            .max_positions = 128,
                            .rope_theta = 1e4};
static float q[LAYERS][N * HEADS * D], k[LAYERS][N * KV_HEADS * D], v[LAYERS][N * KV_HEADS * D];
static float out[N * HEADS * D];

static void fill(float scale)
{
    kvd_rng r;
    kvd_rng_seed(&r, 8, 1);
    for (size_t l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < (size_t)N * HEADS * D; i++)
            q[l][i] = scale * (float)kvd_rng_normal(&r);
        for (size_t i = 0; i < (size_t)N * KV_HEADS * D; i++) {
            k[l][i] = (float)kvd_rng_normal(&r);
            v[l][i] = (float)kvd_rng_normal(&r);
        }
    }
}

static void first_pass(kvd_prompts *p, const kvd_plan *plan, size_t window)
{
    kvd_err err = {""};
    assert_int_equal(kvd_prompts_init(p, &config, plan, length, whole, 3, &err), 0);
    for (int l = 0; l < LAYERS; l++) {
        const kvd_attention_in in = {.config = &config,
                                     .layer = l,
                                     .n_sequences = 3,
                                     .offset = offset,
                                     .n_tokens = N,
                                     .q = q[l],
                                     .k = k[l],
                                     .v = v[l],
                                     .k_pre = k[l],
                                     .window = window};
        OK(p->hook.run(&p->hook, &in, out, &err));
    }
    OK(kvd_prompts_finish(p, whole, &err));
}

/* Returns the log-sum-exp of the scores of query t in sequence s and layer l, over all heads and
 * all keys that the query sees. */
static double denominator(int l, size_t s, size_t t, size_t window)
{
    const size_t from = window && t + 1 > window ? t + 1 - window : 0;
    double score[HEADS * N] = {0}, top = -INFINITY;
    size_t n = 0;
    for (size_t h = 0; h < HEADS; h++)
        for (size_t i = from; i <= t; i++, n++) {
            score[n] = 0;
            for (size_t c = 0; c < D; c++)
                score[n] += (double)q[l][((offset[s] + t) * HEADS + h) * D + c] *
                            (double)k[l][((offset[s] + i) * KV_HEADS + h / 2) * D + c] / sqrt(D);
            top = fmax(top, score[n]);
        }
    double sum = exp(score[0] - top);
    for (size_t i = 1; i < n; i++)
        sum += exp(score[i] - top);
    return top + log(sum);
}

TEST(denominators_of_all_layers)
{
    const kvd_parameter_values values = {.value = {0.5, 0, 1, 0}};
    kvd_tokens_self self = {.v = &values};
    const kvd_plan plan = {
        .type = KVD_F32, .tokens = &kvd_tokens_importance, .tokens_self = &self, .prompt = 90};
    for (int big = 0; big < 2; big++)
        for (size_t window = 0; window < 20; window += 13) {
            kvd_prompts p;
            fill(big ? 200 : 1);
            first_pass(&p, &plan, window);
            for (int l = 0; l < LAYERS; l++)
                for (size_t s = 0; s < 3; s++) {
                    const size_t at = LAYERS * offset[s] + (size_t)l * length[s];
                    const uint8_t *const level = kvd_prompts_levels(&p, l, 0, s);
                    size_t high = 0;
                    for (size_t t = 0; t < length[s]; t++) {
                        const double want = denominator(l, s, t, window);
                        assert_true(fabs(p.log_denominator[at + t] - want) <
                                    1e-5 * (1 + fabs(want)));
                        high += level[t] == KVD_LEVEL_HIGH;
                    }
                    assert_int_equal(high, (length[s] + 1) / 2);
                }
            kvd_prompts_release(&p);
        }
}

/* Layers with a sliding window shorter than the sequence do not rank tokens. */
TEST(layers_with_a_window)
{
    const kvd_parameter_values values = {.value = {0.5, 0, 1, 0}};
    kvd_tokens_self self = {.v = &values};
    const kvd_plan plan = {
        .type = KVD_F32, .tokens = &kvd_tokens_importance, .tokens_self = &self, .prompt = 90};
    const kvd_config saved = config;
    kvd_prompts p;
    fill(1);
    config.window = 20;
    config.window_layers[0] = 1 << 1;
    first_pass(&p, &plan, 0);
    assert_null(kvd_prompts_levels(&p, 1, 0, 0));
    /* Layer 1 ranks the third sequence's tokens, because this sequence is shorter than the layer's
     * sliding window. */
    assert_non_null(kvd_prompts_levels(&p, 1, 0, 2));
    for (size_t t = 0; t < length[0]; t++) {
        const double want = denominator(2, 0, t, 0);
        assert_true(fabs(p.log_denominator[length[0] + t] - want) < 1e-5 * (1 + fabs(want)));
    }
    kvd_prompts_release(&p);
    config = saved;
}

/* An attention sink of score s must multiply probabilities by Z / (Z + exp(s)), where Z is the sum
 * of exp(score) over keys. */
TEST(probabilities_with_a_sink)
{
    const size_t t = 40;
    const float sinks[HEADS] = {-1, 0.5f, 2, 4};
    const kvd_observed_prompt without = {.n = 90, .q = q[0], .k = k[0]},
                              with = {.n = 90, .q = q[0], .k = k[0], .sinks = sinks};
    float product[N];
    double a[N], b[N];
    fill(1);
    for (int h = 0; h < HEADS; h++) {
        double sum = 0;
        kvd_tokens_probabilities(&config, &without, h, t, product, a);
        kvd_tokens_probabilities(&config, &with, h, t, product, b);
        for (size_t i = 0; i <= t; i++)
            sum += exp((double)product[i] / sqrt(D));
        for (size_t i = 0; i <= t; i++)
            assert_true(fabs(b[i] - a[i] * sum / (sum + exp((double)sinks[h]))) < 1e-6);
    }
}

TEST(rows_of_all_layers)
{
    const kvd_plan plan = {.type = KVD_F16,
                           .layers = &kvd_layers_minicache,
                           .layers_values = {.value = {0.3, 1, 0}},
                           .prompt = 90};
    kvd_prompts p;
    fill(1);
    first_pass(&p, &plan, 0);
    for (size_t s = 0; s < 3; s += 2) {
        assert_false(kvd_prompts_merged(&p, KVD_KEYS, 0, s));
        assert_true(kvd_prompts_merged(&p, KVD_VALUES, 1, s) &&
                    kvd_prompts_merged(&p, KVD_KEYS, 2, s));
        assert_true(kvd_prompts_share(&p, KVD_KEYS, 0, s) == 1);
        assert_memory_equal(kvd_prompts_rows(&p, KVD_KEYS, 0, s), k[0] + offset[s] * KV_HEADS * D,
                            length[s] * KV_HEADS * D * sizeof(float));
        /* A pair of merged vectors takes 16 (D + 2) + 1 bits instead of 32 D. Here both vectors are
         * equal, so both are decoded exactly. */
        const float *const rows = kvd_prompts_rows(&p, KVD_VALUES, 2, s);
        for (size_t i = 0; i < length[s] * KV_HEADS * D; i++)
            assert_true(fabsf(rows[i] - v[2][offset[s] * KV_HEADS * D + i]) < 1e-5f);
        assert_true(fabs(kvd_prompts_share(&p, KVD_VALUES, 1, s) -
                         (16.0 * (D + 2) + 1) / (32.0 * D)) < 1e-12);
    }
    kvd_prompts_release(&p);
}

TEST_MAIN(NULL, NULL)
