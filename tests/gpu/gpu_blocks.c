/* Tests GPU kernels for embedding, norms, additions and Q, K, V against the CPU. */
#include <math.h>
#include <stdbool.h>

#include "model/pass/blocks.h"
#include "model/pass/cuda/blocks.h"

#include "gpu_array.h"

static void test_embed(kvd_dtype type, size_t width, bool learned, size_t shift)
{
    enum { VOCAB = 11, N = 9, PLACES = 8 };
    char name[128];
    const float scale = width % 3 ? 0 : 1.7F;
    (void)snprintf(name, sizeof name, "embed, %s, width %zu, positions %d, shift %zu, scale %g",
                   kvd_dtype_name(type), width, learned, shift, (double)scale);
    array table = values(type, VOCAB * width, shift, 1),
          places = values(KVD_F32, PLACES * width, shift, 1);
    array x = array_new(KVD_F32, N * width, shift);
    uint32_t id[N], position[N];
    float *want = need(N * width * sizeof *want);
    for (uint32_t t = 0; t < N; t++) {
        id[t] = (uint32_t)kvd_rng_below(&rng, VOCAB);
        position[t] = (t * 5) % (PLACES - 2);
        for (size_t j = 0; j < width; j++)
            want[t * width + j] = table.host[id[t] * width + j] * (scale > 0 ? scale : 1.0F) +
                                  (learned ? places.host[(position[t] + 2) * width + j] : 0.0F);
    }
    void *dev_id = on_device(id, sizeof id), *dev_position = on_device(position, sizeof position);
    check(kvd_gpu_embed(type, table.dev, scale, dev_id, learned ? places.dev : NULL, dev_position,
                        N, width, x.dev, NULL),
          name);
    const bool intact = fetch(&x);
    verdict(name, distance(&x, want, NULL), 0, intact);
    free(want);
    device_free(dev_id, dev_position);
    arrays_free(&table, &places, &x);
}

typedef struct {
    kvd_norm kind;
    kvd_dtype type;
    size_t n, d, shift;
    /* add: adds a vector to each row of x; plain: skips the normalisation; in_place: overwrites x
     * with the result */
    bool add, plain, in_place;
} norm_case;

static void reference_norm(const norm_case *c, const float *x, const float *gain, const float *bias,
                           float *y)
{
    if (c->plain)
        memcpy(y, x, c->n * c->d * sizeof *y);
    else if (c->kind == KVD_NORM_LAYER)
        kvd_layer_norm(x, gain, bias, 1e-5, c->n, c->d, y);
    else
        kvd_rms_norm(x, gain, 1e-5, c->n, c->d, y);
}

static void row_scale(const float *x, size_t n, size_t d, float *scale)
{
    for (size_t i = 0; i < n; i++) {
        float top = 0;
        for (size_t j = 0; j < d; j++)
            top = fabsf(x[i * d + j]) > top ? fabsf(x[i * d + j]) : top;
        for (size_t j = 0; j < d; j++)
            scale[i * d + j] = top;
    }
}

static void test_norm(const norm_case *c)
{
    char name[160];
    (void)snprintf(name, sizeof name, "norm, kind %d, %s, %zu x %zu, shift %zu%s%s%s", (int)c->kind,
                   kvd_dtype_name(c->type), c->n, c->d, c->shift, c->add ? ", add" : "",
                   c->plain ? ", plain" : "", c->in_place ? ", in place" : "");
    const size_t n = c->n * c->d;
    array x = values(KVD_F32, n, c->shift, 3), y = array_new(c->type, n, c->shift);
    array add = values(KVD_F32, c->d, c->shift, 1), gain = values(KVD_F32, c->d, c->shift, 1),
          bias = values(KVD_F32, c->d, c->shift, 1);
    float *sum = need(n * sizeof *sum), *want = need(n * sizeof *want),
          *scale = need(n * sizeof *scale);
    for (size_t i = 0; i < n; i++) {
        x.host[i] += 5; /* gives the row a nonzero mean */
        sum[i] = x.host[i] + (c->add ? add.host[i % c->d] : 0.0F);
    }
    send(&x);
    reference_norm(c, sum, gain.host, bias.host, want);
    row_scale(want, c->n, c->d, scale);
    kvd_gpu_bad *bad = bad_new();
    check(kvd_gpu_norm(c->kind, c->type, x.dev, c->add ? add.dev : NULL, c->plain ? NULL : gain.dev,
                       bias.dev, 1e-5, c->n, c->d, c->in_place ? x.dev : y.dev, 3, bad, NULL),
          name);
    const bool intact_x = fetch(&x), intact_y = fetch(&y);
    /* With d = 1, layer norm subtracts x from itself, so the result must be the bias alone. */
    verdict(name, distance(c->in_place ? &x : &y, want, scale), 1e-6, intact_x && intact_y);
    if (!c->in_place)
        verdict(name, distance(&x, sum, NULL), 0, true);
    expect_bad(name, bad_take(bad), ~0ull);
    host_free(sum, want, scale);
    arrays_free(&x, &y, &add, &gain, &bias);
}

