/* Tests singular values and vectors by properties and against LAPACK's dgesvd. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cblas.h>
#include <lapacke.h>

#include "common/linalg.h"
#include "unit.h"

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform());
}

static void *get(size_t n)
{
    return unit_alloc(n * sizeof(double));
}

/* Fills Q with a random orthogonal matrix. */
static void haar(double *Q, size_t d)
{
    double *tau = get(d);
    for (size_t i = 0; i < d * d; i++)
        Q[i] = normal();
    assert_int_equal(
        LAPACKE_dgeqrf(LAPACK_COL_MAJOR, (lapack_int)d, (lapack_int)d, Q, (lapack_int)d, tau), 0);
    assert_int_equal(LAPACKE_dorgqr(LAPACK_COL_MAJOR, (lapack_int)d, (lapack_int)d, (lapack_int)d,
                                    Q, (lapack_int)d, tau),
                     0);
}

static double as_bf16(double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, 4);
    u = (u + 0x7fff + ((u >> 16) & 1)) & 0xffff0000u;
    memcpy(&f, &u, 4);
    return f;
}

/* Returns random rows [n][d] whose first singular value is about kappa times the last. */
static double *rows_of(size_t n, size_t d, double kappa, int bf16)
{
    double *Z = get(n * d), *Q = get(d * d), *X = get(n * d);
    haar(Q, d);
    for (size_t i = 0; i < n * d; i++)
        Z[i] = normal() * pow(kappa, -(double)(i % d) / (double)(d > 1 ? d - 1 : 1));
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, (int)d, (int)d, 1, Z, (int)d, Q,
                (int)d, 0, X, (int)d);
    for (size_t i = 0; i < n * d; i++)
        X[i] = bf16 ? as_bf16(X[i]) : (double)(float)X[i];
    return X;
}

static void oracle(const double *X, size_t n, size_t d, double *sigma)
{
    double *A = get(n * d), *superb = get(n + d);
    memcpy(A, X, n * d * sizeof *A);
    assert_int_equal(LAPACKE_dgesvd(LAPACK_COL_MAJOR, 'N', 'N', (lapack_int)d, (lapack_int)n, A,
                                    (lapack_int)d, sigma, NULL, 1, NULL, 1, superb),
                     0);
    for (size_t j = n; j < d; j++)
        sigma[j] = 0;
}

static void check_signs(const double *R, size_t d)
{
    for (size_t j = 0; j < d; j++) {
        double largest = 0;
        for (size_t i = 0; i < d; i++)
            if (fabs(R[i * d + j]) > fabs(largest))
                largest = R[i * d + j];
        assert_true(largest > 0);
    }
}

/* Checks the rotation R that belongs to the singular values `sigma` of X: R is orthogonal, the
 * largest entry of each column is positive, columns of X R are orthogonal with norms `sigma`. */
static void check_basis(const double *X, size_t n, size_t d, const double *sigma, const double *R,
                        double tol)
{
    assert_true(kvd_orthogonality(R, d) < 1e-13 * (double)(d + 10));
    double *Y = get(n * d), *C = get(d * d);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n, (int)d, (int)d, 1, X, (int)d, R,
                (int)d, 0, Y, (int)d);
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)d, (int)d, (int)n, 1, Y, (int)d, Y,
                (int)d, 0, C, (int)d);
    const double top = sigma[0] > 0 ? sigma[0] : 1;
    for (size_t j = 0; j < d; j++) {
        assert_true(fabs(sqrt(C[j * d + j]) - sigma[j]) <= tol * top);
        assert_true(j == 0 || sigma[j] <= sigma[j - 1]);
        for (size_t i = 0; i < j; i++)
            assert_true(fabs(C[j * d + i]) <= tol * top * top);
    }
    const size_t m = (d + 1) / 2;
    double lost = 0, tail = 0;
    for (size_t j = m; j < d; j++)
        tail += sigma[j] * sigma[j];
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < d; c++) {
            double back = 0;
            for (size_t j = 0; j < m; j++)
                back += Y[i * d + j] * R[c * d + j];
            lost += (X[i * d + c] - back) * (X[i * d + c] - back);
        }
    assert_true(fabs(lost - tail) <= 1e-11 * top * top);
    check_signs(R, d);
}

