/* Tests CPU attention at lengths near the size of a block of queries. */
#include <math.h>
#include <string.h>

#include "model/pass/attention.h"
#include "unit.h"

static uint64_t state = 362436069u;

static float *random_floats(size_t n)
{
    float *x = unit_alloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (int r = 0; r < 3; r++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(state >> 11) / 4503599627370496.0 - 1.0;
        }
        x[i] = (float)sum;
    }
    return x;
}

static double distance(const float *a, size_t lda, const double *b, size_t rows, size_t cols)
{
    double d = 0, s = 0;
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < cols; j++) {
            d += pow((double)a[i * lda + j] - b[i * cols + j], 2);
            s += pow(b[i * cols + j], 2);
        }
    return sqrt(d / s);
}

static const size_t windows[] = {0, 1, 40, 128, 200, 1000};
enum { N_WINDOWS = sizeof windows / sizeof windows[0] };
static size_t window;

static int sees(size_t query, size_t key)
{
    return key <= query && (window == 0 || key + window > query);
}

static void reference(size_t n, size_t d_qk, size_t d_v, const float *q, size_t ldq, const float *k,
                      size_t ldk, const float *v, size_t ldv, double scale, double *p, double *out)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (size_t t = 0; t < n; t++) {
            double s = 0;
            for (size_t j = 0; j < d_qk; j++)
                s += (double)q[i * ldq + j] * (double)k[t * ldk + j];
            p[i * n + t] = sees(i, t) ? exp(scale * s) : 0;
            sum += p[i * n + t];
        }
        for (size_t t = 0; t < n; t++)
            p[i * n + t] /= sum;
        for (size_t j = 0; j < d_v; j++) {
            out[i * d_v + j] = 0;
            for (size_t t = 0; t <= i; t++)
                out[i * d_v + j] += p[i * n + t] * (double)v[t * ldv + j];
        }
    }
}

static const size_t lengths[] = {1, 2, 127, 128, 129, 300};
enum { N_LENGTHS = sizeof lengths / sizeof lengths[0] };

TEST(test_head_against_reference)
{
    const size_t widths[][2] = {{16, 16}, {64, 64}, {5, 33}, {48, 16}, {1, 1}};
    for (size_t a = 0; a < N_LENGTHS; a++)
        for (size_t w = 0; w < 5 + N_WINDOWS; w++) {
            window = w < 5 ? 0 : windows[w - 5];
            const size_t n = lengths[a], d_qk = widths[w % 5][0], d_v = widths[w % 5][1];
            const size_t ldq = d_qk + 3, ldk = d_qk, ldv = d_v + 1, ldo = d_v + 2;
            float *q = random_floats(n * ldq), *k = random_floats(n * ldk),
                  *v = random_floats(n * ldv);
            float *scores = random_floats(n * n), *out = random_floats(n * ldo),
                  *rows = random_floats(n * ldo);
            double *p = unit_alloc(n * n * sizeof *p), *exact = unit_alloc(n * d_v * sizeof *exact);
            const float before = out[d_v];
            reference(n, d_qk, d_v, q, ldq, k, ldk, v, ldv, 0.25, p, exact);
            kvd_attend_head(n, window, d_qk, d_v, q, ldq, k, ldk, v, ldv,
                            (kvd_scores){.scale = 0.25f}, scores, out, ldo);
            assert_true(distance(out, ldo, exact, n, d_v) < 2e-6);
            assert_true(distance(scores, n, p, n, n) < 2e-6);
            for (size_t i = 0; i < n; i++) {
                double sum = 0;
                for (size_t t = 0; t < n; t++) {
                    sum += (double)scores[i * n + t];
                    assert_true(sees(i, t) || scores[i * n + t] == 0);
                }
                assert_true(fabs(sum - 1) < 1e-5);
            }
            assert_true(out[d_v] == before);

            for (size_t first = 0; first < n; first += 50)
                kvd_attend_rows(first, n - first < 50 ? n - first : 50, window, d_qk, d_v,
                                q + first * ldq, ldq, k, ldk, v, ldv, (kvd_scores){.scale = 0.25f},
                                scores, rows + first * ldo, ldo);
            assert_true(distance(rows, ldo, exact, n, d_v) < 2e-6);
        }
}

typedef struct {
    kvd_config config;
    size_t offset[N_LENGTHS + 1];
    float *q, *k, *v, *out;
    kvd_attention_in in;
} batch;

static void make_batch(batch *b, int heads, int kv_heads, int d)
{
    *b = (batch){.config = {.n_heads = heads, .n_kv_heads = kv_heads, .d_head = d}};
    for (size_t s = 0; s < N_LENGTHS; s++)
        b->offset[s + 1] = b->offset[s] + lengths[s];
    const size_t n = b->offset[N_LENGTHS], width_q = (size_t)heads * (size_t)d,
                 width_k = (size_t)kv_heads * (size_t)d;
    b->q = random_floats(n * width_q);
    b->k = random_floats(n * width_k);
    b->v = random_floats(n * width_k);
    b->out = random_floats(n * width_q);
    b->in = (kvd_attention_in){.config = &b->config,
                               .n_sequences = N_LENGTHS,
                               .offset = b->offset,
                               .n_tokens = n,
                               .q = b->q,
                               .k = b->k,
                               .v = b->v,
                               .window = window};
}

