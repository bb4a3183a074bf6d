#include <math.h>
#include <stdbool.h>

#include "jct_fixture.h"
#include "serving/simulate/costs.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;

/* Returns the seconds of attention of n tokens after `before` others: 1 ns per product of a query
 * and a key. */
static double attention_cost(double n, double before)
{
    return 1e-9 * n * (before + n / 2);
}

static double prompt_cost(double n, double before)
{
    return 1e-3 + 1e-5 * n + attention_cost(n, before);
}

static double step_cost(double batch, double context)
{
    return 1e-3 + 2e-5 * batch + 5e-9 * batch * context;
}

static void add_grid(jct_fixture *x, double factor)
{
    static const size_t pieces[] = {64, 512, 4096}, befores[] = {0, 1000, 8000},
                        batches[] = {1, 8, 64};
    static const double contexts[] = {100, 1000, 10000};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            const double s = factor * step_cost((double)batches[i], contexts[k]);
            OK(jct_fixture_piece(
                x, pieces[(i + 1) % 3], befores[k],
                factor * prompt_cost((double)pieces[(i + 1) % 3], (double)befores[k]), &err));
            OK(jct_fixture_step(x, batches[i], contexts[k], s, &err));
        }
}

static void add_job(jct_fixture *x, double bytes_per_token)
{
    const kvd_jct_run job = {.jct = 1,
                             .ttft_mean = 0.5,
                             .ttft_max = 0.5,
                             .held_bytes = 128 * bytes_per_token,
                             .held_tokens = 128};
    OK(kvd_jct_add_job(x->rows, &x->setting, 1, 100, 28, &job, 1, NULL, 0, &err));
}

static void near(double a, double b, double off)
{
    if (!(fabs(a - b) <= off * fabs(b)))
        fail_msg("%.17g is not %.17g", a, b);
}

/* Checks the seconds predicted for an iteration. `beyond`: 1 if the iteration is outside the
 * measured range, 0 otherwise. */
static void takes(const kvd_costs *c, size_t n_steps, size_t n, const kvd_slice *slice, double want,
                  int beyond)
{
    const kvd_iteration it = {.n_slices = n, .n_steps = n_steps, .slice = slice};
    int found;
    near(kvd_costs_of(c, &it, &found), want, 1e-12);
    assert_int_equal(found, beyond);
}

static kvd_costs *load(const char *method, int gpus)
{
    kvd_costs *const c = kvd_costs_load(temp_file("x.h5"), method, gpus, &err);
    assert_non_null(c);
    return c;
}

TEST(test_tables)
{
    jct_fixture x;
    OK(jct_fixture_begin(&x, &err));
    add_grid(&x, 1);
    x.setting.method = "zack,p=0.5";
    x.setting.name = "zack";
    x.facts.bytes_per_token = 500;
    add_grid(&x, 0.5);
    for (int i = 1; i <= 2; i++)
        add_job(&x, 125. * i);
    OK(jct_fixture_end(&x, temp_file("x.h5"), test_run(), &err));

    kvd_costs *const c = load("none", -1), *const z = load("zack,p=0.5", 1);
    near(kvd_costs_bytes_per_token(c), 1000, 1e-12);
    /* Two measured jobs have 125 and 250 bytes per token. The larger number is taken. */
    near(kvd_costs_bytes_per_token(z), 250, 1e-12);
    near(kvd_costs_weight_bytes(c), 16e9, 1e-12);
    near(kvd_costs_cache_bytes(c), 64e6, 1e-12);
    assert_int_equal(kvd_costs_gpus(c), 1);
    assert_true(kvd_costs_graphs(c) && !kvd_costs_phases(c));
    assert_string_equal(kvd_costs_engine(c), "a test");

    for (uint32_t piece = 64; piece <= 4096; piece += 61)
        for (uint32_t before = 0; before <= 8000; before += 800) {
            const kvd_slice s = {.before = before, .n = piece};
            takes(c, 0, 1, &s, prompt_cost(piece, before), 0);
            takes(z, 0, 1, &s, prompt_cost(piece, before) / 2, 0);
        }
    kvd_slice step[64];
    for (size_t batch = 1; batch <= 64; batch++) {
        for (size_t i = 0; i < batch; i++)
            step[i] = (kvd_slice){.before = (uint32_t)(100 + 150 * i), .n = 1};
        takes(c, batch, batch, step, step_cost((double)batch, 100 + 75 * ((double)batch - 1)), 0);
    }
    const kvd_slice four[] = {
        {.before = 500, .n = 1}, {.before = 700, .n = 1}, {.n = 100}, {.before = 64, .n = 200}};
    takes(c, 2, 4, four, step_cost(2, 600) + prompt_cost(100, 0) + prompt_cost(200, 64) - 2e-3, 0);
    takes(c, 0, 2, four + 2, prompt_cost(100, 0) + prompt_cost(200, 64) - 1e-3, 0);
    const kvd_slice out[] = {{.n = 8192}, {.n = 3}, {.n = 64, .before = 9000}};
    const double want[] = {prompt_cost(8192, 0), prompt_cost(3, 0), prompt_cost(64, 9000)};
    for (int i = 0; i < 3; i++)
        takes(c, 0, 1, &out[i], want[i], 1);
    step[0].before = 99;
    takes(c, 1, 1, step, step_cost(1, 99), 1);
    kvd_costs_free(c);
    kvd_costs_free(z);
    kvd_costs_free(NULL);
}

