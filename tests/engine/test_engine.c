/* Compares logits of the CPU engine, which reads a cache, with those of forward passes over whole
 * sequences. */
#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "dims_fixture.h"
#include "engine/engine.h"
#include "expected.h"
#include "methods/cache.h"
#include "methods/method.h"
#include "model/pass/forward.h"
#include "serving/batching.h"
#include "unit.h"

enum { REQUESTS = 5, PAGE = 64 };

#define NAME(x) x
static const double bar = 2e-5;

typedef struct {
    kvd_checkpoint *checkpoint;
    const kvd_config *config;
    uint32_t input[REQUESTS], output[REQUESTS];
    /* index in `id` of the first token of each request */
    size_t offset[REQUESTS + 1];
    size_t longest; /* longest request, with its last output token */
    uint32_t *id;
    float *want; /* expected logits, [tokens][vocab] */
    kvd_spectrum spectrum;
    kvd_dims dims; /* of make_dims() */
} texts;

static void open_lengths(texts *t, const char *path, const uint32_t *input, const uint32_t *output)
{
    kvd_err err = {""};
    *t = (texts){.checkpoint = kvd_checkpoint_open(path, &err)};
    if (!t->checkpoint)
        fail_msg("%s", err.msg);
    t->config = kvd_checkpoint_config(t->checkpoint);
    for (int r = 0; r < REQUESTS; r++) {
        t->input[r] = input[r];
        t->output[r] = output[r];
        /* Every second request has a prompt longer than the text length at which LongRoPE changes
         * its divisors. */
        if (t->config->rope_scaling == KVD_ROPE_LONGROPE && r % 2)
            t->input[r] = (uint32_t)t->config->rope_original_positions + 2;
        const size_t n = t->input[r] + t->output[r] - 1;
        t->offset[r + 1] = t->offset[r] + n;
        t->longest = n + 1 > t->longest ? n + 1 : t->longest;
    }
    t->id = unit_alloc(t->offset[REQUESTS] * sizeof *t->id);
    kvd_rng rng;
    kvd_rng_seed(&rng, 11, 0);
    for (size_t i = 0; i < t->offset[REQUESTS]; i++)
        t->id[i] = (uint32_t)kvd_rng_below(&rng, (uint64_t)t->config->vocab_size);
}

static void open_texts(texts *t, const char *path)
{
    static const uint32_t input[REQUESTS] = {5, 17, 1, 40, 9}, output[REQUESTS] = {7, 3, 9, 1, 4};
    open_lengths(t, path, input, output);
}

static void close_texts(texts *t)
{
    kvd_dims_release(&t->dims);
    kvd_spectrum_release(&t->spectrum);
    kvd_checkpoint_close(t->checkpoint);
}

static void forward(texts *t, const kvd_plan *plan)
{
    kvd_err err = {""};
    const size_t n = t->offset[REQUESTS], d = (size_t)t->config->d_model;
    float *const hidden = unit_alloc(n * d * sizeof *hidden);
    t->want = unit_alloc(n * (size_t)t->config->vocab_size * sizeof *t->want);
    kvd_forward *const f = kvd_forward_new(t->checkpoint, n, t->longest, &err);
    kvd_dense_attention dense;
    kvd_cache cache;
    const kvd_batch b = {.n_sequences = REQUESTS, .offset = t->offset, .id = t->id};
    kvd_dense_attention_init(&dense);
    if (!f || kvd_cache_init(&cache, t->config, plan, t->longest, &err))
        fail_msg("%s", err.msg);
    const bool plain = !plan->dims && plan->type == KVD_F32 && !kvd_plan_stepwise(plan);
    if (kvd_forward_run(f, &b, plain ? &dense.hook : &cache.hook, -1, hidden, &err) ||
        kvd_forward_logits(f, hidden, n, t->want, &err))
        fail_msg("%s", err.msg);
    kvd_cache_release(&cache);
    kvd_dense_attention_release(&dense);
    kvd_forward_free(f);
}

static uint32_t best(const float *x, size_t n)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        at = x[i] > x[at] ? i : at;
    return at;
}

/* Adds to *error the squared distances of the engine's logits from t->want, and to *square the
 * squared norms of t->want. Returns the number of compared tokens. */
