/* K-means clustering. */
#include "analysis/reduce.h"

#include <assert.h>
#include <cblas.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/run.h"
#include "common/threads.h"

/* A block of products of vectors and centroids takes 1 MiB in float32 and stays in the L2 cache. */
enum { BLOCK_ROWS = 128, BLOCK_CENTROIDS = 2048 };

typedef struct {
    size_t n, d, k;
    double *mean;
    float *Y;          /* [n][d] rows minus their mean, so that products lose fewer digits */
    double *C;         /* [k][d] centroids of the rows in Y */
    float *Cf;         /* the centroids C in float32 */
    float *half;       /* [k] half the squared length of each centroid */
    float *length;     /* [k] length of each centroid */
    uint32_t *cluster; /* [n] cluster of each row */
    double *distance;  /* [n] squared distance of each row to its centroid */
    /* Cluster c has the vectors order[first[c]] .. order[first[c + 1] - 1]. */
    size_t *count, *first, *order;
    float *scores; /* [threads][BLOCK_ROWS][BLOCK_CENTROIDS] scores y . c - ||c||^2 / 2 */
} state;

static int state_new(state *s, size_t n, size_t d, size_t k, kvd_err *err)
{
    const size_t scores = kvd_thread_count() * BLOCK_ROWS * BLOCK_CENTROIDS;
    s->n = n;
    s->d = d;
    s->k = k;
    s->mean = calloc(d, sizeof *s->mean);
    s->Y = malloc(n * d * sizeof *s->Y);
    s->C = malloc(k * d * sizeof *s->C);
    s->Cf = malloc(k * d * sizeof *s->Cf);
    s->half = malloc(k * sizeof *s->half);
    s->length = malloc(k * sizeof *s->length);
    s->cluster = calloc(n, sizeof *s->cluster);
    s->distance = malloc(n * sizeof *s->distance);
    s->first = malloc((k + 1) * sizeof *s->first);
    s->order = malloc(n * sizeof *s->order);
    s->scores = malloc(scores * sizeof *s->scores);
    return s->mean && s->Y && s->C && s->Cf && s->half && s->length && s->cluster && s->distance &&
                   s->first && s->order && s->scores
               ? 0
               : kvd_no_memory(err, "K-means", n * (4 * d + 20) + k * (12 * d + 16) + 4 * scores);
}

static void state_free(state *s)
{
    free(s->mean);
    free(s->Y);
    free(s->C);
    free(s->Cf);
    free(s->half);
    free(s->length);
    free(s->cluster);
    free(s->distance);
    free(s->first);
    free(s->order);
    free(s->scores);
}

/* Returns the squared distance of y and c. Adds in a fixed order, so that equal centroids have
 * equal distances. */
