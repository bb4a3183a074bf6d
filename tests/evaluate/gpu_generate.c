/* Compares text generation on GPUs with the CPU. Tokens may differ if their log probabilities are
 * close. */
#include <math.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/device.h"
#include "dims_fixture.h"
#include "evaluate/generate/generate.h"
#include "gpu_case.h"
#include "make_dump.h"
#include "methods/points.h"
#include "model/checkpoint/shapes.h"
#include "model/text/corpus.h"
#include "temp_folder.h"

/* SEQUENCES: number of prompts. N_NEW: number of tokens after each prompt; tokens FIRST_FORCED to
 * LAST_FORCED are given, not generated. MOST: number of tokens of the text from which prompts are
 * cut. */
enum { SEQUENCES = 5, N_NEW = 25, FIRST_FORCED = 9, LAST_FORCED = 11, MOST = 900 };
enum { PLACES = SEQUENCES * N_NEW };
static const size_t length[SEQUENCES] = {41, 130, 17, 64, 199};
static size_t n_sequences = SEQUENCES, n_new = N_NEW;
static size_t offset[SEQUENCES + 1], end[SEQUENCES + 1], longest;
static uint32_t id[MOST], pattern[PLACES];
static kvd_checkpoint *checkpoint;
static const kvd_config *config;
static kvd_spectrum spectrum;
static kvd_activations dump;
static kvd_fisher fisher = {.n_tokens = 1}; /* second moments of gradients: the identity */
static int failures;

static void stop(const kvd_err *err)
{
    printf("not ok generate: %s\n", err->msg);
    exit(1);
}

/* Makes second moments of gradients: an identity matrix for each layer. */
static void make_fisher(void)
{
    const size_t wide = (size_t)(config->n_kv_heads * config->d_head),
                 n = (size_t)config->n_layers * wide * wide;
    free(fisher.moment[0]);
    fisher.n_layers = config->n_layers;
    fisher.moment[0] = fisher.moment[1] = need(n * sizeof(double));
    for (size_t i = 0; i < n; i++)
        fisher.moment[0][i] = i / wide % wide == i % wide;
}

static void set_up(void)
{
    kvd_err err = {""};
    char path[64];
    if (!(checkpoint = kvd_checkpoint_open("data/models/kvdim-6m", &err)))
        stop(&err);
    config = kvd_checkpoint_config(checkpoint);
    (void)snprintf(path, sizeof path, "%s/a.h5", temp_folder());
    if (fixture_ids(checkpoint, id, sizeof id / sizeof *id, &err) ||
        fixture_spectrum(&spectrum, config, 5, &err) || open_made_dump(config, path, &dump, &err))
        stop(&err);
    for (size_t s = 0; s < n_sequences; s++) {
        offset[s + 1] = offset[s] + length[s];
        end[s + 1] = end[s] + n_new;
        longest = length[s] > longest ? length[s] : longest;
    }
    longest += n_new;
    make_fisher();
    for (size_t i = 0; i < end[n_sequences]; i++) {
        const size_t j = i % n_new;
        pattern[i] =
            j >= FIRST_FORCED && j <= LAST_FORCED ? id[MOST - 1 - i % 100] : KVD_FREE_TOKEN;
    }
}

typedef struct {
    kvd_method m;
    kvd_point *point;
    size_t n_points;
    kvd_plan plan;
} opened;

static void open_plan(opened *o, const char *text, kvd_dtype type)
{
    kvd_err err = {""};
    *o = (opened){.point = NULL};
    if (kvd_method_parse(text, &o->m, &err))
        stop(&err);
    o->m.spectrum = o->m.dims ? &spectrum : NULL;
    o->m.spectrum_path = "fixture";
    if (kvd_points_make(&o->m, &o->point, &o->n_points, &err))
        stop(&err);
    o->plan = kvd_point_plan(o->point);
    o->plan.type = type;
    o->plan.prompt = 1;
    o->plan.seed = 3;
    const kvd_method_setup setup = {.config = config,
                                    .spectrum = o->m.spectrum,
                                    .calibration = strstr(text, "locret") ? NULL : &dump,
                                    .fisher = strstr(text, "waterfill") ? &fisher : NULL,
                                    .checkpoint = checkpoint,
                                    .drawn = strstr(text, "locret") != NULL,
                                    .seed = 3};
    if (kvd_plan_open(&o->plan, &setup, &err))
        stop(&err);
}

static void close_plan(opened *o)
{
    kvd_plan_close(&o->plan);
    kvd_points_free(o->point, o->n_points);
}

typedef struct {
    uint32_t token[PLACES];
    double log_p[PLACES];
    kvd_continued_cost cost[SEQUENCES];
    kvd_stepwise_account account;
    double seconds;
} outcome;

static kvd_continuations asked(const uint32_t *forced)
{
    return (kvd_continuations){
        .n_sequences = n_sequences, .offset = offset, .id = id, .end = end, .forced = forced};
}

static bool generate(kvd_generator *g, const kvd_plan *plan, const kvd_continuations *c,
                     bool scores, outcome *o, kvd_err *err)
{
    const kvd_continued to = {
        .token = o->token, .log_p = scores ? o->log_p : NULL, .cost = o->cost};
    const double started = kvd_clock_s();
    memset(o, 0, sizeof *o);
    const bool done = !kvd_generate(g, plan, c, &to, &o->account, NULL, NULL, err);
    o->seconds = kvd_clock_s() - started;
    return done;
}

typedef struct {
    /* largest accepted difference between log probabilities of the CPU's and the GPU's token, where
     * these first differ */
    double margin;
    /* largest accepted mean absolute difference between log probabilities on GPU and CPU */
    double log_p;
    double bits;      /* accepted relative difference of cache sizes */
    size_t sequences; /* number of sequences whose tokens differ */
} limits;