static void test_norm_bad(size_t d)
{
    enum { N = 40 };
    array x = values(KVD_F32, N * d, 0, 1), y = array_new(KVD_BF16, N * d, 0),
          gain = values(KVD_F32, d, 0, 1);
    x.host[17 * d + d - 1] = NAN;
    x.host[9 * d] = -INFINITY;
    x.host[30 * d + d / 2] = INFINITY;
    send(&x);
    kvd_gpu_bad *bad = bad_new();
    check(kvd_gpu_norm(KVD_NORM_RMS, KVD_BF16, x.dev, NULL, gain.dev, NULL, 1e-5, N, d, y.dev, 7,
                       bad, NULL),
          "norm");
    expect_bad("norm", bad_take(bad), kvd_gpu_bad_at(7, 9));
    (void)fetch(&y);
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < d; j++)
            if (i != 17 && i != 9 && i != 30 && !isfinite(y.host[i * d + j]))
                failed = printf("not ok norm: row %zu suffers from others\n", i) > 0;

    /* If several checks find a NaN, the error must name the one that comes first in the model. */
    bad = bad_new();
    check(kvd_gpu_check(x.dev, N, d, 5, bad, NULL), "check");
    check(kvd_gpu_check(x.dev, 9, d, 1, bad, NULL), "check");
    check(kvd_gpu_check((float *)x.dev + 30 * d, 1, d, 6, bad, NULL), "check");
    expect_bad("check", bad_take(bad), kvd_gpu_bad_at(5, 9));
    bad = bad_new();
    check(kvd_gpu_check(x.dev, N, d, 5, bad, NULL), "check");
    check(kvd_gpu_check((float *)x.dev + 17 * d, 1, d, 4, bad, NULL), "check");
    expect_bad("check", bad_take(bad), kvd_gpu_bad_at(4, 0));

    array big = values(KVD_F32, d, 0, 1);
    for (size_t j = 0; j < d; j++)
        big.host[j] = j == d / 3 ? 3e38F : 0;
    send(&big);
    for (size_t i = 0; i < N * d; i++)
        x.host[i] = i == 21 * d + d / 3 ? 3e38F : 1;
    send(&x);
    bad = bad_new();
    check(kvd_gpu_norm(KVD_NORM_RMS, KVD_F32, x.dev, big.dev, NULL, NULL, 0, N, d, NULL, 2, bad,
                       NULL),
          "norm");
    expect_bad("norm of a sum", bad_take(bad), kvd_gpu_bad_at(2, 21));
    arrays_free(&x, &y, &gain, &big);
}

/* Adds norm(branch) to x, then sets y to norm(x). If `gain` is NULL, sets y to x. */
static void reference_branch(const float *branch, const float *gain_branch, const float *gain,
                             size_t n, size_t d, float *x, float *y)
{
    kvd_rms_norm(branch, gain_branch, 1e-5, n, d, y);
    for (size_t i = 0; i < n * d; i++)
        x[i] += y[i];
    if (gain)
        kvd_rms_norm(x, gain, 1e-5, n, d, y);
    else
        memcpy(y, x, n * d * sizeof *y);
}

static void test_branch(size_t n, size_t d, bool normed)
{
    char name[128];
    (void)snprintf(name, sizeof name, "branch, %zu x %zu, norm %d", n, d, normed);
    array x = values(KVD_F32, n * d, 0, 3), branch = values(KVD_F32, n * d, 0, 2),
          y = array_new(KVD_BF16, n * d, 0);
    array gain_branch = values(KVD_F32, d, 0, 1), gain = values(KVD_F32, d, 0, 1);
    float *sum = need(n * d * sizeof *sum), *want = need(n * d * sizeof *want),
          *scale = need(n * d * sizeof *scale);
    memcpy(sum, x.host, n * d * sizeof *sum);
    reference_branch(branch.host, gain_branch.host, normed ? gain.host : NULL, n, d, sum, want);
    kvd_gpu_bad *bad = bad_new();
    kvd_gpu_branch a = {.n = n,
                        .d = d,
                        .x = x.dev,
                        .branch = branch.dev,
                        .gain_branch = gain_branch.dev,
                        .gain = normed ? gain.dev : NULL,
                        .eps = 1e-5,
                        .y = y.dev,
                        .stage = 4,
                        .bad = bad};
    check(kvd_gpu_branch_add(&a, NULL), name);
    const bool intact_x = fetch(&x), intact_y = fetch(&y);
    row_scale(sum, n, d, scale);
    verdict(name, distance(&x, sum, scale), 1e-6, intact_x);
    row_scale(want, n, d, scale);
    verdict(name, distance(&y, want, scale), 1e-6, intact_y);
    expect_bad(name, bad_take(bad), ~0ull);
    branch.host[(n - 1) * d] = INFINITY;
    send(&branch);
    a.bad = bad = bad_new();
    check(kvd_gpu_branch_add(&a, NULL), name);
    expect_bad(name, bad_take(bad), kvd_gpu_bad_at(4, n - 1));
    host_free(sum, want, scale);
    arrays_free(&x, &branch, &y, &gain_branch, &gain);
}

