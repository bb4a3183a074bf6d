/* usage: gpu_cudnn [CASE | time [prefill | decode]] [-v]
 * Compares cuDNN attention with a reference in double precision.
 * CASE  number of the only test case to run
 * time  measures times instead: prompts (prefill) and decode steps of 8192 tokens and more
 * -v    prints more */
#include <math.h>

#include "common/stats.h"
#include "gpu_case.h"
#include "kernels/attention_ref.h"
#include "kernels/cuda/device.h"
#include "kernels/rivals/cudnn.h"
#include "worst.h"

#ifndef KVD_HAVE_CUDNN

int main(void)
{
    puts("skip cudnn: built without cuDNN's header");
    return 0;
}

#else

enum { D_HEAD = 128 };

static kvd_rng rng;

typedef struct {
    const char *name;
    kvd_cudnn_shape s;
    /* 1: [batch][token][head][dim], 0: [batch][head][token][dim] */
    int token_major;
    float sharp;
} test_case;

static size_t span(kvd_cudnn_stride st, int batch, int heads, int tokens, int d)
{
    return (size_t)((batch - 1) * st.batch + (heads - 1) * st.head + (tokens - 1) * st.token + d);
}

static kvd_cudnn_stride token_major(int heads, int tokens, int d)
{
    return (kvd_cudnn_stride){(int64_t)heads * tokens * d, d, (int64_t)heads * d};
}