typedef struct {
    size_t compared, sequences, places, other;
    double smallest, largest, mean, worst, bits;
    bool account;
} difference;

static void compare_free(kvd_generator *cpu, const kvd_plan *plan, const outcome *want,
                         const outcome *got, difference *d)
{
    static outcome along;
    uint32_t forced[PLACES];
    size_t at[SEQUENCES];
    bool same[SEQUENCES];
    kvd_err err = {""};
    memcpy(forced, pattern, sizeof forced);
    kvd_continuations c = asked(forced);
    c.done = same;
    d->smallest = INFINITY;
    for (size_t s = 0; s < n_sequences; s++) {
        size_t i = end[s];
        while (i < end[s + 1] && got->token[i] == want->token[i])
            i++;
        at[s] = i;
        d->compared += i - end[s] + (i < end[s + 1]);
        if ((same[s] = i == end[s + 1]))
            continue;
        d->sequences++;
        forced[i] = got->token[i];
    }
    if (!d->sequences)
        return;
    if (!generate(cpu, plan, &c, true, &along, &err))
        stop(&err);
    for (size_t s = 0; s < n_sequences; s++) {
        if (same[s] || pattern[at[s]] != KVD_FREE_TOKEN)
            continue;
        const double margin = want->log_p[at[s]] - along.log_p[at[s]];
        d->smallest = fmin(d->smallest, margin);
        d->largest = fmax(d->largest, margin);
    }
}

static void compare_forced(const outcome *want, const outcome *got, difference *d)
{
    for (size_t i = 0; i < end[n_sequences]; i++) {
        const double off = fabs(got->log_p[i] - want->log_p[i]);
        d->places++;
        d->other += got->token[i] != want->token[i];
        d->mean += off / (double)end[n_sequences];
        d->worst = off > d->worst || isnan(off) ? off : d->worst;
    }
    for (size_t s = 0; s < n_sequences; s++) {
        const kvd_continued_cost *const a = &want->cost[s], *const b = &got->cost[s];
        d->bits = fmax(d->bits, fabs(b->prompt_bits / a->prompt_bits - 1));
        d->bits = fmax(d->bits, fabs(b->bits / a->bits - 1));
        d->account = d->account && a->steps == b->steps;
    }
    const kvd_stepwise_account *const a = &want->account, *const b = &got->account;
    const double held = (a->payload + a->side + a->entries) / a->dense,
                 mine = (b->payload + b->side + b->entries) / b->dense;
    d->bits = fmax(d->bits, fabs(mine / held - 1));
    d->bits = fmax(d->bits, fabs(b->read / b->dense / (a->read / a->dense) - 1));
    d->account = d->account && a->rows == b->rows && a->dropped == b->dropped &&
                 a->unread == b->unread && a->lowered == b->lowered && a->pruned == b->pruned;
}

static void compare(kvd_generator *cpu, kvd_generator *gpu, const char *text, kvd_dtype type,
                    const limits *most)
{
    static outcome want, got, got_forced;
    uint32_t fed[PLACES];
    const kvd_continuations chosen = asked(pattern), given = asked(fed);
    opened o;
    kvd_err err = {""};
    char why[KVD_GENERATOR_WHY];
    difference d = {.account = true};
    open_plan(&o, text, type);
    const char *const path = kvd_generator_path(gpu, &o.plan, why);
    if (!generate(cpu, &o.plan, &chosen, true, &want, &err))
        stop(&err);
    for (size_t i = 0; i < end[n_sequences]; i++)
        fed[i] = pattern[i] == KVD_FREE_TOKEN ? want.token[i] : pattern[i];
    if (!generate(gpu, &o.plan, &chosen, false, &got, &err) ||
        !generate(gpu, &o.plan, &given, true, &got_forced, &err)) {
        printf("not ok generate %s %s (%s): %s\n", kvd_dtype_name(type), text, path, err.msg);
        failures++;
        close_plan(&o);
        return;
    }
    compare_free(cpu, &o.plan, &want, &got, &d);
    compare_forced(&want, &got_forced, &d);
    const bool engine =
        type == KVD_F32 || !strncmp(path, "GPU engine", 10) || !strncmp(text, "kvmerger+", 9);
    const bool ok = engine && d.largest <= most->margin && d.mean <= most->log_p &&
                    d.bits <= most->bits && d.sequences <= most->sequences &&
                    (d.account || most->bits > 1e-6);
    printf(
        "%s generate %s %s (%s%s%s): %zu sequences, %zu tokens compared, %zu differ, CPU's margin "
        "there %.2g to %.2g nat (up to %g); along the CPU's tokens %zu of %zu differ, log p off "
        "by %.2g on average, %.2g at most; bits off by %.2g, account %s, prompt %.0f and end "
        "%.0f bits; %.2f s on the CPU, %.2f and %.2f s on the GPU\n",
        ok ? "ok" : "not ok", kvd_dtype_name(type), text, path, *why ? ", because " : "", why,
        n_sequences, d.compared, d.sequences, d.sequences ? d.smallest : 0.0, d.largest,
        most->margin, d.other, d.places, d.mean, d.worst, d.bits, d.account ? "equal" : "not equal",
        got_forced.cost[0].prompt_bits, got_forced.cost[0].bits, want.seconds, got.seconds,
        got_forced.seconds);
    (void)fflush(stdout);
    failures += !ok;
    close_plan(&o);
}

/* Called after each generated token. Returns 0 to continue the answer, 1 to end it after the model
 * has read the token, 2 to end it at once. */
static int ended(void *ctx, size_t sequence, size_t at, const uint32_t *token, kvd_err *err)
{
    (void)ctx, (void)token, (void)err;
    return at < end[sequence] + FIRST_FORCED && at - end[sequence] == 4 + sequence % 3
               ? 1 + (int)(sequence % 2)
               : 0;
}

