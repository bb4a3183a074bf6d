#include "analysis/cuda/eigen.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/cuda/libraries.h"
#include "common/cuda/memory.h"
#include "common/linalg.h"

typedef struct {
    const kvd_cusolver *lib;
    cusolverDnHandle_t handle;
    cusolverDnParams_t params;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    /* number of rows of each matrix, and number of matrices that are decomposed at once */
    size_t d, batch;
    kvd_device_memory memory;
    double *A, *lambda; /* device memory, [batch][d][d] and [batch][d] */
    int *info;          /* result codes of the solver, device [batch] */
    void *work, *host_work;
    size_t work_bytes, host_bytes;
    int *host_info;
} solver;

static int solver_check(cusolverStatus_t s, const char *what, kvd_err *err)
{
    return s == CUSOLVER_STATUS_SUCCESS ? 0 : kvd_fail(err, "%s: cuSOLVER status %d", what, (int)s);
}

static int work_of(const solver *s, size_t n, size_t *device, size_t *host, kvd_err *err)
{
    const int64_t d = (int64_t)s->d;
    return solver_check(s->lib->cusolverDnXsyevBatched_bufferSize(
                            s->handle, s->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER,
                            d, CUDA_R_64F, NULL, d, CUDA_R_64F, NULL, CUDA_R_64F, device, host,
                            (int64_t)n),
                        "the work space of eigenvalues", err);
}

/* Halves s->batch, the number of matrices decomposed at once, until they fit into free GPU
 * memory. */
static int choose_batch(solver *s, size_t n, kvd_err *err)
{
    size_t free_bytes, total;
    if (kvd_cuda_check(cudaMemGetInfo(&free_bytes, &total), "memory of the device", err))
        return -1;
    const size_t each = s->d * s->d * sizeof(double) + s->d * sizeof(double) + sizeof(int);
    const size_t room = free_bytes / 10 * 9;
    for (s->batch = n;; s->batch = (s->batch + 1) / 2) {
        if (work_of(s, s->batch, &s->work_bytes, &s->host_bytes, err))
            return -1;
        if (s->batch == 1 || (s->work_bytes < room && s->batch <= (room - s->work_bytes) / each))
            return 0;
    }
}

static int take_memory(solver *s, kvd_err *err)
{
    const size_t n = s->batch, d = s->d;
    if (!(s->A = kvd_device_new(&s->memory, n * d * d * sizeof(double), "Gram matrices", err)) ||
        !(s->lambda = kvd_device_new(&s->memory, n * d * sizeof(double), "eigenvalues", err)) ||
        !(s->info = kvd_device_new(&s->memory, n * sizeof(int), "eigenvalues", err)) ||
        !(s->work =
              kvd_device_new(&s->memory, s->work_bytes, "the work space of eigenvalues", err)))
        return -1;
    s->host_info = malloc(n * sizeof(int));
    s->host_work = malloc(s->host_bytes ? s->host_bytes : 1);
    return s->host_info && s->host_work ? 0
                                        : kvd_no_memory(err, "the work space of eigenvalues",
                                                        s->host_bytes + n * sizeof(int));
}

static int solver_open(solver *s, size_t n, size_t d, kvd_err *err)
{
    s->d = d;
    if (!(s->lib = kvd_cusolver_load(err)))
        return -1;
    if (solver_check(s->lib->cusolverDnCreate(&s->handle), "cuSOLVER", err) ||
        solver_check(s->lib->cusolverDnCreateParams(&s->params), "cuSOLVER", err) ||
        kvd_cuda_check(cudaStreamCreate(&s->stream), "a stream", err) ||
        solver_check(s->lib->cusolverDnSetStream(s->handle, s->stream), "cuSOLVER", err) ||
        kvd_cuda_check(cudaEventCreate(&s->begin), "an event", err) ||
        kvd_cuda_check(cudaEventCreate(&s->end), "an event", err))
        return -1;
    return choose_batch(s, n, err) || take_memory(s, err) ? -1 : 0;
}

