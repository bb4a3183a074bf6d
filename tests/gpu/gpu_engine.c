/* Compares logits of the CUDA engine with those of a forward pass over whole sequences on one
 * GPU. */
#include <math.h>

#include "dims_fixture.h"
#include "engine_case.h"

static const request long_ones[] = {{70, 9},  {1, 30},  {300, 3}, {64, 12}, {13, 70}, {129, 1},
                                    {200, 8}, {63, 20}, {40, 40}, {5, 64},  {1, 1},   {448, 33}};
static const request short_ones[] = {{17, 9}, {1, 20}, {30, 3}, {8, 12}, {13, 11}, {25, 1}};

static const request prompts_alone[] = {{200, 1}, {64, 1}, {1, 1},   {129, 1},
                                        {63, 1},  {77, 1}, {448, 1}, {320, 1}};
static const request two_pages[] = {{100, 1}, {64, 1}, {65, 1}, {127, 1}, {1, 1}, {72, 1}};
static const request one_page[] = {{30, 1}, {1, 1}, {59, 1}, {16, 1}, {33, 1}, {8, 1}};
static const setting by_tokens = {
    .name = "prompts by tokens", .max_batch = 1, .phases = true, .sequence = true};
static const setting whole = {.name = "whole prompts", .max_batch = 5};
static const setting replayed = {
    .name = "whole prompts, graphs, phases", .max_batch = 5, .graphs = true, .phases = true};
static const setting pieces = {.name = "pieces of 48", .max_batch = 4, .chunk = 48, .graphs = true};
static const setting many = {
    .name = "batch of 12, graphs, phases", .max_batch = 12, .graphs = true, .phases = true};
static const setting many_pieces = {
    .name = "batch of 12, pieces of 100, phases", .max_batch = 12, .chunk = 100, .phases = true};
static const setting three = {.name = "three requests", .max_batch = 3};
static const setting *const some[] = {&replayed, &pieces, NULL};
static const setting *const more[] = {&replayed, &pieces, &many, &many_pieces, NULL};

typedef struct {
    const char *path, *name;
} subject;

static const subject small = {"data/models/kvdim-6m", "kvdim-6m"};

static void test_whole(const subject *m, int quick)
{
    static const setting *const all[] = {&replayed, &pieces, &whole, &many, &many_pieces, NULL};
    kvd_checkpoint *const c = checkpoint_or_end(m->path);
    test_requests(c, m->name, long_ones, quick ? 5 : 12, 11, NULL, "none", quick ? some : all);
    kvd_checkpoint_close(c);
}

/* Returns true, and prints why, if the heads cannot be divided among the GPUs. */
static bool indivisible(const kvd_checkpoint *c, const char *name)
{
    kvd_err err = {""};
    kvd_gpu_share share;
    if (!kvd_gpu_share_of(kvd_checkpoint_config(c), KVD_GPU_SERVING, 0, n_gpus, &share, &err))
        return false;
    printf("# %s: %s\n", name, err.msg);
    return true;
}

/* parts of config.json, for models of families that the engine supports */
#define GPT_OSS                                                                                    \
    "\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\","                        \
    "\"attention_bias\":true,\"num_local_experts\":8,\"num_experts_per_tok\":3,"                   \
    "\"swiglu_limit\":7.0,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4.0,"                \
    "\"beta_fast\":32.0,\"beta_slow\":1.0,\"original_max_position_embeddings\":256,"               \
    "\"truncate\":false},\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
#define GEMMA                                                                                      \
    "\"hidden_activation\":\"gelu_pytorch_tanh\",\"hidden_size\":256,\"intermediate_size\":192,"   \
    "\"head_dim\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2," \
    "\"max_position_embeddings\":1024,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-06,"              \
    "\"vocab_size\":300,\"attention_bias\":false,"
