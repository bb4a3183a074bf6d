/* Compares the method zdc in the CUDA engine with the CPU. In zdc, important tokens keep more
 * dimensions of K and V than other tokens. */
#include <math.h>

#include "engine/cuda/engine_parts.h"
#include "methods/tokens/cuda/zdc_method.h"
#include "zdc_reference.h"

static const request long_ones[] = {{300, 20}, {1, 60},  {64, 12}, {129, 1},
                                    {200, 40}, {63, 30}, {5, 100}, {440, 33}};
static const request short_ones[] = {{17, 9},  {1, 20}, {30, 3}, {8, 12},
                                     {13, 11}, {25, 1}, {2, 9},  {31, 2}};

enum {
    LONG = sizeof long_ones / sizeof *long_ones,
    SHORT = sizeof short_ones / sizeof *short_ones
};

static const setting
    apart = {.name = "apart, graphs", .max_batch = 3, .graphs = true, .phases = true},
    plain = {.name = "apart, no graphs", .max_batch = 3},
    together = {.name = "together", .max_batch = 5, .mixed = true},
    many = {.name = "all at once, graphs", .max_batch = 8, .mixed = true, .graphs = true},
    papers = {.name = "the papers' sharing of work",
              .max_batch = 3,
              .graphs = true,
              .attention = KVD_ATTENTION_PAPERS},
    stock = {.name = "stock attention",
             .max_batch = 3,
             .graphs = true,
             .phases = true,
             .attention = KVD_ATTENTION_STOCK};

/* Returns the cache bytes of a token in a layer. With the attention choice KVD_ATTENTION_STOCK, all
 * heads are padded to the widest head of the layer. */
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

/* Returns the expected cache bytes of a request. low: for each layer, number of the request's
 * tokens that keep fewer dimensions. */
static double held_bytes(const kvd_plan *plan, size_t tokens, const size_t *low, const setting *set)
{
    double bytes = 0;
    for (int layer = 0; layer < plan->dims->n_layers; layer++)
        bytes += (double)low[layer] *
                     entry_bytes(plan->dims_low, layer, set->attention == KVD_ATTENTION_STOCK) +
                 (double)(tokens - low[layer]) *
                     entry_bytes(plan->dims, layer, set->attention == KVD_ATTENTION_STOCK) +
                 4; /* low[layer] itself takes 4 bytes */
    return bytes;
}

/* Returns the expected number of unimportant prompt tokens in a layer. `lent`: true if all layers
 * use the important tokens of layer 0. */
static size_t low_of(const kvd_plan *plan, size_t prompt, int layer, bool lent)
{
    const double *const v = plan->tokens_values.value;
    const double share = fmin(1, v[0] + (lent ? 0 : v[1] * layer / (plan->dims->n_layers - 1)));
    return prompt - (size_t)lround(share * (double)prompt);
}

typedef struct {
    /* bytes: how often the cache size was wrong; counts: how often the number of unimportant tokens
     * was wrong */
    size_t bytes, counts;
} wrongs;

typedef struct {
    const load *l;
    const kvd_plan *plan;
    const setting *set;
    /* 0: each layer chooses its important tokens; 1: all layers use layer 0's choice; -1: some use
     * an earlier layer's choice */
    int lent;
    /* [outputs][vocab] logits of all output tokens */
    float *logits;
    double held[MOST];
    /* number of tokens [request][layer] that keep fewer dimensions, because they are unimportant */
    size_t low[MOST][256];
    wrongs *wrong;
} watched;

static void count_low(watched *w, kvd_engine *e, const kvd_slice *x)
{
    const kvd_gpu_method *const method = ((kvd_cuda_engine *)(void *)e)->cache.method;
    for (int layer = 0; layer < w->plan->dims->n_layers; layer++) {
        const size_t is = kvd_gpu_zdc_low(method, x->slot, layer);
        const size_t want =
            w->lent < 0 ? is : low_of(w->plan, w->l->r[x->request].input, layer, w->lent);
        w->low[x->request][layer] = want;
        w->wrong->counts += is != want;
    }
}

