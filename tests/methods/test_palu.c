/* Tests the method palu, which stores low-rank latents that groups of KV heads share. */
#include <lapacke.h>

#include "calibration_dump.h"
#include "code_rows.h"
#include "dims_fixture.h"

enum { N = 300, WIDE = HEADS * D };

static void singular_values(const float *rows, size_t width, double *sigma)
{
    double x[N * WIDE], superb[WIDE];
    for (size_t i = 0; i < N * width; i++)
        x[i] = (double)rows[i];
    assert_int_equal(LAPACKE_dgesvd(LAPACK_ROW_MAJOR, 'N', 'N', N, (lapack_int)width, x,
                                    (lapack_int)width, sigma, NULL, 1, NULL, 1, superb),
                     0);
}

/* Returns the sum of squared singular values of `rows`, without the r largest. *all: the sum of
 * all. */
static double tail_of(const float *rows, size_t width, size_t r, double *all)
{
    double sigma[WIDE], tail = 0;
    singular_values(rows, width, sigma);
    *all = 0;
    for (size_t i = 0; i < width; i++) {
        *all += sigma[i] * sigma[i];
        tail += i >= r ? sigma[i] * sigma[i] : 0;
    }
    return tail;
}

static double rebuilt_error(const kvd_dims_head *h, kvd_side side, const float *rows, size_t wide,
                            size_t at)
{
    const float *const a = side == KVD_KEYS ? h->a_k : h->a_v, *const b = side == KVD_KEYS ? h->b_k
                                                                                           : h->b_v;
    const size_t r = (size_t)(side == KVD_KEYS ? h->d_qk : h->d_v);
    double sum = 0;
    for (size_t t = 0; t < N; t++) {
        double latent[WIDE] = {0};
        for (size_t j = 0; j < r; j++)
            for (size_t i = 0; i < wide; i++)
                latent[j] += (double)rows[t * wide + i] * (double)a[i * r + j];
        for (size_t i = 0; i < D; i++) {
            double y = 0;
            for (size_t j = 0; j < r; j++)
                y += latent[j] * (double)b[j * D + i];
            sum += pow(y - (double)rows[t * wide + at + i], 2);
        }
    }
    return sum;
}

/* Tests that palu has the least possible squared error at its rank: the sum of the removed squared
 * singular values. */
TEST(palu_is_the_best_of_its_rank)
{
    const char *const text[] = {"palu,p=0.5", "palu,p=0.25", "palu,p=0.75,heads=2", "palu,p=0"};
    const size_t rank[] = {8, 12, 4, 16};
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    for (size_t i = 0; i < 4; i++) {
        kvd_plan plan;
        open_plan(&plan, text[i], 0, &setup);
        /* The method palu groups four KV heads by default, but the test model has only two. */
        assert_int_equal(plan.dims->heads, HEADS);
        for (int l = 0; l < LAYERS; l++)
            for (int side = 0; side < KVD_N_SIDES; side++) {
                float rows[N * WIDE];
                double all, lost = 0;
                rows_side_by_side(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, l, N, rows);
                const double tail = tail_of(rows, WIDE, rank[i], &all);
                for (size_t h = 0; h < HEADS; h++) {
                    const kvd_dims_head *const one = &plan.dims->head[(size_t)l * HEADS + h];
                    assert_int_equal(side == KVD_KEYS ? one->d_qk : one->d_v, rank[i]);
                    lost += rebuilt_error(one, (kvd_side)side, rows, WIDE, h * D);
                }
                assert_true(fabs(lost - tail) < 1e-5 * all);
            }
        kvd_plan_close(&plan);
    }
}

