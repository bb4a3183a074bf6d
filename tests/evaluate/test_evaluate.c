#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dims_fixture.h"
#include "evaluate/eval_run.h"
#include "evaluate/evaluate.h"
#include "make_checkpoint.h"
#include "temp_folder.h"
#include "unit.h"

static char path[80];
static kvd_checkpoint *checkpoint;
static const kvd_config *config;
static kvd_corpus *corpus;
static kvd_spectrum spectrum;
enum { TOKENS = 200, SEQ_LEN = 48 };

static int setup(void **state)
{
    (void)state;
    kvd_err err = {""};
    made_spec spec = MADE_SPEC_DEFAULTS;
    spec.layers = 3;
    snprintf(path, sizeof path, "/tmp/test_evaluate.%ld.bin", (long)getpid());
    const kvd_corpus_spec data = {
        .n_random = TOKENS, .seed = 4, .seq_len = SEQ_LEN, .vocab_size = (size_t)spec.vocab};
    if (make_llama2c(path, &spec, &err) || !(checkpoint = kvd_checkpoint_open(path, &err)) ||
        !(corpus = kvd_corpus_open(&data, NULL, &err))) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    config = kvd_checkpoint_config(checkpoint);
    return fixture_spectrum(&spectrum, config, 2, &err);
}

static int teardown(void **state)
{
    (void)state;
    kvd_spectrum_release(&spectrum);
    kvd_corpus_close(corpus);
    kvd_checkpoint_close(checkpoint);
    unlink(path);
    strcpy(strrchr(path, '.'), ".tok.bin");
    unlink(path);
    return 0;
}

typedef struct {
    kvd_model_runner *runner;
    kvd_evaluator e;
} bench;

static void open_bench(bench *b, size_t max_tokens, bool keep)
{
    kvd_err err = {""};
    b->runner = kvd_runner_cpu(checkpoint, max_tokens, SEQ_LEN, &err);
    assert_non_null(b->runner);
    OK(kvd_evaluator_init(&b->e, b->runner, corpus, 0, keep, &err));
}

static void close_bench(bench *b)
{
    kvd_evaluator_release(&b->e);
    b->runner->free(b->runner);
}

static void build(kvd_dims *d, const kvd_dims_method *m, double p)
{
    kvd_err err;
    kvd_widths w;
    OK(kvd_widths_alloc(&w, config->n_layers, config->n_kv_heads, config->d_head, &err));
    assert_int_equal(kvd_widths_uniform(&w, p), 0);
    OK(kvd_dims_build(d, m, &spectrum, &w, &err));
    kvd_widths_release(&w);
}

static kvd_quality total(const kvd_quality *q, size_t n)
{
    kvd_quality sum = {0};
    for (size_t i = 0; i < n; i++) {
        sum.n += q[i].n;
        sum.nll += q[i].nll;
        sum.top1 += q[i].top1;
        sum.kl += q[i].kl;
        sum.agree += q[i].agree;
    }
    return sum;
}

TEST(test_none_is_the_reference)
{
    kvd_err err = {""};
    bench b;
    open_bench(&b, TOKENS, false);
    kvd_choice c = {.method = "none", .plan = {.type = KVD_F32}};
    OK(kvd_evaluate(&b.e, &c, 1, 0, true, NULL, &err));
    const kvd_quality ref = total(b.e.reference, b.e.n_sequences),
                      q = total(c.per_sequence, b.e.n_sequences);
    assert_true(ref.n == TOKENS - (double)b.e.n_sequences && q.n == ref.n);
    assert_true(ref.agree == ref.n && ref.kl == 0);
    assert_true(fabs(q.nll - ref.nll) < 1e-4 && fabs(q.kl) < 1e-6 && q.agree == q.n);
    double norm, zdc, zeros;
    kvd_attention_error_mean(&c.error, &norm, &zdc, &zeros);
    assert_true(norm < 1e-5 && zdc < 1e-3 && zeros >= 0);
    assert_int_equal(c.account.calls, b.e.n_sequences * 3);
    kvd_choice_release(&c);
    close_bench(&b);
}