static size_t compare(const texts *t, kvd_engine *e, const kvd_iteration *it, const uint32_t *next,
                      double *error, double *square)
{
    kvd_err err = {""};
    const size_t vocab = (size_t)t->config->vocab_size;
    float *const got = unit_alloc(vocab * sizeof *got);
    size_t n = 0;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const s = &it->slice[i];
        if (!s->emits) {
            assert_int_not_equal(e->logits(e, i, got, &err), 0);
            continue;
        }
        const float *const want = t->want + (t->offset[s->request] + s->before + s->n - 1) * vocab;
        if (e->logits(e, i, got, &err))
            fail_msg("%s", err.msg);
        for (size_t v = 0; v < vocab; v++) {
            *error += pow((double)got[v] - (double)want[v], 2);
            *square += pow((double)want[v], 2);
        }
        assert_int_equal(next[i], best(got, vocab));
        n++;
    }
    return n;
}

/* Serves all texts. Returns the distance of the engine's logits from t->want, relative to the norm
 * of t->want. `pages`: number of cache pages, or 0 for the default. */
static double serve_within(const texts *t, const kvd_plan *plan, size_t max_batch,
                           size_t max_tokens, size_t chunk, size_t pages, size_t *preempted,
                           kvd_engine_facts *facts, double *held)
{
    kvd_err err = {""};
    kvd_request request[REQUESTS];
    const kvd_requests requests = {.n = REQUESTS, .request = request};
    kvd_engine_spec spec = {
        .limits = {.max_batch = max_batch, .max_tokens = max_tokens, .chunk = chunk},
        .max_len = t->longest,
        .type = plan->type,
        .phases = true};
    for (int r = 0; r < REQUESTS; r++)
        request[r] = (kvd_request){0, t->input[r], t->output[r]};
    kvd_engine *const e = kvd_engine_open_cpu(t->checkpoint, plan, &spec, &err);
    if (!e)
        fail_msg("%s", err.msg);
    kvd_batching_limits limits = spec.limits;
    limits.pages = pages ? pages : e->facts.pages;
    limits.admission = pages ? KVD_ADMIT_STORED : KVD_ADMIT_WHOLE;
    kvd_batcher *const b = kvd_batcher_new(&requests, &limits, &err);
    assert_non_null(b);
    for (uint32_t r = 0; r < REQUESTS; r++)
        assert_int_equal(kvd_batcher_arrive(b, r, &err), 0);
    uint32_t id[512], next[REQUESTS];
    double error = 0, square = 0;
    size_t emitted = 0;
    for (kvd_iteration it; (it = kvd_batcher_next(b)).n_slices;) {
        size_t n = 0, gone = 0;
        const kvd_preempted *const p = kvd_batcher_preempted(b, &gone);
        for (size_t i = 0; i < gone; i++, ++*preempted)
            e->drop(e, p[i].slot);
        for (size_t i = 0; i < it.n_slices; i++) {
            const kvd_slice *const s = &it.slice[i];
            memcpy(id + n, t->id + t->offset[s->request] + s->before, s->n * sizeof *id);
            n += s->n;
        }
        kvd_phase_times times;
        if (e->step(e, &it, id, next, &times, &err))
            fail_msg("%s", err.msg);
        assert_true(kvd_phase_residue(&times) >= -1e-9 && times.total > 0);
        assert_true(it.n_steps || !(times.part[KVD_PHASE_DECODE] > 0));
        emitted += compare(t, e, &it, next, &error, &square);
        if (held)
            *held = fmax(*held, e->held(e));
    }
    size_t outputs = 0;
    for (int r = 0; r < REQUESTS; r++)
        outputs += t->output[r];
    assert_int_equal(emitted, outputs);
    if (facts)
        *facts = e->facts;
    kvd_batcher_free(b);
    e->free(e);
    return sqrt(error / square);
}

static double serve(const texts *t, const kvd_plan *plan, size_t max_batch, size_t max_tokens,
                    size_t chunk, kvd_engine_facts *facts, double *held)
{
    return serve_within(t, plan, max_batch, max_tokens, chunk, 0, NULL, facts, held);
}

