/*
 * zdc in the CUDA engine: logits of every token that comes out against src/methods, row by row on the CPU, with a first pass over each prompt
 * (the engine on the CPU has none), and the bytes held against their count by hand. What the engine's prompts attend to, the high widths, the
 * reference gets as queries, keys and values that were cut to them and brought back. The engine rounds to bf16, so that near ties of importance fall
 * otherwise now and then: logits are compared by their median beside that of the high widths alone. With important tokens alone it must be
 * the high widths. Ragged requests that share the batch and reuse slots, prompts and steps apart and in one iteration, graphs on and
 * off, GQA and MHA, biases, norms of Q and K, no RoPE, heads of 16 to 128; contexts that were never computed; what is refused.
 */
#include <math.h>
#include <string.h>

#include "common/stats.h"
#include "dims_fixture.h"
#include "expected.h"
#include "gpu_case.h"
#include "gpu_forward_case.h"
#include "make_checkpoint.h"
#include "serving/cuda/engine_parts.h"
#include "serving/cuda/methods/zdc_method.h"
#include "zdc_reference.h"

static int failures;

static void report(int ok, const char *name, const char *detail)
{
    printf("%s engine of two widths, %s: %s\n", ok ? "ok" : "not ok", name, detail);
    failures += !ok;
}

static const request long_ones[MOST] = {{300, 20}, {1, 60},  {64, 12}, {129, 1},
                                        {200, 40}, {63, 30}, {5, 100}, {440, 33}};
static const request short_ones[MOST] = {{17, 9},  {1, 20}, {30, 3}, {8, 12},
                                         {13, 11}, {25, 1}, {2, 9},  {31, 2}};

/* ---- the engine ----------------------------------------------------------------------------------------- */

typedef struct {
    const char *name;
    size_t max_batch;
    bool mixed, graphs, phases; /* mixed: prompts and steps in one iteration */
    kvd_attention_choice attention;
} setting;

static const setting apart = {"apart, graphs", 3, false, true, true, KVD_ATTENTION_OURS},
                     plain = {"apart, no graphs", 3, false, false, false, KVD_ATTENTION_OURS},
                     together = {"together", 5, true, false, false, KVD_ATTENTION_OURS},
                     many = {"all at once, graphs", 8, true, true, false, KVD_ATTENTION_OURS},
                     papers = {"the papers' sharing of work", 3, false, true, false, KVD_ATTENTION_PAPERS},
                     stock = {"stock attention", 3, false, true, true, KVD_ATTENTION_STOCK};

typedef struct {
    size_t done[MOST], arrived;
    int slot[MOST], owner[MOST];
    kvd_slice slice[MOST];
    uint32_t *id;
} schedule;

static kvd_slice slice_of(const load *l, size_t r, size_t slot, size_t before)
{
    const request *const x = &l->r[r];
    const size_t n = before ? 1 : x->input;
    return (kvd_slice){.request = (uint32_t)r,
                       .slot = (uint32_t)slot,
                       .before = (uint32_t)before,
                       .n = (uint32_t)n,
                       .whole = (uint32_t)(x->input + x->output),
                       .emits = 1,
                       .last = before + n == x->input + x->output - 1};
}

static kvd_iteration next(schedule *s, const load *l, const setting *set)
{
    kvd_iteration it = {.slice = s->slice};
    bool prompts = false;
    for (size_t slot = 0; slot < set->max_batch && s->arrived < l->n; slot++)
        if (!s->owner[slot]) {
            s->owner[slot] = (int)s->arrived + 1;
            s->slot[s->arrived++] = (int)slot;
        }
    for (size_t r = 0; r < s->arrived; r++)
        prompts = prompts || (s->slot[r] >= 0 && !s->done[r]);
    for (int pass = 0; pass < 2; pass++) {
        for (size_t r = 0; r < s->arrived; r++)
            if (s->slot[r] >= 0 && (s->done[r] == 0) == (pass == 1) && (pass || set->mixed || !prompts)) {
                const kvd_slice x = slice_of(l, r, (size_t)s->slot[r], s->done[r]);
                memcpy(s->id + it.n_tokens, l->id + l->first[r] + x.before, x.n * sizeof *s->id);
                s->slice[it.n_slices++] = x;
                it.n_tokens += x.n;
            }
        it.n_steps = pass ? it.n_steps : it.n_slices;
    }
    for (size_t i = 0; i < it.n_slices; i++) {
        s->done[s->slice[i].request] += s->slice[i].n;
        if (s->slice[i].last) {
            s->owner[s->slice[i].slot] = 0;
            s->slot[s->slice[i].request] = -1;
        }
    }
    return it;
}