enum { GPT_OSS_SHAPE = 0 };
static const kvd_shape shape[] = {
#define SIZES                                                                                      \
    "\"hidden_act\":\"silu\",\"hidden_size\":256,\"intermediate_size\":192,\"head_dim\":64,"       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"                 \
    "\"max_position_embeddings\":1024,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-05,"              \
    "\"vocab_size\":300,\"tie_word_embeddings\":false,"
    [GPT_OSS_SHAPE] = {"gpt_oss, long windows", "gpt_oss", "made up",
                       "{" SIZES GPT_OSS "\"sliding_window\":1024}"},
    {"glm", "glm", "made up",
     "{" SIZES "\"architectures\":[\"GlmForCausalLM\"],\"model_type\":\"glm\","
     "\"attention_bias\":true,\"partial_rotary_factor\":0.5}"},
    {"glm4", "glm4", "made up",
     "{" SIZES "\"architectures\":[\"Glm4ForCausalLM\"],\"model_type\":\"glm4\","
     "\"attention_bias\":false,\"partial_rotary_factor\":0.5}"},
    {"olmo2", "olmo2", "made up",
     "{" SIZES "\"architectures\":[\"Olmo2ForCausalLM\"],\"model_type\":\"olmo2\","
     "\"attention_bias\":false}"},
    {"mixtral", "mixtral", "made up",
     "{" SIZES "\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\","
     "\"num_local_experts\":8,\"num_experts_per_tok\":2,\"sliding_window\":null}"},
    {"qwen3_moe, a dense layer", "qwen3_moe", "made up",
     "{" SIZES "\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
     "\"moe_intermediate_size\":80,\"num_experts\":24,\"num_experts_per_tok\":5,"
     "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[0],"
     "\"attention_bias\":false,\"use_sliding_window\":false}"},
    {"qwen2_moe, a shared expert", "qwen2_moe", "made up",
     "{" SIZES "\"architectures\":[\"Qwen2MoeForCausalLM\"],\"model_type\":\"qwen2_moe\","
     "\"moe_intermediate_size\":64,\"shared_expert_intermediate_size\":96,\"num_experts\":9,"
     "\"num_experts_per_tok\":3,\"norm_topk_prob\":false,\"decoder_sparse_step\":1,"
     "\"mlp_only_layers\":[],\"use_sliding_window\":false}"},
    {"gemma", "gemma", "made up",
     "{" GEMMA "\"architectures\":[\"GemmaForCausalLM\"],\"model_type\":\"gemma\"}"},
    {"gemma2 without caps of scores", "gemma2", "made up",
     "{" GEMMA "\"architectures\":[\"Gemma2ForCausalLM\"],\"model_type\":\"gemma2\","
     "\"attn_logit_softcapping\":null,\"final_logit_softcapping\":30.0,"
     "\"query_pre_attn_scalar\":100,\"sliding_window\":1024}"},
    {"phi3, partial RoPE", "phi3", "made up",
     "{" SIZES "\"architectures\":[\"Phi3ForCausalLM\"],\"model_type\":\"phi3\","
     "\"original_max_position_embeddings\":1024,\"partial_rotary_factor\":0.75,"
     "\"sliding_window\":null}"},
    {"smollm3", "smollm3", "made up",
     "{" SIZES "\"model_type\":\"smollm3\",\"no_rope_layers\":[1,0]}"},
    {"exaone4", "exaone4", "made up",
     "{" SIZES "\"model_type\":\"exaone4\",\"sliding_window\":1024,"
     "\"layer_types\":[\"full_attention\",\"sliding_attention\"]}"},
    {"granite", "granite", "made up",
     "{" SIZES "\"model_type\":\"granite\",\"embedding_multiplier\":3.0,"
     "\"attention_multiplier\":0.1,\"residual_multiplier\":0.4,\"logits_scaling\":2.0}"},
    {"cohere2", "cohere2", "made up",
     "{" SIZES "\"model_type\":\"cohere2\",\"layer_norm_eps\":1e-05,\"logit_scale\":0.5,"
     "\"sliding_window\":1024,\"sliding_window_pattern\":2}"},
    {"ernie4_5", "ernie4_5", "made up", "{" SIZES "\"model_type\":\"ernie4_5\"}"},
    {"glm4_moe", "glm4_moe", "made up",
     "{" SIZES "\"model_type\":\"glm4_moe\",\"attention_bias\":true,\"use_qk_norm\":true,"
     "\"moe_intermediate_size\":64,\"n_routed_experts\":12,\"num_experts_per_tok\":3,"
     "\"n_group\":3,\"topk_group\":2,\"n_shared_experts\":1,\"first_k_dense_replace\":1,"
     "\"routed_scaling_factor\":1.5,\"num_nextn_predict_layers\":0}"},
    {"gpt_neox", "gpt_neox", "made up",
     "{\"model_type\":\"gpt_neox\",\"hidden_size\":256,\"intermediate_size\":192,"
     "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"max_position_embeddings\":1024,"
     "\"layer_norm_eps\":1e-05,\"vocab_size\":300,\"rotary_pct\":0.25}"},
    {"stablelm", "stablelm", "made up",
     "{" SIZES "\"model_type\":\"stablelm\",\"layer_norm_eps\":1e-05,\"use_qkv_bias\":true,"
     "\"use_parallel_residual\":true}"},
    {"nemotron", "nemotron", "made up",
     "{\"model_type\":\"nemotron\",\"hidden_size\":256,\"intermediate_size\":192,"
     "\"head_dim\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
     "\"num_key_value_heads\":2,\"max_position_embeddings\":1024,\"norm_eps\":1e-05,"
     "\"vocab_size\":300}"},
    {"olmoe", "olmoe", "made up",
     "{" SIZES "\"model_type\":\"olmoe\",\"num_experts\":8,\"num_experts_per_tok\":2}"},
    {"dots1", "dots1", "made up",
     "{" SIZES "\"model_type\":\"dots1\",\"moe_intermediate_size\":64,\"n_routed_experts\":8,"
     "\"num_experts_per_tok\":3,\"n_shared_experts\":2,\"first_k_dense_replace\":1}"},
    {"minimax_m2", "minimax_m2", "made up",
     "{" SIZES "\"model_type\":\"minimax_m2\",\"num_local_experts\":8,"
     "\"num_experts_per_tok\":2,\"rotary_dim\":32}"}};

