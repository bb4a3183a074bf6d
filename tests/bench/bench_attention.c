/* usage: bench_attention [SECONDS [ISA]]
 * Compares CPU attention with the speed of OpenBLAS's matrix product (prefill) and of memory reads
 * (decode). Column "to width": time per dimension of K and V, relative to the first row with equal
 * sequence lengths and number of heads. */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/blas.h"
#include "common/rng.h"
#include "common/stats.h"
#include "common/threads.h"
#include "kernels/attention_ref.h"
#include "kernels/cpu/attention_cpu.h"

enum {
    ROUNDS = 500,
    GEMM = 2048,
    READ_MB = 256,
    HEADS = 8,
    KV_HEADS = 2,
    D = 128,
    MAX_CASES = 64,
    CHECKED = 24
};

typedef struct {
    const char *what;
    kvd_cpu_isa isa;
    int group;
    int32_t batch, q_len, kv_len;
    int d_qk[KV_HEADS], d_v[KV_HEADS];
    double times[ROUNDS];
    double error; /* relative error of the CHECKED output rows */
} bench_case;

typedef struct {
    bench_case cases[MAX_CASES];
    int n_cases, rounds;
    double gemm[ROUNDS], read[ROUNDS];
    float *a, *b, *c;
    /* random numbers for Q, K and V, more than the processor's caches hold */
    float *pool, *out;
    size_t pool_floats, out_floats;
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(kvd_thread_count() == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double quantile(const double *x, int n, double q)
{
    double sorted[ROUNDS];
    memcpy(sorted, x, (size_t)n * sizeof *x);
    kvd_sort(sorted, (size_t)n);
    return sorted[(int)(q * (n - 1) + 0.5)];
}

static void add(bench *b, const char *what, kvd_cpu_isa isa, int group, int32_t batch,
                int32_t q_len, int32_t kv_len, int d_qk0, int d_qk1, int d_v0, int d_v1)
{
    b->cases[b->n_cases++] = (bench_case){.what = what,
                                          .isa = isa,
                                          .group = group,
                                          .batch = batch,
                                          .q_len = q_len,
                                          .kv_len = kv_len,
                                          .d_qk = {d_qk0, d_qk1},
                                          .d_v = {d_v0, d_v1}};
}

static void add_cases(bench *b, kvd_cpu_isa isa)
{
    add(b, "prefill", isa, 4, 1, 4096, 4096, 128, 128, 128, 128);
    add(b, "prefill", isa, 4, 1, 4096, 4096, 96, 96, 96, 96);
    add(b, "prefill", isa, 4, 1, 4096, 4096, 64, 64, 64, 64);
    add(b, "prefill", isa, 4, 1, 4096, 4096, 48, 48, 48, 48);
    add(b, "prefill", isa, 4, 1, 4096, 4096, 32, 32, 32, 32);
    add(b, "prefill", isa, 4, 1, 4096, 4096, 16, 16, 16, 16);
    add(b, "prefill", isa, 4, 1, 4096, 4096, 16, 112, 80, 48);
    add(b, "prefill", isa, 4, 1, 4096, 4096, 32, 96, 128, 64);
    add(b, "prefill", isa, 4, 8, 512, 512, 128, 128, 128, 128);
    add(b, "prefill", isa, 4, 8, 512, 512, 64, 64, 64, 64);
    add(b, "prefill", isa, 4, 64, 64, 64, 128, 128, 128, 128);
    add(b, "prefill", isa, 4, 64, 64, 64, 64, 64, 64, 64);
    add(b, "decode", isa, 4, 8, 1, 8192, 128, 128, 128, 128);
    add(b, "decode", isa, 4, 8, 1, 8192, 64, 64, 64, 64);
    add(b, "decode", isa, 4, 8, 1, 8192, 32, 96, 80, 48);
    add(b, "decode", isa, 4, 8, 1, 8192, 16, 16, 16, 16);
    add(b, "decode", isa, 1, 8, 1, 8192, 128, 128, 128, 128);
    add(b, "decode", isa, 4, 1, 1, 65536, 64, 64, 64, 64);
}

static int widths(const bench_case *c)
{
    return c->d_qk[0] + c->d_qk[1] + c->d_v[0] + c->d_v[1];
}

static double flops(const bench_case *c)
{
    const double n = c->q_len, scores = n * (c->kv_len - n) + n * (n + 1) / 2;
    return 2. * c->batch * c->group * widths(c) * scores;
}

static double bytes(const bench_case *c)
{
    return 4. * c->batch * widths(c) * c->kv_len;
}

static int check_case(const kvd_attn_heads *heads, const kvd_attn_batch *batch,
                      const kvd_attn_plain *plain, const float *q, const float *k, const float *v,
                      const float *out, double *error, kvd_err *err)
{
    double right[D], sum = 0;
    for (int i = 0; i < CHECKED; i++) {
        const int at = i % batch->batch, h = i * 7 % heads->n_heads,
                  d = heads->d_v[h / plain->group];
        const size_t n = (size_t)batch->q_len[at],
                     t = i + 1 == CHECKED ? n - 1 : (size_t)i * 7919 % n;
        if (kvd_attention_ref_row(heads, batch, at, h, t, q, k, v, right, err))
            return -1;
        const float *row = out + plain->o_at[h] + ((size_t)at * n + t) * (size_t)d;
        double wrong = 0, all = 0;
        for (int c = 0; c < d; c++) {
            wrong += ((double)row[c] - right[c]) * ((double)row[c] - right[c]);
            all += right[c] * right[c];
        }
        sum += wrong / all;
    }
    *error = sqrt(sum / CHECKED);
    return 0;
}

static int run_case(bench *b, bench_case *c, int round, kvd_err *err)
{
    int32_t q_len[64], kv_len[64];
    kvd_attn_heads heads = {.n_heads = KV_HEADS * c->group, .n_kv_heads = KV_HEADS, .d_head = D};
    const kvd_attn_batch batch = {c->batch, q_len, kv_len};
    kvd_attn_plain plain;
    for (int i = 0; i < c->batch; i++) {
        q_len[i] = c->q_len;
        kv_len[i] = c->kv_len;
    }
    memcpy(heads.d_qk, c->d_qk, sizeof c->d_qk);
    memcpy(heads.d_v, c->d_v, sizeof c->d_v);
    if (kvd_attn_plain_make(&heads, &batch, &plain, err))
        return -1;
    const size_t all = plain.q_elements + plain.k_elements + plain.v_elements;
    if (all > b->pool_floats || plain.o_elements > b->out_floats)
        return kvd_fail(err, "a case needs %zu floats in and %zu out", all, plain.o_elements);
    /* Each round reads another part of memory, which no cache holds. */
    const size_t slots = b->pool_floats / all, slot = round < 0 ? slots - 1 : (size_t)round % slots;
    const float *q = b->pool + slot * all, *k = q + plain.q_elements, *v = k + plain.k_elements;
    const double start = now();
    if (kvd_attention_cpu(&heads, &batch, c->isa, q, k, v, b->out, err))
        return -1;
    const double seconds = now() - start;
    if (round < 0)
        return check_case(&heads, &batch, &plain, q, k, v, b->out, &c->error, err);
    c->times[round] = seconds;
    return 0;
}

static double gemm(bench *b)
{
    const double start = now();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, GEMM, GEMM, GEMM, 1, b->a, GEMM, b->b,
                GEMM, 0, b->c, GEMM);
    return now() - start;
}

static double read_memory(bench *b, int round)
{
    const size_t n = (size_t)READ_MB << 18, parts = b->pool_floats / n;
    const float *from = b->pool + (size_t)round % parts * n;
    const double start = now();
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (size_t i = 0; i < n; i += 1024) {
        uint64_t s[8] = {0}, x[8];
        for (size_t j = 0; j < 1024; j += 16) {
            __builtin_prefetch((const void *)((uintptr_t)(from + i + j) + 4096));
            memcpy(x, from + i + j, sizeof x);
            for (size_t l = 0; l < 8; l++)
                s[l] += x[l];
        }
        for (size_t l = 0; l < 8; l++)
            sum += s[l];
    }
    const double t = now() - start;
    b->c[0] += (float)(sum & 1);
    return t;
}

static void print(const bench *b)
{
    const double gemm_rate = 2. * GEMM * GEMM * GEMM / quantile(b->gemm, b->rounds, 0.5) / 1e9;
    const double read_rate = (double)READ_MB * 1.048576e-3 / quantile(b->read, b->rounds, 0.5);
    printf(
        "%d rounds, %zu threads; sgemm %d^3 (%s): %.1f GFLOP/s (%.1f to %.1f); reading memory: %.1f GB/s "
        "(%.1f to %.1f)\n",
        b->rounds, kvd_thread_count(), GEMM, kvd_blas_core(), gemm_rate,
        2. * GEMM * GEMM * GEMM / quantile(b->gemm, b->rounds, 0.75) / 1e9,
        2. * GEMM * GEMM * GEMM / quantile(b->gemm, b->rounds, 0.25) / 1e9, read_rate,
        (double)READ_MB * 1.048576e-3 / quantile(b->read, b->rounds, 0.75),
        (double)READ_MB * 1.048576e-3 / quantile(b->read, b->rounds, 0.25));
    printf("%-8s %-8s %5s %12s %17s %9s %17s %8s %7s %6s %7s %8s  %s\n", "isa", "phase", "heads",
           "batch x len", "d_qk / d_v", "ms", "(25 to 75 %)", "GFLOP/s", "of gemm", "GB/s",
           "of read", "error", "to width");
    const bench_case *base = NULL;
    for (int i = 0; i < b->n_cases; i++) {
        const bench_case *c = &b->cases[i];
        char shape[32], wide[48], spread[32];
        /* Compares times of the same round, because the machine's load varies. */
        double of_gemm[ROUNDS] = {0}, of_read[ROUNDS] = {0}, of_base[ROUNDS] = {0};
        if (!base || base->isa != c->isa || base->kv_len != c->kv_len || base->group != c->group)
            base = c;
        for (int r = 0; r < b->rounds; r++) {
            of_gemm[r] = flops(c) / c->times[r] / (2. * GEMM * GEMM * GEMM / b->gemm[r]);
            of_read[r] = bytes(c) / c->times[r] / ((double)READ_MB * 1048576 / b->read[r]);
            of_base[r] = c->times[r] / base->times[r] * widths(base) / widths(c);
        }
        const double t = quantile(c->times, b->rounds, 0.5);
        snprintf(shape, sizeof shape, "%d x %d", c->batch, c->kv_len);
        snprintf(wide, sizeof wide, "%d,%d / %d,%d", c->d_qk[0], c->d_qk[1], c->d_v[0], c->d_v[1]);
        snprintf(spread, sizeof spread, "%.2f to %.2f", 1e3 * quantile(c->times, b->rounds, 0.25),
                 1e3 * quantile(c->times, b->rounds, 0.75));
        printf("%-8s %-8s %2d/%-2d %12s %17s %9.2f %17s %8.1f ", kvd_cpu_isa_name(c->isa), c->what,
               KV_HEADS * c->group, KV_HEADS, shape, wide, 1e3 * t, spread, flops(c) / t / 1e9);
        if (c->q_len > 1)
            printf("%7.2f %6s %7s ", quantile(of_gemm, b->rounds, 0.5), "", "");
        else
            printf("%7s %6.1f %7.2f ", "", bytes(c) / t / 1e9, quantile(of_read, b->rounds, 0.5));
        printf("%8.1e  %.3f (%.3f to %.3f)\n", c->error, quantile(of_base, b->rounds, 0.5),
               quantile(of_base, b->rounds, 0.25), quantile(of_base, b->rounds, 0.75));
    }
}

static int measure(bench *b, double seconds, kvd_err *err)
{
    const double start = now();
    for (int r = -1; r < ROUNDS && (r < 3 || now() - start < seconds); r++) {
        const int at = r < 0 ? 0 : r;
        b->gemm[at] = gemm(b);
        b->read[at] = read_memory(b, at);
        for (int i = 0; i < b->n_cases; i++)
            if (run_case(b, &b->cases[i], r, err))
                return -1;
        b->rounds = r + 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    kvd_blas_choose_core(argv);
    static bench b;
    kvd_err err = {""};
    kvd_rng rng;
    const double seconds = argc > 1 ? atof(argv[1]) : 30;
    const size_t square = (size_t)GEMM * GEMM;
    b.pool_floats = (size_t)4 * READ_MB << 18;
    b.a = malloc(square * sizeof *b.a);
    b.b = malloc(square * sizeof *b.b);
    b.c = calloc(square, sizeof *b.c);
    b.pool = malloc(b.pool_floats * sizeof *b.pool);
    b.out_floats = (size_t)8 << 20;
    b.out = malloc(b.out_floats * sizeof *b.out);
    int status = 1;
    if (!b.a || !b.b || !b.c || !b.pool || !b.out) {
        fprintf(stderr, "bench_attention: out of memory\n");
        goto done;
    }
    kvd_rng_seed(&rng, 1, 0);
    for (size_t i = 0; i < square; i++)
        b.a[i] = b.b[i] = (float)kvd_rng_uniform(&rng) - 0.5f;
    for (size_t i = 0; i < b.pool_floats; i++)
        b.pool[i] = (float)(kvd_rng_u64(&rng) >> 40) * 0x1p-23f - 1;
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++)
        if (argc > 2 ? !strcmp(argv[2], kvd_cpu_isa_name((kvd_cpu_isa)isa))
                     : isa == (int)kvd_cpu_isa_best())
            add_cases(&b, (kvd_cpu_isa)isa);
    if (measure(&b, seconds, &err)) {
        fprintf(stderr, "bench_attention: %s\n", err.msg);
        goto done;
    }
    print(&b);
    status = 0;
done:
    free(b.a);
    free(b.b);
    free(b.c);
    free(b.pool);
    free(b.out);
    return status;
}