TEST(test_ways_to_the_same_sums)
{
    kvd_err err = {""};
    kvd_dims half, most;
    kvd_quality want[2];
    memset(want, 0, sizeof want);
    build(&half, &kvd_dims_zack, 0.5);
    build(&most, &kvd_dims_balanced, 0.75);
    for (int way = 0; way < 4; way++) {
        bench b;
        open_bench(&b, way == 1 ? SEQ_LEN : TOKENS, way >= 2);
        kvd_choice c[2] = {
            {.method = "zack", .overall_p = 0.5, .plan = {.dims = &half, .type = KVD_F32}},
            {.method = "balanced", .overall_p = 0.75, .plan = {.dims = &most, .type = KVD_F32}}};
        if (way == 2)
            OK(kvd_evaluate(&b.e, NULL, 0, 0, false, NULL, &err));
        if (way == 3) {
            OK(kvd_evaluate(&b.e, &c[1], 1, 0, true, NULL, &err));
            OK(kvd_evaluate(&b.e, &c[0], 1, 0, false, NULL, &err));
        } else {
            OK(kvd_evaluate(&b.e, c, 2, 0, way != 2, NULL, &err));
        }
        for (int i = 0; i < 2; i++) {
            const kvd_quality q = total(c[i].per_sequence, b.e.n_sequences);
            if (way == 0) {
                want[i] = q;
                assert_true(q.kl > 1e-3 * q.n);
                assert_true(c[i].error.norm2[0] > 0 &&
                            kvd_attention_error_norm(&c[i].error, 2, 3) > 1e-2);
            }
            assert_true(fabs(q.nll - want[i].nll) < 1e-5 * want[i].nll);
            assert_true(fabs(q.kl - want[i].kl) < 1e-4 * want[i].kl);
            kvd_choice_release(&c[i]);
        }
        close_bench(&b);
    }
    kvd_dims_release(&half);
    kvd_dims_release(&most);
}

static size_t nothing_to_spare(const kvd_model_runner *r)
{
    (void)r;
    return 1000;
}

TEST(test_reference_that_does_not_fit)
{
    kvd_err err = {""};
    kvd_dims d;
    kvd_quality want = {0};
    build(&d, &kvd_dims_zack, 0.5);
    for (int fits = 1; fits >= 0; fits--) {
        bench b = {.runner = kvd_runner_cpu(checkpoint, 100, SEQ_LEN, &err)};
        assert_non_null(b.runner);
        if (!fits)
            b.runner->spare = nothing_to_spare;
        OK(kvd_evaluator_init(&b.e, b.runner, corpus, 0, true, &err));
        assert_true(
            b.e.bytes_not_kept ==
            (fits ? 0 : (TOKENS - b.e.n_sequences) * (size_t)config->d_model * sizeof(float)));
        for (int run = 0; run < 2; run++) {
            kvd_choice c = {
                .method = "zack", .overall_p = 0.5, .plan = {.dims = &d, .type = KVD_F32}};
            OK(kvd_evaluate(&b.e, &c, 1, 0, false, NULL, &err));
            const kvd_quality q = total(c.per_sequence, b.e.n_sequences);
            if (want.n > 0)
                assert_memory_equal(&q, &want, sizeof q);
            want = q;
            kvd_choice_release(&c);
        }
        close_bench(&b);
    }
    kvd_dims_release(&d);
}

