/* Tests the cache of models with latent attention (MLA), which store one vector per token. */
#include <math.h>
#include <string.h>

#include "evaluate/generate/generate.h"
#include "forward_case.h"
#include "methods/account.h"
#include "methods/cache.h"
#include "methods/points.h"
#include "model/pass/forward.h"
#include "unit.h"

enum { PROMPT = 23, N_NEW = 9, LONGEST = PROMPT + N_NEW };

static int open_plan(const char *text, const kvd_config *c, kvd_plan *plan, kvd_err *err)
{
    kvd_method m;
    kvd_point *point = NULL;
    size_t n_points = 0;
    if (kvd_method_parse(text, &m, err) || kvd_points_make(&m, &point, &n_points, err))
        fail_msg("%s: %s", text, err->msg);
    *plan = kvd_point_plan(point);
    plan->type = KVD_F32;
    plan->prompt = PROMPT;
    const kvd_method_setup setup = {.config = c, .seed = 3};
    const int status = kvd_plan_open(plan, &setup, err);
    kvd_points_free(point, n_points);
    return status;
}

/* Returns the logits of a forward pass over the whole sequence. They last until the test ends. */
static float *whole_pass(const kvd_checkpoint *checkpoint, const kvd_plan *plan, const uint32_t *id,
                         kvd_cache_account *account)
{
    kvd_err err = {""};
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    const size_t bounds[] = {0, LONGEST};
    const kvd_batch b = {.n_sequences = 1, .offset = bounds, .id = id};
    float *const hidden = unit_alloc(LONGEST * (size_t)c->d_model * sizeof *hidden),
                 *const logits = unit_alloc(LONGEST * (size_t)c->vocab_size * sizeof *logits);
    kvd_forward *const f = kvd_forward_new(checkpoint, LONGEST, LONGEST, &err);
    kvd_cache cache = {0};
    assert_non_null(f);
    OK(kvd_cache_init(&cache, c, plan, LONGEST, &err) ||
       kvd_forward_run(f, &b, &cache.hook, -1, hidden, &err) ||
       kvd_forward_logits(f, hidden, LONGEST, logits, &err) ||
       kvd_cache_check(&cache.account, c, plan, 1, LONGEST, N_NEW, 0, &err));
    *account = cache.account;
    kvd_cache_release(&cache);
    kvd_forward_free(f);
    return logits;
}

static size_t argmax(const float *x, size_t n)
{
    size_t best = 0;
    for (size_t j = 1; j < n; j++)
        best = x[j] > x[best] ? j : best;
    return best;
}

TEST(test_generation)
{
    static const char *const models[] = {"deepseek-v2", "deepseek-v2-lite", "deepseek-v3-plain"},
                             *const methods[] = {"none", "h2o", "streaming,sink=2,recent=9", "tova",
                                                 "quest,page=4"};
    for (size_t i = 0; i < 15; i++) {
        kvd_err err = {""};
        kvd_checkpoint *const checkpoint = open_family(models[i / 5]);
        const kvd_config *const c = kvd_checkpoint_config(checkpoint);
        kvd_plan plan;
        kvd_cache_account account;
        if (open_plan(methods[i % 5], c, &plan, &err))
            fail_msg("%s: %s", methods[i % 5], err.msg);
        uint32_t id[LONGEST], token[N_NEW] = {0};
        for (size_t t = 0; t < PROMPT; t++)
            id[t] = (uint32_t)((t * 37 + 5) % (size_t)c->vocab_size);
        const size_t offset[] = {0, PROMPT}, end[] = {0, N_NEW};
        const kvd_continuations run = {.n_sequences = 1, .offset = offset, .id = id, .end = end};
        const kvd_generator_spec generator = {.max_tokens = LONGEST, .max_len = LONGEST};
        kvd_generator *const g = kvd_generator_new(checkpoint, &generator, &err);
        assert_non_null(g);
        if (kvd_generate(g, &plan, &run, &(kvd_continued){.token = token}, NULL, NULL, NULL, &err))
            fail_msg("%s: %s", methods[i % 5], err.msg);
        memcpy(id + PROMPT, token, sizeof token);
        float *const logits = whole_pass(checkpoint, &plan, id, &account);
        for (size_t j = 0; j < N_NEW; j++) {
            const float *const row = logits + (PROMPT - 1 + j) * (size_t)c->vocab_size;
            const size_t best = argmax(row, (size_t)c->vocab_size);
            if (best != token[j] && row[best] - row[token[j]] > 2e-4F)
                fail_msg("%s, %s, place %zu: %u generated, %zu predicted", models[i / 5],
                         methods[i % 5], j, token[j], best);
        }
        kvd_generator_free(g);
        kvd_plan_close(&plan);
    }
}

