/* Tests generation with a compressed cache against forward passes over whole sequences. */
#include <math.h>

#include "dims_fixture.h"
#include "evaluate/generate/generate.h"
#include "evaluate/generate/generate_path.h"
#include "make_dump.h"
#include "methods/cache.h"
#include "methods/points.h"
#include "model/model_info.h"
#include "model/pass/forward.h"
#include "model/text/corpus.h"
#include "temp_folder.h"
#include "unit.h"

enum {
    PROMPTS = 3,
    PROMPT_1 = 40,
    PROMPT_2 = 61,
    PROMPT_3 = 40,
    N_NEW = 12,
    LONGEST = PROMPT_2 + N_NEW,
    ALL = PROMPT_1 + PROMPT_2 + PROMPT_3
};
static const size_t offset[] = {0, PROMPT_1, PROMPT_1 + PROMPT_2, PROMPT_1 + PROMPT_2 + PROMPT_3};
static const size_t end[] = {0, N_NEW, 2 * N_NEW, 3 * N_NEW};
static char dump_path[128];
static uint32_t id[ALL];
static kvd_checkpoint *checkpoint;
static const kvd_config *config;
static kvd_generator *generator;
static kvd_forward *forward;
static float *hidden, *logits;
static kvd_spectrum spectrum;
static kvd_activations dump;

static int make_calibration(kvd_err *err)
{
    dump_plan p;
    dump_plan_init(&p, 300, 1);
    kvd_model_info_set(&p.a.model, config, "data/models/kvdim-6m", "xxh3:0", "bf16");
    p.a.n_layers = config->n_layers;
    p.a.has_pre = true;
    return write_dump(&p, dump_path, test_run(), err) ||
           kvd_activations_open(&dump, dump_path, err);
}

static int set_up(void **state)
{
    (void)state;
    kvd_err err = {""};
    snprintf(dump_path, sizeof dump_path, "%s/a.h5", temp_folder());
    if (!(checkpoint = kvd_checkpoint_open("data/models/kvdim-6m", &err)))
        return -1;
    config = kvd_checkpoint_config(checkpoint);
    hidden = malloc((size_t)LONGEST * (size_t)config->d_model * sizeof *hidden);
    logits = malloc((size_t)LONGEST * (size_t)config->vocab_size * sizeof *logits);
    const kvd_generator_spec spec = {.max_tokens = 2 * LONGEST, .max_len = LONGEST};
    generator = kvd_generator_new(checkpoint, &spec, &err);
    forward = kvd_forward_new(checkpoint, LONGEST, LONGEST, &err);
    if (!hidden || !logits || !generator || !forward ||
        fixture_ids(checkpoint, id, sizeof id / sizeof *id, &err) ||
        fixture_spectrum(&spectrum, config, 5, &err) || make_calibration(&err)) {
        fprintf(stderr, "%s\n", err.msg);
        return -1;
    }
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvd_activations_close(&dump);
    kvd_spectrum_release(&spectrum);
    kvd_forward_free(forward);
    kvd_generator_free(generator);
    kvd_checkpoint_close(checkpoint);
    free(hidden);
    free(logits);
    return 0;
}

static size_t argmax(const float *x, int n)
{
    size_t best = 0;
    for (size_t j = 1; j < (size_t)n; j++)
        if (x[j] > x[best])
            best = j;
    return best;
}

static double log_p(const float *x, size_t j)
{
    const double top = (double)x[argmax(x, config->vocab_size)];
    double sum = exp((double)x[0] - top);
    for (size_t i = 1; i < (size_t)config->vocab_size; i++)
        sum += exp((double)x[i] - top);
    return (double)x[j] - top - log(sum);
}

static void generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                     kvd_continued out)
{
    kvd_err err = {""};
    OK(kvd_generate(g, plan, c, &out, NULL, NULL, NULL, &err));
}

typedef struct {
    kvd_plan plan;
    kvd_point *point;
    size_t n_points;
} opened;

