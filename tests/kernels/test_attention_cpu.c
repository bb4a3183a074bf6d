/* Tests CPU attention with every instruction set and 1 to 5 threads. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "attention_case.h"
#include "common/threads.h"
#include "kernels/attention_ref.h"
#include "kernels/cpu/attention_cpu.h"
#include "unit.h"

static float *run(const attention_case *c, int isa)
{
    kvd_err err;
    float *out = case_get(c->plain.o_elements, sizeof *out);
    for (size_t i = 0; i < c->plain.o_elements; i++)
        out[i] = NAN;
    if (kvd_attention_cpu(&c->heads, &c->batch, (kvd_cpu_isa)isa, c->q, c->k, c->v, out, &err))
        fail_msg("%s", err.msg);
    return out;
}

static double error_of(const float *x, const double *y, size_t n)
{
    double *wide = case_get(n, sizeof *wide);
    for (size_t i = 0; i < n; i++)
        wide[i] = (double)x[i];
    const double e = case_error(wide, y, n);
    return e;
}

static void compare(const attention_case *c, const double *right, double limit, const char *what)
{
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++)
        for (int threads = 1; threads <= 5; threads += 2) {
            kvd_threads_limit(threads);
            float *out = run(c, isa), *again = run(c, isa);
            const double e = error_of(out, right, c->plain.o_elements);
            if (!(e < limit))
                fail_msg("%s, %s, %d threads: error %.3g", what, kvd_cpu_isa_name((kvd_cpu_isa)isa),
                         threads, e);
            assert_memory_equal(out, again, c->plain.o_elements * sizeof *out);
        }
}

static void against_reference(attention_case *c, double limit, const char *what)
{
    double *right = case_reference(c, NULL);
    compare(c, right, limit, what);
}

TEST(test_pytorch)
{
    int32_t n;
    FILE *f = case_open(&n);
    for (int i = 0; i < n; i++) {
        attention_case c;
        case_next(f, &c);
        /* From case 3 on, scores have a large variance, which makes rounding errors larger. */
        compare(&c, c.out, i < 3 ? 5e-7 : 5e-6, "pytorch");
    }
    fclose(f);
}

TEST(test_shapes)
{
    static const int d_qk[] = {16, 128, 1, 37}, d_v[] = {128, 16, 65, 2};
    static const int32_t q_len[] = {1, 95, 3, 49, 24, 1}, kv_len[] = {1, 95, 200, 97, 24, 769};
    static const int groups[] = {1, 3, 4, 8};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        attention_case c;
        case_make(&c, 4 * groups[i], 4, 64, d_qk, d_v, 6, q_len, kv_len, 1, i);
        against_reference(&c, 5e-7, "ragged batch");
    }
    for (int32_t n = 1; n < 140; n += n < 20 ? 1 : 13) {
        attention_case c;
        case_make(&c, 2, 1, 16, (int[]){20}, (int[]){12}, 1, &n, &n, 1, (uint64_t)n);
        against_reference(&c, 5e-7, "square");
    }
}

TEST(test_long)
{
    attention_case c;
    case_make(&c, 8, 2, 128, (int[]){48, 96}, (int[]){64, 16}, 2, (int32_t[]){1, 2},
              (int32_t[]){9001, 5000}, 1, 8);
    against_reference(&c, 1e-6, "decode");
    case_make(&c, 2, 2, 128, (int[]){16, 32}, (int[]){32, 16}, 1, (int32_t[]){700},
              (int32_t[]){2500}, 1, 9);
    against_reference(&c, 1e-6, "chunk");
    case_make(&c, 4, 2, 256, (int[]){256, 144}, (int[]){240, 16}, 2, (int32_t[]){1, 90},
              (int32_t[]){900, 300}, 1, 10);
    against_reference(&c, 1e-6, "heads of 256");
}