/* Bytes of a token in a layer at widths that are stored in multiples of 16, padded to the widest of the layer where attention is stock. */
static double entry_bytes(const kvd_dims *d, int layer, bool stock_attention)
{
    int sum = 0, most[2] = {0, 0};
    for (int g = 0; g < d->n_kv_heads; g++) {
        const kvd_dims_head *const h = &d->head[layer * d->n_kv_heads + g];
        const int qk = (h->d_qk + 15) / 16 * 16, v = (h->d_v + 15) / 16 * 16;
        sum += qk + v;
        most[0] = qk > most[0] ? qk : most[0];
        most[1] = v > most[1] ? v : most[1];
    }
    return 2.0 * (stock_attention ? d->n_kv_heads * (most[0] + most[1]) : sum);
}

/* What a request of `tokens` tokens holds: every layer has lent none or all of its low ones. */
static double held_bytes(const kvd_plan *plan, const load *l, size_t r, size_t tokens, const size_t *low,
                         const setting *set)
{
    double bytes = 0;
    (void)l, (void)r;
    for (int layer = 0; layer < plan->dims->n_layers; layer++)
        bytes +=
            (double)low[layer] * entry_bytes(plan->dims_low, layer, set->attention == KVD_ATTENTION_STOCK) +
            (double)(tokens - low[layer]) *
                entry_bytes(plan->dims, layer, set->attention == KVD_ATTENTION_STOCK) +
            4;
    return bytes;
}

/* Low tokens of a layer's prompt where the layer forms its own sets, with `lent` the first layer's everywhere. */
static size_t low_of(const kvd_plan *plan, size_t prompt, int layer, bool lent)
{
    const double *const v = plan->tokens_values.value;
    const double share = fmin(1, v[0] + (lent ? 0 : v[1] * layer / (plan->dims->n_layers - 1)));
    return prompt - (size_t)lround(share * (double)prompt);
}

typedef struct {
    size_t bytes, counts; /* iterations and prompts whose numbers were wrong */
} wrongs;

/* lent: -1 where layers may lend their sets to some others, so that counts are the engine's own; 0: none does, 1: the first to all. */
static float *by_engine(const kvd_checkpoint *c, const load *l, const kvd_plan *plan, int lent,
                        const setting *set, wrongs *wrong, kvd_err *err)
{
    const kvd_engine_spec spec = {.limits = {.max_batch = set->max_batch, .max_tokens = MOST * l->longest},
                                  .max_len = l->longest,
                                  .type = KVD_BF16,
                                  .n_gpus = 1,
                                  .graphs = set->graphs,
                                  .phases = set->phases,
                                  .attention = set->attention};
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, &spec, err);
    float *const logits = need(l->row[l->n] * l->vocab * sizeof *logits);
    schedule s = {.id = need(l->first[l->n] * sizeof *s.id)};
    int status = e ? 0 : -1;
    double here[MOST] = {0};
    size_t low[MOST][256] = {{0}};
    *wrong = (wrongs){0};
    for (size_t r = 0; r < MOST; r++)
        s.slot[r] = -1;
    while (!status) {
        const kvd_iteration it = next(&s, l, set);
        kvd_phase_times t;
        uint32_t token[MOST];
        double sum = 0;
        if (!it.n_slices || (status = e->step(e, &it, s.id, token, &t, err)) != 0)
            break;
        for (size_t i = 0; i < it.n_slices && !status; i++) {
            const kvd_slice *const x = &it.slice[i];
            const size_t r = x->request;
            status = e->logits(e, i, logits + (l->row[r] + s.done[r] - l->r[r].input) * l->vocab, err);
            for (int layer = 0; plan->dims_low && layer < plan->dims->n_layers; layer++) {
                const size_t want = lent < 0 ? 0 : low_of(plan, l->r[r].input, layer, lent),
                             is = kvd_serving_zdc_low(((kvd_cuda_engine *)(void *)e)->cache.method, x->slot,
                                                      layer);
                low[r][layer] = lent < 0 ? is : want;
                wrong->counts += lent >= 0 && is != want;
            }
            here[r] = plan->dims_low ? held_bytes(plan, l, r, s.done[r], low[r], set) : 0;
        }
        for (size_t r = 0; r < l->n; r++)
            sum += here[r];
        wrong->bytes += plan->dims_low && fabs(e->held(e) - sum) > 0.5;
        for (size_t i = 0; i < it.n_slices; i++)
            here[it.slice[i].request] *= !it.slice[i].last;
    }
    free(s.id);
    if (e)
        e->free(e);
    if (!status)
        return logits;
    free(logits);
    return NULL;
}

