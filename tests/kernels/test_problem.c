#include <math.h>
#include <string.h>

#include "kernels/attention_ref.h"
#include "kernels/timing/attn_options.h"
#include "kernels/timing/bench.h"
#include "kernels/timing/impl.h"
#include "kernels/timing/problem.h"
#include "temp_folder.h"
#include "unit.h"

static kvd_problem problem(kvd_attn_phase phase, kvd_dtype dtype, int batch, size_t seq_len,
                           kvd_lengths lengths)
{
    kvd_problem p = {
        .phase = phase, .dtype = dtype, .seed = 7, .heads = {4, 2, 32, {16, 32}, {32, 8}, 0}};
    kvd_err err = {""};
    if (kvd_problem_lengths(&p, lengths, batch, seq_len, NULL, &err))
        fail_msg("%s", err.msg);
    return p;
}

TEST(test_values_are_normal)
{
    enum { N = 1 << 16 };
    const uint64_t key = kvd_value_key(3, KVD_OPERAND_K, 1, 2);
    double sum = 0, squares = 0, fourth = 0, neighbours = 0, most = 0, before = 0;
    for (uint32_t t = 0; t < N / 64; t++)
        for (uint32_t i = 0; i < 64; i++) {
            const double x = (double)kvd_value(key, KVD_OPERAND_K, 0, t, i);
            sum += x;
            squares += x * x;
            fourth += x * x * x * x;
            neighbours += x * before;
            most = fabs(x) > most ? fabs(x) : most;
            before = x;
        }
    /* x is a sum of eight random bytes, scaled to mean 0 and variance 1. Its fourth moment is
     * 3 - 1.2 / 8. */
    assert_true(fabs(sum / N) < 0.02);
    assert_true(fabs(squares / N - 1) < 0.03);
    assert_true(fabs(fourth / N - 2.85) < 0.15);
    assert_true(fabs(neighbours / N) < 0.02);
    assert_true(most < 4.9 && most > 3.5);
}

TEST(test_rows_are_parts_of_the_whole)
{
    kvd_err err = {""};
    kvd_problem p = problem(KVD_PREFILL, KVD_BF16, 2, 21, KVD_LENGTHS_EQUAL);
    float *const v = kvd_problem_plain(&p, KVD_OPERAND_V, &err);
    float row[32];
    assert_non_null(v);
    /* V of head 0 (2 requests x 21 tokens x 32 dimensions) is stored before V of head 1 (8
     * dimensions). */
    kvd_problem_rows(&p, KVD_OPERAND_V, 1, 1, 20, 1, 8, row);
    assert_memory_equal(row, v + 2 * 21 * 32 + 21 * 8 + 20 * 8, 8 * sizeof *row);
    for (int i = 0; i < 8; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i], sizeof bits);
        assert_int_equal(bits & 0xffff, 0);
    }
    free(v);
    kvd_problem_release(&p);
}

TEST(test_decode_queries_stand_at_the_end)
{
    kvd_err err = {""};
    kvd_problem p = problem(KVD_DECODE, KVD_F32, 1, 9, KVD_LENGTHS_EQUAL);
    float *const q = kvd_problem_plain(&p, KVD_OPERAND_Q, &err);
    float row[16];
    assert_non_null(q);
    kvd_problem_rows(&p, KVD_OPERAND_Q, 0, 0, 8, 1, 16, row);
    assert_memory_equal(row, q, sizeof row);
    free(q);
    kvd_problem_release(&p);
}

TEST(test_sharp_scores)
{
    kvd_problem p = problem(KVD_PREFILL, KVD_F32, 1, 512, KVD_LENGTHS_EQUAL);
    float normal[32], sharp[32];
    size_t outliers = 0;
    for (size_t t = 0; t < 512; t++) {
        p.sharp = false;
        kvd_problem_rows(&p, KVD_OPERAND_K, 0, 1, t, 1, 32, normal);
        p.sharp = true;
        kvd_problem_rows(&p, KVD_OPERAND_K, 0, 1, t, 1, 32, sharp);
        assert_true(fabsf(sharp[5]) >= 4 * fabsf(normal[5]) &&
                    fabsf(sharp[21]) >= 4 * fabsf(normal[21]));
        outliers += normal[0] != 0 && fabsf(sharp[0]) > fabsf(normal[0]);
        kvd_problem_rows(&p, KVD_OPERAND_V, 0, 1, t, 1, 8, sharp);
        p.sharp = false;
        kvd_problem_rows(&p, KVD_OPERAND_V, 0, 1, t, 1, 8, normal);
        assert_memory_equal(sharp, normal, 8 * sizeof *sharp);
    }
    assert_true(outliers >= 2 && outliers <= 25); /* about one value in 61 is an outlier */
    kvd_problem_release(&p);
}