static void test_shapes(const request *r)
{
    for (size_t i = 0; i < sizeof shape / sizeof *shape; i++) {
        kvd_checkpoint *const c = shape_or_end(&shape[i], 4);
        if (!indivisible(c, shape[i].name))
            test_requests(c, shape[i].name, r, 6, 25 + i, NULL, "none", some);
        kvd_checkpoint_close(c);
    }
}

static void test_families(const request *r, const setting *const *set)
{
    static const char *const name[] = {
        "mistral-full",   "llama-biases", "qwen2-gqa",   "qwen3-gqa",  "qwen3-yarn",
        "opt-before",     "opt-after",    "falcon-mha",  "falcon-40b", "falcon-7b",
        "mistral-window", "qwen2-window", "phi3-window", "gemma-mha",  "gemma3-text"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        kvd_checkpoint *const c = family_or_end(name[i]);
        bool refused = false;
        for (int k = 0; set[0]->sequence && k < kvd_checkpoint_config(c)->n_layers; k++)
            refused = refused || kvd_config_window(kvd_checkpoint_config(c), k) > 0;
        if (refused)
            printf("# %s: has attention windows\n", name[i]);
        else if (!indivisible(c, name[i]))
            test_requests(c, name[i], r, 6, 12 + i, NULL, "none", set);
        kvd_checkpoint_close(c);
    }
}

