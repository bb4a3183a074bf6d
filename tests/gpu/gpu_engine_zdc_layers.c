/* Tests the method zdc with the parameter layers=N: N consecutive layers share the important
 * tokens. */
#include <math.h>

#include "engine/cuda/engine_parts.h"
#include "methods/tokens/cuda/zdc_method.h"
#include "zdc_reference.h"

/* requests {prompt tokens, output tokens} */
static const request requests[] = {{300, 9},  {2, 20},  {64, 12}, {129, 1},
                                   {200, 20}, {63, 10}, {65, 30}, {440, 13}};

enum { REQUESTS = sizeof requests / sizeof *requests };

typedef struct {
    kvd_attention hook;
    const kvd_plan *plan;
    size_t prompt;
    /* true if prompt tokens attend to all prompt tokens with full K and V, as in the CPU engine */
    bool whole_prompts;
    uint8_t *level;    /* [prompt] 1 for important tokens */
    float *x[4], *out; /* q, k, v, scratch; out: [tokens][n_heads * d_head] */
} sets_hook;

typedef struct {
    double value;
    size_t token;
} ranked;

static int falling(const void *a, const void *b)
{
    const ranked *const x = a, *const y = b;
    return x->value > y->value ? -1 : x->value < y->value ? 1 : x->token < y->token ? -1 : 1;
}

static void form_sets(sets_hook *s, const kvd_attention_in *in)
{
    const size_t d = (size_t)in->config->d_head, kv = (size_t)in->config->n_kv_heads,
                 heads = (size_t)in->config->n_heads;
    ranked *const order = need(s->prompt * sizeof *order);
#pragma omp parallel for schedule(dynamic, 8)
    for (size_t t = 0; t < s->prompt; t++) {
        double total = -INFINITY, *const score = need((t + 1) * sizeof *score);
        for (size_t h = 0; h < heads; h++) {
            const float *const q = s->x[0] + (t * heads + h) * d;
            double top = -INFINITY, sum = 0;
            for (size_t i = 0; i <= t; i++) {
                const float *const k = s->x[1] + (i * kv + h / (heads / kv)) * d;
                score[i] = 0;
                for (size_t j = 0; j < d; j++)
                    score[i] += (double)q[j] * (double)k[j];
                top = fmax(top, score[i] /= sqrt((double)d));
            }
            for (size_t i = 0; i <= t; i++)
                sum += exp(score[i] - top);
            const double x = top + log(sum), most = fmax(total, x);
            total = most + log(exp(total - most) + exp(x - most));
        }
        free(score);
        order[t] =
            (ranked){total - (s->plan->tokens_values.value[3] > 0 ? log((double)t + 1) : 0), t};
    }
    qsort(order, s->prompt, sizeof *order, falling);
    const double share =
        kvd_tokens_important(&s->plan->tokens_values, in->layer, in->config->n_layers);
    for (size_t i = 0; i < s->prompt; i++)
        s->level[order[i].token] = i < (size_t)lround(share * (double)s->prompt);
    free(order);
}

static void cut_rows(const sets_hook *s, const kvd_attention_in *in, const kvd_dims *dims,
                     bool queries, bool low_alone)
{
    const size_t d = (size_t)in->config->d_head, kv = (size_t)in->config->n_kv_heads,
                 heads = (size_t)in->config->n_heads;
    const size_t n = low_alone ? s->prompt : in->n_tokens;
    const int saved = kvd_blas_serial(); /* one thread: the products are small */
    for (size_t h = 0; queries && h < heads; h++) {
        const kvd_dims_head *const x = &dims->head[(size_t)in->layer * kv + h / (heads / kv)];
        there_and_back(n, d, x->d_qk, s->x[0] + h * d, heads * d, x->a_q, x->a_k, true, s->x[3]);
    }
    for (size_t t = 0; t < n; t += low_alone ? 1 : n)
        for (size_t g = 0; (!low_alone || !s->level[t]) && g < kv; g++) {
            const kvd_dims_head *const x = &dims->head[(size_t)in->layer * kv + g];
            const size_t at = (t * kv + g) * d, rows = low_alone ? 1 : n;
            there_and_back(rows, d, x->d_qk, s->x[1] + at, kv * d, x->a_k, x->a_q, true, s->x[3]);
            there_and_back(rows, d, x->d_v, s->x[2] + at, kv * d, x->a_v, x->b_v, false, s->x[3]);
        }
    kvd_blas_restore(saved);
}