static void open_method(const char *text, kvd_dtype type, opened *o)
{
    kvd_err err = {""};
    kvd_method m;
    OK(kvd_method_parse(text, &m, &err));
    m.spectrum = m.dims ? &spectrum : NULL;
    m.spectrum_path = "fixture";
    if (kvd_points_make(&m, &o->point, &o->n_points, &err))
        fail_msg("%s: %s", text, err.msg);
    o->plan = kvd_point_plan(o->point);
    o->plan.type = type;
    o->plan.prompt = 1;
    o->plan.seed = 3;
    const kvd_method_setup setup = {
        .config = config, .spectrum = m.spectrum, .calibration = &dump, .seed = 3};
    if (kvd_plan_open(&o->plan, &setup, &err))
        fail_msg("%s: %s", text, err.msg);
}

static void close_method(opened *o)
{
    kvd_plan_close(&o->plan);
    kvd_points_free(o->point, o->n_points);
}

static int run_prompts(void *ctx, const kvd_batch *first, kvd_prompts *prompts, kvd_err *err)
{
    return kvd_forward_run(ctx, first, &prompts->hook, -1, NULL, err);
}

/* Computes the logits of a sequence by one forward pass with the methods of `plan`, or without
 * compression if `plan` is NULL. */
static void whole_pass(const kvd_plan *plan, const uint32_t *ids, size_t n)
{
    kvd_err err = {""};
    const size_t bounds[] = {0, n};
    const kvd_batch b = {.n_sequences = 1, .offset = bounds, .id = ids};
    kvd_dense_attention dense;
    kvd_cache cache = {0};
    kvd_prompts prompts = {0};
    kvd_dense_attention_init(&dense);
    OK(plan && kvd_cache_init(&cache, config, plan, LONGEST, &err));
    if (plan && kvd_plan_first_pass(plan)) {
        OK(kvd_prompts_make(&prompts, config, plan, &b, SIZE_MAX, run_prompts, forward, &err));
        cache.prompts = &prompts;
    }
    OK(kvd_forward_run(forward, &b, plan ? &cache.hook : &dense.hook, -1, hidden, &err) ||
       kvd_forward_logits(forward, hidden, n, logits, &err));
    kvd_prompts_release(&prompts);
    kvd_cache_release(&cache);
    kvd_dense_attention_release(&dense);
}

TEST(none_is_repeated_full_passes)
{
    kvd_err err = {""};
    const kvd_plan plan = {.type = KVD_F32};
    uint32_t token[3 * N_NEW] = {0}, whole[ALL + N_NEW];
    const kvd_continuations c = {.n_sequences = PROMPTS, .offset = offset, .id = id, .end = end};
    kvd_stepwise_account account = {0};
    OK(kvd_generate(generator, &plan, &c, &(kvd_continued){.token = token}, &account, NULL, NULL,
                    &err));
    for (size_t s = 0; s < PROMPTS; s++) {
        const size_t n = offset[s + 1] - offset[s];
        memcpy(whole, id + offset[s], n * sizeof *whole);
        for (size_t j = 0; j < N_NEW; j++) {
            whole_pass(NULL, whole, n + j);
            whole[n + j] = (uint32_t)argmax(logits + (n + j - 1) * (size_t)config->vocab_size,
                                            config->vocab_size);
            assert_int_equal(token[end[s] + j], whole[n + j]);
        }
    }
    assert_int_equal(account.rows,
                     PROMPTS * (N_NEW - 1) * (size_t)config->n_layers * (size_t)config->n_kv_heads);
    assert_true(fabs(account.payload - account.dense) < 1);
}

