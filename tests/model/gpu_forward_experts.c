/* Tests mixture-of-experts models on a GPU. Copying experts' weights from the host only when needed
 * must not change results. */
#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "common/rng.h"
#include "expected.h"
#include "gpu_case.h"
#include "gpu_forward_case.h"
#include "model/checkpoint/shapes.h"
#include "model/pass/cuda/blocks.h"
#include "model/pass/routing.h"
#include "temp_folder.h"
#include "write_shape.h"

enum { TOKENS = 700 };

typedef struct {
    const char *name;
    int experts, groups, groups_chosen, chosen;
    bool sigmoid, add_up, bias;
    double scale;
} grouping;

/* Fills the router's logits with multiples of 1/64, so that many are equal. One in 50 tokens gets
 * NaN logits. */
static void make_logits(const grouping *g, float *logit, float *bias)
{
    kvd_rng rng;
    kvd_rng_seed(&rng, 11, 0);
    for (int i = 0; i < TOKENS * g->experts; i++) {
        logit[i] = ((float)kvd_rng_below(&rng, 512) - 256) / 64;
        if (i / g->experts % 50 == 7 && kvd_rng_below(&rng, 4) == 0)
            logit[i] = NAN;
        if (i / g->experts == 123)
            logit[i] = NAN;
    }
    for (int x = 0; x < g->experts; x++)
        bias[x] = ((float)kvd_rng_below(&rng, 64) - 32) / 256;
}

static int near(float a, float b, double scale)
{
    return isnan(a) || isnan(b) ? isnan(a) && isnan(b)
                                : fabs((double)a - (double)b) <= 1e-6 * scale;
}

static int lists_agree(const kvd_gpu_routes *r, const uint32_t *expert, const float *factor,
                       const uint32_t *count, const uint32_t *row, const float *weight)
{
    size_t at = 0;
    for (uint32_t x = 0; x < r->n_experts; x++) {
        const size_t first = at;
        for (size_t i = 0; i < r->n * r->n_chosen; i++)
            if (expert[i] == x) {
                if (row[at] != i / r->n_chosen || memcmp(&weight[at], &factor[i], sizeof *weight))
                    return 0;
                at++;
            }
        if (at - first != count[x])
            return 0;
    }
    return at == r->n * r->n_chosen;
}

static void test_groups(const grouping *g)
{
    const size_t experts = (size_t)g->experts, chosen = (size_t)g->chosen, uses = TOKENS * chosen,
                 of_uses = uses * sizeof(float);
    const kvd_config c = {.n_experts = g->experts,
                          .n_chosen = g->chosen,
                          .expert_groups = g->groups,
                          .groups_chosen = g->groups_chosen,
                          .expert_scale = g->scale,
                          .route_sigmoid = g->sigmoid,
                          .chosen_add_up = g->add_up};
    float *const logit = need(TOKENS * experts * sizeof *logit), *const bias = need(experts * 4),
                 *const factor = need(of_uses), *const weight = need(of_uses),
                 *const want = need(chosen * sizeof *want);
    uint32_t *const expert = need(of_uses), *const row = need(of_uses),
                    *const count = need(experts * sizeof *count);
    size_t *const best = need(chosen * sizeof *best), wrong = 0;
    double *const scratch = need(KVD_ROUTE_SCRATCH * experts * sizeof *scratch);
    make_logits(g, logit, bias);
    const kvd_gpu_routes r = {.n = TOKENS,
                              .n_experts = experts,
                              .n_chosen = chosen,
                              .add_up = g->add_up,
                              .groups = (size_t)g->groups,
                              .groups_chosen = (size_t)g->groups_chosen,
                              .sigmoid = g->sigmoid,
                              .scale = g->scale,
                              .bias_choice = g->bias ? on_device(bias, experts * 4) : NULL,
                              .logit = on_device(logit, TOKENS * experts * sizeof *logit),
                              .factor = on_device(NULL, of_uses),
                              .weight = on_device(NULL, of_uses),
                              .expert = on_device(NULL, of_uses),
                              .count = on_device(NULL, experts * sizeof *count),
                              .row = on_device(NULL, of_uses)};
    check(kvd_gpu_route(&r, NULL), "routing");
    check(cudaMemcpy(factor, r.factor, of_uses, cudaMemcpyDeviceToHost), "factors");
    check(cudaMemcpy(weight, r.weight, of_uses, cudaMemcpyDeviceToHost), "factors");
    check(cudaMemcpy(expert, r.expert, of_uses, cudaMemcpyDeviceToHost), "experts");
    check(cudaMemcpy(row, r.row, of_uses, cudaMemcpyDeviceToHost), "rows");
    check(cudaMemcpy(count, r.count, experts * sizeof *count, cudaMemcpyDeviceToHost), "counts");
    for (size_t t = 0; t < TOKENS; t++) {
        kvd_route_groups(&c, logit + t * experts, g->bias ? bias : NULL, scratch, best, want);
        int same = 1;
        for (size_t j = 0; j < chosen; j++)
            same = same && best[j] == expert[t * chosen + j] &&
                   near(want[j], factor[t * chosen + j], g->scale);
        wrong += !same;
    }
    const int lists = lists_agree(&r, expert, factor, count, row, weight);
    test_result(wrong == 0 && lists, g->name, "%zu of %d tokens differ from the CPU's choice%s",
                wrong, TOKENS, lists ? "" : ", the lists are wrong");
    device_free(r.bias_choice, r.logit, r.factor, r.weight, r.expert, r.count, r.row);
    void *const host[] = {logit, bias, factor, weight, want, expert, row, count, best, scratch};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
}

