#include "analysis/similarity.h"

#include <assert.h>
#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/linalg.h"
#include "common/rng.h"
#include "common/threads.h"

double kvd_mean_abs(const double *R, size_t d)
{
    double sum = 0;
    for (size_t i = 0; i < d * d; i++)
        sum += fabs(R[i]);
    return sum / (double)(d * d);
}

double kvd_delta(const double *A, const double *B, size_t d)
{
    /* Adds column by column, as kvd_delta_aligned does, so that the two functions round equally. */
    double sum = 0;
    for (size_t j = 0; j < d; j++)
        for (size_t i = 0; i < d; i++)
            sum += fabs(A[i * d + j] - B[i * d + j]);
    return sum / (double)(d * d);
}

double kvd_delta_aligned(const double *A, const double *B, size_t d)
{
    double sum = 0;
    for (size_t j = 0; j < d; j++) {
        double product = 0;
        for (size_t i = 0; i < d; i++)
            product += A[i * d + j] * B[i * d + j];
        const double sign = product < 0 ? -1 : 1;
        for (size_t i = 0; i < d; i++)
            sum += fabs(A[i * d + j] - sign * B[i * d + j]);
    }
    return sum / (double)(d * d);
}

/* Returns C [d][d] = A^T B, the cosines between columns of A and of B. The caller frees C. */
static double *cosines(const double *A, const double *B, size_t d, kvd_err *err)
{
    const int n = (int)d;
    double *C = kvd_new(d * d, sizeof *C, "the products of two bases", err);
    if (!C)
        return NULL;
    cblas_dgemm(CblasRowMajor, CblasTrans, CblasNoTrans, n, n, n, 1.0, A, n, B, n, 0.0, C, n);
    return C;
}

int kvd_overlap(const double *A, const double *B, size_t d, double *overlap, kvd_err *err)
{
    double *C = cosines(A, B, d, err);
    if (!C)
        return -1;
    /* sum of squares of the leading m x m block of C = A^T B */
    double sum = 0;
    for (size_t m = 1; m <= d; m++) {
        const size_t k = m - 1;
        for (size_t i = 0; i < k; i++)
            sum += C[i * d + k] * C[i * d + k] + C[k * d + i] * C[k * d + i];
        sum += C[k * d + k] * C[k * d + k];
        overlap[k] = sum / (double)m;
    }
    free(C);
    return 0;
}

int kvd_energy_kept(const double *A, const double *R_B, const double *sigma_B, size_t d,
                    double *energy, kvd_err *err)
{
    double *C = cosines(A, R_B, d, err);
    if (!C)
        return -1;
    double total = 0, sum = 0;
    for (size_t j = 0; j < d; j++)
        total += sigma_B[j] * sigma_B[j];
    for (size_t j = 0; j < d; j++) {
        for (size_t i = 0; i < d; i++)
            sum += C[j * d + i] * C[j * d + i] * sigma_B[i] * sigma_B[i];
        energy[j] = total > 0 ? sum / total : 1;
    }
    free(C);
    return 0;
}

int kvd_random_basis(size_t d, uint64_t seed, uint64_t stream, double *R, kvd_err *err)
{
    kvd_rng rng;
    double *X = malloc((d * d + d) * sizeof *X);
    if (!X)
        return kvd_no_memory(err, "a random basis", (d * d + d) * sizeof *X);
    kvd_rng_seed(&rng, seed, stream);
    for (size_t i = 0; i < d * d; i++)
        X[i] = kvd_rng_normal(&rng);
    /* Singular vectors of independent normal numbers are a uniform random basis. */
    const int status = kvd_svd_right(X, d, d, X + d * d, R, err);
    free(X);
    return status;
}

size_t kvd_half(size_t d)
{
    return d > 1 ? d / 2 : 1;
}

int kvd_comparable(const kvd_spectrum *s, const char *const *path, size_t n_files, kvd_err *err)
{
    for (size_t i = 1; i < n_files; i++) {
        if (kvd_model_info_same(&s[0].model, path[0], &s[i].model, path[i], err))
            return -1;
        if (s[0].pairing != s[i].pairing)
            return kvd_fail(err, "'%s' has pairing %s, '%s' %s", path[0],
                            kvd_pairing_name[s[0].pairing], path[i],
                            kvd_pairing_name[s[i].pairing]);
        if (strcmp(s[0].rope, s[i].rope))
            return kvd_fail(err, "'%s' has Q and K %s RoPE, '%s' %s", path[0], s[0].rope, path[i],
                            s[i].rope);
        if (s[0].first_layer != s[i].first_layer || s[0].n_layers != s[i].n_layers)
            return kvd_fail(err, "'%s' has layers %d-%d, '%s' %d-%d", path[0], s[0].first_layer,
                            s[0].first_layer + s[0].n_layers - 1, path[i], s[i].first_layer,
                            s[i].first_layer + s[i].n_layers - 1);
        const kvd_named_text text = kvd_spectrum_text(&s[i], path[i]);
        for (size_t j = 0; j < i; j++) {
            const kvd_named_text earlier = kvd_spectrum_text(&s[j], path[j]);
            if (kvd_named_texts_agree(&earlier, &text, err))
                return -1;
        }
    }
    return 0;
}