static void solver_close(solver *s)
{
    free(s->host_info);
    free(s->host_work);
    kvd_device_release(&s->memory);
    if (s->begin)
        (void)cudaEventDestroy(s->begin);
    if (s->end)
        (void)cudaEventDestroy(s->end);
    if (s->params)
        (void)s->lib->cusolverDnDestroyParams(s->params);
    if (s->handle)
        (void)s->lib->cusolverDnDestroy(s->handle);
    if (s->stream)
        (void)cudaStreamDestroy(s->stream);
}

/* Decomposes m symmetric matrices gram [m][d][d] into rising eigenvalues and column-major
 * eigenvectors. */
static int run_batch(solver *s, const double *gram, size_t m, double *lambda, double *vectors,
                     double *seconds, kvd_err *err)
{
    static const char what[] = "eigenvalues on the device";
    const int64_t d = (int64_t)s->d;
    const size_t matrix = s->d * s->d * sizeof(double);
    float ms = 0;
    if (kvd_queue_put(s->A, gram, m * matrix, s->stream, what, err) ||
        kvd_cuda_check(cudaEventRecord(s->begin, s->stream), what, err) ||
        /* cuSOLVER reads only one triangle of each matrix, the one that kvd_gram_svd reads too. */
        solver_check(s->lib->cusolverDnXsyevBatched(
                         s->handle, s->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, d,
                         CUDA_R_64F, s->A, d, CUDA_R_64F, s->lambda, CUDA_R_64F, s->work,
                         s->work_bytes, s->host_work, s->host_bytes, s->info, (int64_t)m),
                     what, err) ||
        kvd_cuda_check(cudaEventRecord(s->end, s->stream), what, err) ||
        kvd_queue_get(s->host_info, s->info, m * sizeof(int), s->stream, what, err) ||
        kvd_queue_get(lambda, s->lambda, m * s->d * sizeof(double), s->stream, what, err) ||
        kvd_queue_get(vectors, s->A, m * matrix, s->stream, what, err) ||
        kvd_cuda_check(cudaStreamSynchronize(s->stream), what, err) ||
        kvd_cuda_check(cudaEventElapsedTime(&ms, s->begin, s->end), what, err))
        return -1;
    *seconds += 1e-3 * (double)ms;
    return 0;
}

/* Turns rising eigenvalues of X^T X into falling singular values of X, and eigenvectors into
 * row-major R. */
static int finish(double *sigma, double *R, size_t d, int info, kvd_err *err)
{
    if (info)
        return kvd_fail(err, "XsyevBatched did not converge, info %d", info);
    for (size_t i = 0; i < d / 2; i++) {
        const double x = sigma[i];
        sigma[i] = sigma[d - 1 - i];
        sigma[d - 1 - i] = x;
        for (size_t k = 0; k < d; k++) {
            const double y = R[i * d + k];
            R[i * d + k] = R[(d - 1 - i) * d + k];
            R[(d - 1 - i) * d + k] = y;
        }
    }
    for (size_t i = 0; i < d; i++)
        for (size_t j = 0; j < i; j++) {
            const double x = R[i * d + j];
            R[i * d + j] = R[j * d + i];
            R[j * d + i] = x;
        }
    kvd_fix_signs(R, d);
    return kvd_gram_sigma(sigma, d, err);
}

static size_t first_nonfinite(const double *gram, size_t n, size_t d, kvd_err *err)
{
    size_t bad = n, at = 0;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        size_t where;
        if (kvd_find_nonfinite(gram + i * d * d, d * d, &where)) {
#pragma omp critical(kvd_eigen_bad)
            if (i < bad) {
                bad = i;
                at = where;
            }
        }
    }
    if (bad < n)
        kvd_fail(err, "G[%zu][%zu] is not finite", at / d, at % d);
    return bad;
}

