/* Computes lower bounds on the time of attention, and measures the device's peak rates. */
#include "kernels/timing/impl.h"

#include <cblas.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/device.h"
#include "common/threads.h"
#include "kernels/cpu/attention_cpu.h"
#include "kernels/timing/values.h"

static double over(double amount, double rate)
{
    return rate > 0 ? amount / rate * 1e6 : NAN;
}

static double larger(double a, double b)
{
    return isnan(b) || a > b ? a : b;
}

void kvd_floors_count(const kvd_problem *p, const kvd_attn_heads *heads, kvd_floors *f)
{
    const int group = heads->n_heads / heads->n_kv_heads;
    double seen = 0, queries = 0, keys = 0, kv_width = 0, q_width = 0;
    for (int b = 0; b < p->batch; b++) {
        const double q = p->q_len[b], kv = p->kv_len[b];
        const double window = heads->window ? heads->window : kv;
        /* The window is not yet full for the first `rising` queries, which attend to all earlier
         * keys. Later queries attend to `window` keys. */
        const double before = kv - q, room = larger(window - before, 0),
                     rising = room < q ? room : q;
        seen += rising * before + rising * (rising + 1) / 2 + (q - rising) * window;
        queries += q;
        keys += window + q - 1 < kv ? window + q - 1 : kv;
    }
    for (int g = 0; g < heads->n_kv_heads; g++) {
        kv_width += heads->d_qk[g] + heads->d_v[g];
        q_width += group * (heads->d_qk[g] + heads->d_v[g]);
    }
    f->exps = seen * heads->n_heads;
    f->flop = 2 * seen * q_width;
    f->bytes = (keys * kv_width + queries * q_width) * (double)kvd_dtype_bytes(p->dtype);
}

void kvd_floors_time(kvd_attn_phase phase, const kvd_rate_ceilings *ceilings, kvd_floors *f)
{
    const double rate = phase == KVD_DECODE && ceilings->read_bytes > 0 ? ceilings->read_bytes
                                                                        : ceilings->copy_bytes;
    f->bytes_us = over(f->bytes, rate);
    f->flop_us = over(f->flop, ceilings->flop);
    f->exps_us = over(f->exps, ceilings->exps);
    f->us = larger(larger(f->bytes_us, f->flop_us), f->exps_us);
}

enum { REPEATS = 3, GEMM_N = 1536, LINE = 4096 };
static const size_t floats = (size_t)32 << 20; /* number of floats in 128 MiB */

static void fill(float *x, size_t n)
{
    enum { PIECE = 1 << 18 };
    const uint64_t key = kvd_value_key(1, 0, 0, 0);
    for (size_t i = 0; i < PIECE; i++)
        x[i] = kvd_value(key, KVD_OPERAND_V, 0, (uint32_t)(i >> 7), (uint32_t)(i & 127));
#pragma omp parallel for schedule(static)
    for (size_t i = PIECE; i < n; i += PIECE)
        memcpy(x + i, x, PIECE * sizeof *x);
}

static double gemm_rate(const float *a, const float *b, float *c)
{
    double best = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        const double start = kvd_clock_s();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, GEMM_N, GEMM_N, GEMM_N, 1, a, GEMM_N,
                    b, GEMM_N, 0, c, GEMM_N);
        const double s = kvd_clock_s() - start;
        best = s < best ? s : best;
    }
    return 2.0 * GEMM_N * GEMM_N * GEMM_N / best;
}

static double copy_rate(const float *from, float *to)
{
    double best = INFINITY;
    for (int i = 0; i < REPEATS; i++) {
        const double start = kvd_clock_s();
#pragma omp parallel for schedule(static)
        for (size_t j = 0; j < floats; j += LINE)
            memcpy(to + j, from + j, LINE * sizeof *to);
        const double s = kvd_clock_s() - start;
        best = s < best ? s : best;
    }
    return 2.0 * (double)(floats * sizeof *from) / best;
}

/* Returns x[0] + ... + x[LINE - 1]. Uses 16 partial sums so that the compiler can vectorise. */
static double sum_line(const float *x)
{
    float s[16] = {0};
    for (size_t i = 0; i < LINE; i += 16)
        for (size_t j = 0; j < 16; j++)
            s[j] += x[i + j];
    double all = 0;
    for (size_t j = 0; j < 16; j++)
        all += (double)s[j];
    return all;
}

