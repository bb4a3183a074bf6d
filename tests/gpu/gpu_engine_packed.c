/* Compares the CUDA engine with the CPU engine, with quantised caches. Their logits may differ by a
 * fraction of the error that quantisation causes. */
#include <math.h>

#include "dims_fixture.h"
#include "engine_schedule.h"
#include "methods/method.h"
#include "tensor_scales.h"

/* projections of K and V to fewer dimensions, used together with the tested method; NULL for
 * none */
static const kvd_dims *cut;

static int open_plan(const kvd_config *c, const char *method, const load *l, kvd_plan *plan,
                     kvd_err *err)
{
    const kvd_method_setup setup = {.config = c, .checkpoint = l->c, .drawn = true};
    kvd_method m;
    if (kvd_method_parse(method, &m, err))
        return -1;
    *plan = m.plan;
    plan->type = KVD_BF16;
    plan->dims = cut;
    plan->prompt = kvd_plan_beyond_widths(plan) ? l->max_len : 0;
    return open_with_scales(plan, &setup, err);
}

/* Serves all requests on the GPU or the CPU. With `exact`, prompts attend to K and V before
 * quantisation, as the CPU engine always does. */
static int run_with(const load *l, size_t slots, const char *method, int gpu, int graphs,
                    bool exact, served *o, kvd_err *err)
{
    const serving_order by = {.slots = slots, .singly = true};
    const setting set = {.max_batch = slots, .graphs = graphs, .phases = graphs};
    kvd_engine_spec spec = spec_of(&set, l->max_len, 4 * l->max_len);
    kvd_plan plan;
    /* Reserves memory for long entropy-coded blocks, which the random frequency tables of this test
     * produce. */
    spec.outliers = strstr(method, "block=64") || strstr(method, "lanes=1") ? 14336 : 0;
    spec.exact_prompts = gpu && exact;
    if (open_plan(kvd_checkpoint_config(l->c), method, l, &plan, err))
        return -1;
    kvd_engine *const e = gpu ? kvd_engine_open_cuda(l->c, &plan, &spec, err)
                              : kvd_engine_open_cpu(l->c, &plan, &spec, err);
    const int status = !e || serve_recorded(e, l, &by, o, err);
    engine_free(e);
    kvd_plan_close(&plan);
    return status;
}

static int run(const load *l, size_t slots, const char *method, int gpu, int graphs, served *o,
               kvd_err *err)
{
    return run_with(l, slots, method, gpu, graphs, cut != NULL, o, err);
}

static double off(const load *l, const float *x, const float *want, double *most)
{
    double sum = 0;
    *most = 0;
    for (size_t i = 0; i < l->outputs; i++) {
        const double e = distance(x + i * l->vocab, want + i * l->vocab, l->vocab);
        sum += e * e;
        *most = worse(*most, e);
    }
    return sqrt(sum / (double)l->outputs);
}

typedef struct {
    const char *method;
    /* share: accepted distance between GPU and CPU logits, divided by the distance between logits
     * with and without the compression method; held: accepted relative difference of cache bytes */
    double share, held;
} test_case;

static void test(const load *l, size_t slots, const char *model, const test_case *t,
                 const served *plain, double rounding)
{
    kvd_err err = {""};
    char name[160];
    served want = {0}, got = {0}, replayed = {0};
    double most, most_changed;
    (void)snprintf(name, sizeof name, "%s, %s%s", model, cut ? "cut heads, " : "", t->method);
    if (run(l, slots, t->method, 0, 0, &want, &err) || run(l, slots, t->method, 1, 0, &got, &err) ||
        run(l, slots, t->method, 1, 1, &replayed, &err)) {
        test_result(0, name, "%s", err.msg);
    } else {
        const double e = off(l, got.logits, want.logits, &most),
                     changed = off(l, want.logits, plain->logits, &most_changed);
        const double bytes = held_off(&got, &want), bar = 1.5 * rounding + t->share * changed;
        const int same =
            !memcmp(got.logits, replayed.logits, l->outputs * l->vocab * sizeof *got.logits);
        test_result(
            e <= bar && most <= 6 * bar && changed > 0 && bytes <= t->held && same, name,
            "%zu rows off by %.2g rms, %.2g at most; the method changes %.2g, bf16 %.2g; bytes off by "
            "%.2g; graphs give %s",
            l->outputs, e, most, changed, rounding, bytes, same ? "the same bits" : "other bits");
    }
    host_free(want.logits, got.logits, replayed.logits);
}

