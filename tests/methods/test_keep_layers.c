/* Tests the option keep_layers, which leaves the first and last layers uncompressed. */
#include "code_rows.h"
#include "common/rng.h"
#include "methods/cache.h"

enum { N = 48, PROMPT = 30, HEADS = 4, KV = 2, D = 16, LAYERS = 5, OUT = N * HEADS * D };
static float q[OUT], k[N * KV * D], v[N * KV * D];
static const size_t offset[] = {0, N};
static const kvd_config config = {.n_layers = LAYERS,
                                  .n_heads = HEADS,
                                  .n_kv_heads = KV,
                                  .d_head = D,
                                  .max_positions = 64,
                                  .rope_theta = 1e4};
static kvd_err err;

static void fill(void)
{
    kvd_rng r;
    kvd_rng_seed(&r, 3, 1);
    for (size_t i = 0; i < OUT; i++)
        q[i] = (float)kvd_rng_normal(&r);
    for (size_t i = 0; i < (size_t)N * KV * D; i++) {
        k[i] = (float)kvd_rng_normal(&r);
        v[i] = (float)kvd_rng_normal(&r);
    }
}

/* Runs the method `text` on LAYERS layers, all with the same Q, K and V. Writes attention outputs
 * [LAYERS][OUT]. */
static kvd_cache_account run(const char *text, float *out)
{
    const kvd_method_setup setup = {.config = &config, .seed = 1};
    kvd_plan plan;
    kvd_cache c;
    open_plan(&plan, text, PROMPT, &setup);
    OK(kvd_cache_init(&c, &config, &plan, N, &err));
    for (int l = 0; l < LAYERS; l++) {
        const kvd_attention_in in = {.config = &config,
                                     .layer = l,
                                     .n_sequences = 1,
                                     .offset = offset,
                                     .n_tokens = N,
                                     .q = q,
                                     .k = k,
                                     .v = v,
                                     .q_pre = q,
                                     .k_pre = k};
        OK(c.hook.run(&c.hook, &in, out + (size_t)l * OUT, &err));
    }
    const kvd_cache_account a = c.account;
    kvd_cache_release(&c);
    kvd_plan_close(&plan);
    return a;
}

TEST(first_and_last_layers)
{
    static float want[LAYERS * OUT], got[LAYERS * OUT], whole[LAYERS * OUT];
    const char *const method[] = {
        "h2o",  "kivi,group=8,residual=8", "h2o+kivi,group=8,residual=8",
        "tova", "think,window=4",          "sparsity+hetero,th=0.5,tl=0.2,window=4"};
    run("none", whole);
    for (size_t i = 0; i < sizeof method / sizeof *method; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s,keep_layers=2:1", method[i]);
        const kvd_stepwise_account all = run(method[i], want).steps, some = run(text, got).steps;
        for (size_t j = 0; j < LAYERS * OUT; j++) {
            const size_t l = j / OUT;
            const float expected = l < 2 || l == LAYERS - 1 ? whole[j] : want[j];
            if (!(fabsf(got[j] - expected) < 2e-6f))
                fail_msg("%s, layer %zu: %g, not %g", text, l, (double)got[j], (double)expected);
        }
        const double held = all.payload + all.side + all.entries,
                     expected = (3 * all.dense + 2 * held) / 5;
        assert_true(fabs(some.payload + some.side + some.entries - expected) < 1e-9 * expected);
        assert_int_equal(5 * some.dropped, 2 * all.dropped);
        assert_int_equal(5 * some.coded, 2 * all.coded);
        assert_int_equal(some.rows, all.rows);
    }
}

static void refused(const char *text, const char *message)
{
    kvd_method m;
    assert_int_equal(kvd_method_parse(text, &m, &err), -1);
    if (!strstr(err.msg, message))
        fail_msg("%s: %s", text, err.msg);
}

TEST(refusals)
{
    refused("h2o,keep_layers=1", "keep_layers = 1 is not FIRST:LAST");
    refused("h2o,keep_layers=1:1x", "is not FIRST:LAST");
    refused("h2o,keep_layers=-1:1", "is not FIRST:LAST");
    refused("h2o,keep_layers=1:1,keep_layers=1:1", "is given twice");
    refused("none,keep_layers=1:1", "it takes no keys");
    refused("h2o,keep=1", "known are heavy, recent, keep_layers");
    const kvd_method_setup setup = {.config = &config};
    refuse_plan("h2o,keep_layers=3:2", PROMPT, &setup,
                "method 'h2o': keep_layers=3:2 keeps all 5 layers of the model whole");
    refuse_plan("xkv,layers=4,keep_layers=2:0", PROMPT, &setup,
                "method 'xkv': keep_layers=2:0 divides layers 0 to 3, which 'xkv' stores together");
    refuse_plan("h2o+kivi,group=8,residual=8,keep_layers=3:2", PROMPT, &setup,
                "method 'h2o+kivi': keep_layers=3:2 keeps all");
}

TEST(settings_name_it)
{
    assert_string_equal(parsed("h2o,keep_layers=1:2").settings,
                        "keep_layers=1:2,h2o.heavy=0.1,h2o.recent=0.1");
    assert_string_equal(parsed("h2o,keep_layers=0:0").settings, "h2o.heavy=0.1,h2o.recent=0.1");
}

int main(void)
{
    fill();
    return unit_run(NULL, NULL);
}
