#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "common/rng.h"
#include "jct_fixture.h"
#include "serving/simulate/serve_point.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_err err;
static kvd_costs *costs;

static int setup(void **state)
{
    (void)state;
    char path[64];
    jct_fixture x;
    snprintf(path, sizeof path, "%s/x.h5", temp_folder());
    if (jct_fixture_begin(&x, &err))
        return -1;
    x.setting.gpus = 2;
    for (size_t n = 1; n <= 4096; n *= 8)
        if (jct_fixture_piece(&x, n, 0, 1e-3 + 1e-5 * (double)n, &err) ||
            jct_fixture_step(&x, n, 0, 1e-3 + 1e-5 * (double)n, &err) ||
            jct_fixture_step(&x, n, 4096, 1e-3 + 2e-5 * (double)n, &err))
            return -1;
    if (jct_fixture_end(&x, path, test_run(), &err))
        return -1;
    costs = kvd_costs_load(path, "none", -1, &err);
    return costs ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    kvd_costs_free(costs);
    return 0;
}

enum { N = 3000 };

/* Reference implementation of 95 % bootstrap intervals that resample blocks of values. lo, hi:
 * bounds of the mean and of the quantiles 0.5, 0.9 and 0.99. */
static void plain_intervals(const double *x, const uint8_t *block, uint64_t seed, double lo[4],
                            double hi[4])
{
    static double drawn[4][KVD_LATENCY_RESAMPLES], sample[KVD_LATENCY_BLOCKS * N];
    kvd_rng rng;
    int held[KVD_LATENCY_BLOCKS] = {0}, n_held = 0;
    for (int b = 0; b < KVD_LATENCY_BLOCKS; b++) {
        bool any = false;
        for (size_t i = 0; i < N; i++)
            any = any || (block[i] == b && !isnan(x[i]));
        if (any)
            held[n_held++] = b;
    }
    kvd_rng_seed(&rng, seed, 0);
    for (int r = 0; r < KVD_LATENCY_RESAMPLES; r++) {
        size_t n = 0;
        for (int k = 0; k < n_held; k++) {
            const int b = held[kvd_rng_below(&rng, (uint64_t)n_held)];
            for (size_t i = 0; i < N; i++)
                if (block[i] == b && !isnan(x[i]))
                    sample[n++] = x[i];
        }
        drawn[0][r] = kvd_mean(sample, n);
        drawn[1][r] = kvd_quantile(sample, n, 0.5);
        drawn[2][r] = kvd_quantile(sample, n, 0.9);
        drawn[3][r] = kvd_quantile(sample, n, 0.99);
    }
    for (int k = 0; k < 4; k++) {
        lo[k] = kvd_quantile(drawn[k], KVD_LATENCY_RESAMPLES, 0.025);
        hi[k] = kvd_quantile(drawn[k], KVD_LATENCY_RESAMPLES, 0.975);
    }
}

static void near(double a, double b)
{
    if (!(fabs(a - b) <= 1e-12 * fabs(b)))
        fail_msg("%.17g is not %.17g", a, b);
}