static void assert_serves(const char *what, const texts *t, const kvd_plan *plan, double allowed)
{
    static const struct {
        size_t batch, tokens, chunk;
    } way[] = {{REQUESTS, 512, 0}, {2, 20, 0}, {3, 0, 7}, {1, 1, 0}, {REQUESTS, 0, 64}};
    for (size_t i = 0; i < sizeof way / sizeof *way; i++) {
        const double error = serve(t, plan, way[i].batch, way[i].tokens, way[i].chunk, NULL, NULL);
        if (!(error <= allowed))
            fail_msg("%s, batch %zu, chunk %zu: logits are off by %.3g, allowed is %.3g", what,
                     way[i].batch, way[i].chunk, error, allowed);
    }
}

TEST(test_families)
{
    static const char *const name[] = {FAMILIES(NAME), NULL};
    for (size_t i = 0; name[i]; i++) {
        char path[256];
        texts t;
        snprintf(path, sizeof path, "tests/data/families/%s", name[i]);
        open_texts(&t, path);
        const kvd_plan plan = {.type = KVD_F32};
        forward(&t, &plan);
        assert_serves(name[i], &t, &plan, bar);
        close_texts(&t);
    }
}

static void make_dims(texts *t, const kvd_dims_method *m)
{
    kvd_err err = {""};
    kvd_widths w;
    const int d = t->config->d_head, n = t->config->n_layers * t->config->n_kv_heads;
    if (fixture_spectrum(&t->spectrum, t->config, 3, &err) ||
        kvd_widths_alloc(&w, t->config->n_layers, t->config->n_kv_heads, d, &err))
        fail_msg("%s", err.msg);
    if (t->config->positions != KVD_POSITIONS_ROPE)
        strcpy(t->spectrum.rope, "none");
    for (int i = 0; i < n; i++) {
        w.kept[0][i] = i % 3 == 2 ? d : 1 + (5 * i + 3) % d;
        w.kept[1][i] = 1 + (7 * i + 6) % d;
    }
    if (kvd_dims_build(&t->dims, m, &t->spectrum, &w, &err))
        fail_msg("%s", err.msg);
    kvd_widths_release(&w);
}

/* Prepares compression method `text`, such as "h2o". *plan points into itself, so it must not be
 * copied. */
static void open_plan(const texts *t, const char *text, uint32_t prompt, kvd_method *m,
                      kvd_plan *plan)
{
    kvd_err err = {""};
    const kvd_method_setup setup = {.config = t->config, .seed = 1};
    assert_int_equal(kvd_method_parse(text, m, &err), 0);
    *plan = m->plan;
    plan->dims = m->dims ? &t->dims : NULL;
    plan->prompt = prompt;
    plan->seed = 1;
    if (kvd_plan_open(plan, &setup, &err))
        fail_msg("%s", err.msg);
}

TEST(test_plans_of_dims)
{
    static const char *const model[] = {
        "tests/data/families/qwen3-gqa", "tests/data/families/opt-before",
        "tests/data/families/mistral-window", "tests/data/families/falcon-40b"};
    const kvd_dims_method *const method[] = {&kvd_dims_zack, &kvd_dims_fdc, &kvd_dims_balanced};
    for (size_t i = 0; i < sizeof model / sizeof *model; i++)
        for (size_t k = 0; k < 3; k++) {
            texts t;
            open_texts(&t, model[i]);
            make_dims(&t, method[k]);
            const kvd_plan plan = {.dims = &t.dims, .type = KVD_F32};
            forward(&t, &plan);
            assert_serves(method[k]->info.name, &t, &plan, 5 * bar);
            close_texts(&t);
        }
}

/* Serves texts with a 16-bit KV cache. Logits must be close to those of a forward pass over the
 * whole text. */
TEST(test_types_of_the_cache)
{
    texts t;
    static const char *const model[] = {"tests/data/families/qwen3-gqa",
                                        "tests/data/families/gemma3-text"};
    for (size_t i = 0; i < 2; i++) {
        open_texts(&t, model[i]);
        make_dims(&t, &kvd_dims_zack);
        for (int type = 1; type < 3; type++) {
            const kvd_plan plan = {.dims = &t.dims, .type = (kvd_dtype)type};
            forward(&t, &plan);
            assert_serves(kvd_dtype_name(plan.type), &t, &plan, type == KVD_F16 ? 1e-3 : 8e-3);
        }
        close_texts(&t);
    }
}

