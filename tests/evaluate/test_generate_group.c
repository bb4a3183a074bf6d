/* Tests that generated tokens do not depend on the number of threads or on how prompts are
 * grouped. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "evaluate/generate/generate.h"
#include "evaluate/generate/generate_path.h"
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
static const size_t offset[] = {0, PROMPT_1, PROMPT_1 + PROMPT_2, ALL};
static const size_t end[] = {0, N_NEW, 2 * N_NEW, 3 * N_NEW};
static uint32_t id[ALL];
static kvd_checkpoint *checkpoint;
static const kvd_config *config;

static int set_up(void **state)
{
    (void)state;
    kvd_err err = {""};
    if (!(checkpoint = kvd_checkpoint_open("data/models/kvdim-6m", &err)))
        return -1;
    config = kvd_checkpoint_config(checkpoint);
    for (size_t i = 0; i < ALL; i++)
        id[i] = (uint32_t)((i * i + 7 * i) % (size_t)config->vocab_size);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    kvd_checkpoint_close(checkpoint);
    return 0;
}

typedef struct {
    uint32_t token[3 * N_NEW];
    double log_p[3 * N_NEW];
    /* account: cache costs reported after generation; stepped: cache costs reported during
     * generation, added up */
    kvd_stepwise_account account, stepped;
    size_t steps;
    kvd_continued_cost cost[PROMPTS]; /* filled only by run_short */
} divided;

static int add_step(void *ctx, size_t first, size_t n, const kvd_stepwise_account *account,
                    kvd_err *err)
{
    divided *const d = ctx;
    (void)first, (void)err;
    d->steps += n;
    kvd_stepwise_account_add(&d->stepped, account);
    return 0;
}

static void divide(const kvd_generator_spec *spec, const bool *done, divided *d)
{
    kvd_err err = {""};
    const kvd_plan none = {.type = KVD_F32};
    const kvd_continuations c = {
        .n_sequences = PROMPTS, .offset = offset, .id = id, .end = end, .done = done};
    kvd_generator_spec s = *spec;
    s.max_tokens = s.max_len = LONGEST;
    kvd_generator *const g = kvd_generator_new(checkpoint, &s, &err);
    if (!g || kvd_generate(g, &none, &c, &(kvd_continued){.token = d->token, .log_p = d->log_p},
                           &d->account, add_step, d, &err))
        fail_msg("%s", err.msg);
    kvd_generator_free(g);
}

static void assert_same(const divided *a, const divided *b)
{
    for (size_t i = 0; i < 3 * (size_t)N_NEW; i++) {
        assert_int_equal(a->token[i], b->token[i]);
        assert_true(fabs(a->log_p[i] - b->log_p[i]) < 1e-4);
    }
    assert_int_equal(a->account.rows, b->account.rows);
    assert_true(fabs(a->account.payload - b->account.payload) < 0.5);
    assert_int_equal(b->account.rows, b->stepped.rows);
}

TEST(several_workers_are_one)
{
    static divided one, several;
    divide(&(kvd_generator_spec){.n_gpus = 1}, NULL, &one);
    assert_int_equal(one.steps, PROMPTS);
    for (int n = 3; n > 1; n--) {
        memset(&several, 0, sizeof several);
        divide(&(kvd_generator_spec){.n_gpus = n}, NULL, &several);
        assert_int_equal(several.steps, PROMPTS);
        assert_same(&one, &several);
    }
}

/* generation whose forward pass number `fail_at` fails for lack of memory. `grown`: number of calls
 * of `grow`, the function that asks for more memory. */
typedef struct {
    kvd_generate_path path;
    kvd_generate_path *rows;
    int passes, fail_at, grown;
} short_path;

static short_path *short_of(kvd_generate_path *p)
{
    return (short_path *)(void *)p;
}

static size_t all_together(const kvd_generate_path *p, const kvd_continuations *c, size_t first)
{
    (void)p;
    return c->n_sequences - first;
}

static size_t two_fit_after_growth(const kvd_generate_path *p, const kvd_continuations *c,
                                   size_t first, size_t n)
{
    (void)c, (void)first;
    return ((const short_path *)(const void *)p)->grown && n > 2 ? 2 : n;
}

static int make_room(kvd_generate_path *p, kvd_err *err)
{
    (void)err;
    short_of(p)->grown++;
    return short_of(p)->fail_at > 0;
}

static int short_begin(kvd_generate_path *p, const kvd_plan *plan, size_t n, kvd_err *err)
{
    return short_of(p)->rows->begin(short_of(p)->rows, plan, n, err);
}

static int short_run(kvd_generate_path *p, const kvd_batch *b, const size_t *slot, kvd_err *err)
{
    short_path *const s = short_of(p);
    if (++s->passes == s->fail_at || s->fail_at < 0)
        return kvd_fail(err, "no room");
    return s->rows->run(s->rows, b, slot, err);
}