static int attend(const sets_hook *s, const kvd_attention_in *in, float *out, kvd_err *err)
{
    kvd_attention_in cut = *in;
    kvd_dense_attention dense;
    cut.q = s->x[0];
    cut.k = s->x[1];
    cut.v = s->x[2];
    kvd_dense_attention_init(&dense);
    const int status = dense.hook.run(&dense.hook, &cut, out, err);
    kvd_dense_attention_release(&dense);
    return status;
}

static int run_sets(kvd_attention *self, const kvd_attention_in *in, float *out, kvd_err *err)
{
    sets_hook *const s = (sets_hook *)(void *)self;
    const size_t row = (size_t)in->config->n_heads * (size_t)in->config->d_head,
                 kv = (size_t)in->config->n_kv_heads * (size_t)in->config->d_head;
    const bool first = in->layer % kvd_tokens_layers(&s->plan->tokens_values) == 0;
    memcpy(s->x[0], in->q, in->n_tokens * row * sizeof(float));
    memcpy(s->x[1], in->k, in->n_tokens * kv * sizeof(float));
    memcpy(s->x[2], in->v, in->n_tokens * kv * sizeof(float));
    cut_rows(s, in, s->plan->dims, true, false);
    if (!first && !s->whole_prompts)
        cut_rows(s, in, s->plan->dims_low, false, true);
    if (first)
        form_sets(s, in);
    if (attend(s, in, out, err))
        return -1;
    if (first || s->whole_prompts)
        cut_rows(s, in, s->plan->dims_low, false, true);
    if (attend(s, in, s->out, err))
        return -1;
    memcpy(out + s->prompt * row, s->out + s->prompt * row,
           (in->n_tokens - s->prompt) * row * sizeof *out);
    return 0;
}

static float *by_hook(const model *m, const kvd_plan *plan, bool whole_prompts, kvd_err *err)
{
    const load *const l = &m->l;
    const size_t d = (size_t)m->config->d_head, q = l->max_len * (size_t)m->config->n_heads * d,
                 kv = l->max_len * (size_t)m->config->n_kv_heads * d;
    float *const logits = need(l->first[l->n] * l->vocab * sizeof *logits),
                 *const hidden = need(l->max_len * (size_t)m->config->d_model * sizeof *hidden);
    sets_hook s = {.hook = {.run = run_sets},
                   .plan = plan,
                   .whole_prompts = whole_prompts,
                   .level = need(l->max_len),
                   .x = {need(q * sizeof(float)), need(kv * sizeof(float)),
                         need(kv * sizeof(float)), need(l->max_len * d * sizeof(float))},
                   .out = need(q * sizeof(float))};
    kvd_forward *const f = kvd_forward_new(m->c, l->max_len, l->max_len, err);
    int status = f ? 0 : -1;
    for (size_t r = 0; !status && r < l->n; r++) {
        const size_t offset[2] = {0, l->offset[r + 1] - l->offset[r]};
        const kvd_batch b = {.n_sequences = 1, .offset = offset, .id = l->id + l->offset[r]};
        s.prompt = l->r[r].input;
        status = kvd_forward_run(f, &b, &s.hook, -1, hidden, err) ||
                 kvd_forward_logits(f, hidden + (s.prompt - 1) * (size_t)m->config->d_model,
                                    l->r[r].output, logits + l->first[r] * l->vocab, err);
    }
    kvd_forward_free(f);
    for (int i = 0; i < 4; i++)
        free(s.x[i]);
    host_free(s.level, s.out, hidden);
    if (!status)
        return logits;
    free(logits);
    return NULL;
}

static int entry_of(const kvd_dims *d, int layer, int first, int n)
{
    int sum = 0;
    for (int g = first; g < first + n; g++) {
        const kvd_dims_head *const h = &d->head[layer * d->n_kv_heads + g];
        sum += (h->d_qk + 15) / 16 * 16 + (h->d_v + 15) / 16 * 16;
    }
    return sum;
}