static int measure(const load *l, size_t slots, served *plain, double *rounding, kvd_err *err)
{
    served narrow = {0};
    double most;
    const int status =
        run(l, slots, "none", 0, 0, plain, err) || run(l, slots, "none", 1, 0, &narrow, err);
    if (!status)
        *rounding = off(l, narrow.logits, plain->logits, &most);
    free(narrow.logits);
    return status;
}

static void test_checkpoint(const kvd_checkpoint *c, const char *model, const request *r, size_t n,
                            size_t slots, const test_case *t, size_t n_cases)
{
    kvd_err err = {""};
    load l = load_make(c, r, n, 17);
    served plain = {0};
    double rounding = 0;
    if (measure(&l, slots, &plain, &rounding, &err))
        test_result(0, model, "%s", err.msg);
    for (size_t i = 0; plain.logits && i < n_cases; i++)
        test(&l, slots, model, &t[i], &plain, rounding);
    free(plain.logits);
    load_release(&l);
}

static void test_model(const char *path, const char *model, const request *r, size_t n,
                       size_t slots, const test_case *t, size_t n_cases)
{
    kvd_checkpoint *const c = checkpoint_or_end(path);
    test_checkpoint(c, model, r, n, slots, t, n_cases);
    kvd_checkpoint_close(c);
}

static void refused(const load *l, const char *method, size_t chunk, const char *why)
{
    kvd_err err = {""};
    kvd_plan plan;
    const kvd_engine_spec spec = spec_of(&(setting){.max_batch = 2, .chunk = chunk}, 100, 100);
    const kvd_slice slice = {.n = 32};
    const kvd_iteration it = {.n_slices = 1, .slice = &slice, .n_tokens = 32};
    uint32_t token;
    kvd_engine *e = NULL;
    int failed = open_plan(kvd_checkpoint_config(l->c), method, l, &plan, &err);
    if (!failed) {
        e = kvd_engine_open_cuda(l->c, &plan, &spec, &err);
        failed = !e || (chunk && e->step(e, &it, l->id, &token, NULL, &err));
    }
    test_result(failed && strstr(err.msg, why), "refused", "%s", failed ? err.msg : why);
    engine_free(e);
    kvd_plan_close(&plan);
}

/* Tests that a decode step runs on a cache that was never filled. */
static void test_unwritten(const char *method)
{
    const kvd_engine_spec spec = spec_of(&(setting){.max_batch = 1}, 900, 64);
    kvd_err err = {""};
    kvd_checkpoint *const c = checkpoint_or_end("data/models/kvdim-6m");
    const load l = {.c = c, .max_len = 900};
    kvd_slice slice = {.before = 800, .n = 1, .emits = 1};
    const kvd_iteration it = {.n_slices = 1, .n_steps = 1, .slice = &slice, .n_tokens = 1};
    uint32_t token = 1;
    kvd_plan plan = {0};
    int status = open_plan(kvd_checkpoint_config(c), method, &l, &plan, &err);
    kvd_engine *const e = status ? NULL : kvd_engine_open_cuda(c, &plan, &spec, &err);
    for (; e && !status && slice.before < 824; slice.before++)
        status = e->step(e, &it, &token, &token, NULL, &err);
    test_result(e && !status, "tokens that were never computed", "%s %s", method, err.msg);
    engine_free(e);
    kvd_plan_close(&plan);
    kvd_checkpoint_close(c);
}

/* Tests a method whose prompts attend to K and V with fewer dimensions. Logits must be equal with
 * and without CUDA graphs. */
