/* Tests which tokens methods keep or read. The expected tokens come from public implementations
 * (tests/oracle/make_token_methods.py). */
#include "formats/trained.h"
#include "token_rows.h"
#include "unit.h"

TEST(prompts_of_public_code)
{
    same_prompt("knorm,budget=24", 0, set("knorm", KV * PROMPT));
    same_prompt("keydiff,budget=24", 0, set("keydiff", KV * PROMPT));
    same_prompt("expectedattention,budget=24,future=100", 0, set("expected", KV * PROMPT));
    same_prompt("expectedattention,budget=24,future=100,covariance=0", 0,
                set("expected_mean", KV * PROMPT));
    same_prompt("adakv,budget=12,window=8,kernel=5,alpha=0", 0, set("adakv_0", KV * PROMPT));
    same_prompt("adakv,budget=12,window=8,kernel=5,alpha=0.5", 0, set("adakv_5", KV * PROMPT));
    const uint16_t *const pyramid = set("pyramidkv", LAYERS * KV * PROMPT);
    for (int l = 0; l < LAYERS; l++)
        same_prompt("pyramidkv,budget=12,window=8,kernel=5,beta=4", l,
                    pyramid + (size_t)l * KV * PROMPT);
}

TEST(steps_of_public_code)
{
    const char *const text[][2] = {{"streaming,sink=4,recent=16", "streaming"},
                                   {"tova,budget=20", "tova"}};
    for (int i = 0; i < 2; i++) {
        run(text[i][0], 0, PROMPT);
        same_steps(text[i][0], text[i][1]);
    }
}

/* Returns the score that the networks of the method locret give to token t in KV head g. They take
 * keys without RoPE, so RoPE of k is undone first. */
static double retaining_score(const kvd_retaining_heads *r, int layer, size_t g, size_t t)
{
    enum { INPUTS = (HEADS + 2 * KV) * D };
    const kvd_attention_in in = rows(layer);
    const float *const q = (const float *)tensor_of(file, "q_pre", N * HEADS * D) + t * HEADS * D,
                       *const k = in.k + t * KV * D;
    double x[INPUTS], score = 0;
    for (size_t i = 0; i < (size_t)HEADS * D; i++)
        x[i] = (double)q[i];
    for (size_t i = 0; i < (size_t)KV * D; i++) {
        const size_t j = i % D % (D / 2), at = i - i % D + j;
        const double angle = (double)t * pow(config.rope_theta, -2.0 * (double)j / D),
                     a = (double)k[at], b = (double)k[at + D / 2];
        x[HEADS * D + i] =
            i % D < D / 2 ? a * cos(angle) + b * sin(angle) : b * cos(angle) - a * sin(angle);
        x[(HEADS + KV) * D + i] = (double)in.v[t * KV * D + i];
    }
    for (size_t h = 0; h < r->hidden; h++) {
        const float *const w = r->fc1 + ((size_t)layer * r->hidden + h) * INPUTS;
        double unit = 0;
        for (size_t i = 0; i < INPUTS; i++)
            unit += (double)w[i] * x[i];
        score += (double)r->fc2[((size_t)layer * KV + g) * r->hidden + h] * unit /
                 (1 + exp(-unit)); /* SiLU, the activation of the test's model */
    }
    return score;
}

TEST(retaining_heads)
{
    enum { LOCAL = 6, BUDGET = 20, OLD = PROMPT - LOCAL };
    const char *const text = "locret,budget=20,local=6";
    const kvd_method_setup setup = {.config = &config, .drawn = true, .seed = 1};
    const kvd_method m = parsed(text);
    kvd_err err = {""};
    void *self;
    uint16_t all[LAYERS][KV * PROMPT];
    OK(kvd_tokens_open(m.plan.tokens, &m.plan.tokens_values, &setup, &self, &err));
    for (int l = 0; l < LAYERS; l++) {
        for (size_t g = 0; g < KV; g++) {
            double score[OLD];
            for (size_t t = 0; t < OLD; t++)
                score[t] = retaining_score(m.plan.tokens->retaining(self), l, g, t);
            for (size_t t = 0; t < PROMPT; t++) {
                size_t larger = 0;
                for (size_t i = 0; t < OLD && i < OLD; i++)
                    larger += score[i] > score[t];
                all[l][g * PROMPT + t] = larger < BUDGET;
            }
        }
        same_prompt(text, l, all[l]);
    }
    assert_memory_not_equal(all[0], all[0] + PROMPT, PROMPT * sizeof **all);
    assert_memory_not_equal(all[0], all[1], sizeof *all);
    assert_int_equal(run(text, 0, PROMPT).dropped, KV * (OLD - BUDGET));
    kvd_tokens_close(m.plan.tokens, self);
}