TEST(test_statistics)
{
    static double x[N], there[N];
    static uint8_t block[N];
    kvd_rng rng;
    kvd_rng_seed(&rng, 4, 0);
    size_t n = 0;
    for (size_t i = 0; i < N; i++) {
        block[i] = (uint8_t)(i * i / (N * N / 29));
        x[i] = i % 7 == 3 ? NAN : floor(8 * exp(kvd_rng_normal(&rng))) / 8;
        if (!isnan(x[i]))
            there[n++] = x[i];
    }
    kvd_latency l;
    double lo[4], hi[4];
    OK(kvd_latency_summarise(x, block, N, 9, &l, &err));
    near(l.statistic[KVD_LATENCY_MEAN].value, kvd_mean(there, n));
    near(l.statistic[KVD_LATENCY_P50].value, kvd_quantile(there, n, 0.5));
    near(l.statistic[KVD_LATENCY_P90].value, kvd_quantile(there, n, 0.9));
    near(l.statistic[KVD_LATENCY_P99].value, kvd_quantile(there, n, 0.99));
    for (int i = 0; i < KVD_LATENCY_CURVE; i++)
        near(l.curve[i], kvd_quantile(there, n, i / 100.));
    plain_intervals(x, block, 9, lo, hi);
    for (int k = 0; k < 4; k++) {
        near(l.statistic[k].lo, lo[k]);
        near(l.statistic[k].hi, hi[k]);
    }
    memset(block, 0, sizeof block);
    OK(kvd_latency_summarise(x, block, N, 9, &l, &err));
    assert_true(isnan(l.statistic[0].lo) && !isnan(l.statistic[0].value));
    OK(kvd_latency_summarise(x, block, 1, 9, &l, &err));
    near(l.statistic[KVD_LATENCY_P99].value, x[0]);
    OK(kvd_latency_summarise(x, block, 0, 9, &l, &err));
    assert_true(isnan(l.statistic[0].value) && isnan(l.curve[50]));
}

/* Waiting times of successive requests are correlated. Confidence intervals of the mean waiting
 * time must account for this correlation. */
TEST(test_intervals_of_a_queue)
{
    enum { RUNS = 200, LENGTH = 3200 };
    static double x[LENGTH];
    static uint8_t block[LENGTH];
    int inside = 0;
    for (size_t i = 0; i < LENGTH; i++)
        block[i] = (uint8_t)(i / 100);
    for (uint64_t run = 0; run < RUNS; run++) {
        kvd_rng rng;
        kvd_latency l;
        kvd_rng_seed(&rng, run, 1);
        double value = kvd_rng_normal(&rng) / sqrt(1 - 0.81);
        for (size_t i = 0; i < LENGTH; i++)
            x[i] = value = 0.9 * value + kvd_rng_normal(&rng);
        OK(kvd_latency_summarise(x, block, LENGTH, run, &l, &err));
        inside += l.statistic[0].lo <= 0 && l.statistic[0].hi >= 0;
    }
    /* About 95 % of the confidence intervals should contain the true mean 0. If single values were
     * resampled, not blocks, only 35 % would. */
    if (inside < 0.88 * RUNS || inside > 0.99 * RUNS)
        fail_msg("%d of %d intervals hold the mean", inside, (int)RUNS);
}

static kvd_serve_setting setting(void)
{
    return (kvd_serve_setting){.costs = costs,
                               .limits = {.max_batch = 32, .max_tokens = 4096, .pages = 200},
                               .replicas = 1,
                               .slo_ttft = INFINITY,
                               .slo_tbt = INFINITY,
                               .seed = 3};
}