static void test_timed(const load *l, size_t slots, const char *method)
{
    kvd_err err = {""};
    char name[160];
    served exact = {0}, plain = {0}, replayed = {0};
    double most = 0;
    (void)snprintf(name, sizeof name, "%s%s", cut ? "cut prompts, " : "", method);
    const int status = run_with(l, slots, method, 1, 0, true, &exact, &err) ||
                       run_with(l, slots, method, 1, 0, false, &plain, &err) ||
                       run_with(l, slots, method, 1, 1, false, &replayed, &err);
    const bool ok =
        !status && held_off(&plain, &exact) <= 1e-9 &&
        isfinite(off(l, plain.logits, exact.logits, &most)) &&
        !memcmp(plain.logits, replayed.logits, l->outputs * l->vocab * sizeof *plain.logits);
    test_result(ok, name, "%s",
                status ? err.msg : "equal bytes, the same bits with and without graphs");
    host_free(exact.logits, plain.logits, replayed.logits);
}

static int fixture_even(const kvd_config *c, int i, int side)
{
    (void)i, (void)side;
    return c->d_head - 3;
}

/* Tests quantisation of heads that are projected to fewer dimensions. If `uneven`, heads keep
 * different numbers of dimensions. */
static void test_cut(const char *path, const request *r, size_t n, const test_case *t,
                     size_t n_cases, bool uneven, bool timed)
{
    kvd_err err = {""};
    kvd_checkpoint *const c = checkpoint_or_end(path);
    const kvd_config *const config = kvd_checkpoint_config(c);
    load l = load_make(c, r, n, 17);
    served plain = {0};
    double rounding = 0;
    kvd_spectrum s = {0};
    kvd_dims d = {0};
    if (fixture_spectrum(&s, config, 7, &err) ||
        fixture_dims(&d, &s, config, &kvd_dims_zack, uneven ? fixture_uneven : fixture_even,
                     &err) ||
        measure(&l, 3, &plain, &rounding, &err)) {
        test_result(0, "cut heads", "%s", err.msg);
    } else {
        cut = &d;
        for (size_t i = 0; i < n_cases; i++)
            test(&l, 3, uneven ? "uneven" : "even", &t[i], &plain, rounding);
        if (timed) {
            test_timed(&l, 3, t[0].method);
            refused(&l, "turboquant,qjl=0", 0, "'turboquant' after a method of the dims axis");
            refused(&l, "turboquant,bits=2.5", 0, "'turboquant' after a method of the dims axis");
        }
        cut = NULL;
    }
    free(plain.logits);
    load_release(&l);
    kvd_dims_release(&d);
    kvd_spectrum_release(&s);
    kvd_checkpoint_close(c);
}

static void test_context(const load *l, const char *method)
{
    kvd_err err = {""};
    kvd_plan plan;
    const setting set = {.max_batch = 3, .graphs = true};
    const kvd_engine_spec spec = spec_of(&set, 1000, 100);
    uint32_t token[2] = {0};
    if (open_plan(kvd_checkpoint_config(l->c), method, l, &plan, &err)) {
        test_result(0, method, "%s", err.msg);
        return;
    }
    kvd_engine *const e = kvd_engine_open_cuda(l->c, &plan, &spec, &err);
    const int status = !e || step_uncomputed(e, token, &err);
    test_result(!status, "a context that was never computed", "%s", status ? err.msg : method);
    engine_free(e);
    kvd_plan_close(&plan);
}

/* Tests the method xkv at full rank, which must change logits only by rounding. One of the two
 * prompts has more tokens than the rank, one has fewer. */
static void test_lossless(const kvd_checkpoint *c, const request r[2], const char *method)
{
    kvd_err err = {""};
    load l = load_make(c, r, 2, 17);
    served plain = {0}, got = {0};
    double rounding = 0, most = 0;
    if (measure(&l, 2, &plain, &rounding, &err) || run(&l, 2, method, 1, 0, &got, &err)) {
        test_result(0, method, "%s", err.msg);
    } else {
        const double e = off(&l, got.logits, plain.logits, &most);
        test_result(e <= 3 * rounding && most <= 12 * rounding, method,
                    "off by %.2g rms, %.2g at most; bf16 %.2g", e, most, rounding);
    }
    free(plain.logits);
    free(got.logits);
    load_release(&l);
}

