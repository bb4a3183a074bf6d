/*
 * The CUDA engine with coded caches (kivi, kvquant) against the engine on the CPU, which runs the same plan row by row in float32: logits of every
 * token that comes out, bytes that the cache holds, requests that share the batch and reuse slots, prompts that end around groups, windows and pages. Rounding
 * can put a number into the next code, so rows may be off by a share of what the method itself changes.
 */
#include <math.h>
#include <string.h>

#include "common/rng.h"
#include "expected.h"
#include "gpu_case.h"
#include "gpu_forward_case.h"
#include "methods/presets.h"
#include "serving/engine.h"

static int failures;

static void report(int ok, const char *name, const char *detail)
{
    printf("%s engine %s: %s\n", ok ? "ok" : "not ok", name, detail);
    failures += !ok;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

typedef struct {
    size_t input, output;
} request;

enum { MOST = 16 };

typedef struct {
    const kvd_checkpoint *c;
    const request *r;
    size_t n, max_batch, max_len, outputs, vocab;
    size_t offset[MOST + 1]; /* of tokens  */
    size_t first[MOST];      /* of outputs */
    uint32_t *id;
} load;

static load load_make(const kvd_checkpoint *c, const request *r, size_t n, size_t max_batch)
{
    load l = {.c = c,
              .r = r,
              .n = n,
              .max_batch = max_batch,
              .vocab = (size_t)kvd_checkpoint_config(c)->vocab_size};
    kvd_rng rng;
    kvd_rng_seed(&rng, 17, 0);
    for (size_t i = 0; i < n; i++) {
        const size_t len = r[i].input + r[i].output;
        l.offset[i + 1] = l.offset[i] + len;
        l.first[i] = l.outputs;
        l.outputs += r[i].output;
        l.max_len = len > l.max_len ? len : l.max_len;
    }
    l.id = need(l.offset[n] * sizeof *l.id);
    for (size_t i = 0; i < l.offset[n]; i++)
        l.id[i] = (uint32_t)kvd_rng_below(&rng, l.vocab);
    return l;
}

/* Logits [outputs][vocab] and, after every iteration, the bytes that were held: one prompt after another while there are slots, then steps. */
typedef struct {
    float *logits;
    double held[512];
    size_t n_held;
} outcome;

typedef struct {
    size_t done[MOST];
    int slot[MOST], owner[MOST];
    size_t arrived;
    kvd_slice slice[MOST];
} schedule;

static kvd_iteration next(schedule *s, const load *l, uint32_t *id)
{
    kvd_iteration it = {.slice = s->slice};
    int prompt = -1;
    for (size_t slot = 0; slot < l->max_batch && s->arrived < l->n && prompt < 0; slot++)
        if (!s->owner[slot]) {
            prompt = (int)s->arrived++;
            s->owner[slot] = prompt + 1;
            s->slot[prompt] = (int)slot;
        }
    for (size_t r = 0; r < s->arrived; r++) {
        if (s->slot[r] < 0 || (prompt >= 0 && (int)r != prompt))
            continue;
        const size_t n = s->done[r] ? 1 : l->r[r].input, end = s->done[r] + n;
        s->slice[it.n_slices++] = (kvd_slice){.request = (uint32_t)r,
                                              .slot = (uint32_t)s->slot[r],
                                              .before = (uint32_t)s->done[r],
                                              .n = (uint32_t)n,
                                              .emits = 1,
                                              .last = end == l->r[r].input + l->r[r].output - 1};
        memcpy(id + it.n_tokens, l->id + l->offset[r] + s->done[r], n * sizeof *id);
        it.n_tokens += n;
        s->done[r] = end;
        if (s->slice[it.n_slices - 1].last) {
            s->owner[s->slot[r]] = 0;
            s->slot[r] = -1;
        }
    }
    it.n_steps = prompt < 0 ? it.n_slices : 0;
    return it;
}

static int serve(kvd_engine *e, const load *l, outcome *o, kvd_err *err)
{
    schedule s = {.arrived = 0};
    uint32_t *const id = need(l->offset[l->n] * sizeof *id), token[MOST];
    int status = 0;
    for (size_t r = 0; r < MOST; r++)
        s.slot[r] = -1;
    o->logits = need(l->outputs * l->vocab * sizeof *o->logits);
    o->n_held = 0;
    for (;;) {
        const kvd_iteration it = next(&s, l, id);
        if (!it.n_slices || (status = e->step(e, &it, id, token, NULL, err)) != 0)
            break;
        if (e->held && o->n_held < sizeof o->held / sizeof *o->held)
            o->held[o->n_held++] = e->held(e);
        for (size_t i = 0; i < it.n_slices && !status; i++) {
            const kvd_slice *const c = &it.slice[i];
            const size_t row = l->first[c->request] + c->before + c->n - l->r[c->request].input;
            status = e->logits(e, i, o->logits + row * l->vocab, err);
        }
    }
    free(id);
    return status;
}

/* ---- engines -------------------------------------------------------------------------------------------- */

static int open_plan(const kvd_config *c, const char *method, const load *l, kvd_plan *plan, kvd_err *err)
{
    const kvd_method_setup setup = {.config = c, .drawn = true};
    kvd_method m;
    if (kvd_method_parse(method, &m, err))
        return -1;
    *plan = (kvd_plan){.type = KVD_BF16};
    kvd_method_plan(&m, plan);
    plan->prompt = kvd_plan_beyond_widths(plan) ? l->max_len : 0;
    return kvd_plan_open(plan, &setup, err);
}

static int run(const load *l, const char *method, int gpu, int graphs, outcome *o, kvd_err *err)
{
    const kvd_engine_spec spec = {.limits = {.max_batch = l->max_batch, .max_tokens = 4 * l->max_len},
                                  .max_len = l->max_len,
                                  .type = KVD_BF16,
                                  .n_gpus = 1,
                                  .graphs = graphs,
                                  .phases = graphs};
    kvd_plan plan;
    if (open_plan(kvd_checkpoint_config(l->c), method, l, &plan, err))
        return -1;
    kvd_engine *const e =
        gpu ? kvd_engine_open_cuda(l->c, &plan, &spec, err) : kvd_engine_open_cpu(l->c, &plan, &spec, err);
    const int status = !e || serve(e, l, o, err);
    if (e)
        e->free(e);
    kvd_plan_close(&plan);
    return status;
}

/* Root mean square over rows of their distance, and the largest. */
static double off(const load *l, const float *x, const float *want, double *most)
{
    double sum = 0;
    *most = 0;
    for (size_t i = 0; i < l->outputs; i++) {
        const double e = distance(x + i * l->vocab, want + i * l->vocab, l->vocab);
        sum += e * e;
        *most = !(e <= *most) ? e : *most;
    }
    return sqrt(sum / (double)l->outputs);
}

static double held_off(const outcome *a, const outcome *b)
{
    double most = a->n_held == b->n_held && a->n_held ? 0 : INFINITY;
    for (size_t i = 0; i < a->n_held && i < b->n_held; i++)
        most = fmax(most, fabs(a->held[i] / b->held[i] - 1));
    return most;
}

typedef struct {
    const char *method;
    double share, held; /* of what the method changes that the engines may differ by; of bytes */
} test_case;

static void test(const load *l, const char *model, const test_case *t, const outcome *plain, double rounding)
{
    kvd_err err = {""};
    char name[160], text[320];
    outcome want = {0}, got = {0}, replayed = {0};
    double most, most_changed;
    (void)snprintf(name, sizeof name, "%s, %s", model, t->method);
    if (run(l, t->method, 0, 0, &want, &err) || run(l, t->method, 1, 0, &got, &err) ||
        run(l, t->method, 1, 1, &replayed, &err)) {
        report(0, name, err.msg);
    } else {
        const double e = off(l, got.logits, want.logits, &most),
                     changed = off(l, want.logits, plain->logits, &most_changed);
        const double bytes = held_off(&got, &want), bar = 1.5 * rounding + t->share * changed;
        const int same = !memcmp(got.logits, replayed.logits, l->outputs * l->vocab * sizeof *got.logits);
        (void)snprintf(
            text, sizeof text,
            "%zu rows off by %.2g rms, %.2g at most; the method changes %.2g, bf16 %.2g; bytes off by "
            "%.2g; graphs give %s",
            l->outputs, e, most, changed, rounding, bytes, same ? "the same bits" : "other bits");
        report(e <= bar && most <= 6 * bar && changed > 0 && bytes <= t->held && same, name, text);
    }
    free(want.logits);
    free(got.logits);
    free(replayed.logits);
}

/* What bf16 alone does, and what the model says without a method. */
static int measure(const load *l, outcome *plain, double *rounding, kvd_err *err)
{
    outcome narrow = {0};
    double most;
    const int status = run(l, "none", 0, 0, plain, err) || run(l, "none", 1, 0, &narrow, err);
    if (!status)
        *rounding = off(l, narrow.logits, plain->logits, &most);
    free(narrow.logits);
    return status;
}

static void test_model(const char *path, const char *model, const request *r, size_t n, size_t max_batch,
                       const test_case *t, size_t n_cases)
{
    kvd_err err = {""};
    kvd_checkpoint *const c = kvd_checkpoint_open(path, &err);
    if (!c) {
        report(0, model, err.msg);
        return;
    }
    load l = load_make(c, r, n, max_batch);
    outcome plain = {0};
    double rounding = 0;
    if (measure(&l, &plain, &rounding, &err))
        report(0, model, err.msg);
    for (size_t i = 0; plain.logits && i < n_cases; i++)
        test(&l, model, &t[i], &plain, rounding);
    free(plain.logits);
    free(l.id);
    kvd_checkpoint_close(c);
}

/* ---- what is refused, and contexts that were never computed ----------------------------------------------- */

static void refused(const load *l, const char *method, size_t chunk, const char *why)
{
    kvd_err err = {""};
    kvd_plan plan;
    const kvd_engine_spec spec = {.limits = {.max_batch = 2, .max_tokens = 100, .chunk = chunk},
                                  .max_len = 100,
                                  .type = KVD_BF16,
                                  .n_gpus = 1};
    const kvd_slice slice = {.n = 32};
    const kvd_iteration it = {.n_slices = 1, .slice = &slice, .n_tokens = 32};
    uint32_t token;
    kvd_engine *e = NULL;
    int failed = open_plan(kvd_checkpoint_config(l->c), method, l, &plan, &err);
    if (!failed) {
        e = kvd_engine_open_cuda(l->c, &plan, &spec, &err);
        failed = !e || (chunk && e->step(e, &it, l->id, &token, NULL, &err));
    }
    report(failed && strstr(err.msg, why), "refused", failed ? err.msg : why);
    if (e)
        e->free(e);
    kvd_plan_close(&plan);
}

static void test_context(const load *l, const char *method)
{
    kvd_err err = {""};
    kvd_plan plan;
    const kvd_engine_spec spec = {.limits = {.max_batch = 3, .max_tokens = 100},
                                  .max_len = 1000,
                                  .type = KVD_BF16,
                                  .n_gpus = 1,
                                  .graphs = true};
    const kvd_slice slice[] = {{.slot = 0, .before = 999, .n = 1, .emits = 1},
                               {.slot = 2, .before = 500, .n = 1, .emits = 1}};
    const kvd_iteration it = {.n_slices = 2, .n_steps = 2, .slice = slice, .n_tokens = 2};
    uint32_t token[2] = {0};
    if (open_plan(kvd_checkpoint_config(l->c), method, l, &plan, &err)) {
        report(0, method, err.msg);
        return;
    }
    kvd_engine *const e = kvd_engine_open_cuda(l->c, &plan, &spec, &err);
    const int status = !e || e->step(e, &it, l->id, token, NULL, &err);
    report(!status, "a context that was never computed", status ? err.msg : method);
    if (e)
        e->free(e);
    kvd_plan_close(&plan);
}

static void test_rest(void)
{
    static const request one[] = {{40, 2}};
    kvd_err err = {""};
    kvd_checkpoint *const c = kvd_checkpoint_open("data/models/kvdim-6m", &err);
    kvd_checkpoint *const biases = kvd_checkpoint_open("tests/data/families/qwen2-gqa", &err);
    if (!c || !biases) {
        report(0, "refused", err.msg);
        return;
    }
    load l = load_make(c, one, 1, 1), b = load_make(biases, one, 1, 1);
    refused(&l, "kivi,group=128", 0, "group=128");
    refused(&l, "kivi,group=32,residual=32", 32, "'kivi' compresses a prompt in one piece");
    refused(&b, "kvquant", 0, "'kvquant' codes keys before RoPE");
    refused(&l, "gear", 0, "gear");
    refused(&l, "h2o+kivi", 0, "h2o");
    test_context(&l, "kivi,bits=4");
    test_context(&l, "kvquant,bits=4");
    free(l.id);
    free(b.id);
    kvd_checkpoint_close(c);
    kvd_checkpoint_close(biases);
}

/* usage: gpu_engine_packed [quick]: small cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    static const request few[] = {{33, 3}, {64, 5}, {1, 34}};
    static const request shorter[] = {{33, 3}, {56, 4}, {1, 34}};
    static const request all[] = {{70, 20}, {1, 40},  {200, 3}, {32, 12}, {31, 40}, {129, 2},
                                  {127, 8}, {63, 20}, {40, 40}, {5, 64},  {16, 5},  {300, 33}};
    static const test_case some[] = {{"kivi,bits=4,group=32,residual=32", 0.5, 1e-9},
                                     {"kvquant,bits=3,outliers=0.2", 0.5, 0.01}};
    static const test_case full[] = {
        {"kivi,bits=2,group=32,residual=32", 0.5, 1e-9},   {"kivi,bits=4,group=16,residual=64", 0.6, 1e-9},
        {"kivi,bits=8,group=64,residual=128", 0.5, 1e-9},  {"kivi,bits=3,group=16,residual=0", 0.6, 1e-9},
        {"kivi,bits=6,group=32,residual=32", 0.5, 1e-9},   {"kvquant,bits=4,outliers=0.2", 0.5, 0.01},
        {"kvquant,bits=3,outliers=0.2,sink=4", 0.5, 0.01}, {"kvquant,bits=2,outliers=0.2,sink=0", 0.5, 0.01}};
    static const test_case kivi[] = {{"kivi,bits=4,group=16,residual=16", 0.5, 1e-9}};
    static const test_case kvquant[] = {{"kvquant,bits=4,outliers=0.2", 0.5, 0.01}};
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("skip engine: no device\n");
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "quick") == 0) {
        test_model("data/models/kvdim-6m", "kvdim-6m", few, 3, 2, some, 2);
        return failures ? 1 : 0;
    }
    test_model("data/models/kvdim-6m", "kvdim-6m", all, 12, 5, full, sizeof full / sizeof *full);
    test_model("tests/data/families/qwen2-gqa", "qwen2-gqa", few, 3, 2, kivi, 1);
    test_model("tests/data/families/mistral-full", "mistral-full", few, 3, 2, kivi, 1);
    test_model("tests/data/families/opt-before", "opt-before", shorter, 3, 2, kvquant, 1);
    test_rest();
    return failures ? 1 : 0;
}
