/* Computes on a GPU: eigenvectors of symmetric matrices, and the leading singular vectors of a
 * prompt's keys or values. */
#include "methods/dims/cuda/latent_span.h"

#include <math.h>
#include <stdlib.h>

static const char what[] = "decompositions of prompts";

static int solved(cusolverStatus_t s, kvd_err *err)
{
    return s == CUSOLVER_STATUS_SUCCESS
               ? 0
               : kvd_fail(err, "decompositions of prompts: cuSOLVER status %d", (int)s);
}

int kvd_latent_solver_open(kvd_latent_solver *s, int d, int n, kvd_device_memory *memory,
                           cudaStream_t stream, kvd_err *err)
{
    const size_t numbers = (size_t)n * (size_t)d;
    s->d = d;
    s->n = n;
    if (!(s->lib = kvd_cusolver_load(err)) || solved(s->lib->cusolverDnCreate(&s->handle), err) ||
        solved(s->lib->cusolverDnCreateParams(&s->params), err) ||
        solved(s->lib->cusolverDnSetStream(s->handle, stream), err) ||
        solved(s->lib->cusolverDnXsyevBatched_bufferSize(
                   s->handle, s->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, d,
                   CUDA_R_32F, NULL, d, CUDA_R_32F, NULL, CUDA_R_32F, &s->work_bytes,
                   &s->host_bytes, n),
               err))
        return -1;
    s->host_work = kvd_device_host(memory, s->host_bytes, what, err);
    s->value = kvd_device_new(memory, numbers * sizeof *s->value, what, err);
    s->info = kvd_device_new(memory, (size_t)n * sizeof *s->info, what, err);
    s->work = kvd_device_new(memory, s->work_bytes, what, err);
    return memory->status;
}

void kvd_latent_solver_close(kvd_latent_solver *s)
{
    if (s->params)
        (void)s->lib->cusolverDnDestroyParams(s->params);
    if (s->handle)
        (void)s->lib->cusolverDnDestroy(s->handle);
    *s = (kvd_latent_solver){0};
}

int kvd_latent_solver_run(const kvd_latent_solver *s, float *matrix, int *host_info,
                          cudaStream_t stream, kvd_err *err)
{
    return kvd_status(
        solved(s->lib->cusolverDnXsyevBatched(
                   s->handle, s->params, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_UPPER, s->d,
                   CUDA_R_32F, matrix, s->d, CUDA_R_32F, s->value, CUDA_R_32F, s->work,
                   s->work_bytes, s->host_work, s->host_bytes, s->info, s->n),
               err) ||
        kvd_queue_get(host_info, s->info, (size_t)s->n * sizeof *s->info, stream, what, err));
}

static const char spans[] = "singular vectors of prompts";

int kvd_latent_span_make(kvd_latent_span *s, const kvd_gpu_worker *w, size_t tokens, size_t wide,
                         size_t width, kvd_device_memory *memory, kvd_err *err)
{
    const size_t basis = KVD_LATENT_SPAN_BATCH * wide * width * sizeof(float),
                 matrix = KVD_LATENT_SPAN_BATCH * width * width * sizeof(float),
                 part = (size_t)KVD_LATENT_SPAN_BATCH * KVD_SPAN_PARTS * sizeof(float);
    *s = (kvd_latent_span){
        .lib = w->lib, .blas = w->blas, .tokens = tokens, .wide = wide, .width = width};
    return (s->x = kvd_device_new(memory, tokens * wide * sizeof *s->x, spans, err)) &&
                   (s->z = kvd_device_new(memory, tokens * width * sizeof *s->z, spans, err)) &&
                   (s->basis = kvd_device_new(memory, basis / 2, spans, err)) &&
                   (s->q = kvd_device_new(memory, basis, spans, err)) &&
                   (s->y = kvd_device_new(memory, basis, spans, err)) &&
                   (s->low = kvd_device_new(memory, basis, spans, err)) &&
                   (s->gram = kvd_device_new(memory, matrix, spans, err)) &&
                   (s->square = kvd_device_new(memory, matrix, spans, err)) &&
                   (s->part = kvd_device_new(memory, part, spans, err)) &&
                   (s->part_gram = kvd_device_new(memory, part, spans, err)) &&
                   (s->captured = kvd_device_new(
                        memory, KVD_LATENT_SPAN_BATCH * sizeof *s->captured, spans, err))
               ? 0
               : -1;
}

