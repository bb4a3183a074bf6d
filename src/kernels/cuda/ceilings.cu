#include "kernels/cuda/ceilings.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "common/cuda/launch.cuh"
#include "common/cuda/libraries.h"
#include "kernels/cuda/device.h"
extern "C" {
#include "common/stats.h"
}

enum { WARM_UP = 3, LAUNCHES = 31, EX2_CHAINS = 16, EX2_STEPS = 1024, BLOCK = 256, UNROLL = 8 };

static __device__ __forceinline__ uint32_t mix(uint64_t i)
{
    i = (i ^ (i >> 31)) * 0x7fb5d329728ea185ull;
    i = (i ^ (i >> 27)) * 0x81dadef4bc2dd44dull;
    return (uint32_t)(i >> 32);
}

static __global__ void fill_kernel(uint32_t *to, size_t words, int bf16)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        const uint32_t r = mix(i + 1);
        to[i] = bf16 ? (r & 0x81ff81ffu) | 0x3e003e00u : r;
    }
}

static __global__ void __launch_bounds__(BLOCK)
    copy_kernel(uint4 *__restrict__ to, const uint4 *__restrict__ from, size_t n)
{
    const size_t step = (size_t)gridDim.x * BLOCK;
    size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            v[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < 4; j++)
            __stcs(to + i + j * step, v[j]);
    }
    for (; i < n; i += step)
        to[i] = from[i];
}

static __global__ void __launch_bounds__(BLOCK)
    read_kernel(const uint4 *__restrict__ from, size_t n, uint32_t *sink)
{
    const size_t step = (size_t)gridDim.x * BLOCK;
    uint32_t x = 0;
    size_t i = blockIdx.x * (size_t)BLOCK + threadIdx.x;
    for (; i + (UNROLL - 1) * step < n; i += UNROLL * step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; j++)
            v[j] = __ldcs(from + i + j * step);
#pragma unroll
        for (int j = 0; j < UNROLL; j++)
            x ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += step) {
        const uint4 v = from[i];
        x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (x == 0x12345678u)
        *sink = x;
}

static __global__ void __launch_bounds__(512) ex2_kernel(float *sink)
{
    float x[EX2_CHAINS], sum = 0.0F;
#pragma unroll
    for (int j = 0; j < EX2_CHAINS; j++)
        x[j] = 0.03F * (float)(j + 1) + 0.001F * (float)threadIdx.x;
    for (int i = 0; i < EX2_STEPS; i += 8) {
#pragma unroll
        for (int u = 0; u < 8; u++)
#pragma unroll
            for (int j = 0; j < EX2_CHAINS; j++)
                asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(x[j]) : "f"(-x[j]));
    }
#pragma unroll
    for (int j = 0; j < EX2_CHAINS; j++)
        sum += x[j];
    if (sum == -1.0F)
        *sink = sum;
}

typedef cudaError_t (*launcher)(void *what);

static int sms(int *n, kvd_err *err)
{
    const cudaError_t e = kvd_device_attribute(cudaDevAttrMultiProcessorCount, n);
    return e == cudaSuccess ? 0 : kvd_fail(err, "no device: %s", cudaGetErrorString(e));
}

static int measure(launcher launch, void *what, double units, const char *name, kvd_ceiling *out,
                   kvd_err *err)
{
    int rc = -1;
    float ms;
    double seconds[LAUNCHES];
    cudaEvent_t begin = nullptr, end = nullptr;
    kvd_clock_stamp *dev = nullptr, *host = (kvd_clock_stamp *)malloc(2 * sizeof *host);
    cudaError_t e = cudaEventCreate(&begin);
    if (!host) {
        kvd_no_memory(err, "clock stamps", 2 * sizeof *host);
        goto done;
    }
    if (e == cudaSuccess)
        e = cudaEventCreate(&end);
    if (e == cudaSuccess)
        e = cudaMalloc(&dev, 2 * sizeof *dev);
    if (e == cudaSuccess)
        e = cudaMemset(dev, 0, 2 * sizeof *dev);
    for (int i = -WARM_UP; i < LAUNCHES && e == cudaSuccess; i++) {
        if (i == 0)
            e = (cudaError_t)kvd_clock_stamp_launch(dev, nullptr);
        if (e == cudaSuccess)
            e = cudaEventRecord(begin);
        if (e == cudaSuccess)
            e = launch(what);
        if (e == cudaSuccess)
            e = cudaEventRecord(end);
        if (e == cudaSuccess)
            e = cudaEventSynchronize(end);
        if (e == cudaSuccess && i >= 0)
            e = cudaEventElapsedTime(&ms, begin, end);
        if (e == cudaSuccess && i >= 0)
            seconds[i] = (double)ms * 1e-3;
    }
    if (e == cudaSuccess)
        e = (cudaError_t)kvd_clock_stamp_launch(dev + 1, nullptr);
    if (e == cudaSuccess)
        e = cudaMemcpy(host, dev, 2 * sizeof *host, cudaMemcpyDeviceToHost);
    if (e != cudaSuccess) {
        kvd_fail(err, "ceiling of %s: %s", name, cudaGetErrorString(e));
        goto done;
    }
    kvd_sort(seconds, LAUNCHES);
    if (!(seconds[0] > 0.0)) {
        kvd_fail(err, "ceiling of %s: a launch took no time", name);
        goto done;
    }
    if (const double median = seconds[LAUNCHES / 2]; units / median > out->rate)
        *out = {units / median, units / seconds[0], median * 1e6,
                kvd_clock_between(host, host + 1)};
    rc = 0;
done:
    if (begin)
        cudaEventDestroy(begin);
    if (end)
        cudaEventDestroy(end);
    cudaFree(dev);
    free(host);
    return rc;
}