TEST(test_from_a_layer_on)
{
    kvd_err err = {""};
    bench b;
    open_bench(&b, 100, true);
    for (int layer = 0; layer < 3; layer++) {
        kvd_dims d;
        OK(kvd_dims_one(&d, &kvd_dims_zack, &spectrum, layer, 1, layer % 2, 8, &err));
        kvd_choice whole = {.method = "zack",
                            .overall_p = 0.1,
                            .plan = {.dims = &d, .type = KVD_F32}},
                   part = whole;
        OK(kvd_evaluate(&b.e, &whole, 1, 0, false, NULL, &err));
        OK(kvd_evaluate(&b.e, &part, 1, layer, false, NULL, &err));
        for (size_t s = 0; s < b.e.n_sequences; s++)
            assert_memory_equal(&whole.per_sequence[s], &part.per_sequence[s], sizeof(kvd_quality));
        assert_int_equal(part.account.calls, b.e.n_sequences * (size_t)(3 - layer));
        kvd_choice_release(&whole);
        kvd_choice_release(&part);
        kvd_dims_release(&d);
    }
    close_bench(&b);
}

TEST(test_full_rank_guard)
{
    const kvd_dims_method *const all[] = {&kvd_dims_zack, &kvd_dims_fdc, &kvd_dims_uniform,
                                          &kvd_dims_balanced};
    kvd_err err = {""};
    bench b;
    open_bench(&b, TOKENS, false);
    for (size_t i = 0; i < 4; i++) {
        kvd_dims d;
        double error = NAN;
        build(&d, all[i], 0);
        OK(kvd_evaluate_full_rank(&b.e, &d, kvd_full_rank_tolerance(all[i], KVD_F32), &error,
                                  &err));
        assert_true(error < 1e-4);
        d.head[3].b_v[5] += 0.05f;
        assert_int_equal(kvd_evaluate_full_rank(&b.e, &d, 1e-3, &error, &err), -1);
        assert_non_null(strstr(err.msg, "at full width changes logits by"));
        kvd_dims_release(&d);
    }
    close_bench(&b);
}

TEST(test_full_rank_of_zero_weights)
{
    enum { HEADER = 7 * 4 }; /* bytes of a llama2.c file before the weights */
    kvd_err err = {""};
    made_spec spec = MADE_SPEC_DEFAULTS;
    spec.layers = 3;
    char zeros[80];
    struct stat made;
    (void)snprintf(zeros, sizeof zeros, "%s/zeros.bin", temp_folder());
    OK(make_llama2c(zeros, &spec, &err));
    assert_int_equal(stat(zeros, &made), 0);
    assert_int_equal(truncate(zeros, HEADER), 0);
    assert_int_equal(truncate(zeros, made.st_size), 0);
    kvd_checkpoint *const model = kvd_checkpoint_open(zeros, &err);
    assert_non_null(model);
    bench b = {.runner = kvd_runner_cpu(model, TOKENS, SEQ_LEN, &err)};
    assert_non_null(b.runner);
    OK(kvd_evaluator_init(&b.e, b.runner, corpus, 0, false, &err));
    kvd_dims d;
    double error = NAN;
    build(&d, &kvd_dims_zack, 0);
    OK(kvd_evaluate_full_rank(&b.e, &d, 1e-3, &error, &err));
    assert_true(error <= 0 && error >= 0);
    kvd_dims_release(&d);
    close_bench(&b);
    kvd_checkpoint_close(model);
}

TEST(test_guards_of_points)
{
    kvd_err err = {""};
    bench b;
    open_bench(&b, TOKENS, false);
    kvd_choice idle = {.method = "zack", .overall_p = 0.5, .plan = {.type = KVD_F32}};
    FAILS(kvd_evaluate(&b.e, &idle, 1, 0, false, NULL, &err),
          "method 'zack', overall p 0.5000: every prediction is bit for bit the uncompressed "
          "one, so nothing was compressed");
    kvd_choice_release(&idle);
    for (int i = 0; i < 2; i++) {
        kvd_dims d;
        build(&d, &kvd_dims_zack, 0.5);
        for (int j = 0; j < config->d_head * d.head[2].d_v; j++)
            d.head[2].a_v[j] *= i ? 1e6f : 1e38f;
        for (int j = 0; i && j < config->d_head * d.head[2].d_v; j++)
            d.head[2].b_v[j] *= 1e-6f;
        kvd_choice c = {.method = "zack",
                        .overall_p = 0.5,
                        .plan = {.dims = &d, .type = i ? KVD_F16 : KVD_F32}};
        assert_int_equal(kvd_evaluate(&b.e, &c, 1, 0, false, NULL, &err), -1);
        assert_non_null(strstr(err.msg, "method 'zack', overall p 0.5000"));
        assert_non_null(strstr(err.msg, "layer 1"));
        assert_non_null(strstr(err.msg, "not finite"));
        kvd_choice_release(&c);
        kvd_dims_release(&d);
    }
    close_bench(&b);
}

