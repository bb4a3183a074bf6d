#include <math.h>

#include "common/rng.h"
#include "common/stats.h"
#include "evaluate/quality.h"
#include "unit.h"

TEST(test_by_hand)
{
    /* prediction 0: logits with softmax 1/8, 2/8, 5/8; prediction 1: zeros, with softmax 1/3 */
    const float logits[6] = {0, logf(2), logf(5), 0, 0, 0};
    const float reference[6] = {0, 0, 0, 0, 0, 0};
    const uint32_t target[2] = {1, 0};
    kvd_quality q = {0};
    kvd_err err;
    OK(kvd_quality_add(&q, logits, reference, target, 2, 3, NULL, &err));
    assert_true(q.n == 2);
    assert_true(fabs(q.nll - (log(4) + log(3))) < 1e-6);
    assert_true(q.top1 == 1);
    assert_true(q.agree == 1);
    /* KL divergence of prediction 0: the reference is uniform, the logits give 1/8, 2/8, 5/8;
     * prediction 1 has KL divergence 0 */
    const double kl = (log(8.0 / 3) + log(8.0 / 6) + log(8.0 / 15)) / 3;
    assert_true(fabs(q.kl - kl) < 1e-6);

    kvd_quality_summary s;
    const kvd_quality equal[KVD_BOOTSTRAP_CLUSTERS] = {q, q, q, q, q, q, q, q};
    OK(kvd_quality_compare(equal, equal, KVD_BOOTSTRAP_CLUSTERS, 1, &s, &err));
    assert_true(fabs(s.perplexity.value - sqrt(12)) < 1e-5);
    assert_true(fabs(s.perplexity.lo - s.perplexity.hi) < 1e-9);
    assert_true(s.top1.value == 0.5);
    assert_true(s.top1_share.value == 1);
}

TEST(test_extreme_logits)
{
    const float logits[4] = {1e4f, -1e4f, 0, 1e4f};
    const float reference[4] = {-1e4f, 1e4f, 0, 0};
    const uint32_t target[1] = {1};
    kvd_quality q = {0};
    kvd_err err;
    OK(kvd_quality_add(&q, logits, reference, target, 1, 4, NULL, &err));
    assert_true(fabs(q.nll - (2e4 + log(2))) < 1e-9);
    assert_true(fabs(q.kl - (2e4 + log(2))) < 1e-9);
}

TEST(test_against_itself_and_never_negative)
{
    enum { N = 37, V = 301 };
    static float a[N * V], b[N * V];
    uint32_t target[N];
    kvd_rng r;
    kvd_rng_seed(&r, 5, 0);
    for (int i = 0; i < N * V; i++) {
        a[i] = (float)(6 * kvd_rng_normal(&r));
        b[i] = a[i] + (float)(1e-6 * kvd_rng_normal(&r));
    }
    for (int i = 0; i < N; i++)
        target[i] = (uint32_t)kvd_rng_below(&r, V);
    kvd_err err;
    kvd_quality same = {0}, near = {0};
    OK(kvd_quality_add(&same, a, a, target, N, V, NULL, &err));
    assert_true(same.kl == 0);
    assert_true(same.agree == N);
    for (int i = 0; i < N; i++) {
        const double before = near.kl;
        OK(kvd_quality_add(&near, b + i * V, a + i * V, target + i, 1, V, NULL, &err));
        assert_true(near.kl - before > -1e-13);
    }
    assert_true(near.kl < 1e-9);

    long double kl = 0, nll = 0;
    for (int i = 0; i < N; i++) {
        long double za = 0, zb = 0;
        for (int j = 0; j < V; j++) {
            za += expl(a[i * V + j]);
            zb += expl(-a[i * V + j]);
        }
        for (int j = 0; j < V; j++)
            kl += expl(-a[i * V + j]) / zb *
                  (-(long double)a[i * V + j] - logl(zb) - ((long double)a[i * V + j] - logl(za)));
        nll += logl(za) - (long double)a[i * V + (int)target[i]];
    }
    for (int i = 0; i < N * V; i++)
        b[i] = -a[i];
    kvd_quality q = {0};
    OK(kvd_quality_add(&q, a, b, target, N, V, NULL, &err));
    assert_true(fabs(q.kl - (double)kl) < 1e-9 * (double)kl);
    assert_true(fabs(q.nll - (double)nll) < 1e-9 * (double)nll);

    kvd_quality pieces = {0};
    for (int i = 0; i < N; i += 5)
        OK(kvd_quality_add(&pieces, a + i * V, b + i * V, target + i,
                           N - i < 5 ? (size_t)(N - i) : 5, V, NULL, &err));
    assert_true(fabs(pieces.kl - q.kl) < 1e-9 * q.kl && pieces.top1 == q.top1);
}