TEST(test_bytes)
{
    static const struct {
        const char *model;
        /* count of values that all layers together store per token */
        size_t numbers;
    } cases[] = {{"deepseek-v2", (11 + 6) * 2},     {"deepseek-v2-lite", (13 + 4) * 2},
                 {"deepseek-v2-odd", (15 + 8) * 2}, {"deepseek-v3", (11 + 10) * 2},
                 {"deepseek-v3-plain", 11 + 6},     {"deepseek-v3-odd", (9 + 4) * 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kvd_err err = {""};
        kvd_checkpoint *const checkpoint = open_family(cases[i].model);
        const kvd_config *const c = kvd_checkpoint_config(checkpoint);
        const size_t layers = (size_t)c->n_layers, bounds[] = {0, LONGEST};
        uint32_t id[LONGEST];
        kvd_plan plan;
        kvd_cache_account got, counted = {0};
        kvd_cache_bytes bytes;
        for (size_t t = 0; t < LONGEST; t++)
            id[t] = (uint32_t)(t % (size_t)c->vocab_size);
        assert_int_equal(kvd_config_cached(c) * layers, cases[i].numbers);
        OK(open_plan("none", c, &plan, &err));
        assert_non_null(whole_pass(checkpoint, &plan, id, &got));
        assert_int_equal(got.bytes_stored, LONGEST * cases[i].numbers * sizeof(float));
        assert_int_equal(got.elements_kept, LONGEST * cases[i].numbers);
        assert_int_equal(got.elements_dense, LONGEST * cases[i].numbers);
        kvd_cache_account_whole(c, &plan, bounds, 1, &counted);
        assert_int_equal(counted.bytes_stored, got.bytes_stored);
        kvd_cache_count_bytes(c, NULL, 2, &bytes);
        assert_true(bytes.dense == 2.0 * (double)cases[i].numbers && bytes.nominal == bytes.dense);
        kvd_plan_close(&plan);

        /* Method streaming keeps 11 tokens, each with its latent vector. */
        OK(open_plan("streaming,sink=2,recent=9", c, &plan, &err));
        assert_non_null(whole_pass(checkpoint, &plan, id, &got));
        assert_true(fabs(got.steps.dense - (double)cases[i].numbers * 32 *
                                               (N_NEW * (PROMPT + 1 + LONGEST) / 2.0)) < 1);
        assert_true(fabs(got.steps.payload - (double)cases[i].numbers * 32 * 11 * N_NEW) < 1);
        kvd_plan_close(&plan);
    }
}

TEST(test_refused)
{
    static const char *const methods[] = {
        "kivi",      "gear",  "zipcache", "rotatekv", "hetero,k=4,v=4", "turboquant",
        "cachegen",  "nvfp4", "fp8",      "d2o",      "think",          "strawman,p=0.25",
        "minicache", "xkv",   "h2o+kivi"};
    kvd_checkpoint *const checkpoint = open_family("deepseek-v3");
    const kvd_config *const c = kvd_checkpoint_config(checkpoint);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        kvd_err err = {""};
        kvd_plan plan;
        if (open_plan(methods[i], c, &plan, &err) == 0)
            fail_msg("%s is accepted", methods[i]);
        if (!strstr(err.msg, "changes keys and values apart, but a deepseek_v3 model caches one "
                             "latent per token that is both"))
            fail_msg("%s: %s", methods[i], err.msg);
    }
    kvd_err err = {""};
    kvd_dims dims = {.n_layers = c->n_layers, .n_kv_heads = 1, .d_head = c->d_head};
    assert_int_equal(kvd_dims_fits(&dims, c, &err), -1);
    assert_non_null(strstr(err.msg, "one latent per token"));
}

TEST_MAIN(NULL, NULL)