static void test_rest(void)
{
    static const request one[] = {{40, 2}}, longer[] = {{300, 20}, {70, 12}},
                         shorter[] = {{100, 12}, {33, 5}};
    kvd_checkpoint *const c = checkpoint_or_end("data/models/kvdim-6m");
    kvd_checkpoint *const biases = family_or_end("qwen2-gqa");
    load l = load_make(c, one, 1, 17), b = load_make(biases, one, 1, 17);
    refused(&l, "kivi,group=128", 0, "group=128");
    refused(&l, "kivi,group=32,residual=32", 32, "'kivi' compresses a prompt in one piece");
    refused(&l, "nvfp4", 32, "'nvfp4' compresses a prompt in one piece");
    refused(&b, "kvquant", 0, "'kvquant' codes keys before RoPE");
    refused(&l, "turboquant,bits=2.5,group=24", 0, "turboquant,group=24: the CUDA engine codes");
    refused(&l, "gear,rank=9", 0, "gear,rank=9");
    refused(&l, "rotatekv,group=48", 0, "rotatekv,group=48");
    refused(&b, "rotatekv", 0, "'rotatekv' codes keys before RoPE");
    refused(&l, "gear", 32, "'gear' compresses a prompt in one piece");
    refused(&l, "zipcache", 32, "'zipcache' compresses a prompt in one piece");
    refused(&l, "vidkv,group=24,residual=48", 0, "vidkv,group=24");
    refused(&l, "waterfill", 0, "waterfill,block=0: the CUDA engine decodes blocks of 64 tokens");
    refused(&l, "kvtc", 0, "kvtc,lanes=0,window=128: the CUDA engine codes every token, by lanes");
    refused(&l, "cachegen", 0, "cachegen,group=10,groups=1,lanes=0: the CUDA engine decodes");
    refused(&b, "waterfill,block=64", 0, "'waterfill' codes keys before RoPE");
    refused(&l, "h2o+kivi", 0, "h2o");
    refused(&l, "xquant,group=48", 0, "xquant,group=48");
    refused(&l, "xquant", 32, "'xquant' compresses a prompt in one piece");
    refused(&l, "minicache,start=1", 0, "'minicache' stores no two of the");
    refused(&l, "minicache", 32, "'minicache' compresses a prompt in one piece");
    refused(&l, "h2o+minicache", 0, "not with 'minicache'");
    test_timed(&l, 2, "minicache");
    refused(&l, "lower+hetero,k=12", 0, "with hetero of up to 8 or of 16 bits alone");
    refused(&l, "mikv", 32, "'lower' compresses a prompt in one piece");
    test_timed(&l, 2, "mikv");
    refused(&l, "xkv,layers=1", 0, "'xkv' stores no two of the");
    refused(&l, "xkv,rank_v=0", 0, "rank_v = 0 is neither a fraction");
    refused(&l, "xkv", 32, "'xkv' compresses a prompt in one piece");
    test_timed(&l, 2, "xkv,layers=2");
    test_lossless(c, longer, "xkv,layers=2,rank_k=256,rank_v=256");
    test_lossless(biases, shorter, "xkv,layers=2,rank_k=128,rank_v=128");
    test_context(&l, "kivi,bits=4");
    test_context(&l, "kvquant,bits=4");
    test_context(&l, "fp8,mantissa=2");
    test_context(&l, "nvfp4");
    test_context(&l, "minicache");
    test_context(&l, "xkv");
    test_context(&l, "mikv");
    test_context(&l, "turboquant,bits=3,qjl=0");
    test_context(&l, "xquant");
    test_context(&l, "waterfill,block=64");
    test_context(&l, "kvtc,window=0,lanes=1");
    test_context(&l, "cachegen,group=8,groups=8,lanes=1");
    load_release(&l);
    load_release(&b);
    kvd_checkpoint_close(c);
    kvd_checkpoint_close(biases);
}

