/* Compares prediction scores (loss, KL) on GPU and CPU, and measures the GPU's memory bandwidth. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rng.h"
#include "evaluate/cuda/quality.h"

#include "gpu_case.h"
#include "worst.h"

enum { SEQUENCES = 4 };

static int failed;

static void verdict(int good, const char *name, const char *detail)
{
    printf(good ? "ok quality_%s\n" : "not ok quality_%s: %s\n", name, detail);
    failed |= !good;
}

/* logits [n][vocab] of the compressed and the uncompressed model, with each row's next token and
 * sequence */
typedef struct {
    size_t n, vocab;
    float *logits, *reference; /* [n][vocab] */
    uint32_t *target;
    int *sequence;
} rows;

static rows rows_new(size_t n, size_t vocab)
{
    rows x = {.n = n, .vocab = vocab};
    x.logits = need(n * vocab * sizeof *x.logits);
    x.reference = need(n * vocab * sizeof *x.reference);
    x.target = need(n * sizeof *x.target);
    x.sequence = need(n * sizeof *x.sequence);
    return x;
}

static void rows_free(rows *x)
{
    free(x->logits);
    free(x->reference);
    free(x->target);
    free(x->sequence);
}

/* Makes random logits, and reference logits that are the logits + spread * noise. */
static rows random_rows(size_t n, size_t vocab, double spread, uint64_t seed)
{
    rows x = rows_new(n, vocab);
    kvd_rng r;
    kvd_rng_seed(&r, seed, 0);
    for (size_t i = 0; i < n * vocab; i++) {
        x.logits[i] = (float)(3 * kvd_rng_normal(&r));
        x.reference[i] = (float)((double)x.logits[i] + spread * kvd_rng_normal(&r));
    }
    for (size_t i = 0; i < n; i++) {
        x.target[i] = (uint32_t)kvd_rng_below(&r, vocab);
        x.sequence[i] = i % 7 == 6 ? -1 : (int)(i * SEQUENCES / n);
    }
    return x;
}

static int on_cpu(const rows *x, int with_reference, kvd_quality *q, kvd_prediction_change *each,
                  kvd_err *err)
{
    memset(q, 0, SEQUENCES * sizeof *q);
    for (size_t i = 0; i < x->n; i++) {
        kvd_quality one = {0};
        const bool counts = x->sequence[i] >= 0;
        if (kvd_quality_add(counts ? &q[x->sequence[i]] : &one, x->logits + i * x->vocab,
                            with_reference ? x->reference + i * x->vocab : NULL, x->target + i, 1,
                            x->vocab, counts && each ? each + i : NULL, err))
            return -1;
    }
    return 0;
}

static int on_gpu(const rows *x, int with_reference, kvd_quality *q, kvd_prediction_change *each,
                  kvd_err *err)
{
    const size_t bytes = x->n * x->vocab * sizeof(float);
    float *const logits = on_device(x->logits, bytes), *const reference =
                                                           on_device(x->reference, bytes);
    kvd_gpu_quality *const g = kvd_gpu_quality_new(x->n, err);
    memset(q, 0, SEQUENCES * sizeof *q);
    const int status =
        g ? kvd_gpu_quality_add(g, logits, with_reference ? reference : NULL, x->target,
                                x->sequence, x->n, x->vocab, q, each, NULL, err)
          : -1;
    kvd_gpu_quality_free(g);
    cudaFree(logits);
    cudaFree(reference);
    return status;
}

static double off(double got, double want)
{
    const double d = fabs(got - want);
    return d > 0 ? d / fabs(want) : d;
}