TEST(test_refuses)
{
    float logits[6] = {0, 1, 2, 0, 1, 2};
    uint32_t target[2] = {0, 2};
    kvd_quality q = {0};
    kvd_err err;
    logits[4] = NAN;
    FAILS(kvd_quality_add(&q, logits, NULL, target, 2, 3, NULL, &err),
          "logit of row 1, column 1 is not finite");
    assert_true(q.n == 0);
    float good[6] = {0};
    good[2] = INFINITY;
    logits[4] = 1;
    FAILS(kvd_quality_add(&q, logits, good, target, 2, 3, NULL, &err),
          "reference logit of row 0, column 2 is not finite");
    target[1] = 3;
    FAILS(kvd_quality_add(&q, logits, NULL, target, 2, 3, NULL, &err),
          "target 3 of row 1 is beyond the vocabulary of 3");
    kvd_quality_summary s;
    FAILS(kvd_quality_compare(&q, &q, 0, 1, &s, &err), "no sequences to summarise");
    FAILS(kvd_quality_compare(&q, &q, 1, 1, &s, &err), "no predictions in 1 sequences");
    const kvd_quality a = {.n = 3}, b = {.n = 4};
    FAILS(kvd_quality_compare(&a, &b, 1, 1, &s, &err),
          "sequence 0 has 3 predictions, the reference 4");
}

/* About 95 % of the confidence intervals must contain the true value. A ratio of two models'
 * accuracies must have a relatively narrower interval than one accuracy. */
TEST(test_intervals)
{
    enum { SEQUENCES = 40, TRIALS = 150 };
    kvd_rng r;
    kvd_rng_seed(&r, 11, 0);
    int held = 0, held_share = 0;
    double width = 0, width_share = 0;
    for (int t = 0; t < TRIALS; t++) {
        kvd_quality ref[SEQUENCES] = {0}, q[SEQUENCES] = {0};
        for (int s = 0; s < SEQUENCES; s++) {
            /* p: fraction of tokens that the uncompressed model predicts correctly; the compressed
             * model predicts 95 % of these correctly */
            const double p = 0.4 + 0.1 * kvd_rng_normal(&r);
            ref[s].n = q[s].n = 100;
            for (int i = 0; i < 100; i++)
                if (kvd_rng_uniform(&r) < p) {
                    ref[s].top1++;
                    q[s].top1 += kvd_rng_uniform(&r) < 0.95;
                }
            q[s].nll = 200;
        }
        kvd_quality_summary s;
        kvd_err err;
        OK(kvd_quality_compare(q, ref, SEQUENCES, (uint64_t)t, &s, &err));
        assert_true(s.top1.lo <= s.top1.value && s.top1.value <= s.top1.hi);
        held += s.top1.lo <= 0.38 && 0.38 <= s.top1.hi;
        held_share += s.top1_share.lo <= 0.95 && 0.95 <= s.top1_share.hi;
        width += (s.top1.hi - s.top1.lo) / s.top1.value / TRIALS;
        width_share += (s.top1_share.hi - s.top1_share.lo) / TRIALS;
        assert_true(fabs(s.perplexity.value - exp(2)) < 1e-9);
    }
    assert_in_range(held, TRIALS * 87 / 100, TRIALS);
    assert_in_range(held_share, TRIALS * 87 / 100, TRIALS);
    assert_true(width_share < width / 3);
}

TEST(test_what_does_not_exist_is_nan)
{
    const kvd_quality one = {.n = 10, .nll = 20, .top1 = 5}, none = {.n = 10, .nll = 20};
    kvd_quality_summary s;
    kvd_err err;
    OK(kvd_quality_compare(&one, &one, 1, 1, &s, &err));
    assert_true(s.top1_share.value == 1 && isnan(s.top1_share.lo) && isnan(s.perplexity.hi));
    OK(kvd_quality_compare(&none, &none, 1, 1, &s, &err));
    assert_true(isnan(s.top1_share.value) && s.top1.value == 0);
    const kvd_quality mixed[2] = {one, none};
    OK(kvd_quality_compare(mixed, mixed, 2, 1, &s, &err));
    assert_true(s.top1_share.value == 1 && isnan(s.top1_share.lo));
}

