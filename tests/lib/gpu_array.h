/* Arrays on host and GPU with guard elements before and after them, and a function that prints one
 * test result per kernel. */
#ifndef GPU_ARRAY_H
#define GPU_ARRAY_H

#include <math.h>
#include <stdbool.h>

#include "model/pass/cuda/blocks.h"

#include "gpu_case.h"

/* GUARD: elements before and after an array. POISON: byte that makes a NaN in all types. */
enum { GUARD = 64, POISON = 0xff };

static int failed;
static kvd_rng rng;

/* array in host and device memory. `shift`: number of elements between an aligned device address
 * and the start of the array. */
typedef struct {
    kvd_dtype type;
    size_t n, shift;
    float *host; /* [n] values; fetch() copies the device's values here */
    char *raw;   /* host copy of the device's memory with guards */
    char *base;
    void *dev;
} array;

static inline array array_new(kvd_dtype type, size_t n, size_t shift)
{
    const size_t e = kvd_dtype_bytes(type), bytes = (shift + n + GUARD) * e;
    array a = {type, n, shift, need((n + 1) * sizeof(float)), need(bytes), NULL, NULL};
    a.base = on_device(NULL, bytes);
    a.dev = a.base + shift * e;
    fill_bytes(a.base, POISON, bytes);
    return a;
}

static inline void array_free(array *a)
{
    free(a->host);
    free(a->raw);
    check(cudaFree(a->base), "free");
}

static inline void free_arrays(array *const *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        array_free(a[i]);
}

#define arrays_free(...)                                                                           \
    free_arrays((array *const[]){__VA_ARGS__},                                                     \
                sizeof((array *const[]){__VA_ARGS__}) / sizeof(array *))

static inline void send(array *a)
{
    const size_t e = kvd_dtype_bytes(a->type);
    kvd_from_f32(a->type, a->host, a->raw, a->n);
    kvd_to_f32(a->type, a->raw, a->host, a->n);
    to_device(a->dev, a->raw, a->n * e);
}

/* Returns an array of random normal values, one in fifty of them 8 times as large. */
static inline array values(kvd_dtype type, size_t n, size_t shift, double scale)
{
    array a = array_new(type, n, shift);
    for (size_t i = 0; i < n; i++)
        a.host[i] = (float)(scale * kvd_rng_normal(&rng) * (kvd_rng_below(&rng, 50) ? 1 : 8));
    send(&a);
    return a;
}

/* Copies the array from the device to the host. Returns true if the guard elements around it are
 * unchanged. */
static inline bool fetch(array *a)
{
    const size_t e = kvd_dtype_bytes(a->type), all = (a->shift + a->n + GUARD) * e;
    check(cudaDeviceSynchronize(), "wait");
    to_host(a->raw, a->base, all);
    kvd_to_f32(a->type, a->raw + a->shift * e, a->host, a->n);
    for (size_t i = 0; i < all; i++)
        if ((i < a->shift * e || i >= (a->shift + a->n) * e) && (unsigned char)a->raw[i] != POISON)
            return false;
    return true;
}

static inline kvd_gpu_bad *bad_new(void)
{
    const kvd_gpu_bad none = ~0ull;
    return on_device(&none, sizeof none);
}

static inline kvd_gpu_bad bad_take(kvd_gpu_bad *bad)
{
    kvd_gpu_bad b;
    to_host(&b, bad, sizeof b);
    check(cudaFree(bad), "free");
    return b;
}

/* Returns the largest relative error of *got, beyond rounding to its data type. Errors are divided
 * by scale[i] or, if scale is NULL, by |want[i]|. */
static inline double distance(const array *got, const float *want, const float *scale)
{
    double most = 0;
    for (size_t i = 0; i < got->n; i++) {
        const double w = (double)want[i], g = (double)got->host[i];
        if (isnan(w) && isnan(g))
            continue;
        if (!isfinite(w) && w == g)
            continue;
        double e = fabs(g - w);
        if (got->type != KVD_F32)
            /* Subtracts the error that rounding to bf16 may cause, 2^-8 of the value. */
            e -= fabs(w) * ldexp(1, -8);
        const double s = fabs(scale ? (double)scale[i] : w);
        e = e <= 0 ? 0 : e / (s > 0 ? s : 1e-30);
        most = e <= most ? most : e; /* NaN counts as infinite */
        if (isnan(e))
            return e;
    }
    return most;
}

/* Records one comparison, named "kernel, case". The first call for another kernel prints a summary
 * of the previous kernel's comparisons. */
static inline void verdict(const char *name, double error, double bound, bool intact)
{
    static char block[32];
    static double worst;
    static int cases, bad;
    const size_t len = strcspn(name, ",");
    if (cases && (strlen(block) != len || strncmp(block, name, len) != 0)) {
        printf("%s %s: %d comparisons, largest error beyond rounding %.2g\n", bad ? "not ok" : "ok",
               block, cases, worst);
        cases = bad = 0;
        worst = 0;
    }
    if (!*name)
        return;
    (void)snprintf(block, sizeof block, "%.*s", (int)len, name);
    cases++;
    worst = error > worst ? error : worst;
    if (!intact || !(error <= bound)) {
        printf("not ok %s: %.2g, allowed %.2g%s\n", name, error, bound,
               intact ? "" : ", wrote where it should not");
        failed = bad = 1;
    }
}

static inline void expect_bad(const char *name, kvd_gpu_bad got, kvd_gpu_bad want)
{
    const kvd_gpu_bad row = (1ull << 40) - 1;
    if (got != want) {
        printf("not ok %s: reports stage %llu row %llu, expected %llu and %llu\n", name, got >> 40,
               got & row, want >> 40, want & row);
        failed = 1;
    }
}

static const kvd_dtype pass_types[] = {KVD_F32, KVD_BF16};

#endif