TEST(retaining_heads_refused)
{
    const kvd_config latents = {.n_layers = 1, .d_head = D, .family = "deepseek", .latent = 8};
    const kvd_method_setup with_latents = {.config = &latents, .drawn = true};
    refused("locret", "it needs file=PATH, a file of retaining heads");
    refused("locret,file=there/is.none", "there/is.none");
    refused("locret,budget=1.5,file=x", "budget = 1.5 is neither a fraction");
    refuse_plan("locret", PROMPT, &with_latents, "but a deepseek model caches latents");
}

/* Compares the pages that the method quest reads with the pages that its authors' code reads. That
 * code supports only one query head per KV head. */
TEST(pages_that_are_read)
{
    static float q[N * KV * D];
    const kvd_config one = {.n_layers = 1,
                            .n_heads = KV,
                            .n_kv_heads = KV,
                            .d_head = D,
                            .max_positions = 256,
                            .rope_theta = 1e4};
    kvd_attention_in in = rows(0);
    for (size_t t = 0; t < N; t++)
        for (size_t g = 0; g < KV; g++)
            memcpy(q + (t * KV + g) * D, in.q + (t * HEADS + g * HEADS / KV) * D, D * sizeof *q);
    in.config = &one;
    in.q = q;
    const kvd_stepwise_account a = kept_tokens("quest,budget=32,page=8", &in, PROMPT, kept, out);
    double read = 0, entries = 0;
    same_steps("quest", "quest");
    for (size_t i = 0; i < (size_t)KV * STEPS * N; i++)
        if (i / N % STEPS)
            read += kept[i] * 2.0 * D * 32;
    for (size_t t = PROMPT; t < N; t++)
        /* For each page of 8 tokens, adds the bits of the minimum and the maximum of every key
         * channel. */
        entries += (double)KV * (double)(t / 8 + 1) * 2 * D * 32;
    assert_true(a.payload >= a.dense && a.payload <= a.dense && a.dropped == 0);
    assert_true(fabs(a.entries - entries) < 1);
    assert_true(fabs(a.read - read - entries) < 1);
    assert_true(a.unread > 0);
}

TEST(all_pages_are_the_model)
{
    static float want[N * HEADS * D];
    run("h2o,heavy=96,recent=96", 0, PROMPT);
    memcpy(want, out, sizeof want);
    assert_int_equal(run("quest,budget=96", 0, PROMPT).unread, 0);
    for (size_t i = 0; i < (size_t)N * HEADS * D; i++)
        assert_true(fabsf(out[i] - want[i]) < 2e-6f);
}

TEST(merged_tokens)
{
    static uint8_t h2o[sizeof kept];
    const size_t size = (size_t)(N - PROMPT) * HEADS * D;
    const float *const want = tensor_of(file, "d2o_out", size);
    const kvd_stepwise_account a = same_outputs("d2o,heavy=10,recent=6", "d2o_out");
    assert_true(a.merged > 0 && a.merged < a.dropped);
    memcpy(h2o, kept, sizeof kept);
    const kvd_stepwise_account b = run("h2o,heavy=10,recent=6", 0, PROMPT);
    assert_true(a.payload >= b.payload && a.payload <= b.payload);
    assert_int_equal(a.dropped, b.dropped);
    for (size_t g = 0; g < KV; g++)
        assert_memory_equal(kept + g * STEPS * N, h2o + g * STEPS * N, N);
    double most = 0;
    for (size_t i = 0; i < size; i++)
        most = fmax(most, fabs((double)out[PROMPT * HEADS * D + i] - (double)want[i]));
    assert_true(most > 1e-3);
}

TEST(merges_refused)
{
    const char *const text[][2] = {
        {"d2o+kivi", "'d2o' merges tokens into older ones at every step, which 'kivi' has coded"},
        {"d2o+think", "'d2o' merges whole keys and values, 'think' shortens those of the prompt"},
        {"d2o+minicache", "'d2o' merges tokens of one layer, 'minicache' stores several together"},
    };
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        refused(text[i][0], text[i][1]);
}

TEST(budgets_from_all_layers)
{
    same_first_pass("cake,budget=12,window=8", "cake", PROMPT, 1);
    same_first_pass("cake,budget=12,window=8,tau1=0.5,tau2=3", "cake_tau", PROMPT, 1);
    same_first_pass("kvzip,budget=12,sink=0", "kvzip", N / 2, 2);
    same_first_pass("kvzip,budget=12", "kvzip_sink", N / 2, 2);
}

