/* Tests which tokens eviction and merging methods keep. The expected tokens come from public code
 * (tests/oracle/make_token_sets.py). */
#include "token_rows.h"
#include "unit.h"

TEST(runs_of_similar_keys)
{
    same_prompt("kvmerger,threshold=0.1,heavy=6,recent=8", 0, set("kvmerger", KV * PROMPT));
    const kvd_stepwise_account a =
        same_outputs("kvmerger,threshold=0.1,heavy=6,recent=8", "kvmerger_out");
    assert_true(a.merged > 0 && a.merged == a.dropped);
    size_t before = PROMPT;
    for (double threshold = 0.5; threshold > -1; threshold -= 0.5) {
        char text[64];
        snprintf(text, sizeof text, "kvmerger,threshold=%g,heavy=0,recent=10", threshold);
        run(text, 0, PROMPT);
        const size_t n = stored(0, 0);
        assert_true(n < before && n >= 10);
        for (size_t t = PROMPT - 10; t < PROMPT; t++)
            assert_int_equal(kept[t], 1);
        before = n;
    }
    run("kvmerger,threshold=-1,heavy=0,recent=10", 0, PROMPT);
    assert_int_equal(stored(0, 0), 11);
}

TEST(merges_before_other_axes)
{
    const double bits = run("kvmerger,threshold=0.1,recent=8", 0, PROMPT).payload;
    kvd_stepwise_account a =
        run("kvmerger+kivi,threshold=0.1,recent=8,residual=0,group=8", 0, PROMPT);
    assert_true(a.merged > 0 && a.coded > 0 && a.payload < bits);
    a = run("kvmerger+think,threshold=0.1,recent=8,window=8", 0, PROMPT);
    assert_true(a.merged > 0 && a.pruned > 0 && a.payload < bits);
}

TEST(prefixes_of_layers)
{
    same_first_pass("prefixkv,budget=20", "prefixkv", PROMPT, 1);
    same_first_pass("prefixkv,budget=30,sink=0", "prefixkv_sink", PROMPT, 1);
    const uint16_t *const want = set("prefixkv", LAYERS * KV * PROMPT);
    size_t sum = 0, before = PROMPT;
    for (size_t l = 0; l < LAYERS; l++) {
        size_t n = 0;
        for (size_t t = 0; t < PROMPT; t++)
            n += want[l * KV * PROMPT + t] != 0;
        assert_true(n < before);
        before = n;
        sum += n;
    }
    assert_int_equal(sum, LAYERS * 20);
}

TEST(windows_of_groups)
{
    const char *const name[] = {"windowkv", "windowkv_largest"};
    for (int largest = 0; largest < 2; largest++) {
        char text[100];
        snprintf(text, sizeof text,
                 "windowkv,budget=24,window=8,review=6,layers=2,beta=5,largest=%d", largest);
        same_first_pass(text, name[largest], PROMPT, 1);
        const uint16_t *const want = set(name[largest], LAYERS * KV * PROMPT);
        for (size_t l = 0; l < LAYERS; l += 2)
            assert_memory_equal(want + l * KV * PROMPT, want + (l + 1) * KV * PROMPT,
                                KV * PROMPT * sizeof *want);
        for (size_t t = 0; t < PROMPT - 8; t++)
            assert_int_equal(want[t], want[t / 6 * 6]);
    }
    same_first_pass("windowkv,budget=24,window=8,review=6,layers=1,beta=5", "windowkv_each", PROMPT,
                    1);
    refused("windowkv,layers=8,beta=7", "beta = 7 is below layers = 8");
}

TEST(representatives_of_tokens)
{
    same_prompt("kvcrush,budget=24,window=8,kernel=5,crush=0.5", 0, set("kvcrush", KV * PROMPT));
    same_prompt("kvcrush,budget=30,window=8,kernel=5,anchor=1", 0,
                set("kvcrush_mean", KV * PROMPT));
    static uint8_t snapkv[sizeof kept];
    static float k[N * D], v[N * D];
    kvd_config one = config;
    one.n_kv_heads = 1;
    kvd_attention_in in = rows(0);
    for (size_t t = 0; t < N; t++) {
        memcpy(k + t * D, in.k + t * KV * D, D * sizeof *k);
        memcpy(v + t * D, in.v + t * KV * D, D * sizeof *v);
    }
    in.config = &one;
    in.k = k;
    in.v = v;
    kept_tokens("snapkv,budget=24,window=8,kernel=5", &in, PROMPT, snapkv, out);
    kept_tokens("kvcrush,budget=24,window=8,kernel=5,crush=0", &in, PROMPT, kept, out);
    assert_memory_equal(kept, snapkv, (size_t)STEPS * N);
    kept_tokens("kvcrush,budget=24,window=8,kernel=5", &in, PROMPT, kept, out);
    assert_memory_not_equal(kept, snapkv, (size_t)STEPS * N);
    assert_int_equal(stored(0, 0), 24 + 8);
}

TEST(evicted_then_merged)
{
    same_prompt("ems,budget=10,window=8,kernel=5,threshold=0.3", 0, set("ems", KV * PROMPT));
    const kvd_stepwise_account a =
        same_outputs("ems,budget=10,window=8,kernel=5,threshold=0.3", "ems_out");
    assert_true(a.merged > 0 && a.merged < KV * 20 && a.dropped == KV * (PROMPT - 18));
    assert_int_equal(run("ems,budget=10,window=8,kernel=5,merge=0", 0, PROMPT).merged, 0);
    assert_int_equal(run("ems,budget=10,window=8,merge=2,threshold=-1", 0, PROMPT).merged, KV * 20);
    assert_int_equal(run("ems,budget=10,window=8,merge=9,threshold=-1", 0, PROMPT).merged,
                     KV * (PROMPT - 18));
}