#define GEMMA                                                                                      \
    "{\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","                   \
    "\"hidden_size\":256,\"intermediate_size\":192,\"num_attention_heads\":4,"                     \
    "\"num_key_value_heads\":2,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-06,"           \
    "\"vocab_size\":300,\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_hidden_layers\":4,"      \
    "\"rope_theta\":10000.0,\"attention_bias\":false,\"query_pre_attn_scalar\":10,"                \
    "\"sliding_window\":70,\"rope_local_base_freq\":5000.0,\"layer_types\":["                      \
    "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"],"

static const kvd_shape gemma = {"gemma3, window 70", "gemma3_text", "made up",
                                GEMMA "\"head_dim\":64}"},
                       wide = {"gemma3, window 70, heads of 256", "gemma3_text", "made up",
                               GEMMA "\"head_dim\":256}"};

static const kvd_shape qwen3 = {
    "qwen3", "qwen3", "made up",
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_act\":\"silu\","
    "\"hidden_size\":128,\"intermediate_size\":96,\"head_dim\":32,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"attention_bias\":false,"
    "\"rope_theta\":10000.0,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-06,"
    "\"vocab_size\":300,\"tie_word_embeddings\":false}"};

static void test_shape(const kvd_shape *shape, const request *r, size_t n, size_t slots,
                       const test_case *t, size_t n_cases)
{
    kvd_checkpoint *const c = shape_or_end(shape, 5);
    test_checkpoint(c, shape->name, r, n, slots, t, n_cases);
    kvd_checkpoint_close(c);
}

static void test_norms(const request *r, size_t n, const test_case *t, size_t n_cases)
{
    test_model("tests/data/families/qwen2-gqa", "qwen2-gqa", r, n, 2, t, n_cases);
    test_shape(&qwen3, r, n, 2, t, n_cases);
}

static void test_windows(const request *r, size_t n, bool quick)
{
    static const test_case cases[] = {{"kivi,bits=4,group=32,residual=32", 0.5, 1e-9},
                                      {"nvfp4", 0.7, 1e-9},
                                      {"comet,bits=4,group=32", 0.5, 1e-9},
                                      {"kivi,bits=2,group=64,residual=64", 0.5, 1e-9},
                                      {"fp8", 0.5, 1e-9},
                                      {"mxfp4", 0.5, 1e-9},
                                      {"vidkv,group=16,residual=32", 0.8, 1e-9},
                                      {"turboquant,bits=3.5,qjl=0", 0.6, 1e-9},
                                      {"turboquant,bits=4,qjl=0", 0.5, 1e-9},
                                      {"turboquant,bits=3", 0.7, 1e-9}};
    static const request one[] = {{40, 100}};
    test_shape(&gemma, r, n, 5, cases, quick ? 2 : sizeof cases / sizeof *cases);
    /* Leaves out the last method, turboquant, whose kernels do not support heads of 256
     * dimensions. */
    test_shape(&wide, r, n < 4 ? n : 3, 2, cases, quick ? 1 : 7);
    kvd_checkpoint *const c = shape_or_end(&gemma, 5);
    load l = load_make(c, one, 1, 17);
    refused(&l, "zipcache,block=20", 0, "kernels of 'zipcache' know no window");
    refused(&l, "kivi,residual=96", 0, "blocks of 96 tokens, which a window of 70 tokens");
    test_context(&l, "kivi,bits=4,group=32,residual=32");
    load_release(&l);
    kvd_checkpoint_close(c);
}

static const kvd_shape qwen3_of_128 = {
    "qwen3, heads of 128", "qwen3", "made up",
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"hidden_act\":\"silu\","
    "\"hidden_size\":192,\"intermediate_size\":96,\"head_dim\":128,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"attention_bias\":false,"
    "\"rope_theta\":10000.0,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-06,"
    "\"vocab_size\":300,\"tie_word_embeddings\":false}"};

static const kvd_shape heads_of_128 = {
    "heads of 128", "llama", "made up",
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
    "\"hidden_size\":256,\"intermediate_size\":192,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":128,\"max_position_embeddings\":16384,"
    "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"vocab_size\":300,"
    "\"num_hidden_layers\":3,\"hidden_act\":\"silu\",\"tie_word_embeddings\":false}"};