static size_t low_of(const kvd_plan *plan, size_t prompt, int layer)
{
    const int first = layer - layer % kvd_tokens_layers(&plan->tokens_values);
    const double share = kvd_tokens_important(&plan->tokens_values, first, plan->dims->n_layers);
    return prompt - (size_t)lround(share * (double)prompt);
}

static double held_bytes(const kvd_plan *plan, size_t prompt, size_t tokens, int gpus)
{
    double bytes = 0;
    for (int l = 0; l < plan->dims->n_layers; l++) {
        const double low = (double)low_of(plan, prompt, l);
        bytes += 2 * (low * entry_of(plan->dims_low, l, 0, plan->dims->n_kv_heads) +
                      ((double)tokens - low) * entry_of(plan->dims, l, 0, plan->dims->n_kv_heads)) +
                 4 * gpus;
    }
    return bytes;
}

/* Computes how many bytes the GPUs must send each other for a prompt of n tokens. bytes[0]: Q, K, V
 * and importance of tokens; bytes[1]: attention outputs. */
static void sent_bytes(const kvd_plan *plan, const kvd_config *c, size_t n, int gpus,
                       double bytes[2])
{
    const size_t pages = (n + 63) / 64;
    const int own = c->n_kv_heads / gpus, heads = c->n_heads / gpus * (gpus - 1), others = gpus - 1;
    bytes[0] = bytes[1] = 0;
    for (int l = 0; l < c->n_layers; l++) {
        const int high = entry_of(plan->dims, l, 0, own), low = entry_of(plan->dims_low, l, 0, own);
        const kvd_dims_head *const h = &plan->dims->head[l * c->n_kv_heads];
        const double n_low = (double)low_of(plan, n, l);
        const bool forms = l % kvd_tokens_layers(&plan->tokens_values) == 0;
        for (int g = 0; g < gpus; g++) {
            const size_t first = pages * (size_t)g / (size_t)gpus,
                         end = pages * (size_t)(g + 1) / (size_t)gpus;
            const size_t tokens = (64 * end < n ? 64 * end : n) - (64 * first < n ? 64 * first : n);
            bytes[0] += 2.0 * (double)((tokens + 7) / 8 * 8) * heads * ((h->d_qk + 15) / 16 * 16);
            bytes[0] += forms ? 2.0 * 64 * (double)(end - first) * high * others +
                                    4.0 * (double)((n + 7) / 8 * 8) * others
                              : 0;
            bytes[1] += 2.0 * (double)tokens * heads * ((h->d_v + 15) / 16 * 16);
        }
        bytes[0] += forms ? 0 : 2 * (n_low * low + ((double)n - n_low) * high) * others;
    }
}

typedef struct {
    size_t held, sent;
} wrongs;

/* Returns logits [outputs][vocab] of the CUDA engine. With several GPUs, only prompts are computed;
 * logits of later tokens are 0. */
static float *by_engine(const model *m, const kvd_plan *plan, int gpus, bool sequence, bool graphs,
                        bool equal, wrongs *wrong, kvd_err *err)
{
    const load *const l = &m->l;
    const setting set = {
        .max_batch = sequence ? 1 : 2, .graphs = graphs, .phases = true, .sequence = sequence};
    kvd_engine_spec spec = spec_of(&set, l->max_len, l->max_len);
    spec.n_gpus = gpus;
    kvd_engine *const e = sequence ? kvd_engine_open_sequence(m->c, plan, &spec, err)
                                   : kvd_engine_open_cuda(m->c, plan, &spec, err);
    float *const logits = need(l->first[l->n] * l->vocab * sizeof *logits);
    int status = e ? 0 : -1;
    *wrong = (wrongs){0};
    for (size_t r = 0; !status && r < l->n; r++)
        for (size_t i = 0; !status && i < (sequence ? 1 : l->r[r].output); i++) {
            const size_t before = i ? l->r[r].input + i - 1 : 0;
            const kvd_slice s = {.slot = sequence ? 0 : (uint32_t)(r % 2),
                                 .before = (uint32_t)before,
                                 .n = i ? 1 : (uint32_t)l->r[r].input,
                                 .emits = 1,
                                 .last = sequence || i + 1 == l->r[r].output};
            const kvd_iteration it = {
                .n_slices = 1, .n_steps = i > 0, .slice = &s, .n_tokens = s.n};
            kvd_phase_times t;
            uint32_t token;
            status = e->step(e, &it, l->id + l->offset[r] + before, &token, &t, err) ||
                     e->logits(e, 0, logits + (l->first[r] + i) * l->vocab, err);
            if (status)
                break;
            wrong->held += plan->tokens && fabs(e->held(e) - held_bytes(plan, l->r[r].input,
                                                                        before + s.n, gpus)) > 0.5;
            if (gpus > 1 && equal && plan->tokens) {
                double is[2], want[2];
                e->sent(e, is);
                sent_bytes(plan, m->config, l->r[r].input, gpus, want);
                wrong->sent += fabs(is[0] - want[0]) > 0.5 || fabs(is[1] - want[1]) > 0.5;
            }
        }
    engine_free(e);
    if (!status)
        return logits;
    free(logits);
    return NULL;
}

