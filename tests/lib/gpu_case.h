/* Helpers of GPU tests. A CUDA error ends the program as a failed test. */
#ifndef GPU_CASE_H
#define GPU_CASE_H

#include <cuda_runtime_api.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "common/half.h"
#include "common/rng.h"

/* Subject of the program's tests, and number of failed tests. */
static const char *test_subject = "";
static int failures;

/*
 * Starts a test program again with OpenMP threads that sleep while they wait. On shared cores,
 * threads that wait in a loop make CPU references 100 times as slow. libgomp reads the variable
 * before main.
 */
__attribute__((constructor)) static void wait_asleep(int argc, char **argv)
{
    (void)argc;
    if (!strncmp(program_invocation_short_name, "gpu_", 4) && !getenv("OMP_WAIT_POLICY") &&
        !setenv("OMP_WAIT_POLICY", "passive", 0))
        (void)execv("/proc/self/exe", argv);
}

/* Prints "ok" or "not ok", name and message. Counts failures. */
__attribute__((format(printf, 3, 4))) static inline void test_result(int ok, const char *name,
                                                                     const char *format, ...)
{
    va_list args;
    printf("%s %s, %s: ", ok ? "ok" : "not ok", test_subject, name);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
    failures += !ok;
}

/*
 * Returns the number of GPUs; below `needed`, prints a skip line and returns 0. Makes output
 * unbuffered.
 */
static inline int gpu_devices(const char *subject, int needed)
{
    int n = 0;
    test_subject = subject;
    (void)setvbuf(stdout, NULL, _IOLBF, 0);
    if (cudaGetDeviceCount(&n) == cudaSuccess && n >= needed)
        return n;
    printf("skip %s: %d devices, %d needed\n", subject, n, needed);
    return 0;
}

static inline void *need(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static inline void check(cudaError_t e, const char *what)
{
    if (e != cudaSuccess) {
        printf("not ok %s: %s\n", what, cudaGetErrorString(e));
        exit(1);
    }
}

/* Ends a benchmark with the message of an error. */
static inline void end_on(int status, const kvd_err *err)
{
    if (status) {
        fprintf(stderr, "%s: %s\n", program_invocation_short_name, err->msg);
        exit(1);
    }
}

/* Fills device memory and waits, because non-blocking streams do not wait for cudaMemset. */
static inline void fill_bytes(void *p, int byte, size_t bytes)
{
    check(cudaMemset(p, byte, bytes), "fill");
    check(cudaStreamSynchronize(NULL), "fill");
}

/* Copies `from` to the device. If `from` is NULL, fills with 0xff (NaN). */
static inline void *on_device(const void *from, size_t bytes)
{
    void *p = NULL;
    check(cudaMalloc(&p, bytes ? bytes : 16), "cudaMalloc");
    if (from) {
        check(cudaMemcpy(p, from, bytes, cudaMemcpyHostToDevice), "fill");
        check(cudaStreamSynchronize(NULL), "fill");
    } else {
        fill_bytes(p, 0xff, bytes);
    }
    return p;
}

static inline void *zeros(size_t bytes)
{
    void *const p = on_device(NULL, bytes);
    fill_bytes(p, 0, bytes);
    return p;
}

static inline void free_all(const void *const *array, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check(cudaFree((void *)array[i]), "cudaFree");
}

/* Frees arrays on the device. NULL is allowed. */
#define device_free(...)                                                                           \
    free_all((const void *const[]){__VA_ARGS__},                                                   \
             sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))

static inline void free_all_host(void *const *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        free(x[i]);
}

/* Frees arrays on the host. NULL is allowed. */
#define host_free(...)                                                                             \
    free_all_host((void *const[]){__VA_ARGS__},                                                    \
                  sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))

/* Returns n normal random numbers of standard deviation `size`, rounded to bf16. */
static inline float *bf16_numbers(kvd_rng *r, size_t n, double size)
{
    float *const x = need(n * sizeof *x);
    uint16_t *const narrow = need(n * sizeof *narrow);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(size * kvd_rng_normal(r));
    kvd_from_f32(KVD_BF16, x, narrow, n);
    kvd_to_f32(KVD_BF16, narrow, x, n);
    free(narrow);
    return x;
}

static inline void *on_device_bf16(const float *x, size_t n)
{
    uint16_t *const narrow = need(n * sizeof *narrow);
    kvd_from_f32(KVD_BF16, x, narrow, n);
    void *const p = on_device(narrow, n * sizeof *narrow);
    free(narrow);
    return p;
}

static inline uint16_t bf16_of(double x)
{
    const float y = (float)x;
    uint16_t h;
    kvd_from_f32(KVD_BF16, &y, &h, 1);
    return h;
}

static inline float bf16_wide(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float bf16_rounded(double x)
{
    return bf16_wide(bf16_of(x));
}

#endif