/* Returns the seconds of an iteration without attention: 5.12 ms up to 256 tokens, and 20 us for
 * each further token. */
static double bound_cost(double tokens)
{
    return 5.12e-3 + 2e-5 * fmax(0, tokens - 256);
}

static void add_bound(jct_fixture *x, bool whole)
{
    static const size_t piece[] = {64, 256, 1024, 2048};
    for (int i = 0; i < 4; i++)
        for (size_t before = 0; before <= (whole ? 0 : 2000); before += 1000) {
            const double n = (double)piece[i];
            OK(jct_fixture_piece(x, piece[i], before,
                                 bound_cost(n) + attention_cost(n, (double)before), &err));
        }
    for (size_t batch = 1; batch <= 2; batch++)
        OK(jct_fixture_step(x, batch, 100, 5.12e-3, &err));
}

TEST(test_prompts_together)
{
    jct_fixture x;
    OK(jct_fixture_begin(&x, &err));
    add_bound(&x, false);
    /* Adds a measured batch of four prompts of 2048 tokens, in which 6144 tokens take 10 us
     * each. */
    x.setting.method = "measured";
    add_bound(&x, false);
    OK(jct_fixture_prompts(&x, 4, 2048,
                           bound_cost(2048) + 1e-5 * 6144 + 4 * attention_cost(2048, 0), &err));
    x.setting.method = "whole";
    add_bound(&x, true);
    x.setting.method = "twice";
    add_bound(&x, false);
    for (int i = 0; i < 2; i++)
        OK(jct_fixture_prompts(&x, 2, 2048, 1, &err));
    OK(jct_fixture_end(&x, temp_file("x.h5"), test_run(), &err));
    kvd_costs *const c = load("none", -1), *const m = load("measured", -1),
                     *const w = load("whole", -1);
    kvd_slice s[10] = {{.before = 100, .n = 1}, {.before = 100, .n = 1}};
    for (int i = 2; i < 10; i++)
        s[i] = (kvd_slice){.n = 1024};
    takes(c, 0, 8, s + 2, bound_cost(8192) + 8 * attention_cost(1024, 0), 1);
    takes(c, 0, 2, s + 2, bound_cost(2048) + 2 * attention_cost(1024, 0), 0);
    takes(m, 0, 8, s + 2, bound_cost(2048) + 1e-5 * 6144 + 8 * attention_cost(1024, 0), 0);
    takes(c, 2, 3, s, bound_cost(1026) + attention_cost(1024, 0), 0);
    /* receives 1 if the cost had to be extrapolated, which this test does not check */
    int beyond;
    near(kvd_costs_of(w, &(kvd_iteration){.n_slices = 2, .slice = s + 2}, &beyond),
         bound_cost(2048) + 2 * attention_cost(1024, 0), 0.02);
    kvd_costs_free(c);
    kvd_costs_free(m);
    kvd_costs_free(w);
    assert_null(kvd_costs_load(temp_file("x.h5"), "twice", -1, &err));
}