static double median(const load *l, const float *a, const float *b, bool prompts)
{
    double *const d = need(l->first[l->n] * sizeof *d);
    size_t n = 0;
    for (size_t r = 0; a && b && r < l->n; r++)
        for (size_t i = l->first[r]; i < (prompts ? l->first[r] + 1 : l->first[r + 1]); i++)
            d[n++] = distance(a + i * l->vocab, b + i * l->vocab, l->vocab);
    kvd_sort(d, n);
    const double x = n ? d[n / 2] : NAN;
    free(d);
    return x;
}

/* Compares the CUDA engine's logits with the CPU's logits `want`. `whole`: CPU logits with all
 * tokens important, from which the accepted difference is computed. */
static void compare(const model *m, const char *name, const kvd_plan *plan, const float *want,
                    const float *whole, int gpus, bool sequence, bool graphs, bool equal)
{
    const kvd_plan high = {.type = KVD_BF16, .dims = plan->dims};
    kvd_err err = {""};
    wrongs wrong;
    char title[160], text[240];
    float *const plain = by_engine(m, &high, gpus, sequence, graphs, equal, &wrong, &err);
    float *const got =
        plain ? by_engine(m, plan, gpus, sequence, graphs, equal, &wrong, &err) : NULL;
    const double bar = median(&m->l, plain, whole, sequence),
                 off = median(&m->l, got, want, sequence);
    (void)snprintf(title, sizeof title, "%s, %d GPU%s%s%s", name, gpus, gpus > 1 ? "s" : "",
                   sequence ? ", by tokens" : "", graphs ? ", graphs" : "");
    (void)snprintf(
        text, sizeof text,
        "median %.2g (%.2g with the high widths alone, which are %.2g away); %zu wrong bytes "
        "held, %zu sent%s",
        off, bar, median(&m->l, want, whole, sequence), wrong.held, wrong.sent,
        gpus > 1 && equal ? "" : " (not counted)");
    test_result(got && off < 2 * bar && !wrong.held && !wrong.sent, title, "%s",
                got ? text : err.msg);
    free(plain);
    free(got);
}

/* Returns the number of dimensions that an important token keeps in KV head i: about 3/4 of
 * d_head. */
static int kept_high(const kvd_config *c, int i, int side)
{
    return c->d_head * 3 / 4 + (side ? -1 : 1) * (i / c->n_kv_heads % 3);
}

static int kept_less(const kvd_config *c, int i, int side)
{
    return c->d_head * 3 / 8 + (side ? -1 : 1) * (i / c->n_kv_heads % 3);
}

static int equal_dims(model *m, kvd_err *err)
{
    kvd_dims_release(&m->high);
    kvd_dims_release(&m->low);
    return fixture_dims(&m->high, &m->spectrum, m->config, &kvd_dims_zack, kept_high, err) ||
           fixture_dims(&m->low, &m->spectrum, m->config, &kvd_dims_zack, kept_less, err);
}