TEST(every_head_keeps_the_first_tokens)
{
    enum { HALF = N / 2 };
    uint16_t want[LAYERS * KV * PROMPT];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        want[i] = i % HALF < 3;
    first_pass_keeps("kvzip,budget=3,sink=8", want, HALF, 2);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        want[i] = i % PROMPT < 4 || i % PROMPT == PROMPT - 1;
    first_pass_keeps("prefixkv,budget=5,sink=4", want, PROMPT, 1);
    first_pass_keeps("prefixkv,budget=2,sink=4", want, PROMPT, 1);
}

TEST(one_budget_for_all_heads)
{
    static uint8_t snapkv[sizeof kept];
    run("snapkv,budget=12,window=8,kernel=5", 0, PROMPT);
    memcpy(snapkv, kept, sizeof kept);
    const double bits = run("adakv,budget=12,window=8,kernel=5,alpha=1", 0, PROMPT).payload;
    assert_memory_equal(kept, snapkv, sizeof kept);
    const kvd_stepwise_account a = run("adakv,budget=12,window=8,kernel=5,alpha=0", 0, PROMPT);
    assert_int_equal(stored(0, 0) + stored(1, 0), KV * (12 + 8));
    assert_int_not_equal(stored(0, 0), stored(1, 0));
    assert_true(fabs(a.payload - bits) < 1e-9 * bits);
    assert_int_equal(a.dropped, KV * (PROMPT - 20));
}

TEST(budgets_fall_over_layers)
{
    size_t sum = 0, before = PROMPT;
    for (int l = 0; l < LAYERS; l++) {
        run("pyramidkv,budget=20,window=8,kernel=5,beta=10", l, PROMPT);
        const size_t n = stored(0, 0) - 8;
        assert_int_equal(stored(1, 0), n + 8);
        assert_true(n < before);
        before = n;
        sum += n;
    }
    assert_int_equal(sum, LAYERS * 20);
    /* The method pyramidkv may keep 56 tokens before the window in layer 0, but only 14 in the last
     * layer. */
    run("pyramidkv,budget=35,window=8,kernel=5,beta=20", 0, PROMPT);
    assert_int_equal(stored(0, 0), PROMPT);
    run("pyramidkv,budget=35,window=8,kernel=5,beta=20", LAYERS - 1, PROMPT);
    assert_int_equal(stored(0, 0), 14 + 8);
}

TEST(layers_drop_the_same_token)
{
    for (size_t prompt = 1; prompt <= PROMPT; prompt += PROMPT - 1) {
        static uint8_t sets[KV * N * N];
        const kvd_attention_in in = rows(0);
        const size_t steps = 1 + N - prompt;
        kept_tokens("tova,budget=9", &in, prompt, sets, out);
        assert_memory_equal(sets, sets + steps * N, steps * N);
        kept_tokens("streaming,sink=3,recent=5", &in, prompt, sets, out);
        for (size_t i = 0; i < steps; i++)
            for (size_t t = 0, rows_seen = prompt + i; t < N; t++)
                assert_int_equal(sets[i * N + t], t < rows_seen && (t < 3 || t + 5 >= rows_seen));
    }
}