TEST(test_window_is_what_is_held)
{
    texts t;
    kvd_engine_facts facts;
    double held = 0, want = 0;
    open_texts(&t, "tests/data/families/gemma3-text");
    const kvd_plan plan = {.type = KVD_F32};
    const size_t token =
                     2 * sizeof(float) * (size_t)t.config->n_kv_heads * (size_t)t.config->d_head,
                 full = (t.longest + 63) / 64 * 64;
    double reserved = 0;
    forward(&t, &plan);
    serve(&t, &plan, 1, 512, 0, &facts, &held);
    for (int l = 0; l < t.config->n_layers; l++) {
        const size_t window = kvd_config_window(t.config, l);
        want += (double)(token * (window && window < t.longest ? window : t.longest - 1));
        reserved += (double)(token * (window ? window : full)) / (double)full;
    }
    assert_true(fabs(facts.bytes_per_token - reserved) < 1e-6 * reserved);
    assert_true(held <= want + (double)(2 * token) && held >= want - (double)(2 * token));
    close_texts(&t);
}

/* Compares the engine's logits with a forward pass over the whole text. Rounding changes logits by
 * up to 2.0e-4 (OpenBLAS, Haswell); a wrong method parameter changes them by more than 4e-3. */
TEST(test_plans_row_by_row)
{
    static const uint32_t input[REQUESTS] = {70, 70, 70, 70, 70},
                          output[REQUESTS] = {12, 12, 12, 12, 12};
    static const char *const name[] = {"h2o",
                                       "h2o+zack,p=0.5",
                                       "kivi,bits=4,group=16,residual=32",
                                       "zipcache,block=20",
                                       "snapkv,budget=0.3",
                                       "think",
                                       "strawman",
                                       "gear"};
    texts t;
    open_lengths(&t, "data/models/kvdim-6m", input, output);
    make_dims(&t, &kvd_dims_zack);
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        kvd_method m;
        double held = 0;
        kvd_plan plan;
        open_plan(&t, name[i], input[0], &m, &plan);
        forward(&t, &plan);
        const double allowed = m.plan.bits ? 1e-3 : 5 * bar;
        const double error = serve(&t, &plan, 2, 200, 0, NULL, &held);
        if (!(error <= allowed))
            fail_msg("%s: logits are off by %.3g, allowed is %.3g", name[i], error, allowed);
        const double dense = 2.0 * 2 * (double)t.offset[1] * t.config->n_layers *
                             t.config->n_kv_heads * t.config->d_head * sizeof(float);
        if (!(held > 0 && held < 0.99 * dense))
            fail_msg("%s holds %.0f bytes, uncompressed %.0f", name[i], held, dense);
        kvd_plan_close(&plan);
    }
    close_texts(&t);
}

/* After a preemption, a request's prompt also contains the tokens that were generated before. */
TEST(test_preempted_requests)
{
    static const uint32_t input[REQUESTS] = {60, 50, 30, 62, 20},
                          output[REQUESTS] = {20, 25, 40, 10, 50};
    static const size_t chunk[] = {0, 70};
    texts t;
    kvd_method m;
    open_lengths(&t, "data/models/kvdim-6m", input, output);
    make_dims(&t, &kvd_dims_zack);
    for (int cut = 0; cut < 2; cut++) {
        const kvd_plan plan = {.dims = cut ? &t.dims : NULL, .type = KVD_F32};
        forward(&t, &plan);
        for (int c = 0; c < 2; c++) {
            size_t preempted = 0;
            const double error =
                serve_within(&t, &plan, REQUESTS, 200, chunk[c], 5, &preempted, NULL, NULL);
            assert_true(preempted >= 2);
            if (!(error <= 5 * bar))
                fail_msg("after %zu preemptions, chunk %zu, logits are off by %.3g", preempted,
                         chunk[c], error);
        }
    }
    kvd_plan plan;
    open_plan(&t, "h2o", input[0], &m, &plan);
    size_t preempted = 0;
    (void)serve_within(&t, &plan, REQUESTS, 200, 0, 5, &preempted, NULL, NULL);
    assert_true(preempted >= 2);
    kvd_plan_close(&plan);
    close_texts(&t);
}

