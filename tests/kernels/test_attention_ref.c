/* Tests the float64 reference of attention. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "attention_case.h"
#include "kernels/attention_ref.h"
#include "unit.h"

static void ragged(attention_case *c, double factor)
{
    static const int d_qk[] = {16, 7, 48}, d_v[] = {24, 32, 1};
    static const int32_t q_len[] = {3, 1, 10}, kv_len[] = {3, 21, 17};
    case_make(c, 6, 3, 64, d_qk, d_v, 3, q_len, kv_len, factor, 1);
}

TEST(test_pytorch)
{
    int32_t n;
    FILE *f = case_open(&n);
    for (int i = 0; i < n; i++) {
        attention_case c;
        case_next(f, &c);
        const size_t n_lse = (size_t)c.heads.n_heads * c.plain.n_q;
        double *lse = case_get(n_lse, sizeof *lse), *out = case_reference(&c, lse);
        assert_true(case_error(out, c.out, c.plain.o_elements) < 1e-14);
        for (size_t j = 0; j < n_lse; j++)
            assert_true(fabs(lse[j] - c.lse[j]) <= 1e-13 * (1 + fabs(c.lse[j])));
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

TEST(test_row_is_a_row)
{
    attention_case c;
    kvd_err err;
    ragged(&c, 1);
    double *out = case_reference(&c, NULL), row[32];
    size_t first = 0;
    for (int b = 0; b < c.batch.batch; b++) {
        for (int h = 0; h < c.heads.n_heads; h++)
            for (size_t t = 0; t < (size_t)c.q_len[b]; t++) {
                const size_t d = (size_t)c.heads.d_v[h / 2];
                assert_int_equal(
                    kvd_attention_ref_row(&c.heads, &c.batch, b, h, t, c.q, c.k, c.v, row, &err),
                    0);
                assert_memory_equal(row, out + c.plain.o_at[h] + (first + t) * d, d * sizeof *row);
            }
        first += (size_t)c.q_len[b];
    }
}

TEST(test_convex)
{
    attention_case c;
    ragged(&c, 10);
    for (size_t i = 0; i < c.plain.v_elements; i++)
        c.v[i] = 1.5f;
    double *out = case_reference(&c, NULL);
    for (size_t i = 0; i < c.plain.o_elements; i++)
        assert_true(fabs(out[i] - 1.5) < 1e-14);

    ragged(&c, 1e6);
    out = case_reference(&c, NULL);
    for (int h = 0; h < c.heads.n_heads; h++)
        for (int i = 0; i < c.heads.d_v[h / 2]; i++)
            assert_true(out[c.plain.o_at[h] + (size_t)i] ==
                        (double)c.v[c.plain.v_at[h / 2] + (size_t)i]);
}

/* An attention sink acts like a key with value 0. */
TEST(test_sinks)
{
    static const float sink[] = {0, 2, -3, 40, -400, 0.5f};
    attention_case c;
    kvd_err err;
    ragged(&c, 1);
    const size_t n_q = c.plain.n_q;
    double *lse = case_get((size_t)c.heads.n_heads * n_q, sizeof *lse),
           *got_lse = case_get((size_t)c.heads.n_heads * n_q, sizeof *got_lse),
           *out = case_reference(&c, lse), *got = case_get(c.plain.o_elements, sizeof *got);
    assert_int_equal(
        kvd_attention_ref_sinks(&c.heads, &c.batch, sink, c.q, c.k, c.v, got, got_lse, &err), 0);
    for (int h = 0; h < c.heads.n_heads; h++)
        for (size_t row = 0; row < n_q; row++) {
            const double was = lse[(size_t)h * n_q + row], now = got_lse[(size_t)h * n_q + row];
            const size_t d = (size_t)c.heads.d_v[h / 2];
            assert_true(fabs(now - log(exp(was) + exp((double)sink[h]))) < 1e-12);
            for (size_t i = 0; i < d; i++) {
                const size_t at = c.plain.o_at[h] + row * d + i;
                assert_true(fabs(got[at] - out[at] * exp(was - now)) < 1e-13);
            }
        }
}

/* For n equal scores, the log-sum-exp must be the score + log n. */
TEST(test_equal_scores)
{
    enum { N = 9, D_QK = 4, D_V = 3 };
    attention_case c;
    case_make(&c, 1, 1, 25, (int[]){D_QK}, (int[]){D_V}, 1, (int32_t[]){N}, (int32_t[]){N}, 1, 3);
    for (size_t i = 0; i < N * D_QK; i++) {
        c.q[i] = 2;
        c.k[i] = 3;
    }
    double lse[N], *out = case_reference(&c, lse);
    for (size_t t = 0; t < N; t++) {
        assert_true(fabs(lse[t] - (6. * D_QK / 5 + log((double)t + 1))) < 1e-13);
        for (size_t i = 0; i < D_V; i++) {
            double mean = 0;
            for (size_t j = 0; j <= t; j++)
                mean += (double)c.v[j * D_V + i] / ((double)t + 1);
            assert_true(fabs(out[t * D_V + i] - mean) < 1e-14);
        }
    }
}