static float *random_rounded(size_t n, int dtype, float gain, uint16_t **half)
{
    float *x = need(n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = gain * (float)kvd_rng_normal(&rng) * (i % 97 == 0 ? 8.0F : 1.0F);
    *half = round_to((kvd_dtype)dtype, x, n);
    return x;
}

/* Copies n tokens of request b from a strided array to [heads][n][d]. */
static float *gather(const float *x, kvd_cudnn_stride st, int b, int heads, int t, int n, int d)
{
    float *out = need((size_t)heads * (size_t)n * (size_t)d * sizeof *out), *to = out;
    for (int h = 0; h < heads; h++)
        for (int r = t; r < t + n; r++, to += d)
            memcpy(to, x + b * st.batch + h * st.head + r * st.token, (size_t)d * sizeof *to);
    return out;
}

/* Computes rows t .. t + n - 1 of the attention output `want` [n_heads][q_len][d_v] of request b.
 * The n queries belong to the last n of the request's kv_len tokens. */
static void reference(const kvd_cudnn_shape *s, const float *q, const float *k, const float *v,
                      int b, int t, int n, int kv_len, double *want)
{
    kvd_attn_heads heads = {.n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .d_head = D_HEAD};
    const int32_t one_q = n, one_kv = kv_len;
    const kvd_attn_batch batch = {.batch = 1, .q_len = &one_q, .kv_len = &one_kv};
    kvd_err err = {""};
    for (int g = 0; g < s->n_kv_heads; g++) {
        heads.d_qk[g] = s->d_qk;
        heads.d_v[g] = s->d_v;
    }
    float *pq = gather(q, s->q, b, s->n_heads, t, n, s->d_qk),
          *pk = gather(k, s->k, b, s->n_kv_heads, 0, kv_len, s->d_qk);
    float *pv = gather(v, s->v, b, s->n_kv_heads, 0, kv_len, s->d_v);
    const size_t row = (size_t)s->d_v, rows = (size_t)n;
    double *out = need((size_t)s->n_heads * rows * row * sizeof *out);
    or_end(kvd_attention_ref(&heads, &batch, pq, pk, pv, out, NULL, &err), "cudnn reference",
           err.msg);
    for (size_t h = 0; h < (size_t)s->n_heads; h++)
        memcpy(want + (h * (size_t)s->q_len + (size_t)t) * row, out + h * rows * row,
               rows * row * sizeof *out);
    host_free(pq, pk, pv, out);
}

static double error_of(const kvd_cudnn_shape *s, const double *want, const float *got,
                       const int32_t *q_len)
{
    double num = 0.0, den = 0.0;
    for (int b = 0; b < s->batch; b++)
        for (int h = 0; h < s->n_heads; h++)
            for (int t = 0; t < q_len[b]; t++)
                for (int i = 0; i < s->d_v; i++) {
                    const double w =
                        want[((size_t)(b * s->n_heads + h) * (size_t)s->q_len + (size_t)t) *
                                 (size_t)s->d_v +
                             (size_t)i];
                    const double d =
                        (double)got[b * s->o.batch + h * s->o.head + t * s->o.token + i] - w;
                    num += d * d;
                    den += w * w;
                }
    return sqrt(num / den);
}

static void test(test_case *tc, int verbose)
{
    kvd_cudnn_shape *s = &tc->s;
    kvd_err err = {""};
    kvd_cudnn_plan *plan;
    s->scale = 1.0F / sqrtf((float)D_HEAD);
    kvd_cudnn_packed(s);
    if (tc->token_major) {
        s->q = token_major(s->n_heads, s->q_len, s->d_qk);
        s->o = token_major(s->n_heads, s->q_len, s->d_v);
        s->k = token_major(s->n_kv_heads, s->kv_len, s->d_qk);
        s->v = token_major(s->n_kv_heads, s->kv_len, s->d_v);
    }
    if (kvd_cudnn_open(s, &plan, &err)) {
        test_result(0, tc->name, "%s", err.msg);
        return;
    }
    const size_t nq = span(s->q, s->batch, s->n_heads, s->q_len, s->d_qk),
                 nk = span(s->k, s->batch, s->n_kv_heads, s->kv_len, s->d_qk);
    const size_t nv = span(s->v, s->batch, s->n_kv_heads, s->kv_len, s->d_v),
                 no = span(s->o, s->batch, s->n_heads, s->q_len, s->d_v);
    uint16_t *hq, *hk, *hv, *ho = need(no * 2);
    float *q = random_rounded(nq, s->dtype, tc->sharp, &hq),
          *k = random_rounded(nk, s->dtype, 1.0F, &hk);
    float *v = random_rounded(nv, s->dtype, 1.0F, &hv), *o = need(no * sizeof *o);
    int32_t *q_len = need((size_t)s->batch * 4), *kv_len = need((size_t)s->batch * 4);
    double *want = need((size_t)s->batch * (size_t)s->n_heads * (size_t)s->q_len * (size_t)s->d_v *
                        sizeof *want);
    for (int b = 0; b < s->batch; b++) {
        q_len[b] = s->q_len;
        kv_len[b] = s->kv_len;
        if (s->ragged && b > 0) {
            kv_len[b] = 1 + (int)(kvd_rng_uniform(&rng) * (double)s->kv_len);
            q_len[b] = s->q_len == 1
                           ? 1
                           : 1 + (int)(kvd_rng_uniform(&rng) *
                                       (double)(s->q_len < kv_len[b] ? s->q_len : kv_len[b]));
        }
        double *to = want + (size_t)b * (size_t)s->n_heads * (size_t)s->q_len * (size_t)s->d_v;
        if (s->causal)
            reference(s, q, k, v, b, 0, q_len[b], kv_len[b], to);
        for (int t = 0; !s->causal && t < q_len[b]; t++)
            reference(s, q, k, v, b, t, 1, kv_len[b], to);
    }

    kvd_cudnn_io io = {.q = on_device(hq, nq * 2),
                       .k = on_device(hk, nk * 2),
                       .v = on_device(hv, nv * 2),
                       .o = on_device(NULL, no * 2),
                       .q_len = on_device(q_len, (size_t)s->batch * 4),
                       .kv_len = on_device(kv_len, (size_t)s->batch * 4)};
    const double tolerance = s->dtype == KVD_BF16 ? 4e-3 : 1e-3;
    int ran = 0, bad = 0;
    double worst = 0.0;
    for (int i = 0; i < kvd_cudnn_count(plan); i++) {
        double us;
        if (kvd_cudnn_choose(plan, i, &err)) {
            if (verbose)
                printf("#   refused: %s\n", err.msg);
            continue;
        }
        if (verbose)
            printf("#   %s, workspace %zu: ", kvd_cudnn_candidate(plan, i, &us),
                   kvd_cudnn_workspace(plan));
        fflush(stdout);
        io.workspace = on_device(NULL, kvd_cudnn_workspace(plan));
        fill_bytes(io.o, 0xff, no * 2);
        if (kvd_cudnn_run(plan, &io, NULL, &err)) {
            test_result(0, tc->name, "%s", err.msg);
            bad++;
        } else {
            to_host(ho, io.o, no * 2);
            kvd_to_f32((kvd_dtype)s->dtype, ho, o, no);
            const double e = error_of(s, want, o, q_len);
            if (!(e < tolerance)) {
                test_result(0, tc->name, "error %.2e, %s", e, kvd_cudnn_candidate(plan, i, &us));
                bad++;
            } else {
                ran++;
                worst = worse(worst, e);
            }
            if (verbose)
                printf("%.2e\n", e);
        }
        device_free(io.workspace);
    }
    test_result(!bad && ran, tc->name, "%d candidates, error %.1e", ran, worst);
    device_free(io.q, io.k, io.v, io.o, io.q_len, io.kv_len);
    kvd_cudnn_close(plan);
    host_free(hq, hk, hv, ho, q, k, v, o, q_len, kv_len, want);
}

#define SHAPE(type, b, h, g, dqk, dv, ql, kvl, mask, cut)                                          \
    {                                                                                              \
        .dtype = type, .batch = b, .n_heads = h, .n_kv_heads = g, .d_qk = dqk, .d_v = dv,          \
        .q_len = ql, .kv_len = kvl, .causal = mask, .ragged = cut, .scale = 1.0F                   \
    }

static void check_refusals(void)
{
    static const struct {
        const char *what, *words;
        kvd_cudnn_shape s;
    } c[] = {
        {"width", "widths 20 and 64", SHAPE(KVD_BF16, 1, 2, 1, 20, 64, 4, 4, 0, 0)},
        {"heads", "3 heads, 2 kv heads", SHAPE(KVD_BF16, 1, 3, 2, 64, 64, 4, 4, 0, 0)},
        {"lengths", "5 queries, 4 keys", SHAPE(KVD_BF16, 1, 2, 1, 64, 64, 5, 4, 1, 0)},
        {"dtype", "dtype 0", SHAPE(KVD_F32, 1, 2, 1, 64, 64, 4, 4, 0, 0)},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        kvd_cudnn_shape s = c[i].s;
        kvd_cudnn_plan *plan;
        kvd_err err = {""};
        kvd_cudnn_packed(&s);
        const int rc = kvd_cudnn_open(&s, &plan, &err);
        test_result(rc == -1 && !plan && strstr(err.msg, c[i].words), "a wrong",
                    "%s is refused: %s", c[i].what, err.msg);
        kvd_cudnn_close(plan);
    }
}

/* Returns n 16-bit numbers on the device: one block of random numbers, repeated. */
static void *random_device(size_t n, int dtype)
{
    const size_t block = (size_t)1 << 22;
    static uint16_t *host;
    static size_t begin;
    if (!host) {
        float *x = need(block * sizeof *x);
        host = need(2 * block * 2);
        for (size_t i = 0; i < block; i++)
            x[i] = (float)kvd_rng_normal(&rng);
        kvd_from_f32((kvd_dtype)dtype, x, host, block);
        for (size_t i = 0; i < block; i++)
            host[block + i] = host[i];
        free(x);
    }
    begin = (begin + 1234577) % block;
    char *const d = on_device(NULL, n * 2);
    for (size_t at = 0; at < n; at += block)
        to_device(d + at * 2, host + begin, (n - at < block ? n - at : block) * 2);
    return d;
}

enum { COLD = 31, HOT = 15, HOT_RUN = 10 };

static void measure(kvd_cudnn_plan *plan, kvd_cudnn_io *io, void *scratch, size_t scratch_bytes,
                    double *hot, double *cold, double *mhz)
{
    double ms[COLD];
    kvd_err err;
    io->workspace = on_device(NULL, kvd_cudnn_workspace(plan));
    for (int i = -3; i < COLD; i++) {
        check(cudaMemset(scratch, i & 0xff, scratch_bytes), "cudnn");
        timer_start(NULL);
        or_end(kvd_cudnn_run(plan, io, NULL, &err), "cudnn", err.msg);
        ms[i < 0 ? 0 : i] = timer_ms(NULL);
    }
    *cold = kvd_quantile(ms, COLD, 0.5) * 1e3;
    check(cudaMemset(scratch, 0, 2 * sizeof(kvd_clock_stamp)), "cudnn");
    check((cudaError_t)kvd_clock_stamp_launch(scratch, NULL), "cudnn");
    for (int i = 0; i < HOT; i++) {
        timer_start(NULL);
        for (int j = 0; j < HOT_RUN; j++)
            or_end(kvd_cudnn_run(plan, io, NULL, &err), "cudnn", err.msg);
        ms[i] = timer_ms(NULL);
    }
    *hot = kvd_quantile(ms, HOT, 0.5) * 1e3 / HOT_RUN;
    check((cudaError_t)kvd_clock_stamp_launch((kvd_clock_stamp *)scratch + 1, NULL), "cudnn");
    kvd_clock_stamp *stamps = from_device(scratch, 2 * sizeof(kvd_clock_stamp));
    *mhz = kvd_clock_between(stamps, stamps + 1);
    free(stamps);
    device_free(io->workspace);
}

static void time_one(int batch, int q_len, int kv_len, int d_qk, int d_v, int ragged, int list)
{
    kvd_cudnn_shape s = {.dtype = KVD_BF16,
                         .batch = batch,
                         .n_heads = 32,
                         .n_kv_heads = 8,
                         .d_qk = d_qk,
                         .d_v = d_v,
                         .q_len = q_len,
                         .kv_len = kv_len,
                         .causal = 1,
                         .ragged = ragged,
                         .scale = 1.0F / sqrtf(128.0F)};
    kvd_cudnn_plan *plan;
    kvd_err err = {""};
    int l2 = 0;
    double first[3], best[3], us;
    kvd_cudnn_packed(&s);
    check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0), "cudnn");
    if (kvd_cudnn_open(&s, &plan, &err)) {
        printf("%s %dx%d d %d,%d: %s\n", q_len == 1 ? "decode" : "prefill", batch, kv_len, d_qk,
               d_v, err.msg);
        return;
    }
    const size_t nq = (size_t)batch * 32 * (size_t)q_len, nkv = (size_t)batch * 8 * (size_t)kv_len,
                 flush = 2 * (size_t)l2;
    int32_t *lens = need((size_t)batch * 4);
    for (int b = 0; b < batch; b++)
        lens[b] = kv_len;
    void *q = random_device(nq * (size_t)d_qk, KVD_BF16),
         *k = random_device(nkv * (size_t)d_qk, KVD_BF16);
    void *v = random_device(nkv * (size_t)d_v, KVD_BF16),
         *o = random_device(nq * (size_t)d_v, KVD_BF16), *scratch = on_device(NULL, flush),
         *dl = on_device(lens, (size_t)batch * 4);
    kvd_cudnn_io io = {.q = q, .k = k, .v = v, .o = o, .q_len = dl, .kv_len = dl};
    char name[256];
    snprintf(name, sizeof name, "%s", kvd_cudnn_name(plan));
    measure(plan, &io, scratch, flush, &first[0], &first[1], &first[2]);
    or_end(kvd_cudnn_tune(plan, &io, NULL, &err), "tune", err.msg);
    measure(plan, &io, scratch, flush, &best[0], &best[1], &best[2]);
    printf(
        "%s %d x %d d %d,%d%s: first %.1f us hot at %.0f MHz, %.1f cold (%s); tuned %.1f hot at %.0f MHz, "
        "%.1f cold (%s)\n",
        q_len == 1 ? "decode" : "prefill", batch, kv_len, d_qk, d_v, ragged ? " ragged" : "",
        first[0], first[2], first[1], name + 7, best[0], best[2], best[1],
        kvd_cudnn_name(plan) + 7);
    for (int i = 0; list && i < kvd_cudnn_count(plan); i++) {
        const char *n = kvd_cudnn_candidate(plan, i, &us);
        printf("#   %9.1f %s\n", us, n);
    }
    fflush(stdout);
    kvd_cudnn_close(plan);
    device_free(q, k, v, o, scratch, dl);
    free(lens);
}