static void test_model(const char *path, const char *name, size_t n, const char *text, bool equal,
                       int gpus)
{
    kvd_err err = {""};
    kvd_plan plan;
    model m;
    char title[160];
    (void)snprintf(title, sizeof title, "%s, %s%s", name, text, equal ? ", equal widths" : "");
    int status = model_open(&m, path, &kvd_dims_zack, requests, n, &err);
    if (!status && equal)
        status = equal_dims(&m, &err);
    if (status || plan_of(&m, text, &plan, &err)) {
        test_result(0, title, "%s", err.msg);
        model_close(&m);
        return;
    }
    const kvd_plan high = {.type = KVD_BF16, .dims = &m.high};
    float *const methods = reference(m.c, &m.l, &plan, &err), *const check_of =
                                                                  by_hook(&m, &plan, true, &err);
    float *const want = by_hook(&m, &plan, false, &err), *const whole =
                                                             reference(m.c, &m.l, &high, &err);
    const double off = median(&m.l, check_of, methods, false);
    test_result(methods && check_of && off < 3e-3, title,
                "the hook with whole prompts is %.2g from src/methods, which rounds to bf16", off);
    if (want && whole) {
        compare(&m, title, &plan, want, whole, 1, false, true, equal);
        compare(&m, title, &plan, want, whole, 1, false, false, equal);
        compare(&m, title, &plan, want, whole, 1, true, false, equal);
        for (int shares = 2; shares <= gpus && shares <= m.config->n_kv_heads; shares *= 2)
            compare(&m, title, &plan, want, whole, shares, true, false, equal);
    } else {
        test_result(0, title, "%s", err.msg);
    }
    host_free(methods, check_of, want, whole);
    kvd_plan_close(&plan);
    model_close(&m);
}

static void refused(const char *path, int gpus, bool sequence, const char *text, const char *why)
{
    kvd_err err = {""};
    kvd_plan plan;
    model m;
    kvd_engine_spec spec = spec_of(&(setting){.max_batch = 1, .sequence = sequence}, 100, 100);
    spec.n_gpus = gpus;
    if (model_open(&m, path, &kvd_dims_zack, requests, 1, &err) || plan_of(&m, text, &plan, &err)) {
        test_result(strstr(err.msg, why) != NULL, "refused", "%s", err.msg);
    } else {
        engine_refused(m.c, &plan, &spec, why);
        kvd_plan_close(&plan);
    }
    model_close(&m);
}

static void test_wide(bool equal, int devices)
{
    char path[128];
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 5;
    s.heads = 12;
    s.kv_heads = 4;
    s.d_head = 128;
    s.positions = 1024;
    s.rope = "llama3";
    made_or_end(equal ? "gqa-1" : "gqa-0", &s, path);
    test_model(path, "d_head 128, groups of 3", REQUESTS, "zdc,p=0.1,p_u=0.5,g=0.4,layers=2", equal,
               devices);
}

/* usage: gpu_engine_zdc_layers [quick]; quick: few requests, for compute-sanitizer */
int main(int argc, char **argv)
{
    const bool quick = argc > 1 && !strcmp(argv[1], "quick");
    const char *const demo = "data/models/kvdim-6m";
    const int devices = gpu_devices("engine of known sets", 1);
    if (!devices)
        return 0;
    if (devices < 2)
        printf("skip engine of known sets among two GPUs: there is one\n");
    else if (devices < 4)
        printf("skip engine of known sets among four GPUs: there are %d\n", devices);
    test_model(demo, "kvdim-6m", quick ? 2 : REQUESTS, "zdc,p=0.1,p_u=0.5,g=0.4,layers=3", false,
               devices);
    if (quick)
        return failures ? 1 : 0;
    test_model(demo, "kvdim-6m", REQUESTS, "zdc,p=0.1,p_u=0.5,g=0.3,rise=0.4,layers=2", true,
               devices);
    test_model(demo, "kvdim-6m", REQUESTS, "zdc,p=0.1,p_u=0.5,g=0.5,mean=1,layers=100", true,
               devices);
    test_wide(false, devices);
    test_wide(true, devices);
    if (devices > 1) {
        refused(demo, 2, true, "zdc,p=0.1,p_u=0.5", "give layers=N");
        refused(demo, 2, true, "received+zack,p=0.1,p_u=0.5", "on one GPU");
    }
    return failures ? 1 : 0;
}