static void compare_ended(kvd_generator *cpu, kvd_generator *gpu, kvd_dtype type, const char *text)
{
    static outcome want, got;
    opened o;
    kvd_err err = {""};
    kvd_continuations c = asked(pattern);
    size_t differ = 0, unused = 0;
    bool steps = true;
    c.ended = ended;
    open_plan(&o, text, type);
    if (!generate(cpu, &o.plan, &c, false, &want, &err) ||
        !generate(gpu, &o.plan, &c, false, &got, &err))
        stop(&err);
    for (size_t i = 0; i < end[n_sequences]; i++) {
        differ += want.token[i] != got.token[i];
        unused += want.token[i] == KVD_FREE_TOKEN;
        steps = steps && (want.token[i] == KVD_FREE_TOKEN) == (got.token[i] == KVD_FREE_TOKEN);
    }
    for (size_t s = 0; s < n_sequences; s++)
        steps = steps && want.cost[s].steps == got.cost[s].steps &&
                fabs(want.cost[s].bits - got.cost[s].bits) < 1;
    const bool ok = steps && unused && (type != KVD_F32 || !differ);
    printf("%s generate %s %s with answers that end early: %zu of %zu tokens differ, %zu unused, "
           "steps and bits %s\n",
           ok ? "ok" : "not ok", kvd_dtype_name(type), text, differ, end[n_sequences], unused,
           steps ? "equal" : "not equal");
    failures += !ok;
    close_plan(&o);
}

/* number of prompts of the greatest length that fit into one forward pass */
static size_t in_a_pass = 3;

static kvd_generator *generator(bool gpu, kvd_dtype compute, int n_gpus)
{
    kvd_err err = {""};
    const kvd_generator_spec s = {.gpu = gpu,
                                  .compute = compute,
                                  .n_gpus = n_gpus,
                                  .max_tokens = in_a_pass * longest,
                                  .max_len = longest};
    kvd_generator *const g = kvd_generator_new(checkpoint, &s, &err);
    if (!g)
        stop(&err);
    return g;
}

enum { TIMES = 6, MANY = TIMES * SEQUENCES };

typedef struct {
    uint32_t token[TIMES * PLACES];
    kvd_continued_cost cost[MANY];
    kvd_stepwise_account account;
} many;

static void generate_many(const kvd_plan *plan, kvd_dtype compute, int n_gpus, many *out)
{
    static size_t at[MANY + 1], to[MANY + 1];
    static uint32_t prompt[TIMES * MOST];
    kvd_err err = {""};
    kvd_generator *const g = generator(true, compute, n_gpus);
    for (size_t s = 0; s < MANY; s++) {
        const size_t from = offset[s % SEQUENCES], n = length[s % SEQUENCES];
        memcpy(prompt + at[s], id + from, n * sizeof *prompt);
        at[s + 1] = at[s] + n;
        to[s + 1] = to[s] + N_NEW;
    }
    const kvd_continuations c = {.n_sequences = MANY, .offset = at, .id = prompt, .end = to};
    memset(out, 0, sizeof *out);
    if (kvd_generate(g, plan, &c, &(kvd_continued){.token = out->token, .cost = out->cost},
                     &out->account, NULL, NULL, &err))
        stop(&err);
    kvd_generator_free(g);
}

static void compare_gpus(const char *text, kvd_dtype type, int there)
{
    static many one, several;
    opened o;
    open_plan(&o, text, type);
    generate_many(&o.plan, type, 1, &one);
    for (int n_gpus = 2; n_gpus <= there && n_gpus <= 4; n_gpus += 2) {
        size_t tokens = 0, costs = 0;
        generate_many(&o.plan, type, n_gpus, &several);
        for (size_t i = 0; i < TIMES * PLACES; i++)
            tokens += one.token[i] != several.token[i];
        for (size_t s = 0; s < MANY; s++)
            costs += fabs(one.cost[s].bits - several.cost[s].bits) > 0 ||
                     one.cost[s].steps != several.cost[s].steps;
        const bool same = one.account.rows == several.account.rows &&
                          one.account.dropped == several.account.dropped &&
                          fabs(one.account.payload - several.account.payload) <= 0;
        const bool ok = !tokens && !costs && same;
        printf("%s generate %s %s on %d GPUs: %zu of %d tokens and %zu of %d costs differ from one "
               "GPU's, account %s\n",
               ok ? "ok" : "not ok", kvd_dtype_name(type), text, n_gpus, tokens, TIMES * PLACES,
               costs, MANY, same ? "equal" : "not equal");
        (void)fflush(stdout);
        failures += !ok;
    }
    close_plan(&o);
}

static void compare_several(void)
{
    const int there = kvd_cuda_count();
    if (there < 2) {
        printf("skip generate on several GPUs: %d here\n", there);
        return;
    }
    compare_gpus("none", KVD_BF16, there);
    compare_gpus("h2o", KVD_BF16, there);
    compare_gpus("kivi,bits=4,residual=32", KVD_BF16, there);
    compare_gpus("zack,p=0.5", KVD_F32, there);
    compare_gpus("kvzip", KVD_F32, there);
}