static void test_dims_of(const kvd_checkpoint *c, const char *name, const request *r, size_t n,
                         const setting *const *set)
{
    static const kvd_dims_method *const method[] = {&kvd_dims_zack, &kvd_dims_balanced};
    const kvd_config *const config = kvd_checkpoint_config(c);
    for (size_t i = 0; i < 2; i++) {
        kvd_err err = {""};
        kvd_dims d = {0};
        kvd_spectrum s = {0};
        const kvd_plan plan = {.type = KVD_BF16, .dims = &d};
        if (fixture_spectrum(&s, config, 7, &err) ||
            fixture_dims(&d, &s, config, method[i], fixture_uneven, &err))
            test_result(0, name, "%s", err.msg);
        else
            test_requests(c, name, r, n, 31, &plan, method[i]->info.name, set);
        kvd_dims_release(&d);
        kvd_spectrum_release(&s);
    }
}

static void test_dims(const subject *model, const request *r, size_t n, const setting *const *set)
{
    kvd_checkpoint *const c = checkpoint_or_end(model->path);
    test_dims_of(c, model->name, r, n, set);
    kvd_checkpoint_close(c);
}

static const kvd_shape windowed[] = {
    {"mistral, window 100", "mistral", "made up",
     "{" SIZES "\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\","
     "\"sliding_window\":100}"},
    {"phi3, window 65", "phi3", "made up",
     "{" SIZES "\"architectures\":[\"Phi3ForCausalLM\"],\"model_type\":\"phi3\","
     "\"original_max_position_embeddings\":1024,\"sliding_window\":65}"},
    {"qwen2, window 17", "qwen2", "made up",
     "{" SIZES "\"architectures\":[\"Qwen2ForCausalLM\"],\"model_type\":\"qwen2\","
     "\"use_sliding_window\":true,\"max_window_layers\":1,\"sliding_window\":17}"},
    {"olmo3, window 70", "olmo3", "made up",
     "{" SIZES "\"architectures\":[\"Olmo3ForCausalLM\"],\"model_type\":\"olmo3\","
     "\"attention_bias\":false,\"sliding_window\":70,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\"],"
     "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":10000.0,"
     "\"factor\":4.0,\"original_max_position_embeddings\":256},"
     "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0}}}"},
    {"gpt_oss, window 70", "gpt_oss", "made up", "{" SIZES GPT_OSS "\"sliding_window\":70}"},
    {"gemma3, window 40", "gemma3_text", "made up",
     "{" GEMMA "\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","
     "\"query_pre_attn_scalar\":100,\"sliding_window\":40,\"rope_local_base_freq\":5000.0,"
     "\"layer_types\":[\"sliding_attention\",\"full_attention\"]}"}};

static const request beyond_windows[] = {{300, 100}, {70, 9},  {1, 120},
                                         {129, 3},   {200, 8}, {448, 33}};

/* Tests that a request holds the cache pages of all its tokens. In layers with a sliding window, it
 * must hold only pages with tokens that are still visible. */