/* Beyond 32 tokens, LongRoPE uses other RoPE frequencies, so cached keys must be recomputed. */
TEST(longrope_follows_the_text)
{
    enum { N = 5, TEXT = 64 };
    static const size_t prompt[N] = {18, 27, 31, 22, 40}, new[N] = {10, 14, 3, 11, 8};
    kvd_err err = {""};
    const kvd_plan plan = {.type = KVD_F32};
    size_t at[N + 1] = {0}, to[N + 1] = {0}, steps = 0;
    uint32_t ids[N * TEXT], token[N * TEXT] = {0}, text[TEXT];
    kvd_continued_cost cost[N];
    for (size_t i = 0; i < N * TEXT; i++)
        ids[i] = (uint32_t)((i * i + 7 * i) % 80);
    for (size_t s = 0; s < N; s++) {
        at[s + 1] = at[s] + prompt[s];
        to[s + 1] = to[s] + new[s];
    }
    kvd_checkpoint *const phi = kvd_checkpoint_open("tests/data/families/phi3-long", &err);
    assert_non_null(phi);
    const kvd_config *const c = kvd_checkpoint_config(phi);
    const size_t vocab = (size_t)c->vocab_size;
    const kvd_generator_spec spec = {.max_tokens = 3 * TEXT, .max_len = TEXT};
    const kvd_continuations all = {.n_sequences = N, .offset = at, .id = ids, .end = to};
    kvd_generator *const g = kvd_generator_new(phi, &spec, &err);
    kvd_forward *const f = kvd_forward_new(phi, TEXT, TEXT, &err);
    kvd_dense_attention dense;
    kvd_dense_attention_init(&dense);
    float *const x = unit_alloc(TEXT * vocab * sizeof *x);
    float *const rows = unit_alloc(TEXT * (size_t)c->d_model * sizeof *rows);
    assert_true(g && f);
    generate(g, &plan, &all, (kvd_continued){.token = token, .cost = cost});
    for (size_t s = 0; s < N; s++) {
        memcpy(text, ids + at[s], prompt[s] * sizeof *text);
        for (size_t j = 0; j < new[s]; j++) {
            const size_t bounds[] = {0, prompt[s] + j};
            const kvd_batch b = {.n_sequences = 1, .offset = bounds, .id = text};
            OK(kvd_forward_run(f, &b, &dense.hook, -1, rows, &err) ||
               kvd_forward_logits(f, rows, bounds[1], x, &err));
            const size_t best = argmax(x + (bounds[1] - 1) * vocab, c->vocab_size);
            text[bounds[1]] = (uint32_t)best;
            assert_int_equal(token[to[s] + j], best);
        }
        assert_int_equal(cost[s].steps, new[s] - 1);
        steps += cost[s].steps;
    }
    assert_int_equal(steps, 10 + 14 + 3 + 11 + 8 - N);
    kvd_dense_attention_release(&dense);
    kvd_forward_free(f);
    kvd_generator_free(g);
    kvd_checkpoint_close(phi);
}

/* Generates tokens with method `text`. Compares tokens and log probabilities with forward passes
 * over whole sequences. */
static void same_as_the_whole(const char *text, kvd_dtype type, double tolerance)
{
    opened o;
    open_method(text, type, &o);
    uint32_t token[3 * N_NEW] = {0}, again[3 * N_NEW] = {0}, rank[3 * N_NEW] = {0},
                       whole[ALL + N_NEW];
    double p[3 * N_NEW] = {0}, q[3 * N_NEW] = {0};
    kvd_continuations c = {.n_sequences = PROMPTS, .offset = offset, .id = id, .end = end};
    generate(generator, &o.plan, &c, (kvd_continued){.token = token, .log_p = p});
    c.forced = token;
    generate(generator, &o.plan, &c, (kvd_continued){.token = again, .log_p = q, .rank = rank});
    for (size_t i = 0; i < 3 * (size_t)N_NEW; i++)
        if (again[i] != token[i] || rank[i] != 1 || fabs(p[i] - q[i]) > 1e-12)
            fail_msg("%s: place %zu: forced %u, rank %u, %g, free %u, %g", text, i, again[i],
                     rank[i], q[i], token[i], p[i]);
    for (size_t s = 0; s < PROMPTS; s++) {
        const size_t n = offset[s + 1] - offset[s], vocab = (size_t)config->vocab_size;
        memcpy(whole, id + offset[s], n * sizeof *whole);
        memcpy(whole + n, token + end[s], N_NEW * sizeof *whole);
        o.plan.prompt = n;
        whole_pass(&o.plan, whole, n + N_NEW);
        for (size_t j = 0; j < N_NEW; j++) {
            const float *const x = logits + (n + j - 1) * vocab;
            const size_t best = argmax(x, config->vocab_size);
            const double mine = log_p(x, token[end[s] + j]),
                         margin = (double)x[best] - (double)x[token[end[s] + j]];
            if (best != token[end[s] + j] && margin > tolerance)
                fail_msg("%s: sequence %zu, place %zu: %u generated, %zu predicted, %g apart", text,
                         s, j, token[end[s] + j], best, margin);
            if (!(fabs(mine - p[end[s] + j]) < tolerance))
                fail_msg("%s: sequence %zu, place %zu: log p %g, predicted %g", text, s, j,
                         p[end[s] + j], mine);
        }
    }
    close_method(&o);
}