static void compare_all(kvd_generator *cpu, kvd_dtype type, const char *only)
{
    /* `smooth`: true if rounding has only small effects, because the method neither quantises nor
     * selects tokens */
    static const struct {
        const char *text;
        bool smooth;
        double bits; /* largest relative difference of the cache size */
    } method[] = {{"none", true, 0},
                  {"zack,p=0.5", true, 0},
                  {"balanced,p=0.3", true, 0},
                  {"palu", true, 0},
                  {"palu,heads=1,p=0.3", true, 0},
                  {"palu+allot,bits=4", false, 0},
                  {"palu+kvquant,outliers=0", false, 0},
                  {"palu+kvquant", false, 0.01},
                  {"palu+kvquant,heads=1,p=0.3,bits=3,outliers=0.02,sink=3", false, 0.01},
                  {"palu+kivi,bits=4,residual=32", false, 0},
                  {"palu+hetero,heads=1,p=0.3,k=8,v=4", false, 0},
                  {"palu+allot,heads=1,p=0.3,bits=5,sink=3", false, 0},
                  {"h2o+palu", false, 0},
                  {"keyformer+palu,p=0.3", false, 0},
                  {"snapkv+palu,window=8,p=0.1", false, 0},
                  {"scissorhands+palu,drop=4,p=0.2", false, 0},
                  {"streaming+palu,p=0.3", false, 0},
                  {"expectedattention+palu,p=0.3", false, 0},
                  {"zack,online=1,p=0.4", true, 0},
                  {"zack,explicit=1,p=0.4", true, 0},
                  {"fdc,explicit=1,p=0.4", true, 0},
                  {"zdc,explicit=1,p_i=0.1,p_u=0.5", false, 0},
                  {"zdc,online=1,p_i=0.1,p_u=0.5", false, 0},
                  {"strawman,p=0.25", true, 0},
                  {"kivi,bits=4,residual=32", false, 0},
                  {"kvquant,outliers=0", false, 0},
                  {"nvfp4", false, 0},
                  {"kvquant", false, 0.01},
                  {"kvquant,outliers=0.0005", false, 0.01},
                  {"zack+kvquant,p=0.3", false, 0.01},
                  {"cachegen", false, 0.02},
                  {"cachegen,own=0,group=5", false, 0.02},
                  {"kvtc,window=20,block=16", false, 0.02},
                  {"waterfill,step=0.05", false, 0.02},
                  {"kivi,bits=4,group=20,residual=20", false, 0},
                  {"comet,group=16", false, 0},
                  {"allot", false, 0},
                  {"gear,buffer=7", false, 1e-9},
                  {"hetero", false, 0},
                  {"zipcache,high=8,low=4,block=20", false, 1e-9},
                  {"vidkv,group=16,residual=16,k=1.8,ternary=0", false, 1e-9},
                  {"zack+zipcache,p=0.3,high=8,low=4,block=20", false, 1e-9},
                  {"xquant,bits=4,group=16", false, 0},
                  {"xquant,bits=4,latent=0", false, 0},
                  {"rotatekv,bits=4,group=32,sink=3", false, 0},
                  {"zack+gear,p=0.3,bits=4", false, 1e-9},
                  {"zack+allot,p=0.3,bits=4", false, 0},
                  {"zack+turboquant,p=0.3", false, 0},
                  {"zack+cachegen,p=0.3", false, 0.02},
                  {"turboquant", false, 0},
                  {"turboquant,bits=3.5,qjl=0,group=16", false, 1e-9},
                  {"zack+kivi,p=0.3,bits=4,residual=32", false, 0},
                  {"uniform+kivi,p=0.25,bits=4,group=16,residual=16", false, 0},
                  {"balanced+mxfp4,p=0.3", false, 0},
                  {"fdc+fp8,p=0.3", false, 0},
                  {"zack+kvquant,p=0.3,outliers=0", false, 0},
                  {"h2o", false, 0},
                  {"keyformer", false, 0},
                  {"kvmerger", false, 0.05},
                  {"kvmerger+zack,p=0.3", false, 0.05},
                  {"ems,window=8", false, 0},
                  {"ems+zack,window=8,p=0.3", false, 0},
                  {"elasticcache", false, 0},
                  {"elasticcache+zack,p=0.3", false, 0},
                  {"d2o", false, 0},
                  {"d2o+zack,p=0.3", false, 0},
                  {"scissorhands,drop=4", false, 0},
                  {"kvcrush,window=8", false, 0},
                  {"snapkv,window=8", false, 0},
                  {"pyramidkv,window=8", false, 0},
                  {"adakv,window=8", false, 0},
                  {"taskkv,window=8", false, 0},
                  {"expectedattention", false, 0},
                  {"locret,budget=0.3,local=8", false, 0},
                  {"locret+zack,budget=0.3,local=8,p=0.3", false, 0},
                  {"prefixkv", false, 0.05},
                  {"cake,window=8", false, 0.05},
                  {"windowkv,window=8,review=8,layers=2,beta=4,budget=0.5", false, 0.2},
                  {"h2o+zack,p=0.3", false, 0},
                  {"keyformer+balanced,p=0.3", false, 0},
                  {"snapkv+zack,window=8,p=0.5", false, 0},
                  {"snapkv+hetero,window=8,k=8,v=4", false, 0},
                  {"knorm+kivi,bits=4,group=16,residual=16", false, 0},
                  {"h2o+kivi,bits=4,group=16,residual=16", false, 0.05},
                  {"tova+fp8", false, 0},
                  {"streaming+kivi,bits=4,group=16,residual=16", false, 0},
                  {"keyformer+nvfp4", false, 0},
                  {"keyformer+kvquant", false, 0.05},
                  {"streaming+kvquant,outliers=0,kvquant.sink=3", false, 0},
                  {"streaming+allot,bits=4,allot.sink=3", false, 0},
                  {"snapkv+kvquant,window=8", false, 0.05},
                  {"adakv+allot,window=8,bits=4", false, 0.05},
                  {"kvzip+kvquant,outliers=0,kvquant.sink=3", false, 0.05},
                  {"elasticcache+kivi,bits=4,group=16,residual=16", false, 0},
                  {"scissorhands+mxfp4,drop=4", false, 0},
                  {"pyramidkv+kivi,window=8,bits=4,group=16,residual=16", false, 0},
                  {"adakv+fp8,window=8", false, 0},
                  {"kvzip+nvfp4", false, 0},
                  {"tova+zack,p=0.3", false, 0},
                  {"scissorhands+zack,drop=4,p=0.3", false, 0},
                  {"kvcrush+zack,window=8,p=0.3", false, 0},
                  {"streaming+zack,p=0.3", true, 0},
                  {"knorm+zack,p=0.3", false, 0},
                  {"keydiff+zack,p=0.3", false, 0},
                  {"expectedattention+zack,p=0.3", false, 0},
                  {"quest,budget=0.3,page=8", false, 0},
                  {"quest,budget=0.5,page=64", false, 0},
                  {"alisa,budget=0.4", false, 0},
                  {"shadowkv,budget=0.2,rank=32,outliers=2,local=1", false, 0},
                  {"shadowkv,budget=16,chunk=4,outliers=3", false, 0},
                  {"mpcache,threshold=0.004,budget=0.4,small=8", false, 0.1},
                  {"a2ats,size=64,rows=250,budget=0.1,sink=4,local=16,relative=64", false, 0.05},
                  {"mikv", false, 0},
                  {"lower+hetero,k=5,v=16,lk=3,lv=4,balance=1,heavy=9,recent=0", false, 0},
                  {"minicache", true, 0.02},
                  {"minicache,gamma=0,start=0", true, 0},
                  {"xkv", false, 0},
                  {"xkv,layers=2,rank_k=10,rank_v=15", false, 0},
                  {"kvzip", false, 0},
                  {"think,window=8", false, 0},
                  {"zdc,p_i=0.1,p_u=0.5", false, 0},
                  {"zdc,p_i=0.1,p_u=0.4,g=0.2,rise=0.5,layers=2", false, 0},
                  {"importance+balanced,p=0.1,p_u=0.4,mean=1,overlap=1", false, 0},
                  {"received+zack,p=0.1,p_u=0.4,g=0.3,rise=0.4", false, 0},
                  {"leankv,window=16,th=0.3,tl=0.05", false, 0.01}};
    kvd_generator *const gpu = generator(true, type, 1);
    for (size_t i = 0, next = 0; i < sizeof method / sizeof *method; i++) {
        const bool smooth = method[i].smooth, f32 = type == KVD_F32;
        if ((only && !strstr(method[i].text, only)) || !in_this_part(next++))
            continue;
        /* true for methods with coarse quantisation, with which log probabilities on GPU and CPU
         * differ by 0.14 on average */
        const bool coarse = strcmp(method[i].text, "turboquant") == 0 ||
                            strstr(method[i].text, "+turboquant") ||
                            strstr(method[i].text, "mpcache") || strstr(method[i].text, "vidkv") ||
                            strstr(method[i].text, "cachegen");
        const double wide = strstr(method[i].text, "page=64") ? 10 : coarse ? 1.5 : 0;
        /* If CPU and GPU generate different tokens: accepted difference between the log
         * probabilities of these tokens on the CPU. */
        const double chooses = !strcmp(method[i].text, "tova+fp8") ? 2
                               : !strcmp(method[i].text, "elasticcache") ||
                                       !strcmp(method[i].text, "d2o") ||
                                       strstr(method[i].text, "elasticcache+kivi")
                                   ? 1.5
                                   : 0.5;
        /* In float32, if CPU and GPU generate different tokens: accepted difference between these
         * tokens' log probabilities on the CPU. */
        const double ties =
            strstr(method[i].text, "+nvfp4") || !strcmp(method[i].text, "mikv") ? 0.1 : 1e-3;
        const limits most = {.margin = f32        ? ties
                                       : smooth   ? 0.15
                                       : wide > 0 ? wide
                                                  : chooses,
                             .log_p = f32        ? smooth ? 1e-4 : 1e-2
                                      : smooth   ? 0.03
                                      : wide > 0 ? 0.2
                                                 : 0.15,
                             .bits = method[i].bits > 0 ? method[i].bits : 1e-12,
                             .sequences = f32 ? 1 : SEQUENCES};
        compare(cpu, gpu, method[i].text, type, &most);
    }
    if (!only && case_part == 0) {
        compare_ended(cpu, gpu, type, "none");
        compare_ended(cpu, gpu, type, "zack,p=0.5");
        compare_ended(cpu, gpu, type, "adakv,window=8");
    }
    kvd_generator_free(gpu);
}

