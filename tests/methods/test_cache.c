/* Tests attention with a cache whose heads keep fewer dimensions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dims_fixture.h"
#include "methods/cache.h"
#include "unit.h"

enum { LAYERS = 2, HEADS = 6, KV = 2, D = 16, GROUP = HEADS / KV };
static const size_t lengths[] = {150, 1, 2, 37};
enum { SEQUENCES = 4, TOKENS = 190 };

static kvd_config config;
static kvd_spectrum spectrum;
static kvd_widths widths;
static fixture_qkv data;
static float dense[TOKENS * HEADS * D];

static int setup(void **state)
{
    (void)state;
    kvd_err err;
    config = fixture_config(LAYERS, HEADS, KV, D);
    if (fixture_spectrum(&spectrum, &config, 7, &err) ||
        kvd_widths_alloc(&widths, LAYERS, KV, D, &err))
        return -1;
    fixture_qkv_make(&data, &config, 1, lengths, SEQUENCES, 9);
    kvd_dense_attention a;
    kvd_dense_attention_init(&a);
    const int status = a.hook.run(&a.hook, &data.in, dense, &err);
    kvd_dense_attention_release(&a);
    return status;
}

static int teardown(void **state)
{
    (void)state;
    kvd_spectrum_release(&spectrum);
    kvd_widths_release(&widths);
    fixture_drop(&data);
    return 0;
}

static float out[TOKENS * HEADS * D], want[TOKENS * HEADS * D];

static kvd_dims built(const kvd_dims_method *m)
{
    kvd_dims dims;
    kvd_err err = {""};
    OK(kvd_dims_build(&dims, m, &spectrum, &widths, &err));
    return dims;
}

static double distance(const float *a, const float *b, size_t n)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        norm += (double)b[i] * (double)b[i];
    }
    return sqrt(diff / norm);
}

static void run(const kvd_dims *dims, kvd_dtype type, float *to, kvd_cache_account *account)
{
    kvd_err err = {""};
    kvd_cache c;
    for (size_t i = 0; i < TOKENS * HEADS * D; i++)
        to[i] = NAN;
    const kvd_plan plan = {.dims = dims, .type = type};
    assert_int_equal(kvd_cache_init(&c, &config, &plan, 150, &err), 0);
    assert_int_equal(c.hook.run(&c.hook, &data.in, to, &err), 0);
    if (account)
        *account = c.account;
    kvd_cache_release(&c);
}

static void set_widths(int qk0, int v0, int qk1, int v1)
{
    for (int l = 0; l < LAYERS; l++) {
        widths.kept[0][l * KV] = qk0;
        widths.kept[1][l * KV] = v0;
        widths.kept[0][l * KV + 1] = qk1;
        widths.kept[1][l * KV + 1] = v1;
    }
}

static const kvd_dims_method *const all[] = {&kvd_dims_zack, &kvd_dims_fdc, &kvd_dims_uniform,
                                             &kvd_dims_balanced, &kvd_dims_matryoshka};

TEST(test_full_rank_is_dense)
{
    set_widths(D, D, D, D);
    run(NULL, KVD_F32, out, NULL);
    assert_true(distance(out, dense, TOKENS * HEADS * D) < 1e-7);
    for (size_t m = 0; m < sizeof all / sizeof *all; m++) {
        kvd_dims dims = built(all[m]);
        run(&dims, KVD_F32, out, NULL);
        assert_true(distance(out, dense, TOKENS * HEADS * D) < 1e-5);
        kvd_dims_release(&dims);
    }
}

/* Computes attention with projected K and V in double precision: o = softmax(q A_q (k A_k)^T /
 * sqrt(D)) v A_v B_v. */
static void plain(const kvd_dims *dims, float *to)
{
    for (size_t s = 0; s < SEQUENCES; s++)
        for (size_t t = data.offset[s]; t < data.offset[s + 1]; t++)
            for (size_t h = 0; h < HEADS; h++) {
                const kvd_dims_head *x = &dims->head[KV + h / GROUP]; /* projections of layer 1 */
                const float *q = data.q + (t * HEADS + h) * D;
                double p[150] = {0}, top = -INFINITY, sum = 0;
                size_t start = data.offset[s];
                if (data.in.window && t + 1 > start + data.in.window)
                    start = t + 1 - data.in.window;
                for (size_t u = start; u <= t; u++) {
                    const float *k = data.k + (u * KV + h / GROUP) * D;
                    double score = 0;
                    for (int j = 0; j < x->d_qk; j++) {
                        double qj = 0, kj = 0;
                        for (int i = 0; i < D; i++) {
                            qj += (double)q[i] * (double)x->a_q[i * x->d_qk + j];
                            kj += (double)k[i] * (double)x->a_k[i * x->d_qk + j];
                        }
                        score += qj * kj;
                    }
                    p[u - data.offset[s]] = score / sqrt(D);
                    top = fmax(top, score / sqrt(D));
                }
                for (size_t u = start - data.offset[s]; u <= t - data.offset[s]; u++)
                    sum += p[u] = exp(p[u] - top);
                double o[D] = {0};
                for (int j = 0; j < x->d_v; j++) {
                    double oj = 0;
                    for (size_t u = start; u <= t; u++) {
                        const float *v = data.v + (u * KV + h / GROUP) * D;
                        double vj = 0;
                        for (int i = 0; i < D; i++)
                            vj += (double)v[i] * (double)x->a_v[i * x->d_v + j];
                        oj += p[u - data.offset[s]] / sum * vj;
                    }
                    for (int i = 0; i < D; i++)
                        o[i] += oj * (double)x->b_v[j * D + i];
                }
                for (int i = 0; i < D; i++)
                    to[(t * HEADS + h) * D + (size_t)i] = (float)o[i];
            }
}