static void test_grouped_choice(void)
{
    static const grouping list[] = {
        {"groups of DeepSeek-V3", 256, 8, 4, 8, true, true, true, 2.5},
        {"groups of DeepSeek-V2", 160, 8, 3, 6, false, false, false, 16},
        {"one group, as in DeepSeek-V2-Lite", 64, 1, 1, 6, false, false, false, 1},
        {"more groups than lanes", 132, 44, 5, 11, true, false, true, 1},
        {"a few experts", 9, 3, 2, 3, false, true, true, 1.7},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        test_groups(&list[i]);
}

typedef struct {
    const char *name;
    size_t n, d, ffn, experts, chosen;
    bool clamped, biases, add_up;
    size_t groups;
} few_case;

/* weights of all experts on the device, and as float32 on the host */
typedef struct {
    float *gate_up, *down, *bias_gate_up, *bias_down;
    kvd_gpu_expert *device;
} few_weights;

static few_weights make_weights(const few_case *c, kvd_rng *rng)
{
    const size_t up = 2 * c->ffn * c->d, down = c->d * c->ffn;
    few_weights w = {.gate_up = bf16_numbers(rng, c->experts * up, 1 / sqrt((double)c->d)),
                     .down = bf16_numbers(rng, c->experts * down, 1 / sqrt((double)c->ffn)),
                     .bias_gate_up = bf16_numbers(rng, c->experts * 2 * c->ffn, 1),
                     .bias_down = bf16_numbers(rng, c->experts * c->d, 1),
                     .device = need(c->experts * sizeof *w.device)};
    for (size_t x = 0; x < c->experts; x++)
        w.device[x] = (kvd_gpu_expert){
            .gate_up = on_device_bf16(w.gate_up + x * up, up),
            .down = on_device_bf16(w.down + x * down, down),
            .bias_gate_up =
                c->biases ? on_device(w.bias_gate_up + x * 2 * c->ffn, 2 * c->ffn * 4) : NULL,
            .bias_down = c->biases ? on_device(w.bias_down + x * c->d, c->d * 4) : NULL};
    return w;
}

static void release_weights(const few_case *c, few_weights *w)
{
    for (size_t x = 0; x < c->experts; x++) {
        device_free(w->device[x].gate_up, w->device[x].down, w->device[x].bias_gate_up,
                    w->device[x].bias_down);
    }
    free(w->gate_up);
    free(w->down);
    free(w->bias_gate_up);
    free(w->bias_down);
    free(w->device);
}

static double rounded(double x)
{
    const float from = (float)x;
    float to;
    uint16_t narrow;
    kvd_from_f32(KVD_BF16, &from, &narrow, 1);
    kvd_to_f32(KVD_BF16, &narrow, &to, 1);
    return (double)to;
}

static double dot(const float *w, const double *x, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)w[i] * x[i];
    return s;
}