/* For scores s of some hundreds, softmax weights have relative errors of a few times |s| 2^-24. */
TEST(test_sharp)
{
    attention_case c;
    case_make(&c, 4, 2, 64, (int[]){64, 32}, (int[]){16, 64}, 2, (int32_t[]){130, 1},
              (int32_t[]){300, 2000}, 20, 10);
    for (size_t i = 0; i < c.plain.k_elements; i += 97)
        c.k[i] *= 30;
    for (size_t i = 0; i < c.plain.v_elements; i += 89)
        c.v[i] *= 1000;
    against_reference(&c, 1e-4, "sharp");

    /* The scores of N keys fall by 0.25 from key to key, until softmax weights underflow to 0. */
    enum { N = 1000 };
    case_make(&c, 1, 1, 1, (int[]){1}, (int[]){4}, 1, (int32_t[]){1}, (int32_t[]){N}, 1, 11);
    c.q[0] = 1;
    for (size_t t = 0; t < N; t++)
        c.k[t] = -0.25f * (float)t;
    against_reference(&c, 2e-6, "falling");
    case_make(&c, 1, 1, 1, (int[]){1}, (int[]){4}, 1, (int32_t[]){N}, (int32_t[]){N}, 1, 12);
    for (size_t t = 0; t < N; t++) {
        c.q[t] = 1;
        c.k[t] = 0.01f * (float)t * (float)(t % 3);
    }
    against_reference(&c, 5e-6, "rising");
}

/* Two keys with scores 0 and -x and values 0 and 1 give the output w / (1 + w), where w = exp(-x),
 * within 2.5 units in the last place. */
TEST(test_exponential)
{
    enum { N = 5000 };
    const kvd_attn_heads heads = {
        .n_heads = 1, .n_kv_heads = 1, .d_head = 1, .d_qk = {1}, .d_v = {1}};
    int32_t *q_len = case_get(N, sizeof *q_len), *kv_len = case_get(N, sizeof *kv_len);
    float *q = case_get(N, sizeof *q), *k = case_get(2 * N, sizeof *k),
          *v = case_get(2 * N, sizeof *v);
    float *out = case_get(N, sizeof *out);
    const float log2_e = 1.44269504f;
    kvd_err err;
    for (size_t i = 0; i < N; i++) {
        q_len[i] = 1;
        kv_len[i] = 2;
        q[i] = 1;
        k[2 * i + 1] = -100 * (float)i / N;
        v[2 * i + 1] = 1;
    }
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++) {
        const kvd_attn_batch batch = {N, q_len, kv_len};
        assert_int_equal(kvd_attention_cpu(&heads, &batch, (kvd_cpu_isa)isa, q, k, v, out, &err),
                         0);
        for (size_t i = 0; i < N; i++) {
            const float score = log2_e * k[2 * i + 1];
            const double w = exp2((double)score), right = w / (1 + w);
            if (score >= -126)
                assert_true(fabs((double)out[i] - right) < 3e-7 * right);
            else
                assert_true(out[i] >= 0 && (double)out[i] < 1.2e-38);
        }
    }
}

TEST(test_zero_columns)
{
    enum { N = 150, D = 24, WIDE = 40 };
    attention_case c, wide;
    case_make(&c, 1, 1, 64, (int[]){D}, (int[]){D}, 1, (int32_t[]){N}, (int32_t[]){N}, 1, 13);
    case_make(&wide, 1, 1, 64, (int[]){WIDE}, (int[]){WIDE}, 1, (int32_t[]){N}, (int32_t[]){N}, 1,
              14);
    for (size_t t = 0; t < N; t++)
        for (size_t i = 0; i < WIDE; i++) {
            wide.q[t * WIDE + i] = i < D ? c.q[t * D + i] : 0;
            wide.k[t * WIDE + i] = i < D ? c.k[t * D + i] : 0;
            wide.v[t * WIDE + i] = i < D ? c.v[t * D + i] : 0;
        }
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++) {
        float *x = run(&c, isa), *y = run(&wide, isa);
        for (size_t t = 0; t < N; t++) {
            assert_memory_equal(x + t * D, y + t * WIDE, D * sizeof *x);
            for (size_t i = D; i < WIDE; i++)
                assert_true(y[t * WIDE + i] == 0);
        }
    }
}

TEST(test_convex)
{
    attention_case c;
    case_make(&c, 4, 2, 64, (int[]){16, 33}, (int[]){48, 5}, 2, (int32_t[]){60, 1},
              (int32_t[]){60, 700}, 30, 15);
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++) {
        float *out = run(&c, isa);
        for (int h = 0; h < 4; h++)
            for (int i = 0; i < c.heads.d_v[h / 2]; i++)
                assert_true(out[c.plain.o_at[h] + (size_t)i] ==
                            c.v[c.plain.v_at[h / 2] + (size_t)i]);
    }
    for (size_t i = 0; i < c.plain.v_elements; i++)
        c.v[i] = -2.5f;
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++) {
        float *out = run(&c, isa);
        for (size_t i = 0; i < c.plain.o_elements; i++)
            assert_true(fabsf(out[i] + 2.5f) < 2e-6f);
    }
}

