/*
 * Tests of matrix products with 1 to 8 rows, as in decode steps (engine/cuda/few_rows and small),
 * compared with double precision.
 */
#include <math.h>
#include <string.h>

#include "common/half.h"
#include "common/rng.h"
#include "engine/cuda/few_rows.h"
#include "engine/cuda/small.h"
#include "gpu_case.h"

static int failures;

static void report(int ok, const char *name, const char *detail)
{
    printf("%s few_rows %s: %s\n", ok ? "ok" : "not ok", name, detail);
    failures += !ok;
}

typedef struct {
    kvd_few_kind kind;
    size_t n, in, out;
    int norm;
} scenario;

static void norm_row(const float *x, const float *gain, size_t in, double eps, double *to)
{
    double s = 0;
    for (size_t i = 0; i < in; i++)
        s += (double)x[i] * (double)x[i];
    for (size_t i = 0; i < in; i++)
        to[i] = (double)x[i] * (double)gain[i] / sqrt(s / (double)in + eps);
}

static double dot(const float *w, const double *x, size_t in)
{
    double s = 0;
    for (size_t i = 0; i < in; i++)
        s += (double)w[i] * x[i];
    return s;
}

static double distance(const scenario *c, const float *w, const double *x, const float *before,
                       const float *got)
{
    double error = 0, square = 0;
    for (size_t r = 0; r < c->n; r++)
        for (size_t o = 0; o < c->out; o++) {
            double y = dot(w + o * c->in, x + r * c->in, c->in);
            if (c->kind == KVD_FEW_SWIGLU)
                y = y / (1 + exp(-y)) * dot(w + (c->out + o) * c->in, x + r * c->in, c->in);
            if (c->kind == KVD_FEW_ADD)
                y += (double)before[r * c->out + o];
            error += (y - (double)got[r * c->out + o]) * (y - (double)got[r * c->out + o]);
            square += y * y;
        }
    return sqrt(error / square);
}

static void test(const scenario *c)
{
    static const char *const name[] = {"store", "add", "put", "swiglu", "logits"};
    /*
     * In these kinds bf16 rounds several times: the normalised rows, the gate and up products of
     * SwiGLU, and the result.
     */
    const int narrow = c->kind == KVD_FEW_STORE || c->kind == KVD_FEW_SWIGLU;
    const double bar = narrow || c->norm ? 6e-3 : 2e-6;
    const size_t rows = c->kind == KVD_FEW_SWIGLU ? 2 * c->out : c->out, n_y = c->n * c->out;
    kvd_rng r;
    kvd_rng_seed(&r, 7, c->in + c->out);
    float *w = bf16_numbers(&r, rows * c->in, 1 / sqrt((double)c->in)),
          *x = bf16_numbers(&r, c->n * c->in, 3);
    float *gain = bf16_numbers(&r, c->in, 1), *before = bf16_numbers(&r, n_y, 1),
          *got = need(n_y * sizeof *got);
    double *in = need(c->n * c->in * sizeof *in);
    const kvd_gpu_bad none = ~0ULL;
    kvd_gpu_bad *bad = on_device(&none, sizeof none), found;
    unsigned long long *began = on_device(NULL, sizeof *began), stamp;
    void *y = on_device(c->kind == KVD_FEW_ADD ? before : NULL, n_y * (narrow ? 2 : 4));
    kvd_few_rows p = {.kind = c->kind, .n = c->n, .in = c->in, .out = c->out, .y = y, .eps = 1e-5};
    p.stage = 5;
    p.bad = bad;
    p.began = began;
    void *const w_device = on_device_bf16(w, rows * c->in), *const x16 =
                                                                on_device_bf16(x, c->n * c->in);
    float *const x32 = on_device(x, c->n * c->in * sizeof *x), *const gain32 = on_device(
                                                                   gain, c->in * sizeof *gain);
    p.w = w_device;
    p.x = c->norm ? NULL : x16;
    p.residual = x32;
    p.gain = gain32;
    for (size_t i = 0; i < c->n; i++) {
        norm_row(x + i * c->in, gain, c->in, p.eps, in + i * c->in);
        for (size_t j = 0; j < c->in && !c->norm; j++)
            in[i * c->in + j] = (double)x[i * c->in + j];
    }
    check(kvd_few_rows_run(&p, NULL), "kvd_few_rows_run");
    check(cudaMemcpy(&found, bad, sizeof found, cudaMemcpyDeviceToHost), "bad");
    check(cudaMemcpy(&stamp, began, sizeof stamp, cudaMemcpyDeviceToHost), "began");
    if (narrow) {
        uint16_t *const bits = need(n_y * sizeof *bits);
        check(cudaMemcpy(bits, y, n_y * sizeof *bits, cudaMemcpyDeviceToHost), "y");
        kvd_to_f32(KVD_BF16, bits, got, n_y);
        free(bits);
    } else {
        check(cudaMemcpy(got, y, n_y * sizeof *got, cudaMemcpyDeviceToHost), "y");
    }
    const double e = distance(c, w, in, before, got);
    char text[160];
    (void)snprintf(text, sizeof text, "%zu x %zu -> %zu%s off by %.2g of %.0e", c->n, c->in, c->out,
                   c->norm ? ", normed," : "", e, bar);
    report(e <= bar && found == none && stamp != ~0ULL, name[c->kind], text);
    /* If a row of the input is not finite, the kernel must report the row. */
    if (c->norm) {
        const float infinite = INFINITY;
        check(
            cudaMemcpy(x32 + c->n * c->in - 1, &infinite, sizeof infinite, cudaMemcpyHostToDevice),
            "x");
        check(kvd_few_rows_run(&p, NULL), "kvd_few_rows_run");
        check(cudaMemcpy(&found, bad, sizeof found, cudaMemcpyDeviceToHost), "bad");
        report(found == kvd_gpu_bad_at(5, c->n - 1), name[c->kind], "a row that is not finite");
    }
    void *const all[] = {bad, began, y, w_device, x16, x32, gain32};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        check(cudaFree(all[i]), "cudaFree");
    free(w);
    free(x);
    free(gain);
    free(before);
    free(got);
    free(in);
}