static int watch(void *ctx, kvd_engine *e, const kvd_iteration *it, const uint32_t *token,
                 const kvd_phase_times *t, kvd_err *err)
{
    watched *const w = ctx;
    double sum = 0;
    (void)token, (void)t;
    for (size_t i = 0; i < it->n_slices; i++) {
        const kvd_slice *const x = &it->slice[i];
        if (e->logits(e, i, w->logits + output_row(w->l, x) * w->l->vocab, err))
            return -1;
        if (!w->plan->dims_low)
            continue;
        count_low(w, e, x);
        w->held[x->request] =
            held_bytes(w->plan, (size_t)x->before + x->n, w->low[x->request], w->set);
    }
    for (size_t r = 0; r < w->l->n; r++)
        sum += w->held[r];
    w->wrong->bytes += w->plan->dims_low && fabs(e->held(e) - sum) > 0.5;
    for (size_t i = 0; i < it->n_slices; i++)
        if (it->slice[i].last)
            w->held[it->slice[i].request] = 0;
    return 0;
}

static float *by_engine(const kvd_checkpoint *c, const load *l, const kvd_plan *plan, int lent,
                        const setting *set, wrongs *wrong, kvd_err *err)
{
    const kvd_engine_spec spec = spec_of(set, l->max_len, l->n * l->max_len);
    const serving_order order = order_of(set);
    kvd_engine *const e = kvd_engine_open_cuda(c, plan, &spec, err);
    watched w = {.l = l,
                 .plan = plan,
                 .set = set,
                 .lent = lent,
                 .logits = need(l->outputs * l->vocab * sizeof *w.logits),
                 .wrong = wrong};
    *wrong = (wrongs){0};
    const int status = !e || serve(e, l, &order, watch, &w, err);
    engine_free(e);
    if (!status)
        return w.logits;
    free(w.logits);
    return NULL;
}

static bool same(const load *l, const float *a, const float *b)
{
    return a && b && !memcmp(a, b, l->outputs * l->vocab * sizeof *a);
}

typedef struct {
    const char *text;
    int lent;
} variant;

/* Checks that GPU and CPU logits of the method zdc with parameters v->text differ by less than 2 *
 * bar.
 *
 * - bar: difference between GPU and CPU logits if all tokens are important
 * - whole: CPU logits if all tokens are important */
static void test_variant(const model *m, const char *name, const variant *v,
                         const setting *const *set, double bar, const float *whole)
{
    kvd_err err = {""};
    kvd_plan plan;
    char title[200], text[300];
    float *want = NULL, *first = NULL;
    double most = 0, apart_by = 0;
    if (plan_of(m, v->text, &plan, &err) || !(want = reference(m->c, &m->l, &plan, &err))) {
        test_result(0, v->text, "%s", err.msg);
        return;
    }
    apart_by = logits_off(&m->l, want, whole, &most);
    for (size_t i = 0; set[i]; i++) {
        wrongs wrong;
        float *const got = by_engine(m->c, &m->l, &plan, v->lent, set[i], &wrong, &err);
        const double median = got ? logits_off(&m->l, got, want, &most) : NAN;
        (void)snprintf(title, sizeof title, "%s, %s, %s", name, v->text, set[i]->name);
        (void)snprintf(
            text, sizeof text,
            "median %.2g (%.2g with the high widths alone, which are %.2g away), most %.2g; %zu "
            "wrong bytes, %zu wrong "
            "counts",
            median, bar, apart_by, most, wrong.bytes, wrong.counts);
        test_result(got && median < 2 * bar && !wrong.bytes && !wrong.counts, title, "%s",
                    got ? text : err.msg);
        if (set[i] == &plain && first)
            test_result(same(&m->l, first, got), title, "the same bits with and without graphs");
        if (set[i] == &apart)
            first = got;
        else
            free(got);
    }
    free(first);
    free(want);
    kvd_plan_close(&plan);
}

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
    const double median = got ? logits_off(&m->l, got, want, &most) : NAN;
    (void)snprintf(text, sizeof text,
                   "important tokens alone: median %.2g from the high widths, most %.2g", median,
                   most);
    test_result(got && median < bar && !wrong.bytes, name, "%s", got ? text : err.msg);
    free(got);
    free(want);
}