TEST(test_lengths)
{
    kvd_problem p = problem(KVD_DECODE, KVD_F32, 200, 1000, KVD_LENGTHS_LOGNORMAL);
    int32_t most = 0, least = INT32_MAX;
    for (int b = 0; b < 200; b++) {
        assert_int_equal(p.q_len[b], 1);
        most = p.kv_len[b] > most ? p.kv_len[b] : most;
        least = p.kv_len[b] < least ? p.kv_len[b] : least;
    }
    assert_true(least >= 1 && least < 400 && most > 2000 && most <= 4000);
    assert_true(fabs((double)kvd_problem_tokens(&p, false) / 200000 - 1) < 0.1);
    assert_int_equal(kvd_problem_tokens(&p, true), 200);
    kvd_problem_release(&p);
    p = problem(KVD_PREFILL, KVD_F32, 3, 100, KVD_LENGTHS_ONE_LONG);
    assert_int_equal(p.q_len[0], 100);
    assert_int_equal(p.q_len[2], 7);
    kvd_problem_release(&p);
    kvd_err err = {""};
    p = (kvd_problem){.phase = KVD_PREFILL};
    assert_int_equal(kvd_problem_lengths(&p, KVD_LENGTHS_EQUAL, 65535, 1 << 27, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "more than kernels can count"));
    kvd_problem_release(&p);
}

static int parse(kvd_width_list *w, const char *text, kvd_err *err)
{
    *w = (kvd_width_list){.heads = {.n_heads = 8, .n_kv_heads = 4, .d_head = 64}};
    err->msg[0] = '\0';
    return kvd_width_list_parse(w, "--dims", text, err);
}

TEST(test_width_lists)
{
    kvd_width_list w;
    kvd_err err;
    assert_int_equal(parse(&w, "48", &err), 0);
    assert_int_equal(w.heads.d_qk[3], 48);
    assert_int_equal(w.heads.d_v[0], 48);
    assert_true(fabs(kvd_heads_p(&w.heads) - 0.25) < 1e-12);
    assert_string_equal(w.name, "48");
    assert_int_equal(parse(&w, "64:16,32", &err), 0);
    assert_int_equal(w.heads.d_qk[2], 64);
    assert_int_equal(w.heads.d_v[2], 16);
    assert_int_equal(w.heads.d_qk[3], 32);
    assert_int_equal(kvd_heads_widest(&w.heads), 64);
    assert_true(fabs(kvd_heads_p(&w.heads) - (1 - 144.0 / 256)) < 1e-12);
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"65", "'65' is not within 1 .. 64"},  {"0", "not within 1 .. 64"},
        {"16,", "'' is not a whole number"},   {"16:", "'' is not a whole number"},
        {"16:16:16", "is not a whole number"}, {"1,2,3,4,5", "has more widths than 4 KV heads"},
        {"nowhere.csv", "cannot open"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(parse(&w, bad[i].text, &err), -1);
        if (!strstr(err.msg, bad[i].words))
            fail_msg("%s: %s", bad[i].text, err.msg);
    }
}

TEST(test_width_files)
{
    const char *const path = temp_file("widths");
    static const struct {
        const char *text, *words;
    } files[] = {{"d_qk,d_v\n16,32\n64,48\n", NULL},
                 {"16,32\n64,48\n", NULL},
                 {"d_qk,d_v\n", "has no widths"},
                 {"16\n", "1 columns, 2 are wanted"},
                 {"16,32\nd_qk,d_v\n", "'d_qk' is not a whole number"},
                 {"16,128\n", "'128' is not within 1 .. 64"},
                 {"1,1\n1,1\n1,1\n1,1\n1,1\n", "more widths than 4 KV heads"}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        kvd_width_list w;
        kvd_err err;
        unit_write_text(path, files[i].text);
        const int status = parse(&w, path, &err);
        if (files[i].words) {
            assert_int_equal(status, -1);
            if (!strstr(err.msg, files[i].words))
                fail_msg("%zu: %s", i, err.msg);
            continue;
        }
        assert_int_equal(status, 0);
        assert_int_equal(w.heads.d_v[3], 48);
        assert_string_equal(w.name, "widths");
    }

    /* FILE:NAME selects the rows of FILE that have NAME in the first column. */
    kvd_width_list w;
    kvd_err err;
    char *text = NULL;
    const char *const folder = temp_folder();
    assert_true(asprintf(&text, "%s/lists.csv:b", folder) > 0);
    text[strlen(text) - 2] = '\0';
    unit_write_text(text, "a,48,64\nb,16,32\nb,64,48\nc,1\nend,4\n");
    text[strlen(text)] = ':';
    assert_int_equal(parse(&w, text, &err), 0);
    assert_string_equal(w.name, "b");
    assert_int_equal(w.heads.d_qk[0], 16);
    assert_int_equal(w.heads.d_v[3], 48);
    text[strlen(text) - 1] = 'c';
    assert_int_equal(parse(&w, text, &err), -1);
    assert_non_null(strstr(err.msg, "1 columns, 2 are wanted"));
    text[strlen(text) - 1] = 'd';
    assert_int_equal(parse(&w, text, &err), -1);
    assert_non_null(strstr(err.msg, "has no table 'd'"));
    free(text);
}