static void time_prefill(int list)
{
    static const int widths[] = {128, 64, 48}, shapes[][2] = {{1, 16384}, {2, 8192}};
    for (size_t i = 0; i < 2; i++)
        for (size_t w = 0; w < 3; w++)
            time_one(shapes[i][0], shapes[i][1], shapes[i][1], widths[w], widths[w], 0, list);
    time_one(1, 16384, 16384, 64, 48, 0, list);
    time_one(2, 8192, 8192, 128, 128, 1, list);
}

static void time_decode(int list)
{
    static const int widths[] = {128, 64},
                     shapes[][2] = {{1, 8192}, {1, 131072}, {16, 8192}, {64, 8192}};
    for (size_t i = 0; i < 4; i++)
        for (size_t w = 0; w < 2; w++)
            time_one(shapes[i][0], 1, shapes[i][1], widths[w], widths[w], 0, list);
    time_one(64, 1, 8192, 64, 48, 0, list);
    time_one(16, 1, 8192, 128, 128, 1, list);
}

int main(int argc, char **argv)
{
    int version = 0;
    kvd_err err = {""};
    if (!gpu_devices("cudnn", 1))
        return 0;
    kvd_rng_seed(&rng, 1, 0);
    if (kvd_cudnn_version(&version, &err)) {
        printf("skip cudnn: %s\n", err.msg);
        return 0;
    }
    const int verbose = argc > 1 && strcmp(argv[argc - 1], "-v") == 0;
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        if (argc < 3 || strcmp(argv[2], "decode") != 0)
            time_prefill(verbose);
        if (argc < 3 || strcmp(argv[2], "prefill") != 0)
            time_decode(verbose);
        return 0;
    }
    test_case cases[] = {
        {"prefill 1x128 4/2 heads 128,128", SHAPE(KVD_BF16, 1, 4, 2, 128, 128, 128, 128, 1, 0), 0,
         1.0F},
        {"prefill 2x200 8/2 heads 64,48", SHAPE(KVD_BF16, 2, 8, 2, 64, 48, 200, 200, 1, 0), 0,
         1.0F},
        {"prefill 1x333 3/3 heads 48,96, f16", SHAPE(KVD_F16, 1, 3, 3, 48, 96, 333, 333, 1, 0), 0,
         1.0F},
        {"prefill 1x257 8/1 heads 24,16", SHAPE(KVD_BF16, 1, 8, 1, 24, 16, 257, 257, 1, 0), 0,
         1.0F},
        {"prefill 1x1024 4/1 heads 80,112, sharp",
         SHAPE(KVD_BF16, 1, 4, 1, 80, 112, 1024, 1024, 1, 0), 0, 4.0F},
        {"prefill 1x130 token-major", SHAPE(KVD_BF16, 1, 4, 2, 64, 64, 130, 130, 1, 0), 1, 1.0F},
        {"prefill 33 after 97, 4/2 heads 64,64", SHAPE(KVD_BF16, 1, 4, 2, 64, 64, 33, 130, 1, 0), 0,
         1.0F},
        {"prefill ragged 4x300 8/2 heads 64,48", SHAPE(KVD_BF16, 4, 8, 2, 64, 48, 300, 300, 1, 1),
         0, 1.0F},
        {"no mask 2x100x150 4/2 heads 64,64", SHAPE(KVD_BF16, 2, 4, 2, 64, 64, 100, 150, 0, 0), 0,
         1.0F},
        {"decode 1x1000 32/8 heads 128,128", SHAPE(KVD_BF16, 1, 32, 8, 128, 128, 1, 1000, 1, 0), 0,
         1.0F},
        {"decode 3x77 8/2 heads 64,48", SHAPE(KVD_BF16, 3, 8, 2, 64, 48, 1, 77, 1, 0), 0, 1.0F},
        {"decode 2x1 4/4 heads 32,64", SHAPE(KVD_BF16, 2, 4, 4, 32, 64, 1, 1, 1, 0), 0, 1.0F},
        {"decode 1x4097 8/1 heads 16,128, f16", SHAPE(KVD_F16, 1, 8, 1, 16, 128, 1, 4097, 1, 0), 0,
         1.0F},
        {"decode token-major 2x513 16/4 heads 96,80",
         SHAPE(KVD_BF16, 2, 16, 4, 96, 80, 1, 513, 1, 0), 1, 1.0F},
        {"decode ragged 5x700 8/2 heads 128,128", SHAPE(KVD_BF16, 5, 8, 2, 128, 128, 1, 700, 1, 1),
         0, 1.0F},
        {"decode ragged 3x700 8/2 heads 64,40", SHAPE(KVD_BF16, 3, 8, 2, 64, 40, 1, 700, 1, 1), 0,
         1.0F},
    };
    const int only = argc > 1 && argv[1][0] != '-' ? atoi(argv[1]) : -1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (only < 0 || (size_t)only == i)
            test(&cases[i], verbose);
    check_refusals();
    return failures != 0;
}

#endif