static void test_heads_of_128(const request *r, size_t n)
{
    static const test_case cases[] = {{"waterfill,step=0.05,block=64,sink=2", 0.3, 0.01},
                                      {"kvtc,bits=3,window=0,lanes=1", 0.3, 0.01},
                                      {"xquant", 0.5, 1e-9},
                                      {"xquant,bits=3,group=16", 0.5, 1e-9},
                                      {"xquant,group=4", 0.5, 1e-9},
                                      {"xquant,bits=9,group=64", 0.5, 1e-9},
                                      {"xquant,bits=5,latent=0", 0.5, 1e-9}};
    test_shape(&heads_of_128, r, n, 2, cases, sizeof cases / sizeof *cases);
    test_shape(&qwen3_of_128, r, n, 2, cases + 2, sizeof cases / sizeof *cases - 2);
}

/* Tests 16 simultaneous requests, which must not overflow the engine's page table. */
static void test_many(void)
{
    static const request r[MOST] = {{100, 20}, {70, 20}, {1, 40},  {200, 3}, {32, 12}, {31, 40},
                                    {129, 2},  {127, 8}, {63, 20}, {40, 40}, {5, 64},  {16, 5},
                                    {300, 33}, {64, 20}, {500, 9}, {128, 64}};
    static const test_case cases[] = {{"xquant", 0.5, 1e-9}, {"xquant,latent=0", 0.5, 1e-9}};
    kvd_err err = {""};
    served plain = {0};
    double rounding = 0;
    kvd_checkpoint *const c = shape_or_end(&heads_of_128, 5);
    load l = load_make(c, r, MOST, 17);
    l.max_len = 1 << 14;
    if (measure(&l, MOST, &plain, &rounding, &err))
        test_result(0, "16 at a time", "%s", err.msg);
    for (size_t i = 0; plain.logits && i < sizeof cases / sizeof *cases; i++)
        test(&l, MOST, "16 at a time", &cases[i], &plain, rounding);
    free(plain.logits);
    load_release(&l);
    kvd_checkpoint_close(c);
}

/* usage: gpu_engine_packed [quick] [windows|models]
 *        gpu_engine_packed METHOD
 * quick    small cases, for compute-sanitizer
 * windows  only models with sliding windows
 * models   only models without sliding windows
 * METHOD   only methods whose name and parameters begin with METHOD */