TEST(test_floors)
{
    /* 2 requests of 5 tokens, 4 query heads, 2 KV heads. KV head 0 keeps 16 dimensions of Q and K
     * and 32 of V, KV head 1 keeps 32 and 8. */
    kvd_problem p = problem(KVD_PREFILL, KVD_BF16, 2, 5, KVD_LENGTHS_EQUAL);
    const kvd_rate_ceilings rates = {
        .copy_bytes = 1e6, .read_bytes = 2e6, .flop = 1e9, .exps = 1e6};
    kvd_floors f;
    kvd_floors_count(&p, &p.heads, &f);
    kvd_floors_time(p.phase, &rates, &f);
    assert_true(f.exps == 2 * 15 * 4);
    assert_true(f.flop == 2.0 * 2 * 15 * (2 * 48 + 2 * 40));
    assert_true(f.bytes == 2.0 * (10 * (48 + 40) + 10 * (2 * 48 + 2 * 40)));
    assert_true(fabs(f.bytes_us - f.bytes) < 1e-9 && fabs(f.flop_us - f.flop * 1e-3) < 1e-9);
    assert_true(fabs(f.exps_us - f.exps) < 1e-9 && f.us == f.bytes_us);
    kvd_problem_release(&p);
    p = problem(KVD_DECODE, KVD_F32, 2, 5, KVD_LENGTHS_EQUAL);
    kvd_floors_count(&p, &p.heads, &f);
    kvd_floors_time(p.phase, &rates, &f);
    assert_true(f.exps == 2 * 5 * 4);
    assert_true(f.bytes == 4.0 * (10 * 88 + 2 * 176));
    assert_true(fabs(f.bytes_us - f.bytes / 2) < 1e-9);
    const kvd_rate_ceilings unknown = {0};
    kvd_floors_time(p.phase, &unknown, &f);
    assert_true(isnan(f.us) && isnan(f.bytes_us));
    kvd_problem_release(&p);
}

typedef struct {
    const kvd_problem *p;
    double *out; /* outputs of all rows, head by head (PLAIN layout) */
    int wrong_request, wrong_head;
    size_t wrong_t;
    float add;
} source;

static void row(const void *ctx, int request, int head, size_t t, int d_v, float *to)
{
    const source *const s = ctx;
    size_t at = 0, n = kvd_problem_tokens(s->p, true);
    for (int h = 0; h < head; h++)
        at += n * (size_t)s->p->heads.d_v[h / 2];
    for (int b = 0; b < request; b++)
        at += (size_t)s->p->q_len[b] * (size_t)d_v;
    for (int i = 0; i < d_v; i++)
        to[i] = (float)s->out[at + t * (size_t)d_v + (size_t)i];
    if (request == s->wrong_request && head == s->wrong_head && t == s->wrong_t)
        to[d_v - 1] += s->add;
}

