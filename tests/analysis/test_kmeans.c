/* Tests K-means clustering against Lloyd's algorithm, written plainly in float64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "analysis/reduce.h"
#include "common/rng.h"
#include "unit.h"

/* Returns normally distributed vectors [n][d], in runs of `times` equal vectors. */
static float *make_rows(size_t n, size_t d, size_t times, double offset, uint64_t seed)
{
    float *X = unit_alloc(n * d * sizeof *X);
    kvd_rng r;
    kvd_rng_seed(&r, seed, 0);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            X[i * d + j] = i % times ? X[(i - 1) * d + j]
                                     : (float)(offset + kvd_rng_normal(&r) * pow(0.8, (double)j));
    return X;
}

static double distance(const float *x, const double *c, size_t d)
{
    double sum = 0;
    for (size_t j = 0; j < d; j++)
        sum += ((double)x[j] - c[j]) * ((double)x[j] - c[j]);
    return sum;
}

typedef struct {
    double *C, *far;
    size_t *cluster, *count;
} plain_state;

static double plain_assign(const float *X, size_t n, size_t d, size_t k, plain_state *s, int begin)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (begin)
            s->cluster[i] = 0;
        s->far[i] = distance(X + i * d, s->C + s->cluster[i] * d, d);
        for (size_t c = 0; c < k; c++) {
            const double there = distance(X + i * d, s->C + c * d, d);
            if (there < s->far[i]) {
                s->far[i] = there;
                s->cluster[i] = c;
            }
        }
        sum += s->far[i];
    }
    return sum;
}

/* Fills each empty cluster with one vector: the vector with the largest distance from its old
 * centroid. Returns the number of moved vectors. */
static size_t plain_fill(size_t n, size_t k, plain_state *s)
{
    size_t moved = 0;
    memset(s->count, 0, k * sizeof *s->count);
    for (size_t i = 0; i < n; i++)
        s->count[s->cluster[i]]++;
    for (size_t c = 0; c < k; c++) {
        size_t best = n;
        for (size_t i = 0; i < n && !s->count[c]; i++)
            if (s->count[s->cluster[i]] > 1 && s->far[i] > (best < n ? s->far[best] : 0))
                best = i;
        if (best == n)
            continue;
        s->count[s->cluster[best]]--;
        s->cluster[best] = c;
        s->count[c] = 1;
        s->far[best] = 0;
        moved++;
    }
    return moved;
}

static void plain_means(const float *X, size_t n, size_t d, size_t k, plain_state *s)
{
    memset(s->C, 0, k * d * sizeof *s->C);
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < d; j++)
            s->C[s->cluster[i] * d + j] += X[i * d + j];
    for (size_t c = 0; c < k; c++)
        for (size_t j = 0; j < d && s->count[c]; j++)
            s->C[c * d + j] /= (double)s->count[c];
}

static size_t plain_lloyd(const float *X, size_t n, size_t d, size_t k, const size_t *start,
                          plain_state *s)
{
    double before = 0;
    size_t i = 0;
    for (size_t c = 0; c < k; c++)
        for (size_t j = 0; j < d; j++)
            s->C[c * d + j] = X[start[c] * d + j];
    for (;;) {
        const double now = plain_assign(X, n, d, k, s, i == 0);
        const size_t moved = plain_fill(n, k, s);
        i++;
        const int end = now <= 0 || (i > 1 && !moved && before - now < KVD_KMEANS_FALL * before) ||
                        i == KVD_KMEANS_ITERATIONS;
        plain_means(X, n, d, k, s);
        if (end)
            return i;
        before = now;
    }
}

static void against_plain(size_t n, size_t d, size_t k, double offset, uint64_t seed)
{
    float *X = make_rows(n, d, 1, offset, seed);
    double *C = unit_alloc(k * d * sizeof *C);
    size_t *count = unit_alloc(k * sizeof *count), *start = unit_alloc(n * sizeof *start);
    plain_state s = {unit_alloc(k * d * sizeof(double)), unit_alloc(n * sizeof(double)),
                     unit_alloc(n * sizeof(size_t)), unit_alloc(k * sizeof(size_t))};
    kvd_kmeans_trace t;
    kvd_err err;
    kvd_rng r;
    kvd_rng_seed(&r, seed, 1);
    kvd_rng_choose(&r, n, k, start);
    OK(kvd_kmeans(X, n, d, k, start, C, count, &t, &err));
    assert_int_equal(plain_lloyd(X, n, d, k, start, &s), t.n_iterations);
    for (size_t c = 0; c < k; c++) {
        assert_int_equal(count[c], s.count[c]);
        for (size_t j = 0; j < d; j++)
            assert_true(fabs(C[c * d + j] - s.C[c * d + j]) <= 1e-9 * (1 + fabs(offset)));
    }
    for (size_t i = 1; i < t.n_iterations; i++)
        assert_true(t.objective[i] <= t.objective[i - 1]);
    assert_true(t.last <= t.objective[t.n_iterations - 1] * (1 + 1e-6));
}

