/* Tests the computation of one rotation (orthogonal matrix) for Q and K, and of projections of Q
 * and K that change Q K^T least. */

#include <cblas.h>

#include "common/linalg.h"
#include "make_dump.h"
#include "oracle/balanced.h"
#include "temp_folder.h"
#include "unit.h"

static char path[64], moments_path[64];

static int set_up(void **state)
{
    (void)state;
    kvd_err err;
    dump_plan p;
    snprintf(path, sizeof path, "%s/a.h5", temp_folder());
    snprintf(moments_path, sizeof moments_path, "%s/m.h5", temp_folder());
    dump_plan_init(&p, 50, 1);
    p.a.has_pre = true;
    return write_dump(&p, path, test_run(), &err) ||
           write_moments(path, moments_path, test_run(), &err);
}

typedef struct {
    float *x;
    size_t n;
} gathered;

static int gather(void *ctx, const float *rows, size_t n, kvd_err *err)
{
    (void)err;
    gathered *g = ctx;
    g->x = realloc(g->x, (g->n + n) * 8 * sizeof *g->x);
    assert_non_null(g->x);
    memcpy(g->x + g->n * 8, rows, n * 8 * sizeof *g->x);
    g->n += n;
    return 0;
}

static int refuse(void *ctx, const float *rows, size_t n, kvd_err *err)
{
    (void)ctx, (void)rows, (void)n;
    return kvd_fail(err, "enough");
}

static gathered stack(kvd_activations *a, kvd_pair pair, kvd_pairing pairing, int layer, int h,
                      size_t n, bool pre)
{
    gathered g = {0};
    const kvd_source from = {.dump = a, .n_tokens = n};
    kvd_err err;
    OK(kvd_pair_stack(&from, pair, pairing, layer, h, pre, gather, &g, &err));
    OK(kvd_pair_stack_weights(a, pair, pairing, layer, h, gather, &g, &err));
    assert_int_equal(g.n, kvd_pair_rows(&a->model, pair, pairing, n));
    return g;
}

static void same_rows(kvd_activations *a, kvd_x x, int layer, int head, const float *rows)
{
    float want[50 * 8];
    char scratch[sizeof want];
    kvd_err err;
    OK(kvd_activations_rows(a, x, layer, head, 0, 50, want, scratch, &err));
    assert_memory_equal(rows, want, sizeof want);
}

TEST(test_stacks_are_in_order)
{
    kvd_activations a;
    kvd_err err;
    OK(kvd_activations_open(&a, path, &err));

    gathered g = stack(&a, KVD_PAIR_QK, KVD_SHARED, 1, 1, 50, false);
    assert_int_equal(g.n, 150);
    same_rows(&a, KVD_X_Q, 1, 2, g.x);
    same_rows(&a, KVD_X_Q, 1, 3, g.x + 50 * 8);
    same_rows(&a, KVD_X_K, 1, 1, g.x + 100 * 8);
    free(g.x);
    g = stack(&a, KVD_PAIR_QK, KVD_PER_QUERY, 1, 3, 50, true);
    assert_int_equal(g.n, 100);
    same_rows(&a, KVD_X_Q_PRE, 1, 3, g.x);
    same_rows(&a, KVD_X_K_PRE, 1, 1, g.x + 50 * 8);
    free(g.x);
    g = stack(&a, KVD_PAIR_VW, KVD_SHARED, 0, 1, 50, false);
    assert_int_equal(g.n, 50 + 2 * 32);
    same_rows(&a, KVD_X_V, 0, 1, g.x);
    float w[8 * 32];
    for (int i = 0; i < 2; i++) {
        OK(kvd_activations_w_o(&a, 0, 2 + i, w, &err));
        for (size_t r = 0; r < 32; r++)
            for (size_t j = 0; j < 8; j++)
                assert_true(g.x[(50 + (size_t)i * 32 + r) * 8 + j] == w[j * 32 + r]);
    }
    free(g.x);
    g = stack(&a, KVD_PAIR_WV, KVD_SHARED, 0, 1, 50, false);
    assert_int_equal(g.n, 32);
    free(g.x);
    g = stack(&a, KVD_PAIR_VW, KVD_PER_QUERY, 0, 3, 7, false);
    assert_int_equal(g.n, 7 + 32);
    free(g.x);
    const kvd_source from = {.dump = &a, .n_tokens = 50};
    FAILS(kvd_pair_stack(&from, KVD_PAIR_K, KVD_SHARED, 0, 0, false, refuse, NULL, &err), "enough");
    kvd_activations_close(&a);
}