static void check_rows(kvd_attn_phase phase, kvd_lengths lengths)
{
    kvd_err err = {""};
    kvd_problem p = problem(phase, KVD_F16, 3, 70, lengths);
    const kvd_attn_batch batch = kvd_problem_batch(&p);
    kvd_row_check c;
    kvd_row_error e;
    float *const q = kvd_problem_plain(&p, KVD_OPERAND_Q, &err),
                 *const k = kvd_problem_plain(&p, KVD_OPERAND_K, &err),
                 *const v = kvd_problem_plain(&p, KVD_OPERAND_V, &err);
    source s = {&p, calloc(kvd_problem_tokens(&p, true) * 80, sizeof(double)), -1, 0, 0, 0};
    assert_true(q && k && v && s.out);
    assert_int_equal(kvd_attention_ref(&p.heads, &batch, q, k, v, s.out, NULL, &err), 0);
    assert_int_equal(kvd_row_check_make(&c, &p, &p.heads, kvd_problem_rows, KVD_CHECK_ALL, &err),
                     0);
    assert_int_equal(c.n, 4 * kvd_problem_tokens(&p, true));
    assert_int_equal(kvd_row_check_compare(&c, row, &s, &e, &err), 0);
    assert_true(e.rel_err < 1e-7 && e.worst < 1e-6);
    s.wrong_request = 2;
    s.wrong_head = 1;
    s.wrong_t = (size_t)p.q_len[2] - 1;
    s.add = 1;
    assert_int_equal(kvd_row_check_compare(&c, row, &s, &e, &err), 0);
    assert_true(e.worst > 0.2 && e.rel_err > 1e-3 && e.rel_err < e.worst);
    s.add = NAN;
    assert_int_equal(kvd_row_check_compare(&c, row, &s, &e, &err), 0);
    assert_true(isnan(e.rel_err) && isnan(e.worst));
    kvd_row_check_release(&c);
    assert_int_equal(kvd_row_check_make(&c, &p, &p.heads, kvd_problem_rows, KVD_CHECK_ROWS, &err),
                     0);
    size_t last = 0;
    for (size_t i = 0; i < c.n; i++)
        last += c.row[i].t + 1 == (size_t)p.q_len[c.row[i].request];
    assert_true(last >= 3 * 2 && c.n <= 4 * kvd_problem_tokens(&p, true));
    kvd_row_check_release(&c);
    assert_int_equal(kvd_row_check_make(&c, &p, &p.heads, kvd_problem_rows, KVD_CHECK_NONE, &err),
                     0);
    assert_int_equal(c.n, 0);
    free(q);
    free(k);
    free(v);
    free(s.out);
    kvd_problem_release(&p);
}

TEST(test_check_prefill)
{
    check_rows(KVD_PREFILL, KVD_LENGTHS_EQUAL);
    check_rows(KVD_PREFILL, KVD_LENGTHS_LOGNORMAL);
}

TEST(test_check_decode)
{
    check_rows(KVD_DECODE, KVD_LENGTHS_ONE_LONG);
}

TEST(test_statistics)
{
    kvd_err err = {""};
    double us[] = {200, 100, NAN, 102, 98, 100, 101, 99, 5000};
    kvd_bench_rival r = {.name = "x", .us = us, .throttled = 1};
    kvd_bench_stats s;
    assert_int_equal(kvd_bench_summarise(&r, 9, &s, &err), 0);
    assert_int_equal(s.n, 8);
    assert_true(s.median_us == 100.5 && s.min_us == 98 && s.mad_us == 1.5);
    assert_string_equal(s.warnings, "slow-first outliers throttled");
    us[0] = us[8] = 20;
    r.throttled = 0;
    assert_int_equal(kvd_bench_summarise(&r, 1, &s, &err), 0);
    assert_true(s.median_us == 20 && s.mad_us == 0);
    assert_string_equal(s.warnings, "short");
    us[0] = NAN;
    assert_int_equal(kvd_bench_summarise(&r, 1, &s, &err), 0);
    assert_int_equal(s.n, 0);
    assert_true(isnan(s.median_us));
}

typedef struct {
    int launches, prepared;
} counter;

static int prepare(void *ctx, void *stream, kvd_err *err)
{
    (void)stream;
    (void)err;
    ((counter *)ctx)->prepared++;
    return 0;
}

static int launch(void *ctx, void *stream, kvd_err *err)
{
    counter *const c = ctx;
    (void)stream;
    return ++c->launches > 50 ? kvd_fail(err, "enough") : 0;
}

TEST(test_rounds)
{
    kvd_err err = {""};
    kvd_bench *b;
    counter c[2] = {{0}, {0}};
    double us[2][10];
    kvd_bench_rival r[2] = {
        {.name = "a", .launch = launch, .prepare = prepare, .ctx = &c[0], .us = us[0]},
        {.name = "b", .launch = launch, .ctx = &c[1], .us = us[1]}};
    const kvd_bench_plan plan = {.warmup = 3, .samples = 10, .cold = false};
    assert_int_equal(kvd_bench_open(false, &b, &err), 0);
    assert_int_equal(kvd_bench_run(b, &plan, r, 2, &err), 0);
    assert_true(c[0].launches == 14 && c[1].launches == 14 && c[0].prepared == 14);
    for (int i = 0; i < 10; i++)
        assert_true(us[0][i] >= 0 && us[1][i] >= 0);
    assert_true(isnan(r[0].sm_clock_mhz));
    c[1].launches = 49;
    assert_int_equal(kvd_bench_run(b, &plan, r, 2, &err), -1);
    assert_string_equal(err.msg, "b: enough");
    kvd_bench_close(b);
}

TEST_MAIN(NULL, NULL)