/* ---- comparing ------------------------------------------------------------------------------------------ */

/* Median distance of the rows of two results; *most: the largest. */
static double distances(const load *l, const float *a, const float *b, double *most)
{
    const size_t n = l->row[l->n];
    double *const d = need(n * sizeof *d);
    for (size_t i = 0; i < n; i++)
        d[i] = distance(a + i * l->vocab, b + i * l->vocab, l->vocab);
    kvd_sort(d, n);
    const double median = d[n / 2];
    *most = d[n - 1];
    free(d);
    return median;
}

static bool same(const load *l, const float *a, const float *b)
{
    return a && b && !memcmp(a, b, l->row[l->n] * l->vocab * sizeof *a);
}

typedef struct {
    const char *text;
    int lent;
} variant;

/* bar: median distance of engine and reference with the high widths alone; whole: that reference. */
static void test_variant(const model *m, const char *name, const variant *v, const setting *const *set,
                         double bar, const float *whole)
{
    kvd_err err = {""};
    kvd_plan plan;
    char title[200], text[300];
    float *want = NULL, *first = NULL;
    double most = 0, apart_by = 0;
    if (plan_of(m, v->text, &plan, &err) || !(want = reference(m->c, &m->l, &plan, &err))) {
        report(0, v->text, err.msg);
        return;
    }
    apart_by = distances(&m->l, want, whole, &most);
    for (size_t i = 0; set[i]; i++) {
        wrongs wrong;
        float *const got = by_engine(m->c, &m->l, &plan, v->lent, set[i], &wrong, &err);
        const double median = got ? distances(&m->l, got, want, &most) : NAN;
        (void)snprintf(title, sizeof title, "%s, %s, %s", name, v->text, set[i]->name);
        (void)snprintf(text, sizeof text,
                       "median %.2g (%.2g with the high widths alone, which are %.2g away), most %.2g; %zu "
                       "wrong bytes, %zu wrong "
                       "counts",
                       median, bar, apart_by, most, wrong.bytes, wrong.counts);
        report(got && median < 2 * bar && !wrong.bytes && !wrong.counts, title, got ? text : err.msg);
        if (set[i] == &plain && first)
            report(same(&m->l, first, got), title, "the same bits with and without graphs");
        if (set[i] == &apart)
            first = got;
        else
            free(got);
    }
    free(first);
    free(want);
    kvd_plan_close(&plan);
}

/* Nothing is low: the high widths, but for how the kernel shares out its work. */
static void all_important(const model *m, const char *name, const setting *set, double bar)
{
    kvd_err err = {""};
    kvd_plan plan;
    const kvd_plan high = {.type = KVD_BF16, .dims = &m->high};
    wrongs wrong = {0};
    double most = 0;
    char text[120];
    float *got = NULL, *want = NULL;
    if (!plan_of(m, "importance+zack,p=0.1,p_u=0.2,g=1", &plan, &err)) {
        want = by_engine(m->c, &m->l, &high, 0, set, &wrong, &err);
        got = want ? by_engine(m->c, &m->l, &plan, 0, set, &wrong, &err) : NULL;
        kvd_plan_close(&plan);
    }
    const double median = got ? distances(&m->l, got, want, &most) : NAN;
    (void)snprintf(text, sizeof text, "important tokens alone: median %.2g from the high widths, most %.2g",
                   median, most);
    report(got && median < bar / 2 && !wrong.bytes, name, got ? text : err.msg);
    free(got);
    free(want);
}