/* Adds to y [d] the output of expert x for the input `in` [d], multiplied by `factor`. */
static void add_expert(const few_case *c, const few_weights *w, size_t x, const double *in,
                       double factor, double *y)
{
    const float *const gate = w->gate_up + x * 2 * c->ffn * c->d, *const up = gate + c->ffn * c->d;
    const float *const bias = w->bias_gate_up + x * 2 * c->ffn;
    double *const hidden = need(c->ffn * sizeof *hidden);
    for (size_t i = 0; i < c->ffn; i++) {
        double g = rounded(dot(gate + i * c->d, in, c->d)) + (c->biases ? (double)bias[i] : 0),
               u = rounded(dot(up + i * c->d, in, c->d)) +
                   (c->biases ? (double)bias[c->ffn + i] : 0);
        if (c->clamped) {
            g = fmin(g, 1.5);
            u = 1 + fmax(-1.5, fmin(u, 1.5));
        }
        hidden[i] = rounded(g / (1 + exp(-(c->clamped ? 1.702 : 1) * g)) * u);
    }
    for (size_t j = 0; j < c->d; j++)
        y[j] += factor * (dot(w->down + (x * c->d + j) * c->ffn, hidden, c->ffn) +
                          (c->biases ? (double)w->bias_down[x * c->d + j] : 0));
    free(hidden);
}

/* Compares GPU kernels for few tokens per expert with a computation in float64. Two runs of the
 * kernels must give equal bits. */
static void test_few(const few_case *c)
{
    kvd_rng rng;
    kvd_rng_seed(&rng, 5, c->n);
    const size_t pairs = c->n * c->chosen, logits = c->n * c->experts, size = c->n * c->d;
    few_weights w = make_weights(c, &rng);
    float *const logit = bf16_numbers(&rng, logits, 1), *const bias = bf16_numbers(&rng, 64, 1),
                 *const x = bf16_numbers(&rng, size, 1), *const y = bf16_numbers(&rng, size, 1),
                 *const got = need(size * sizeof *got), *const again = need(size * sizeof *again),
                 *const factor = need(pairs * sizeof *factor),
                 *const want_factor = need(pairs * sizeof *factor);
    uint32_t *const expert = need(pairs * sizeof *expert), *const want_expert = need(pairs * 4);
    float *const add = c->clamped ? bf16_numbers(&rng, c->d, 1) : NULL;
    float *const y_device = on_device(NULL, size * sizeof *y);
    int sms = 0, major = 0;
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
    kvd_gpu_few_experts a = {
        .routes = {.n = c->n,
                   .n_experts = c->experts,
                   .n_chosen = c->chosen,
                   .add_up = c->add_up,
                   .bias = c->groups || !c->biases ? NULL : on_device(bias, c->experts * 4),
                   .groups = c->groups,
                   .groups_chosen = c->groups,
                   .scale = 1,
                   .logit = on_device(NULL, logits * sizeof *logit),
                   .factor = on_device(NULL, pairs * sizeof *factor),
                   .weight = on_device(NULL, pairs * sizeof *factor),
                   .expert = on_device(NULL, pairs * sizeof *expert),
                   .count = on_device(NULL, c->experts * sizeof(uint32_t)),
                   .row = on_device(NULL, pairs * sizeof(uint32_t))},
        .sms = sms,
        .overlaps = major == 9,
        .expert = on_device(w.device, c->experts * sizeof *w.device),
        .d = c->d,
        .ffn = c->ffn,
        .alpha = 1.702F,
        .limit = c->clamped ? 1.5F : 0,
        .first = true,
        .add = add ? on_device(add, c->d * sizeof *add) : NULL,
        .x = on_device_bf16(x, size),
        .y = y_device,
        .group = on_device(NULL, kvd_gpu_few_groups(c->n, c->chosen, c->experts) *
                                     sizeof(kvd_gpu_expert_group)),
        .n_groups = on_device(NULL, sizeof(uint32_t)),
        .place = on_device(NULL, pairs * sizeof(uint32_t)),
        .hidden = on_device(NULL, pairs * c->ffn * 2),
        .out = on_device(NULL, pairs * c->d * sizeof(float))};
    check(cudaMemcpy(a.routes.logit, logit, logits * 4, cudaMemcpyHostToDevice), "logits");
    check(kvd_gpu_route(&a.routes, NULL), "routing");
    check(cudaMemcpy(want_expert, a.routes.expert, pairs * 4, cudaMemcpyDeviceToHost), "experts");
    check(cudaMemcpy(want_factor, a.routes.factor, pairs * 4, cudaMemcpyDeviceToHost), "factors");
    for (int i = 0; i < 2; i++) {
        check(cudaMemcpy(a.routes.logit, logit, logits * 4, cudaMemcpyHostToDevice), "logits");
        check(cudaMemcpy(y_device, y, size * 4, cudaMemcpyHostToDevice), "rows");
        check(kvd_gpu_few_experts_add(&a, NULL), "experts of few tokens");
        check(cudaMemcpy(i ? again : got, y_device, size * 4, cudaMemcpyDeviceToHost), "rows");
    }
    check(cudaMemcpy(expert, a.routes.expert, pairs * 4, cudaMemcpyDeviceToHost), "experts");
    check(cudaMemcpy(factor, a.routes.factor, pairs * 4, cudaMemcpyDeviceToHost), "factors");
    size_t other = 0;
    double error = 0, norm = 0;
    double *const in = need(c->d * sizeof *in), *const want = need(c->d * sizeof *want);
    for (size_t t = 0; t < c->n; t++) {
        for (size_t j = 0; j < c->d; j++) {
            in[j] = (double)x[t * c->d + j];
            want[j] = add ? (double)add[j] : 0;
        }
        for (size_t i = t * c->chosen; i < (t + 1) * c->chosen; i++) {
            other += expert[i] != want_expert[i] || !near(factor[i], want_factor[i], 1);
            add_expert(c, &w, want_expert[i], in, (double)want_factor[i], want);
        }
        for (size_t j = 0; j < c->d; j++) {
            const double e = (double)got[t * c->d + j] - (double)y[t * c->d + j] - want[j];
            error += e * e;
            norm += want[j] * want[j];
        }
    }
    const int same = !memcmp(got, again, size * sizeof *got);
    test_result(!other && sqrt(error / norm) < 2e-3 && same, c->name,
                "%zu of %zu choices differ, off by %.2g, %s bits", other, pairs, sqrt(error / norm),
                same ? "the same" : "other");
    device_free(a.routes.bias, a.routes.logit, a.routes.factor, a.routes.weight, a.routes.expert,
                a.routes.count, a.routes.row, a.expert, a.x, a.y, a.group, a.n_groups, a.add,
                a.place, a.hidden, a.out);
    void *const host[] = {logit,       bias,   x,           y,  got,  again, factor,
                          want_factor, expert, want_expert, in, want, add};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
    release_weights(c, &w);
}