static double *carve(double **at, size_t n)
{
    double *p = *at;
    *at += n;
    return p;
}

static int alloc(kvd_comparison *c, kvd_err *err)
{
    const size_t F = c->n_files, O = c->n_others, heads = c->n_layers * c->n_h, d = c->d;
    const size_t n = 3 * O + 3 * O * d + 3 * O * heads + 2 * O * heads * d + 6 * F * F + 6 * F;
    double *at = c->all = calloc(n, sizeof *at);
    if (!at)
        return kvd_no_memory(err, "a comparison", n * sizeof *at);
    c->epsilon = carve(&at, O);
    c->delta = carve(&at, O);
    c->delta_aligned = carve(&at, O);
    c->overlap = carve(&at, O * d);
    c->energy_kept = carve(&at, O * d);
    c->energy_own = carve(&at, O * d);
    c->head_epsilon = carve(&at, O * heads);
    c->head_delta = carve(&at, O * heads);
    c->head_delta_aligned = carve(&at, O * heads);
    c->head_overlap = carve(&at, O * heads * d);
    c->head_energy_kept = carve(&at, O * heads * d);
    c->delta_over_epsilon = carve(&at, F * F);
    c->aligned_over_epsilon = carve(&at, F * F);
    c->overlap_half = carve(&at, F * F);
    c->energy_kept_half = carve(&at, F * F);
    c->means_over_epsilon = carve(&at, F * F);
    c->head_means_over_epsilon = carve(&at, F * F);
    for (int i = 0; i < 6; i++)
        c->random[i] = carve(&at, F);
    assert(at == c->all + n);
    return 0;
}

void kvd_comparison_release(kvd_comparison *c)
{
    free(c->all);
    memset(c, 0, sizeof *c);
}

/* Measures that compare two rotations (orthogonal matrices) A and B of a head:
 *
 * - DELTA: mean |A - B|
 * - ALIGNED: mean |A - B| after matching the signs of columns
 * - OVERLAP: overlap of the leading columns
 * - ENERGY: share of the squared norm of B's data that the leading columns of A keep */
enum { DELTA, ALIGNED, OVERLAP, ENERGY, N_CELL };
typedef struct {
    size_t n_files, d;
    /* [head][b][a][N_CELL] measures that compare file a's rotation with file b's. At index a =
     * n_files, a random rotation is compared with file b's. */
    double *cell;
    /* [head][n_files + 1] mean absolute element of each file's rotation, then of a random one */
    double *epsilon;
    double *own; /* [head][b][m - 1] fraction of file b's squared norm in its first m dimensions */
} parts;

static double *cell_of(const parts *p, size_t head, size_t b, size_t a)
{
    return p->cell + ((head * p->n_files + b) * (p->n_files + 1) + a) * N_CELL;
}

static int compare_bases(const double *A, const double *R_B, const double *sigma_B, size_t d,
                         double *cell, double *overlap, double *energy, kvd_err *err)
{
    if (kvd_overlap(A, R_B, d, overlap, err) || kvd_energy_kept(A, R_B, sigma_B, d, energy, err))
        return -1;
    cell[DELTA] = kvd_delta(A, R_B, d);
    cell[ALIGNED] = kvd_delta_aligned(A, R_B, d);
    cell[OVERLAP] = overlap[kvd_half(d) - 1];
    cell[ENERGY] = energy[kvd_half(d) - 1];
    return 0;
}

static int one_head(const kvd_spectrum *s, kvd_comparison *c, size_t head, uint64_t seed, parts *p,
                    kvd_err *err)
{
    const size_t F = c->n_files, d = c->d, heads = c->n_layers * c->n_h;
    const int layer = (int)(head / c->n_h), h = (int)(head % c->n_h);
    double *work = malloc((2 * d + d * d) * sizeof *work);
    if (!work)
        return kvd_no_memory(err, "a comparison of bases", (2 * d + d * d) * sizeof *work);
    double *overlap = work, *energy = work + d, *random = work + 2 * d;
    int status = kvd_random_basis(d, seed, head, random, err);
    if (!status)
        p->epsilon[head * (F + 1) + F] = kvd_mean_abs(random, d);
    for (size_t b = 0; !status && b < F; b++) {
        const double *R_B = kvd_spectrum_R(&s[b], c->pair, layer, h);
        const double *sigma_B = kvd_spectrum_sigma(&s[b], c->pair, layer, h);
        p->epsilon[head * (F + 1) + b] = kvd_mean_abs(R_B, d);
        for (size_t a = 0; !status && a <= F; a++) {
            const double *A = a < F ? kvd_spectrum_R(&s[a], c->pair, layer, h) : random;
            double *cell = cell_of(p, head, b, a);
            status = compare_bases(A, R_B, sigma_B, d, cell, overlap, energy, err);
            if (!status && a == b)
                memcpy(p->own + (head * F + b) * d, energy, d * sizeof *energy);
            if (status || a > 0 || b == 0)
                continue;
            const size_t at = (b - 1) * heads + head;
            c->head_epsilon[at] = p->epsilon[head * (F + 1) + b];
            c->head_delta[at] = cell[DELTA];
            c->head_delta_aligned[at] = cell[ALIGNED];
            memcpy(c->head_overlap + at * d, overlap, d * sizeof *overlap);
            memcpy(c->head_energy_kept + at * d, energy, d * sizeof *energy);
        }
    }
    free(work);
    return status;
}