static void check_batch(const batch *b)
{
    const size_t d = (size_t)b->config.d_head, heads = (size_t)b->config.n_heads,
                 kv = (size_t)b->config.n_kv_heads;
    for (size_t s = 0; s < N_LENGTHS; s++)
        for (size_t h = 0; h < heads; h++) {
            const size_t n = lengths[s], at = b->offset[s], g = h / (heads / kv);
            double *p = unit_alloc(n * n * sizeof *p), *exact = unit_alloc(n * d * sizeof *exact);
            reference(n, d, d, b->q + (at * heads + h) * d, heads * d, b->k + (at * kv + g) * d,
                      kv * d, b->v + (at * kv + g) * d, kv * d, 1 / sqrt((double)d), p, exact);
            assert_true(distance(b->out + (at * heads + h) * d, heads * d, exact, n, d) < 2e-6);
        }
}

static const int shapes[][3] = {{1, 1, 64}, {4, 4, 6}, {6, 2, 16}, {5, 1, 32}};

TEST(test_dense_groups_and_ragged_batches)
{
    kvd_err err;
    kvd_dense_attention a;
    kvd_dense_attention_init(&a);
    for (size_t i = 0; i < 4 * N_WINDOWS; i++) {
        batch b;
        window = windows[i / 4];
        make_batch(&b, shapes[i % 4][0], shapes[i % 4][1], shapes[i % 4][2]);
        assert_int_equal(a.hook.run(&a.hook, &b.in, b.out, &err), 0);
        check_batch(&b);
    }
    kvd_dense_attention_release(&a);
    kvd_dense_attention_release(&a);
}

typedef struct {
    const batch *b;
    int calls;
    int fail_at;
} watch;

static int check_probabilities(void *ctx, const kvd_attention_in *in, size_t sequence, int head,
                               const float *prob, size_t n, kvd_err *err)
{
    watch *w = ctx;
    const int heads = in->config->n_heads;
    assert_int_equal((int)sequence * heads + head, w->calls);
    assert_int_equal(n, lengths[sequence]);
    assert_true(fabs((double)prob[0] - 1) < 1e-6);
    const size_t d = (size_t)in->config->d_head, kv = (size_t)in->config->n_kv_heads;
    const size_t g = (size_t)(head / (heads / in->config->n_kv_heads)), at = in->offset[sequence],
                 last = n - 1;
    for (size_t j = 0; j < d; j++) {
        double sum = 0;
        for (size_t t = 0; t < n; t++)
            sum += (double)prob[last * n + t] * (double)in->v[((at + t) * kv + g) * d + j];
        assert_true(
            fabs(sum - (double)w->b->out[((at + last) * (size_t)heads + (size_t)head) * d + j]) <
            1e-5);
    }
    return w->calls++ == w->fail_at ? kvd_fail(err, "enough") : 0;
}

TEST(test_probabilities)
{
    kvd_err err;
    for (size_t i = 0; i < 4; i++) {
        batch b;
        kvd_dense_attention a;
        window = i < 2 ? 0 : 60;
        kvd_dense_attention_init(&a);
        make_batch(&b, shapes[i][0], shapes[i][1], shapes[i][2]);
        watch w = {.b = &b, .fail_at = -1};
        a.probabilities = check_probabilities;
        a.ctx = &w;
        assert_int_equal(a.hook.run(&a.hook, &b.in, b.out, &err), 0);
        assert_int_equal(w.calls, N_LENGTHS * shapes[i][0]);
        check_batch(&b);
        w = (watch){.b = &b, .fail_at = 1};
        assert_int_equal(a.hook.run(&a.hook, &b.in, b.out, &err), -1);
        assert_string_equal(err.msg, "enough");
        assert_int_equal(w.calls, 2);
        kvd_dense_attention_release(&a);
    }
}

typedef struct {
    int recorded, seen, fail_record, fail_output;
    const float *out;
} tally;

static int record(void *ctx, const kvd_attention_in *in, kvd_err *err)
{
    tally *t = ctx;
    (void)in;
    assert_int_equal(t->recorded, t->seen);
    t->recorded++;
    return t->fail_record ? kvd_fail(err, "cannot record") : 0;
}

static int see_output(void *ctx, const kvd_attention_in *in, const float *out, kvd_err *err)
{
    tally *t = ctx;
    (void)in;
    t->seen++;
    assert_int_equal(t->recorded, t->seen);
    assert_ptr_equal(out, t->out);
    return t->fail_output ? kvd_fail(err, "cannot store") : 0;
}

TEST(test_capture_records_then_computes)
{
    kvd_err err;
    batch b;
    kvd_dense_attention a;
    kvd_capture t;
    kvd_dense_attention_init(&a);
    window = 0;
    make_batch(&b, 4, 2, 8);
    tally y = {.out = b.out};
    a.hook.wants_pre = 1;
    kvd_capture_init(&t, &a.hook);
    assert_int_equal(t.hook.wants_pre, 1);
    assert_int_equal(t.hook.run(&t.hook, &b.in, b.out, &err), 0);
    check_batch(&b);
    memset(b.out, 0, b.in.n_tokens * 32 * sizeof *b.out);
    t.record = record;
    t.output = see_output;
    t.ctx = &y;
    assert_int_equal(t.hook.run(&t.hook, &b.in, b.out, &err), 0);
    check_batch(&b);
    assert_int_equal(y.seen, 1);
    y.fail_output = 1;
    assert_int_equal(t.hook.run(&t.hook, &b.in, b.out, &err), -1);
    assert_string_equal(err.msg, "cannot store");
    y.fail_record = 1;
    assert_int_equal(t.hook.run(&t.hook, &b.in, b.out, &err), -1);
    assert_string_equal(err.msg, "cannot record");
    assert_int_equal(y.seen, 2);
    kvd_dense_attention_release(&a);
}

TEST_MAIN(NULL, NULL)