static void gram_of(const double *X, size_t n, size_t d, double *G)
{
    float *f = get(n * d);
    double *scratch = get(kvd_gram_scratch(d));
    kvd_err err;
    for (size_t i = 0; i < n * d; i++)
        f[i] = (float)X[i];
    memset(G, 0, d * d * sizeof *G);
    OK(kvd_gram_add(G, d, f, n, d, scratch, &err));
}

TEST(test_three_methods_have_the_properties)
{
    static const size_t shape[][2] = {{1, 1},    {5, 1},     {1, 8},    {3, 8},
                                      {8, 8},    {9, 8},     {40, 8},   {2051, 8},
                                      {1024, 7}, {1025, 17}, {700, 64}, {130, 128}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        const size_t n = shape[k][0], d = shape[k][1];
        double *X = rows_of(n, d, 100, 0), *want = get(d), *sigma = get(d), *R = get(d * d),
               *G = get(d * d);
        kvd_err err;
        oracle(X, n, d, want);

        memset(sigma, 0xff, d * sizeof *sigma);
        memset(R, 0xff, d * d * sizeof *R);
        OK(kvd_svd_right(X, n, d, sigma, R, &err));
        check_basis(X, n, d, sigma, R, 1e-12);
        for (size_t j = 0; j < d; j++)
            assert_true(fabs(sigma[j] - want[j]) <= 1e-13 * want[0]);

        kvd_tsqr *q = kvd_tsqr_new(d, &err);
        assert_non_null(q);
        OK(kvd_tsqr_add(q, X, n, &err));
        memset(R, 0xff, d * d * sizeof *R);
        OK(kvd_tsqr_svd(q, sigma, R, &err));
        check_basis(X, n, d, sigma, R, 1e-12);
        for (size_t j = 0; j < d; j++)
            assert_true(fabs(sigma[j] - want[j]) <= 1e-13 * want[0]);
        kvd_tsqr_free(q);

        gram_of(X, n, d, G);
        OK(kvd_gram_svd(G, d, sigma, R, &err));
        check_basis(X, n, d, sigma, R, n < d ? 1e-7 : 1e-11);
        for (size_t j = 0; j < d; j++)
            assert_true(fabs(sigma[j] - want[j]) <= (n < d ? 1e-7 : 1e-11) * want[0]);
    }
}

TEST(test_tsqr_keeps_small_values)
{
    const size_t n = 5000, d = 64;
    double *X = rows_of(n, d, 1e8, 0), *want = get(d), *sigma = get(d), *again = get(d),
           *R = get(d * d);
    kvd_err err;
    oracle(X, n, d, want);
    kvd_tsqr *q = kvd_tsqr_new(d, &err);
    assert_non_null(q);
    size_t done = 0;
    for (size_t piece = 1; done < n; piece = piece * 3 + 1) {
        const size_t m = n - done < piece ? n - done : piece;
        OK(kvd_tsqr_add(q, X + done * d, m, &err));
        done += m;
        if (piece == 40)
            OK(kvd_tsqr_svd(q, sigma, R, &err));
    }
    OK(kvd_tsqr_svd(q, sigma, R, &err));
    for (size_t j = 0; j < d; j++) {
        assert_true(fabs(sigma[j] - want[j]) <= 1e-12 * want[0]);
        assert_true(fabs(sigma[j] - want[j]) <= 1e-6 * want[j]);
    }
    OK(kvd_tsqr_svd(q, again, R, &err));
    assert_memory_equal(again, sigma, d * sizeof *again);
    kvd_tsqr_free(q);
}

TEST(test_gram_is_exact_enough_for_bf16)
{
    const size_t n = 4096, d = 64;
    for (double kappa = 1e4; kappa < 2e8; kappa *= 100) {
        double *X = rows_of(n, d, kappa, 1), *want = get(d), *sigma = get(d), *R = get(d * d),
               *G = get(d * d);
        kvd_err err;
        oracle(X, n, d, want);
        gram_of(X, n, d, G);
        OK(kvd_gram_svd(G, d, sigma, R, &err));
        for (size_t j = 0; j < d; j++)
            assert_true(fabs(sigma[j] - want[j]) <= 1e-9 * want[j]);
    }
}