/* Compares method kvtc on GPU and CPU if the GPU needs several forward passes for the prompts. */
static void compare_passes(kvd_generator *cpu)
{
    static const limits most = {.margin = 0.5, .log_p = 0.15, .bits = 0.02, .sequences = SEQUENCES};
    in_a_pass = 1;
    kvd_generator *const gpu = generator(true, KVD_BF16, 1);
    in_a_pass = 3;
    compare(cpu, gpu, "kvtc,window=20,block=16", KVD_BF16, &most);
    kvd_generator_free(gpu);
}

/* small gpt-oss: routed experts, attention sinks, biases, YaRN, sliding windows */
static const kvd_shape gpt_oss = {
    "gpt_oss", "gpt_oss", "made up",
    "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"hidden_act\":\"silu\","
    "\"hidden_size\":128,\"intermediate_size\":96,\"head_dim\":64,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"num_local_experts\":8,"
    "\"num_experts_per_tok\":3,\"swiglu_limit\":7.0,\"attention_bias\":true,"
    "\"layer_types\":[\"sliding_attention\",\"full_attention\",\"sliding_attention\","
    "\"full_attention\"],\"sliding_window\":40,"
    "\"rope_theta\":10000.0,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"
    "\"beta_fast\":32.0,\"beta_slow\":1.0,\"original_max_position_embeddings\":256,"
    "\"truncate\":false},\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-05,"
    "\"vocab_size\":500,\"tie_word_embeddings\":false}"};