int main(int argc, char **argv)
{
    static const request few[] = {{33, 3}, {64, 5}, {1, 34}};
    static const request brief[] = {{33, 3}, {64, 5}, {1, 2}, {30, 4}};
    static const request shorter[] = {{33, 3}, {56, 4}, {1, 34}};
    static const request all[] = {{70, 20}, {1, 40},  {200, 3}, {32, 12}, {31, 40}, {129, 2},
                                  {127, 8}, {63, 20}, {40, 40}, {5, 64},  {16, 5},  {300, 33}};
    static const test_case some[] = {{"kivi,bits=4,group=32,residual=32", 0.5, 1e-9},
                                     {"kvquant,bits=3,outliers=0.2", 0.5, 0.01},
                                     {"nvfp4,scale=2", 0.7, 1e-9},
                                     {"zipcache,block=20", 0.6, 1e-9},
                                     {"vidkv,group=16,residual=32", 0.7, 1e-9},
                                     {"turboquant,bits=3.5,qjl=0", 0.6, 1e-9},
                                     {"waterfill,step=0.05,block=64,sink=2", 0.3, 0.01},
                                     {"xquant,bits=2,group=64", 0.5, 1e-9},
                                     {"cachegen,bin=0.2,group=8,groups=8,lanes=1", 0.5, 0.01},
                                     {"kvtc,bits=3,window=0,lanes=1", 0.3, 0.01},
                                     {"lower+hetero,lk=5,lv=3,heavy=16,recent=16", 0.8, 0.2}};
    static const test_case full[] = {{"kivi,bits=2,group=32,residual=32", 0.5, 1e-9},
                                     {"kivi,bits=4,group=16,residual=64", 0.6, 1e-9},
                                     {"kivi,bits=8,group=64,residual=128", 0.5, 1e-9},
                                     {"kivi,bits=3,group=16,residual=0", 0.6, 1e-9},
                                     {"kivi,bits=6,group=32,residual=32", 0.5, 1e-9},
                                     {"kvquant,bits=4,outliers=0.2", 0.5, 0.01},
                                     {"kvquant,bits=3,outliers=0.2,sink=4", 0.5, 0.01},
                                     {"kvquant,bits=2,outliers=0.2,sink=0", 0.5, 0.01},
                                     {"fp8", 0.5, 1e-9},
                                     {"fp8,mantissa=2", 0.5, 1e-9},
                                     {"fp8,scale=2", 0.5, 1e-9},
                                     {"mxfp4", 0.5, 1e-9},
                                     /* In nvfp4, one scale rounded differently changes 16
                                      * numbers. */
                                     {"nvfp4", 0.6, 1e-9},
                                     {"nvfp4,scale=2", 0.5, 1e-9},
                                     {"allot,bits=4", 0.5, 1e-9},
                                     {"comet,bits=4,group=32", 0.5, 1e-9},
                                     {"comet,bits=3,symmetric=0", 0.5, 1e-9},
                                     {"hetero", 0.5, 1e-9},
                                     {"mikv", 0.9, 0.2},
                                     {"lower+hetero,lk=5,lv=3,heavy=16,recent=16", 0.6, 0.2},
                                     {"rotatekv", 0.6, 1e-9},
                                     {"rotatekv,bits=4,group=64,sink=2", 0.5, 1e-9},
                                     {"gear", 0.6, 1e-9},
                                     {"gear,bits=4,group=16,outliers=0.1,rank=3", 0.6, 1e-9},
                                     {"gear,rank=0,rank2=0,buffer=70", 0.5, 1e-9},
                                     {"vidkv,group=16,residual=32", 0.7, 1e-9},
                                     {"vidkv,k=1.8,ternary=0", 0.7, 1e-9},
                                     {"zipcache,block=20", 0.6, 1e-9},
                                     /* In zipcache, rounding decides between tokens of nearly equal
                                      * importance. */
                                     {"zipcache,high=8,low=3,share=0.3,block=70", 0.8, 1e-9},
                                     {"turboquant,bits=4,qjl=0", 0.5, 1e-9},
                                     {"turboquant,bits=2,qjl=0", 0.5, 1e-9},
                                     {"turboquant,bits=3", 0.7, 1e-9},
                                     {"turboquant,bits=6,qjl=0", 0.5, 1e-9},
                                     {"turboquant,bits=3.5,qjl=0", 0.6, 1e-9},
                                     {"turboquant,bits=2.5,group=16", 0.7, 1e-9},
                                     {"xquant", 0.5, 1e-9},
                                     {"xquant,bits=2,group=64", 0.5, 1e-9},
                                     {"xquant,bits=8,group=32", 0.5, 1e-9},
                                     {"xquant,bits=3,group=8", 0.5, 1e-9},
                                     {"xquant,bits=3,latent=0", 0.5, 1e-9},
                                     {"think,window=16", 0.5, 0.2},
                                     {"think,window=8,p=0.8", 0.5, 0.3},
                                     {"shadowkv,rank=32,outliers=4,budget=0.4", 1, 0.3},
                                     {"waterfill,step=0.02,block=64", 0.3, 0.01},
                                     {"waterfill,step=0.5,block=64,sink=0", 0.3, 0.01},
                                     {"waterfill,step=0.1,block=64,sink=70", 0.3, 0.01},
                                     {"kvtc,bits=3,window=0,lanes=1", 0.3, 0.01},
                                     {"kvtc,bits=1.5,window=0,lanes=1,sink=66", 0.3, 0.01},
                                     {"cachegen,bin=0.1,group=16,groups=4,lanes=1", 0.5, 0.01},
                                     {"cachegen,bin=1,group=4,groups=16,lanes=1", 0.5, 0.01}};
    static const test_case kivi[] = {{"kivi,bits=4,group=16,residual=16", 0.5, 1e-9}};
    static const test_case narrow[] = {{"kivi,bits=2,group=16,residual=16", 0.6, 1e-9},
                                       {"kvquant,bits=4,outliers=0.2,sink=2", 0.5, 0.01},
                                       {"fp8", 0.5, 1e-9},
                                       {"mxfp4", 0.5, 1e-9},
                                       {"nvfp4", 0.6, 1e-9},
                                       {"comet,bits=3,group=16", 0.5, 1e-9},
                                       {"allot,bits=3", 0.5, 1e-9},
                                       {"gear,bits=3", 0.6, 1e-9},
                                       {"zipcache,high=6,block=16", 0.6, 1e-9},
                                       {"vidkv,group=16,residual=16", 0.7, 1e-9},
                                       {"hetero,k=4,v=3", 0.6, 1e-9}};
    static const test_case nvfp4[] = {{"nvfp4", 0.5, 1e-9},
                                      {"cachegen,bin=0.1,group=8,groups=8,lanes=1", 0.5, 0.01}};
    static const test_case rebuilt[] = {{"xquant,bits=4,group=16", 0.5, 1e-9},
                                        {"xquant,bits=8,group=64", 0.5, 1e-9},
                                        {"think,window=8,p=0.5", 0.5, 0.3},
                                        {"shadowkv,rank=32,outliers=1,budget=0.4", 1, 0.3}};
    static const test_case kvquant[] = {{"kvquant,bits=4,outliers=0.2", 0.5, 0.01}};
    if (!gpu_devices("engine", 1))
        return 0;
    const char *const part = argc > 1 ? argv[argc - 1] : "";
    const bool quick = argc > 1 && !strcmp(argv[1], "quick"), windows = !strcmp(part, "windows"),
               models = !strcmp(part, "models");
    for (size_t i = 0; argc > 1 && i < sizeof full / sizeof *full; i++)
        if (!strncmp(full[i].method, argv[1], strlen(argv[1])))
            test_model("data/models/kvdim-6m", "kvdim-6m", all, 12, 5, &full[i], 1);
    if (argc > 1 && !strcmp(argv[1], "xquant")) {
        test_norms(few, 3, rebuilt, sizeof rebuilt / sizeof *rebuilt);
        test_heads_of_128(all, 12);
        test_many();
    }
    if (argc > 1 && !quick && !windows && !models)
        return failures ? 1 : 0;
    if (!models) {
        test_unwritten("zipcache,block=20");
        test_unwritten("gear");
        test_windows(quick ? brief : all, quick ? 4 : 12, quick);
    }
    if (windows)
        return failures ? 1 : 0;
    if (quick) {
        test_model("data/models/kvdim-6m", "kvdim-6m", brief, 4, 2, some,
                   sizeof some / sizeof *some);
        test_cut("data/models/kvdim-6m", brief, 4, some, 2, true, false);
        test_heads_of_128(brief, 4);
        return failures ? 1 : 0;
    }
    test_model("data/models/kvdim-6m", "kvdim-6m", all, 12, 5, full, sizeof full / sizeof *full);
    test_heads_of_128(all, 12);
    test_many();
    test_model("tests/data/families/qwen2-gqa", "qwen2-gqa", few, 3, 2, kivi, 1);
    test_norms(few, 3, rebuilt, sizeof rebuilt / sizeof *rebuilt);
    test_model("tests/data/families/mistral-full", "mistral-full", few, 3, 2, kivi, 1);
    test_model("tests/data/families/qwen2-gqa", "qwen2-gqa", few, 3, 2, nvfp4, 2);
    test_model("tests/data/families/opt-before", "opt-before", shorter, 3, 2, kvquant, 1);
    test_cut("data/models/kvdim-6m", all, 12, some, 3, true, true);
    test_cut("data/models/kvdim-6m", all, 12, narrow, sizeof narrow / sizeof *narrow, true, false);
    test_cut("data/models/kvdim-6m", few, 3, some, 3, false, true);
    test_cut("tests/data/families/qwen2-gqa", few, 3, some, 2, true, false);
    test_rest();
    return failures ? 1 : 0;
}