TEST(every_axis_is_the_whole_sequence)
{
    char exact[] =
        "none zack,p=0.3 balanced,p=0.3 palu h2o keyformer scissorhands snapkv,window=8 tova "
        "adakv,window=8,budget=8 cake,window=8,budget=8 expectedattention,budget=12 quest,page=4 "
        "shadowkv,rank=16,outliers=1,local=1,budget=8 d2o kvmerger,threshold=0.3,recent=8 "
        "prefixkv,budget=12 windowkv,window=8,review=4,layers=2,beta=4,budget=8 "
        "kvcrush,window=8,budget=8 ems,window=8,budget=8,threshold=0 "
        "elasticcache,budget=12,distance=4 taskkv,window=8,budget=8 "
        "mpcache,large=8,small=4,threshold=0.03 alisa,budget=12 tova,keep_layers=1:2 minicache "
        "xkv,layers=2,rank_k=10,rank_v=15 think,window=8 strawman,p=0.25 h2o+zack,p=0.3 "
        "h2o+minicache zdc,p_i=0.1,p_u=0.5 h2o+zdc,p_i=0.1,p_u=0.5";
    for (char *rest = exact, *text; (text = strsep(&rest, " "));)
        same_as_the_whole(text, KVD_F32, 2e-4);
}

TEST(codes_are_the_whole_sequence)
{
    char coded[] =
        "kivi,residual=32 gear zipcache kvquant allot rotatekv hetero,k=4,v=4 turboquant "
        "cachegen kvtc,window=16,block=8 vidkv,group=16,residual=16 "
        "turboquant,bits=2.5,group=8 leankv,window=16,th=0.3,tl=0.05 mikv "
        "h2o+kivi,heavy=0.3,residual=32 h2o+think+kivi,window=8,residual=32 "
        "zack+kvquant,p=0.3 zdc+gear,p_i=0.1,p_u=0.5 palu+kvquant,palu.p=0.3 zack+allot,p=0.3";
    for (char *rest = coded, *text; (text = strsep(&rest, " "));)
        /* Tolerance of logits, wider for method `hetero`, whose rounding depends on the
         * compiler. */
        same_as_the_whole(text, KVD_F32, strncmp(text, "hetero", 6) ? 0.1 : 0.15);
    same_as_the_whole("h2o", KVD_F16, 0.01);
}

static size_t read_line(FILE *f, double *x, size_t most)
{
    char line[2000];
    size_t n = 0;
    if (!fgets(line, sizeof line, f))
        return 0;
    for (char *rest = line, *part; n < most && (part = strsep(&rest, ","));)
        x[n++] = strtod(part, NULL);
    return n;
}