TEST(test_refused_plans)
{
    kvd_err err = {""};
    kvd_method m;
    texts t;
    open_texts(&t, "data/models/kvdim-6m");
    kvd_engine_spec spec = {
        .limits = {.max_batch = 2, .chunk = 64}, .max_len = t.longest, .type = KVD_F32};
    kvd_plan plan;
    open_plan(&t, "h2o", 8, &m, &plan);
    assert_null(kvd_engine_open_cpu(t.checkpoint, &plan, &spec, &err));
    assert_non_null(strstr(err.msg, "'h2o' compresses a prompt in one piece"));
    kvd_plan_close(&plan);
    open_plan(&t, "minicache", 8, &m, &plan);
    assert_null(kvd_engine_open_cpu(t.checkpoint, &plan, &spec, &err));
    assert_non_null(strstr(err.msg, "'minicache' wants a first pass"));
    kvd_plan_close(&plan);
    close_texts(&t);
}

TEST(test_facts)
{
    texts t;
    kvd_engine_facts whole, cut;
    open_texts(&t, "tests/data/families/qwen3-gqa");
    make_dims(&t, &kvd_dims_zack);
    const kvd_plan none = {.type = KVD_F16}, plan = {.dims = &t.dims, .type = KVD_F16};
    forward(&t, &none);
    (void)serve(&t, &none, 2, 512, 0, &whole, NULL);
    forward(&t, &plan);
    (void)serve(&t, &plan, 2, 512, 0, &cut, NULL);
    size_t kept = 0;
    for (int i = 0; i < t.dims.n_layers * t.dims.n_kv_heads; i++)
        kept += (size_t)t.dims.head[i].d_qk + (size_t)t.dims.head[i].d_v;
    assert_int_equal((size_t)whole.bytes_per_token,
                     2 * 2 * t.config->n_layers * t.config->n_kv_heads * t.config->d_head);
    assert_int_equal((size_t)cut.bytes_per_token, 2 * kept);
    assert_int_equal(whole.pages, 2 * ((t.longest + PAGE - 1) / PAGE));
    assert_int_equal((size_t)cut.cache_bytes, 2 * kept * PAGE * cut.pages);
    assert_true(cut.weight_bytes < whole.weight_bytes);
    assert_true(cut.peak_bytes > cut.weight_bytes + cut.cache_bytes);
    close_texts(&t);
}

TEST(test_refusals)
{
    kvd_err err = {""};
    texts t;
    open_texts(&t, "tests/data/families/qwen3-gqa");
    const kvd_plan plan = {.type = KVD_F32};
    kvd_engine_spec spec = {
        .limits = {.max_batch = 2, .max_tokens = 64}, .max_len = t.longest, .type = KVD_F32};
    kvd_engine *const e = kvd_engine_open_cpu(t.checkpoint, &plan, &spec, &err);
    assert_non_null(e);
    uint32_t id[8] = {1, 2, 3, 4, 5, 6, 7, 8}, next[2];
    kvd_slice slice = {.slot = 0, .n = 4, .emits = 1};
    kvd_iteration it = {.n_slices = 1, .slice = &slice, .n_tokens = 4};
    assert_int_equal(e->step(e, &it, id, next, NULL, &err), 0);
    slice.before = 3; /* wrong number of earlier tokens: the slot holds 4 */
    assert_int_equal(e->step(e, &it, id, next, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "which holds 4"));
    slice.before = 4;
    slice.slot = 2;
    assert_int_equal(e->step(e, &it, id, next, NULL, &err), -1);
    slice.slot = 0;
    id[2] = (uint32_t)t.config->vocab_size;
    assert_int_equal(e->step(e, &it, id, next, NULL, &err), -1);
    assert_non_null(strstr(err.msg, "position 6: token id"));
    e->free(e);
    spec.limits.pages = (size_t)1 << 40;
    assert_null(kvd_engine_open_cpu(t.checkpoint, &plan, &spec, &err));
    assert_non_null(strstr(err.msg, " GiB of memory are needed (weights in f32 "));
    spec.limits.pages = 0;
    spec.max_len = (size_t)t.config->max_positions + 1;
    assert_null(kvd_engine_open_cpu(t.checkpoint, &plan, &spec, &err));
    close_texts(&t);
}

TEST_MAIN(NULL, NULL)