/* Matrices of equal size in device memory, one per prompt, each column-major without gaps. */
typedef struct {
    void *x;
    cudaDataType_t type;
    size_t rows, columns;
} span_matrix;

/* Computes C = A B + beta C or, if `turns` is set, C = A^T B + beta C. Products are summed in
 * float32. */
static int span_multiply(const kvd_latent_span *s, bool turns, span_matrix a, span_matrix b,
                         float beta, span_matrix c, size_t batch, kvd_err *err)
{
    const float one = 1;
    return kvd_cublas_check(
        s->lib->cublasGemmStridedBatchedEx(
            s->blas, turns ? CUBLAS_OP_T : CUBLAS_OP_N, CUBLAS_OP_N, (int)c.rows, (int)c.columns,
            (int)b.rows, &one, a.x, a.type, (int)a.rows, (long long)(a.rows * a.columns), b.x,
            b.type, (int)b.rows, (long long)(b.rows * b.columns), &beta, c.x, c.type, (int)c.rows,
            (long long)(c.rows * c.columns), (int)batch,
            a.type == CUDA_R_32F ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
            CUBLAS_GEMM_DEFAULT),
        spans, err);
}

enum { SPAN_ROUGH = 9, SPAN_EXACT = 13, SPAN_SPLIT = 2, SPAN_SHIFTS = 8 };
/* Polynomials that, applied one after another, map each singular value in [1e-6, 1] to about 1. */
static const kvd_span_polynomial_of span_steps[SPAN_EXACT] = {
    {7.567750744672722F, -21.55018647759965F, 15.80110749901437F, 1.01F},
    {4.161141601133131F, -3.582515338995662F, 0.7941744380690262F, 1.02F},
    {4.161141601133131F, -3.582515338995662F, 0.7941744380690262F, 1.02F},
    {4.161141601133131F, -3.582515338995662F, 0.7941744380690262F, 1.02F},
    {4.161141601133131F, -3.582515338995662F, 0.7941744380690262F, 1.02F},
    {4.161141601133131F, -3.582515338995662F, 0.7941744380690262F, 1.02F},
    {4.161141601133131F, -3.582515338995662F, 0.7941744380690262F, 1.02F},
    {4.161141601133131F, -3.582515338995662F, 0.7941744380690262F, 1.02F},
    {4.048728303625329F, -3.448903492790333F, 0.7621019450000032F, 1.02F},
    {2.91812898567336F, -2.182868801942759F, 0.4755812091017961F, 1.02F},
    {2.046571772832404F, -1.429735319415681F, 0.3933795529205313F, 1},
    {1.876385601227024F, -1.251538696600965F, 0.3751539029622895F, 1},
    {1.875F, -1.25F, 0.375F, 1}};

/* Sets s->gram to a polynomial M of Y^T Y, where Y is `y`. Y M has the singular vectors of Y, and
 * singular values nearer to 1. */
static int span_step(const kvd_latent_span *s, const kvd_latent_span_rows *r, int i, span_matrix y,
                     cudaStream_t stream, kvd_err *err)
{
    const span_matrix gram = {s->gram, y.type, r->width, r->width},
                      square = {s->square, CUDA_R_32F, r->width, r->width};
    const size_t n = r->width * r->width;
    const int32_t batch = (int32_t)r->batch;
    const kvd_span_shape m = {1, (uint32_t)n, n, n, batch};
    const bool bf16 = y.type == CUDA_R_16BF;
    return span_multiply(s, true, y, y, 0, gram, r->batch, err) ||
                   span_multiply(s, true, gram, gram, 0, square, r->batch, err) ||
                   (!i && kvd_cuda_check(kvd_span_squares(s->gram, bf16, m, s->part_gram, stream),
                                         spans, err)) ||
                   kvd_cuda_check(kvd_span_polynomial(s->gram, bf16, s->square, r->width, batch,
                                                      i ? NULL : s->part_gram, span_steps[i],
                                                      stream),
                                  spans, err)
               ? -1
               : 0;
}

/* Makes the columns of s->y nearly orthonormal in `steps` iterations; `steps` must be odd. Writes
 * the result to s->basis, and overwrites s->low. */
