/* Tests the linear regression from which kvdim-fit proposes parameters for compression method
 * ZDC. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "analysis/regression.h"
#include "unit.h"

static uint64_t state_of_random = 7;

static double uniform(void)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return (double)(state_of_random >> 11) * 0x1p-53;
}

static bool undercuts(const kvd_tried *a, const kvd_tried *b)
{
    const double x = fmax(0, a->loss), y = fmax(0, b->loss);
    return a->share <= b->share && x <= y && (a->share < b->share || x < y);
}

/* From all tried parameters of a method, those on the Pareto front of loss and cache size must be
 * chosen. */
TEST(test_oracle)
{
    enum { N = 200 };
    static kvd_tried tried[N], best[N];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++)
            tried[i] = (kvd_tried){.loss = floor(20 * uniform()) / 10 - 0.3,
                                   .share = floor(1 + 30 * uniform()) / 31};
        const size_t n = kvd_sweep_oracle(tried, N, best);
        for (size_t k = 0; k < n; k++) {
            for (int i = 0; i < N; i++)
                assert_false(undercuts(&tried[i], &best[k]));
            assert_true(k == 0 ||
                        (best[k].share > best[k - 1].share && best[k].loss < best[k - 1].loss));
        }
        for (int i = 0; i < N; i++) {
            bool kept = false, beaten = false;
            for (size_t k = 0; k < n; k++)
                kept =
                    kept || (best[k].share >= tried[i].share && best[k].share <= tried[i].share &&
                             fmax(0, best[k].loss) == fmax(0, tried[i].loss));
            for (int j = 0; j < N; j++)
                beaten = beaten || undercuts(&tried[j], &tried[i]);
            assert_true(kept != beaten);
        }
    }
}

static void make(kvd_tried *t, double loss)
{
    *t = (kvd_tried){.loss = loss, .share = 0.5};
    for (int j = 0; j < KVD_N_SET; j++)
        t->set[j] = 0.3 + 0.05 * j + (0.02 * j - 0.04) * log(loss);
}

static const size_t one_model[64];

TEST(test_lines)
{
    enum { N = 25 };
    kvd_tried t[N];
    kvd_regression r;
    kvd_err err = {""};
    for (int noisy = 0; noisy < 2; noisy++) {
        for (int i = 0; i < N; i++) {
            make(&t[i], exp(-4 + 5 * uniform()));
            for (int j = 0; noisy && j < KVD_N_SET; j++)
                t[i].set[j] += 0.2 * (uniform() - 0.5);
        }
        t[3].loss = 0; /* a loss of 0 has no logarithm */
        t[8].loss = -0.01;
        OK(kvd_regression_fit(&r, t, one_model, N, 1, &err));
        assert_int_equal(r.n, N - 2);
        for (int j = 0; j < KVD_N_SET; j++) {
            double n = 0, x = 0, y = 0, xx = 0, xy = 0, left = 0;
            for (int i = 0; i < N; i++)
                if (t[i].loss > 0) {
                    const double at = log(t[i].loss);
                    n++, x += at, y += t[i].set[j], xx += at * at, xy += at * t[i].set[j];
                }
            const double slope = (n * xy - x * y) / (n * xx - x * x), at_one = (y - slope * x) / n;
            for (int i = 0; i < N; i++)
                if (t[i].loss > 0)
                    left += pow(t[i].set[j] - at_one - slope * log(t[i].loss), 2);
            assert_true(fabs(r.slope[j] - slope) < 1e-11 && fabs(r.at_one[0][j] - at_one) < 1e-11);
            assert_true(fabs(r.residual[j] - sqrt(left / n)) < 1e-11);
            if (!noisy) {
                assert_true(fabs(r.at_one[0][j] - (0.3 + 0.05 * j)) < 1e-12);
                assert_true(fabs(r.slope[j] - (0.02 * j - 0.04)) < 1e-12);
            }
        }
    }
}

/* Fits a line to each parameter of method ZDC as a function of ln(loss). All models share the slope
 * of the line, but not its intercept. */