static void copy_rows(float *to, const float *from, size_t first, size_t n, int d)
{
    memcpy(to, from + first * (size_t)d, n * (size_t)d * sizeof *to);
}

TEST(test_apart)
{
    static const int d_qk[] = {32, 7}, d_v[] = {8, 48};
    static const int32_t q_len[] = {70, 1, 20}, kv_len[] = {80, 301, 20};
    attention_case c, one;
    kvd_threads_limit(1);
    case_make(&c, 6, 2, 32, d_qk, d_v, 3, q_len, kv_len, 1, 16);
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++) {
        float *all = run(&c, isa);
        size_t q_first = 0, kv_first = 0;
        for (int b = 0; b < 3; b++) {
            const size_t nq = (size_t)q_len[b], nkv = (size_t)kv_len[b];
            case_make(&one, 6, 2, 32, (int[]){7, 32}, (int[]){48, 8}, 1, q_len + b, kv_len + b, 1,
                      17);
            for (int g = 0; g < 2; g++) {
                copy_rows(one.k + one.plain.k_at[1 - g], c.k + c.plain.k_at[g], kv_first, nkv,
                          d_qk[g]);
                copy_rows(one.v + one.plain.v_at[1 - g], c.v + c.plain.v_at[g], kv_first, nkv,
                          d_v[g]);
            }
            for (int h = 0; h < 6; h++)
                copy_rows(one.q + one.plain.q_at[(h + 3) % 6], c.q + c.plain.q_at[h], q_first, nq,
                          d_qk[h / 3]);
            float *out = run(&one, isa);
            for (int h = 0; h < 6; h++)
                assert_memory_equal(out + one.plain.o_at[(h + 3) % 6],
                                    all + c.plain.o_at[h] + q_first * (size_t)d_v[h / 3],
                                    nq * (size_t)d_v[h / 3] * sizeof *out);
            q_first += nq;
            kv_first += nkv;
        }
    }
}

/* A prompt that is computed in chunks must give the same outputs, up to rounding. */
TEST(test_chunks)
{
    enum { N = 333, D_QK = 40, D_V = 24 };
    static const int32_t first[] = {0, 100, 101, 250, N - 1, N};
    attention_case c, part;
    case_make(&c, 2, 1, 64, (int[]){D_QK}, (int[]){D_V}, 1, (int32_t[]){N}, (int32_t[]){N}, 1, 18);
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++) {
        float *whole = run(&c, isa);
        for (int i = 0; i < 5; i++) {
            const int32_t end = first[i + 1], n = end - first[i];
            case_make(&part, 2, 1, 64, (int[]){D_QK}, (int[]){D_V}, 1, &n, &end, 1, 19);
            for (int h = 0; h < 2; h++)
                copy_rows(part.q + part.plain.q_at[h], c.q + c.plain.q_at[h], (size_t)first[i],
                          (size_t)n, D_QK);
            copy_rows(part.k, c.k, 0, (size_t)end, D_QK);
            copy_rows(part.v, c.v, 0, (size_t)end, D_V);
            float *out = run(&part, isa);
            for (int h = 0; h < 2; h++)
                for (size_t j = 0; j < (size_t)n * D_V; j++)
                    assert_true(fabsf(out[part.plain.o_at[h] + j] -
                                      whole[c.plain.o_at[h] + (size_t)first[i] * D_V + j]) < 2e-6f);
        }
    }
}

TEST(test_nan)
{
    enum { N = 130, D = 20 };
    static const size_t rows[] = {0, 1, 50, 97, N - 1};
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++)
        for (int where = 0; where < 3; where++)
            for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
                attention_case c;
                case_make(&c, 1, 1, D, (int[]){D}, (int[]){D}, 1, (int32_t[]){N}, (int32_t[]){N}, 1,
                          20);
                float *const m[] = {c.q, c.k, c.v};
                const uint32_t nan_bits = 0xff800001u + 12345u * (uint32_t)i;
                memcpy(m[where] + rows[i] * D + 3, &nan_bits, sizeof nan_bits);
                float *out = run(&c, isa);
                for (size_t t = 0; t < N; t++)
                    for (size_t j = 0; j < D; j++) {
                        const bool spoilt = where == 0   ? t == rows[i]
                                            : where == 1 ? t >= rows[i]
                                                         : t >= rows[i] && j == 3;
                        assert_int_equal(isnan(out[t * D + j]) != 0, spoilt);
                    }
            }
}