TEST(test_order_of_the_stack_does_not_matter)
{
    kvd_activations a;
    kvd_err err;
    OK(kvd_activations_open(&a, path, &err));
    gathered g = stack(&a, KVD_PAIR_QK, KVD_SHARED, 0, 0, 50, false);
    double X[150 * 8], Y[150 * 8], s[8], t[8], R[64], S[64];
    for (size_t i = 0; i < 150; i++)
        for (size_t j = 0; j < 8; j++)
            X[i * 8 + j] = Y[(i * 37 + 11) % 150 * 8 + j] = g.x[i * 8 + j];
    OK(kvd_svd_right(X, 150, 8, s, R, &err));
    OK(kvd_svd_right(Y, 150, 8, t, S, &err));
    for (size_t j = 0; j < 8; j++)
        assert_true(fabs(s[j] - t[j]) < 1e-12 * s[0]);
    for (size_t i = 0; i < 64; i++)
        assert_true(fabs(R[i] - S[i]) < 1e-9);
    free(g.x);
    kvd_activations_close(&a);
}

TEST(test_moments_are_those_of_the_stack)
{
    kvd_activations a;
    kvd_moments m;
    kvd_err err;
    OK(kvd_activations_open(&a, path, &err));
    OK(kvd_moments_load(&m, moments_path, &err));
    for (int p = 0; p <= KVD_PAIR_WV; p++)
        for (int pairing = 0; pairing < 2; pairing++)
            for (int pre = 0; pre < 2; pre++)
                for (int h = 0; h < kvd_pair_heads(&a.model, (kvd_pair)p, (kvd_pairing)pairing);
                     h++) {
                    double gram[64], want[64] = {0};
                    gathered g = stack(&a, (kvd_pair)p, (kvd_pairing)pairing, 1, h, 50, pre);
                    for (size_t i = 0; i < g.n; i++)
                        for (size_t c = 0; c < 64; c++)
                            want[c] += (double)g.x[i * 8 + c / 8] * g.x[i * 8 + c % 8];
                    OK(kvd_pair_gram(&m, (kvd_pair)p, (kvd_pairing)pairing, 1, h, pre, gram, &err));
                    for (size_t c = 0; c < 64; c++)
                        assert_true(fabs(gram[c] - want[c]) < 1e-10 * want[0]);
                    free(g.x);
                }
    kvd_moments_release(&m);
    kvd_activations_close(&a);
}

TEST(test_missing_pre_is_an_error)
{
    char other[160];
    dump_plan p;
    kvd_activations a;
    kvd_moments m;
    kvd_err err;
    double gram[64];
    snprintf(other, sizeof other, "%s/after.h5", temp_folder());
    dump_plan_init(&p, 9, 1);
    OK(write_dump(&p, other, test_run(), &err));
    OK(kvd_activations_open(&a, other, &err));
    const kvd_source from = {.dump = &a, .n_tokens = 9};
    FAILS_WITH(kvd_pair_stack(&from, KVD_PAIR_K, KVD_SHARED, 0, 0, true, refuse, NULL, &err),
               "after.h5' has no Q and K before RoPE");
    m = (kvd_moments){.model = a.model, .n_layers = 1};
    OK(kvd_moments_alloc(&m, &err));
    FAILS(kvd_pair_gram(&m, KVD_PAIR_QK, KVD_SHARED, 0, 0, true, gram, &err),
          "the moments hold no Q and K before RoPE");
    kvd_moments_release(&m);
    kvd_activations_close(&a);
    remove(other);
}

enum { D = 8 };

static void times(const double *A, const double *B, int transposed, double *C)
{
    cblas_dgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, D, D, D, 1, A,
                D, B, D, 0, C, D);
}

/* Returns the squared error of Q K^T if Q is projected by the first m columns of `left` and K by
 * the first m columns of `right`. cl, cr: Q^T Q and K^T K. */
static double loss(const double *cl, const double *cr, const double *left, const double *right,
                   size_t m)
{
    double E[64], ClE[64], ECr[64], sum = 0;
    for (size_t i = 0; i < D; i++)
        for (size_t j = 0; j < D; j++) {
            E[i * D + j] = i == j;
            for (size_t k = 0; k < m; k++)
                E[i * D + j] -= left[i * D + k] * right[j * D + k];
        }
    times(cl, E, 0, ClE);
    times(E, cr, 0, ECr);
    for (size_t i = 0; i < D * D; i++)
        sum += ClE[i] * ECr[i];
    return sum;
}