static double read_rate(const float *x, double *sum)
{
    double best = INFINITY, all = 0;
    for (int i = 0; i < REPEATS; i++) {
        const double start = kvd_clock_s();
#pragma omp parallel for schedule(static) reduction(+ : all)
        for (size_t j = 0; j < floats; j += LINE)
            all += sum_line(x + j);
        const double s = kvd_clock_s() - start;
        best = s < best ? s : best;
    }
    *sum = all;
    return (double)(floats * sizeof *x) / best;
}

/* To measure the rate of exponentials, EXPS numbers x are replaced by 2^x, EXP_ROUNDS times. 2^x is
 * a Taylor polynomial of degree 5. */
enum { EXPS = 64, EXP_ROUNDS = 200000 };

static inline __attribute__((always_inline)) void exps_of(float x[EXPS])
{
    for (int round = 0; round < EXP_ROUNDS; round++) {
#pragma omp simd
        for (int i = 0; i < EXPS; i++) {
            const float f = x[i];
            const float high = 0.05550411f + f * (0.00961813f + f * 0.00133336f);
            x[i] = 0.5f + f * (0.34657359f + f * (0.12011325f + f * (0.5f * high)));
        }
    }
}

static void exps_portable(float x[EXPS])
{
    exps_of(x);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void exps_avx2(float x[EXPS])
{
    exps_of(x);
}

__attribute__((target("avx512f,fma"))) static void exps_avx512(float x[EXPS])
{
    exps_of(x);
}
#endif

static double exp_rate(double *sum)
{
    void (*f)(float *) = exps_portable;
#if defined(__x86_64__)
    const kvd_cpu_isa isa = kvd_cpu_isa_best();
    f = isa == KVD_CPU_AVX512 ? exps_avx512 : isa == KVD_CPU_AVX2 ? exps_avx2 : exps_portable;
#endif
    double best = INFINITY, all = 0;
    for (int i = 0; i < REPEATS; i++) {
        const double start = kvd_clock_s();
#pragma omp parallel reduction(+ : all)
        {
            float x[EXPS];
            for (int j = 0; j < EXPS; j++)
                x[j] = (float)j / EXPS;
            f(x);
            all += (double)x[EXPS - 1];
        }
        const double s = kvd_clock_s() - start;
        best = s < best ? s : best;
    }
    *sum = all;
    return (double)EXPS * EXP_ROUNDS * (double)kvd_thread_count() / best;
}

int kvd_ceilings_cpu(kvd_rate_ceilings *c, kvd_err *err)
{
    double sum[2];
    float *const a = malloc(floats * sizeof *a), *const b = malloc(floats * sizeof *b);
    int status = a && b ? 0
                        : kvd_no_memory(err, "measuring this machine",
                                        2 * (unsigned long long)floats * sizeof *a);
    if (!status) {
        fill(a, floats);
        fill(b, floats);
        c->copy_bytes = copy_rate(a, b);
        c->read_bytes = read_rate(a, &sum[0]);
        c->flop = gemm_rate(a, b + floats / 2, b);
        c->exps = exp_rate(&sum[1]);
        /* Reading the sums keeps the compiler from removing the loops that compute them. */
        if (!isfinite(sum[0]) || !isfinite(sum[1]))
            status = kvd_fail(err, "measuring this machine gave sums of %g and %g", sum[0], sum[1]);
    }
    free(a);
    free(b);
    return status;
}

#ifdef KVD_CUDA
#include "kernels/cuda/ceilings.h"
#endif

int kvd_ceilings_gpu(kvd_rate_ceilings *c, kvd_err *err)
{
#ifdef KVD_CUDA
    kvd_ceiling copy, read, gemm, ex2;
    if (kvd_ceiling_copy(0, &copy, err) || kvd_ceiling_read(0, &read, err) ||
        kvd_ceiling_gemm(0, &gemm, err) || kvd_ceiling_ex2(&ex2, err))
        return -1;
    *c = (kvd_rate_ceilings){copy.rate, read.rate, gemm.rate, ex2.rate};
    return 0;
#else
    (void)c;
    return kvd_fail(err, "no CUDA: it " KVD_LEFT_OUT);
#endif
}