TEST(merged_into_the_nearest)
{
    const char *const text = "elasticcache,budget=0.375,sink=2,distance=5";
    const kvd_stepwise_account a = same_outputs(text, "elasticcache_out");
    same_steps(text, "elasticcache");
    assert_true(a.merged == KV * (PROMPT - 24) && a.dropped > a.merged);
    for (int sink = 0; sink < 20; sink++) {
        char few[64];
        snprintf(few, sizeof few, "elasticcache,budget=24,sink=%d", sink);
        assert_int_equal(run(few, 0, PROMPT).merged, KV * (PROMPT - 24));
    }
    run("elasticcache,budget=24,distance=5", 0, PROMPT);
    for (size_t i = 0; i < STEPS; i++)
        assert_int_equal(stored(0, i), 24);
}

TEST(heads_that_differ)
{
    static float k[N * HEADS * D];
    static uint8_t sets[HEADS * STEPS * N];
    const char *const text[] = {"taskkv,budget=20,window=8", "taskkv,budget=20,window=8,heads=0.5"};
    const char *const name[] = {"taskkv", "taskkv_half"};
    kvd_config four = config;
    four.n_kv_heads = HEADS;
    kvd_attention_in in = rows(0);
    for (size_t t = 0; t < N; t++)
        for (size_t h = 0; h < HEADS; h++)
            memcpy(k + (t * HEADS + h) * D, in.k + (t * KV + h / (HEADS / KV)) * D, D * sizeof *k);
    in.config = &four;
    in.k = k;
    in.v = tensor_of(file, "taskkv_v", N * HEADS * D);
    for (size_t i = 0; i < 2; i++) {
        const uint16_t *const want = set(name[i], HEADS * PROMPT);
        size_t whole = 0;
        kept_tokens(text[i], &in, PROMPT, sets, out);
        for (size_t h = 0; h < HEADS; h++) {
            size_t n = 0;
            for (size_t t = 0; t < PROMPT; t++) {
                n += sets[h * STEPS * N + t];
                if (sets[h * STEPS * N + t] != (want[h * PROMPT + t] != 0))
                    fail_msg("%s, KV head %zu, token %zu: not %d", text[i], h, t,
                             want[h * PROMPT + t] != 0);
            }
            assert_true(n == 20 || n == PROMPT);
            whole += n == PROMPT;
        }
        assert_int_equal(whole, i + 1);
    }
    run("taskkv,budget=20,window=8,heads=0", 0, PROMPT);
    assert_true(stored(0, 0) == 20 && stored(1, 0) == 20);
    run("taskkv,budget=20,window=8,heads=0.5", 0, PROMPT);
    assert_true(stored(0, 0) == 20 && stored(1, 0) == PROMPT);
    assert_int_equal(run("taskkv,budget=20,window=8,heads=1", 0, PROMPT).dropped, 0);
}

TEST(clusters_in_two_levels)
{
    const char *const text = "mpcache,budget=0.4,threshold=0.02,large=8,small=4";
    const kvd_stepwise_account a = run(text, 0, PROMPT);
    size_t read = 0;
    double bounds = 0;
    same_steps(text, "mpcache");
    for (size_t i = 0; i < (size_t)KV * STEPS * N; i++)
        read += i / N % STEPS ? kept[i] : 0;
    for (size_t i = 1; i < STEPS; i++)
        bounds += (double)KV * (double)((stored(0, 0) + i + 3) / 4) * 2 * D * 32;
    assert_true(a.dropped == KV * (PROMPT - stored(0, 0)) && a.dropped > 0 && a.unread > 0);
    assert_true(fabs(a.entries - bounds) < 1);
    assert_true(fabs(a.read - bounds - (double)read * 2 * D * 32) < 1);
    assert_int_equal(run("mpcache,threshold=0", 0, PROMPT).dropped, 0);
    run("mpcache,rows=0,threshold=0.01", 0, PROMPT);
    assert_int_equal(stored(0, 0), 1);
    run("mpcache,rows=0.015,threshold=0.01", 0, PROMPT);
    assert_true(stored(0, 0) > 1);
    refused("mpcache,large=24", "large = 24 is not a multiple of small = 16");
}

TEST(attention_of_recent_rows)
{
    const char *const text = "alisa,budget=20,local=0.4,history=5";
    const kvd_stepwise_account a = same_outputs(text, "alisa_out");
    double sums = 0;
    same_steps(text, "alisa");
    for (size_t n = PROMPT + 1; n <= N; n++)
        sums += (double)(KV * n * 5 * 32);
    assert_true(a.dropped == 0 && a.payload >= a.dense && a.payload <= a.dense);
    assert_true(fabs(a.entries - sums) < 1);
    assert_true(fabs(a.read - sums - (double)(N - PROMPT) * KV * 20 * 2 * D * 32) < 1);
}

TEST(merges_refused)
{
    refused("kvmerger+minicache", "'kvmerger' merges tokens of one layer");
}

TEST(full_budgets_drop_nothing)
{
    const char *const full[] = {"kvmerger,threshold=1", "kvcrush,budget=96",
                                "ems,budget=96",        "elasticcache,budget=96",
                                "taskkv,budget=96",     "mpcache,budget=96,threshold=0",
                                "alisa,budget=96"};
    for (size_t i = 0; i < sizeof full / sizeof *full; i++)
        same_as_dense(full[i]);
}

static int set_up(void **state)
{
    (void)state;
    return open_rows("tests/data/token_sets.safetensors");
}

TEST_MAIN(set_up, close_rows)