TEST(test_cut_against_plain_loops)
{
    const int cases[][4] = {{8, 8, 8, 8}, {1, 16, 16, 1}, {5, 3, 11, 7}, {1, 1, 1, 1}};
    for (size_t m = 0; m < sizeof all / sizeof *all; m++)
        for (size_t i = 0; i < 4; i++) {
            if (all[m]->one_p && i != 0)
                continue;
            set_widths(cases[i][0], cases[i][1], cases[i][2], cases[i][3]);
            kvd_dims dims = built(all[m]);
            run(&dims, KVD_F32, out, NULL);
            plain(&dims, want);
            assert_true(distance(out, want, TOKENS * HEADS * D) < 1e-5);
            assert_true(distance(out, dense, TOKENS * HEADS * D) > 1e-2);
            kvd_dims_release(&dims);
        }
}

TEST(test_window)
{
    const size_t windows[] = {1, 20, 130, 150};
    kvd_dims dims;
    set_widths(6, 9, 16, 4);
    dims = built(&kvd_dims_zack);
    for (size_t w = 0; w < 4; w++) {
        data.in.window = windows[w];
        run(&dims, KVD_F32, out, NULL);
        plain(&dims, want);
        data.in.window = 0;
        assert_true(distance(out, want, TOKENS * HEADS * D) < 1e-5);
        run(&dims, KVD_F32, want, NULL);
        assert_int_equal(distance(out, want, TOKENS * HEADS * D) < 1e-6, windows[w] == 150);
    }
    kvd_dims_release(&dims);
}

TEST(test_cut_is_zero_padding)
{
    static float padded[TOKENS * HEADS * D];
    kvd_dims dims, full;
    set_widths(5, 3, 11, 7);
    dims = built(&kvd_dims_zack);
    set_widths(D, D, D, D);
    full = built(&kvd_dims_zack);
    for (int i = 0; i < LAYERS * KV; i++)
        for (int row = 0; row < D; row++)
            for (int j = 0; j < D; j++) {
                if (j >= dims.head[i].d_qk)
                    full.head[i].a_q[row * D + j] = 0;
                if (j >= dims.head[i].d_v)
                    full.head[i].a_v[row * D + j] = 0;
            }
    run(&dims, KVD_F32, out, NULL);
    run(&full, KVD_F32, padded, NULL);
    assert_true(distance(out, padded, TOKENS * HEADS * D) < 1e-6);
    kvd_dims_release(&dims);
    kvd_dims_release(&full);
}

/* Values are projected by A_v A_v^T, so the attention outputs O are in the same subspace. Therefore
 * (O A_v) (A_v^T W_O) must equal O W_O. */
TEST(test_ragged_output_product)
{
    enum { M = 32 };
    static double w_o[HEADS * D * M];
    kvd_dims dims;
    kvd_rng r;
    kvd_rng_seed(&r, 21, 0);
    for (size_t i = 0; i < HEADS * D * M; i++)
        w_o[i] = kvd_rng_normal(&r);
    set_widths(5, 3, 11, 7);
    dims = built(&kvd_dims_zack);
    run(&dims, KVD_F32, out, NULL);
    for (size_t t = 0; t < TOKENS; t += 13)
        for (size_t m = 0; m < M; m++) {
            double whole = 0, ragged = 0;
            for (size_t h = 0; h < HEADS; h++) {
                const kvd_dims_head *x = &dims.head[KV + h / GROUP];
                const float *o = out + (t * HEADS + h) * D;
                for (size_t i = 0; i < D; i++)
                    whole += (double)o[i] * w_o[(h * D + i) * M + m];
                for (int j = 0; j < x->d_v; j++) {
                    double oj = 0, wj = 0;
                    for (size_t i = 0; i < D; i++) {
                        oj += (double)o[i] * (double)x->a_v[i * (size_t)x->d_v + (size_t)j];
                        wj += (double)x->a_v[i * (size_t)x->d_v + (size_t)j] *
                              w_o[(h * D + i) * M + m];
                    }
                    ragged += oj * wj;
                }
            }
            assert_true(fabs(whole - ragged) < 1e-4);
        }
    kvd_dims_release(&dims);
}