static int allocate(void **to, size_t bytes, int bf16, const char *name, kvd_err *err)
{
    cudaError_t e = cudaMalloc(to, bytes);
    if (e == cudaSuccess) {
        fill_kernel<<<2048, BLOCK>>>((uint32_t *)*to, bytes / 4, bf16);
        e = cudaGetLastError();
    }
    return e == cudaSuccess ? 0
                            : kvd_fail(err, "ceiling of %s: buffer of %zu bytes: %s", name, bytes,
                                       cudaGetErrorString(e));
}

struct job {
    void *a, *b, *c;
    size_t bytes;
    int n_sms, n;
    cublasHandle_t blas;
    cublasOperation_t transposed;
    cublasStatus_t status;
};

static cudaError_t launch_memcpy(void *what)
{
    const job *w = (const job *)what;
    return cudaMemcpyAsync(w->b, w->a, w->bytes, cudaMemcpyDeviceToDevice);
}

static cudaError_t launch_copy(void *what)
{
    const job *w = (const job *)what;
    copy_kernel<<<(unsigned)w->n_sms * 16, BLOCK>>>((uint4 *)w->b, (const uint4 *)w->a,
                                                    w->bytes / 16);
    return cudaGetLastError();
}

static cudaError_t launch_read(void *what)
{
    const job *w = (const job *)what;
    read_kernel<<<(unsigned)w->n_sms * 16, BLOCK>>>((const uint4 *)w->a, w->bytes / 16,
                                                    (uint32_t *)w->b);
    return cudaGetLastError();
}

static cudaError_t launch_ex2(void *what)
{
    const job *w = (const job *)what;
    ex2_kernel<<<(unsigned)w->n_sms * 4, 512>>>((float *)w->a);
    return cudaGetLastError();
}

static cudaError_t launch_gemm(void *what)
{
    job *w = (job *)what;
    w->status = kvd_cublas_gemm(w->blas, w->transposed, CUBLAS_OP_N, w->n, w->n, w->n, CUDA_R_16BF,
                                w->a, w->n, w->b, w->n, w->c, w->n);
    return w->status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

int kvd_ceiling_copy(size_t bytes, kvd_ceiling *out, kvd_err *err)
{
    job w = {};
    *out = {};
    w.bytes = bytes ? bytes : (size_t)4 << 30;
    if (w.bytes % 16)
        return kvd_fail(err, "ceiling of copy: %zu bytes are no multiple of 16", bytes);
    int rc = sms(&w.n_sms, err) || allocate(&w.a, w.bytes, 0, "copy", err) ||
             allocate(&w.b, w.bytes, 0, "copy", err) ||
             measure(launch_memcpy, &w, 2.0 * (double)w.bytes, "copy", out, err) ||
             measure(launch_copy, &w, 2.0 * (double)w.bytes, "copy", out, err);
    cudaFree(w.a);
    cudaFree(w.b);
    return rc ? -1 : 0;
}

int kvd_ceiling_read(size_t bytes, kvd_ceiling *out, kvd_err *err)
{
    job w = {};
    *out = {};
    w.bytes = bytes ? bytes : (size_t)8 << 30;
    if (w.bytes % 16)
        return kvd_fail(err, "ceiling of read: %zu bytes are no multiple of 16", bytes);
    int rc = sms(&w.n_sms, err) || allocate(&w.a, w.bytes, 0, "read", err) ||
             allocate(&w.b, 16, 0, "read", err) ||
             measure(launch_read, &w, (double)w.bytes, "read", out, err);
    cudaFree(w.a);
    cudaFree(w.b);
    return rc ? -1 : 0;
}

int kvd_ceiling_ex2(kvd_ceiling *out, kvd_err *err)
{
    job w = {};
    *out = {};
    if (sms(&w.n_sms, err))
        return -1;
    const double per_launch = (double)w.n_sms * 4.0 * 512.0 * EX2_CHAINS * EX2_STEPS;
    int rc =
        allocate(&w.a, 16, 0, "ex2", err) || measure(launch_ex2, &w, per_launch, "ex2", out, err);
    cudaFree(w.a);
    return rc ? -1 : 0;
}

int kvd_ceiling_gemm(int n, kvd_ceiling *out, kvd_err *err)
{
    job w = {};
    int rc = -1;
    *out = {};
    w.n = n ? n : 8192;
    if (w.n < 64 || w.n > 32768 || w.n % 8)
        return kvd_fail(err, "ceiling of gemm: size %d, want a multiple of 8 in 64 .. 32768", n);
    const size_t bytes = (size_t)w.n * (size_t)w.n * 2;
    const double flop = 2.0 * (double)w.n * (double)w.n * (double)w.n;
    const cublasOperation_t forms[] = {CUBLAS_OP_N, CUBLAS_OP_T};
    if (!(w.blas = kvd_cublas_open("ceiling of gemm", err)))
        return -1;
    if (allocate(&w.a, bytes, 1, "gemm", err) || allocate(&w.b, bytes, 1, "gemm", err) ||
        allocate(&w.c, bytes, 1, "gemm", err))
        goto done;
    for (const cublasOperation_t f : forms) {
        w.transposed = f;
        if (measure(launch_gemm, &w, flop, "gemm", out, err)) {
            (void)kvd_cublas_check(w.status, "ceiling of gemm", err);
            goto done;
        }
    }
    rc = 0;
done:
    kvd_cublas_close(w.blas);
    cudaFree(w.a);
    cudaFree(w.b);
    cudaFree(w.c);
    return rc;
}