TEST(none_is_transformers)
{
    enum { SEQUENCES = 5, N = 24, MOST = 100 };
    FILE *const f = fopen("tests/data/generate_expected.csv", "r");
    assert_non_null(f);
    uint32_t ids[SEQUENCES * MOST], made[SEQUENCES * N], after[SEQUENCES * N],
        token[SEQUENCES * N] = {0};
    double x[MOST], log_ps[SEQUENCES * N], p[SEQUENCES * N] = {0};
    size_t at[SEQUENCES + 1] = {0}, ends[SEQUENCES + 1] = {0};
    for (size_t s = 0; s < SEQUENCES; s++) {
        const size_t n = read_line(f, x, MOST);
        for (size_t i = 0; i < n; i++)
            ids[at[s] + i] = (uint32_t)x[i];
        at[s + 1] = at[s] + n;
        ends[s + 1] = ends[s] + N;
        assert_int_equal(read_line(f, x, MOST), N);
        for (size_t i = 0; i < N; i++)
            made[ends[s] + i] = (uint32_t)x[i];
        assert_int_equal(read_line(f, x, MOST), N);
        for (size_t i = 0; i < N; i++)
            after[ends[s] + i] = (uint32_t)x[i];
        assert_int_equal(read_line(f, log_ps + ends[s], N), N);
    }
    fclose(f);
    assert_true(at[SEQUENCES] > 300);
    kvd_err err = {""};
    const kvd_plan plan = {.type = KVD_F32};
    const kvd_generator_spec spec = {.max_tokens = 300, .max_len = MOST + N};
    kvd_generator *const g = kvd_generator_new(checkpoint, &spec, &err);
    assert_non_null(g);
    kvd_continuations c = {.n_sequences = SEQUENCES, .offset = at, .id = ids, .end = ends};
    generate(g, &plan, &c, (kvd_continued){.token = token});
    for (size_t i = 0; i < SEQUENCES * (size_t)N; i++)
        assert_int_equal(token[i], made[i]);
    c.forced = after;
    generate(g, &plan, &c, (kvd_continued){.log_p = p});
    for (size_t i = 0; i < SEQUENCES * (size_t)N; i++)
        assert_true(fabs(p[i] - log_ps[i]) < 1e-4);
    kvd_generator_free(g);
}

TEST(rows_that_do_not_follow)
{
    kvd_err err = {""};
    const kvd_plan plan = {.type = KVD_F32};
    kvd_sequence_cache r;
    size_t bounds[] = {0, PROMPT_1}, start = 0, whole = LONGEST;
    kvd_batch b = {.n_sequences = 1, .offset = bounds, .id = id, .start = &start, .whole = &whole};
    OK(kvd_sequence_cache_init(&r, config, &plan, 1, &err));
    start = 1;
    FAILS(kvd_forward_run(forward, &b, &r.hook, -1, hidden, &err),
          "sequence 0 continues at position 1, the cache holds 0 rows");
    start = 0;
    whole = PROMPT_1;
    FAILS(kvd_forward_run(forward, &b, &r.hook, -1, hidden, &err),
          "sequence 0: 40 rows from position 0 on do not fit its 40 rows, of which a "
          "prompt must leave one");
    whole = LONGEST;
    OK(kvd_forward_run(forward, &b, &r.hook, -1, hidden, &err));
    FAILS(kvd_forward_run(forward, &b, &r.hook, -1, hidden, &err),
          "sequence 0 begins in a slot that another sequence uses");
    start = LONGEST - 2;
    FAILS(kvd_forward_run(forward, &b, &r.hook, -1, hidden, &err),
          "sequence 0: positions 71 .. 110 of 73, room for 73");
    float *const one = unit_alloc((size_t)LONGEST * (size_t)config->d_model * sizeof *one);
    for (size_t t = 0; t < 4; t++) {
        bounds[1] = 1;
        start = PROMPT_1 + t;
        b.id = id + PROMPT_1 + t;
        OK(kvd_forward_run(forward, &b, &r.hook, -1, one + t * (size_t)config->d_model, &err));
    }
    kvd_sequence_cache_end(&r, 0);
    start = 0;
    bounds[1] = PROMPT_1;
    b.id = id;
    OK(kvd_forward_run(forward, &b, &r.hook, -1, hidden, &err));
    start = PROMPT_1;
    bounds[1] = 4;
    b.id = id + PROMPT_1;
    OK(kvd_forward_run(forward, &b, &r.hook, -1, hidden, &err));
    for (size_t i = 0; i < 4 * (size_t)config->d_model; i++)
        assert_true(fabs((double)hidden[i] - (double)one[i]) < 1e-3);
    kvd_sequence_cache_release(&r);
}

/* Called after each generated token. Returns 0 to continue the sequence, 1 to end it after the
 * model has read the token, 2 to end it at once. */