TEST(test_point)
{
    kvd_requests q;
    kvd_serve_point p, strict;
    kvd_serve_setting s = setting();
    OK(kvd_requests_poisson(&q, 8, 1000, "humaneval", 5, &err));
    OK(kvd_serve_measure(&s, &q, 8, &p, &err));
    assert_int_equal(p.requests, 1000);
    assert_true(p.slo_share >= 1 && p.slo_share <= 1);
    near(p.goodput, p.served_rate);
    assert_true(p.utilisation > 0 && p.utilisation <= 1 && p.kv_share > 0 && p.kv_share <= 1);
    assert_true(p.drain > 0 && p.wait > 0 && p.wait < p.ttft.statistic[0].value);
    assert_true(fabs(p.served_rate - 8) < 1);
    double tokens = 0, end = p.simulated.end - q.request[0].arrival;
    for (size_t i = 0; i < q.n; i++)
        tokens += q.request[i].output;
    near(p.token_rate, tokens / end);
    s.slo_ttft = p.ttft.statistic[KVD_LATENCY_P50].value;
    OK(kvd_serve_measure(&s, &q, 8, &strict, &err));
    /* The limit is the median time to the first token, so half of the requests meet this limit. */
    near(strict.slo_share, 0.5);
    near(strict.goodput, p.goodput / 2);
    s.slo_tbt = 1e-9;
    OK(kvd_serve_measure(&s, &q, 8, &strict, &err));
    assert_true(strict.goodput <= 0);
    s = setting();
    s.limits.pages = 8;
    OK(kvd_serve_measure(&s, &q, 8, &strict, &err));
    assert_true(strict.simulated.refused > 0 && strict.slo_share < 1);
    near(strict.slo_share, 1 - (double)strict.simulated.refused / 1000);
    s.limits.pages = 1;
    assert_int_equal(kvd_serve_measure(&s, &q, 8, &strict, &err), -1);
    assert_int_equal(strncmp(err.msg, "no request can be served: request 0: ", 37), 0);
    kvd_requests_release(&q);
    s = setting();
    OK(kvd_requests_poisson(&q, 8, 1, "fixed:64:3", 5, &err));
    OK(kvd_serve_measure(&s, &q, 8, &p, &err));
    assert_true(fabs(p.ttft.statistic[0].value - (1e-3 + 64e-5)) < 1e-12);
    near(p.normalised.statistic[0].value, p.jct.statistic[0].value / 3);
    assert_true(isnan(p.ttft.statistic[0].lo));
    kvd_requests_release(&q);
}

TEST(test_max_rate)
{
    kvd_requests q;
    kvd_serve_point p;
    const kvd_serve_setting s = setting();
    double rate, again;
    OK(kvd_requests_poisson(&q, 1, 1000, "humaneval", 5, &err));
    static const double bound[] = {3e-3, 1e-2, 3e-2};
    double before = 0;
    for (int i = 0; i < 3; i++) {
        OK(kvd_serve_max_rate(&s, &q, 1, bound[i], &rate, &err));
        assert_true(rate > before);
        before = rate;
        for (int over = 0; over < 2; over++) {
            kvd_requests fast;
            OK(kvd_serve_faster(&q, rate * (over ? 1.0021 : 1), &fast, &err));
            OK(kvd_serve_measure(&s, &fast, rate, &p, &err));
            const double mean = p.normalised.statistic[0].value;
            if (over ? mean < bound[i] * 0.98 : mean > bound[i] * (1 + 1e-12))
                fail_msg("bound %g, rate %g: mean %.17g", bound[i], rate, mean);
            kvd_requests_release(&fast);
        }
        /* The highest sustainable rate must not depend on the rate at which requests of the given
         * trace arrive. */
        kvd_requests slow;
        OK(kvd_serve_faster(&q, 1. / 64, &slow, &err));
        OK(kvd_serve_max_rate(&s, &slow, 1. / 64, bound[i], &again, &err));
        assert_true(fabs(again - rate) < 0.005 * rate);
        kvd_requests_release(&slow);
    }
    OK(kvd_serve_max_rate(&s, &q, 1, 1e-4, &rate, &err));
    assert_true(rate <= 0);
    OK(kvd_serve_max_rate(&s, &q, 1, 1e9, &rate, &err));
    assert_true(isinf(rate));
    kvd_requests_release(&q);
}

TEST(test_pages)
{
    const double gib = 1 << 30;
    size_t pages;
    /* There is memory for 16e9 bytes of weights and 64e6 bytes of cache, which at 1000 bytes per
     * token are 1000 pages of 64 tokens. */
    OK(kvd_serve_pages(costs, NAN, NAN, &pages, &err));
    assert_int_equal(pages, 1000);
    OK(kvd_serve_pages(costs, 10 * gib, 1 * gib, &pages, &err));
    assert_int_equal(pages, (size_t)((18 * gib - 16e9) / 64000));
    FAILS(kvd_serve_pages(costs, 8 * gib, 0.6 * gib, &pages, &err),
          "2 GPUs of 8 GiB less 0.6 GiB hold 14.9 GiB of weights and no page of 0.06104 MiB");
}

TEST_MAIN(setup, teardown)