static void test_model(const char *path, const char *name, const kvd_dims_method *method, const request *r,
                       size_t n, const variant *v, const setting *const *set)
{
    kvd_err err = {""};
    model m;
    wrongs wrong;
    double most;
    if (model_open(&m, path, method, r, n, &err)) {
        report(0, name, err.msg);
        model_close(&m);
        return;
    }
    const kvd_plan high = {.type = KVD_BF16, .dims = &m.high};
    float *const want = reference(m.c, &m.l, &high, &err);
    float *const got = want ? by_engine(m.c, &m.l, &high, 0, set[0], &wrong, &err) : NULL;
    if (got) {
        const double bar = distances(&m.l, got, want, &most);
        for (size_t i = 0; v[i].text; i++)
            test_variant(&m, name, &v[i], set, bar, want);
        all_important(&m, name, set[0], bar);
    } else {
        report(0, name, err.msg);
    }
    free(want);
    free(got);
    model_close(&m);
}

/* ---- what is refused, and contexts ---------------------------------------------------------------------- */

static void refuses(const model *m, const char *text, size_t chunk, int gpus, const char *why)
{
    kvd_err err = {""};
    kvd_plan plan;
    const kvd_engine_spec spec = {.limits = {.max_batch = 1, .max_tokens = chunk ? 0 : 100, .chunk = chunk},
                                  .max_len = 100,
                                  .type = KVD_BF16,
                                  .n_gpus = gpus};
    kvd_engine *e = NULL;
    if (!plan_of(m, text, &plan, &err)) {
        e = kvd_engine_open_cuda(m->c, &plan, &spec, &err);
        kvd_plan_close(&plan);
    }
    report(!e && strstr(err.msg, why), "refused", e ? text : err.msg);
    if (e)
        e->free(e);
}

/* Steps that are left out behind a prompt: its low tokens stay what they were. */
static void test_left_out(kvd_engine *e)
{
    enum { PROMPT = 101 };
    static const uint32_t id[PROMPT] = {1, 2, 3, 4, 5};
    const kvd_slice slice[] = {{.slot = 1, .n = PROMPT, .emits = 1},
                               {.slot = 1, .before = 700, .n = 1, .emits = 1}};
    const kvd_iteration it[] = {{.n_slices = 1, .slice = slice, .n_tokens = PROMPT},
                                {.n_slices = 1, .n_steps = 1, .slice = slice + 1, .n_tokens = 1}};
    const kvd_serving_method *const m = ((kvd_cuda_engine *)(void *)e)->cache.method;
    kvd_err err = {""};
    uint32_t token;
    const int status =
        e->step(e, &it[0], id, &token, NULL, &err) || e->step(e, &it[1], id, &token, NULL, &err);
    const size_t low = kvd_serving_zdc_low(m, 1, 0);
    report(!status && low == PROMPT - (PROMPT + 1) / 2, "steps that are left out",
           status ? err.msg : "low tokens are the prompt's");
}

static void test_rest(const char *path)
{
    kvd_err err = {""};
    kvd_plan plan;
    model m;
    const kvd_engine_spec spec = {.limits = {.max_batch = 3, .max_tokens = 1000},
                                  .max_len = 1000,
                                  .type = KVD_BF16,
                                  .n_gpus = 1,
                                  .graphs = true};
    const kvd_slice piece = {.before = 10, .n = 5, .emits = 1}, part = {.n = 5},
                    step[] = {{.before = 999, .n = 1, .emits = 1},
                              {.slot = 2, .before = 500, .n = 1, .emits = 1}};
    const kvd_iteration steps = {.n_slices = 2, .n_steps = 2, .slice = step, .n_tokens = 2},
                        pieces[] = {{.n_slices = 1, .slice = &piece, .n_tokens = 5},
                                    {.n_slices = 1, .slice = &part, .n_tokens = 5}};
    const uint32_t id[5] = {1, 2, 3, 4, 5};
    uint32_t one[3] = {0}, two[3] = {1};
    if (model_open(&m, path, &kvd_dims_zack, long_ones, 1, &err)) {
        report(0, "the rest", err.msg);
        model_close(&m);
        return;
    }
    refuses(&m, "zdc,p=0.1,p_u=0.5", 48, 1, "'importance' compresses a prompt in one piece");
    refuses(&m, "zdc+kivi,p=0.1,p_u=0.5,group=16", 0, 1, "not with 'kivi'");
    refuses(&m, "h2o+zdc,p=0.1,p_u=0.5", 0, 1, "does not run 'importance'");
    for (int i = 0; i < 2; i++) {
        kvd_engine *const e = plan_of(&m, "zdc,p=0.1,p_u=0.5", &plan, &err)
                                  ? NULL
                                  : kvd_engine_open_cuda(m.c, &plan, &spec, &err);
        int status =
            !e ||
            (!i && (e->step(e, &steps, id, one, NULL, &err) || e->step(e, &steps, id, two, NULL, &err)));
        if (!i)
            report(!status && !memcmp(one, two, 2 * sizeof *one), "a context that was never computed",
                   status ? err.msg : "the same tokens twice");
        if (!i && !status)
            test_left_out(e);
        report(e && e->step(e, &pieces[i], id, one, NULL, &err) && strstr(err.msg, "in one piece"), "refused",
               err.msg);
        if (e)
            e->free(e);
        kvd_plan_close(&plan);
    }
    model_close(&m);
}