TEST(test_chunks)
{
    enum { N = 13 };
    static const int d_qk[] = {5, 16}, d_v[] = {8, 3};
    attention_case c, part;
    case_make(&c, 4, 2, 16, d_qk, d_v, 1, (int32_t[]){N}, (int32_t[]){N}, 2, 4);
    double *whole = case_reference(&c, NULL);
    for (int chunk = 1; chunk <= 6; chunk += 5)
        for (int first = 0; first < N; first += chunk) {
            const int32_t n = first + chunk < N ? chunk : N - first, end = first + n;
            case_make(&part, 4, 2, 16, d_qk, d_v, 1, &n, &end, 1, 5);
            for (int h = 0; h < 4; h++)
                memcpy(part.q + part.plain.q_at[h], c.q + c.plain.q_at[h] + first * d_qk[h / 2],
                       (size_t)(n * d_qk[h / 2]) * sizeof *c.q);
            for (int g = 0; g < 2; g++) {
                memcpy(part.k + part.plain.k_at[g], c.k + c.plain.k_at[g],
                       (size_t)(end * d_qk[g]) * sizeof *c.k);
                memcpy(part.v + part.plain.v_at[g], c.v + c.plain.v_at[g],
                       (size_t)(end * d_v[g]) * sizeof *c.v);
            }
            double *out = case_reference(&part, NULL);
            for (int h = 0; h < 4; h++)
                assert_memory_equal(out + part.plain.o_at[h],
                                    whole + c.plain.o_at[h] + first * d_v[h / 2],
                                    (size_t)(n * d_v[h / 2]) * sizeof *out);
        }
}

TEST(test_key_order)
{
    enum { N = 31, D = 8 };
    attention_case c;
    case_make(&c, 1, 1, 64, (int[]){D}, (int[]){D}, 1, (int32_t[]){1}, (int32_t[]){N}, 3, 6);
    double *before = case_reference(&c, NULL);
    for (size_t t = 0; t < N / 2; t++)
        for (size_t i = 0; i < D; i++) {
            float *const m[] = {c.k, c.v};
            for (int x = 0; x < 2; x++) {
                const float kept = m[x][t * D + i];
                m[x][t * D + i] = m[x][(N - 1 - t) * D + i];
                m[x][(N - 1 - t) * D + i] = kept;
            }
        }
    double *after = case_reference(&c, NULL);
    assert_true(case_error(after, before, D) < 1e-14);
}

TEST(test_nan)
{
    enum { N = 6, D = 4 };
    for (int where = 0; where < 3; where++) {
        attention_case c;
        case_make(&c, 1, 1, D, (int[]){D}, (int[]){D}, 1, (int32_t[]){N}, (int32_t[]){N}, 1, 7);
        float *const m[] = {c.q, c.k, c.v};
        m[where][3 * D + 1] = NAN;
        double *out = case_reference(&c, NULL);
        for (size_t t = 0; t < N; t++)
            for (size_t i = 0; i < D; i++) {
                const bool spoilt = where == 0 ? t == 3 : where == 1 ? t >= 3 : t >= 3 && i == 1;
                assert_int_equal(isnan(out[t * D + i]) != 0, spoilt);
            }
    }
}

static void refused(const kvd_attn_heads *heads, const kvd_attn_batch *batch, const char *message)
{
    kvd_err err = {""};
    float x = 0;
    double out = 0;
    assert_int_equal(kvd_attention_ref(heads, batch, &x, &x, &x, &out, NULL, &err), -1);
    assert_string_equal(err.msg, message);
    err.msg[0] = '\0';
    assert_int_equal(kvd_attention_ref_row(heads, batch, 0, 0, 0, &x, &x, &x, &out, &err), -1);
    assert_string_equal(err.msg, message);
}