TEST(test_against_plain_lloyd)
{
    against_plain(500, 8, 13, 0, 1);
    against_plain(129, 3, 128, 5, 2);
    against_plain(1000, 16, 40, 100, 3);
    against_plain(64, 1, 5, 0, 4);
    against_plain(3000, 4, 2100, 0, 5);
    against_plain(7, 2, 7, 0, 6);
    against_plain(200, 5, 1, 3, 7);
}

TEST(test_objective_falls)
{
    enum { N = 2000, D = 12, K = 150 };
    for (size_t times = 1; times <= 4; times += 3) {
        float *X = make_rows(N, D, times, 1000, 8);
        double *C = unit_alloc(K * D * sizeof *C);
        size_t count[K], start[K], total = 0;
        kvd_kmeans_trace t;
        kvd_err err;
        for (size_t c = 0; c < K; c++)
            start[c] = times == 4 ? c % 4 : c;
        OK(kvd_kmeans(X, N, D, K, start, C, count, &t, &err));
        assert_true(t.n_iterations >= 3 && t.objective[0] > 1.2 * t.last);
        for (size_t i = 1; i < t.n_iterations; i++)
            assert_true(t.objective[i] <= t.objective[i - 1]);
        assert_true(t.last <= t.objective[t.n_iterations - 1] * (1 + 1e-6));
        for (size_t c = 0; c < K; c++) {
            assert_true(count[c] > 0);
            total += count[c];
        }
        assert_int_equal(total, N);
        double of_centroids = 0;
        for (size_t c = 0; c < K; c++)
            for (size_t j = 0; j < D; j++)
                of_centroids += (double)count[c] * C[c * D + j] * C[c * D + j];
        assert_true(fabs(of_centroids + t.last - t.energy) < 1e-9 * t.energy);
    }
}

static void find_distinct_rows(size_t distinct, size_t d, uint64_t seed)
{
    enum { TIMES = 5 };
    const size_t n = TIMES * distinct;
    float *X = make_rows(n, d, 1, 2, seed);
    for (size_t i = distinct * d; i < n * d; i++)
        X[i] = X[i - distinct * d];
    double *C = unit_alloc(2 * distinct * d * sizeof *C);
    size_t *count = unit_alloc(2 * distinct * sizeof *count),
           *start = unit_alloc(n * sizeof *start), used = 0;
    kvd_kmeans_trace t;
    kvd_err err;
    kvd_rng r;
    kvd_rng_seed(&r, seed, 1);
    kvd_rng_choose(&r, n, distinct, start);
    OK(kvd_kmeans(X, n, d, distinct, start, C, count, &t, &err));
    if (t.last > 0)
        fail_msg("%zu distinct rows of %zu numbers: %.2g of the energy is lost", distinct, d,
                 t.last / t.energy);
    for (size_t c = 0; c < distinct; c++)
        assert_int_equal(count[c], TIMES);
    kvd_rng_choose(&r, n, 2 * distinct, start);
    OK(kvd_kmeans(X, n, d, 2 * distinct, start, C, count, &t, &err));
    assert_true(t.last == 0);
    for (size_t c = 0; c < 2 * distinct; c++)
        used += count[c] > 0;
    assert_int_equal(used, distinct);
}

/* Runs k-means on five copies of each of a few vectors. Every distinct vector must become a
 * centroid. */
TEST(test_distinct_rows_are_found)
{
    for (uint64_t seed = 0; seed < 3; seed++)
        for (size_t distinct = 20; distinct <= 100; distinct += 10) {
            find_distinct_rows(distinct, 1, seed);
            find_distinct_rows(distinct, 6, seed);
            find_distinct_rows(distinct, 8, seed);
            find_distinct_rows(distinct, 33, seed);
        }
}

TEST(test_threads_do_not_change_it)
{
#ifdef _OPENMP
    enum { N = 1500, D = 24, K = 200 };
    float *X = make_rows(N, D, 1, 1, 11);
    double *C[2] = {unit_alloc(K * D * sizeof(double)), unit_alloc(K * D * sizeof(double))};
    size_t count[2][K], start[N];
    kvd_kmeans_trace t[2];
    kvd_err err;
    kvd_rng r;
    kvd_rng_seed(&r, 12, 0);
    kvd_rng_choose(&r, N, K, start);
    for (int k = 0; k < 2; k++) {
        omp_set_num_threads(k ? 3 : 1);
        OK(kvd_kmeans(X, N, D, K, start, C[k], count[k], &t[k], &err));
    }
    assert_memory_equal(C[0], C[1], K * D * sizeof(double));
    assert_memory_equal(count[0], count[1], sizeof count[0]);
    assert_int_equal(t[0].n_iterations, t[1].n_iterations);
#else
    skip();
#endif
}

TEST_MAIN(NULL, NULL)
