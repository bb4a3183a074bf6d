/* Helpers of GPU tests. A CUDA error ends the program. */
#ifndef GPU_CASE_H
#define GPU_CASE_H

#include <cuda_runtime_api.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "common/half.h"
#include "common/rng.h"

static const char *test_subject = "";
static int failures;

/* Restarts the program with OMP_WAIT_POLICY=passive, which lets waiting OpenMP threads sleep. */
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

/* Reports a test result. If `status` is not 0, the test fails with the message in err. */
#define test_after(status, err, ok, name, ...)                                                     \
    ((status) ? test_result(0, name, "%s", (err)->msg) : test_result(ok, name, __VA_ARGS__))

/* The program runs every `case_parts`-th test case, beginning with number `case_part`. */
static size_t case_part, case_parts = 1;

/* Reads "I/N": run only part I (1 .. N) of the test cases, divided into N parts. Returns false if
 * `arg` has another form. */
static inline int read_part(const char *arg)
{
    size_t i, n;
    if (sscanf(arg, "%zu/%zu", &i, &n) != 2 || i < 1 || i > n)
        return 0;
    case_part = i - 1;
    case_parts = n;
    return 1;
}

static inline int in_this_part(size_t number)
{
    return number % case_parts == case_part;
}

/* Returns the number of GPUs. If there are fewer than `needed`, prints that the test is skipped and
 * returns 0. */
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

static inline void *or_out_of_memory(void *p)
{
    if (!p) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

#ifdef CASE_MEMORY
/* blocks of host and device memory that the next end_case() frees */
static struct {
    void *at;
    int device;
} * case_memory;
static size_t case_blocks;

/* Registers p, so that end_case() frees it. Must not be called in OpenMP parallel regions. */
static inline void *until_end_case(void *p, int device)
{
    case_memory = or_out_of_memory(realloc(case_memory, (case_blocks + 1) * sizeof *case_memory));
    case_memory[case_blocks].at = p;
    case_memory[case_blocks++].device = device;
    return p;
}

/* Frees the memory that need() and on_device() returned since the last end_case(). */
static inline void end_case(void)
{
    while (case_blocks)
        if (case_memory[--case_blocks].device)
            (void)cudaFree(case_memory[case_blocks].at);
        else
            free(case_memory[case_blocks].at);
}
#else
#define until_end_case(p, device) (p)
#endif

static inline void *need(size_t bytes)
{
    return until_end_case(or_out_of_memory(calloc(1, bytes ? bytes : 1)), 0);
}

/* If `status` is not 0, prints a failed test and ends the program. */
static inline void or_end(int status, const char *what, const char *why)
{
    if (status) {
        printf("not ok %s: %s\n", what, why);
        exit(1);
    }
}

static inline void check(cudaError_t e, const char *what)
{
    or_end(e != cudaSuccess, what, cudaGetErrorString(e));
}

#define to_host(to, from, bytes)                                                                   \
    check(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy of " #from)
#define to_device(to, from, bytes)                                                                 \
    check(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy of " #from)

static inline cudaEvent_t timer_event(int end)
{
    static cudaEvent_t event[2];
    if (!event[end])
        check(cudaEventCreate(&event[end]), "event");
    return event[end];
}

static inline void timer_start(cudaStream_t stream)
{
    check(cudaEventRecord(timer_event(0), stream), "event");
}

/* Returns the milliseconds that the GPU took since the call of timer_start(). */
static inline double timer_ms(cudaStream_t stream)
{
    float ms;
    check(cudaEventRecord(timer_event(1), stream), "event");
    check(cudaEventSynchronize(timer_event(1)), "run");
    check(cudaEventElapsedTime(&ms, timer_event(0), timer_event(1)), "event");
    return (double)ms;
}

/* If `status` is not 0, prints err->msg and ends the program. */
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

/* Returns new device memory with a copy of `from` or, if NULL, 0xff (NaN). */
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
    return until_end_case(p, 1);
}

static inline void *zeros(size_t bytes)
{
    void *const p = on_device(NULL, bytes);
    fill_bytes(p, 0, bytes);
    return p;
}

/* Copies device memory p to a new host array. The caller must free the array. */
static inline void *from_device(const void *p, size_t bytes)
{
    void *const x = need(bytes);
    if (bytes)
        check(cudaMemcpy(x, p, bytes, cudaMemcpyDeviceToHost), "copy to the host");
    return x;
}

static inline int device_attribute(enum cudaDeviceAttr which)
{
    int device = 0, value = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&value, which, device), "device");
    return value;
}