static int span_polar(const kvd_latent_span *s, const kvd_latent_span_rows *r, int steps,
                      cudaStream_t stream, kvd_err *err)
{
    const size_t n = r->wide * r->width;
    uint16_t *const high = (uint16_t *)(void *)s->low;
    const span_matrix by = {s->gram, CUDA_R_16BF, r->width, r->width},
                      low = {high + r->batch * n, CUDA_R_16BF, r->wide, r->width};
    span_matrix y = {high, CUDA_R_16BF, r->wide, r->width},
                to = {s->basis, CUDA_R_16BF, r->wide, r->width};
    if (kvd_cuda_check(kvd_span_round(s->y, y.x, low.x, n, (int32_t)r->batch, stream), spans, err))
        return -1;
    for (int i = 0; i < steps; i++) {
        if (span_step(s, r, i, y, stream, err) ||
            (!i && span_multiply(s, false, low, by, 0, to, r->batch, err)) ||
            span_multiply(s, false, y, by, i ? 0 : 1, to, r->batch, err))
            return -1;
        const span_matrix next = to;
        to = y;
        y = next;
    }
    return 0;
}

/* Sets s->q to U V^T, the orthonormal polar factor of s->y = U S V^T, and s->basis to a bf16 copy
 * of s->q. */
static int span_polar_exact(const kvd_latent_span *s, const kvd_latent_span_rows *r,
                            cudaStream_t stream, kvd_err *err)
{
    const size_t n = r->wide * r->width;
    const int32_t batch = (int32_t)r->batch;
    const span_matrix by = {s->gram, CUDA_R_32F, r->width, r->width},
                      low = {s->low, CUDA_R_32F, r->wide, r->width};
    span_matrix y = {s->y, CUDA_R_32F, r->wide, r->width},
                to = {s->q, CUDA_R_32F, r->wide, r->width};
    for (int i = 0; i < SPAN_EXACT; i++) {
        const bool splits = i < SPAN_SPLIT;
        if (span_step(s, r, i, y, stream, err) ||
            (splits && kvd_cuda_check(kvd_span_split(y.x, s->low, n, batch, stream), spans, err)) ||
            span_multiply(s, false, y, by, 0, to, r->batch, err) ||
            (splits && span_multiply(s, false, low, by, 1, to, r->batch, err)))
            return -1;
        const span_matrix next = to;
        to = y;
        y = next;
    }
    return kvd_cuda_check(kvd_span_round(s->q, s->basis, NULL, n, batch, stream), spans, err);
}

/* Writes the product of s->x (the prompts' keys or values) and s->basis to s->z. If `part` is not
 * NULL, writes partial sums of the squares of s->z to it. */
static int span_project(const kvd_latent_span *s, const kvd_latent_span_rows *r, float *part,
                        cudaStream_t stream, kvd_err *err)
{
    const size_t n = r->n * r->width;
    const kvd_span_shape m = {1, (uint32_t)n, n, n, (int32_t)r->batch};
    return span_multiply(s, true, (span_matrix){s->x, CUDA_R_16BF, r->wide, r->n},
                         (span_matrix){s->basis, CUDA_R_16BF, r->wide, r->width}, 0,
                         (span_matrix){s->z, CUDA_R_16BF, r->n, r->width}, r->batch, err) ||
                   (part &&
                    kvd_cuda_check(kvd_span_squares(s->z, true, m, part, stream), spans, err))
               ? -1
               : 0;
}

static int span_return(const kvd_latent_span *s, const kvd_latent_span_rows *r, kvd_err *err)
{
    return span_multiply(s, false, (span_matrix){s->x, CUDA_R_16BF, r->wide, r->n},
                         (span_matrix){s->z, CUDA_R_16BF, r->n, r->width}, 0,
                         (span_matrix){s->y, CUDA_R_32F, r->wide, r->width}, r->batch, err);
}

/* Copies the keys or values of each prompt to s->x, divided by the Frobenius norm of the prompt's
 * matrix. Writes a first guess of the leading singular vectors to s->y. */