static void test_model(const char *path, const char *name, const kvd_dims_method *method,
                       const request *r, size_t n, const variant *v, const setting *const *set)
{
    kvd_err err = {""};
    model m;
    wrongs wrong;
    double most;
    if (model_open(&m, path, method, r, n, &err)) {
        test_result(0, name, "%s", err.msg);
        model_close(&m);
        return;
    }
    const kvd_plan high = {.type = KVD_BF16, .dims = &m.high};
    float *const want = reference(m.c, &m.l, &high, &err);
    float *const got = want ? by_engine(m.c, &m.l, &high, 0, set[0], &wrong, &err) : NULL;
    if (got) {
        const double bar = logits_off(&m.l, got, want, &most);
        for (size_t i = 0; v[i].text; i++)
            test_variant(&m, name, &v[i], set, bar, want);
        all_important(&m, name, set[0], bar);
    } else {
        test_result(0, name, "%s", err.msg);
    }
    free(want);
    free(got);
    model_close(&m);
}

static void refuses(const model *m, const char *text, size_t chunk, const char *why)
{
    kvd_err err = {""};
    kvd_plan plan;
    const kvd_engine_spec spec =
        spec_of(&(setting){.max_batch = 1, .chunk = chunk}, 100, chunk ? 0 : 100);
    if (plan_of(m, text, &plan, &err)) {
        test_result(strstr(err.msg, why) != NULL, "refused", "%s", err.msg);
        return;
    }
    engine_refused(m->c, &plan, &spec, why);
    kvd_plan_close(&plan);
}

/* Checks that a decode step does not change which prompt tokens keep fewer dimensions. Decode steps
 * at positions 101 to 699 are skipped. */
static void test_left_out(kvd_engine *e)
{
    enum { PROMPT = 101 };
    static const uint32_t id[PROMPT] = {1, 2, 3, 4, 5};
    const kvd_slice slice[] = {{.slot = 1, .n = PROMPT, .emits = 1},
                               {.slot = 1, .before = 700, .n = 1, .emits = 1}};
    const kvd_iteration it[] = {{.n_slices = 1, .slice = slice, .n_tokens = PROMPT},
                                {.n_slices = 1, .n_steps = 1, .slice = slice + 1, .n_tokens = 1}};
    const kvd_gpu_method *const m = ((kvd_cuda_engine *)(void *)e)->cache.method;
    kvd_err err = {""};
    uint32_t token;
    const int status =
        e->step(e, &it[0], id, &token, NULL, &err) || e->step(e, &it[1], id, &token, NULL, &err);
    const size_t low = kvd_gpu_zdc_low(m, 1, 0);
    test_result(!status && low == PROMPT - (PROMPT + 1) / 2, "steps that are left out", "%s",
                status ? err.msg : "low tokens are the prompt's");
}