static void test_held(const kvd_checkpoint *c, const char *name)
{
    enum { INPUT = 400, PIECE = 48, STEPS = 100, PAGE = 64 };
    static const kvd_plan none = {.type = KVD_BF16};
    const kvd_config *const m = kvd_checkpoint_config(c);
    const setting set = {.max_batch = 1, .chunk = PIECE};
    const kvd_engine_spec spec = spec_on_gpus(&set, INPUT + STEPS);
    const double page = 2.0 * 2 * PAGE * m->n_kv_heads * m->d_head;
    kvd_err err = {""};
    kvd_engine *const e = kvd_engine_open_cuda(c, &none, &spec, &err);
    uint32_t *const id = some_ids(INPUT + STEPS, (size_t)m->vocab_size, 3), token;
    int status = !e;
    size_t wrong = 0;
    double most = 0;
    for (size_t at = 0, n; !status && at < INPUT + STEPS; at += n) {
        n = at >= INPUT ? 1 : INPUT - at < PIECE ? INPUT - at : PIECE;
        const kvd_slice s = {.before = (uint32_t)at, .n = (uint32_t)n, .emits = at + n >= INPUT};
        const kvd_iteration it = {
            .n_slices = 1, .n_steps = at >= INPUT, .slice = &s, .n_tokens = n};
        double want = 0;
        for (int l = 0; l < m->n_layers; l++) {
            const size_t end = at + n, window = kvd_config_window(m, l),
                         first = window && end + 1 > window ? end + 1 - window : 0;
            want += page * (double)((end + PAGE - 1) / PAGE - first / PAGE);
        }
        status = e->step(e, &it, id + at, &token, NULL, &err);
        const double held = status ? 0 : e->held(e);
        wrong += fabs(held - want) > 0.5;
        most = fmax(most, held);
    }
    char text[160];
    (void)snprintf(text, sizeof text, "%s: at most %.0f bytes held, %zu counts are wrong", name,
                   most, wrong);
    test_result(!status && !wrong, "bytes of windows", "%s", status ? err.msg : text);
    engine_free(e);
    free(id);
}

static void test_windowed(const kvd_shape *made, uint64_t seed, bool cuts, int quick)
{
    static const setting *const set[] = {&pieces, &replayed, &many, &many_pieces, NULL},
                                *const two[] = {&pieces, &replayed, NULL},
                                *const one[] = {&pieces, NULL};
    kvd_checkpoint *const c = shape_or_end(made, 5);
    if (!indivisible(c, made->name)) {
        test_requests(c, made->name, beyond_windows, quick ? 2 : 6, seed, NULL, "none",
                      quick ? one : set);
        if (cuts || (!quick && kvd_checkpoint_config(c)->sinks))
            test_dims_of(c, made->name, beyond_windows, 6, two);
        if (n_gpus == 1 && kvd_config_window(kvd_checkpoint_config(c), 0))
            test_held(c, made->name);
    }
    kvd_checkpoint_close(c);
}

static void test_windows(int quick)
{
    for (size_t i = 0; i < (quick ? 2 : sizeof windowed / sizeof *windowed); i++)
        test_windowed(&windowed[i], 35 + i, !quick && i % 3 == 0, quick);
}

/* Models with heads of 256 dimensions, which have their own kernels. */
static const kvd_shape wide_shape[] = {
#define WIDE_SIZES                                                                                 \
    "\"hidden_size\":256,\"intermediate_size\":192,\"head_dim\":256,\"num_hidden_layers\":3,"      \
    "\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-06,\"vocab_size\":300,"
    {"gemma3, window 70", "gemma3", "made up",
     "{" WIDE_SIZES "\"architectures\":[\"Gemma3ForCausalLM\"],\"model_type\":\"gemma3_text\","
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_attention_heads\":4,"
     "\"num_key_value_heads\":2,\"query_pre_attn_scalar\":256,\"sliding_window\":70,"
     "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"full_attention\"],"
     "\"rope_theta\":1000000.0,\"rope_local_base_freq\":10000.0}"},
    {"gemma", "gemma", "made up",
     "{" WIDE_SIZES "\"architectures\":[\"GemmaForCausalLM\"],\"model_type\":\"gemma\","
     "\"hidden_activation\":\"gelu_pytorch_tanh\",\"num_attention_heads\":8,"
     "\"num_key_value_heads\":1,\"rope_theta\":10000.0}"}};

static void refused_method(const kvd_checkpoint *c, const char *text, const kvd_engine_spec *s,
                           const char *why)
{
    kvd_err err = {""};
    kvd_method m;
    if (kvd_method_parse(text, &m, &err)) {
        test_result(0, "refused", "%s", err.msg);
        return;
    }
    m.plan.type = KVD_BF16;
    engine_refused(c, &m.plan, s, why);
}