static int span_begin(const kvd_latent_span *s, const kvd_latent_span_rows *r, cudaStream_t stream,
                      kvd_err *err)
{
    const bool few = r->n < r->wide;
    const int32_t batch = (int32_t)r->batch;
    const kvd_span_shape m = {(uint32_t)r->n, (uint32_t)r->wide, r->ld, r->n * r->ld, batch};
    return kvd_cuda_check(kvd_span_squares(r->x, true, m, s->part, stream), spans, err) ||
                   kvd_cuda_check(kvd_span_scale(r->x, m, s->part, s->x, stream), spans, err) ||
                   kvd_cuda_check(kvd_span_start(few ? (void *)s->z : s->y, few,
                                                 few ? r->n : r->wide, r->width, batch, stream),
                                  spans, err) ||
                   (few && span_return(s, r, err))
               ? -1
               : 0;
}

/* Brings the columns of s->basis nearer to the leading singular vectors of X, a prompt's keys or
 * values: multiplies s->basis by a polynomial of X^T X, and makes the columns orthonormal again. */
static int span_power(const kvd_latent_span *s, const kvd_latent_span_rows *r, size_t most,
                      cudaStream_t stream, kvd_err *err)
{
    const size_t n = r->wide * r->width;
    const int32_t batch = (int32_t)r->batch;
    if (span_project(s, r, NULL, stream, err) || span_return(s, r, err) ||
        span_polar(s, r, SPAN_EXACT, stream, err))
        return -1;
    for (int i = 0; i < SPAN_SHIFTS; i++) {
        /* Order of the power iteration's shifts: largest, smallest, second largest, and so on. This
         * order limits rounding errors. */
        const int place = i % 2 ? SPAN_SHIFTS - 1 - i / 2 : i / 2;
        const double root = 1 + cos(acos(-1) * (place + 0.5) / SPAN_SHIFTS),
                     scale = 0.75 / (double)(most - r->width);
        if (span_project(s, r, i ? NULL : s->part, stream, err) || span_return(s, r, err) ||
            kvd_cuda_check(
                kvd_span_shift(s->y, s->basis, n, batch, s->part, (float)(root * scale), stream),
                spans, err) ||
            (i + 1 < SPAN_SHIFTS ? span_polar(s, r, SPAN_ROUGH, stream, err)
                                 : span_polar_exact(s, r, stream, err)))
            return -1;
    }
    return 0;
}

int kvd_latent_span_run(const kvd_latent_span *s, const kvd_latent_span_rows *r,
                        cudaStream_t stream, kvd_err *err)
{
    const size_t most = r->n < r->wide ? r->n : r->wide;
    if (r->batch < 1 || r->batch > KVD_LATENT_SPAN_BATCH || r->batch * r->n > s->tokens ||
        r->wide > s->wide || r->width < 1 || r->width > s->width || r->width > most)
        return kvd_fail(err, "%s: %zu vectors of %zu times %zu rows of %zu, at most %zu of %zu",
                        spans, r->width, r->batch, r->n, r->wide, s->width, s->wide);
    /* If as many singular vectors as possible are requested, any orthonormal basis of the rows will
     * do, and no power iteration is needed. */
    if (span_begin(s, r, stream, err) ||
        (r->width < most
             ? span_polar(s, r, SPAN_ROUGH, stream, err) || span_power(s, r, most, stream, err)
             : span_polar_exact(s, r, stream, err)))
        return -1;
    for (size_t i = 0; i < r->batch; i++)
        if (kvd_cuda_check(kvd_span_store(s->q + i * r->wide * r->width, r->wide, r->width, r->rank,
                                          r->basis[i], stream),
                           spans, err))
            return -1;
    return span_project(s, r, s->part, stream, err) ||
                   kvd_cuda_check(kvd_span_sum(s->part, s->captured, (int32_t)r->batch, stream),
                                  spans, err) ||
                   kvd_queue_get(r->captured, s->captured, r->batch * sizeof *s->captured, stream,
                                 spans, err)
               ? -1
               : 0;
}

size_t kvd_latent_span_equal(const int32_t *q_len, size_t n)
{
    size_t equal = 1;
    while (equal < n && equal < KVD_LATENT_SPAN_BATCH && q_len[equal] == q_len[0])
        equal++;
    return equal;
}

int kvd_latent_span_check(float captured, kvd_err *err)
{
    return captured >= 0 && captured <= 1.02F
               ? 0
               : kvd_fail(err, "%s did not converge: they hold %g of the squares, expected 0 to 1",
                          spans, (double)captured);
}