TEST(test_models)
{
    enum { N = 40, MODELS = 3 };
    kvd_tried t[N];
    size_t model[N];
    kvd_regression r;
    kvd_err err = {""};
    for (int i = 0; i < N; i++) {
        model[i] = i < 5 ? 2 : (size_t)i % 2; /* model 2 has five measurements */
        make(&t[i], exp(-4 + 5 * uniform()));
        for (int j = 0; j < KVD_N_SET; j++)
            t[i].set[j] += 0.1 * (double)model[i] * j + 0.1 * (uniform() - 0.5);
    }
    OK(kvd_regression_fit(&r, t, model, N, MODELS, &err));
    for (int j = 0; j < KVD_N_SET; j++) {
        double n[MODELS] = {0}, x[MODELS] = {0}, y[MODELS] = {0}, xx = 0, xy = 0, mean = 0;
        for (int i = 0; i < N; i++) {
            n[model[i]]++;
            x[model[i]] += log(t[i].loss);
            y[model[i]] += t[i].set[j];
        }
        for (int i = 0; i < N; i++) {
            const double dx = log(t[i].loss) - x[model[i]] / n[model[i]];
            xx += dx * dx;
            xy += dx * (t[i].set[j] - y[model[i]] / n[model[i]]);
        }
        assert_true(fabs(r.slope[j] - xy / xx) < 1e-11);
        for (size_t m = 0; m < MODELS; m++) {
            const double at_one = (y[m] - xy / xx * x[m]) / n[m];
            assert_true(fabs(kvd_regression_at_one(&r, m, (kvd_set)j) - at_one) < 1e-11);
            mean += at_one / MODELS;
        }
        assert_true(fabs(kvd_regression_at_one(&r, MODELS, (kvd_set)j) - mean) < 1e-11);
    }
    /* The second language model has a single measurement. Its fitted line must pass through the
     * measurement, with the slope fitted to the first language model. */
    for (int i = 0; i < 7; i++)
        model[i] = i == 6;
    OK(kvd_regression_fit(&r, t, model, 7, 2, &err));
    assert_true(fabs(r.at_one[1][2] + r.slope[2] * log(t[6].loss) - t[6].set[2]) < 1e-12);
}

TEST(test_refuses)
{
    kvd_tried t[6];
    kvd_regression r;
    kvd_err err = {""};
    const size_t second[6] = {0, 1, 1, 0, 0, 0};
    for (int i = 0; i < 6; i++)
        make(&t[i], 0.1 + i);
    OK(kvd_regression_fit(&r, t, one_model, 4, 1, &err));
    assert_int_equal(kvd_regression_fit(&r, t, one_model, 3, 1, &err), -1);
    assert_string_equal(
        err.msg,
        "a regression over 1 model wants at least 4 settings that are optimal for some loss "
        "above 0, there are 3: sweep more settings");
    FAILS_WITH(kvd_regression_fit(&r, t, second, 5, 2, &err),
               "over 2 models wants at least 6 settings");
    t[1].loss = t[2].loss = 0;
    assert_int_equal(kvd_regression_fit(&r, t, one_model, 5, 1, &err), -1);
    FAILS(kvd_regression_fit(&r, t, second, 6, 2, &err),
          "no setting of model 2 of 2 loses anything: sweep settings that do");
    for (int i = 0; i < 6; i++)
        make(&t[i], 0.25);
    FAILS(kvd_regression_fit(&r, t, one_model, 6, 1, &err),
          "all optimal settings of a model lose the same, 0.25");
    make(&t[0], 0.5);
    t[0].set[2] = NAN;
    assert_int_equal(kvd_regression_fit(&r, t, one_model, 6, 1, &err), -1);
}

TEST(test_proposals)
{
    const double most = 1 - 1.0 / 64;
    kvd_regression r = {.n = 9, .n_models = 1, .loss_lo = 0.01, .loss_hi = 1};
    kvd_proposal p = {.loss = 0};
    static const double at_one[KVD_N_SET] = {0.2, 0.1, 0.6, 0.5, 0.9, 0.8},
                        slope[KVD_N_SET] = {-0.1, -0.05, 0.1, 0.1, 0.02, 0.02};
    memcpy(r.at_one[0], at_one, sizeof at_one);
    memcpy(r.slope, slope, sizeof slope);
    kvd_regression_propose(&r, 0, 0.1, most, &p);
    assert_false(p.extrapolated);
    for (int j = 0; j < KVD_N_SET; j++)
        assert_true(!p.moved[j] && fabs(p.set[j] - (at_one[j] + slope[j] * log(0.1))) <= 0.5001e-4);
    char text[300];
    const kvd_sweep like = {.method = "zdc", .rest = "importance.mean=0"};
    kvd_proposal_method(&like, &p, text, sizeof text);
    assert_string_equal(
        text,
        "zdc,g=0.4303,rise=0.2151,p.qk=0.3697,p.v=0.2697,p_u.qk=0.8539,p_u.v=0.7539,importance.mean=0");
    kvd_regression_propose(&r, 0, 2, most, &p);
    assert_true(p.extrapolated);
    kvd_regression_propose(&r, 0, 0.005, most, &p);
    assert_true(p.extrapolated);
    for (double loss = 1e-6; loss < 1000; loss *= 3)
        for (int turn = 0; turn < 2; turn++) {
            for (int j = 0; j < KVD_N_SET; j++)
                r.slope[j] = turn ? -slope[j] : slope[j];
            kvd_regression_propose(&r, 0, loss, most, &p);
            assert_true(p.set[0] >= 0 && p.set[1] >= 0 && p.set[0] + p.set[1] <= 1 + 1e-12);
            for (int pair = 0; pair < 2; pair++)
                assert_true(p.set[2 + pair] >= 0 && p.set[4 + pair] >= p.set[2 + pair] &&
                            p.set[4 + pair] <= most);
            for (int j = 0; j < KVD_N_SET; j++) {
                const double line = r.at_one[0][j] + r.slope[j] * log(loss);
                assert_true(p.moved[j] || fabs(p.set[j] - line) <= 1.5e-4);
            }
        }
}

TEST_MAIN(NULL, NULL)