static void test_window(const char *path)
{
    kvd_err err = {""};
    model m;
    if (model_open(&m, path, &kvd_dims_zack, short_ones, 1, &err))
        report(0, "windows", err.msg);
    else
        refuses(&m, "zdc,p=0.1,p_u=0.5", 0, 1, "know no window");
    model_close(&m);
}

static int make_wide(const char *dir, int heads, int kv_heads)
{
    kvd_err err = {""};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 3;
    s.heads = heads;
    s.kv_heads = kv_heads;
    s.d_head = 128;
    s.d_model = 256;
    s.positions = 1024;
    s.rope = "llama3";
    if (!make_checkpoint(dir, &s, &err))
        return 0;
    report(0, dir, err.msg);
    return -1;
}

/* usage: gpu_engine_zdc [quick]: few requests and settings, for compute-sanitizer */
int main(int argc, char **argv)
{
    static const variant one[] = {{"zdc,p=0.1,p_u=0.5,g=0.4", 0}, {NULL, 0}},
                         all[] = {{"zdc,p=0.1,p_u=0.5,g=0.4", 0},
                                  {"zdc,p=0.1,p_u=0.5,g=0.1,rise=0.6,mean=1,overlap=0.7", -1},
                                  {"zdc,p=0.1,p_u=0.5,g=0.3,rise=0.5,overlap=0", 1},
                                  {"zdc,p=0.1,p_u=0.5,g=0", 0},
                                  {NULL, 0}};
    static const setting *const some[] = {&apart, &plain, NULL}, *const sets[] = {&apart, &plain,  &together,
                                                                                  &many,  &papers, &stock,
                                                                                  NULL};
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
        printf("skip engine of two widths: no device\n");
        return 0;
    }
    const char *const demo = "data/models/kvdim-6m";
    if (quick) {
        test_model(demo, "kvdim-6m", &kvd_dims_zack, long_ones, 3, one, some);
        return failures ? 1 : 0;
    }
    char dir[] = "/tmp/kvdim-gpu-zdc.XXXXXX", gqa[64], mha[64], command[96];
    if (!mkdtemp(dir)) {
        report(0, "checkpoints", "no temporary folder");
        return 1;
    }
    (void)snprintf(gqa, sizeof gqa, "%s/gqa", dir);
    (void)snprintf(mha, sizeof mha, "%s/mha", dir);
    if (make_wide(gqa, 8, 2) || make_wide(mha, 4, 4))
        return 1;
    test_model(demo, "kvdim-6m", &kvd_dims_zack, long_ones, MOST, all, sets);
    test_model(demo, "kvdim-6m, balanced", &kvd_dims_balanced, long_ones, MOST, one, some);
    test_model(gqa, "d_head 128, GQA", &kvd_dims_zack, long_ones, MOST, all, some);
    test_model(mha, "d_head 128, MHA", &kvd_dims_zack, long_ones, MOST, one, sets);
    test_model("tests/data/families/llama-biases", "llama-biases", &kvd_dims_zack, short_ones, MOST, one,
               some);
    test_model("tests/data/families/qwen2-gqa", "qwen2-gqa", &kvd_dims_zack, short_ones, MOST, one, some);
    test_model("tests/data/families/qwen3-gqa", "qwen3-gqa", &kvd_dims_zack, short_ones, MOST, one, some);
    test_model("tests/data/families/opt-before", "opt-before", &kvd_dims_zack, short_ones, MOST, one, some);
    test_rest(demo);
    test_window("tests/data/families/mistral-window");
    (void)snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command))
        printf("# %s stays\n", dir);
    return failures ? 1 : 0;
}