enum { PROMPT = 20 };

typedef struct {
    kvd_choice c;
    kvd_quality *reference;
} outcome;

/* Evaluates a method. If `shortcuts` is false, no result of an earlier forward pass is reused. */
static void evaluate_method(const char *name, bool shortcuts, bool keep, size_t max_tokens,
                            size_t room, outcome *o)
{
    kvd_err err = {""};
    kvd_method m;
    kvd_evaluator e;
    kvd_model_runner *const r = kvd_runner_cpu(checkpoint, max_tokens, SEQ_LEN, &err);
    assert_non_null(r);
    if (!shortcuts) {
        r->keep_prompts = NULL;
        r->plan_is_reference = NULL;
    }
    if (room)
        r->spare = nothing_to_spare;
    OK(kvd_evaluator_init(&e, r, corpus, PROMPT, keep, &err));
    if (keep)
        OK(kvd_evaluator_keep_attention(&e, &err));
    const kvd_method_setup setup = {.config = config, .seed = 3};
    OK(kvd_method_parse(name, &m, &err));
    kvd_dims d = {0};
    for (int again = 0; again < (keep ? 2 : 1); again++) {
        if (again)
            kvd_choice_release(&o->c);
        o->c = (kvd_choice){.method = name, .overall_p = m.dims ? 0.5 : NAN, .plan = m.plan};
        o->c.plan.prompt = PROMPT;
        o->c.plan.seed = 3;
        if (m.dims && !d.head)
            build(&d, m.dims, 0.5);
        o->c.plan.dims = m.dims ? &d : NULL;
        if (kvd_method_is_none(&m))
            o->c.overall_p = 0;
        OK(kvd_plan_open(&o->c.plan, &setup, &err));
        if (kvd_evaluate(&e, &o->c, 1, 0, true, NULL, &err))
            fail_msg("%s: %s", name, err.msg);
        kvd_plan_close(&o->c.plan);
    }
    kvd_dims_release(&d);
    o->reference = malloc(e.n_sequences * sizeof *o->reference);
    memcpy(o->reference, e.reference, e.n_sequences * sizeof *o->reference);
    kvd_evaluator_release(&e);
    r->free(r);
}

static bool near(double a, double b, double off)
{
    return fabs(a - b) <= off * fabs(b) || (isnan(a) && isnan(b));
}

static void same_outcomes(const outcome *a, const outcome *b, double off)
{
    const size_t n = kvd_corpus_n_sequences(corpus);
    for (size_t s = 0; s < n; s++) {
        const kvd_quality *const x = &a->c.per_sequence[s], *const y = &b->c.per_sequence[s];
        assert_true(x->n == y->n && x->top1 == y->top1 && x->agree == y->agree);
        assert_true(near(x->nll, y->nll, off) && near(x->kl, y->kl, 100 * off));
        assert_true(a->reference[s].n == y->n && a->reference[s].nll == b->reference[s].nll);
    }
    for (size_t i = 0; i < (size_t)config->n_layers * (size_t)config->n_heads; i++) {
        assert_true(near(a->c.error.norm2[i], b->c.error.norm2[i], off));
        /* two squared errors count as equal if their difference is below this number */
        const double rounding = off * off * b->c.error.norm2[i];
        assert_true(near(a->c.error.diff2[i], b->c.error.diff2[i], 100 * off) ||
                    fabs(a->c.error.diff2[i] - b->c.error.diff2[i]) < rounding);
        assert_true(a->c.error.n[i] == b->c.error.n[i] &&
                    a->c.error.n_zero[i] == b->c.error.n_zero[i]);
    }
    const kvd_cache_account *const x = &a->c.account, *const y = &b->c.account;
    assert_true(x->calls == y->calls && x->tokens == y->tokens &&
                x->elements_kept == y->elements_kept && x->elements_dense == y->elements_dense &&
                x->bytes_stored == y->bytes_stored);
    assert_true(x->steps.rows == y->steps.rows && x->steps.payload == y->steps.payload &&
                x->steps.side == y->steps.side && x->steps.dropped == y->steps.dropped &&
                x->steps.coded == y->steps.coded && x->steps.merged == y->steps.merged);
}