/* Checks that the compression method runs on the CUDA engine. If `reason` is given, checks instead
 * that the engine refuses the method for this reason. */
static void takes_path(kvd_generator *gpu, const char *text, const char *reason)
{
    char why[KVD_GENERATOR_WHY];
    opened o;
    open_plan(&o, text, KVD_BF16);
    const char *const path = kvd_generator_path(gpu, &o.plan, why);
    const bool engine = !strncmp(path, "GPU engine", 10),
               ok = reason ? !engine && strstr(why, reason) : engine;
    printf("%s generate %s takes a path: %s%s%s\n", ok ? "ok" : "not ok", text, path,
           *why ? ", because " : "", why);
    failures += !ok;
    close_plan(&o);
}

/* small Gemma 3: heads of 256 dimensions, a constant score factor, sliding windows */
static const kvd_shape gemma = {
    "gemma3", "gemma3_text", "made up",
    "{\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":256,\"intermediate_size\":192,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":256,\"query_pre_attn_scalar\":100,\"attention_bias\":false,"
    "\"rope_theta\":10000.0,\"rope_local_base_freq\":5000.0,\"layer_types\":["
    "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"],"
    "\"sliding_window\":40,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-06,"
    "\"vocab_size\":500}"};

/* small Mistral, in which every layer has a sliding window */
static const kvd_shape mistral = {
    "mistral", "mistral", "made up",
    "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\",\"hidden_act\":\"silu\","
    "\"hidden_size\":256,\"intermediate_size\":192,\"head_dim\":64,\"num_hidden_layers\":4,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"rope_theta\":10000.0,"
    "\"sliding_window\":40,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-05,"
    "\"vocab_size\":500,\"tie_word_embeddings\":false}"};

/* small Llama with heads of 128 dimensions */
static const kvd_shape wide_heads = {
    "wide", "wide", "made up",
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\","
    "\"hidden_size\":256,\"intermediate_size\":192,\"head_dim\":128,\"num_hidden_layers\":5,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":4,\"rope_theta\":10000.0,"
    "\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-05,\"vocab_size\":500,"
    "\"tie_word_embeddings\":false}"};

/* Makes a model of this shape, and the calibration data that the next tests need. */
static void use_shape(const kvd_shape *shape)
{
    kvd_err err = {""};
    char path[128];
    kvd_checkpoint_close(checkpoint);
    if (!(checkpoint = kvd_checkpoint_of_shape(shape, 5, &err)))
        stop(&err);
    config = kvd_checkpoint_config(checkpoint);
    for (size_t i = 0; i < MOST; i++)
        id[i] %= (uint32_t)config->vocab_size;
    for (size_t i = 0; i < PLACES; i++)
        if (pattern[i] != KVD_FREE_TOKEN)
            pattern[i] %= (uint32_t)config->vocab_size;
    kvd_spectrum_release(&spectrum);
    kvd_activations_close(&dump);
    (void)snprintf(path, sizeof path, "%s/%s.h5", temp_folder(), shape->name);
    if (fixture_spectrum(&spectrum, config, 5, &err) || open_made_dump(config, path, &dump, &err))
        stop(&err);
    make_fisher();
}

/* Compares the GPU engine with the CPU on a model of this shape. Every sequence is longer than the
 * sliding window. */
static void compare_shape(const kvd_shape *shape, const char *const *method, size_t n,
                          const char *const (*refused)[2], size_t n_refused)
{
    /* Limits for the comparison: rounding to bf16 can select other experts and so change a log
     * probability by up to 1 nat. */
    static const limits most = {.margin = 1, .log_p = 0.1, .bits = 1e-12, .sequences = SEQUENCES},
                        chosen = {.margin = 3, .log_p = 0.2, .bits = 1e-12, .sequences = SEQUENCES},
                        counted = {.margin = 3, .log_p = 0.2, .bits = 0.1, .sequences = SEQUENCES};
    use_shape(shape);
    printf("# %s\n", shape->name);
    kvd_generator *const cpu = generator(false, KVD_F32, 1), *const gpu =
                                                                 generator(true, KVD_BF16, 1);
    for (size_t i = 0, next = 0; i < n; i++) {
        /* true for methods that neither quantise nor choose tokens; their GPU and CPU results must
         * be nearly equal */
        const bool exact = !strcmp(method[i], "none") || !strcmp(method[i], "zack,p=0.5") ||
                           !strncmp(method[i], "xkv", 3) || !strncmp(method[i], "palu,", 5);
        /* methods whose number of kept tokens, outliers or code bits depends on rounding errors */
        static const char *const varying[] = {
            "kvmerger", "prefixkv", "cake",     "mpcache",   "a2ats",    "cachegen", "waterfill",
            "kvtc",     "kvquant",  "h2o+kivi", "tova+kivi", "zipcache", "leankv",   "minicache"};
        /* methods whose log probabilities on GPU and CPU may differ by 0.35 nats on average */
        static const char *const rough[] = {"cachegen", "gear", "vidkv", "tova+kivi",
                                            "zack+turboquant"};
        bool varies = false, few = false;
        for (size_t k = 0; k < sizeof rough / sizeof *rough; k++)
            few = few || strstr(method[i], rough[k]);
        for (size_t k = 0; k < sizeof varying / sizeof *varying; k++)
            varies = varies || strstr(method[i], varying[k]);
        if (!in_this_part(next++))
            continue;
        takes_path(gpu, method[i], NULL);
        limits accepted = exact ? most : varies ? counted : chosen;
        if (few)
            accepted.log_p = 0.35;
        compare(cpu, gpu, method[i], KVD_BF16, &accepted);
    }
    for (size_t i = 0; i < n_refused; i++)
        takes_path(gpu, refused[i][0], refused[i][1]);
    kvd_generator_free(gpu);
    kvd_generator_free(cpu);
}