TEST(test_texts_weigh_the_same)
{
    const kvd_quality ref[3] = {{.n = 10, .nll = 20, .top1 = 5, .agree = 10},
                                {.n = 30, .nll = 30, .top1 = 15, .agree = 30},
                                {.n = 100, .nll = 300, .top1 = 50, .agree = 100}};
    const kvd_quality q[3] = {{.n = 10, .nll = 22, .top1 = 4, .kl = 1, .agree = 9},
                              {.n = 30, .nll = 33, .top1 = 14, .kl = 3, .agree = 27},
                              {.n = 100, .nll = 330, .top1 = 45, .kl = 20, .agree = 80}};
    const size_t first[3] = {0, 2, 3};
    kvd_quality_summary all, one[2];
    kvd_err err;
    OK(kvd_quality_compare_texts(q, ref, first, 2, 1, &all, &err));
    for (size_t t = 0; t < 2; t++)
        OK(kvd_quality_compare(q + first[t], ref + first[t], first[t + 1] - first[t], 1, &one[t],
                               &err));
    assert_true(fabs(all.top1_share.value - (18.0 / 20 + 0.9) / 2) < 1e-15);
    assert_true(all.kl.value == (one[0].kl.value + one[1].kl.value) / 2);
    assert_true(all.agree.value == (one[0].agree.value + one[1].agree.value) / 2);
    assert_true(fabs(log(all.perplexity.value) - (one[0].nll.value + one[1].nll.value) / 2) <
                1e-14);
    assert_true(isnan(all.kl.lo)); /* a text of one sequence has no interval */
}

TEST(test_changes_of_predictions)
{
    enum { N = 3, V = 4 };
    const float a[N * V] = {0, 1, 2, 3, 0, 0, 0, 0, 1, 0, -1, 2},
                      b[N * V] = {0, 1, 2, 3, 0, 0, 0, 1, 2, 0, -1, 1};
    const uint32_t target[N] = {3, 1, 0};
    kvd_prediction_change each[N];
    kvd_quality q = {0}, same = {0};
    kvd_err err = {""};
    OK(kvd_quality_add(&q, b, a, target, N, V, each, &err));
    OK(kvd_quality_add(&same, b, a, target, N, V, NULL, &err));
    assert_memory_equal(&q, &same, sizeof q);
    double sum = 0;
    for (size_t i = 0; i < N; i++) {
        double za = 0, zb = 0, kl = 0;
        for (size_t j = 0; j < V; j++) {
            za += exp((double)a[i * V + j]);
            zb += exp((double)b[i * V + j]);
        }
        for (size_t j = 0; j < V; j++) {
            const double p = exp((double)a[i * V + j]) / za, r = exp((double)b[i * V + j]) / zb;
            kl += p * log(p / r);
        }
        const size_t at = i * V + target[i];
        const double change = exp((double)b[at]) / zb - exp((double)a[at]) / za;
        assert_true(fabs((double)each[i].kl - kl) < 1e-7);
        assert_true(fabs((double)each[i].p_change - change) < 1e-7);
        sum += kl;
    }
    assert_true(fabs(q.kl - sum) < 1e-9);
    assert_true(!(each[0].kl > 0) && !(each[0].p_change > 0));
    kvd_prediction_change many[1001];
    kvd_change_summary x;
    for (int i = 0; i < 1001; i++)
        many[i] = (kvd_prediction_change){(float)(i * 5 % 1001), i % 2 ? 0.5f : -0.25f};
    OK(kvd_quality_changes(many, 1001, &x, &err));
    assert_true(fabs(x.kl_median - 500) < 1e-9 && fabs(x.kl_p90 - 900) < 1e-9);
    assert_true(fabs(x.kl_p99 - 990) < 1e-9 && fabs(x.kl_p999 - 999) < 1e-9);
    assert_true(fabs(x.kl_max - 1000) < 1e-9);
    assert_true(fabs(x.p_change - (500 * 0.5 - 501 * 0.25) / 1001) < 1e-9);
    many[0].kl = 4;
    many[1].kl = 5;
    OK(kvd_quality_changes(many, 2, &x, &err));
    assert_true(fabs(x.kl_median - 4.5) < 1e-9 && fabs(x.kl_p90 - 4.9) < 1e-6);
    OK(kvd_quality_changes(many, 1, &x, &err));
    assert_true(fabs(x.kl_p999 - 4) < 1e-9 && fabs(x.kl_max - 4) < 1e-9);
}

TEST_MAIN(NULL, NULL)