TEST(test_balanced_is_the_best_of_its_rank)
{
    static const kvd_pair plain[] = {KVD_PAIR_QK, KVD_PAIR_VW},
                          balanced[] = {KVD_PAIR_BQK, KVD_PAIR_BVW};
    kvd_moments m;
    kvd_err err;
    OK(kvd_moments_load(&m, moments_path, &err));
    for (int side = 0; side < 2; side++)
        for (int h = 0; h < 2; h++) {
            double cl[64], cr[64], sigma[D], left[64], right[64], product[64], G[64], s[D], R[64];
            kvd_balanced_grams(&m, balanced[side], 1, h, cl, cr);
            OK(kvd_balanced(cl, cr, D, sigma, left, right, &err));

            times(left, right, 1, product);
            for (size_t i = 0; i < D; i++)
                for (size_t j = 0; j < D; j++)
                    assert_true(fabs(product[i * D + j] - (i == j)) < 1e-9);

            OK(kvd_pair_gram(&m, plain[side], KVD_SHARED, 1, h, false, G, &err));
            OK(kvd_gram_svd(G, D, s, R, &err));
            double all = 0;
            for (size_t j = 0; j < D; j++)
                all += sigma[j] * sigma[j];
            for (size_t k = 1; k <= D; k++) {
                double tail = 0;
                for (size_t j = k; j < D; j++)
                    tail += sigma[j] * sigma[j];
                const double mine = loss(cl, cr, left, right, k);
                assert_true(fabs(mine - tail) < 1e-10 * all);
                assert_true(mine <= loss(cl, cr, R, R, k) + 1e-10 * all);
            }
        }
    kvd_moments_release(&m);
}

/* The loss of projecting queries by A and keys by B must be the summed squared error of q . k. */
TEST(test_balanced_loss_is_the_error_of_scores)
{
    kvd_activations a;
    kvd_moments m;
    kvd_err err;
    double cl[64], cr[64], sigma[D], left[64], right[64];
    OK(kvd_activations_open(&a, path, &err));
    OK(kvd_moments_load(&m, moments_path, &err));
    kvd_balanced_grams(&m, KVD_PAIR_BQK, 0, 1, cl, cr);
    OK(kvd_balanced(cl, cr, D, sigma, left, right, &err));
    gathered g = stack(&a, KVD_PAIR_QK, KVD_SHARED, 0, 1, 50, false);
    double sum = 0, tail = 0;
    for (size_t j = 3; j < D; j++)
        tail += sigma[j] * sigma[j];
    for (size_t q = 0; q < 100; q++)
        for (size_t k = 100; k < 150; k++) {
            double exact = 0, cut = 0;
            for (size_t j = 0; j < D; j++)
                exact += (double)g.x[q * D + j] * g.x[k * D + j];
            for (size_t c = 0; c < 3; c++) {
                double x = 0, y = 0;
                for (size_t j = 0; j < D; j++) {
                    x += g.x[q * D + j] * left[j * D + c];
                    y += g.x[k * D + j] * right[j * D + c];
                }
                cut += x * y;
            }
            sum += (exact - cut) * (exact - cut);
        }
    assert_true(fabs(sum - tail) < 1e-9 * sum);
    free(g.x);
    kvd_moments_release(&m);
    kvd_activations_close(&a);
}

TEST(test_balanced_without_full_rank)
{
    double cl[64] = {0}, cr[64] = {0}, sigma[D], left[64], right[64];
    kvd_err err;
    /* Only dimensions 2 to 4 are nonzero in Q and in K, so only they contribute to scores. */
    for (size_t i = 0; i < D; i++) {
        cl[i * D + i] = i < 5 ? 1 + (double)i : 0;
        cr[i * D + i] = i >= 2 ? 2 + (double)i : 0;
    }
    OK(kvd_balanced(cl, cr, D, sigma, left, right, &err));
    assert_true(sigma[2] > 1 && sigma[3] < 1e-12);
    assert_true(fabs(loss(cl, cr, left, right, 3)) < 1e-12);
    assert_true(kvd_find_nonfinite(left, 64, &(size_t){0}) == false);
    cl[0] = -1;
    FAILS_WITH(kvd_balanced(cl, cr, D, sigma, left, right, &err),
               "left moments: not a Gram matrix");
}

TEST(test_balanced_agrees_with_numpy)
{
    double sigma[ORACLE_D], left[ORACLE_D * ORACLE_D], right[ORACLE_D * ORACLE_D];
    kvd_err err;
    OK(kvd_balanced(oracle_cl, oracle_cr, ORACLE_D, sigma, left, right, &err));
    for (size_t i = 0; i < ORACLE_D; i++)
        assert_true(fabs(sigma[i] - oracle_sigma[i]) < 1e-12 * oracle_sigma[0]);
    for (size_t i = 0; i < ORACLE_D * ORACLE_D; i++) {
        assert_true(fabs(left[i] - oracle_left[i]) < 1e-10);
        assert_true(fabs(right[i] - oracle_right[i]) < 1e-10);
    }
}

TEST_MAIN(set_up, NULL)