static void compare_shapes(void)
{
    static const char *const of_gpt_oss[] = {
        "none",
        "zack,p=0.5",
        "h2o",
        "kivi,bits=4,group=32,residual=32",
        "nvfp4",
        "comet,group=32",
        "turboquant,bits=4,qjl=0",
        "zack+kivi,p=0.3,bits=4,group=16,residual=16",
        "zack+turboquant,p=0.3",
        "zack+cachegen,p=0.3",
        "zack+kvquant,p=0.3",
        "zack+allot,p=0.3,bits=4,sink=3",
        "zack+gear,p=0.3,bits=4",
        "zack+zipcache,p=0.3,high=8,low=4,block=20",
        "kivi,bits=4,group=16,residual=16",
        "snapkv,window=8",
        "quest,budget=0.3,page=8",
        "pyramidkv,window=8",
        "h2o+zack,p=0.3",
        "streaming",
        "tova",
        "keyformer",
        "knorm",
        "keydiff",
        "locret,budget=0.3,local=8",
        "expectedattention",
        "adakv,window=8",
        "taskkv,window=8",
        "quest,budget=0.5,page=64",
        "scissorhands,drop=4",
        "kvcrush,window=8",
        "ems,window=8",
        "d2o",
        "elasticcache",
        "kvzip",
        "kvmerger",
        "prefixkv",
        "cake,window=8",
        "windowkv,window=8,review=8,layers=1,beta=2,budget=0.5",
        "windowkv,window=8,review=8,layers=2,beta=4,budget=0.5",
        "alisa,budget=0.4",
        "mpcache,threshold=0.004,budget=0.4,small=8",
        "a2ats,size=64,rows=250,budget=0.1,sink=4,local=16",
        "shadowkv,budget=0.2,rank=32,outliers=2,local=1",
        "cachegen",
        "cachegen,own=1,group=5",
        "kvtc,window=20,block=16",
        "kvtc,window=60,block=16",
        "kvtc,lanes=1,window=0",
        "waterfill,step=0.05",
        "waterfill,step=0.05,block=64",
        "gear,buffer=7",
        "kvquant",
        "kvquant,outliers=0,sink=3",
        "allot",
        "allot,bits=4,sink=3",
        "rotatekv,bits=4,group=32,sink=3",
        "vidkv,group=16,residual=16,k=1.8,ternary=0",
        "kivi,bits=4,group=20,residual=20",
        "xquant,bits=4,group=16",
        "xquant,bits=4,latent=0",
        "zipcache,high=8,low=4,block=20",
        "h2o+kivi,bits=4,group=16,residual=16",
        "snapkv+hetero,window=8,k=8,v=4",
        "adakv+fp8,window=8",
        "tova+kivi,bits=4,group=20,residual=40",
        "keyformer+kvquant",
        "streaming+allot,bits=4,allot.sink=3",
        "think,window=8",
        "think,window=8,p=0.8",
        "zdc,p_i=0.1,p_u=0.5",
        "zdc,p_i=0.1,p_u=0.4,g=0.2,rise=0.5,layers=2",
        "importance+balanced,p=0.1,p_u=0.4,mean=1,overlap=1",
        "received+zack,p=0.1,p_u=0.4,g=0.3,rise=0.4",
        "palu,heads=2,p=0.25",
        "palu,heads=1,p=0.3",
        "palu+allot,heads=1,p=0.3,bits=5,sink=3",
        "palu+kvquant,heads=2,p=0.25",
        "palu+kvquant,heads=1,p=0.3,outliers=0,sink=20",
        "palu+kivi,heads=2,p=0.25,bits=4,residual=32",
        "h2o+palu,heads=1,p=0.3",
        "keyformer+palu,heads=1,p=0.3",
        "strawman,p=0.5",
        "zack,online=1,p=0.4",
        "fdc,explicit=1,p=0.4",
        "zdc,explicit=1,p_i=0.1,p_u=0.5",
        "zdc,online=1,p_i=0.1,p_u=0.5,g=0.2,rise=0.5,layers=2",
        "minicache,start=0",
        "minicache,gamma=0",
        "xkv,layers=2,rank_k=300,rank_v=250",
        "xkv,layers=3,rank_k=400,rank_v=400",
        "mikv",
        "lower+hetero,k=5,v=16,lk=3,lv=4,balance=1,heavy=9,recent=0",
        "leankv,window=16,th=0.3,tl=0.05"};
    static const char *const of_gemma[] = {"none",
                                           "zack,p=0.5",
                                           "h2o",
                                           "tova",
                                           "quest,budget=0.3,page=8",
                                           "scissorhands,drop=4",
                                           "kvcrush,window=8",
                                           "ems,window=8",
                                           "d2o",
                                           "elasticcache",
                                           "kvzip",
                                           "kvmerger",
                                           "prefixkv",
                                           "cake,window=8",
                                           "windowkv,window=8,review=8,layers=2,beta=4,budget=0.5",
                                           "adakv,window=8",
                                           "locret,budget=0.3,local=8",
                                           "kivi,bits=4,group=16,residual=16",
                                           "h2o+kivi,bits=4,group=16,residual=16",
                                           "snapkv+nvfp4,window=8",
                                           "cachegen",
                                           "kvtc,window=20,block=16",
                                           "waterfill,step=0.05",
                                           "gear,buffer=7",
                                           "kvquant",
                                           "allot",
                                           "rotatekv,bits=4,group=32,sink=3",
                                           "turboquant",
                                           "zack+kvquant,p=0.3",
                                           "uniform+allot,p=0.25,bits=5",
                                           "zack+hetero,p=0.3",
                                           "hetero",
                                           "xquant,bits=4,group=16",
                                           "vidkv,group=16,residual=16,k=1.8,ternary=0",
                                           "zipcache,high=8,low=4,block=20",
                                           "expectedattention",
                                           "alisa,budget=0.4",
                                           "mpcache,threshold=0.004,budget=0.4,small=8",
                                           "a2ats,size=64,rows=250,budget=0.1,sink=4,local=16",
                                           "shadowkv,budget=0.2,rank=32,outliers=2,local=1",
                                           "think,window=8",
                                           "mikv",
                                           "palu,heads=2,p=0.25",
                                           "palu,heads=1,p=0.3",
                                           "palu+allot,heads=2,p=0.25,bits=5",
                                           "palu+hetero,heads=1,p=0.3,k=8,v=4",
                                           "h2o+palu,heads=1,p=0.3",
                                           "streaming+palu,heads=1,p=0.3",
                                           "strawman,p=0.9",
                                           "zack,online=1,p=0.85",
                                           "zack,explicit=1,p=0.4",
                                           "zdc,explicit=1,p_i=0.1,p_u=0.5",
                                           "minicache,start=0",
                                           "xkv,layers=2,rank_k=1000,rank_v=900",
                                           "zdc,p_i=0.1,p_u=0.5",
                                           "received+zack,p=0.1,p_u=0.4,g=0.3,rise=0.4"};
    static const char *const not_gpt_oss[][2] = {
        {"kivi,bits=4,residual=64", "a window of 40 tokens does not hold"}};
    static const char *const not_gemma[][2] = {{"leankv,window=16", "do not support the heads"}};
    static const char *const of_mistral[] = {"none",
                                             "zack,p=0.5",
                                             "strawman,p=0.5",
                                             "zack,explicit=1,p=0.4",
                                             "palu,heads=2,p=0.25",
                                             "palu+allot,heads=1,p=0.3,bits=5,sink=3",
                                             "allot,bits=4,sink=3",
                                             "kvquant,outliers=0,sink=3",
                                             "kvquant",
                                             "rotatekv,bits=4,group=32,sink=3",
                                             "zack+allot,p=0.3,bits=4,sink=20",
                                             "zack+kvquant,p=0.3,outliers=0"};
    static const char *const not_mistral[][2] = {{"h2o", "all 4 layers have a window"}};
    static const char *const of_wide_heads[] = {"none",
                                                "xkv",
                                                "xkv,layers=2,rank_k=300,rank_v=250",
                                                "palu,p=0.25",
                                                "palu,heads=2,p=0.1",
                                                "xquant,bits=4,group=16"};
    compare_shape(&gpt_oss, of_gpt_oss, sizeof of_gpt_oss / sizeof *of_gpt_oss, not_gpt_oss,
                  sizeof not_gpt_oss / sizeof *not_gpt_oss);
    compare_shape(&gemma, of_gemma, sizeof of_gemma / sizeof *of_gemma, not_gemma,
                  sizeof not_gemma / sizeof *not_gemma);
    compare_shape(&mistral, of_mistral, sizeof of_mistral / sizeof *of_mistral, not_mistral,
                  sizeof not_mistral / sizeof *not_mistral);
    compare_shape(&wide_heads, of_wide_heads, sizeof of_wide_heads / sizeof *of_wide_heads, NULL,
                  0);
}