static void test_norm_route(size_t n, size_t d, size_t experts, bool adds)
{
    kvd_rng rng;
    char name[80];
    kvd_rng_seed(&rng, 9, n * d);
    float *const x = bf16_numbers(&rng, n * d, 3), *const gain = bf16_numbers(&rng, d, 1),
                 *const add = adds ? bf16_numbers(&rng, d, 1) : NULL,
                 *const router = bf16_numbers(&rng, experts * d, 1),
                 *const logit = need(n * experts * sizeof *logit);
    uint16_t *const normed = need(n * d * sizeof *normed);
    double *const row = need(d * sizeof *row);
    kvd_gpu_bad bad = ~0ULL;
    const kvd_gpu_norm_route a = {.n = n,
                                  .d = d,
                                  .n_experts = experts,
                                  .x = on_device(x, n * d * sizeof *x),
                                  .add = add ? on_device(add, d * sizeof *add) : NULL,
                                  .gain = on_device(gain, d * sizeof *gain),
                                  .eps = 1e-5,
                                  .router = on_device(router, experts * d * sizeof *router),
                                  .normed = on_device(NULL, n * d * sizeof *normed),
                                  .logit = on_device(NULL, n * experts * sizeof *logit),
                                  .stage = 3,
                                  .bad = on_device(&bad, sizeof bad)};
    const int takes = kvd_gpu_norm_route_takes(n, d);
    check(kvd_gpu_norm_route_run(&a, NULL), "norm and router");
    check(cudaMemcpy(logit, a.logit, n * experts * sizeof *logit, cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(normed, a.normed, n * d * sizeof *normed, cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(&bad, a.bad, sizeof bad, cudaMemcpyDeviceToHost), "copy");
    double error = 0, square = 0, off = 0;
    for (size_t t = 0; t < n; t++) {
        double squares = 0;
        for (size_t i = 0; i < d; i++) {
            row[i] = (double)x[t * d + i] + (add ? (double)add[i] : 0);
            squares += row[i] * row[i];
        }
        for (size_t i = 0; i < d; i++) {
            float got;
            row[i] *= (double)gain[i] / sqrt(squares / (double)d + a.eps);
            kvd_to_f32(KVD_BF16, &normed[t * d + i], &got, 1);
            off = fmax(off, fabs((double)got - row[i]) / (fabs(row[i]) + 1e-6));
        }
        for (size_t e = 0; e < experts; e++) {
            const double want = dot(router + e * d, row, d);
            error += pow((double)logit[t * experts + e] - want, 2);
            square += want * want;
        }
    }
    (void)snprintf(name, sizeof name, "norm and router, %zu rows of %zu, %zu experts", n, d,
                   experts);
    test_result(takes && sqrt(error / square) < 3e-6 && off < 0.00392 && bad == ~0ULL, name,
                "logits off by %.2g, norm by %.2g%s", sqrt(error / square), off,
                bad == ~0ULL ? "" : ", a row is named");
    device_free(a.x, a.add, a.gain, a.router, a.normed, a.logit, a.bad);
    void *const host[] = {x, gain, add, router, logit, normed, row};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        free(host[i]);
}

static void test_few_tokens(void)
{
    static const few_case list[] = {
        {"few tokens: one", 1, 64, 32, 4, 2, false, false, true, 0},
        {"few tokens: odd sizes", 7, 72, 40, 5, 2, false, false, false, 0},
        {"few tokens: several groups an expert", 100, 136, 96, 3, 2, false, false, true, 0},
        {"few tokens: one expert", 65, 64, 64, 1, 1, false, true, true, 0},
        {"few tokens: gpt-oss", 33, 360, 360, 32, 4, true, true, true, 0},
        {"few tokens: many experts", 300, 128, 64, 60, 8, false, false, true, 0},
        {"few tokens: groups of experts", 20, 64, 48, 16, 3, false, false, false, 4},
        {"many tokens: one step of columns", 400, 64, 64, 6, 2, false, false, true, 0},
        {"many tokens: gpt-oss", 700, 328, 200, 5, 3, true, true, true, 0},
        {"many tokens: several rows of tiles", 300, 520, 264, 2, 1, false, true, false, 0},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        test_few(&list[i]);
}

static int first_other(const recording *a, const recording *b)
{
    int kind = 0;
    for (; kind < N_KINDS; kind++) {
        const size_t layers = kind == LOGITS ? 1 : (size_t)a->c->n_layers,
                     n = layers * a->n * width_of(a->c, kind);
        if (memcmp(a->x[kind], b->x[kind], n * sizeof(float)) != 0)
            break;
    }
    return kind;
}

static kvd_batch batch_of(const kvd_config *c, size_t n, size_t offset[4])
{
    offset[0] = 0;
    offset[1] = n / 2;
    offset[2] = n / 2 + 1;
    offset[3] = n;
    return (kvd_batch){
        .n_sequences = 3, .offset = offset, .id = some_ids(n, (size_t)c->vocab_size, 3)};
}

static void test_bits(const kvd_checkpoint *c, const char *name, kvd_dtype type, int n_gpus)
{
    enum { N = 101 };
    const kvd_config *const config = kvd_checkpoint_config(c);
    kvd_err err = {""};
    size_t offset[4];
    const size_t most = (size_t)config->max_positions;
    kvd_gpu_forward_spec spec = {.type = type,
                                 .n_gpus = n_gpus,
                                 .max_tokens = N,
                                 .max_len = N < most ? N : most,
                                 .memory = 1};
    spec.memory = kvd_gpu_forward_bytes(config, &spec);
    const kvd_batch b = batch_of(config, N, offset);
    recording a = {.n = 0}, z = {.n = 0}, again = {.n = 0};
    kvd_gpu_forward *const resident = open_pass(c, type, n_gpus, N), *const streamed =
                                                                         kvd_gpu_forward_new(
                                                                             c, &spec, &err);
    int status = !streamed || run_on(resident, &b, n_gpus, -1, &a, &err) ||
                 run_on(streamed, &b, n_gpus, -1, &again, &err) ||
                 run_on(streamed, &b, n_gpus, -1, &z, &err);
    const int named = streamed && strstr(kvd_gpu_forward_engine(streamed), ", experts streamed") &&
                      !strstr(kvd_gpu_forward_engine(resident), "streamed");
    const int other = status ? 0 : first_other(&a, &z);
    test_result(!status && named && other == N_KINDS, name, "%s, %d GPUs, %s; %s",
                kvd_dtype_name(type), n_gpus,
                status             ? err.msg
                : other == N_KINDS ? "the bits of resident experts"
                                   : kind_name[other],
                streamed ? kvd_gpu_forward_engine(streamed) : "");
    recording_release(&a);
    recording_release(&z);
    recording_release(&again);
    kvd_gpu_forward_free(streamed);
    kvd_gpu_forward_free(resident);
    free((void *)(uintptr_t)b.id);
}

static void test_limits(const char *name)
{
    kvd_err err = {""};
    kvd_checkpoint *const c = family_or_end(name);
    kvd_gpu_forward_spec spec = {
        .type = KVD_BF16, .n_gpus = 1, .max_tokens = 40, .max_len = 20, .memory = 0};
    const size_t resident = kvd_gpu_forward_bytes(kvd_checkpoint_config(c), &spec);
    spec.memory = 1;
    const size_t streamed = kvd_gpu_forward_bytes(kvd_checkpoint_config(c), &spec);
    spec.memory = streamed - 1;
    kvd_gpu_forward *f = kvd_gpu_forward_new(c, &spec, &err);
    test_result(!f && strstr(err.msg, " bytes without its routed experts on GPU 0, which has ") &&
                    strstr(err.msg, " bytes left for the pass"),
                "a limit that is too small", "%s", err.msg);
    kvd_gpu_forward_free(f);
    spec.memory = resident;
    f = kvd_gpu_forward_new(c, &spec, &err);
    test_result(streamed < resident && f && !strstr(kvd_gpu_forward_engine(f), "streamed"),
                "a limit that is enough for all experts", "%s",
                f ? kvd_gpu_forward_engine(f) : err.msg);
    kvd_gpu_forward_free(f);
    kvd_checkpoint_close(c);
}

/* large model: an expert has 22 MB, so copying it fills several pinned buffers */
static const kvd_shape large = {
    "large", "large", "made up",
    "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"hidden_act\":\"silu\","
    "\"num_hidden_layers\":4,\"num_attention_heads\":8,\"num_key_value_heads\":2,"
    "\"hidden_size\":1024,\"intermediate_size\":3584,\"num_local_experts\":8,"
    "\"num_experts_per_tok\":2,\"max_position_embeddings\":4096,\"rms_norm_eps\":1e-05,"
    "\"rope_theta\":10000.0,\"sliding_window\":null,\"vocab_size\":1000,"
    "\"tie_word_embeddings\":false}"};

static size_t free_bytes(void)
{
    size_t left = 0, total = 0;
    check(cudaMemGetInfo(&left, &total), "cudaMemGetInfo");
    return left;
}

/* Runs the forward pass twice. Returns the bytes that it takes on the GPU. *seconds: time of the
 * second run. */
static size_t run_limited(const kvd_checkpoint *c, const kvd_gpu_forward_spec *spec,
                          const kvd_batch *b, float *hidden, double *seconds, int *streamed,
                          kvd_err *err)
{
    const size_t n = b->offset[b->n_sequences],
                 bytes = n * (size_t)kvd_checkpoint_config(c)->d_model * sizeof *hidden;
    float *const rows = on_device(NULL, bytes);
    const size_t before = free_bytes();
    size_t taken = 0;
    kvd_gpu_forward *const f = kvd_gpu_forward_new(c, spec, err);
    *streamed = -1;
    if (f && !kvd_gpu_forward_run(f, b, NULL, -1, rows, err)) {
        taken = before - free_bytes();
        *seconds = kvd_clock_s();
        if (!kvd_gpu_forward_run(f, b, NULL, -1, rows, err))
            *streamed = strstr(kvd_gpu_forward_engine(f), "experts streamed") != NULL;
        *seconds = kvd_clock_s() - *seconds;
        check(cudaMemcpy(hidden, rows, bytes, cudaMemcpyDeviceToHost), "hidden");
    }
    kvd_gpu_forward_free(f);
    check(cudaFree(rows), "cudaFree");
    return taken;
}

/* The bytes that the forward pass counts must be those that the device reports, apart from
 * allocation granularity and CUDA libraries. */
static void test_memory(size_t n)
{
    static const double slack = 100e6;
    kvd_err err = {""};
    char path[128];
    size_t offset[4];
    double s_resident = 0, s_streamed = 0, s_made = 0;
    int streamed[3] = {-1, -1, -1};
    (void)snprintf(path, sizeof path, "%s/large", temp_folder());
    kvd_checkpoint *const made = kvd_checkpoint_of_shape(&large, 3, &err),
                          *const c = !made || write_shape(path, &large, 3, KVD_BF16, 1 << 28, &err)
                                         ? NULL
                                         : kvd_checkpoint_open(path, &err);
    if (!c) {
        test_result(0, "a large model", "%s", err.msg);
        kvd_checkpoint_close(made);
        return;
    }
    const kvd_config *const config = kvd_checkpoint_config(c);
    const size_t d = (size_t)config->d_model;
    kvd_gpu_forward_spec all = {.type = KVD_BF16,
                                .n_gpus = 1,
                                .max_tokens = n,
                                .max_len = n < 2048 ? n : 2048},
                         few = all;
    few.memory = 1;
    few.memory = kvd_gpu_forward_bytes(config, &few);
    const size_t resident = kvd_gpu_forward_bytes(config, &all);
    const kvd_batch b = batch_of(config, n, offset);
    float *const x = need(n * d * sizeof *x), *const y = need(n * d * sizeof *y),
                 *const z = need(n * d * sizeof *z);
    /* The first run loads the kernels, so its time is ignored. */
    (void)run_limited(c, &all, &b, x, &s_resident, &streamed[0], &err);
    const size_t taken = run_limited(c, &few, &b, y, &s_streamed, &streamed[1], &err);
    (void)run_limited(made, &few, &b, z, &s_made, &streamed[2], &err);
    const int ran = streamed[0] == 0 && streamed[1] == 1 && streamed[2] == 1;
    test_result(ran && taken > 0 && (double)taken <= (double)few.memory + slack &&
                    few.memory + 600000000 < resident,
                "memory of streamed experts",
                "%s; peak %zu bytes, estimate %zu, with all experts %zu; %.1f ms streamed, %.1f "
                "ms resident",
                err.msg, taken, few.memory, resident, 1e3 * s_streamed, 1e3 * s_resident);
    test_result(ran && !memcmp(x, y, n * d * sizeof *x), "large experts of a file", "%s",
                ran ? "compared with resident ones" : err.msg);
    test_result(ran && !memcmp(x, z, n * d * sizeof *x), "large experts made on the device", "%s",
                ran ? "compared with resident ones" : err.msg);
    free(x);
    free(y);
    free(z);
    free((void *)(uintptr_t)b.id);
    kvd_checkpoint_close(c);
    kvd_checkpoint_close(made);
}

int main(int argc, char **argv)
{
#define NAME(name) name
    static const char *const family[] = {ROUTED(NAME), LATENT(NAME)};
    const int devices = gpu_devices("experts", 1);
    if (!devices)
        return 0;
    test_grouped_choice();
    test_few_tokens();
    test_norm_route(1, 2880, 32, true);
    test_norm_route(3, 64, 5, false);
    test_norm_route(8, 360, 130, true);
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        kvd_checkpoint *const c = family_or_end(family[i]);
        for (size_t t = 0; t < 2 && kvd_checkpoint_config(c)->n_experts; t++)
            test_bits(c, family[i], t ? KVD_BF16 : KVD_F32, 1);
        kvd_checkpoint_close(c);
    }
    if (devices > 1) {
        kvd_checkpoint *const c = family_or_end("gpt-oss");
        test_bits(c, "gpt-oss", KVD_BF16, 2);
        kvd_checkpoint_close(c);
    }
    test_limits("mixtral-full");
    if (argc < 2 || strcmp(argv[1], "quick") != 0) {
        test_memory(4096);
        test_memory(3);
    }
    return failures ? 1 : 0;
}