TEST(palu_of_single_heads)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    kvd_plan plan;
    open_plan(&plan, "palu,p=0.5,heads=1", 0, &setup);
    for (int h = 0; h < HEADS; h++) {
        float rows[N * D];
        double all;
        head_rows(KVD_X_K_PRE, 1, h, N, rows);
        const double tail = tail_of(rows, D, D / 2, &all);
        assert_true(fabs(rebuilt_error(&plan.dims->head[HEADS + h], KVD_KEYS, rows, D, 0) - tail) <
                    1e-5 * all);
    }
    kvd_plan_close(&plan);
}

/* In "h2o+palu", each KV head drops different tokens. KV heads then share latent vectors only if
 * the parameter `heads` is set. */
TEST(palu_after_dropped_tokens)
{
    const kvd_method_setup setup = {.config = &config, .calibration = &dump};
    static const struct {
        const char *text;
        int heads;
    } want[] = {{"palu", 2},
                {"h2o+palu", 1},
                {"keyformer+palu", 1},
                {"h2o+palu,heads=2", 2},
                {"quest+palu", 2}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        kvd_plan plan;
        open_plan(&plan, want[i].text, 4, &setup);
        assert_int_equal(plan.dims->heads, want[i].heads);
        kvd_plan_close(&plan);
    }
}

/* Writes to `rank` the ranks that the method `text` chooses, and returns their sum. The ranks
 * depend on the singular values `drawn` or, if NULL, on calibration data. */
static int searched(const char *text, kvd_fisher *f, const kvd_spectrum *drawn,
                    int rank[LAYERS][HEADS][KVD_N_SIDES])
{
    const kvd_method_setup setup = {.config = &config,
                                    .calibration = drawn ? NULL : &dump,
                                    .fisher = f,
                                    .spectrum = drawn,
                                    .seed = 1,
                                    .drawn = drawn != NULL};
    kvd_plan plan;
    int sum = 0;
    open_plan(&plan, text, 0, &setup);
    for (int i = 0; i < LAYERS * HEADS; i++) {
        rank[i / HEADS][i % HEADS][KVD_KEYS] = plan.dims->head[i].d_qk;
        rank[i / HEADS][i % HEADS][KVD_VALUES] = plan.dims->head[i].d_v;
        sum += plan.dims->head[i].d_qk + plan.dims->head[i].d_v;
    }
    kvd_plan_close(&plan);
    return sum;
}

TEST(palu_gives_ranks_by_information)
{
    double keys[LAYERS * HEADS] = {1, 1, 1, 1}, values[LAYERS * HEADS] = {1, 1, 1, 1},
                         none[LAYERS * HEADS] = {0};
    kvd_fisher f = {.n_layers = LAYERS, .root = {keys, values}, .weight = {none, none}};
    int rank[LAYERS][HEADS][KVD_N_SIDES];
    assert_int_equal(searched("palu,p=0.5,heads=1,search=1", &f, NULL, rank),
                     4 * LAYERS * HEADS * 2);
    for (int i = 0; i < LAYERS * HEADS * 2; i++)
        assert_int_equal(((int *)rank)[i], 4);
    /* Eight matrices share 32 ranks in proportion to their Fisher information. The information sums
     * to 16, so a matrix with information 1 gets rank 2. */
    values[1] = values[2] = 3;
    values[3] = 5;
    assert_int_equal(searched("palu,p=0.5,heads=1,search=1", &f, NULL, rank), 32);
    /* The five matrices with Fisher information 1 get 12 ranks in total: 2 each, and 2 that are
     * left over. */
    assert_int_equal(rank[0][0][KVD_KEYS] + rank[0][1][KVD_KEYS] + rank[1][0][KVD_KEYS] +
                         rank[1][1][KVD_KEYS] + rank[0][0][KVD_VALUES],
                     12);
    /* In proportion to its Fisher information, this matrix would get rank 10, but its full rank is
     * 8. */
    assert_int_equal(rank[1][1][KVD_VALUES], 8);
    const char *const text[] = {"palu,p=0.1,heads=1,search=1", "palu,p=0.7,heads=1,search=1",
                                "palu,p=0.95,heads=1,search=1", "palu,p=0.6,heads=2,search=1"};
    const int each[] = {7, 2, 1, 6};
    kvd_rng rng;
    kvd_rng_seed(&rng, 4, 0);
    for (int i = 0; i < 40; i++) {
        for (int j = 0; j < LAYERS * HEADS; j++) {
            keys[j] = exp(3 * kvd_rng_normal(&rng));
            values[j] = exp(3 * kvd_rng_normal(&rng));
        }
        assert_int_equal(searched(text[i % 4], &f, NULL, rank), each[i % 4] * LAYERS * HEADS * 2);
        for (int j = 0; j < LAYERS * HEADS * 2; j++)
            assert_in_range(((int *)rank)[j], 1, i % 4 == 3 ? WIDE : D);
        for (int l = 0; i % 4 == 3 && l < LAYERS; l++)
            for (int side = 0; side < KVD_N_SIDES; side++)
                assert_int_equal(rank[l][0][side], rank[l][1][side]);
    }
}