static void drop_outcome(outcome *o)
{
    kvd_choice_release(&o->c);
    free(o->reference);
}

TEST(test_prompts_run_once)
{
    static const char *const methods[] = {"zack,p=0.5",
                                          "h2o",
                                          "kivi,group=8,residual=8",
                                          "snapkv,window=4",
                                          "minicache,start=0.3",
                                          "importance+hetero,k=4,v=4",
                                          "think,window=4",
                                          "keyformer",
                                          "hetero,k=4,v=4"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        for (int way = 0; way < 4; way++) {
            outcome whole, parts;
            const size_t batch = way == 1 ? 2 * SEQ_LEN : TOKENS;
            evaluate_method(methods[i], false, false, batch, 0, &whole);
            evaluate_method(methods[i], true, way == 2, batch, way == 3, &parts);
            assert_true(total(whole.c.per_sequence, kvd_corpus_n_sequences(corpus)).kl > 0);
            /* Another batch size changes rounding, which may change a quantised number. */
            same_outcomes(&parts, &whole, strncmp(methods[i], "hetero", 6) ? 1e-6 : 1e-4);
            drop_outcome(&whole);
            drop_outcome(&parts);
        }
}

TEST(test_none_is_not_run)
{
    for (int keep = 0; keep < 2; keep++) {
        outcome run, left_out;
        evaluate_method("none", false, keep, 2 * SEQ_LEN, 0, &run);
        evaluate_method("none", true, keep, 2 * SEQ_LEN, 0, &left_out);
        assert_true(!run.c.is_reference && !run.c.differs && left_out.c.is_reference);
        assert_memory_equal(run.c.per_sequence, left_out.c.per_sequence,
                            kvd_corpus_n_sequences(corpus) * sizeof(kvd_quality));
        same_outcomes(&left_out, &run, 0);
        drop_outcome(&run);
        drop_outcome(&left_out);
    }
}

static size_t logit_rows;
static int (*real_logits)(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err);
static int count_logits(kvd_model_runner *r, const float *rows, size_t n, kvd_err *err)
{
    logit_rows += n;
    return real_logits(r, rows, n, err);
}

TEST(test_logits_of_scored_rows)
{
    for (size_t prompt = 0; prompt <= 30; prompt += 10) {
        kvd_err err = {""};
        kvd_evaluator e;
        kvd_model_runner *const r = kvd_runner_cpu(checkpoint, TOKENS, SEQ_LEN, &err);
        assert_non_null(r);
        real_logits = r->reference_logits;
        r->reference_logits = count_logits;
        logit_rows = 0;
        OK(kvd_evaluator_init(&e, r, corpus, prompt, false, &err));
        OK(kvd_evaluator_know_reference(&e, &err));
        size_t rows = 0;
        for (size_t s = 0; s < e.n_sequences; s++) {
            const size_t n = kvd_corpus_length(corpus, s), scored = prompt < n ? n - prompt - 1 : 0;
            assert_true(e.reference[s].n == (double)scored);
            rows += scored;
        }
        assert_true(logit_rows == rows && e.n_scored == rows);
        kvd_evaluator_release(&e);
        r->free(r);
    }
}

TEST(test_attention_error_by_hand)
{
    const kvd_config c = fixture_config(1, 2, 1, 2);
    const float u[8] = {3, 4, 0, 2, 0, 0, 0, -2}, v[8] = {3, 1, 1, 2, 0, 5, 0, -3};
    const kvd_attention_in in = {.config = &c, .layer = 0, .n_tokens = 2};
    kvd_kept_attention kept;
    kvd_attention_error e;
    kvd_err err;
    OK(kvd_kept_attention_init(&kept, &c, 2, &err));
    OK(kvd_kept_attention_save(&kept, &in, u, &err));
    OK(kvd_attention_error_init(&e, &kept, &c, &err));
    OK(kvd_attention_error_add(&e, &in, v, &err));
    /* squared error / squared norm of the expected output: 34 / 25 (head 0), 2 / 8 (head 1) */
    assert_true(fabs(kvd_attention_error_norm(&e, 0, 0) - sqrt(34.0 / 25)) < 1e-12);
    assert_true(fabs(kvd_attention_error_norm(&e, 0, 1) - sqrt(2.0 / 8)) < 1e-12);
    /* error D of the ZDC paper: mean of |actual - expected| / |expected| over elements with
     * expected != 0 */
    assert_true(fabs(kvd_attention_error_zdc(&e, 0, 0) - 0.375) < 1e-12);
    /* mean of 0 and 1/2, the relative errors of head 1's two nonzero expected outputs */
    assert_true(fabs(kvd_attention_error_zdc(&e, 0, 1) - 0.25) < 1e-12);
    double norm, zdc, zeros;
    kvd_attention_error_mean(&e, &norm, &zdc, &zeros);
    assert_true(fabs(zdc - 0.3125) < 1e-12 && zeros == 4);
    kvd_attention_error_release(&e);
    kvd_kept_attention_release(&kept);
}

TEST(test_error_scan)
{
    kvd_err err = {""};
    kvd_method method;
    kvd_error_table t;
    bench b;
    open_bench(&b, TOKENS, true);
    OK(kvd_method_parse("zack", &method, &err));
    method.spectrum = &spectrum;
    method.spectrum_path = "made up";
    OK(kvd_error_scan(&b.e, &method, &spectrum.model, KVD_F32, NULL, &t, &err));
    assert_int_equal(t.n_widths, 7);
    assert_int_equal(t.width[0], 2);
    assert_int_equal(t.width[6], 16);
    assert_int_equal(kvd_error_scan_runs(config), 2 * 3 * 2 * 6);
    size_t positive = 0;
    for (size_t i = 0; i < 2 * 3 * 2; i++) {
        assert_true(t.error[i * 7 + 6] == 0);
        for (size_t w = 0; w < 6; w++) {
            assert_true(t.error[i * 7 + w] > -1e-12);
            positive += t.error[i * 7 + w] > 0;
        }
    }
    assert_true(positive > 60);
    /* The loss measured for a head must be the KL divergence of a run in which this head alone
     * keeps fewer dimensions, 8. */
    kvd_dims d;
    OK(kvd_dims_one(&d, &kvd_dims_zack, &spectrum, 1, 0, 1, 8, &err));
    kvd_choice c = {.method = "zack", .overall_p = 0.1, .plan = {.dims = &d, .type = KVD_F32}};
    OK(kvd_evaluate(&b.e, &c, 1, 0, false, NULL, &err));
    const kvd_quality q = total(c.per_sequence, b.e.n_sequences);
    assert_true(t.error[((1 * 3 + 1) * 2 + 0) * 7 + 3] == q.kl / q.n);
    kvd_choice_release(&c);
    kvd_dims_release(&d);
    /* The losses must not change if memory allows only one head to be measured at a time. */
    kvd_error_table alone;
    b.runner->spare = nothing_to_spare;
    OK(kvd_error_scan(&b.e, &method, &spectrum.model, KVD_F32, NULL, &alone, &err));
    assert_memory_equal(alone.error, t.error, 2 * 3 * 2 * 7 * sizeof *t.error);
    kvd_error_table_release(&alone);
    kvd_error_table_release(&t);
    close_bench(&b);
}

TEST_MAIN(setup, teardown)