static double squared_distance(const float *y, const double *c, size_t d)
{
    double sum[4] = {0};
    size_t j = 0;
    for (; j + 4 <= d; j += 4)
        for (size_t l = 0; l < 4; l++)
            sum[l] += ((double)y[j + l] - c[j + l]) * ((double)y[j + l] - c[j + l]);
    for (; j < d; j++)
        sum[0] += ((double)y[j] - c[j]) * ((double)y[j] - c[j]);
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static void centre(state *s, const float *X, const size_t *start)
{
    for (size_t i = 0; i < s->n; i++)
        for (size_t j = 0; j < s->d; j++)
            s->mean[j] += X[i * s->d + j];
    for (size_t j = 0; j < s->d; j++)
        s->mean[j] /= (double)s->n;
    for (size_t i = 0; i < s->n; i++)
        for (size_t j = 0; j < s->d; j++)
            s->Y[i * s->d + j] = (float)(X[i * s->d + j] - s->mean[j]);
    for (size_t c = 0; c < s->k; c++)
        for (size_t j = 0; j < s->d; j++)
            s->C[c * s->d + j] = s->Y[start[c] * s->d + j];
}

/* ROW_ERROR and CENTROID_ERROR bound the float32 rounding error of y . c - ||c||^2 / 2, for vectors
 * y and c of d dimensions (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1):
 *
 * error <= ||c|| (ROW_ERROR(d) ||y|| + CENTROID_ERROR ||c||) */
#define ROW_ERROR(d)   ((1.02 * (double)(d) + 8) * (FLT_EPSILON / 2))
#define CENTROID_ERROR (2 * FLT_EPSILON)

/* The score of a centroid c for a vector y is y . c - ||c||^2 / 2. Replaces the rounded products
 * y . c in `scores` by upper bounds of the scores. Returns a lower bound of the largest score, but
 * at least `least`. */
static float bound_scores(const float *restrict half, const float *restrict length, float row_error,
                          size_t k, float *restrict scores, float least)
{
    enum { LANES = 16 };
    float lane[LANES];
    size_t j = 0;
    for (size_t i = 0; i < LANES; i++)
        lane[i] = least;
    for (; j + LANES <= k; j += LANES)
        for (size_t i = 0; i < LANES; i++) {
            const float score = scores[j + i] - half[j + i],
                        error = length[j + i] * (row_error + (float)CENTROID_ERROR * length[j + i]);
            lane[i] = score - error > lane[i] ? score - error : lane[i];
            scores[j + i] = score + error;
        }
    for (; j < k; j++) {
        const float score = scores[j] - half[j],
                    error = length[j] * (row_error + (float)CENTROID_ERROR * length[j]);
        least = score - error > least ? score - error : least;
        scores[j] = score + error;
    }
    for (size_t i = 0; i < LANES; i++)
        least = lane[i] > least ? lane[i] : least;
    return least;
}

/* Assigns vector number `row` to the nearest of the centroids first .. first + k - 1, if that
 * centroid is nearer than the vector's present centroid. */
static void assign_row(state *s, size_t row, float row_error, float *scores, size_t first, size_t k,
                       float *bound)
{
    const float *y = s->Y + row * s->d;
    const float least =
        bound_scores(s->half + first, s->length + first, row_error, k, scores, *bound);
    *bound = least;
    for (size_t j = 0; j < k; j++) {
        if (scores[j] < least)
            continue;
        const uint32_t c = (uint32_t)(first + j);
        const double there = squared_distance(y, s->C + c * s->d, s->d);
        /* Takes the first of equally near centroids, so that copies of a vector share a cluster. */
        if (there < s->distance[row] || (there <= s->distance[row] && c < s->cluster[row])) {
            s->cluster[row] = c;
            s->distance[row] = there;
        }
    }
}

static void assign_block(state *s, size_t first, size_t m)
{
    float bound[BLOCK_ROWS], row_error[BLOCK_ROWS];
    float *scores = s->scores + kvd_thread_index() * BLOCK_ROWS * BLOCK_CENTROIDS;
    const int d = (int)s->d;
    for (size_t i = 0; i < m; i++) {
        const float *y = s->Y + (first + i) * s->d;
        double sum = 0;
        for (size_t j = 0; j < s->d; j++)
            sum += (double)y[j] * y[j];
        row_error[i] = (float)(ROW_ERROR(s->d) * sqrt(sum));
        bound[i] = -INFINITY;
        s->distance[first + i] = squared_distance(y, s->C + s->cluster[first + i] * s->d, s->d);
    }
    for (size_t c = 0; c < s->k; c += BLOCK_CENTROIDS) {
        const size_t k = s->k - c < BLOCK_CENTROIDS ? s->k - c : BLOCK_CENTROIDS;
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)m, (int)k, d, 1,
                    s->Y + first * s->d, d, s->Cf + c * s->d, d, 0, scores, (int)k);
        for (size_t i = 0; i < m; i++)
            assign_row(s, first + i, row_error[i], scores + i * k, c, k, bound + i);
    }
}

static double assign(state *s)
{
    for (size_t c = 0; c < s->k; c++) {
        double sum = 0;
        for (size_t j = 0; j < s->d; j++) {
            s->Cf[c * s->d + j] = (float)s->C[c * s->d + j];
            sum += s->C[c * s->d + j] * s->C[c * s->d + j];
        }
        s->half[c] = (float)(sum / 2);
        s->length[c] = (float)sqrt(sum);
    }
#pragma omp parallel for schedule(dynamic)
    for (size_t first = 0; first < s->n; first += BLOCK_ROWS)
        assign_block(s, first, s->n - first < BLOCK_ROWS ? s->n - first : BLOCK_ROWS);
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->distance[i];
    return sum;
}

typedef struct {
    double distance;
    size_t row;
} far_row;

static int by_distance(const void *a, const void *b)
{
    const far_row *x = a, *y = b;
    if (x->distance != y->distance)
        return x->distance < y->distance ? 1 : -1;
    return (x->row > y->row) - (x->row < y->row);
}