static void test_refused_wide(void)
{
    static const char *const text[] = {"turboquant", "leankv", "gear"};
    const kvd_engine_spec s = spec_on_gpus(&three, 60);
    kvd_checkpoint *const c = shape_or_end(&wide_shape[1], 5);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++)
        refused_method(c, text[i], &s, "heads of 256: the CUDA engine's kernels of");
    kvd_checkpoint_close(c);
}

/* A model whose KV heads have more query heads than one launch of decode attention computes. */
static const kvd_shape many_heads = {
    "29 query heads per KV head", "llama", "made up",
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_act\":\"silu\","
    "\"hidden_size\":256,\"intermediate_size\":192,\"head_dim\":32,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":58,\"num_key_value_heads\":2,\"max_position_embeddings\":1024,"
    "\"rope_theta\":10000.0,\"rms_norm_eps\":1e-05,\"vocab_size\":300,"
    "\"tie_word_embeddings\":false}"};

static void test_many_heads(void)
{
    kvd_checkpoint *const c = shape_or_end(&many_heads, 5);
    if (!indivisible(c, many_heads.name)) {
        test_requests(c, many_heads.name, short_ones, 6, 55, NULL, "none", some);
        test_dims_of(c, many_heads.name, short_ones, 6, some);
    }
    if (n_gpus == 1) {
        const kvd_engine_spec s = spec_on_gpus(&three, 60);
        refused_method(c, "kivi", &s, "29 query heads per KV head: the CUDA engine's kernels of");
    }
    kvd_checkpoint_close(c);
}

static void test_wide(int quick)
{
    for (size_t i = 0; i < (quick ? 1 : sizeof wide_shape / sizeof *wide_shape); i++)
        test_windowed(&wide_shape[i], 45 + i, !quick, quick);
    if (!quick && n_gpus == 1)
        test_refused_wide();
}

static void test_context(const subject *m)
{
    static const kvd_plan none = {.type = KVD_BF16};
    kvd_err err = {""};
    kvd_checkpoint *const c = checkpoint_or_end(m->path);
    const setting set = {.max_batch = 3, .graphs = true};
    const kvd_engine_spec spec = spec_on_gpus(&set, 1000);
    kvd_engine *const e = kvd_engine_open_cuda(c, &none, &spec, &err);
    test_uncomputed(e, "a context that was never computed", &err);
    engine_free(e);
    kvd_checkpoint_close(c);
}

static void test_refused(void)
{
    static const kvd_plan none = {.type = KVD_BF16}, wide = {.type = KVD_F32};
    const kvd_engine_spec plain = spec_on_gpus(&three, 100);
    kvd_checkpoint *const c = checkpoint_or_end("data/models/kvdim-6m");
    kvd_engine_spec s = plain;
    refused_method(c, "lower", &s, "lower");
    engine_refused(c, &wide, &s, "f32");
    s.limits.pages = (size_t)1 << 30;
    engine_refused(c, &none, &s, "1073741824 pages");
    s = spec_on_gpus(&three, 4096);
    engine_refused(c, &none, &s, "1024");
    s = plain;
    s.n_gpus = 17;
    engine_refused(c, &none, &s, "17 GPUs");
    s = plain;
    s.type = KVD_F32;
    engine_refused(c, &none, &s, "f32");
    kvd_checkpoint_close(c);
    kvd_checkpoint *const odd = family_or_end("mixtral-full");
    s = plain;
    s.graphs = true;
    engine_refused(odd, &none, &s,
                   "5 experts of 14 hidden units in a model of width 18: CUDA graphs");
    kvd_checkpoint_close(odd);
    kvd_checkpoint *const sinks = shape_or_end(&shape[GPT_OSS_SHAPE], 4);
    refused_method(sinks, "waterfill,block=64", &plain,
                   "attention sinks, which the CUDA engine's kernels of 'waterfill' do");
    kvd_checkpoint_close(sinks);
}