static int short_read(kvd_generate_path *p, size_t from, size_t n, uint32_t *token, float *x,
                      kvd_err *err)
{
    return short_of(p)->rows->read(short_of(p)->rows, from, n, token, x, err);
}

static double short_bits(const kvd_generate_path *p, size_t slot)
{
    const short_path *const s = (const short_path *)(const void *)p;
    return s->rows->bits(s->rows, slot);
}

static void short_end(kvd_generate_path *p, kvd_stepwise_account *account)
{
    short_of(p)->rows->end(short_of(p)->rows, account);
}

static void add_advance(void *ctx, double n)
{
    *(double *)ctx += n;
}

/* Generates answers to all prompts.
 *
 * - fail_at: number of the forward pass that runs out of memory; 0: none, -1: all
 * - grown: 1 if only two prompts may run at once from the beginning, 0 if all may */
static int run_short(int fail_at, int grown, divided *d, double *advanced, short_path *s,
                     kvd_err *err)
{
    const kvd_generator_spec spec = {.n_gpus = 1, .max_tokens = ALL, .max_len = LONGEST};
    const kvd_plan plan = {.type = KVD_F32};
    const kvd_continuations c = {.n_sequences = PROMPTS,
                                 .offset = offset,
                                 .id = id,
                                 .end = end,
                                 .advanced = add_advance,
                                 .advanced_ctx = advanced};
    const kvd_continued out = {.token = d->token, .cost = d->cost};
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    memset(d, 0, sizeof *d);
    *advanced = 0;
    *s = (short_path){.path = {.together = all_together,
                               .fits = two_fit_after_growth,
                               .grow = make_room,
                               .begin = short_begin,
                               .run = short_run,
                               .read = short_read,
                               .bits = short_bits,
                               .end = short_end},
                      .rows = kvd_generate_rows(checkpoint, &spec, NULL, err),
                      .fail_at = fail_at,
                      .grown = grown};
    assert_non_null(s->rows);
    s->path.piece = s->rows->piece;
    const int status =
        kvd_generate_group(&s->path, config, &plan, &c, &out, 0, PROMPTS, &lock, &d->account, err);
    s->rows->free(s->rows);
    return status;
}

static void assert_same_groups(const divided *got, const divided *want)
{
    assert_memory_equal(got->token, want->token, sizeof got->token);
    for (size_t i = 0; i < PROMPTS; i++) {
        assert_int_equal(got->cost[i].steps, want->cost[i].steps);
        assert_float_equal(got->cost[i].bits, want->cost[i].bits, 0);
    }
    assert_int_equal(got->account.rows, want->account.rows);
}

TEST(groups_begin_again)
{
    static divided want, got;
    double advanced;
    short_path s;
    kvd_err err = {""};
    OK(run_short(0, 0, &want, &advanced, &s, &err));
    const int passes = s.passes;
    for (int fail_at = 1; fail_at < N_NEW; fail_at += 4) {
        OK(run_short(fail_at, 0, &got, &advanced, &s, &err));
        assert_int_equal(s.grown, 1);
        assert_float_equal(advanced, PROMPTS, 1e-9);
        assert_same_groups(&got, &want);
    }
    OK(run_short(0, 1, &got, &advanced, &s, &err));
    assert_int_equal(s.grown, 1);
    assert_true(s.passes > passes);
    assert_float_equal(advanced, PROMPTS, 1e-9);
    assert_same_groups(&got, &want);
    FAILS(run_short(-1, 0, &got, &advanced, &s, &err),
          "generating after prompts from 0 on: no room");
}

TEST(parts_are_the_whole)
{
    static divided one, part, both;
    const bool done[] = {false, true, false};
    divide(&(kvd_generator_spec){.n_gpus = 1}, NULL, &one);
    for (size_t i = 0; i < 3 * (size_t)N_NEW; i++)
        both.token[i] = 7;
    divide(&(kvd_generator_spec){.n_gpus = 1}, done, &both);
    for (size_t i = 0; i < 3 * (size_t)N_NEW; i++)
        assert_int_equal(both.token[i], i >= end[1] && i < end[2] ? 7 : one.token[i]);
    assert_int_equal(both.steps, PROMPTS - 1);
    memset(&both, 0, sizeof both);
    for (size_t p = 0; p < 2; p++) {
        memset(&part, 0, sizeof part);
        divide(&(kvd_generator_spec){.n_gpus = 1, .part = p, .n_parts = 2}, NULL, &part);
        assert_int_equal(part.steps, p ? 1 : 2);
        for (size_t s = p; s < PROMPTS; s += 2)
            for (size_t i = end[s]; i < end[s + 1]; i++) {
                both.token[i] = part.token[i];
                both.log_p[i] = part.log_p[i];
            }
        kvd_stepwise_account_add(&both.account, &part.account);
        kvd_stepwise_account_add(&both.stepped, &part.stepped);
    }
    assert_same(&one, &both);
}

TEST_MAIN(set_up, tear_down)