int kvd_gpu_gram_svd(const double *gram, size_t n, size_t d, double *sigma, double *R, size_t *bad,
                     double *device_s, kvd_err *err)
{
    solver s = {0};
    double seconds = 0;
    int status = -1;
    assert(n >= 1 && d >= 1 && d <= 16384);
    *bad = first_nonfinite(gram, n, d, err);
    if (*bad < n)
        return -1;
    if (solver_open(&s, n, d, err))
        goto done;
    for (size_t first = 0; first < n && *bad == n; first += s.batch) {
        const size_t m = n - first < s.batch ? n - first : s.batch;
        if (run_batch(&s, gram + first * d * d, m, sigma + first * d, R + first * d * d, &seconds,
                      err))
            goto done;
#pragma omp parallel for schedule(static)
        for (size_t i = first; i < first + m; i++) {
            kvd_err mine;
            if (finish(sigma + i * d, R + i * d * d, d, s.host_info[i - first], &mine)) {
#pragma omp critical(kvd_eigen_bad)
                if (i < *bad) {
                    *bad = i;
                    *err = mine;
                }
            }
        }
    }
    status = *bad < n ? -1 : 0;
done:
    solver_close(&s);
    if (device_s)
        *device_s = seconds;
    return status;
}

static int gather(const kvd_moments *m, kvd_pair pair, bool before_rope, const kvd_spectrum *s,
                  double *gram, kvd_err *err)
{
    const size_t d = (size_t)m->model.d_head, n_h = (size_t)s->pair[pair].n_h,
                 n = (size_t)m->n_layers * n_h;
    int status = 0;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < n; i++) {
        kvd_err mine;
        if (kvd_pair_gram(m, pair, s->pairing, (int)(i / n_h), (int)(i % n_h), before_rope,
                          gram + i * d * d, &mine)) {
#pragma omp critical(kvd_gather_failed)
            {
                *err = mine;
                status = -1;
            }
        }
    }
    return status ? kvd_in(err, "pair '%s', layer %d, head 0", kvd_pair_name[pair], s->first_layer)
                  : 0;
}

static int one_pair(const kvd_moments *m, kvd_pair pair, bool before_rope, int first,
                    kvd_spectrum *s, kvd_err *err)
{
    const size_t d = (size_t)m->model.d_head, n_h = (size_t)s->pair[pair].n_h,
                 n = (size_t)m->n_layers * n_h;
    size_t bad = n;
    double *gram = malloc(n * d * d * sizeof *gram);
    if (!gram)
        return kvd_no_memory(err, "the Gram matrices of a pair", n * d * d * sizeof *gram);
    int status = gather(m, pair, before_rope, s, gram, err);
    if (!status && kvd_gpu_gram_svd(gram, n, d, kvd_spectrum_sigma(s, pair, first, 0),
                                    kvd_spectrum_R(s, pair, first, 0), &bad, NULL, err))
        status = bad < n ? kvd_in(err, "pair '%s', layer %d, head %d", kvd_pair_name[pair],
                                  s->first_layer + first + (int)(bad / n_h), (int)(bad % n_h))
                         : -1;
    free(gram);
    s->pair[pair].on_gpu = !status;
    return status;
}

int kvd_gpu_decompose_moments(const kvd_moments *m, const bool wanted[KVD_N_PAIRS],
                              bool before_rope, int first, kvd_spectrum *s, kvd_err *err)
{
    bool rest[KVD_N_PAIRS] = {false};
    for (int p = 0; p < KVD_N_PAIRS; p++) {
        rest[p] = wanted[p] && kvd_pair_balanced((kvd_pair)p);
        if (wanted[p] && !rest[p] && one_pair(m, (kvd_pair)p, before_rope, first, s, err))
            return -1;
    }
    return kvd_decompose_moments(m, rest, before_rope, first, s, err);
}