/* Tests ranks that the method palu chooses by Eq. 6 of the ZACK paper, with one r for all matrices:
 * removed singular values sum to at most r times the sum of all. */
static void ranks_by_eq6(const kvd_spectrum *drawn)
{
    const char *const text[] = {"palu,p=0.5,heads=1,search=3", "palu,p=0.25,heads=1,search=3",
                                "palu,p=0.9,heads=1,search=3"};
    const int each[] = {4, 6, 1};
    int rank[LAYERS][HEADS][KVD_N_SIDES];
    for (int i = 0; i < 3; i++) {
        const int most = each[i] * LAYERS * HEADS * 2, sum = searched(text[i], NULL, drawn, rank);
        double kept = 0, dropped = 1;
        assert_in_range(sum, most - LAYERS * HEADS * 2, most);
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < HEADS; h++)
                for (int side = 0; side < KVD_N_SIDES; side++) {
                    float rows[N * D];
                    double sigma[D], all = 0, tail = 0;
                    const int r = rank[l][h][side];
                    if (drawn) {
                        memcpy(sigma,
                               kvd_spectrum_sigma(
                                   drawn, side == KVD_KEYS ? KVD_PAIR_QK : KVD_PAIR_WV, l, h),
                               sizeof sigma);
                    } else {
                        head_rows(side == KVD_KEYS ? KVD_X_K_PRE : KVD_X_V, l, h, N, rows);
                        singular_values(rows, D, sigma);
                    }
                    for (int j = D - 1; j >= 0; j--)
                        all += sigma[j];
                    for (int j = r; j < D; j++)
                        tail += sigma[j];
                    kept = fmax(kept, tail / all);
                    if (r > 1)
                        dropped = fmin(dropped, (tail + sigma[r - 1]) / all);
                }
        assert_true(kept < dropped + 1e-9);
    }
}

TEST(palu_gives_ranks_by_eq6)
{
    ranks_by_eq6(NULL);
}

TEST(palu_draws_matrices_of_given_spread)
{
    static const char *const text[] = {"palu,p=0.5,heads=2,search=3",
                                       "palu,p=0.5,heads=1,search=3"};
    kvd_spectrum s;
    kvd_err err = {""};
    assert_int_equal(fixture_spectrum(&s, &config, 5, &err), 0);
    for (int i = 0; i < LAYERS * HEADS * D; i++) /* singular values differ from head to head */
        s.pair[KVD_PAIR_QK].sigma[i] = exp(-(i / D + 1.0) * (i % D) / D);
    ranks_by_eq6(&s);
    for (int i = 0; i < 2; i++) {
        const kvd_method_setup setup = {
            .config = &config, .spectrum = i ? NULL : &s, .seed = 1, .drawn = true};
        refuse_plan(text[i], 0, &setup, i ? "give --calibration or --spread" : "heads=1");
    }
    kvd_spectrum_release(&s);
}

TEST_MAIN_WITH_DUMP(N)