static void compare(const char *name, const rows *x, double limit)
{
    kvd_quality want[SEQUENCES], got[SEQUENCES];
    kvd_prediction_change *const each[2] = {need(x->n * sizeof **each), need(x->n * sizeof **each)};
    kvd_err err = {""};
    char detail[600] = "";
    double nll = 0, kl = 0, row = 0;
    int counts = 1;
    for (int with = 0; with < 2; with++) {
        memset(each[0], 0, x->n * sizeof **each);
        memset(each[1], 0, x->n * sizeof **each);
        if (on_cpu(x, with, want, each[0], &err) || on_gpu(x, with, got, each[1], &err)) {
            verdict(0, name, err.msg);
            return;
        }
        for (size_t i = 0; i < x->n; i++) {
            const double a = (double)each[0][i].kl, b = (double)each[1][i].kl;
            row = worse(row, fabs(a - b) / (1 + fabs(a)));
            row = worse(row, fabs((double)each[0][i].p_change - (double)each[1][i].p_change));
        }
        for (int s = 0; s < SEQUENCES; s++) {
            nll = worse(nll, off(got[s].nll, want[s].nll));
            kl = worse(kl, off(got[s].kl, want[s].kl));
            counts &= got[s].n == want[s].n && got[s].top1 == want[s].top1 &&
                      got[s].agree == want[s].agree;
        }
    }
    free(each[0]);
    free(each[1]);
    snprintf(detail, sizeof detail,
             "nll off by %.2g, KL by %.2g, limit %.0e, single rows by %.2g, limit 1e-6, counts %s",
             nll, kl, limit, row, counts ? "equal" : "differ");
    verdict(nll <= limit && kl <= limit && row <= 1e-6 && counts, name, detail);
}