TEST(test_one_head_cut_leaves_the_others)
{
    kvd_err err;
    for (int side = 0; side < 2; side++) {
        kvd_dims dims;
        OK(kvd_dims_one(&dims, &kvd_dims_balanced, &spectrum, 1, 1, side, 4, &err));
        run(&dims, KVD_F32, out, NULL);
        for (size_t t = 0; t < TOKENS; t++) {
            const size_t first = t * HEADS * D, second = first + GROUP * D;
            assert_true(distance(out + first, dense + first, GROUP * D) < 1e-6);
            const int alone = t == data.offset[0] || t == data.offset[1] || t == data.offset[2] ||
                              t == data.offset[3];
            if (side == 1 || !alone)
                assert_true(distance(out + second, dense + second, GROUP * D) > 1e-4);
            else
                assert_true(distance(out + second, dense + second, GROUP * D) < 1e-6);
        }
        kvd_dims_release(&dims);
    }
}

TEST(test_account)
{
    kvd_err err;
    kvd_dims dims;
    kvd_cache_account a;
    set_widths(5, 3, 11, 7);
    dims = built(&kvd_dims_zack);
    run(&dims, KVD_BF16, out, &a);
    assert_int_equal(a.calls, SEQUENCES);
    assert_int_equal(a.tokens, TOKENS);
    assert_int_equal(a.elements_kept, TOKENS * (5 + 3 + 11 + 7));
    assert_int_equal(a.elements_dense, TOKENS * 2 * KV * D);
    assert_int_equal(a.bytes_stored, 2 * a.elements_kept);
    const kvd_plan plan = {.dims = &dims, .type = KVD_BF16}, none = {.type = KVD_BF16};
    assert_int_equal(kvd_cache_check(&a, &config, &plan, SEQUENCES, TOKENS, TOKENS, 1, &err), 0);
    FAILS(kvd_cache_check(&a, &config, &plan, SEQUENCES, TOKENS, TOKENS, 0, &err),
          "the cache acted 4 times, not on each of 4 sequences in 2 layers");
    FAILS(kvd_cache_check(&a, &config, &plan, SEQUENCES, TOKENS + 1, TOKENS, 1, &err),
          "the cache stored 190 rows, not each of 191 tokens in 1 layers");
    FAILS(kvd_cache_check(&a, &config, &none, SEQUENCES, TOKENS, TOKENS, 1, &err),
          "the cache stored 4940 numbers, the widths make 12160");
    kvd_dims_release(&dims);
}

TEST(test_rounded_store)
{
    static float v[D];
    const kvd_dtype types[] = {KVD_F16, KVD_BF16};
    const double unit[] = {1.0 / 2048, 1.0 / 256};
    for (int i = 0; i < 2; i++) {
        run(NULL, types[i], out, NULL);
        const double error = distance(out, dense, TOKENS * HEADS * D);
        assert_true(error > unit[i] / 10 && error < 4 * unit[i]);
    }
    /* The first token attends only to itself, so its attention output must be its V. */
    uint16_t half[D];
    kvd_from_f32(KVD_F16, data.v + data.offset[1] * KV * D, half, D);
    kvd_to_f32(KVD_F16, half, v, D);
    run(NULL, KVD_F16, out, NULL);
    assert_memory_equal(out + data.offset[1] * HEADS * D, v, D * sizeof *v);
}

TEST(test_refuses)
{
    kvd_err err;
    kvd_cache c;
    kvd_dims dims;
    const kvd_plan none = {.type = KVD_F32}, cut = {.dims = &dims, .type = KVD_F32};
    assert_int_equal(kvd_cache_init(&c, &config, &none, 149, &err), 0);
    FAILS(c.hook.run(&c.hook, &data.in, out, &err),
          "sequence 0 has 150 tokens, the cache was made for 1 to 149");
    kvd_cache_release(&c);
    set_widths(4, 4, 4, 4);
    dims = built(&kvd_dims_zack);
    const kvd_config other = fixture_config(LAYERS, HEADS, KV, 2 * D);
    FAILS(kvd_cache_init(&c, &other, &cut, 10, &err),
          "projections are for 2 layers, 2 KV heads, d_head 16; the model has 2, 2, 32");
    assert_int_equal(kvd_cache_init(&c, &config, &cut, 0, &err), -1);
    kvd_dims_release(&dims);
}

TEST_MAIN(setup, teardown)