/* Tests models with one NaN weight. The error message must name the first wrong activation, its
 * request and its token position. */
static void test_nonfinite(void)
{
    static const struct {
        const char *tensor;
        size_t i;
        /* expected text in the error message when prompts run, and when a decode step runs; NULL:
         * no error */
        const char *prompts, *step;
    } bad[] = {
        {"model.embed_tokens.weight", 17 * 64 + 3, NULL,
         "embedding: activation of request 5 at position 6"},
        {"model.embed_tokens.weight", 13 * 64 + 3,
         "embedding: activation of request 5 at position 2", NULL},
        {"model.layers.1.mlp.down_proj.weight", 5,
         "layer 1: activation of request 3 at position 11", NULL},
        {"model.layers.0.self_attn.v_proj.weight", 3,
         "layer 0: activation of request 3 at position 0", NULL},
        {"model.norm.weight", 0, "final norm: activation of request 3 at position 11", NULL},
    };
    static const kvd_plan none = {.type = KVD_BF16};
    static const kvd_slice prompt[] = {{.request = 3, .n = 12, .emits = 1},
                                       {.request = 5, .slot = 1, .n = 6, .emits = 1}};
    static const kvd_slice step = {.request = 5, .slot = 1, .before = 6, .n = 1, .emits = 1};
    static const uint32_t id[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 11, 12, 13, 14, 15, 16},
                          last = 17;
    const kvd_iteration prompts = {.n_slices = 2, .slice = prompt, .n_tokens = 18};
    const kvd_iteration steps = {.n_slices = 1, .n_steps = 1, .slice = &step, .n_tokens = 1};
    const setting set = {.max_batch = 2, .graphs = true};
    const kvd_engine_spec spec = spec_on_gpus(&set, 64);
    made_spec s = MADE_SPEC_DEFAULTS;
    s.tied = false;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char name[16], path[128], file[160];
        kvd_err err = {""};
        uint32_t token[2];
        (void)snprintf(name, sizeof name, "bad-%zu", i);
        made_or_end(name, &s, path);
        (void)snprintf(file, sizeof file, "%s/model.safetensors", path);
        kvd_engine *e = NULL;
        if (!made_poke(file, bad[i].tensor, bad[i].i, NAN, &err)) {
            kvd_checkpoint *const c = checkpoint_or_end(path);
            e = kvd_engine_open_cuda(c, &none, &spec, &err);
            kvd_checkpoint_close(c);
        }
        const char *const want = bad[i].prompts ? bad[i].prompts : bad[i].step;
        const int first = e && e->step(e, &prompts, id, token, NULL, &err);
        const int second = e && !first && e->step(e, &steps, &last, token, NULL, &err);
        test_result((bad[i].prompts ? first : second) && strstr(err.msg, want), "not finite", "%s",
                    err.msg);
        engine_free(e);
    }
}

static void test_refused_on_two(void)
{
    static const kvd_plan none = {.type = KVD_BF16};
    kvd_checkpoint *const c = family_or_end("falcon-7b");
    kvd_engine_spec s = spec_on_gpus(&three, 100);
    engine_refused(c, &none, &s, "1 KV heads do not divide by 2 GPUs");
    s.sequence = true;
    engine_refused(c, &none, &s, "one at a time, not 3");
    refused_method(c, "kvzip", &s, "on one GPU, 2 were asked for");
    kvd_checkpoint_close(c);
}

/* Tests an iteration of 2,600 tokens. On several GPUs, the engine splits it into two halves, so
 * that communication for one half overlaps with computation for the other. */
static void test_halves(const subject *m)
{
    static const request r[] = {{900, 2}, {900, 3}, {800, 1}, {70, 4}};
    static const setting set = {
        .name = "2600 tokens at once, phases", .max_batch = 3, .graphs = true, .phases = true};
    static const setting *const sets[] = {&set, NULL};
    kvd_checkpoint *const c = checkpoint_or_end(m->path);
    test_requests(c, m->name, r, 4, 17, NULL, "none", sets);
    kvd_checkpoint_close(c);
}