static int end_early(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err)
{
    size_t *const seen = ctx;
    (void)err;
    assert_true(token[at] != KVD_FREE_TOKEN);
    seen[sequence]++;
    return (sequence == 1 ? seen[1] == 2 : sequence == 2) ? (int)seen[PROMPTS] : 0;
}

typedef struct {
    size_t n_calls;
    double sequences;
} progress_seen;

static void count_progress(void *ctx, double n)
{
    progress_seen *const seen = ctx;
    assert_true(n > 0);
    seen->n_calls++;
    seen->sequences += n;
}

/* Generates answers, some of which are stopped early. A forward pass over all generated text must
 * predict the same answers. `ended`: 1 if the model also reads the last token of a stopped answer,
 * 2 if not. */
static void check_questions(size_t ended)
{
    enum { QUESTION = 2, ANSWER = 4, PLACES = 2 * (QUESTION + ANSWER) };
    const size_t places[] = {0, PLACES, 2 * PLACES, 3 * PLACES};
    const kvd_plan none = {.type = KVD_F32};
    uint32_t script[3 * PLACES], token[3 * PLACES], fed[3 * PLACES], again[3 * PLACES];
    size_t seen[PROMPTS + 1] = {[PROMPTS] = ended}, fed_end[PROMPTS + 1] = {0};
    kvd_continued_cost cost[PROMPTS] = {{0}};
    progress_seen progress = {0};
    for (size_t i = 0; i < 3 * PLACES; i++)
        script[i] = i % (PLACES / 2) < QUESTION ? id[i + 7] : KVD_FREE_TOKEN;
    const kvd_continuations c = {.n_sequences = PROMPTS,
                                 .offset = offset,
                                 .id = id,
                                 .end = places,
                                 .forced = script,
                                 .ended = end_early,
                                 .ended_ctx = seen,
                                 .advanced = count_progress,
                                 .advanced_ctx = &progress};
    generate(generator, &none, &c, (kvd_continued){.token = token, .cost = cost});
    assert_int_equal(seen[0], 2 * ANSWER);
    assert_int_equal(seen[1], 2 + ANSWER);
    assert_int_equal(seen[2], 2);
    assert_true(progress.n_calls >= cost[0].steps * (size_t)config->n_layers);
    assert_true(fabs(progress.sequences - PROMPTS) < 1e-9);
    size_t n = 0, at[3 * PLACES];
    for (size_t s = 0; s < PROMPTS; s++) {
        for (size_t i = places[s]; i < places[s + 1]; i++)
            if (ended == 2 && s > 0 && i == places[s] + QUESTION + (s == 1))
                assert_true(token[i] != KVD_FREE_TOKEN && token[i + 1] == KVD_FREE_TOKEN);
            else if (script[i] != KVD_FREE_TOKEN || token[i] != KVD_FREE_TOKEN) {
                at[n] = i;
                fed[n++] = script[i] == KVD_FREE_TOKEN ? token[i] : script[i];
            }
        fed_end[s + 1] = n;
        assert_int_equal(cost[s].steps, fed_end[s + 1] - fed_end[s] - 1);
        const double rows = (double)(offset[s + 1] - offset[s] + cost[s].steps);
        assert_true(fabs(cost[s].bits - rows * 2 * 32 * (double)config->n_layers *
                                            (double)config->n_kv_heads * (double)config->d_head) <
                    0.5);
        assert_true(cost[s].prompt_bits < cost[s].bits);
        assert_true(cost[s].prompt_s > 0 && cost[s].steps_s > 0);
    }
    assert_int_equal(n, 3 * PLACES - (ANSWER - 2) - 2 * (ANSWER - 1) - 2 * (ended - 1));
    const kvd_continuations all = {
        .n_sequences = PROMPTS, .offset = offset, .id = id, .end = fed_end, .forced = fed};
    generate(generator, &none, &all, (kvd_continued){.token = again});
    for (size_t i = 0; i < n; i++)
        assert_int_equal(again[i], token[at[i]]);
}

TEST(questions_in_turn)
{
    check_questions(1);
    check_questions(2);
}