static void test_largest(void)
{
    enum { ROWS = 3, WIDTH = 70001 };
    static float x[ROWS][WIDTH];
    static const uint32_t want[ROWS] = {0, 69999, 4097};
    unsigned long long key[ROWS];
    const kvd_gpu_bad none = ~0ULL;
    kvd_gpu_bad *const bad = on_device(&none, sizeof none), found;
    int ok = 1;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < WIDTH; i++)
            x[r][i] = r == 0 ? -2.0f : -3.0f - (float)(i % 977);
    x[1][69999] = 0.0f;
    x[2][4097] = x[2][4098] = x[2][70000] = -1e-3f;
    float *const device = on_device(x, sizeof x);
    unsigned long long *const keys = on_device(NULL, sizeof key);
    fill_bytes(keys, 0, sizeof key);
    check(kvd_largest(device, ROWS, WIDTH, keys, 3, bad, NULL), "kvd_largest");
    check(cudaMemcpy(key, keys, sizeof key, cudaMemcpyDeviceToHost), "key");
    for (int r = 0; r < ROWS; r++)
        ok = ok && kvd_largest_index(key[r]) == want[r];
    check(cudaMemcpy(&found, bad, sizeof found, cudaMemcpyDeviceToHost), "bad");
    report(ok && found == none, "largest", "the first of equals");
    const float infinite = -INFINITY;
    check(cudaMemcpy(device + WIDTH + 3, &infinite, sizeof infinite, cudaMemcpyHostToDevice), "x");
    check(kvd_largest(device, ROWS, WIDTH, keys, 3, bad, NULL), "kvd_largest");
    check(cudaMemcpy(&found, bad, sizeof found, cudaMemcpyDeviceToHost), "bad");
    report(found == kvd_gpu_bad_at(3, 1), "largest", "a row that is not finite");
    check(cudaFree(bad), "cudaFree");
    check(cudaFree(device), "cudaFree");
    check(cudaFree(keys), "cudaFree");
}

int main(void)
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("skip few_rows: no device\n");
        return 0;
    }
    static const size_t in[] = {8, 40, 64, 200, 576, 2048}, out[] = {1, 8, 40, 257, 3000};
    for (int kind = 0; kind < 5; kind++)
        for (size_t n = 1; n <= KVD_FEW_ROWS; n++) {
            const size_t i = (n + (size_t)kind) % 6, o = (n * 2 + (size_t)kind) % 5;
            const int sums = kind == KVD_FEW_ADD || kind == KVD_FEW_PUT;
            const scenario c = {(kvd_few_kind)kind, n, in[i], out[o], n % 2 == 1 && !sums};
            test(&c);
        }
    const scenario wide[] = {{KVD_FEW_ADD, 3, 14336, 512, 0},
                             {KVD_FEW_STORE, 8, 4096, 300, 1},
                             {KVD_FEW_ADD, 8, 14344, 120, 0},
                             {KVD_FEW_PUT, 8, 14344, 120, 0}};
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        test(&wide[i]);
    report(!kvd_few_rows_take(KVD_FEW_ADD, 9, 64) &&
               !kvd_few_rows_take(KVD_FEW_STORE, 8, 1 << 15) &&
               !kvd_few_rows_take(KVD_FEW_ADD, 1, 12),
           "take", "what does not go");
    test_largest();
    return failures ? 1 : 0;
}