TEST(full_budgets_drop_nothing)
{
    const char *const full[] = {"d2o,heavy=90,recent=90", "streaming,recent=96",
                                "tova,budget=96",         "pyramidkv,budget=96",
                                "adakv,budget=96",        "knorm,budget=96",
                                "keydiff,budget=96",      "expectedattention,budget=96",
                                "locret,budget=96",       "locret,budget=1,local=63"};
    for (size_t i = 0; i < sizeof full / sizeof *full; i++)
        same_as_dense(full[i]);
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void same_budget(const char *text, int layer)
{
    const kvd_evict_request r = {PROMPT, N, layer, LAYERS};
    const kvd_method m = parsed(text);
    assert_non_null(m.plan.tokens->eviction);
    const kvd_evict_budget b = m.plan.tokens->eviction->budget(&m.plan.tokens_values, &r);
    const size_t newest = smaller(PROMPT, (size_t)b.keep_new),
                 mean = newest + smaller(PROMPT - newest, (size_t)b.keep_old);
    run(text, layer, PROMPT);
    if (stored(0, 0) + stored(1, 0) != KV * mean)
        fail_msg("%s, layer %d: %zu and %zu entries after the prompt, not %zu on average", text,
                 layer, stored(0, 0), stored(1, 0), mean);
    for (size_t g = 0; g < KV; g++) {
        assert_true(stored(g, 0) >= newest + smaller((size_t)b.keep_own, mean - newest));
        assert_int_equal(stored(g, STEPS - 1), smaller(stored(g, 0) + STEPS - 1, (size_t)b.limit));
    }
}

TEST(budgets_of_the_cuda_engine)
{
    const char *const text[] = {"h2o,heavy=0.2,recent=0.1",
                                "h2o,heavy=9,recent=80",
                                "keyformer,keys=10,recent=6",
                                "snapkv,budget=0.3,window=8",
                                "snapkv,budget=90",
                                "streaming,sink=4,recent=0.2",
                                "tova,budget=20",
                                "knorm,budget=24",
                                "keydiff,budget=0.4",
                                "locret,budget=0.4,local=9",
                                "locret,budget=20,local=100",
                                "expectedattention,budget=24",
                                "expectedattention,budget=3,sink=5",
                                "pyramidkv,budget=20,window=8,beta=10",
                                "pyramidkv,budget=35,window=8,beta=20",
                                "pyramidkv,budget=0.3,window=64",
                                "adakv,budget=12,window=8,alpha=0",
                                "adakv,budget=12,window=8,alpha=0.5",
                                "adakv,budget=90,window=8"};
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        for (int l = 0; l < LAYERS; l++)
            same_budget(text[i], l);
}

/* Checks that the method's function `rank` keeps as many tokens in each layer as the GPU engine, or
 * up to `shorter` tokens fewer. */
static void same_budgets(const char *text, size_t shorter)
{
    static float q[PROMPT * HEADS * D];
    static uint8_t level[LAYERS * KV * PROMPT];
    const kvd_method_setup setup = {.config = &config};
    const kvd_method m = parsed(text);
    kvd_err err = {""};
    void *self;
    kvd_evict_budget budget[LAYERS];
    const kvd_tokens_method *const t = m.plan.tokens;
    const kvd_parameter_values *const v = &m.plan.tokens_values;
    assert_int_equal(kvd_tokens_open(t, v, &setup, &self, &err), 0);
    const size_t each = t->observed(self, PROMPT);
    double *const observed = unit_alloc(LAYERS * each * sizeof *observed), pair[LAYERS][2];
    for (int l = 0; l < LAYERS; l++) {
        const kvd_attention_in in = rows(l);
        const kvd_observed_prompt r = {.layer = l, .n = PROMPT, .q = q, .k = in.k};
        for (size_t j = 0; j < (size_t)PROMPT * HEADS * D; j++)
            q[j] = ldexpf(in.q[j], l - 1);
        assert_int_equal(t->observe(self, &r, observed + (size_t)l * each, &err), 0);
        /* Method cake expects entropy and variance of attention; `observed` is their product, so
         * the variance is set to 1. */
        pair[l][0] = each ? observed[(size_t)l * each] : 0;
        pair[l][1] = 1;
    }
    const kvd_prompt_layers all = {LAYERS, PROMPT, NULL, observed};
    assert_int_equal(t->rank(self, &all, level, &err), 0);
    const bool pairs = t == &kvd_tokens_cake;
    const kvd_evict_layers s = {PROMPT, LAYERS, pairs ? &pair[0][0] : observed, pairs ? 2 : each};
    for (int l = 0; l < LAYERS; l++) {
        const kvd_evict_request r = {PROMPT, N, l, LAYERS};
        budget[l] = t->eviction->budget(v, &r);
    }
    if (t->eviction->divide)
        assert_int_equal(t->eviction->divide(v, &s, budget, &err), 0);
    for (size_t l = 0; l < LAYERS; l++) {
        const size_t newest = smaller(PROMPT, (size_t)budget[l].keep_new),
                     most = newest + smaller(PROMPT - newest, (size_t)budget[l].keep_old);
        size_t n = 0;
        for (size_t i = 0; i < PROMPT; i++)
            n += level[l * KV * PROMPT + i] != KVD_LEVEL_DROPPED;
        if (n > most || n + shorter < most)
            fail_msg("%s, layer %zu: %zu tokens, not %zu", text, l, n, most);
    }
    kvd_tokens_close(t, self);
}

TEST(budgets_of_all_layers)
{
    same_budgets("prefixkv,budget=20", 0);
    same_budgets("prefixkv,budget=0.3,sink=0", 0);
    same_budgets("prefixkv,budget=500", 0);
    same_budgets("cake,budget=12,window=8", 0);
    same_budgets("cake,budget=40,window=8,gamma=0", 0);
    same_budgets("cake,budget=500,window=8", 0);
    same_budgets("windowkv,budget=24,window=8,review=7,layers=2,beta=5", 0);
    same_budgets("windowkv,budget=24,window=8,review=10,layers=1,beta=5,largest=1", 4);
    same_budgets("windowkv,budget=24,window=100", 0);
}

static int set_up(void **state)
{
    (void)state;
    return open_rows("tests/data/token_methods.safetensors");
}

TEST_MAIN(set_up, close_rows)