TEST(test_gram_respects_leading_dimension)
{
    enum { N = 1030, D = 5, LD = 9 };
    float *X = get(N * LD);
    double *scratch = get(kvd_gram_scratch(D)), G[D * D] = {0}, want[D * D] = {0};
    kvd_err err;
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < LD; j++)
            X[i * LD + j] = j < D ? (float)normal() : (float)NAN;
    for (size_t i = 0; i < N; i++)
        for (size_t a = 0; a < D; a++)
            for (size_t b = 0; b < D; b++)
                want[a * D + b] += (double)X[i * LD + a] * X[i * LD + b];
    OK(kvd_gram_add(G, D, X, 7, LD, scratch, &err));
    OK(kvd_gram_add(G, D, X + 7 * LD, N - 7, LD, scratch, &err));
    for (size_t i = 0; i < D * D; i++)
        assert_true(fabs(G[i] - want[i]) < 1e-10);
    for (size_t a = 0; a < D; a++)
        for (size_t b = 0; b < D; b++)
            assert_true(G[a * D + b] == G[b * D + a]);
    OK(kvd_gram_add(G, D, X, 0, LD, scratch, &err));
}

TEST(test_rank_deficient_and_zero)
{
    enum { N = 50, D = 6 };
    double X[N * D], sigma[D], R[D * D], G[D * D];
    kvd_err err;
    memset(X, 0, sizeof X);
    OK(kvd_svd_right(X, N, D, sigma, R, &err));
    for (size_t j = 0; j < D; j++)
        assert_true(sigma[j] == 0);
    assert_true(kvd_orthogonality(R, D) < 1e-14);
    memset(G, 0, sizeof G);
    OK(kvd_gram_svd(G, D, sigma, R, &err));
    assert_true(sigma[0] == 0 && kvd_orthogonality(R, D) < 1e-14);

    /* X^T X has one eigenvalue above 0, so all singular values but the first must be 0. */
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < D; j++)
            X[i * D + j] = (double)(i + 1) * (double)(j + 1) / 3;
    gram_of(X, N, D, G);
    OK(kvd_gram_svd(G, D, sigma, R, &err));
    assert_true(sigma[0] > 1);
    for (size_t j = 1; j < D; j++)
        assert_true(sigma[j] >= 0 && sigma[j] < 1e-5 * sigma[0]);
}

TEST(test_square)
{
    enum { D = 9 };
    double M[D * D], U[D * D], s[D], V[D * D];
    kvd_err err;
    for (size_t i = 0; i < D * D; i++)
        M[i] = normal();
    OK(kvd_svd_square(M, D, U, s, V, &err));
    assert_true(kvd_orthogonality(U, D) < 1e-14 && kvd_orthogonality(V, D) < 1e-14);
    check_signs(U, D);
    for (size_t i = 0; i < D; i++)
        for (size_t j = 0; j < D; j++) {
            double x = 0;
            for (size_t k = 0; k < D; k++)
                x += U[i * D + k] * s[k] * V[j * D + k];
            assert_true(fabs(x - M[i * D + j]) < 1e-13);
        }
}

TEST(test_square_root)
{
    enum { N = 4, D = 7 };
    double X[N * D], G[D * D] = {0}, S[D * D], P[D * D], SS[D * D], PSP[D * D], T[D * D];
    size_t rank;
    kvd_err err;
    for (size_t i = 0; i < N * D; i++)
        X[i] = normal();
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, D, D, N, 1, X, D, X, D, 0, G, D);
    OK(kvd_sqrt_psd(G, D, 1e-12, S, P, &rank, &err));
    assert_int_equal(rank, N);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, D, D, D, 1, S, D, S, D, 0, SS, D);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, D, D, D, 1, P, D, S, D, 0, T, D);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, D, D, D, 1, T, D, P, D, 0, PSP, D);
    for (size_t i = 0; i < D * D; i++) {
        assert_true(fabs(SS[i] - G[i]) < 1e-12);
        assert_true(fabs(PSP[i] - P[i]) < 1e-7); /* Moore-Penrose condition: P S P = P */
    }
    OK(kvd_sqrt_psd(G, D, 1e-12, S, NULL, &rank, &err));
}