static size_t next_far(const state *s, const far_row *rows, size_t next, const float *last)
{
    for (; next < s->n && rows[next].distance > 0; next++) {
        const size_t row = rows[next].row;
        if (s->count[s->cluster[row]] > 1 &&
            (!last || memcmp(s->Y + row * s->d, last, s->d * sizeof *last) != 0))
            return next;
    }
    return s->n;
}

static int fill_empty(state *s, size_t *moved, kvd_err *err)
{
    size_t empty = 0, next = 0;
    const float *last = NULL;
    *moved = 0;
    memset(s->count, 0, s->k * sizeof *s->count);
    for (size_t i = 0; i < s->n; i++)
        s->count[s->cluster[i]]++;
    for (size_t c = 0; c < s->k; c++)
        empty += s->count[c] == 0;
    if (!empty)
        return 0;
    far_row *rows = malloc(s->n * sizeof *rows);
    if (!rows)
        return kvd_no_memory(err, "K-means", s->n * sizeof *rows);
    for (size_t i = 0; i < s->n; i++)
        rows[i] = (far_row){s->distance[i], i};
    qsort(rows, s->n, sizeof *rows, by_distance);
    for (size_t c = 0; c < s->k; c++) {
        if (s->count[c])
            continue;
        next = next_far(s, rows, next, last);
        if (next == s->n)
            break;
        const size_t row = rows[next++].row;
        s->count[s->cluster[row]]--;
        s->cluster[row] = (uint32_t)c;
        s->count[c] = 1;
        last = s->Y + row * s->d;
        ++*moved;
    }
    free(rows);
    return 0;
}

static void sort_by_cluster(state *s)
{
    size_t at = 0;
    for (size_t c = 0; c < s->k; c++) {
        s->first[c] = at;
        at += s->count[c];
    }
    for (size_t i = 0; i < s->n; i++)
        s->order[s->first[s->cluster[i]]++] = i;
    /* first[c] is now the start of cluster c + 1. */
    memmove(s->first + 1, s->first, s->k * sizeof *s->first);
    s->first[0] = 0;
}

/* Writes each cluster's mean to C, or 0 for an empty cluster. */
static void means(const state *s, const float *rows, double *C)
{
#pragma omp parallel for schedule(dynamic, 16)
    for (size_t c = 0; c < s->k; c++) {
        double *to = C + c * s->d;
        memset(to, 0, s->d * sizeof *to);
        for (size_t i = s->first[c]; i < s->first[c + 1]; i++)
            for (size_t j = 0; j < s->d; j++)
                to[j] += rows[s->order[i] * s->d + j];
        for (size_t j = 0; j < s->d && s->count[c]; j++)
            to[j] /= (double)s->count[c];
    }
}

static int iterate(state *s, kvd_kmeans_trace *t, kvd_err *err)
{
    for (t->n_iterations = 0; t->n_iterations < KVD_KMEANS_ITERATIONS;) {
        const size_t i = t->n_iterations++;
        size_t moved;
        if (kvd_interrupted())
            return kvd_fail_interrupted(err);
        t->objective[i] = assign(s);
        if (fill_empty(s, &moved, err))
            return -1;
        sort_by_cluster(s);
        if (t->objective[i] <= 0 ||
            (i > 0 && !moved &&
             t->objective[i - 1] - t->objective[i] < KVD_KMEANS_FALL * t->objective[i - 1]))
            break;
        means(s, s->Y, s->C);
    }
    return 0;
}

int kvd_kmeans(const float *X, size_t n, size_t d, size_t k, const size_t *start, double *centroid,
               size_t *count, kvd_kmeans_trace *trace, kvd_err *err)
{
    state s = {.count = count};
    assert(k >= 1 && k <= n && d >= 1 && d <= 16384);
    if (k > UINT32_MAX)
        return kvd_fail(err, "%zu centroids are too many for one K-means", k);
    int status = state_new(&s, n, d, k, err);
    if (!status) {
        const int blas_threads = kvd_blas_serial();
        centre(&s, X, start);
        status = iterate(&s, trace, err);
        kvd_blas_restore(blas_threads);
    }
    if (!status) {
        means(&s, X, centroid);
        trace->last = trace->energy = 0;
        for (size_t i = 0; i < n; i++) {
            trace->last += squared_distance(X + i * d, centroid + s.cluster[i] * d, d);
            for (size_t j = 0; j < d; j++)
                trace->energy += (double)X[i * d + j] * X[i * d + j];
        }
    }
    state_free(&s);
    return status;
}