static void all_branches(void)
{
    static const size_t widths[] = {4, 12, 128, 256, 1004, 3840, 5376, 16384};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        test_branch(1 + w % 4, widths[w], w % 3 != 1);
    if (kvd_gpu_branch_takes(6) || kvd_gpu_branch_takes(16388))
        failed = printf("not ok branch: takes rows that it does not support\n") > 0;
}

typedef struct {
    kvd_dtype type;
    size_t n;
    int heads, kv, d;
    bool bias, norm, pre;
    int rope; /* kvd_rope_layout; -1: no RoPE */
    size_t shift;
} qkv_case;

enum { QKV_MOST = 37 /* number of tokens */, QKV_POSITIONS = 50 };

/* Replaces the projections x [tokens][heads + 2 kv][d] by Q, K and V after bias, norm and RoPE.
 * Writes Q and K before RoPE to pre [tokens][heads + kv][d]. */
static void reference_qkv(const qkv_case *c, const float *bias, const float *gain_q,
                          const float *gain_k, const float *cosine, const float *sine,
                          const uint32_t *row, float *x, float *pre)
{
    const size_t d = (size_t)c->d, turned = (size_t)(c->heads + c->kv),
                 all = turned + (size_t)c->kv;
    const kvd_config config = {.d_head = c->d,
                               .rope_layout = c->rope < 0 ? 0 : (kvd_rope_layout)c->rope};
    for (size_t t = 0; t < c->n; t++)
        for (size_t h = 0; h < all; h++) {
            float *const head = x + (t * all + h) * d;
            for (size_t i = 0; i < d; i++)
                head[i] += c->bias ? bias[h * d + i] : 0.0F;
            if (h >= turned)
                continue;
            if (c->norm)
                kvd_rms_norm(head, h < (size_t)c->heads ? gain_q : gain_k, 1e-6, 1, d, head);
            memcpy(pre + (t * turned + h) * d, head, d * sizeof *head);
            if (c->rope >= 0)
                kvd_rope_apply(&config, cosine, sine, row + t, 1, 1, head);
        }
}

static void test_qkv(const qkv_case *c)
{
    char name[160];
    (void)snprintf(name, sizeof name,
                   "qkv, %s, %zu x %d/%d heads of %d, bias %d, norm %d, rope %d, pre %d, shift %zu",
                   kvd_dtype_name(c->type), c->n, c->heads, c->kv, c->d, c->bias, c->norm, c->rope,
                   c->pre, c->shift);
    const size_t d = (size_t)c->d, half = d / 2, turned = (size_t)(c->heads + c->kv) * d,
                 all = turned + (size_t)c->kv * d;
    array x = values(c->type, c->n * all, c->shift, 2),
          pre = array_new(c->type, c->n * turned, c->shift);
    array bias = values(KVD_F32, all, c->shift, 1), gain_q = values(KVD_F32, d, c->shift, 1),
          gain_k = values(KVD_F32, d, c->shift, 1);
    array cosine = array_new(KVD_F32, QKV_POSITIONS * half, c->shift),
          sine = array_new(KVD_F32, QKV_POSITIONS * half, c->shift);
    uint32_t row[QKV_MOST];
    if (half)
        rope_tables(QKV_POSITIONS, d, cosine.host, sine.host);
    send(&cosine);
    send(&sine);
    for (uint32_t t = 0; t < c->n; t++)
        row[t] = (t * 7 + 3) % QKV_POSITIONS;
    float *want = need(c->n * all * sizeof *want),
          *want_pre = need(c->n * turned * sizeof *want_pre);
    float *scale = need(c->n * all * sizeof *scale);
    memcpy(want, x.host, c->n * all * sizeof *want);
    reference_qkv(c, bias.host, gain_q.host, gain_k.host, cosine.host, sine.host, row, want,
                  want_pre);
    void *dev_row = on_device(row, sizeof row);
    kvd_gpu_qkv a = {.type = c->type,
                     .n_heads = c->heads,
                     .n_kv_heads = c->kv,
                     .d_head = c->d,
                     .eps = 1e-6,
                     .rope_row = dev_row,
                     .layout = c->rope < 0 ? 0 : (kvd_rope_layout)c->rope,
                     .qkv = x.dev,
                     .pre = c->pre ? pre.dev : NULL,
                     .bias = c->bias ? bias.dev : NULL,
                     .gain_q = c->norm ? gain_q.dev : NULL,
                     .gain_k = c->norm ? gain_k.dev : NULL,
                     .cosine = c->rope >= 0 ? cosine.dev : NULL,
                     .sine = c->rope >= 0 ? sine.dev : NULL};
    kvd_gpu_bad *bad = bad_new();
    check(kvd_gpu_qkv_finish(&a, c->n, 5, bad, NULL), name);
    const bool intact_x = fetch(&x), intact_pre = fetch(&pre);
    row_scale(want, c->n * all / d, d, scale);
    verdict(name, distance(&x, want, scale), 1e-6, intact_x);
    if (c->pre) {
        row_scale(want_pre, c->n * turned / d, d, scale);
        verdict(name, distance(&pre, want_pre, scale), 1e-6, intact_pre);
    }
    expect_bad(name, bad_take(bad), ~0ull);

    x.host[11 * all + all - 1] = INFINITY;
    send(&x);
    bad = bad_new();
    check(kvd_gpu_qkv_finish(&a, c->n, 5, bad, NULL), name);
    expect_bad(name, bad_take(bad), kvd_gpu_bad_at(5, 11));
    (void)fetch(&x);
    x.host[4 * all] = NAN;
    send(&x);
    bad = bad_new();
    check(kvd_gpu_qkv_finish(&a, c->n, 5, bad, NULL), name);
    expect_bad(name, bad_take(bad), kvd_gpu_bad_at(5, 4));
    host_free(want, want_pre, scale);
    check(cudaFree(dev_row), "free");
    arrays_free(&x, &pre, &bias, &gain_q, &gain_k, &cosine, &sine);
}