/* usage: gpu_generate [quick|windows|gpus|TEXT] [f32|bf16] [I/N]
 * Compares tokens generated on GPU and CPU.
 * quick    combined methods, bf16, for sanitizers
 * windows  models with sliding windows, a Llama with heads of 128 dimensions
 * gpus     several GPUs
 * TEXT     methods that contain TEXT in their name or parameters
 * I/N      part I of N of the tests */
int main(int argc, char **argv)
{
    bool f32 = true, bf16 = true;
    const char *only = NULL;
    char name[128];
    kvd_err err = {""};
    for (int i = 1; i < argc; i++) {
        if (read_part(argv[i]))
            continue;
        if (!strcmp(argv[i], "f32"))
            bf16 = false;
        else if (!strcmp(argv[i], "bf16"))
            f32 = false;
        else
            only = argv[i];
    }
    const bool whole = !only && f32 && bf16 && case_parts == 1,
               quick = only && !strcmp(only, "quick"), windows = only && !strcmp(only, "windows"),
               several = only && !strcmp(only, "gpus");
    if (quick) {
        only = "+";
        f32 = false;
        n_sequences = 3;
        n_new = LAST_FORCED + 2;
    }
    if (kvd_cuda_here(name, sizeof name, &err)) {
        printf("skip generate: %s\n", err.msg);
        return 0;
    }
    set_up();
    if (whole || several)
        compare_several();
    if (!windows && !several) {
        kvd_generator *const cpu = generator(false, KVD_F32, 1);
        if (f32)
            compare_all(cpu, KVD_F32, only);
        if (bf16)
            compare_all(cpu, KVD_BF16, only);
        if (bf16 && case_part == 0 && (!only || !strcmp(only, "kvtc")))
            compare_passes(cpu);
        kvd_generator_free(cpu);
        kvd_generator *const gpu = generator(true, KVD_BF16, 1);
        takes_path(gpu, "leankv,lk=2", "do not support the heads");
        takes_path(gpu, "lower+zack,p=0.3,p_u=0.6", "no cache for it");
        takes_path(gpu, "zdc+kivi,p=0.1,p_u=0.5,group=16", "no cache for it");
        takes_path(gpu, "h2o+zdc,p=0.1,p_u=0.5", "no cache for it");
        kvd_generator_free(gpu);
    }
    if (whole || windows)
        compare_shapes();
    kvd_checkpoint_close(checkpoint);
    kvd_activations_close(&dump);
    kvd_spectrum_release(&spectrum);
    printf("%s generate: %d of all cases failed\n", failures ? "not ok" : "ok", failures);
    return failures ? 1 : 0;
}