TEST(test_window)
{
    static const int windows[] = {1, 7, 30, 33};
    const int d_qk[] = {12, 5}, d_v[] = {9, 16};
    const int32_t q_len[] = {20}, kv_len[] = {33};
    kvd_err err = {""};
    attention_case c;
    case_make(&c, 4, 2, 16, d_qk, d_v, 1, q_len, kv_len, 2, 5);
    double *const all = case_get(c.plain.o_elements, sizeof *all);
    assert_int_equal(kvd_attention_ref(&c.heads, &c.batch, c.q, c.k, c.v, all, NULL, &err), 0);
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        const int window = windows[w];
        double *const got = case_get(c.plain.o_elements, sizeof *got);
        c.heads.window = window;
        assert_int_equal(kvd_attention_ref(&c.heads, &c.batch, c.q, c.k, c.v, got, NULL, &err), 0);
        for (int h = 0; h < 4; h++)
            for (int t = 0; t < 20; t++) {
                const int g = h / 2, end = 13 + t + 1, seen = end < window ? end : window;
                const int32_t one = 1, n = seen;
                const kvd_attn_heads alone = {.n_heads = 1,
                                              .n_kv_heads = 1,
                                              .d_head = 16,
                                              .d_qk = {d_qk[g]},
                                              .d_v = {d_v[g]}};
                const kvd_attn_batch last = {1, &one, &n};
                const size_t from = (size_t)(end - seen), qk = (size_t)d_qk[g], v = (size_t)d_v[g];
                double want[16];
                assert_int_equal(
                    kvd_attention_ref(&alone, &last, c.q + c.plain.q_at[h] + (size_t)t * qk,
                                      c.k + c.plain.k_at[g] + from * qk,
                                      c.v + c.plain.v_at[g] + from * v, want, NULL, &err),
                    0);
                assert_memory_equal(got + c.plain.o_at[h] + (size_t)t * v, want, v * sizeof *want);
            }
        assert_int_equal(!memcmp(got, all, c.plain.o_elements * sizeof *all), window == 33);
    }
}

TEST(test_refused)
{
    int32_t q_len[2] = {1, 1}, kv_len[2] = {1, 1};
    const kvd_attn_batch good = {2, q_len, kv_len};
    const kvd_attn_heads fine = {
        .n_heads = 4, .n_kv_heads = 2, .d_head = 16, .d_qk = {8, 8}, .d_v = {8, 8}};
    kvd_attn_heads bad = fine;
    bad.n_heads = 0;
    refused(&bad, &good, "0 query heads, want 1 to 128");
    bad.n_heads = 129;
    refused(&bad, &good, "129 query heads, want 1 to 128");
    bad = fine;
    bad.n_kv_heads = 3;
    refused(&bad, &good, "3 KV heads do not divide 4 query heads");
    bad.n_kv_heads = 8;
    refused(&bad, &good, "8 KV heads do not divide 4 query heads");
    bad.n_kv_heads = -1;
    refused(&bad, &good, "-1 KV heads do not divide 4 query heads");
    bad = fine;
    bad.window = -1;
    refused(&bad, &good, "the window is -1, want at least 1, or 0 for none");
    bad = fine;
    bad.d_head = 0;
    refused(&bad, &good, "d_head is 0, want at least 1");
    bad = fine;
    bad.d_v[1] = 0;
    refused(&bad, &good, "KV head 1: d_qk is 8 and d_v is 0, want at least 1");
    bad.d_qk[0] = -16;
    refused(&bad, &good, "KV head 0: d_qk is -16 and d_v is 8, want at least 1");
    refused(&fine, &(kvd_attn_batch){0, q_len, kv_len}, "0 requests, want at least 1");
    refused(&fine, &(kvd_attn_batch){-5, q_len, kv_len}, "-5 requests, want at least 1");
    q_len[1] = 0;
    refused(&fine, &good, "request 1: q_len is 0 and kv_len is 1, want 1 <= q_len <= kv_len");
    q_len[1] = 2;
    refused(&fine, &good, "request 1: q_len is 2 and kv_len is 1, want 1 <= q_len <= kv_len");
    q_len[1] = 1;
    kv_len[1] = -7;
    refused(&fine, &good, "request 1: q_len is 1 and kv_len is -7, want 1 <= q_len <= kv_len");

    /* Q, K and V of two requests of 2^31 - 1 tokens do not fit in memory. */
    int32_t longest[] = {INT32_MAX, INT32_MAX};
    bad = fine;
    bad.d_qk[1] = INT_MAX;
    refused(&bad, &(kvd_attn_batch){2, longest, longest},
            "4294967294 query rows and 4294967294 KV rows of 4 heads do not fit in memory");
}

TEST(test_row_refused)
{
    attention_case c;
    kvd_err err = {""};
    double out[32];
    ragged(&c, 1);
    assert_int_equal(kvd_attention_ref_row(&c.heads, &c.batch, 3, 0, 0, c.q, c.k, c.v, out, &err),
                     -1);
    assert_string_equal(err.msg, "request 3 of 3");
    assert_int_equal(kvd_attention_ref_row(&c.heads, &c.batch, 0, -1, 0, c.q, c.k, c.v, out, &err),
                     -1);
    assert_string_equal(err.msg, "query head -1 of 6");
    assert_int_equal(kvd_attention_ref_row(&c.heads, &c.batch, 1, 0, 1, c.q, c.k, c.v, out, &err),
                     -1);
    assert_string_equal(err.msg, "query 1 of 1 in request 1");
}

TEST_MAIN(NULL, NULL)