#ifdef KVD_CUDA
/* Returns why the CUDA engine does not support method `text`, or "" if it does. */
static const char *why_not(const kvd_config *c, const char *text, kvd_dtype type)
{
    static char why[KVD_GENERATOR_WHY];
    opened o;
    open_method(text, type, &o);
    const kvd_generator_spec s = {.gpu = true, .compute = KVD_BF16, .max_len = 64};
    assert_true(kvd_generate_engine_runs(c, &s, &o.plan, why) == !*why);
    close_method(&o);
    return why;
}

TEST(paths_on_a_gpu)
{
    char engine[] =
        "none zack,p=0.5 kivi,bits=4,residual=32 h2o kvquant comet allot gear hetero rotatekv "
        "palu turboquant turboquant,bits=2.5 zipcache zack+kivi,p=0.5,residual=32 "
        "balanced+kvquant,p=0.3 h2o+zack,p=0.5 keydiff+balanced,p=0.3 quest taskkv "
        "kivi,bits=4,group=8,residual=32 gear,rank2=9 h2o+kivi,residual=32 adakv+fp8 cachegen "
        "snapkv+kvquant elasticcache+kivi,residual=32 h2o+palu zdc,p_i=0.1,p_u=0.5 "
        "received+uniform,p=0.1,p_u=0.5 zack+turboquant,p=0.5 zack+kivi,p=0.5,group=8,residual=32";
    char rows[] = "quest,page=48 quest+zack,p=0.5 h2o+palu,heads=2 h2o+zipcache "
                  "zdc+kivi,p=0.1,p_u=0.5,residual=32";
    static const char *const other[] = {"gpt-oss", "gemma2-caps", "olmo2-gqa", "mixtral-full",
                                        "deepseek-v2"};
    for (char *rest = engine, *text; (text = strsep(&rest, " "));)
        assert_string_equal(why_not(config, text, KVD_BF16), "");
    for (char *rest = rows, *text; (text = strsep(&rest, " "));)
        if (!*why_not(config, text, KVD_BF16))
            fail_msg("%s in the engine", text);
    assert_string_equal(why_not(config, "none", KVD_F16), "the engine stores bf16 (--cache bf16)");
    kvd_config normed = *config;
    normed.qk_norm = true;
    assert_string_equal(why_not(&normed, "none", KVD_BF16), "");
    assert_string_equal(why_not(&normed, "kvquant", KVD_BF16), "");
    assert_string_equal(why_not(&normed, "h2o+kvquant", KVD_BF16), "");
    assert_string_equal(why_not(&normed, "adakv+kvquant", KVD_BF16), "");
    for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
        char path[200];
        kvd_err err = {""};
        snprintf(path, sizeof path, "tests/data/families/%s", other[i]);
        kvd_checkpoint *const c = kvd_checkpoint_open(path, &err);
        if (!c)
            fail_msg("%s", err.msg);
        if (!*why_not(kvd_checkpoint_config(c), "none", KVD_BF16))
            fail_msg("%s in the engine", other[i]);
        kvd_checkpoint_close(c);
    }
}
#endif

static void refused(const kvd_continuations *c, const char *says)
{
    kvd_err err = {""};
    const kvd_plan plan = {.type = KVD_F32};
    uint32_t token[3 * N_NEW];
    FAILS(
        kvd_generate(generator, &plan, c, &(kvd_continued){.token = token}, NULL, NULL, NULL, &err),
        says);
}

TEST(refusals)
{
    uint32_t beyond[3 * N_NEW] = {0};
    const size_t far[] = {0, LONGEST, LONGEST + 1, LONGEST + 2}, nothing[] = {0, 0, 1, 2};
    kvd_continuations c = {.n_sequences = PROMPTS, .offset = offset, .id = id, .end = far};
    refused(&c, "sequence 0: a prompt of 40 tokens and 73 after it, room for 73");
    c.end = nothing;
    refused(&c, "sequence 0: a prompt of 40 tokens and 0 after it");
    beyond[5] = 8192;
    c.end = end;
    c.forced = beyond;
    refused(&c, "sequence 0: token id 8192 is not below the vocabulary size 8192");
}

TEST_MAIN(set_up, tear_down)