/* For each file, compares the mean |R_ij| of its rotation matrices R with the mean of file b.
 * Writes the differences divided by `epsilon`, the mean of file b. */
static void compare_means(kvd_comparison *c, const parts *p, size_t b, double epsilon)
{
    const size_t F = c->n_files, heads = c->n_layers * c->n_h;
    for (size_t a = 0; a <= F; a++) {
        double all = 0, each = 0;
        for (size_t i = 0; i < heads; i++) {
            const double *const e = p->epsilon + i * (F + 1);
            all += (e[a] - e[b]) / (double)heads;
            each += fabs(e[a] - e[b]) / (double)heads;
        }
        *(a < F ? &c->means_over_epsilon[a * F + b] : &c->random[4][b]) = fabs(all) / epsilon;
        *(a < F ? &c->head_means_over_epsilon[a * F + b] : &c->random[5][b]) = each / epsilon;
    }
}

static void average(kvd_comparison *c, const parts *p)
{
    const size_t F = c->n_files, heads = c->n_layers * c->n_h, d = c->d;
    const double n = (double)heads;
    for (size_t b = 0; b < F; b++) {
        double epsilon = 0;
        for (size_t i = 0; i < heads; i++)
            epsilon += p->epsilon[i * (F + 1) + b] / n;
        compare_means(c, p, b, epsilon);
        for (size_t a = 0; a <= F; a++) {
            double mean[N_CELL] = {0};
            for (size_t i = 0; i < heads; i++)
                for (int k = 0; k < N_CELL; k++)
                    mean[k] += cell_of(p, i, b, a)[k] / n;
            double *const to[N_CELL] = {
                a < F ? &c->delta_over_epsilon[a * F + b] : &c->random[DELTA][b],
                a < F ? &c->aligned_over_epsilon[a * F + b] : &c->random[ALIGNED][b],
                a < F ? &c->overlap_half[a * F + b] : &c->random[OVERLAP][b],
                a < F ? &c->energy_kept_half[a * F + b] : &c->random[ENERGY][b]};
            for (int k = 0; k < N_CELL; k++)
                *to[k] = k == DELTA || k == ALIGNED ? mean[k] / epsilon : mean[k];
            if (a > 0 || b == 0)
                continue;
            c->epsilon[b - 1] = epsilon;
            c->delta[b - 1] = mean[DELTA];
            c->delta_aligned[b - 1] = mean[ALIGNED];
        }
        for (size_t i = 0; b > 0 && i < heads; i++)
            for (size_t j = 0; j < d; j++) {
                const size_t o = b - 1, at = (o * heads + i) * d + j;
                c->overlap[o * d + j] += c->head_overlap[at] / n;
                c->energy_kept[o * d + j] += c->head_energy_kept[at] / n;
                c->energy_own[o * d + j] += p->own[(i * F + b) * d + j] / n;
            }
    }
}

int kvd_compare(const kvd_spectrum *s, size_t n_files, kvd_pair pair, uint64_t seed,
                kvd_comparison *out, kvd_err *err)
{
    assert(n_files >= 2 && !kvd_pair_balanced(pair));
    *out = (kvd_comparison){.pair = pair,
                            .n_files = n_files,
                            .n_others = n_files - 1,
                            .n_layers = (size_t)s[0].n_layers,
                            .n_h = (size_t)s[0].pair[pair].n_h,
                            .d = (size_t)s[0].model.d_head};
    const size_t F = n_files, heads = out->n_layers * out->n_h,
                 cells = heads * F * (F + 1) * N_CELL;
    const size_t n = cells + heads * (F + 1) + heads * F * out->d;
    double *memory = calloc(n, sizeof *memory);
    if (!memory)
        return kvd_no_memory(err, "a comparison", n * sizeof *memory);
    if (alloc(out, err)) {
        free(memory);
        return -1;
    }
    parts p = {F, out->d, memory, memory + cells, memory + cells + heads * (F + 1)};

    const int blas_threads = kvd_blas_serial();
    int failed = 0;
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < heads; i++) {
        kvd_err mine;
        if (one_head(s, out, i, seed, &p, &mine)) {
#pragma omp critical(kvd_compare_failed)
            {
                failed = 1;
                *err = mine;
            }
        }
    }
    kvd_blas_restore(blas_threads);
    if (!failed)
        average(out, &p);
    free(memory);
    if (failed)
        kvd_comparison_release(out);
    return kvd_status(failed);
}