TEST(test_infinite)
{
    enum { N = 200, D = 8 };
    attention_case c;
    case_make(&c, 1, 1, D, (int[]){D}, (int[]){D}, 1, (int32_t[]){2}, (int32_t[]){N}, 1, 21);
    for (size_t j = 0; j < 2 * D; j++)
        c.q[j] = fabsf(c.q[j]);
    for (size_t t = 0; t < N; t++)
        if (t < 110 || t % 7 == 0)
            c.k[t * D + t % D] = -INFINITY;
    double *right = case_reference(&c, NULL);
    compare(&c, right, 5e-7, "-inf");
    for (size_t t = 0; t < N; t++)
        c.k[t * D] = -INFINITY;
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++)
        for (int threads = 1; threads <= 5; threads += 4) {
            kvd_threads_limit(threads);
            /* All scores are -inf, so softmax divides 0 by 0 and the output is NaN. */
            float *out = run(&c, isa);
            for (size_t j = 0; j < 2 * D; j++)
                assert_true(isnan(out[j]));
        }
    for (size_t t = 0; t < N; t++)
        for (size_t i = 0; i < D; i++)
            c.k[t * D + i] = t == 150 && i == 0 ? INFINITY : 0.5f;
    for (int isa = KVD_CPU_PORTABLE; isa <= (int)kvd_cpu_isa_best(); isa++) {
        /* One score is +inf, so softmax computes inf - inf and the output is NaN. */
        float *out = run(&c, isa);
        for (size_t j = 0; j < 2 * D; j++)
            assert_true(isnan(out[j]));
    }
}

static void refused(const kvd_attn_heads *heads, const kvd_attn_batch *batch, int isa,
                    const char *message)
{
    kvd_err err = {""};
    float x = 0, out = 0;
    assert_int_equal(kvd_attention_cpu(heads, batch, (kvd_cpu_isa)isa, &x, &x, &x, &out, &err), -1);
    assert_string_equal(err.msg, message);
}

TEST(test_refused)
{
    int32_t q_len[2] = {1, 1}, kv_len[2] = {1, 1};
    const kvd_attn_batch good = {2, q_len, kv_len};
    const kvd_attn_heads fine = {
        .n_heads = 4, .n_kv_heads = 2, .d_head = 16, .d_qk = {8, 8}, .d_v = {8, 8}};
    kvd_attn_heads bad = fine;
    bad.n_kv_heads = 3;
    refused(&bad, &good, KVD_CPU_AUTO, "3 KV heads do not divide 4 query heads");
    bad = fine;
    bad.d_qk[1] = 0;
    refused(&bad, &good, KVD_CPU_AUTO, "KV head 1: d_qk is 0 and d_v is 8, want at least 1");
    q_len[1] = 2;
    refused(&fine, &good, KVD_CPU_AUTO,
            "request 1: q_len is 2 and kv_len is 1, want 1 <= q_len <= kv_len");
    q_len[1] = 1;
    refused(&fine, &good, 7, "instruction set 7 is not known");
    refused(&fine, &good, -1, "instruction set -1 is not known");
    if (kvd_cpu_isa_best() < KVD_CPU_AVX512)
        refused(&fine, &good, KVD_CPU_AVX512, "this processor has no avx512");
    int32_t longest[] = {INT32_MAX, INT32_MAX};
    bad = fine;
    bad.d_qk[0] = INT_MAX;
    refused(&bad, &(kvd_attn_batch){2, longest, longest}, KVD_CPU_AUTO,
            "4294967294 query rows and 4294967294 KV rows of 4 heads do not fit in memory");
}

TEST(test_names)
{
    assert_string_equal(kvd_cpu_isa_name(KVD_CPU_AUTO), "auto");
    assert_string_equal(kvd_cpu_isa_name(KVD_CPU_PORTABLE), "portable");
    assert_string_equal(kvd_cpu_isa_name(KVD_CPU_AVX2), "avx2");
    assert_string_equal(kvd_cpu_isa_name(KVD_CPU_AVX512), "avx512");
    assert_true(kvd_cpu_isa_best() >= KVD_CPU_PORTABLE);
}

TEST_MAIN(NULL, NULL)