static void all_norms(bool small)
{
    static const size_t widths[] = {1,   2,    3,    4,    5,     12,    64,   127,
                                    288, 1000, 4096, 5120, 16384, 16388, 20001};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int t = 0; t < 2; t++)
            for (int k = 0; k < 2; k++)
                for (int variant = 0; variant < 5; variant++) {
                    if (small && (widths[w] > 300 || variant == 2))
                        continue;
                    const norm_case c = {.kind = k ? KVD_NORM_LAYER : KVD_NORM_RMS,
                                         .type = pass_types[t],
                                         .n = variant == 2 ? 70 : 5,
                                         .d = widths[w],
                                         .shift = variant == 1 ? 1 : 0,
                                         .add = variant == 1 || variant == 3,
                                         .plain = variant == 3,
                                         .in_place = variant == 4};
                    if (!c.in_place || c.type == KVD_F32)
                        test_norm(&c);
                }
    test_norm_bad(64);
    test_norm_bad(1001);
}

static void all_qkv(bool small)
{
    static const int d_head[] = {1,  2,  4,  5,  6,  8,   12,  16,  20,  32,
                                 48, 64, 72, 80, 96, 128, 160, 256, 512, 1026};
    static const int heads[][2] = {{1, 1}, {3, 1}, {4, 2}, {7, 7}, {32, 8}};
    for (size_t d = 0; d < sizeof d_head / sizeof *d_head; d++)
        for (int t = 0; t < 2; t++)
            for (size_t h = 0; h < sizeof heads / sizeof *heads; h++)
                for (int rope = -1; rope < 2; rope++) {
                    const int mix = (int)(d + h) + rope + 1;
                    if ((d_head[d] % 2 && rope >= 0) || (small && (h == 4 || d_head[d] > 128)) ||
                        (h == 4 && d_head[d] > 256))
                        continue;
                    const qkv_case c = {.type = pass_types[t],
                                        .n = mix % 5 == 0 ? QKV_MOST : 13,
                                        .heads = heads[h][0],
                                        .kv = heads[h][1],
                                        .d = d_head[d],
                                        .bias = mix % 2,
                                        .norm = mix / 2 % 2,
                                        .pre = mix % 3 != 0,
                                        .rope = rope,
                                        .shift = mix % 7 == 6};
                    test_qkv(&c);
                }
}

int main(int argc, char **argv)
{
    if (!gpu_devices("gpu_blocks", 1))
        return 0;
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    kvd_rng_seed(&rng, 5, 0);
    static const size_t widths[] = {1, 7, 8, 12, 288, 1000, 4097};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int i = 0; i < 8; i++)
            test_embed(pass_types[i % 2], widths[w], i / 2 % 2, (size_t)i / 4);
    all_norms(small);
    all_branches();
    all_qkv(small);
    verdict("", 0, 0, true);
    return failed;
}