static inline int on_hopper(void)
{
    return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

static inline void free_all(const void *const *array, size_t n)
{
    for (size_t i = 0; i < n; i++)
        check(cudaFree((void *)array[i]), "cudaFree");
}

/* Frees device arrays, which may be NULL. */
#define device_free(...)                                                                           \
    free_all((const void *const[]){__VA_ARGS__},                                                   \
             sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))

static inline void free_all_host(void *const *x, size_t n)
{
#ifndef CASE_MEMORY
    for (size_t i = 0; i < n; i++)
        free(x[i]);
#else
    (void)x, (void)n;
#endif
}

/* Frees host arrays, which may be NULL. If CASE_MEMORY is defined, end_case() does that instead. */
#define host_free(...)                                                                             \
    free_all_host((void *const[]){__VA_ARGS__},                                                    \
                  sizeof((void *const[]){__VA_ARGS__}) / sizeof(void *))

/* Rounds x [n] to the type `type`, in place. Returns a new array with the rounded numbers in that
 * type. The caller must free the array. */
static inline void *round_to(kvd_dtype type, float *x, size_t n)
{
    void *const narrow = need(n * sizeof *x);
    kvd_from_f32(type, x, narrow, n);
    kvd_to_f32(type, narrow, x, n);
    return narrow;
}

/* Returns n normally distributed numbers with standard deviation `size`, rounded to `type` and
 * stored as float32. */
static inline float *rounded_numbers(kvd_rng *r, kvd_dtype type, size_t n, double size)
{
    float *const x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(size * kvd_rng_normal(r));
    host_free(round_to(type, x, n));
    return x;
}

static inline float *bf16_numbers(kvd_rng *r, size_t n, double size)
{
    return rounded_numbers(r, KVD_BF16, n, size);
}

/* Returns 0 .. n - 1 in random order. */
static inline int32_t *shuffled(kvd_rng *r, int n)
{
    int32_t *const x = need((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++) {
        const int j = (int)kvd_rng_below(r, (uint64_t)i + 1);
        x[i] = x[j];
        x[j] = i;
    }
    return x;
}

/* Returns random sink logits. Some are far above or far below all attention scores. */
static inline float *some_sinks(kvd_rng *r, int n_heads, double scale)
{
    float *const sink = need((size_t)n_heads * sizeof *sink);
    for (int h = 0; h < n_heads; h++)
        sink[h] = h % 5 == 3 ? 90.0F : h % 5 == 4 ? -90.0F : (float)(scale * kvd_rng_normal(r));
    return sink;
}

/* Fills RoPE tables [positions][dims / 2], with base 10000. */
static inline void rope_tables(size_t positions, size_t dims, float *cosine, float *sine)
{
    const size_t half = dims / 2;
    for (size_t i = 0; i < positions * half; i++) {
        const double angle =
            (double)(i / half) * pow(10000, -2.0 * (double)(i % half) / (double)dims);
        cosine[i] = (float)cos(angle);
        sine[i] = (float)sin(angle);
    }
}

static inline void *on_device_bf16(const float *x, size_t n)
{
    uint16_t *const narrow = need(n * sizeof *narrow);
    kvd_from_f32(KVD_BF16, x, narrow, n);
    void *const p = on_device(narrow, n * sizeof *narrow);
    host_free(narrow);
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