static void test_rest(const char *path)
{
    kvd_err err = {""};
    kvd_plan plan;
    model m;
    const kvd_engine_spec spec = spec_of(&(setting){.max_batch = 3, .graphs = true}, 1000, 1000);
    const kvd_slice slice[] = {{.before = 10, .n = 5, .emits = 1}, {.n = 5}};
    const kvd_iteration pieces[] = {{.n_slices = 1, .slice = &slice[0], .n_tokens = 5},
                                    {.n_slices = 1, .slice = &slice[1], .n_tokens = 5}};
    const uint32_t id[5] = {1, 2, 3, 4, 5};
    uint32_t token;
    if (model_open(&m, path, &kvd_dims_zack, long_ones, 1, &err)) {
        test_result(0, "the rest", "%s", err.msg);
        model_close(&m);
        return;
    }
    refuses(&m, "zdc,p=0.1,p_u=0.5", 48, "'importance' compresses a prompt in one piece");
    refuses(&m, "zdc+kivi,p=0.1,p_u=0.5,group=16", 0, "not with 'kivi'");
    refuses(&m, "h2o+zdc,p=0.1,p_u=0.5", 0, "does not run 'importance'");
    for (int i = 0; i < 2; i++) {
        kvd_engine *const e = plan_of(&m, "zdc,p=0.1,p_u=0.5", &plan, &err)
                                  ? NULL
                                  : kvd_engine_open_cuda(m.c, &plan, &spec, &err);
        if (!i)
            test_uncomputed(e, "a context that was never computed", &err);
        if (!i && e)
            test_left_out(e);
        test_result(e && e->step(e, &pieces[i], id, &token, NULL, &err) &&
                        strstr(err.msg, "in one piece"),
                    "refused", "%s", err.msg);
        engine_free(e);
        kvd_plan_close(&plan);
    }
    model_close(&m);
}

static void test_window(const char *path)
{
    kvd_err err = {""};
    model m;
    if (model_open(&m, path, &kvd_dims_zack, short_ones, 1, &err))
        test_result(0, "windows", "%s", err.msg);
    else
        refuses(&m, "zdc,p=0.1,p_u=0.5", 0, "only if a layer has no such window");
    model_close(&m);
}

/* usage: gpu_engine_zdc [quick]; quick: few cases, for compute-sanitizer */
int main(int argc, char **argv)
{
    static const variant one[] = {{"zdc,p=0.1,p_u=0.5,g=0.4", 0}, {NULL, 0}},
                         all[] = {{"zdc,p=0.1,p_u=0.5,g=0.4", 0},
                                  {"zdc,p=0.1,p_u=0.5,g=0.1,rise=0.6,mean=1,overlap=0.7", -1},
                                  {"zdc,p=0.1,p_u=0.5,g=0.3,rise=0.5,overlap=0", 1},
                                  {"zdc,p=0.1,p_u=0.5,g=0", 0},
                                  {"received+zack,p=0.1,p_u=0.5,g=0.3,rise=0.4", 0},
                                  {NULL, 0}};
    static const setting *const some[] = {&apart, &plain, NULL}, *const sets[] = {&apart,    &plain,
                                                                                  &together, &many,
                                                                                  &papers,   &stock,
                                                                                  NULL};
    static const char *const family[] = {
        "tests/data/families/llama-biases", "tests/data/families/qwen2-gqa",
        "tests/data/families/qwen3-gqa", "tests/data/families/opt-before"};
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    if (!gpu_devices("engine of two widths", 1))
        return 0;
    const char *const demo = "data/models/kvdim-6m";
    if (quick) {
        test_model(demo, "kvdim-6m", &kvd_dims_zack, long_ones, 3, one, some);
        return failures ? 1 : 0;
    }
    char gqa[128], mha[128];
    wide_or_end("gqa", 3, 8, 2, gqa);
    wide_or_end("mha", 3, 4, 4, mha);
    test_model(demo, "kvdim-6m", &kvd_dims_zack, long_ones, LONG, all, sets);
    test_model(demo, "kvdim-6m, balanced", &kvd_dims_balanced, long_ones, LONG, one, some);
    test_model(gqa, "d_head 128, GQA", &kvd_dims_zack, long_ones, LONG, all, some);
    test_model(mha, "d_head 128, MHA", &kvd_dims_zack, long_ones, LONG, one, sets);
    for (size_t i = 0; i < sizeof family / sizeof *family; i++)
        test_model(family[i], family[i] + strlen("tests/data/families/"), &kvd_dims_zack,
                   short_ones, SHORT, one, some);
    test_rest(demo);
    test_window("tests/data/families/mistral-window");
    return failures ? 1 : 0;
}