TEST(test_signs_first_of_equals)
{
    double R[4] = {-1, 1, 1, -2}, S[4] = {1, 2, 3, 4};
    kvd_fix_signs_two(R, S, 2);
    const double want_R[4] = {1, -1, -1, 2}, want_S[4] = {-1, -2, -3, -4};
    assert_memory_equal(R, want_R, sizeof R);
    assert_memory_equal(S, want_S, sizeof S);
}

TEST(test_hostile)
{
    kvd_err err;
    double X[4] = {1, NAN, 0, 1}, sigma[2], R[4], V[4];
    FAILS(kvd_svd_right(X, 2, 2, sigma, R, &err), "X[0][1] is not finite");
    FAILS(kvd_svd_right(X, 0, 2, sigma, R, &err), "no rows to decompose");
    FAILS_WITH(kvd_svd_right(X, SIZE_MAX / 2, 0x4000, sigma, R, &err), "too many for one dgesdd");
    X[1] = 0;
    X[3] = -INFINITY;
    kvd_tsqr *q = kvd_tsqr_new(2, &err);
    assert_non_null(q);
    FAILS(kvd_tsqr_add(q, X, 2, &err), "X[1][1] is not finite");
    kvd_tsqr_free(q);
    kvd_tsqr_free(NULL);
    FAILS(kvd_svd_square(X, 2, R, sigma, V, &err), "M[1][1] is not finite");

    float f[3] = {1, 2, INFINITY};
    double G[9] = {0}, *scratch = get(kvd_gram_scratch(3));
    FAILS(kvd_gram_add(G, 3, f, 1, 3, scratch, &err), "X[0][2] is not finite");

    const double negative[4] = {1, 0, 0, -0.5};
    FAILS(kvd_gram_svd(negative, 2, sigma, R, &err),
          "not a Gram matrix: eigenvalue -0.5 beside the largest 1");
    const double nan[4] = {1, 0, NAN, 1};
    FAILS(kvd_gram_svd(nan, 2, sigma, R, &err), "G[1][0] is not finite");
    assert_true(!(kvd_orthogonality(nan, 2) < 1));
}

TEST(test_least_squares)
{
    enum { N = 30, K = 3, M = 2 };
    double A[N][K], Y[N][M], C[K][M];
    kvd_err err = {""};
    for (int exact = 0; exact < 2; exact++) {
        for (int i = 0; i < N; i++) {
            A[i][0] = 1;
            A[i][1] = log(1 + i);
            A[i][2] = 1e6 * sin(i);
            for (int m = 0; m < M; m++)
                Y[i][m] = exact ? 2 - A[i][1] * (m + 1) + 3e-6 * A[i][2] : cos(i * (m + 2)) + 5;
        }
        OK(kvd_least_squares(&A[0][0], N, K, &Y[0][0], M, &C[0][0], &err));
        for (int m = 0; m < M; m++)
            for (int k = 0; k < K; k++) {
                double sum = 0, size = 0;
                for (int i = 0; i < N; i++) {
                    sum += A[i][k] *
                           (Y[i][m] - A[i][0] * C[0][m] - A[i][1] * C[1][m] - A[i][2] * C[2][m]);
                    size += fabs(A[i][k]);
                }
                assert_true(fabs(sum) < 1e-12 * size);
                assert_true(!exact || k != 1 || fabs(C[1][m] + m + 1) < 1e-12);
            }
    }
    for (int i = 0; i < N; i++)
        A[i][2] = 3 * A[i][1];
    FAILS(kvd_least_squares(&A[0][0], N, K, &Y[0][0], M, &C[0][0], &err),
          "least squares: column 2 depends on those before it");
    Y[4][1] = NAN;
    FAILS(kvd_least_squares(&A[0][0], N, K, &Y[0][0], M, &C[0][0], &err),
          "least squares: a number is not finite");
}

TEST_MAIN(NULL, NULL)