static const subject grouped = {"tests/data/families/qwen2-gqa", "qwen2-gqa"};

static void test_on(const subject *m, int gpus, int quick, const setting *const *cut)
{
    use_gpus(gpus);
    test_whole(m, quick);
    test_dims(m, long_ones, quick ? 4 : 12, cut);
    if (gpus <= 2)
        test_dims(&grouped, short_ones, 6, some);
    test_context(m);
    test_windows(quick);
    test_wide(quick);
    if (quick)
        return;
    test_many_heads();
    test_families(short_ones, some);
    test_shapes(short_ones);
    test_halves(m);
    if (gpus == 1)
        test_refused();
    else if (gpus == 2)
        test_refused_on_two();
    if (gpus <= 2)
        test_nonfinite();
}

static void test_by_tokens(const subject *m, int gpus, int quick)
{
    static const setting *const set[] = {&by_tokens, NULL};
    kvd_checkpoint *const c = checkpoint_or_end(m->path);
    use_gpus(gpus);
    test_requests(c, m->name, prompts_alone, 8, 11, NULL, "none", set);
    kvd_checkpoint_close(c);
    test_dims(m, prompts_alone, quick ? 4 : 8, set);
    if (!quick && gpus == 2) {
        test_dims(&grouped, two_pages, 6, set);
        test_families(one_page, set);
    }
}

static void test_on_four(void)
{
    char path[128];
    const subject made = {path, "made"};
    made_spec s = MADE_SPEC_DEFAULTS;
    s.layers = 4;
    s.heads = 24;
    s.kv_heads = 8;
    s.d_head = 64;
    s.d_model = 256;
    s.ffn = 512;
    s.positions = 1024;
    use_gpus(4);
    made_or_end("made", &s, path);
    test_on(&made, 4, 0, some);
    test_by_tokens(&made, 4, 0);
}

/* usage: gpu_engine [quick] [one|windows|wide|two|halves|tokens|four]
 * quick    small cases
 * one      one GPU
 * windows  one GPU, sliding windows
 * wide     one GPU, heads of 256 dimensions
 * two      two GPUs
 * halves   two GPUs, communication overlaps with computation
 * tokens   two GPUs share a prompt's tokens
 * four     four GPUs */
int main(int argc, char **argv)
{
    const int quick = argc > 1 && strcmp(argv[1], "quick") == 0;
    const char *const which = argc > 1 + quick ? argv[argc - 1] : "all";
    const int all = strcmp(which, "all") == 0, four = strcmp(which, "four") == 0;
    const int devices = gpu_devices("engine", 1);
    if (!devices)
        return 0;
    if (all || strcmp(which, "one") == 0)
        test_on(&small, 1, quick, quick ? some : more);
    if (strcmp(which, "windows") == 0) {
        test_windows(quick);
        return failures ? 1 : 0;
    }
    if (strcmp(which, "wide") == 0) {
        test_wide(quick);
        return failures ? 1 : 0;
    }
    if (devices < 2 && strcmp(which, "one") != 0)
        printf("skip engine on 2 GPUs: %d device\n", devices);
    if (devices > 1 && (all || strcmp(which, "two") == 0))
        test_on(&small, 2, quick, quick ? some : more);
    if (devices > 1 && strcmp(which, "halves") == 0) {
        use_gpus(2);
        test_halves(&small);
    }
    if (devices > 1 && (all || strcmp(which, "tokens") == 0))
        test_by_tokens(&small, 2, quick);
    if (devices > 3 && (four || (all && !quick)))
        test_on_four();
    else if (four || (all && devices > 1))
        printf("skip engine on 4 GPUs: %d devices\n", devices);
    return failures ? 1 : 0;
}