TEST(test_ragged)
{
    jct_fixture x;
    OK(jct_fixture_begin(&x, &err));
    OK(jct_fixture_piece(&x, 100, 0, 2e-3, &err));
    OK(jct_fixture_piece(&x, 300, 0, 1e-3, &err));
    OK(jct_fixture_step(&x, 1, 100, 1e-3, &err));
    OK(jct_fixture_step(&x, 1, 900, 2e-3, &err));
    OK(jct_fixture_step(&x, 9, 100, 5e-3, &err));
    OK(jct_fixture_end(&x, temp_file("x.h5"), test_run(), &err));
    kvd_costs *const c = load("none", -1);
    kvd_slice s[9] = {{.before = 500, .n = 1}};
    takes(c, 1, 1, s, 1.5e-3, 0);
    for (int i = 0; i < 9; i++)
        s[i] = (kvd_slice){.before = 500, .n = 1};
    takes(c, 9, 9, s, 5e-3, 1);
    takes(c, 5, 5, s, (1.5e-3 + 5e-3) / 2, 1);
    takes(c, 0, 1, &(kvd_slice){.n = 5000}, 2e-3, 1);
    takes(c, 0, 1, &(kvd_slice){.n = 100, .before = 7}, 2e-3, 1);
    kvd_costs_free(c);
}

static void add_piece(jct_fixture *x, const char *method, size_t piece, size_t before,
                      double seconds)
{
    x->setting.method = method;
    OK(jct_fixture_piece(x, piece, before, seconds, &err));
}

static void refused(const char *method, int gpus, const char *message)
{
    char whole[300];
    snprintf(whole, sizeof whole, "'%s': %s: %s", temp_file("x.h5"), method, message);
    assert_null(kvd_costs_load(temp_file("x.h5"), method, gpus, &err));
    assert_string_equal(err.msg, whole);
}

TEST(test_refused)
{
    jct_fixture x;
    OK(jct_fixture_begin(&x, &err));
    add_grid(&x, 1);
    x.setting.gpus = 2;
    add_grid(&x, 1);
    add_piece(&x, "twice", 64, 0, 1);
    add_piece(&x, "twice", 64, 0, 1);
    add_piece(&x, "one", 64, 0, 1);
    add_piece(&x, "one", 64, 1, 1);
    add_piece(&x, "types", 64, 0, 1);
    x.setting.type = KVD_F16;
    add_piece(&x, "types", 65, 1, 1);
    add_piece(&x, "zero", 64, 0, 0);
    add_piece(&x, "empty", 64, 0, 1);
    add_piece(&x, "empty", 65, 0, 1);
    x.facts.bytes_per_token = NAN;
    add_piece(&x, "bytes", 64, 0, 1);
    x.facts.bytes_per_token = 1e5;
    add_piece(&x, "later", 64, 0, 1);
    x.facts.bytes_per_token = NAN;
    add_piece(&x, "later", 65, 1, 1);
    x.facts.bytes_per_token = 1e5;
    x.setting.gpus = -3;
    add_piece(&x, "cards", 64, 0, 1);
    x.setting.gpus = 1;
    x.facts.cache_bytes = INFINITY;
    add_piece(&x, "endless", 64, 0, 1);
    x.facts.cache_bytes = 64e6;
    x.setting.method = "nobody together";
    OK(jct_fixture_prompts(&x, 0, 64, 1, &err));
    OK(jct_fixture_end(&x, temp_file("x.h5"), test_run(), &err));
    refused("none", -1, "measured on 1 and on 2 GPUs: say which with --gpus");
    refused("none", 4, "no row of kind iteration on 4 GPUs");
    refused("nobody", -1, "no row of kind iteration");
    refused("twice", -1, "two rows have piece 64, before 0");
    refused("one", -1, "two values of piece at least are needed, there is 1");
    refused("types", -1, "rows 40 and 41 differ in dtype: bf16 and f16");
    refused("zero", -1, "row 42: piece 64, before 0, 0 seconds");
    refused("empty", -1, "two values of batch at least are needed, there are 0");
    refused("bytes", -1, "row 45: nan bytes per token, 1.6e+10 bytes of weights");
    refused("later", -1, "rows 46 and 47 differ in bytes_per_token: 100000 and nan");
    refused("cards", -1, "row 48: -3 GPUs");
    refused("endless", -1, "row 49: a cache of inf bytes");
    refused("nobody together", -1, "row 50: batch 0, expected at least 1");
    kvd_costs *const c = load("none", 2);
    assert_int_equal(kvd_costs_gpus(c), 2);
    kvd_costs_free(c);
    assert_null(kvd_costs_load("/nowhere.h5", "none", -1, &err));
}

TEST_MAIN(NULL, NULL)