static void sizes(void)
{
    static const struct {
        const char *name;
        size_t n, vocab;
        double spread;
    } cases[] = {
        {"vocab_1", 9, 1, 0.5},           {"vocab_3", 40, 3, 0.5},
        {"vocab_255", 40, 255, 0.5},      {"vocab_257", 40, 257, 0.5},
        {"vocab_2048", 70, 2048, 0.5},    {"vocab_5000", 300, 5000, 0.5},
        {"vocab_50257", 30, 50257, 0.5},  {"vocab_128256", 9, 128256, 2},
        {"vocab_262144", 5, 262144, 0.5}, {"near", 70, 32000, 1e-3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rows x = random_rows(cases[i].n, cases[i].vocab, cases[i].spread, 3 + i);
        compare(cases[i].name, &x, cases[i].spread < 0.1 ? 1e-7 : 1e-10);
        rows_free(&x);
    }
}

static void ties_and_extremes(void)
{
    rows x = random_rows(60, 3000, 1, 50);
    for (size_t i = 0; i < x.n; i++) {
        float *const u = x.logits + i * x.vocab, *const v = x.reference + i * x.vocab;
        for (size_t j = 0; j < x.vocab; j++) {
            u[j] = floorf(u[j]);
            v[j] = floorf(v[j]);
        }
        for (size_t j = 0, best = 0; j < x.vocab; j++)
            if (u[j] > u[best] || (u[j] == u[best] && i % 3 == 0 && j % 2)) {
                best = j;
                x.target[i] = (uint32_t)j;
            }
    }
    compare("ties", &x, 1e-10);
    for (size_t i = 0; i < x.n * x.vocab; i++) {
        x.logits[i] *= i % 3 ? 1e4f : 1;
        x.reference[i] = i % 5 ? -x.logits[i] : -3e38f;
    }
    compare("extremes", &x, 1e-10);
    for (size_t i = 0; i < x.n * x.vocab; i++)
        x.reference[i] = x.logits[i] = 7;
    compare("all_equal", &x, 1e-10);
    rows_free(&x);
}

static void against_itself(void)
{
    rows x = random_rows(200, 4999, 0, 60);
    kvd_quality got[SEQUENCES], again[SEQUENCES];
    kvd_err err = {""};
    int good = !on_gpu(&x, 1, got, NULL, &err) && !on_gpu(&x, 1, again, NULL, &err) &&
               !memcmp(got, again, sizeof got);
    for (int s = 0; s < SEQUENCES; s++)
        good &= got[s].kl == 0 && got[s].agree == got[s].n;
    verdict(good, "against_itself", err.msg);
    rows_free(&x);
}

static void refused(const char *name, rows *x)
{
    kvd_quality q[SEQUENCES] = {{0}};
    kvd_err want = {"nothing"}, got = {"nothing"};
    char detail[1200];
    const int cpu =
        kvd_quality_add(q, x->logits, x->reference, x->target, x->n, x->vocab, NULL, &want);
    const int gpu = on_gpu(x, 1, q, NULL, &got);
    snprintf(detail, sizeof detail, "'%s', not '%s'", got.msg, want.msg);
    verdict(cpu == -1 && gpu == -1 && !strcmp(want.msg, got.msg), name, detail);
}

static void refusals(void)
{
    rows x = random_rows(30, 2500, 1, 70);
    x.reference[20 * 2500 + 17] = NAN;
    refused("nan_in_reference", &x);
    x.logits[20 * 2500 + 2499] = -INFINITY;
    refused("minus_inf_beside_it", &x);
    /* A NaN in the logits is an error even for a token that belongs to no sequence. */
    x.logits[13 * 2500 + 2300] = NAN;
    x.logits[13 * 2500 + 2301] = INFINITY;
    x.logits[13 * 2500 + 9] = INFINITY;
    refused("first_of_several", &x);
    x.target[3] = 2500;
    refused("target", &x);
    rows_free(&x);
}

static void rate(size_t n, size_t vocab)
{
    const size_t elements = n * vocab;
    kvd_err err = {""};
    rows x = random_rows(1, vocab, 1, 80);
    float *logits = on_device(NULL, elements * sizeof *logits),
          *reference = on_device(NULL, elements * 4);
    uint32_t *target = need(n * sizeof *target);
    int *sequence = need(n * sizeof *sequence);
    kvd_quality q = {0};
    kvd_gpu_quality *const g = kvd_gpu_quality_new(n, &err);
    for (size_t i = 0; i < n; i++) {
        check(cudaMemcpy(logits + i * vocab, x.logits, vocab * 4, cudaMemcpyHostToDevice),
              "cudaMemcpy");
        check(cudaMemcpy(reference + i * vocab, x.reference, vocab * 4, cudaMemcpyHostToDevice),
              "cudaMemcpy");
    }
    for (int with = 0; with < 2; with++) {
        cudaEvent_t begin, end;
        float ms, best = INFINITY;
        check(cudaEventCreate(&begin), "event");
        check(cudaEventCreate(&end), "event");
        for (int i = 0; i < 6; i++) {
            check(cudaEventRecord(begin, NULL), "event");
            if (!g || kvd_gpu_quality_add(g, logits, with ? reference : NULL, target, sequence, n,
                                          vocab, &q, NULL, NULL, &err)) {
                verdict(0, "rate", err.msg);
                return;
            }
            check(cudaEventRecord(end, NULL), "event");
            check(cudaEventSynchronize(end), "event");
            check(cudaEventElapsedTime(&ms, begin, end), "event");
            best = ms < best ? ms : best;
        }
        printf(
            "ok quality_rate: %zu x %zu%s: %.3f ms, %.0f GB/s with copies and sums on the host\n",
            n, vocab, with ? " with reference" : "", (double)best,
            (double)elements * 4 * (with ? 2 : 1) / (double)best * 1e-6);
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
    }
    kvd_gpu_quality_free(g);
    cudaFree(logits);
    cudaFree(reference);
    free(target);
    free(sequence);
    rows_free(&x);
}

/* usage: gpu_quality [small]
 * small  without measuring the memory bandwidth, for sanitizers */
int main(int argc, char **argv)
{
    if (!gpu_devices("quality", 1))
        return 0;
    sizes();
    ties_and_extremes();
    against_itself();
    refusals();
    if (argc < 2 || strcmp(argv[1], "small")) {
        rate(2048, 128256);
        rate(4096, 32000);
        rate(1024, 2048);
    }
    return failed;
}
